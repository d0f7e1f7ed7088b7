"""Keep the configurations of a stage that some plan could want.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, G
signatures, P prices, O options kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import kernel, leaf
from nest._kernels.fold import (
    AHEAD,
    BACK,
    DECIDE,
    HELD,
    LATE,
    LATER,
    LEFT,
    OPTION,
    REMAINS,
    SHARDS,
    WAIT,
    WAITS,
    close,
    recomputed,
    set_ends,
    walk,
)
from nest._kernels.layers import (
    ACTIVATIONS,
    BACKWARD,
    BUFFERS,
    CHUNK,
    FIELDS,
    FORWARD,
    GATHERED,
    RESIDENT,
    SCATTERED,
    SYNC,
    TIED,
    UPDATE,
    WORK,
    layer_sums,
)
from nest._kernels.recompute import (
    D_BACK,
    D_HELD,
    D_WORK,
    changed,
    first_that_may_hold,
    left_seconds,
    policy_changes,
    runs_of,
)


class Candidates(NamedTuple):
    """Arrays of one outer choice; the fields of :class:`nest.tables.Tables`."""

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


@leaf
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


@leaf
def _alone(m, new):
    """No step with an option takes less: its own micro-batches, what comes before and after."""
    return new[WAITS] + m * (new[AHEAD] + new[BACK] - new[LATE]) + new[REMAINS] + new[LATER]


@leaf
def _dominated(kept, g, count, new):
    """Whether an option of g is as good as a new one in everything that decides."""
    for o in range(count):
        f = 0
        while f < DECIDE and kept[g, o, f] <= new[f]:
            f += 1
        if f == DECIDE:
            return True
    return False


@leaf
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


@kernel
def _wider(kept, who):
    """The same arrays with room for twice as many options a signature."""
    more = np.empty((kept.shape[0], 2 * kept.shape[1], OPTION))
    more[:, : kept.shape[1]] = kept
    more_who = np.empty((kept.shape[0], 2 * kept.shape[1]), np.int64)
    more_who[:, : kept.shape[1]] = who
    return more, more_who


@kernel
def _tree(t):
    """Signatures by the one that they extend, and the least seconds of a step of each."""
    G = len(t.part)
    children = np.argsort(t.part, kind="mergesort")
    begin = np.searchsorted(t.part[children], np.arange(-1, G + 1))
    base = np.zeros(G)
    for g in range(G):
        base[g] = t.least[t.last[g]] + (base[t.part[g]] if t.part[g] >= 0 else 0.0)
    return children, begin, base, np.empty(G, np.int64)


@kernel
def select(t, limit):
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in the first fields of an option: forward, backward,
    with or without what it gathers for the pass behind it, either with what it takes longer behind
    another pass, with what it waits for at the start and leaves at the end of a step; what follows
    then; micro-batches in flight that fit, and shards (docs/algorithm.md has the proof that these
    suffice). Of equal ones the first stays. Those that
    alone take ``limit`` seconds a step, take too much above the least to stay below it, or hold no
    micro-batch, are no options.

    Of recompute, each signature gets what its memory asks for: nothing where that holds all there
    is to hold, else also each policy that holds more, and of "the first r layers" the least r for
    every number in flight.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    number : int64 (O,), see ``nest.tensors.Builder.degrees``.
    options : float64 (O, OPTION), see ``_kernels.fold``.
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
    changes, more_of = np.zeros((R, T, 3)), np.empty(3)
    runs = runs_of(t.part, t.last)
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
                reached = walk(t, tree, c, busy, layers, none, order, limit, slack)
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
                        if held and busy:
                            part = t.last[t.part[g]] if t.part[g] >= 0 else -1
                            close(t.gpipe, t.overlaps[0], part, t.last[g], t.root[g], t.second[g],
                                   layers, none, g, chunk, new)
                        elif held:
                            new[AHEAD], new[BACK] = none[g, FORWARD], none[g, BACKWARD]
                            set_ends(t.gpipe, new, none[g, LEFT], none[g, WAIT], none[g, TIED],
                                     none[g, UPDATE])
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
                        changed(t.counts, t.kinds, g, changes, r, more_of)
                        time = ahead + none[g, BACKWARD] + more_of[D_BACK]
                        if m * time >= limit or weight * time - base[g] > slack:
                            continue
                        held = in_flight(
                            t.limit_bytes, resident + max(none[g, WORK], more_of[D_WORK]),
                            kept_bytes + more_of[D_HELD], t.cap[g])
                        if held <= held_none[g]:
                            continue
                        new[AHEAD], new[BACK] = ahead, none[g, BACKWARD] + more_of[D_BACK]
                        new[HELD] = -held
                        if busy:
                            # It is no better than this, which is often enough to drop it.
                            set_ends(t.gpipe, new, least_left, least_wait, none[g, TIED],
                                     none[g, UPDATE])
                            if _dominated(kept, g, count[g], new):
                                continue
                            recomputed(t.gpipe, t.overlaps, t.part, t.last, t.marked, g, r,
                                        t.marked[g], layers, kinds, again, chunk, new)
                        else:
                            left = left_seconds(layers, t.overlaps[1], runs, t.last, t.marked, g, r,
                                         t.marked[g])
                            set_ends(t.gpipe, new, left, none[g, WAIT], none[g, TIED],
                                     none[g, UPDATE])
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
                            layer = first_that_may_hold(
                                t.ancestor, t.counts, t.kinds, g, changes, t.full,
                                room - kept_bytes + 1e-9 * t.limit_bytes, layer, most)
                        if layer > most:
                            break
                        allowed = t.first_layers[layer] if layer < most else most <= t.most_layers
                        changed(t.counts, t.kinds, t.ancestor[g, layer], changes, t.full, more_of)
                        time = ahead + none[g, BACKWARD] + more_of[D_BACK]
                        if m * time >= limit or weight * time - base[g] > slack:
                            break
                        held = in_flight(
                            t.limit_bytes, resident + max(none[g, WORK], more_of[D_WORK]),
                            kept_bytes + more_of[D_HELD], t.cap[g])
                        if allowed and held > best:
                            best = held
                            new[AHEAD], new[BACK] = ahead, none[g, BACKWARD] + more_of[D_BACK]
                            new[HELD] = -held
                            if busy:
                                set_ends(t.gpipe, new, least_left, least_wait,
                                         none[g, TIED], none[g, UPDATE])
                                if _dominated(kept, g, count[g], new):
                                    layer += 1
                                    continue
                                recomputed(t.gpipe, t.overlaps, t.part, t.last, t.marked, g,
                                            t.full, layer, layers, kinds, again, chunk, new)
                            else:
                                left = left_seconds(layers, t.overlaps[1], runs, t.last, t.marked,
                                                    g, t.full, layer)
                                set_ends(t.gpipe, new, left, none[g, WAIT], none[g, TIED],
                                         none[g, UPDATE])
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
    return first, who[:total].copy(), options[:total].copy()
