"""Solve one outer choice exactly: stages, blocks and options of one super-pipeline.

Shapes: L layers, K positions (device numbers in units of the smallest usable block step),
B block sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost
the same), O options.

Recursion (``add_stage``), last stage first, over labels (T, Q, E, shards) of the cell
(s stages, layers i..L-1, devices k..):

    T  time from the first forward of the stage at k to its last backward
    Q  sum of its and the later stages' t, plus the hand-overs between them
    E  seconds that gradients and optimizer still take after T
    shards  distinct shards that the stage at k holds (lanes of the hand-over into it)

A label is dropped when another of its cell is no worse in all four, or when it cannot end below
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
    sizes: np.ndarray  # int32 (B,) block sizes in positions
    lanes: np.ndarray  # float64 (B,) most shards that a block of the size can hold
    price: np.ndarray  # int32 (B, K+1); -1 = no block may start there
    signature: np.ndarray  # int32 (L+1, L+1)
    first: np.ndarray  # int32 (P, G+1) options of (price, signature), by ascending t
    forward: np.ndarray  # float64 (O,)
    backward: np.ndarray  # float64 (O,)
    finish: np.ndarray  # float64 (O,)
    in_flight: np.ndarray  # int32 (O,) most micro-batches in flight that fit
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
TIME, TIME_FINISH, STEP_FINISH, BACK, BACK_FINISH, FRONT, STEP_FRONT = range(7)
TRIP, TRIP_FINISH, LONGEST_BACK = 7, 8, 9


@njit(cache=CACHE, nogil=True)
def _least(p, need, behind):
    """Least t, t + finish, ... of the options of (price, signature) with ``need`` in flight."""
    P, G, m = p.first.shape[0], p.first.shape[1] - 1, p.micro_batches
    least = np.full((10, P, G), np.inf)
    least[LONGEST_BACK] = 0.0
    for x in range(P):
        for g in range(G):
            for o in range(p.first[x, g], p.first[x, g + 1]):
                if p.in_flight[o] >= need:
                    f, b, finish = p.forward[o], p.backward[o], p.finish[o]
                    t = f + b
                    now = least[:, x, g]
                    now[TIME] = min(now[TIME], t)
                    now[TIME_FINISH] = min(now[TIME_FINISH], t + finish)
                    now[STEP_FINISH] = min(now[STEP_FINISH], m * t + finish)
                    now[BACK] = min(now[BACK], b)
                    now[BACK_FINISH] = min(now[BACK_FINISH], b + finish)
                    now[FRONT] = min(now[FRONT], f)
                    now[STEP_FRONT] = min(now[STEP_FRONT], m * t - b)
                    now[TRIP] = min(now[TRIP], (m - behind) * t)
                    now[TRIP_FINISH] = min(now[TRIP_FINISH], (m - behind) * t + finish)
                    now[LONGEST_BACK] = max(now[LONGEST_BACK], b)
    return least


# Bounds per cell, indices into the result of ``reach``.
ADDED, FORCED, HIDDEN, FRONTS, UNHIDDEN, TRIPS, STAGES = range(7)


@njit(cache=CACHE, nogil=True)
def reach(p, need, behind, limit):
    """What the stages in front of (i, k) do to the step at the least; float64 (7, L+1, K+1).

    For a label (T, Q, E) with ``behind`` stages, the step is no shorter than
    T + ADDED, FORCED, T + E + FRONTS, E + UNHIDDEN, and 2 Q + TRIPS (where the micro-batches
    outnumber all stages); they hide HIDDEN seconds of E whatever they are; STAGES is how many
    they are at the most. inf where nothing below ``limit`` leads. Every stage in front is priced
    with ``need`` micro-batches in flight, no more than it will hold.

    TRIPS follows from ``add_stage``: (m - n) t + 2 (trip) for a stage with n behind it; a further
    stage in between adds its t twice to the trip and takes one t, at most limit / m, away.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    least = _least(p, need, behind)
    cells = np.full((7, L + 1, K + 1), np.inf)
    cells[:, 0, 0] = 0.0
    cells[TRIPS, 0, 0] = -np.inf
    cells[UNHIDDEN, 0, 0] = -np.inf
    cells[STAGES] = 0.0
    slowest = limit / m
    for i in range(L):
        for k in range(K):
            if cells[ADDED, i, k] == np.inf:
                continue
            here = cells[:, i, k]
            for x in range(len(p.sizes)):
                kind, stop = p.price[x, k], k + p.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(i + 1, L + 1):
                    now = least[:, kind, p.signature[i, j]]
                    # Longer stages take longer and need more memory: none fits after the first.
                    if now[TIME] == np.inf:
                        break
                    hop = 0.0
                    if j < L:
                        hop = p.hop_bytes[j] * p.hop_per_byte[stop] / p.lanes[x]
                        hop += p.hop_latency[stop]
                    # Its own finish is hidden under the backward passes in front, if at all:
                    # with them it takes their forward passes' time.
                    total = max(here[ADDED] + now[TIME], here[FRONTS] + now[TIME_FINISH]) + hop
                    low = max(here[FORCED], here[ADDED] + m * now[TIME],
                              here[FRONTS] + now[STEP_FINISH])
                    if max(total, low) >= limit:
                        continue
                    there = cells[:, j, stop]
                    there[ADDED] = min(there[ADDED], total)
                    there[FORCED] = min(there[FORCED], low)
                    there[HIDDEN] = min(there[HIDDEN], here[HIDDEN]
                                        + now[BACK_FINISH if i == 0 else BACK])
                    there[FRONTS] = min(there[FRONTS], here[FRONTS] + now[FRONT] + hop)
                    there[UNHIDDEN] = min(
                        there[UNHIDDEN], max(here[UNHIDDEN] - now[LONGEST_BACK],
                                             here[FRONTS] + now[STEP_FRONT]))
                    there[TRIPS] = min(
                        there[TRIPS], max(here[TRIPS] + 2.0 * (now[TIME] + hop) - slowest,
                                          here[ADDED] + now[TRIP] + 2.0 * hop,
                                          here[FRONTS] + now[TRIP_FINISH] + 2.0 * hop))
                    there[STAGES] = max(there[STAGES], here[STAGES] + 1)
    return cells


