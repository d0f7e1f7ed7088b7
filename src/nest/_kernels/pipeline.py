"""Solve one outer choice exactly: stages, blocks and options of one super-pipeline.

Shapes: L layers, K positions (device numbers in units of the smallest usable block step),
B block sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost
the same), O options.

Recursion, last stage first, over labels (T, Q, W, V, shards) of the cell (s stages, layers
i..L-1, devices k..); :func:`nest.costs.schedules.one_f_one_b.step_time` is the same in plain words:

    T  time from the first forward of the stage at k to its last backward
    Q  sum of its and the later stages' t, plus the hand-overs between them
    W  time from that first forward until all of them have reduced gradients and updated
    V  the same for one micro-batch that finds them idle
    shards  distinct shards that the stage at k holds (lanes of the hand-over into it)

A label is dropped when another of its cell is no worse in all five, or when it cannot end below
the best plan known: :func:`reach` gives, per cell, the least that the stages in front still add.
Tie rule: the first found wins, loops run in ascending order. One thread solves one outer choice;
outer choices run side by side (the kernels release the GIL), so thread counts change nothing.
Work: labels x options per reachable (cell, block, cut); bounds cells x blocks x cuts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nest._kernels import CACHE

SLACK = 1.0 - 1e-12
"""A plan must beat the best by more than rounding to replace it."""


class Problem(NamedTuple):
    """Arrays of one outer choice; :mod:`nest.tensors` builds and checks them."""

    micro_batches: int
    sizes: np.ndarray  # int64 (B,) block sizes in positions
    lanes: np.ndarray  # float64 (B,) most shards that a block of the size can hold
    price: np.ndarray  # int64 (B, K+1); -1 = no block may start there
    signature: np.ndarray  # int64 (L+1, L+1); -1 = no stage lies between the cuts
    chain: bool  # the cuts lie in a row
    gpipe: bool
    first: np.ndarray  # int64 (P, G+1) options of (price, signature), by ascending t
    forward: np.ndarray  # float64 (O,)
    backward: np.ndarray  # float64 (O,)
    finish: np.ndarray  # float64 (O,)
    in_flight: np.ndarray  # int64 (O,) most micro-batches in flight that fit
    shards: np.ndarray  # float64 (O,)
    hop_bytes: np.ndarray  # float64 (L+1,) handed over before layer i, both ways
    hop_per_byte: np.ndarray  # float64 (K+1,) seconds per byte and lane where a block starts at k
    hop_latency: np.ndarray  # float64 (K+1,)
    depths: np.ndarray  # bool (L+1,) numbers of stages allowed


@njit(cache=CACHE, nogil=True)
def add_stage(rest, after, f, b, hop, n, m):
    """Time with a new first stage; ``add_stage`` of ``nest.costs.schedules.one_f_one_b``."""
    t = f + b
    if n == 0:
        return m * t
    trip = after + hop
    time = t + hop + rest
    if m < n + 2:
        return max(time, m * t, f + trip + m * b, m * f + trip + b)
    time = max(time, m * t + max(0.0, trip - n * f) + max(0.0, trip - n * b))
    full = (m - 1) // (n + 1)
    left = (m - 1) - full * (n + 1)
    time = max(time, (full + 1) * (t + trip) + left * max(f, b, (rest - after) / (m - 1)))
    pair = t + hop + min(t, after / n)
    ends = max(trip + t, n * f + b + pair - t) + max(trip + t, n * b + f + pair - t)
    return max(time, ends + (m - n - 2) * pair / 2)


# Least figures of (price, signature), indices into ``_least``.
TIME, TIME_FINISH, STEP, STEP_FINISH, BACK, BACK_FINISH, FRONT, SENT, TRIP, TRIP_FINISH = range(10)


@njit(cache=CACHE, nogil=True)
def _least(p, need, behind):
    """Least t, t + finish, ... of the options of (price, signature) with ``need`` in flight."""
    P, G, m = p.first.shape[0], p.first.shape[1] - 1, p.micro_batches
    least = np.full((P, G, 10), np.inf)
    now = np.empty(10)
    for x in range(P):
        for g in range(G):
            for o in range(p.first[x, g], p.first[x, g + 1]):
                if p.in_flight[o] < need:
                    continue
                f, b, finish = p.forward[o], p.backward[o], p.finish[o]
                t = f + b
                now[TIME] = t
                now[TIME_FINISH] = t + finish
                now[STEP] = m * t
                now[STEP_FINISH] = m * t + finish
                now[BACK] = b
                now[BACK_FINISH] = b + finish
                now[FRONT] = f
                now[SENT] = m * f + max(0, m - behind - 1) * b
                now[TRIP] = (m - behind) * t
                now[TRIP_FINISH] = (m - behind) * t + finish
                for n in range(10):
                    least[x, g, n] = min(least[x, g, n], now[n])
    return least


# Bounds per cell, indices into the result of ``reach``.
ADDED, FORCED, HIDDEN, FRONTS, ARRIVES, TRIPS, STAGES = range(7)
BOUNDS = 7


@njit(cache=CACHE, nogil=True)
def reach(p, need, behind, limit, place, count):
    """What the stages in front of (i, k) do to the step at the least; float64 (cells, 7).

    For a label (T, Q, W, V) with ``behind`` stages, the step is no shorter than T + ADDED, FORCED,
    W + FRONTS, V + ARRIVES and, where the micro-batches outnumber all stages, 2 Q + TRIPS. What W
    has over T, and V over Q, makes no difference up to HIDDEN. STAGES is how many stages are in
    front at the most. inf where nothing below ``limit`` leads. Every stage in front is priced with
    ``need`` micro-batches in flight, no more than it will hold.

    ``place`` int32 (L+1, K+1) numbers the ``count`` cells that can be reached and holds -1 for the
    others; it is filled when ``count`` is 0. Later calls reach no others: more is asked of each.

    ARRIVES and TRIPS hold (m - n - 1) b and (m - n) t of a stage with n behind it: every further
    stage in between takes one b or t, at most limit / m, away.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    least = _least(p, need, behind)
    # Room for all; what is not reached is never touched, so that it takes no memory.
    cells = np.empty((count if count else place.size, BOUNDS))
    cells[:count, :] = np.inf
    cells[:count, STAGES] = 0.0
    if count == 0:
        place[0, 0], count = 0, 1
    cells[0, :] = 0.0
    cells[0, TRIPS] = cells[0, ARRIVES] = -np.inf
    slowest = limit / m
    for i in range(L):
        for k in range(K):
            here = place[i, k]
            if here < 0 or cells[here, ADDED] == np.inf:
                continue
            added, forced, fronts = cells[here, ADDED], cells[here, FORCED], cells[here, FRONTS]
            for x in range(len(p.sizes)):
                kind, stop = p.price[x, k], k + p.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(i + 1, L + 1):
                    g = p.signature[i, j]
                    t = np.inf
                    if g >= 0:
                        t = least[kind, g, TIME]
                    if t == np.inf:
                        # Longer stages take longer and need more memory: none fits after this.
                        if p.chain:
                            break
                        continue
                    hop = 0.0
                    if j < L:
                        hop = p.hop_bytes[j] * p.hop_per_byte[stop] / p.lanes[x]
                        hop += p.hop_latency[stop]
                    # A stage's own finish follows the forward passes in front of it.
                    total = max(added + t, fronts + least[kind, g, TIME_FINISH]) + hop
                    low = max(forced, added + least[kind, g, STEP],
                              fronts + least[kind, g, STEP_FINISH])
                    if max(total, low) >= limit:
                        continue
                    front = least[kind, g, FRONT] + hop / 2
                    back = least[kind, g, BACK_FINISH if i == 0 else BACK]
                    arrives = max(cells[here, ARRIVES] + front - slowest,
                                  fronts + least[kind, g, SENT] + hop / 2)
                    trips = max(cells[here, TRIPS] + 2.0 * (t + hop) - slowest,
                                added + least[kind, g, TRIP] + 2.0 * hop,
                                fronts + least[kind, g, TRIP_FINISH] + 2.0 * hop)
                    to = place[j, stop]
                    if to < 0:
                        to, count = count, count + 1
                        place[j, stop] = to
                        cells[to, :] = np.inf
                        cells[to, STAGES] = 0.0
                    cells[to, ADDED] = min(cells[to, ADDED], total)
                    cells[to, FORCED] = min(cells[to, FORCED], low)
                    cells[to, HIDDEN] = min(cells[to, HIDDEN], cells[here, HIDDEN] + back)
                    cells[to, FRONTS] = min(cells[to, FRONTS], fronts + front)
                    cells[to, ARRIVES] = min(cells[to, ARRIVES], arrives)
                    cells[to, TRIPS] = min(cells[to, TRIPS], trips)
                    cells[to, STAGES] = max(cells[to, STAGES], cells[here, STAGES] + 1)
    return cells[:count].copy(), count


