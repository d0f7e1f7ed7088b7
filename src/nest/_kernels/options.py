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
from nest._kernels.room import longer


class Candidates(NamedTuple):
    """Arrays of one outer choice; the fields of :class:`nest.search.tables.Tables`."""

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
def _wider(kept, who, count):
    """The same arrays with room for twice as many options a signature; ``count`` of each are."""
    more = np.empty((kept.shape[0], 2 * kept.shape[1], OPTION))
    more_who = np.empty((kept.shape[0], 2 * kept.shape[1]), np.int64)
    for g in range(len(count)):
        more[g, : count[g]] = kept[g, : count[g]]
        more_who[g, : count[g]] = who[g, : count[g]]
    return more, more_who


@leaf
def _sort(kept, who, g, count, options, number, start):
    """Write the options of g from ``start`` on, by ascending t; of equal ones the first first."""
    for o in range(count):
        time = kept[g, o, AHEAD] + kept[g, o, BACK]
        y = start + o
        while y > start and options[y - 1, AHEAD] > time:
            options[y, AHEAD], number[y] = options[y - 1, AHEAD], number[y - 1]
            y -= 1
        options[y, AHEAD], number[y] = time, o
    for y in range(start, start + count):
        o = number[y]
        for f in range(OPTION):
            options[y, f] = kept[g, o, f]
        number[y] = who[g, o]


class Work(NamedTuple):
    """Arrays that :func:`select` makes once and its helpers fill."""

    children: np.ndarray  # int64 (G,) signatures by the one that they extend
    begin: np.ndarray  # int64 (G+2,) where those begin that extend none, 0, 1, ...
    stack: np.ndarray  # int64 (G,)
    base: np.ndarray  # float64 (G,) least seconds of a step
    before: np.ndarray  # int64 (G,) see ``runs_of``
    depth: np.ndarray  # int64 (G,)
    new: np.ndarray  # float64 (OPTION,) an option
    chunk: np.ndarray  # float64 (CHUNK,)
    layers: np.ndarray  # float64 (R, T, FIELDS)
    none: np.ndarray  # float64 (G, FIELDS) sums of layers without recompute
    order: np.ndarray  # int64 (G,) signatures as they are reached
    short: np.ndarray  # int64 (G,) those that hold fewer micro-batches than they might
    held: np.ndarray  # int64 (G,) micro-batches without recompute
    changes: np.ndarray  # float64 (R, T, 3) see ``policy_changes``
    change: np.ndarray  # float64 (3,)
    kinds: np.ndarray  # int64 (layers,)
    again: np.ndarray  # int64 (layers,)
    best_back: np.ndarray  # float64 (T,) least of all policies
    best_held: np.ndarray  # float64 (T,)
    tally: np.ndarray  # int64 (G,) options kept


@kernel
def work_of(t):
    """Work with signatures in order and room for the rest."""
    G, T, R = len(t.part), t.ahead.shape[1], t.back.shape[1]
    children = np.argsort(t.part, kind="mergesort")
    begin = np.searchsorted(t.part[children], np.arange(-1, G + 1))
    base = np.zeros(G)
    for g in range(G):
        base[g] = t.least[t.last[g]] + (base[t.part[g]] if t.part[g] >= 0 else 0.0)
    before, depth = runs_of(t.part, t.last)
    longest = depth.max()
    return Work(
        children, begin, np.empty(G, np.int64), base, before, depth, np.empty(OPTION),
        np.empty(CHUNK), np.empty((R, T, FIELDS)), np.empty((G, FIELDS)), np.empty(G, np.int64),
        np.empty(G, np.int64), np.zeros(G, np.int64), np.zeros((R, T, 3)), np.empty(3),
        np.empty(longest, np.int64), np.empty(longest, np.int64), np.zeros(T), np.zeros(T),
        np.zeros(G, np.int64))


@leaf
def _gathers(layers):
    """Whether layers have ZeRO traffic of every micro-batch."""
    for kind in range(layers.shape[1]):
        if layers[0, kind, GATHERED] > 0.0 or layers[0, kind, SCATTERED] > 0.0:
            return True
    return False


@leaf
def _offer(t, w, c, z, limit, slack, kept, who):
    """Keep options of candidate c and way of ZeRO z; False: ``kept`` has no room, once more then.

    What was kept before is offered again in vain: it is no better than itself.
    """
    layer_sums(t, c, z, 0, w.layers)
    w.new[SHARDS] = -t.shards[c]
    busy, code = _gathers(w.layers), (c * len(t.shard) + z) * t.back.shape[1]
    reached = walk(t, w, c, busy, limit, slack)
    shorts = _offer_whole(t, w, c, z, busy, code, reached, limit, kept, who)
    if shorts > 0 and t.back.shape[1] > 1:
        return _offer_recomputed(t, w, c, z, busy, code, shorts, limit, slack, kept, who)
    return shorts >= 0