@njit(cache=CACHE, nogil=True)
def _insert(values, links, count, new, option, cut, parent):
    """Add a label to a cell unless dominated, drop those it dominates; the new count."""
    for c in range(count):
        if (values[c, 0] <= new[0] and values[c, 1] <= new[1] and values[c, 2] <= new[2]
                and values[c, 3] >= new[3]):
            return count
    kept = 0
    for c in range(count):
        if not (new[0] <= values[c, 0] and new[1] <= values[c, 1] and new[2] <= values[c, 2]
                and new[3] >= values[c, 3]):
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
        if values[c, 4] >= values[worst, 4]:
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
    values = np.empty((1024, 4))
    links = np.empty((1024, 5), np.int64)  # option, cut, parent, layer, position
    total = 0
    begin = np.zeros((2, L + 1, K + 1), np.int64)
    end = np.zeros((2, L + 1, K + 1), np.int64)
    cell = np.empty((64, 5))
    cell_links = np.empty((64, 3), np.int64)
    new = np.empty(5)  # a label and its bound
    need = behind = 0
    front = np.empty((7, 0, 0))
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
                ahead = front[:, i, k]
                if ahead[ADDED] == np.inf or ahead[FORCED] >= best * SLACK:
                    continue
                trips = -np.inf
                if m >= s + ahead[STAGES] + 1:
                    trips = ahead[TRIPS] - (s - behind) * best / m
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
                                f, b = p.forward[o], p.backward[o]
                                counts[2] += 1
                                hop, rest, after, left = 0.0, 0.0, 0.0, 0.0
                                if s > 1:
                                    lanes = min(values[parent, 3], p.shards[o])
                                    hop = p.hop_bytes[j] * p.hop_per_byte[stop] / lanes
                                    hop += p.hop_latency[stop]
                                    rest, after = values[parent, 0], values[parent, 1]
                                    left = values[parent, 2] - b
                                new[0] = add_stage(rest, after, f, b, hop, s - 1, m)
                                new[1] = f + b + after + hop
                                # What every front hides makes no difference: equal labels merge.
                                new[2] = max(left, p.finish[o], ahead[HIDDEN])
                                new[3] = p.shards[o]
                                low = max(new[0] + ahead[ADDED], trips + 2.0 * new[1],
                                          new[2] + max(new[0] + ahead[FRONTS], ahead[UNHIDDEN]))
                                if low >= best * SLACK:
                                    continue
                                new[4] = low
                                if count == len(cell):
                                    cell = _grown(cell, 2 * count)
                                    cell_links = _grown(cell_links, 2 * count)
                                count = _insert(cell, cell_links, count, new, o, j, parent)
                                if count > width:
                                    counts[3] += 1
                                    count = _drop_worst(cell, cell_links, count)
                if count == 0:
                    continue
                if i == 0:
                    if p.depths[s]:
                        for c in range(count):
                            if cell[c, 0] + cell[c, 2] < best * SLACK:
                                best = cell[c, 0] + cell[c, 2]
                                best_label = total + c
                while total + count > len(values):
                    values = _grown(values, 2 * len(values))
                    links = _grown(links, 2 * len(links))
                for c in range(count):
                    values[total + c] = cell[c, :4]
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
    stages = np.empty((0, 4), np.int64)
    if best_label >= 0:
        stages = np.empty((deepest, 4), np.int64)
        depth, label = 0, best_label
        while label >= 0:
            option, cut = links[label, 0], links[label, 1]
            stages[depth, 0] = links[label, 3]
            stages[depth, 1] = cut
            stages[depth, 2] = links[label, 4]
            stages[depth, 3] = option
            depth += 1
            label = links[label, 2] if cut < L else -1
        stages = stages[:depth].copy()
    if best_label < 0:
        best = np.inf
    return best, stages, counts
