"""Solve one outer choice exactly: stages, blocks and options of one super-pipeline.

Shapes: L layers, K positions (device numbers in units of the smallest usable block step),
B block sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost
the same), O options.

Recursion, last stage first, over labels (T, Q, W, V, shards) of the cell (s stages, layers
i..L-1, devices k..); :func:`nest.costs.pipeline.step_time` is the same in plain words:

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
    signature: np.ndarray  # int64 (L+1, L+1)
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
    """Time with a new first stage; the formula of :func:`nest.costs.pipeline.add_stage`."""
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


@njit(cache=CACHE, nogil=True)
def reach(p, need, behind, limit):
    """What the stages in front of (i, k) do to the step at the least; float64 (L+1, K+1, 7).

    For a label (T, Q, W, V) with ``behind`` stages, the step is no shorter than T + ADDED, FORCED,
    W + FRONTS, V + ARRIVES and, where the micro-batches outnumber all stages, 2 Q + TRIPS. What W
    has over T, and V over Q, makes no difference up to HIDDEN. STAGES is how many stages are in
    front at the most. inf where nothing below ``limit`` leads. Every stage in front is priced with
    ``need`` micro-batches in flight, no more than it will hold.

    ARRIVES and TRIPS hold (m - n - 1) b and (m - n) t of a stage with n behind it: every further
    stage in between takes one b or t, at most limit / m, away.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    least = _least(p, need, behind)
    cells = np.full((L + 1, K + 1, 7), np.inf)
    cells[:, :, STAGES] = 0.0
    cells[0, 0, :] = 0.0
    cells[0, 0, TRIPS] = cells[0, 0, ARRIVES] = -np.inf
    slowest = limit / m
    for i in range(L):
        for k in range(K):
            added = cells[i, k, ADDED]
            if added == np.inf:
                continue
            forced, fronts = cells[i, k, FORCED], cells[i, k, FRONTS]
            for x in range(len(p.sizes)):
                kind, stop = p.price[x, k], k + p.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(i + 1, L + 1):
                    g = p.signature[i, j]
                    t = least[kind, g, TIME]
                    # Longer stages take longer and need more memory: none fits after the first.
                    if t == np.inf:
                        break
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
                    arrives = max(cells[i, k, ARRIVES] + front - slowest,
                                  fronts + least[kind, g, SENT] + hop / 2)
                    trips = max(cells[i, k, TRIPS] + 2.0 * (t + hop) - slowest,
                                added + least[kind, g, TRIP] + 2.0 * hop,
                                fronts + least[kind, g, TRIP_FINISH] + 2.0 * hop)
                    cells[j, stop, ADDED] = min(cells[j, stop, ADDED], total)
                    cells[j, stop, FORCED] = min(cells[j, stop, FORCED], low)
                    cells[j, stop, HIDDEN] = min(cells[j, stop, HIDDEN],
                                                 cells[i, k, HIDDEN] + back)
                    cells[j, stop, FRONTS] = min(cells[j, stop, FRONTS], fronts + front)
                    cells[j, stop, ARRIVES] = min(cells[j, stop, ARRIVES], arrives)
                    cells[j, stop, TRIPS] = min(cells[j, stop, TRIPS], trips)
                    cells[j, stop, STAGES] = max(cells[j, stop, STAGES], cells[i, k, STAGES] + 1)
    return cells


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
    """Take out the label of the highest bound; of equal ones the last."""
    worst = 0
    for c in range(1, count):
        if values[c, 5] >= values[worst, 5]:
            worst = c
    for c in range(worst, count - 1):
        values[c] = values[c + 1]
        links[c] = links[c + 1]
    return count - 1


@njit(cache=CACHE, nogil=True)
def _grown(array, rows):
    bigger = np.empty((rows, array.shape[1]), array.dtype)
    bigger[: array.shape[0]] = array
    return bigger


