"""Keep the configurations of a stage that some plan could want.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, G
signatures, P prices, O options kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nest._kernels import CACHE

# What layers add up to; the fields of ``nest.costs.stage.Sums``, in its order (a test compares).
FORWARD, BACKWARD, SYNC, GATHER, EXPOSED, TRAFFIC, RESIDENT, ACTIVATIONS, WORK, BUFFERS = range(10)
FIELDS = 10
# Fields of an option that is kept.
AHEAD, BACK, END, HELD, SHARDS, FINISH = range(6)


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


# The helpers below index whole arrays: a slice in an inner loop costs more than its work.


@njit(cache=CACHE, nogil=True)
def _spare(t, back, late):
    """Computing backward that hides no ZeRO traffic; see ``LayerCosts.spare``."""
    return max(0.0, back - late / t.overlaps[0]) if t.overlaps[0] > 0.0 else back


@njit(cache=CACHE, nogil=True)
def layer_sums(t, c, z, r, layers):
    """Fill ``layers`` (T, 10) with what a layer of each kind adds; r: the recompute policy.

    The formulas of :func:`nest.costs.layer.layer_costs` and :func:`nest.costs.stage.sums`.
    """
    u, v = t.body[c], t.held[c]
    for kind in range(t.ahead.shape[1]):
        ahead, back = t.ahead[u, kind, 0], t.back[u, r, kind, 0]
        gathered, late = t.state[v, z, kind, 0], t.state[v, z, kind, 1]
        layers[kind, FORWARD] = t.ahead[u, kind, 1] + max(0.0, gathered - t.overlaps[0] * ahead)
        layers[kind, BACKWARD] = t.back[u, r, kind, 1] + max(0.0, late - t.overlaps[0] * back)
        layers[kind, SYNC] = t.state[v, z, kind, 2] - t.overlaps[1] * _spare(t, back, late)
        layers[kind, GATHER] = t.state[v, z, kind, 3] - t.overlaps[2] * ahead
        layers[kind, EXPOSED] = t.state[v, z, kind, 4]
        layers[kind, TRAFFIC] = t.state[v, z, kind, 2] + t.state[v, z, kind, 3]
        layers[kind, RESIDENT] = t.state[v, z, kind, 5]
        layers[kind, ACTIVATIONS] = t.back[u, r, kind, 2]
        layers[kind, WORK] = t.back[u, r, kind, 3]
        layers[kind, BUFFERS] = t.state[v, z, kind, 6]


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
def _walk(t, tree, c, layers, totals, order, limit, slack):
    """Fold the layers along the tree of signatures; the number of those reached.

    ``totals`` (G, 10) and ``order`` are filled, parents first. Nothing follows a signature that
    takes ``limit`` alone, or more above the least that its layers need than a plan below ``limit``
    can spare (see ``Builder.bounds``): more layers take more of both.
    """
    children, begin, base, stack = tree
    waiting = begin[1]
    for x in range(waiting):
        stack[x] = children[x]
    reached = 0
    while waiting:
        waiting -= 1
        g = stack[waiting]
        part, kind = t.part[g], t.last[g]
        if part >= 0:
            for f in range(WORK):
                totals[g, f] = totals[part, f] + layers[kind, f]
            for f in range(WORK, FIELDS):
                totals[g, f] = max(totals[part, f], layers[kind, f])
        else:
            for f in range(FIELDS):
                totals[g, f] = layers[kind, f]
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
def finish_seconds(sync, exposed, gather, chunks):
    """The formula of :func:`nest.costs.stage.stage_costs`."""
    return max(0.0, sync) / chunks + exposed + max(0.0, gather) / chunks


@njit(cache=CACHE, nogil=True)
def _keep(kept, who, g, count, new, option):
    """Add an option of g unless dominated, drop those it dominates; the new count."""
    for o in range(count):
        if (kept[g, o, AHEAD] <= new[AHEAD] and kept[g, o, BACK] <= new[BACK]
                and kept[g, o, END] <= new[END] and kept[g, o, HELD] >= new[HELD]
                and kept[g, o, SHARDS] >= new[SHARDS]):
            return count
    left = 0
    for o in range(count):
        if not (new[AHEAD] <= kept[g, o, AHEAD] and new[BACK] <= kept[g, o, BACK]
                and new[END] <= kept[g, o, END] and new[HELD] >= kept[g, o, HELD]
                and new[SHARDS] >= kept[g, o, SHARDS]):
            if left != o:
                for f in range(6):
                    kept[g, left, f] = kept[g, o, f]
                who[g, left] = who[g, o]
            left += 1
    for f in range(6):
        kept[g, left, f] = new[f]
    who[g, left] = option
    return left + 1


@njit(cache=CACHE, nogil=True)
def _wider(kept, who):
    """The same arrays with room for twice as many options a signature."""
    more = np.empty((kept.shape[0], 2 * kept.shape[1], 6))
    more[:, : kept.shape[1]] = kept
    more_who = np.empty((kept.shape[0], 2 * kept.shape[1]), np.int64)
    more_who[:, : kept.shape[1]] = who
    return more, more_who


# What a policy changes of a layer without recompute, and of a stage.
D_BACK, D_SYNC, D_HELD, D_WORK = range(4)


@njit(cache=CACHE, nogil=True)
def policy_changes(t, c, z, layers, changes):
    """Fill ``changes`` (R, T, 4): backward, reduction, activations less those of ``layers``, work.

    ``layers`` are the sums without recompute; the rest of a layer is the same under all policies.
    """
    u, v = t.body[c], t.held[c]
    for r in range(1, t.back.shape[1]):
        for x in range(len(t.kinds)):
            kind = t.kinds[x]
            back, late = t.back[u, r, kind, 0], t.state[v, z, kind, 1]
            whole = t.back[u, r, kind, 1] + max(0.0, late - t.overlaps[0] * back)
            changes[r, kind, D_BACK] = whole - layers[kind, BACKWARD]
            changes[r, kind, D_SYNC] = (
                t.state[v, z, kind, 2] - t.overlaps[1] * _spare(t, back, late)
                - layers[kind, SYNC])
            changes[r, kind, D_HELD] = t.back[u, r, kind, 2] - layers[kind, ACTIVATIONS]
            changes[r, kind, D_WORK] = t.back[u, r, kind, 3]


@njit(cache=CACHE, nogil=True)
def _changed(t, q, changes, r, sums):
    """Fill ``sums`` (4,) with what policy r changes of all layers of signature q."""
    sums[D_BACK] = sums[D_SYNC] = sums[D_HELD] = sums[D_WORK] = 0.0
    for x in range(len(t.kinds)):
        kind = t.kinds[x]
        layers = t.counts[q, kind]
        if layers:
            sums[D_BACK] += layers * changes[r, kind, D_BACK]
            sums[D_SYNC] += layers * changes[r, kind, D_SYNC]
            sums[D_HELD] += layers * changes[r, kind, D_HELD]
            sums[D_WORK] = max(sums[D_WORK], changes[r, kind, D_WORK])


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
def select(t, limit):
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in forward, backward, forward + backward + finish,
    micro-batches in flight that fit, and shards; of equal ones the first stays. Those that alone
    take ``limit`` seconds a step, take too much above the least to stay below it, or hold no
    micro-batch, are no options.

    Of recompute, each signature gets what its memory asks for: nothing where that holds all there
    is to hold, else also each policy that holds more, and of "the first r layers" the least r for
    every number in flight.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    number : int64 (O,), see ``nest.tensors.Builder.degrees``.
    forward, backward, finish : float64 (O,)
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
    options = np.empty((1024, 6))
    who = np.empty(1024, np.int64)
    total = 0
    new = np.empty(6)
    layers, none = np.empty((T, FIELDS)), np.empty((G, FIELDS))
    order, short = np.empty(G, np.int64), np.empty(G, np.int64)
    held_none = np.zeros(G, np.int64)
    changes, changed = np.zeros((R, T, 4)), np.empty(4)
    best_back, best_held = np.zeros(T), np.zeros(T)
    kept = np.empty((G, 16, 6))
    kept_who = np.empty((G, 16), np.int64)
    lo = 0
    for p in range(prices):
        hi = lo
        while hi < C and t.price[hi] == p:
            hi += 1
        count = np.zeros(G, np.int64)
        for c in range(lo, hi):
            new[SHARDS] = t.shards[c]
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
                reached = _walk(t, tree, c, layers, none, order, limit, slack)
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
                        new[AHEAD], new[BACK] = none[g, FORWARD], none[g, BACKWARD]
                        new[FINISH] = finish_seconds(
                            none[g, SYNC], none[g, EXPOSED], none[g, GATHER], 1)
                        new[END] = new[AHEAD] + new[BACK] + new[FINISH]
                        new[HELD] = held
                        if held and m * (new[AHEAD] + new[BACK]) + new[FINISH] < limit:
                            if count[g] == kept.shape[1]:
                                kept, kept_who = _wider(kept, kept_who)
                            count[g] = _keep(kept, kept_who, g, count[g], new, code * radix)
                    if held_none[g] < t.cap[g]:
                        short[shorts] = g
                        shorts += 1
                if shorts == 0 or R == 1:
                    continue
                policy_changes(t, c, z, layers, changes)
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
                    some = time < most_time and more <= t.limit_bytes * (1.0 + 1e-12)
                    for r in range(1, R - (t.full > 0) if some else 0):
                        _changed(t, g, changes, r, changed)
                        back = none[g, BACKWARD] + changed[D_BACK]
                        time = ahead + back
                        if m * time >= limit or weight * time - base[g] > slack:
                            continue
                        held = in_flight(
                            t.limit_bytes, resident + max(none[g, WORK], changed[D_WORK]),
                            kept_bytes + changed[D_HELD], t.cap[g])
                        if held <= held_none[g]:
                            continue
                        new[AHEAD], new[BACK] = ahead, back
                        new[FINISH] = finish_seconds(
                            none[g, SYNC] + changed[D_SYNC], none[g, EXPOSED], none[g, GATHER], 1)
                        new[END], new[HELD] = time + new[FINISH], held
                        if m * time + new[FINISH] < limit:
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
                        back = none[g, BACKWARD] + changed[D_BACK]
                        time = ahead + back
                        if m * time >= limit or weight * time - base[g] > slack:
                            break
                        held = in_flight(
                            t.limit_bytes, resident + max(none[g, WORK], changed[D_WORK]),
                            kept_bytes + changed[D_HELD], t.cap[g])
                        if allowed and held > best:
                            best = held
                            new[AHEAD], new[BACK] = ahead, back
                            sync = none[g, SYNC] + changed[D_SYNC]
                            new[FINISH] = finish_seconds(
                                sync, none[g, EXPOSED], none[g, GATHER], 1)
                            new[END], new[HELD] = time + new[FINISH], held
                            if m * time + new[FINISH] < limit:
                                if count[g] == kept.shape[1]:
                                    kept, kept_who = _wider(kept, kept_who)
                                option = (code + t.full) * radix + (0 if layer == most else layer)
                                count[g] = _keep(kept, kept_who, g, count[g], new, option)
                        layer += 1
        for g in range(G):
            first[p, g] = total
            while total + count[g] > len(options):
                more = np.empty((2 * len(options), 6))
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
    return (first, who[:total].copy(), k[:, AHEAD].copy(), k[:, BACK].copy(), k[:, FINISH].copy(),
            k[:, HELD].astype(np.int64), k[:, SHARDS].copy())