@leaf
def _offer_whole(t, w, c, z, busy, code, reached, limit, kept, who):
    """The same without recompute; how many signatures hold too little so, -1: no room."""
    m, none, new, count = t.micro_batches, w.none, w.new, w.tally
    shorts = 0
    for x in range(reached):
        g = w.order[x]
        if t.cap[g] == 0 or (t.forbidden[z] and g != t.whole):
            continue
        w.held[g] = 0
        if t.keep_none:
            held = in_flight(
                t.limit_bytes, none[g, RESIDENT] + none[g, WORK] + none[g, BUFFERS],
                none[g, ACTIVATIONS] + t.relay[g] * t.relayed[c], t.cap[g])
            w.held[g] = held
            if held and busy:
                part = t.last[t.part[g]] if t.part[g] >= 0 else -1
                close(t.gpipe, t.overlaps[0], part, t.last[g], t.root[g], t.second[g],
                      w.layers, none, g, w.chunk, new)
            elif held:
                new[AHEAD], new[BACK] = none[g, FORWARD], none[g, BACKWARD]
                set_ends(t.gpipe, new, none[g, LEFT], none[g, WAIT], none[g, TIED],
                         none[g, UPDATE])
            new[HELD] = -held
            if held and _alone(m, new) < limit:
                if count[g] == kept.shape[1]:
                    return -1
                count[g] = _keep(kept, who, g, count[g], new, code * len(t.first_layers))
        if w.held[g] < t.cap[g]:
            w.short[shorts] = g
            shorts += 1
    return shorts


@leaf
def _offer_recomputed(t, w, c, z, busy, code, shorts, limit, slack, kept, who):
    """The same with recompute, for the signatures that hold too little without."""
    m, R, radix, weight = t.micro_batches, t.back.shape[1], len(t.first_layers), t.weight[c]
    layers, none, change, changes = w.layers, w.none, w.change, w.changes
    policy_changes(t, c, z, busy, layers, changes)
    # The best of all policies in each figure, by kind; least of all in one layer.
    least = np.inf
    for x in range(len(t.kinds)):
        kind = t.kinds[x]
        w.best_back[kind], w.best_held[kind] = np.inf, 0.0
        for r in range(1, R):
            least = min(least, changes[r, kind, D_BACK])
            if r != t.full:
                w.best_back[kind] = min(w.best_back[kind], changes[r, kind, D_BACK])
                w.best_held[kind] = min(w.best_held[kind], changes[r, kind, D_HELD])
    for x in range(shorts):
        g = w.short[x]
        ahead = none[g, FORWARD]
        # No policy costs less than the cheapest does in one layer.
        most_time = min(limit / m, (slack + w.base[g]) / weight)
        if t.keep_none and ahead + none[g, BACKWARD] + least >= most_time:
            continue
        resident = none[g, RESIDENT] + none[g, BUFFERS]
        kept_bytes = none[g, ACTIVATIONS] + t.relay[g] * t.relayed[c]
        time, kept_least = ahead + none[g, BACKWARD], kept_bytes
        for y in range(len(t.kinds)):
            kind = t.kinds[y]
            if t.counts[g, kind]:
                time += t.counts[g, kind] * w.best_back[kind]
                kept_least += t.counts[g, kind] * w.best_held[kind]
        more = resident + none[g, WORK] + (w.held[g] + 1) * kept_least
        first_kind = t.root[g]
        least_left = layers[0, first_kind, SCATTERED] + layers[0, first_kind, SYNC]
        least_wait = none[g, WAIT] + layers[0, first_kind, GATHERED]
        some = time < most_time and more <= t.limit_bytes * (1.0 + 1e-12)
        for r in range(1, R - (t.full > 0) if some else 0):
            changed(t.counts, t.kinds, g, changes, r, change)
            time = ahead + none[g, BACKWARD] + change[D_BACK]
            if m * time >= limit or weight * time - w.base[g] > slack:
                continue
            held = in_flight(
                t.limit_bytes, resident + max(none[g, WORK], change[D_WORK]),
                kept_bytes + change[D_HELD], t.cap[g])
            if held > w.held[g] and not _offer_policy(
                    t, w, g, r, t.marked[g], held, busy, least_left, least_wait,
                    (code + r) * radix, limit, kept, who):
                return False
        if t.full < 0:
            continue
        # The first layers in full: for each number in flight the fewest of them.
        most, best = t.marked[g], w.held[g]
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
            changed(t.counts, t.kinds, t.ancestor[g, layer], changes, t.full, change)
            time = ahead + none[g, BACKWARD] + change[D_BACK]
            if m * time >= limit or weight * time - w.base[g] > slack:
                break
            held = in_flight(
                t.limit_bytes, resident + max(none[g, WORK], change[D_WORK]),
                kept_bytes + change[D_HELD], t.cap[g])
            if allowed and held > best:
                best = held
                option = (code + t.full) * radix + (0 if layer == most else layer)
                if not _offer_policy(t, w, g, t.full, layer, held, busy, least_left, least_wait,
                                     option, limit, kept, who):
                    return False
            layer += 1
    return True