@njit(cache=CACHE, nogil=True)
def _extend(p, values, parent, option, cut, stop, s, hidden, new):
    """Fill ``new`` with the label of a stage of ``option`` in front of label ``parent``.

    The stage ends before layer ``cut`` and position ``stop``; with it there are ``s`` stages.
    """
    f, b, finish, m = p.forward[option], p.backward[option], p.finish[option], p.micro_batches
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
    new[4] = p.shards[option]


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
def solve(p, limit, width):
    """Best plan of one outer choice whose step takes less than ``limit`` seconds.

    A cell keeps at most ``width`` labels, those of the lowest bounds: what is found is a plan, and
    the best one when no label was dropped for its rank.

    Returns
    -------
    best : step seconds, inf when nothing below ``limit`` was found.
    stages : int64 (S, 4), first stage first: layer start, layer stop, position, option.
    counts : int64 (4,): cells filled, labels kept, transitions tried, labels dropped by rank.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    deepest = 0
    for s in range(1, L + 1):
        if p.depths[s]:
            deepest = s
    best, best_label = limit, -1
    counts = np.zeros(4, np.int64)
    # Labels of all depths, for the way back; cells of the depth before, as ranges of them.
    values = np.empty((1024, 5))
    links = np.empty((1024, 5), np.int64)  # option, cut, parent, layer, position
    total = 0
    begin = np.zeros((2, L + 1, K + 1), np.int64)
    end = np.zeros((2, L + 1, K + 1), np.int64)
    cell = np.empty((64, 6))
    cell_links = np.empty((64, 3), np.int64)
    new = np.empty(6)  # a label and its bound
    need = behind = 0
    front = np.empty((0, 0, 7))
    for s in range(1, deepest + 1):
        flight = min(s, m)
        # Bounds again whenever the stages behind have doubled.
        if behind == 0 or s >= 2 * behind:
            need, behind = min(s + 1, m), s
            front = reach(p, need, behind, best)
        now, before = s % 2, 1 - s % 2
        start = total
        for i in range(L - s, -1, -1):
            for k in range(K):
                begin[now, i, k] = total
                end[now, i, k] = total
                added, fronts, hidden = front[i, k, ADDED], front[i, k, FRONTS], front[i, k, HIDDEN]
                if added == np.inf or front[i, k, FORCED] >= best * SLACK:
                    continue
                arrives, trips = front[i, k, ARRIVES], -np.inf
                if m >= s + front[i, k, STAGES] + 1:
                    trips = front[i, k, TRIPS]
                if s > behind:
                    arrives -= (s - behind) * best / m
                    trips -= (s - behind) * best / m
                count = 0
                for x in range(len(p.sizes)):
                    kind, stop = p.price[x, k], k + p.sizes[x]
                    if kind < 0 or stop > K:
                        continue
                    # The last stage takes all layers that are left, the others some of them.
                    for j in range(L if s == 1 else i + 1, L + 1 if s == 1 else L):
                        g = p.signature[i, j]
                        lo, hi = p.first[kind, g], p.first[kind, g + 1]
                        if lo == hi:
                            break
                        source, source_end = 0, 1
                        if s > 1:
                            source, source_end = begin[before, j, stop], end[before, j, stop]
                        for parent in range(source, source_end):
                            for o in range(lo, hi):
                                if p.in_flight[o] < flight:
                                    continue
                                counts[2] += 1
                                _extend(p, values, parent, o, j, stop, s, hidden, new)
                                low = max(new[0] + added, new[2] + fronts, new[3] + arrives,
                                          2.0 * new[1] + trips)
                                if low >= best * SLACK:
                                    continue
                                new[5] = low
                                if count == len(cell):
                                    cell = _grown(cell, 2 * count)
                                    cell_links = _grown(cell_links, 2 * count)
                                count = _insert(cell, cell_links, count, new, o, j, parent)
                                if count > width:
                                    counts[3] += 1
                                    count = _drop_worst(cell, cell_links, count)
                if count == 0:
                    continue
                if i == 0 and p.depths[s]:
                    for c in range(count):
                        if cell[c, 2] < best * SLACK:
                            best, best_label = cell[c, 2], total + c
                while total + count > len(values):
                    values = _grown(values, 2 * len(values))
                    links = _grown(links, 2 * len(links))
                for c in range(count):
                    values[total + c] = cell[c, :5]
                    links[total + c, :3] = cell_links[c]
                    links[total + c, 3] = i
                    links[total + c, 4] = k
                total += count
                end[now, i, k] = total
                counts[0] += 1
        if total == start:
            break
        # Cells that this depth does not reach must not show the labels of two depths ago.
        for i in range(L - s + 1, L + 1):
            end[now, i] = begin[now, i]
    counts[1] = total
    stages = _way_back(links, best_label, L)
    if best_label < 0:
        best = np.inf
    return best, stages, counts