@njit(cache=CACHE, nogil=True)
def _insert(values, links, count, new, option, cut, parent):
    """Add a label to a cell unless dominated, drop those it dominates; the new count."""
    for c in range(count):
        if (values[c, 0] <= new[0] and values[c, 1] <= new[1] and values[c, 2] <= new[2]
                and values[c, 3] <= new[3] and values[c, 4] >= new[4]):
            return count
    kept = 0
    for c in range(count):
        if not (new[0] <= values[c, 0] and new[1] <= values[c, 1] and new[2] <= values[c, 2]
                and new[3] <= values[c, 3] and new[4] >= values[c, 4]):
            if kept != c:
                values[kept] = values[c]
                links[kept] = links[c]
            kept += 1
    values[kept] = new
    links[kept, 0] = option
    links[kept, 1] = cut
    links[kept, 2] = parent
    return kept + 1


@njit(cache=CACHE, nogil=True)
def _drop_worst(values, links, count):
    """Take out the label of the highest bound, of equal ones the last; its bound."""
    worst = 0
    for c in range(1, count):
        if values[c, 5] >= values[worst, 5]:
            worst = c
    bound = values[worst, 5]
    for c in range(worst, count - 1):
        values[c] = values[c + 1]
        links[c] = links[c + 1]
    return bound


