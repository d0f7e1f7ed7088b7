"""Keep the configurations of a stage that some plan could want.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, G
signatures, P prices, O options kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import entry, leaf
from nest._kernels.fold import (
    AHEAD,
    BACK,
    DECIDE,
    DEGREES,
    HELD,
    LATE,
    LATER,
    LEFT,
    NUMBERS,
    OPTION,
    REMAINS,
    S_ACTIVATIONS,
    S_BACKWARD,
    S_BUFFERS,
    S_FORWARD,
    S_RESIDENT,
    S_TIED,
    S_UPDATE,
    S_WORK,
    SHARDS,
    TOTALS,
    WAIT,
    WAITS,
    close,
    recomputed,
    set_alone,
    walk,
)
from nest._kernels.layers import FIELDS, GATHERED, SCATTERED, SYNC, layer_sums
from nest._kernels.recompute_changes import (
    CHANGES,
    D_BACK,
    D_HELD,
    changed,
    first_that_may_hold,
    layers_of,
    left_seconds,
    policy_changes,
)
from nest._kernels.spans import PART, Wanted
from nest.forms.chunk import CHUNK

OPTIONS, EACH = 65536, 16
"""Room at first: options in all, and of a signature under one price."""


class Work(NamedTuple):
    """Arrays that :func:`select` makes and its helpers fill."""

    wanted: Wanted
    first: np.ndarray
    """int64 (P, G+1), see :func:`select`."""
    numbers: np.ndarray
    """int64 (O, NUMBERS)"""
    options: np.ndarray
    """float64 (O, OPTION)"""
    place: np.ndarray
    """int32 (P, G) place of a stage that is wanted in the next three."""
    kept: np.ndarray
    """float64 (places, EACH, OPTION) options of the price at hand."""
    who: np.ndarray
    """int64 (places, EACH, NUMBERS) their whole numbers."""
    sequence: np.ndarray
    """int64 (EACH,) options of a signature, by ascending t."""
    tally: np.ndarray
    """int64 (places,) how many there are."""
    base: np.ndarray
    """float64 (G,) least seconds of a step."""
    totals: np.ndarray
    """float64 (G+1, TOTALS) sums of layers without recompute; the last row is that of no layer."""
    stack: np.ndarray
    """int64 (G,)"""
    order: np.ndarray
    """int64 (G,) signatures as they are reached."""
    short: np.ndarray
    """int64 (G,) those that hold fewer micro-batches than they might."""
    held: np.ndarray
    """int64 (G,) micro-batches without recompute."""
    layers: np.ndarray
    """float64 (R, T, FIELDS)"""
    changes: np.ndarray
    """float64 (R, T, CHANGES) see ``policy_changes``."""
    kinds: np.ndarray
    """int64 (layers,)"""
    again: np.ndarray
    """int64 (layers,)"""
    best_back: np.ndarray
    """float64 (T,) least of all policies."""
    best_held: np.ndarray
    """float64 (T,)"""
    chunk: np.ndarray
    """float64 (CHUNK,)"""
    new: np.ndarray
    """float64 (OPTION,) an option."""
    new_numbers: np.ndarray
    """int64 (NUMBERS,)"""


def work_of(t, wanted, options=OPTIONS, each=EACH):
    """Room for so many options in all and of a signature."""
    G, T, R, longest = len(t.part), t.ahead.shape[1], t.back.shape[1], int(t.depth.max())
    place = np.cumsum(wanted.most > PART, axis=1, dtype=np.int32) - 1
    places = int(place[:, -1].max()) + 1
    return Work(
        wanted=wanted, first=np.zeros((int(t.price[-1]) + 1, G + 1), np.int64),
        numbers=np.empty((options, NUMBERS), np.int64), options=np.empty((options, OPTION)),
        place=place, kept=np.empty((places, each, OPTION)),
        who=np.empty((places, each, NUMBERS), np.int64), sequence=np.empty(each, np.int64),
        tally=np.zeros(places, np.int64), base=np.empty(G), totals=np.zeros((G + 1, TOTALS)),
        stack=np.empty(G, np.int64), order=np.empty(G, np.int64), short=np.empty(G, np.int64),
        held=np.zeros(G, np.int64), layers=np.empty((R, T, FIELDS)),
        changes=np.zeros((R, T, CHANGES)),
        kinds=np.empty(longest, np.int64), again=np.empty(longest, np.int64),
        best_back=np.zeros(T), best_held=np.zeros(T), chunk=np.empty(CHUNK), new=np.empty(OPTION),
        new_numbers=np.empty(NUMBERS, np.int64))


def wider(w):
    """The same with more room where there is none left."""
    places, each, _ = w.who.shape
    if w.tally.max() < each:
        return w._replace(numbers=np.concatenate((w.numbers, np.empty_like(w.numbers))),
                          options=np.concatenate((w.options, np.empty_like(w.options))))
    more = (4 if each < 256 else 2) * each
    kept, who = np.empty((places, more, OPTION)), np.empty((places, more, NUMBERS), np.int64)
    for n, count in enumerate(w.tally.tolist()):  # memory that is never touched takes none
        kept[n, :count], who[n, :count] = w.kept[n, :count], w.who[n, :count]
    return w._replace(kept=kept, who=who, sequence=np.empty(more, np.int64))


# The helpers below index whole arrays: a slice or an iterator in an inner loop costs more than its
# work. They are called, not inlined: in one large function too few figures stay in registers.


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
def _may_be_wanted(t, w, price, g, limit):
    """Whether a plan below ``limit`` may have the new option of g.

    No step takes less than its own micro-batches, what comes before and after.
    """
    new = w.new
    time = new[AHEAD] + new[BACK] - new[LATE]
    return time < w.wanted.slowest[price, g] and (
        new[WAITS] + t.micro_batches * time + new[REMAINS] + new[LATER] < limit)


@leaf
def _dominated(kept, who, n, count, new, numbers):
    """Whether an option at place n is as good as a new one in everything that decides."""
    for o in range(count):
        f = 0
        while f < DECIDE and kept[n, o, f] <= new[f]:
            f += 1
        if f == DECIDE and who[n, o, HELD] >= numbers[HELD] and (
                who[n, o, SHARDS] >= numbers[SHARDS]):
            return True
    return False


@leaf
def _keep(kept, who, tally, n, new, numbers):
    """Add a new option at place n unless dominated, drop those it dominates; False: no room."""
    count = tally[n]
    if _dominated(kept, who, n, count, new, numbers):
        return True
    if count == kept.shape[1]:
        return False
    left = 0
    for o in range(count):
        f = 0
        while f < DECIDE and new[f] <= kept[n, o, f]:
            f += 1
        if f < DECIDE or numbers[HELD] < who[n, o, HELD] or numbers[SHARDS] < who[n, o, SHARDS]:
            if left != o:
                for f in range(OPTION):
                    kept[n, left, f] = kept[n, o, f]
                for f in range(NUMBERS):
                    who[n, left, f] = who[n, o, f]
            left += 1
    for f in range(OPTION):
        kept[n, left, f] = new[f]
    for f in range(NUMBERS):
        who[n, left, f] = numbers[f]
    tally[n] = left + 1
    return True


@leaf
def _sort(w, n, start):
    """Write the options at place n from ``start`` on, by ascending t; equal ones in their order."""
    kept, sequence, count = w.kept, w.sequence, w.tally[n]
    for o in range(count):
        time, y = kept[n, o, AHEAD] + kept[n, o, BACK], o
        while y and kept[n, sequence[y - 1], AHEAD] + kept[n, sequence[y - 1], BACK] > time:
            sequence[y] = sequence[y - 1]
            y -= 1
        sequence[y] = o
    for y in range(count):
        for f in range(OPTION):
            w.options[start + y, f] = kept[n, sequence[y], f]
        for f in range(NUMBERS):
            w.numbers[start + y, f] = w.who[n, sequence[y], f]


@leaf
def _offer(t, w, c, z, limit, slack):
    """Keep options of candidate c and way of ZeRO z; False: ``w.kept`` has no room."""
    layer_sums(t, c, z, 0, w.layers)
    w.new_numbers[SHARDS] = t.shards[c]
    traffic = 0.0
    for kind in range(t.ahead.shape[1]):
        traffic = max(traffic, w.layers[0, kind, GATHERED], w.layers[0, kind, SCATTERED])
    busy = traffic > 0.0
    code = (c * len(t.shard) + z) * t.back.shape[1]
    reached = walk(t, w, c, busy, limit, slack)
    shorts = _offer_whole(t, w, c, z, busy, code, reached, limit)
    if shorts > 0 and t.back.shape[1] > 1:
        return _offer_recomputed(t, w, c, z, busy, code, shorts, limit, slack)
    return shorts >= 0


@leaf
def _offer_whole(t, w, c, z, busy, code, reached, limit):
    """The same without recompute; how many signatures hold too little so, -1: no room."""
    totals, new, price = w.totals, w.new, t.price[c]
    shorts = 0
    for x in range(reached):
        g = w.order[x]
        cap = min(t.cap[g], w.wanted.most[price, g])
        if cap == 0 or (t.forbidden[z] and g != t.whole):
            continue
        held = 0
        if t.keep_none:
            held = in_flight(
                t.limit_bytes, totals[g, S_RESIDENT] + totals[g, S_WORK] + totals[g, S_BUFFERS]
                + t.received[g] / t.shards[c],
                totals[g, S_ACTIVATIONS] + t.relay[g] * t.relayed[c], cap)
        w.held[g] = held
        if held >= w.wanted.least[price, g]:
            if busy:
                close(t, w, g)
            else:
                new[AHEAD], new[BACK] = totals[g, S_FORWARD], totals[g, S_BACKWARD]
                set_alone(new, totals[g, LEFT], totals[g, WAIT], totals[g, S_TIED],
                          totals[g, S_UPDATE])
            w.new_numbers[DEGREES], w.new_numbers[HELD] = code * len(t.first_layers), held
            if _may_be_wanted(t, w, price, g, limit) and not _keep(
                    w.kept, w.who, w.tally, w.place[price, g], new, w.new_numbers):
                return -1
        if held < cap:
            w.short[shorts] = g
            shorts += 1
    return shorts


@leaf
def _best_changes(t, w):
    """Fill in the least that a policy but full changes of each kind; the least of one layer."""
    least = np.inf
    for at in range(len(t.kinds)):
        kind = t.kinds[at]
        w.best_back[kind], w.best_held[kind] = np.inf, 0.0
        for r in range(1, t.back.shape[1]):
            back = w.changes[r, kind, D_BACK]
            least = min(least, back)
            if r != t.full:
                w.best_back[kind] = min(w.best_back[kind], back)
                w.best_held[kind] = min(w.best_held[kind], w.changes[r, kind, D_HELD])
    return least


@leaf
def _offer_recomputed(t, w, c, z, busy, code, shorts, limit, slack):
    """The same with recompute, for the signatures that hold too little without."""
    m, R, totals = t.micro_batches, t.back.shape[1], w.totals
    weight, price = t.weight[c], t.price[c]
    radix = len(t.first_layers)
    policy_changes(t, w, c, z, busy)
    least = _best_changes(t, w)
    for x in range(shorts):
        g = w.short[x]
        cap, base = min(t.cap[g], w.wanted.most[price, g]), w.base[g]
        best, slowest = max(w.held[g], w.wanted.least[price, g] - 1), w.wanted.slowest[price, g]
        unchanged = totals[g, S_FORWARD] + totals[g, S_BACKWARD]
        # No policy costs less than the cheapest does in one layer.
        most_time = min(limit / m, (slack + base) / weight, slowest)
        if t.keep_none and unchanged + least >= most_time:
            continue
        resident = totals[g, S_RESIDENT] + totals[g, S_BUFFERS] + t.received[g] / t.shards[c]
        work = totals[g, S_WORK]
        activations = totals[g, S_ACTIVATIONS] + t.relay[g] * t.relayed[c]
        time, least_kept = unchanged, activations
        for at in range(t.among[g, 0], t.among[g, 1]):
            kind = t.kinds[at]
            layers = layers_of(t, g, kind)
            if layers:
                time += layers * w.best_back[kind]
                least_kept += layers * w.best_held[kind]
        more = resident + work + (best + 1) * least_kept
        some = time < most_time and more <= t.limit_bytes * (1.0 + 1e-12)
        most = t.marked[g]
        for r in range(1, R - (t.full > 0) if some else 0):
            back, held_bytes, work_bytes = changed(t, w.changes, g, r)
            time = unchanged + back
            if m * time >= limit or weight * time - base > slack or time >= slowest:
                continue
            held = in_flight(t.limit_bytes, resident + max(work, work_bytes),
                             activations + held_bytes, cap)
            if held > best and not _offer_policy(
                    t, w, c, g, r, most, back, held, busy, (code + r) * radix, limit):
                return False
        if t.full < 0:
            continue
        # The first layers in full: for each number in flight the fewest of them.
        layer = min(most, 1)
        while best < cap:
            if most:
                room = (t.limit_bytes - resident - work) / (best + 1)
                layer = first_that_may_hold(
                    t, w.changes, g, room - activations + 1e-9 * t.limit_bytes, layer, most)
            if layer > most:
                break
            back, held_bytes, work_bytes = changed(
                t, w.changes, t.ancestor[t.way[g], layer], t.full)
            time = unchanged + back
            if m * time >= limit or weight * time - base > slack or time >= slowest:
                break
            held = in_flight(t.limit_bytes, resident + max(work, work_bytes),
                             activations + held_bytes, cap)
            allowed = t.first_layers[layer] if layer < most else most <= t.most_layers
            if allowed and held > best:
                best = held
                option = (code + t.full) * radix + (0 if layer == most else layer)
                if not _offer_policy(
                        t, w, c, g, t.full, layer, back, held, busy, option, limit):
                    return False
            layer += 1
    return True


@leaf
def _offer_policy(t, w, c, g, r, most, back, held, busy, option, limit):
    """The same of one signature and policy r for its first ``most`` layers."""
    totals, layers, new = w.totals, w.layers, w.new
    new[AHEAD], new[BACK] = totals[g, S_FORWARD], totals[g, S_BACKWARD] + back
    w.new_numbers[DEGREES], w.new_numbers[HELD] = option, held
    n, first, wait = w.place[t.price[c], g], t.root[g], totals[g, WAIT]
    left = layers[0, first, SCATTERED] + layers[0, first, SYNC]
    if busy:
        wait += layers[0, first, GATHERED]
    else:
        left = left_seconds(t, layers, g, r, most)
    # With ZeRO traffic it is no better than this, which is often enough to drop it.
    set_alone(new, left, wait, totals[g, S_TIED], totals[g, S_UPDATE])
    if busy:
        if _dominated(w.kept, w.who, n, w.tally[n], new, w.new_numbers):
            return True
        recomputed(t, w, g, r, most)
    return not _may_be_wanted(t, w, t.price[c], g, limit) or _keep(
        w.kept, w.who, w.tally, n, new, w.new_numbers)


@leaf
def _fill(t, w, begin, limit):
    """Fill ``first``, ``numbers`` and ``options``, from candidate and way of ZeRO ``begin`` on.

    Ways are counted candidate by candidate. Returns the one whose options found no room, to begin
    with once there is more, and the number of all where all did.
    """
    C, G, Z, m = len(t.price), len(t.part), len(t.shard), t.micro_batches
    for g in range(G):
        w.base[g] = t.least[t.last[g]]
        if t.part[g] >= 0:
            w.base[g] += w.base[t.part[g]]
    slack = limit * (1.0 + 1e-12) - w.base[t.whole]
    now = begin
    while now < C * Z:
        c, z = now // Z, now % Z
        body, price = t.body[c], t.price[c]
        # Without ZeRO traffic and recompute: what a single layer cannot stay below, none can.
        alive = False
        for kind in range(t.ahead.shape[1]):
            time = t.ahead[body, kind, 1] + t.back[body, 0, kind, 1]
            alive |= m * time < limit and t.weight[c] * time - t.least[kind] <= slack
        # Options that found a place are offered once more in vain: none is better than itself.
        if alive and (t.hybrid[c] or not t.shard[z]) and not _offer(t, w, c, z, limit, slack):
            return now
        if z == Z - 1 and (c == C - 1 or t.price[c + 1] > price):
            total = w.first[price, 0]
            for n in range(len(w.tally)):
                total += w.tally[n]
            if total > len(w.options):
                return now
            total = w.first[price, 0]
            for g in range(G):
                n = w.place[price, g]
                if w.wanted.most[price, g] > PART and w.tally[n]:
                    _sort(w, n, total)
                    total += w.tally[n]
                    w.tally[n] = 0
                w.first[price, g + 1] = total
            if c < C - 1:
                w.first[price + 1, 0] = total
        now += 1
    return now


@entry
def fill(t, w, begin, limit):
    """``_fill`` for Python: without references to count, unpacking an array takes longer."""
    return _fill(t, w, begin, limit)


def select(t, wanted, limit):
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in the first fields of an option: forward, backward,
    with or without what it gathers for the pass behind it, either with what it takes longer behind
    another pass, with what it waits for at the start and leaves at the end of a step; what follows
    then; micro-batches in flight that fit, and shards. These suffice by docs/proofs.md, Lemma 22
    (dominated options). Of equal ones the first stays. Those that alone take ``limit`` seconds a
    step, take too much above the least to stay below it, or hold no micro-batch, are no options.

    Of recompute, each signature gets what its memory asks for: nothing where that holds all there
    is to hold, else also each policy that holds more, and of "the first r layers" the least r for
    every number in flight.

    Parameters
    ----------
    t : ``nest.search.tables.Tables``.
    wanted : ``nest._kernels.spans.Wanted``.
    limit : seconds of a step.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    degrees : int64 (O,), see ``nest.search.tensors.Builder.degrees``.
    held : int64 (O,), micro-batches in flight that fit.
    shards : int64 (O,)
    options : float64 (O, OPTION), see ``_kernels.fold``.
    """
    w, now, stop = work_of(t, wanted), 0, len(t.price) * len(t.shard)
    while True:
        now = fill(t, w, now, limit)
        if now == stop:
            break
        w = wider(w)
    total = w.first[-1, -1]
    return w.first, *np.ascontiguousarray(w.numbers[:total].T), w.options[:total].copy()
