"""Keep the configurations of a stage that some plan could want.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, G
signatures, P prices, O options kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nest._kernels import CACHE
from nest._kernels.layers import (
    ACTIVATIONS,
    BACKWARD,
    BUFFERS,
    C_BACKWARD,
    C_CHASE_BACKWARD,
    C_CHASE_FORWARD,
    C_FORWARD,
    C_LEFT,
    C_TIED,
    C_TRAILING,
    C_TRAILS_BACKWARD,
    C_TRAILS_FORWARD,
    C_TURN,
    C_UPDATE,
    C_WAIT,
    CHUNK,
    FIELDS,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    GATHER,
    GATHERED,
    REGATHERED,
    RESIDENT,
    SCATTERED,
    SYNC,
    TIED,
    UPDATE,
    WORK,
    chunk_costs,
    layer_sums,
    spare,
)

# Of a stage, in place of what no stage needs: what is left to reduce and to gather, and what that
# is with the next layer's still to come; see ``_walk``.
LEFT, BALANCE, WAIT, START = SYNC, FREE_BACKWARD, GATHER, GATHERED
CHASE_FORWARD, CHASE_BACKWARD = REGATHERED, SCATTERED
# Fields of an option: those that decide between two (micro-batches in flight and shards below
# zero, so that less is better), then others of its label.
(AHEAD, READY, BACK, HELD, WAITED, SHARDS, PACED, PACED_BACK, TURNED, LATER, READY_TURNED, REMAINS,
 WAITS, TURN, PACE, PACE_BACK) = range(16)
DECIDE, OPTION = 11, 16


class Candidates(NamedTuple):
    """Arrays of one outer choice; the fields of :class:`nest.tensors.Tables`."""

    ahead: np.ndarray
    back: np.ndarray
    state: np.ndarray
    body: np.ndarray
    held: np.ndarray
    price: np.ndarray
    weight: np.ndarray
    shards: np.ndarray
    relayed: np.ndarray
    hybrid: np.ndarray
    shard: np.ndarray
    forbidden: np.ndarray
    keep_none: bool
    full: int
    first_layers: np.ndarray
    most_layers: int
    last: np.ndarray
    part: np.ndarray
    counts: np.ndarray
    marked: np.ndarray
    ancestor: np.ndarray
    kinds: np.ndarray
    relay: np.ndarray
    cap: np.ndarray
    whole: int
    limit_bytes: float
    micro_batches: int
    least: np.ndarray
    overlaps: np.ndarray
    again: float
    root: np.ndarray
    second: np.ndarray
    gpipe: bool


# The helpers below index whole arrays: a slice in an inner loop costs more than its work.


@njit(cache=CACHE, nogil=True)
def in_flight(limit_bytes, resident, activations, cap):
    """Most micro-batches in flight that fit, up to ``cap``; 0 where none does."""
    if resident + activations > limit_bytes:
        return 0
    if resident + cap * activations <= limit_bytes:
        return cap
    held = int((limit_bytes - resident) / activations)
    # The quotient is rounded: settle by the sum that the limit is checked with.
    while resident + held * activations > limit_bytes:
        held -= 1
    while resident + (held + 1) * activations <= limit_bytes:
        held += 1
    return held


@njit(cache=CACHE, nogil=True)
def _walk(t, tree, c, busy, layers, totals, order, limit, slack):
    """Fold the layers along the tree of signatures; the number of those reached.

    ``totals`` (G, FIELDS) and ``order`` are filled, parents first; the formulas are those of
    :func:`nest.costs.stage.chunk_costs`, from the first layer to the last, but for the traffic
    beside the last layer, which depends on the next (``_close``). ``busy``: layers have ZeRO
    traffic. Nothing follows a signature that takes ``limit`` alone, or more above the least that
    its layers need than a plan below ``limit`` can spare (see ``Builder.bounds``): more layers take
    more of both.
    """
    children, begin, base, stack = tree
    o, reduce, refresh = t.overlaps[0], t.overlaps[1], t.overlaps[2]
    waiting = begin[1]
    for x in range(waiting):
        stack[x] = children[x]
    reached = 0
    while waiting:
        waiting -= 1
        g = stack[waiting]
        part, kind = t.part[g], t.last[g]
        sync, gather = layers[0, kind, SYNC], layers[0, kind, GATHER]
        if part >= 0:
            below = t.last[part]
            forward, backward = totals[part, FORWARD], totals[part, BACKWARD]
            hides = layers[0, below, FREE_BACKWARD]
            if busy:
                root = t.part[part] < 0
                x, y = o * layers[0, below, FREE_FORWARD], o * hides
                beside = layers[0, kind, GATHERED]
                waited = 0.0 if root else max(0.0, beside - x)
                if root and layers[0, below, GATHERED] > 0.0:
                    beside += layers[0, below, SCATTERED]
                forward += waited
                totals[g, CHASE_FORWARD] = (
                    totals[part, CHASE_FORWARD] + max(0.0, beside - x) - waited)
                scattered = layers[0, kind, SCATTERED]
                beside = scattered + (layers[0, below, GATHERED] if root
                                      else layers[0, t.last[t.part[part]], REGATHERED])
                waited = max(0.0, (scattered if root else beside) - y)
                backward += waited
                totals[g, CHASE_BACKWARD] = (
                    totals[part, CHASE_BACKWARD] + max(0.0, beside - y) - waited)
                hides = spare(layers, 0, below, beside, o)
            totals[g, FORWARD] = forward + layers[0, kind, FORWARD]
            totals[g, BACKWARD] = backward + layers[0, kind, BACKWARD]
            totals[g, BALANCE] = totals[part, BALANCE] - reduce * hides + sync
            totals[g, LEFT] = max(totals[part, LEFT], totals[g, BALANCE])
            totals[g, START] = (
                totals[part, START] - refresh * layers[0, below, FREE_FORWARD] + gather)
            totals[g, WAIT] = max(totals[part, WAIT], totals[g, START])
            totals[g, FREE_FORWARD] = totals[part, FREE_FORWARD] + layers[0, kind, FREE_FORWARD]
            for f in range(UPDATE, WORK):
                totals[g, f] = totals[part, f] + layers[0, kind, f]
            for f in range(WORK, FIELDS):
                totals[g, f] = max(totals[part, f], layers[0, kind, f])
        else:
            for f in range(FIELDS):
                totals[g, f] = layers[0, kind, f]
            totals[g, BALANCE] = totals[g, LEFT] = sync
            totals[g, START] = totals[g, WAIT] = gather
            totals[g, CHASE_FORWARD] = totals[g, CHASE_BACKWARD] = 0.0
        time = totals[g, FORWARD] + totals[g, BACKWARD]
        if t.micro_batches * time >= limit or t.weight[c] * time - base[g] > slack:
            continue
        order[reached] = g
        reached += 1
        for x in range(begin[g + 1], begin[g + 2]):
            stack[waiting] = children[x]
            waiting += 1
    return reached


@njit(cache=CACHE, nogil=True)
def _close(gpipe, overlap, part, last, first, second, layers, totals, g, new):
    """Fill the seconds of an option with what signature g takes without recompute.

    It ends with kind ``last``, behind kind ``part`` (-1: alone), and begins with ``first``, in
    front of ``second``.
    """
    new[AHEAD], new[BACK] = totals[g, FORWARD], totals[g, BACKWARD]
    gathers = layers[0, first, GATHERED] > 0.0
    x, y = overlap * layers[0, last, FREE_FORWARD], overlap * layers[0, last, FREE_BACKWARD]
    beside = layers[0, last, REGATHERED]
    turn = max(0.0, beside - x)
    if part < 0 and gathers:
        beside += layers[0, first, SCATTERED]
    chase_forward = totals[g, CHASE_FORWARD] + max(0.0, beside - x)
    wait = totals[g, WAIT] + layers[0, first, GATHERED]
    beside = layers[0, last, GATHERED]
    if part >= 0:
        beside = layers[0, part, REGATHERED]
        turn += max(0.0, beside - y)
        wait += max(0.0, layers[0, second, GATHERED] - overlap * layers[0, first, FREE_FORWARD])
    chase_backward = totals[g, CHASE_BACKWARD] + max(0.0, beside - y)
    left = totals[g, LEFT] + layers[0, first, SCATTERED]
    trails = 0.0 if gathers else layers[0, first, SCATTERED] - y
    _set_ends(gpipe, new, turn, chase_forward, chase_backward,
              max(0.0, trails - overlap * totals[g, FREE_FORWARD]), max(0.0, trails), left, wait,
              totals[g, TIED], totals[g, UPDATE])


@njit(cache=CACHE, nogil=True)
def _set_ends(gpipe, new, turn, chase_forward, chase_backward, trails, trails_back, left, wait,
              tied, update):
    """Fill in the rest of an option whose forward and backward are known.

    A stage with a copy of a tied embedding is ready before the copies are exchanged. Where passes
    of a kind follow each other (GPipe), each way has a pace of its own.
    """
    new[PACE], new[PACE_BACK] = chase_forward + chase_backward + trails, 0.0
    new[PACED], new[PACED_BACK] = new[AHEAD] + new[BACK] + new[PACE], 0.0
    if gpipe:
        new[PACE], new[PACE_BACK] = chase_forward, chase_backward + trails_back
        new[PACED], new[PACED_BACK] = new[AHEAD] + new[PACE], new[BACK] + new[PACE_BACK]
    new[TURN], new[WAITS] = turn, wait
    new[REMAINS], new[LATER] = left + update, 0.0
    if tied > 0.0:
        new[REMAINS], new[LATER] = left, tied + update
    new[TURNED] = new[BACK] + turn
    new[WAITED] = new[AHEAD] + wait
    new[READY] = new[BACK] + new[REMAINS]
    new[READY_TURNED] = new[TURNED] + new[REMAINS]


@njit(cache=CACHE, nogil=True)
def _alone(m, new):
    """No step with an option takes less: its own micro-batches, what comes before and after."""
    return new[WAITS] + m * (new[AHEAD] + new[BACK]) + new[REMAINS] + new[LATER]


@njit(cache=CACHE, nogil=True)
def _dominated(kept, g, count, new):
    """Whether an option of g is as good as a new one in everything that decides."""
    for o in range(count):
        f = 0
        while f < DECIDE and kept[g, o, f] <= new[f]:
            f += 1
        if f == DECIDE:
            return True
    return False


@njit(cache=CACHE, nogil=True)
def _keep(kept, who, g, count, new, option):
    """Add an option of g unless dominated, drop those it dominates; the new count."""
    if _dominated(kept, g, count, new):
        return count
    left = 0
    for o in range(count):
        f = 0
        while f < DECIDE and new[f] <= kept[g, o, f]:
            f += 1
        if f < DECIDE:
            if left != o:
                for f in range(OPTION):
                    kept[g, left, f] = kept[g, o, f]
                who[g, left] = who[g, o]
            left += 1
    for f in range(OPTION):
        kept[g, left, f] = new[f]
    who[g, left] = option
    return left + 1


@njit(cache=CACHE, nogil=True)
def _wider(kept, who):
    """The same arrays with room for twice as many options a signature."""
    more = np.empty((kept.shape[0], 2 * kept.shape[1], OPTION))
    more[:, : kept.shape[1]] = kept
    more_who = np.empty((kept.shape[0], 2 * kept.shape[1]), np.int64)
    more_who[:, : kept.shape[1]] = who
    return more, more_who


# What a policy changes of a layer without recompute, and of a stage.
D_BACK, D_HELD, D_WORK = range(3)


@njit(cache=CACHE, nogil=True)
def policy_changes(t, c, z, busy, layers, changes):
    """Fill ``layers[1:]``, and ``changes`` (R, T, 3): backward at the least, activations, work.

    Backward and activations are those above the ones of ``layers[0]``. Longer computing hides more
    ZeRO traffic, at the share that the stack overlaps.
    """
    for r in range(1, t.back.shape[1]):
        layer_sums(t, c, z, r, layers)
        for x in range(len(t.kinds)):
            kind = t.kinds[x]
            changes[r, kind, D_BACK] = layers[r, kind, BACKWARD] - layers[0, kind, BACKWARD]
            if busy:
                changes[r, kind, D_BACK] -= t.overlaps[0] * (
                    layers[r, kind, FREE_BACKWARD] - layers[0, kind, FREE_BACKWARD])
            changes[r, kind, D_HELD] = layers[r, kind, ACTIVATIONS] - layers[0, kind, ACTIVATIONS]
            changes[r, kind, D_WORK] = layers[r, kind, WORK]


@njit(cache=CACHE, nogil=True)
def _changed(t, q, changes, r, sums):
    """Fill ``sums`` (3,) with what policy r changes of all layers of signature q."""
    sums[D_BACK] = sums[D_HELD] = sums[D_WORK] = 0.0
    for x in range(len(t.kinds)):
        kind = t.kinds[x]
        layers = t.counts[q, kind]
        if layers:
            sums[D_BACK] += layers * changes[r, kind, D_BACK]
            sums[D_HELD] += layers * changes[r, kind, D_HELD]
            sums[D_WORK] = max(sums[D_WORK], changes[r, kind, D_WORK])


@njit(cache=CACHE, nogil=True)
def _recomputed(gpipe, overlaps, part, last, marked, g, r, most, layers, kinds, again, chunk, new):
    """Fill the seconds of an option: signature g, policy r for the first ``most`` layers.

    ``kinds`` and ``again`` are room for the layers of the longest signature, ``chunk`` for what
    they add up to.
    """
    at, q = len(kinds), g
    while q >= 0:
        at -= 1
        kinds[at] = last[q]
        again[at] = r if marked[q] <= most else 0
        q = part[q]
    chunk_costs(layers, overlaps, kinds, again, at, len(kinds), chunk)
    new[AHEAD], new[BACK] = chunk[C_FORWARD], chunk[C_BACKWARD]
    trails_back = chunk[C_TRAILING] - chunk[C_TRAILS_BACKWARD]
    _set_ends(gpipe, new, chunk[C_TURN], chunk[C_CHASE_FORWARD], chunk[C_CHASE_BACKWARD],
              max(0.0, trails_back - chunk[C_TRAILS_FORWARD]), max(0.0, trails_back),
              chunk[C_LEFT], chunk[C_WAIT], chunk[C_TIED], chunk[C_UPDATE])


@njit(cache=CACHE, nogil=True)
def _left(layers, reduce, runs, last, marked, g, r, most):
    """What is left to reduce of signature g, policy r for the first ``most`` layers; no ZeRO-2, 3.

    As in ``chunk_costs``, run by run of layers of one kind and policy, from the last to the first:
    after n of them what is left is the largest of n + 1 sums, which is the first or the last.
    """
    before, depth = runs
    left = 0.0
    while g >= 0:
        kind, q = last[g], before[g]
        count, done = depth[g], 0
        if q >= 0:
            count, done = depth[g] - depth[q], marked[q]
        again = min(max(most - done, 0), count) if marked[g] > done else 0
        for policy in (0, r):
            n = again if policy else count - again
            if n:
                sync = layers[0, kind, SYNC]
                slope = sync - reduce * layers[policy, kind, FREE_BACKWARD]
                left = max(left + n * slope, sync + max(0.0, (n - 1) * slope))
        g = q
    return left


@njit(cache=CACHE, nogil=True)
def _first_that_may_hold(t, g, changes, room, least, most):
    """Least number of first layers, from ``least`` on, whose change of activations is ``room``.

    Each layer more keeps no more, so that halving finds it; most + 1 where none does.
    """
    low, high = least, most + 1
    while low < high:
        middle = (low + high) // 2
        held = 0.0
        q = t.ancestor[g, middle]
        for x in range(len(t.kinds)):
            held += t.counts[q, t.kinds[x]] * changes[t.full, t.kinds[x], D_HELD]
        if held <= room:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=CACHE, nogil=True)
def _tree(t):
    """Signatures by the one that they extend, and the least seconds of a step of each."""
    G = len(t.part)
    children = np.argsort(t.part, kind="mergesort")
    begin = np.searchsorted(t.part[children], np.arange(-1, G + 1))
    base = np.zeros(G)
    for g in range(G):
        base[g] = t.least[t.last[g]] + (base[t.part[g]] if t.part[g] >= 0 else 0.0)
    return children, begin, base, np.empty(G, np.int64)


@njit(cache=CACHE, nogil=True)
def _runs(part, last):
    """Signature before the last layers of one kind, and number of layers, of each signature."""
    before, depth = np.full(len(part), -1), np.ones(len(part), np.int64)
    for g in range(len(part)):
        q = part[g]
        if q >= 0:
            depth[g] = depth[q] + 1
            before[g] = before[q] if last[q] == last[g] else q
    return before, depth


@njit(cache=CACHE, nogil=True)
def select(t, limit):
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in the first fields of an option:
    forward, backward, either with what it takes longer where micro-batches follow each other or
    turn round, with what it waits for at the start and leaves at the end of a step; what follows
    then; micro-batches in flight that fit, and shards. Of equal ones the first stays. Those that
    alone take ``limit`` seconds a step, take too much above the least to stay below it, or hold no
    micro-batch, are no options.

    Of recompute, each signature gets what its memory asks for: nothing where that holds all there
    is to hold, else also each policy that holds more, and of "the first r layers" the least r for
    every number in flight.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    number : int64 (O,), see ``nest.tensors.Builder.degrees``.
    forward, backward, turn, pace, pace_back, wait, left, later : float64 (O,), see
        ``_kernels.pipeline.Problem``.
    in_flight : int64 (O,)
    shards : float64 (O,)
    """
    C, G, T = len(t.price), len(t.part), t.ahead.shape[1]
    R, Z, radix, m = t.back.shape[1], len(t.shard), len(t.first_layers), t.micro_batches
    prices = t.price[-1] + 1
    first = np.zeros((prices, G + 1), np.int64)
    tree = _tree(t)
    base = tree[2]
    slack = limit * (1.0 + 1e-12) - base[t.whole]
    options = np.empty((1024, OPTION))
    who = np.empty(1024, np.int64)
    total = 0
    new, chunk = np.empty(OPTION), np.empty(CHUNK)
    layers, none = np.empty((R, T, FIELDS)), np.empty((G, FIELDS))
    order, short = np.empty(G, np.int64), np.empty(G, np.int64)
    held_none = np.zeros(G, np.int64)
    changes, changed = np.zeros((R, T, 3)), np.empty(3)
    runs = _runs(t.part, t.last)
    longest = runs[1].max()
    kinds, again = np.empty(longest, np.int64), np.empty(longest, np.int64)
    best_back, best_held = np.zeros(T), np.zeros(T)
    kept = np.empty((G, 16, OPTION))
    kept_who = np.empty((G, 16), np.int64)
    lo = 0
    for p in range(prices):
        hi = lo
        while hi < C and t.price[hi] == p:
            hi += 1
        count = np.zeros(G, np.int64)
        for c in range(lo, hi):
            new[SHARDS] = -t.shards[c]
            weight = t.weight[c]
            # Without ZeRO traffic and recompute: what a single layer cannot stay below, none can.
            alive = False
            for kind in range(T):
                time = t.ahead[t.body[c], kind, 1] + t.back[t.body[c], 0, kind, 1]
                alive |= m * time < limit and weight * time - t.least[kind] <= slack
            for z in range(Z if alive else 0):
                if t.shard[z] and not t.hybrid[c]:
                    continue
                code = (c * Z + z) * R
                layer_sums(t, c, z, 0, layers)
                busy = False
                for kind in range(T):
                    busy |= layers[0, kind, GATHERED] > 0.0 or layers[0, kind, SCATTERED] > 0.0
                reached = _walk(t, tree, c, busy, layers, none, order, limit, slack)
                shorts = 0
                for x in range(reached):
                    g = order[x]
                    if t.cap[g] == 0 or (t.forbidden[z] and g != t.whole):
                        continue
                    held_none[g] = 0
                    if t.keep_none:
                        held = in_flight(
                            t.limit_bytes, none[g, RESIDENT] + none[g, WORK] + none[g, BUFFERS],
                            none[g, ACTIVATIONS] + t.relay[g] * t.relayed[c], t.cap[g])
                        held_none[g] = held
                        if busy:
                            part = t.last[t.part[g]] if t.part[g] >= 0 else -1
                            _close(t.gpipe, t.overlaps[0], part, t.last[g], t.root[g], t.second[g],
                                   layers, none, g, new)
                        else:
                            new[AHEAD], new[BACK] = none[g, FORWARD], none[g, BACKWARD]
                            _set_ends(t.gpipe, new, 0.0, 0.0, 0.0, 0.0, 0.0, none[g, LEFT],
                                      none[g, WAIT], none[g, TIED], none[g, UPDATE])
                        new[HELD] = -held
                        if held and _alone(m, new) < limit:
                            if count[g] == kept.shape[1]:
                                kept, kept_who = _wider(kept, kept_who)
                            count[g] = _keep(kept, kept_who, g, count[g], new, code * radix)
                    if held_none[g] < t.cap[g]:
                        short[shorts] = g
                        shorts += 1
                if shorts == 0 or R == 1:
                    continue
                policy_changes(t, c, z, busy, layers, changes)
                # The best of all policies in each figure, by kind; least of all in one layer.
                least = np.inf
                for x in range(len(t.kinds)):
                    kind = t.kinds[x]
                    best_back[kind], best_held[kind] = np.inf, 0.0
                    for r in range(1, R):
                        least = min(least, changes[r, kind, D_BACK])
                        if r != t.full:
                            best_back[kind] = min(best_back[kind], changes[r, kind, D_BACK])
                            best_held[kind] = min(best_held[kind], changes[r, kind, D_HELD])
                for x in range(shorts):
                    g = short[x]
                    ahead = none[g, FORWARD]
                    # No policy costs less than the cheapest does in one layer.
                    most_time = min(limit / m, (slack + base[g]) / weight)
                    if t.keep_none and ahead + none[g, BACKWARD] + least >= most_time:
                        continue
                    resident = none[g, RESIDENT] + none[g, BUFFERS]
                    kept_bytes = none[g, ACTIVATIONS] + t.relay[g] * t.relayed[c]
                    time, kept_least = ahead + none[g, BACKWARD], kept_bytes
                    for x in range(len(t.kinds)):
                        kind = t.kinds[x]
                        if t.counts[g, kind]:
                            time += t.counts[g, kind] * best_back[kind]
                            kept_least += t.counts[g, kind] * best_held[kind]
                    more = resident + none[g, WORK] + (held_none[g] + 1) * kept_least
                    first_kind = t.root[g]
                    least_left = layers[0, first_kind, SCATTERED] + layers[0, first_kind, SYNC]
                    least_wait = none[g, WAIT] + layers[0, first_kind, GATHERED]
                    some = time < most_time and more <= t.limit_bytes * (1.0 + 1e-12)
                    for r in range(1, R - (t.full > 0) if some else 0):
                        _changed(t, g, changes, r, changed)
                        time = ahead + none[g, BACKWARD] + changed[D_BACK]
                        if m * time >= limit or weight * time - base[g] > slack:
                            continue
                        held = in_flight(
                            t.limit_bytes, resident + max(none[g, WORK], changed[D_WORK]),
                            kept_bytes + changed[D_HELD], t.cap[g])
                        if held <= held_none[g]:
                            continue
                        new[AHEAD], new[BACK] = ahead, none[g, BACKWARD] + changed[D_BACK]
                        new[HELD] = -held
                        if busy:
                            # It is no better than this, which is often enough to drop it.
                            _set_ends(t.gpipe, new, 0.0, 0.0, 0.0, 0.0, 0.0, least_left,
                                      least_wait, none[g, TIED], none[g, UPDATE])
                            if _dominated(kept, g, count[g], new):
                                continue
                            _recomputed(t.gpipe, t.overlaps, t.part, t.last, t.marked, g, r,
                                        t.marked[g], layers, kinds, again, chunk, new)
                        else:
                            left = _left(layers, t.overlaps[1], runs, t.last, t.marked, g, r,
                                         t.marked[g])
                            _set_ends(t.gpipe, new, 0.0, 0.0, 0.0, 0.0, 0.0, left, none[g, WAIT],
                                      none[g, TIED], none[g, UPDATE])
                        if _alone(m, new) < limit:
                            if count[g] == kept.shape[1]:
                                kept, kept_who = _wider(kept, kept_who)
                            count[g] = _keep(kept, kept_who, g, count[g], new, (code + r) * radix)
                    if t.full < 0:
                        continue
                    # The first layers in full: for each number in flight the fewest of them.
                    most, best = t.marked[g], held_none[g]
                    layer = 0 if most == 0 else 1
                    while best < t.cap[g]:
                        if most:
                            room = (t.limit_bytes - resident - none[g, WORK]) / (best + 1)
                            layer = _first_that_may_hold(
                                t, g, changes, room - kept_bytes + 1e-9 * t.limit_bytes, layer,
                                most)
                        if layer > most:
                            break
                        allowed = t.first_layers[layer] if layer < most else most <= t.most_layers
                        _changed(t, t.ancestor[g, layer], changes, t.full, changed)
                        time = ahead + none[g, BACKWARD] + changed[D_BACK]
                        if m * time >= limit or weight * time - base[g] > slack:
                            break
                        held = in_flight(
                            t.limit_bytes, resident + max(none[g, WORK], changed[D_WORK]),
                            kept_bytes + changed[D_HELD], t.cap[g])
                        if allowed and held > best:
                            best = held
                            new[AHEAD], new[BACK] = ahead, none[g, BACKWARD] + changed[D_BACK]
                            new[HELD] = -held
                            if busy:
                                _set_ends(t.gpipe, new, 0.0, 0.0, 0.0, 0.0, 0.0, least_left,
                                          least_wait, none[g, TIED], none[g, UPDATE])
                                if _dominated(kept, g, count[g], new):
                                    layer += 1
                                    continue
                                _recomputed(t.gpipe, t.overlaps, t.part, t.last, t.marked, g,
                                            t.full, layer, layers, kinds, again, chunk, new)
                            else:
                                left = _left(layers, t.overlaps[1], runs, t.last, t.marked, g,
                                             t.full, layer)
                                _set_ends(t.gpipe, new, 0.0, 0.0, 0.0, 0.0, 0.0, left,
                                          none[g, WAIT], none[g, TIED], none[g, UPDATE])
                            if _alone(m, new) < limit:
                                if count[g] == kept.shape[1]:
                                    kept, kept_who = _wider(kept, kept_who)
                                option = (code + t.full) * radix + (0 if layer == most else layer)
                                count[g] = _keep(kept, kept_who, g, count[g], new, option)
                        layer += 1
        for g in range(G):
            first[p, g] = total
            while total + count[g] > len(options):
                more = np.empty((2 * len(options), OPTION))
                more[:total] = options[:total]
                options = more
                more_who = np.empty(2 * len(who), np.int64)
                more_who[:total] = who[:total]
                who = more_who
            for o in range(count[g]):
                # Insertion keeps the order of configurations among equal times.
                y = total + o
                time = kept[g, o, AHEAD] + kept[g, o, BACK]
                while y > total and options[y - 1, AHEAD] + options[y - 1, BACK] > time:
                    options[y] = options[y - 1]
                    who[y] = who[y - 1]
                    y -= 1
                options[y] = kept[g, o]
                who[y] = kept_who[g, o]
            total += count[g]
        first[p, G] = total
        lo = hi
    k = options[:total]
    return (first, who[:total].copy(), k[:, AHEAD].copy(), k[:, BACK].copy(), k[:, TURN].copy(),
            k[:, PACE].copy(), k[:, PACE_BACK].copy(), k[:, WAITS].copy(), k[:, REMAINS].copy(),
            k[:, LATER].copy(),
            (-k[:, HELD]).astype(np.int64), -k[:, SHARDS])