@njit(cache=CACHE, nogil=True)
def _grown(array, rows):
    bigger = np.empty((rows, array.shape[1]), array.dtype)
    bigger[: array.shape[0]] = array
    return bigger


@njit(cache=CACHE, nogil=True)
def _by_layer(place, count):
    """Positions of the cells of each layer, ascending, and where those of a layer begin."""
    begin, position = np.zeros(place.shape[0] + 1, np.int64), np.empty(count, np.int64)
    total = 0
    for i in range(place.shape[0]):
        begin[i] = total
        for k in range(place.shape[1]):
            if place[i, k] >= 0:
                position[total] = k
                total += 1
    begin[place.shape[0]] = total
    return begin, position


@njit(cache=CACHE, nogil=True)
def _by_position(cells, positions, at):
    """Cut of each cell, by position and ascending, and where those of a position begin.

    ``cells`` (n, 2) are cuts and positions, the highest cut first.
    """
    begin, cuts = np.zeros(positions + 2, np.int64), np.empty(at, np.int64)
    for n in range(at):
        begin[cells[n, 1] + 1] += 1
    for k in range(positions + 1):
        begin[k + 1] += begin[k]
    free = begin[1:].copy()
    for n in range(at):
        k = cells[n, 1]
        free[k] -= 1
        cuts[free[k]] = cells[n, 0]
    return begin, cuts


@njit(cache=CACHE, nogil=True)
def _ways(p, columns, begin):
    """Block sizes that end where a cell was filled, by column, and where a column's begin."""
    first, ways = np.zeros(len(columns) + 1, np.int64), np.empty(
        len(columns) * len(p.sizes), np.int64)
    count = 0
    for c in range(len(columns)):
        for x in range(len(p.sizes)):
            stop = columns[c] + p.sizes[x]
            if stop < len(begin) - 1 and p.price[x, columns[c]] >= 0 and begin[stop] < begin[
                    stop + 1]:
                ways[count] = x
                count += 1
        first[c + 1] = count
    return first, ways