@leaf
def _offer_policy(t, w, g, r, most, held, busy, least_left, least_wait, option, limit, kept, who):
    """The same of one signature and policy r for its first ``most`` layers.

    ``least_left`` and ``least_wait``: no option leaves or waits for less.
    """
    new, none, count = w.new, w.none, w.tally[g]
    new[AHEAD], new[BACK] = none[g, FORWARD], none[g, BACKWARD] + w.change[D_BACK]
    new[HELD] = -held
    tied, update = none[g, TIED], none[g, UPDATE]
    if busy:
        # It is no better than this, which is often enough to drop it.
        set_ends(t.gpipe, new, least_left, least_wait, tied, update)
        if _dominated(kept, g, count, new):
            return True
        recomputed(t.gpipe, t.overlaps, t.part, t.last, t.marked, g, r, most, w.layers, w.kinds,
                   w.again, w.chunk, new)
    else:
        left = left_seconds(w.layers, t.overlaps[1], w.before, w.depth, t.last, t.marked, g, r,
                            most)
        set_ends(t.gpipe, new, left, none[g, WAIT], tied, update)
    if _alone(t.micro_batches, new) < limit:
        if count == kept.shape[1]:
            return False
        w.tally[g] = _keep(kept, who, g, count, new, option)
    return True


@kernel
def select(t, limit):
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in the first fields of an option: forward, backward,
    with or without what it gathers for the pass behind it, either with what it takes longer behind
    another pass, with what it waits for at the start and leaves at the end of a step; what follows
    then; micro-batches in flight that fit, and shards (docs/proofs.md has the proof that these
    suffice). Of equal ones the first stays. Those that alone take ``limit`` seconds a step, take
    too much above the least to stay below it, or hold no micro-batch, are no options.

    Of recompute, each signature gets what its memory asks for: nothing where that holds all there
    is to hold, else also each policy that holds more, and of "the first r layers" the least r for
    every number in flight.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    number : int64 (O,), see ``nest.search.tensors.Builder.degrees``.
    options : float64 (O, OPTION), see ``_kernels.fold``.
    """
    C, G, T, m = len(t.price), len(t.part), t.ahead.shape[1], t.micro_batches
    prices = t.price[-1] + 1
    first = np.zeros((prices, G + 1), np.int64)
    w = work_of(t)
    count, slack = w.tally, limit * (1.0 + 1e-12) - w.base[t.whole]
    options = np.empty((1024, OPTION))
    number = np.empty(1024, np.int64)
    kept, who = np.empty((G, 16, OPTION)), np.empty((G, 16), np.int64)
    total = lo = 0
    for p in range(prices):
        hi = lo
        while hi < C and t.price[hi] == p:
            hi += 1
        count[:] = 0
        for c in range(lo, hi):
            # Without ZeRO traffic and recompute: what a single layer cannot stay below, none can.
            alive = False
            for kind in range(T):
                time = t.ahead[t.body[c], kind, 1] + t.back[t.body[c], 0, kind, 1]
                alive |= m * time < limit and t.weight[c] * time - t.least[kind] <= slack
            for z in range(len(t.shard) if alive else 0):
                if t.shard[z] and not t.hybrid[c]:
                    continue
                while not _offer(t, w, c, z, limit, slack, kept, who):
                    kept, who = _wider(kept, who, count)
        while total + count.sum() > len(options):
            rows = 2 * len(options)
            options, number = longer(options, rows), longer(number, rows)
        for g in range(G):
            first[p, g] = total
            _sort(kept, who, g, count[g], options, number, total)
            total += count[g]
        first[p, G] = total
        lo = hi
    return first, number[:total].copy(), options[:total].copy()