@njit(cache=CACHE, nogil=True)
def _extend(p, values, parent, option, cut, stop, s, hidden, new):
    """Fill ``new`` with the label of a stage of ``option`` in front of label ``parent``.

    The stage ends before layer ``cut`` and position ``stop``; with it there are ``s`` stages.
    """
    f, b, finish, m = p.forward[option], p.backward[option], p.finish[option], p.micro_batches
    new[4] = p.shards[option]
    if p.gpipe:
        new[0], new[1], new[2], new[3] = f + b, f, b, finish
        if s > 1:
            lanes = min(values[parent, 4], p.shards[option])
            new[0] += values[parent, 0] + p.hop_latency[stop]
            new[0] += p.hop_bytes[cut] * p.hop_per_byte[stop] / lanes
            for x in range(1, 4):
                new[x] = max(new[x], values[parent, x])
        return
    if s == 1:
        new[0], new[1] = m * (f + b), f + b
        done, last = new[0] + finish, new[1] + finish
    else:
        lanes = min(values[parent, 4], p.shards[option])
        hop = p.hop_bytes[cut] * p.hop_per_byte[stop] / lanes + p.hop_latency[stop]
        rest, after = values[parent, 0], values[parent, 1]
        new[0] = add_stage(rest, after, f, b, hop, s - 1, m)
        new[1] = f + b + after + hop
        sent = m * f + max(0, m - s) * b
        last = hop / 2 + values[parent, 3]
        done = max(new[0] + finish, f + hop / 2 + values[parent, 2], sent + last)
        last = max(new[1] + finish, f + last)
    # What every front hides makes no difference: equal labels merge.
    new[2] = max(done, new[0] + hidden)
    new[3] = max(last, new[1] + hidden)


@njit(cache=CACHE, nogil=True)
def _way_back(links, label, layers):
    """Stages of a complete plan, first stage first; none for label -1."""
    stages = np.empty((layers, 4), np.int64)
    depth = 0
    while label >= 0:
        option, cut, parent, start, position = links[label]
        stages[depth, 0] = start
        stages[depth, 1] = cut
        stages[depth, 2] = position
        stages[depth, 3] = option
        depth += 1
        label = parent if cut < layers else -1
    return stages[:depth].copy()


@njit(cache=CACHE, nogil=True)
def _low(p, new, added, fronts, arrives, trips):
    """No plan with the label takes less; bounds are those of ``reach``."""
    if p.gpipe:
        time = new[0] + (p.micro_batches - 1) * (new[1] + new[2])
        return max(time + added, time + new[3] + fronts)
    return max(new[0] + added, new[2] + fronts, new[3] + arrives, 2.0 * new[1] + trips)


@njit(cache=CACHE, nogil=True)
def solve(p, limit, width, spread):
    """Best plan of one outer choice for each number of stages, below ``limit`` seconds a step.

    A cell keeps at most ``width`` labels, those of the lowest bounds: what is found is a plan, and
    the best one when no label was dropped for its rank. Without ``spread`` only the best of all
    numbers of stages is looked for.

    Returns
    -------
    best : float64 (D+1,), step seconds by number of stages; inf where nothing was found.
    stages : int64 (S, 4), first stage first: first cut, last cut, position, option; the plans of
        all numbers of stages that have one, in ascending order.
    dropped : no plan below the best found takes less than this, inf where none was dropped.
    counts : int64 (4,): cells filled, labels kept, transitions tried, labels dropped by rank.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    deepest = 0
    for s in range(1, L + 1):
        if p.depths[s]:
            deepest = s
    best, best_label = np.full(deepest + 1, np.inf), np.full(deepest + 1, -1)
    below, dropped = limit, np.inf
    counts = np.zeros(4, np.int64)
    # Labels of all depths, for the way back; cells of the depth before, as ranges of them.
    values = np.empty((1024, 5))
    links = np.empty((1024, 5), np.int64)  # option, cut, parent, layer, position
    total = 0
    place = np.full((L + 1, K + 1), -1, np.int32)
    begin = end = np.zeros((2, 0), np.int64)
    begin_at, device = np.zeros(L + 2, np.int64), np.zeros(0, np.int64)
    # Cells that the depth before filled: the last stage may end anywhere.
    filled, fillings = np.zeros((64, 2), np.int64), 0
    taken_begin, taken = np.arange(K + 2), np.full(K + 1, L)
    columns, column = np.zeros(0, np.int64), np.zeros(K + 1, np.int64)
    cell = np.empty((64, 6))
    cell_links = np.empty((64, 3), np.int64)
    new = np.empty(6)  # a label and its bound
    need = behind = reached = 0
    front = np.empty((0, BOUNDS))
    for s in range(1, deepest + 1):
        flight = m if p.gpipe else min(s, m)
        # Bounds again whenever the stages behind have doubled.
        if behind == 0 or s >= 2 * behind:
            need, behind = m if p.gpipe else min(s + 1, m), s
            front, now_reached = reach(p, need, behind, below, place, reached)
            if reached == 0:
                reached = now_reached
                begin, end = np.zeros((2, reached), np.int64), np.zeros((2, reached), np.int64)
                begin_at, device = _by_layer(place, reached)
                columns = np.unique(device)
                column[columns] = np.arange(len(columns))
        if s > 1:
            taken_begin, taken = _by_position(filled, K, fillings)
        fillings = 0
        way_begin, way = _ways(p, columns, taken_begin)
        now, before = s % 2, 1 - s % 2
        start = total
        for i in range(L - s, -1, -1):
            for y in range(begin_at[i], begin_at[i + 1]):
                k = device[y]
                here = place[i, k]
                added, fronts, hidden = front[here, ADDED], front[here, FRONTS], front[here, HIDDEN]
                if added == np.inf or front[here, FORCED] >= below * SLACK:
                    continue
                arrives, trips = front[here, ARRIVES], -np.inf
                if m >= s + front[here, STAGES] + 1:
                    trips = front[here, TRIPS]
                if s > behind:
                    arrives -= (s - behind) * below / m
                    trips -= (s - behind) * below / m
                count = 0
                for z in range(way_begin[column[k]], way_begin[column[k] + 1]):
                    x = way[z]
                    kind, stop = p.price[x, k], k + p.sizes[x]
                    for q in range(taken_begin[stop], taken_begin[stop + 1]):
                        j = taken[q]
                        if j <= i:
                            continue
                        g = p.signature[i, j]
                        if g < 0:
                            continue
                        lo, hi = p.first[kind, g], p.first[kind, g + 1]
                        if lo == hi:
                            if p.chain:
                                break
                            continue
                        source, source_end = 0, 1
                        if s > 1:
                            there = place[j, stop]
                            source, source_end = begin[before, there], end[before, there]
                        for parent in range(source, source_end):
                            for o in range(lo, hi):
                                if p.in_flight[o] < flight:
                                    continue
                                counts[2] += 1
                                _extend(p, values, parent, o, j, stop, s, hidden, new)
                                low = _low(p, new, added, fronts, arrives, trips)
                                if low >= below * SLACK:
                                    continue
                                new[5] = low
                                if count == len(cell):
                                    cell = _grown(cell, 2 * count)
                                    cell_links = _grown(cell_links, 2 * count)
                                count = _insert(cell, cell_links, count, new, o, j, parent)
                                if count > width:
                                    counts[3] += 1
                                    dropped = min(dropped, _drop_worst(cell, cell_links, count))
                                    count -= 1
                if count == 0:
                    continue
                if i == 0 and p.depths[s]:
                    for c in range(count):
                        time = cell[c, 5] if p.gpipe else cell[c, 2]
                        if time < min(below, best[s]) * SLACK:
                            best[s], best_label[s] = time, total + c
                            if not spread:
                                below = time
                while total + count > len(values):
                    values = _grown(values, 2 * len(values))
                    links = _grown(links, 2 * len(links))
                for c in range(count):
                    values[total + c] = cell[c, :5]
                    links[total + c, :3] = cell_links[c]
                    links[total + c, 3] = i
                    links[total + c, 4] = k
                begin[now, here], end[now, here] = total, total + count
                total += count
                if fillings == len(filled):
                    filled = _grown(filled, 2 * fillings)
                filled[fillings, 0], filled[fillings, 1] = i, k
                fillings += 1
                counts[0] += 1
        if total == start:
            break
    counts[1] = total
    stages = np.empty((0, 4), np.int64)
    for s in range(1, deepest + 1):
        if best[s] > below:
            best[s] = np.inf
        if best[s] < np.inf:
            stages = np.concatenate((stages, _way_back(links, best_label[s], L)))
    return best, stages, dropped, counts
