"""Solve one outer choice exactly: stages, blocks and options of one super-pipeline.

Shapes: L layers, K positions (device numbers in units of the smallest usable block step),
B block sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost
the same), O options.

Recursion, last stage first, over labels of the cell (s stages, layers i..L-1, devices k..). A label
is the figures of :mod:`nest.forms.one_f_one_b`, or under GPipe of :mod:`nest.forms.gpipe`, and
behind them the least that a plan with it takes.

A label is dropped when another of its cell is no worse in all of them, or when it cannot end below
the best plan known: :func:`reach` gives, per cell, the least that the stages in front still add.
Tie rule: the first found wins, loops run in ascending order. One thread solves one outer choice;
outer choices run side by side (the kernels release the GIL), so thread counts change nothing.
Work: labels x options per reachable (cell, block, cut); bounds cells x blocks x cuts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import bounds, entry, fold, form, inlined, kernel, leaf
from nest._kernels.bounds import (
    ADDED,
    ARRIVES,
    BOUNDS,
    FORCED,
    FRONTS,
    HIDDEN,
    STAGES,
    TRIPS,
    reach,
)
from nest._kernels.room import longer
from nest.forms import gpipe, one_f_one_b
from nest.forms.one_f_one_b import (
    AFTER,
    BACK,
    DONE,
    END,
    EXCHANGE,
    FIGURES,
    IDLE,
    IDLE_READY,
    READY,
    REST,
    SHARE,
)
from nest.forms.stage import Stage

add_stage, add_gpipe_stage = form(one_f_one_b.add_stage), form(gpipe.add_stage)

LOW = FIGURES
"""Of a label, behind its figures: the least that a plan with it takes."""

SLACK = 1.0 - 1e-12
"""A plan must beat the best by more than rounding to replace it."""


class Problem(NamedTuple):
    """Arrays of one outer choice; :mod:`nest.search.tensors` builds and checks them."""

    micro_batches: int
    sizes: np.ndarray  # int64 (B,) block sizes in positions
    lanes: np.ndarray  # float64 (B,) most shards that a block of the size can hold
    price: np.ndarray  # int64 (B, K+1); -1 = no block may start there
    signature: np.ndarray  # int64 (L+1, L+1); -1 = no stage lies between the cuts
    chain: bool  # the cuts lie in a row
    gpipe: bool
    first: np.ndarray  # int64 (P, G+1) options of (price, signature), by ascending t
    option: np.ndarray  # float64 (O, OPTION), see _kernels.fold
    hop_bytes: np.ndarray  # float64 (L+1,) handed over before layer i, one way
    hop_per_byte: np.ndarray  # float64 (K+1,) seconds per byte and lane where a block starts at k
    hop_latency: np.ndarray  # float64 (K+1,)
    both: float  # ways of a hand-over that compute does not hide
    depths: np.ndarray  # bool (L+1,) numbers of stages allowed


@leaf
def _copy(values, links, c, to):
    for x in range(FIGURES + 1):
        values[to, x] = values[c, x]
    for x in range(3):
        links[to, x] = links[c, x]


@leaf
def _insert(values, links, count, size, new, option, cut, parent, likely):
    """Add a label to a cell unless dominated, drop those it dominates; the new count.

    Also the label that dominated it, else ``likely``, which is asked first: labels of one parent
    tend to lose to the same one. The first ``size`` figures decide; shards are counted below zero.
    """
    for c in range(-1, count):
        other, x = likely if c < 0 else c, 0
        while x < size and values[other, x] <= new[x]:
            x += 1
        if x == size and other < count:
            return count, other
    kept = 0
    for c in range(count):
        x = 0
        while x < size and new[x] <= values[c, x]:
            x += 1
        if x < size:
            if kept != c:
                _copy(values, links, c, kept)
            kept += 1
    for x in range(FIGURES + 1):
        values[kept, x] = new[x]
    links[kept, 0] = option
    links[kept, 1] = cut
    links[kept, 2] = parent
    return kept + 1, likely


@leaf
def _drop_worst(values, links, count):
    """Take out the label of the highest bound, of equal ones the last; its bound."""
    worst = 0
    for c in range(1, count):
        if values[c, LOW] >= values[worst, LOW]:
            worst = c
    bound = values[worst, LOW]
    for c in range(worst, count - 1):
        _copy(values, links, c + 1, c)
    return bound


@kernel
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


@kernel
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


@kernel
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


@inlined
def _stage(option):
    """What the forms take of an option."""
    return Stage(
        option[fold.AHEAD], option[fold.BACK], option[fold.ENDS], option[fold.TURN],
        option[fold.CHASE_AHEAD], option[fold.QUEUE], option[fold.QUEUE_BACK], option[fold.WAITS],
        option[fold.REMAINS], option[fold.LATER])


@inlined
def _extend_gpipe(old, option, both, gap, n, m, fronts, new):
    """Fill ``new`` with the label of a stage in front of the ``n`` of ``old``."""
    add_gpipe_stage(old, _stage(option), both, gap, n, m, new)
    down = new[gpipe.DOWN] + (m - 1) * new[gpipe.SLOWEST_FORWARD]
    new[gpipe.TURNED] = max(new[gpipe.TURNED], down + fronts)
    new[gpipe.END] = new[gpipe.TURNED] + max(
        new[gpipe.DONE], new[gpipe.READY] + new[gpipe.EXCHANGE])


@inlined
def _extend(old, option, both, gap, n, m, half, hidden, held, fronts, new):
    """The same under 1F1B; ``hidden``, ``held`` and ``fronts`` are bounds of its cell.

    What makes no difference to any front (see docs/proofs.md) is levelled: labels merge.
    """
    add_stage(old, _stage(option), both, gap, n, m, half, new)
    rest, after = new[REST], new[AFTER]
    new[END] = max(new[END], max(new[DONE], new[READY] + new[EXCHANGE]) + fronts)
    new[BACK] = max(new[BACK], rest + fronts)
    new[DONE], new[IDLE] = max(new[DONE], rest + hidden), max(new[IDLE], after + hidden)
    new[READY], new[IDLE_READY] = max(new[READY], rest + held), max(new[IDLE_READY], after + held)


@kernel
def _way_back(links, label, layers):
    """Stages of a complete plan, first stage first; none for label 0."""
    stages = np.empty((layers, 4), np.int64)
    depth = 0
    while label:
        option, cut, parent, start, position = links[label]
        stages[depth, 0] = start
        stages[depth, 1] = cut
        stages[depth, 2] = position
        stages[depth, 3] = option
        depth += 1
        label = parent
    return stages[:depth].copy()


@leaf
def _low(as_gpipe, m, new, added, fronts, hidden, arrives, trips):
    """No plan with the label takes less; bounds are those of ``reach``."""
    if as_gpipe:
        down = new[gpipe.DOWN] + (m - 1) * new[gpipe.SLOWEST_FORWARD]
        finish = max(new[gpipe.DONE], new[gpipe.READY] + new[gpipe.EXCHANGE])
        return max(down + new[gpipe.RETURNED] + added, down + finish + fronts,
                   new[gpipe.TURNED] + new[gpipe.RETURNED] + hidden, new[END])
    return max(new[REST] + added, new[DONE] + fronts, new[READY] + new[EXCHANGE] + fronts,
               new[IDLE] + arrives, 2.0 * new[AFTER] + trips, new[BACK] + hidden, new[END])


@entry
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
    best, best_label = np.full(deepest + 1, np.inf), np.zeros(deepest + 1, np.int64)
    below, dropped = limit, np.inf
    counts = np.zeros(4, np.int64)
    half = m // 2 if m // 2 < deepest else 0
    # Labels of all depths, for the way back, the first of what is behind the last stage; cells of
    # the depth before, as ranges of them.
    values = np.empty((1024, FIGURES))
    links = np.empty((1024, 5), np.int64)  # option, cut, parent, layer, position
    for x in range(gpipe.FIGURES if p.gpipe else FIGURES):
        values[0, x] = gpipe.NOTHING[x] if p.gpipe else one_f_one_b.NOTHING[x]
    total = 1
    place = np.full((L + 1, K + 1), -1, np.int32)
    begin = end = np.zeros((2, 0), np.int64)
    begin_at, device = np.zeros(L + 2, np.int64), np.zeros(0, np.int64)
    # Cells that the depth before filled: the last stage may end anywhere.
    filled, fillings = np.zeros((64, 2), np.int64), 0
    taken_begin, taken = np.arange(K + 2), np.full(K + 1, L)
    columns, column = np.zeros(0, np.int64), np.zeros(K + 1, np.int64)
    size = gpipe.UNTIED if p.gpipe else one_f_one_b.UNTIED
    if (p.option[:, fold.LATER] > 0.0).any():
        size = gpipe.FIGURES if p.gpipe else FIGURES
    cell = np.empty((64, FIGURES + 1))
    cell_links = np.empty((64, 3), np.int64)
    new = np.zeros(FIGURES + 1)  # a label and its bound
    need = behind = reached = 0
    front = np.empty((0, BOUNDS))
    for s in range(1, deepest + 1):
        flight = m if p.gpipe else min(s, m)
        # Bounds again whenever the stages behind have doubled.
        if behind == 0 or s >= 2 * behind:
            need, behind = m if p.gpipe else min(s + 1, m), s
            front = reach(p, need, behind, below, place)
            if reached == 0:
                reached = len(front)
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
                held = front[here, bounds.READY]
                if added == np.inf or front[here, FORCED] >= below * SLACK:
                    continue
                arrives, trips = front[here, ARRIVES], -np.inf
                if m >= s + front[here, STAGES] + 1:
                    trips = front[here, TRIPS]
                if s > behind:
                    arrives -= (s - behind) * below / m
                    trips -= (s - behind) * below / m
                count = likely = 0
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
                        fill = p.hop_bytes[j] * p.hop_per_byte[stop]
                        for parent in range(source, source_end):
                            old = values[parent]
                            for o in range(lo, hi):
                                option = p.option[o]
                                if -option[fold.HELD] < flight:
                                    continue
                                counts[2] += 1
                                new[SHARE] = -1.0 / option[fold.SHARDS]
                                both = gap = 0.0
                                if s > 1:
                                    gap = fill * max(old[SHARE], new[SHARE])
                                    both = p.both * (gap + p.hop_latency[stop])
                                if p.gpipe:
                                    _extend_gpipe(old, option, both, gap, s - 1, m, fronts, new)
                                else:
                                    _extend(old, option, both, gap, s - 1, m, half, hidden, held,
                                            fronts, new)
                                low = _low(p.gpipe, m, new, added, fronts, hidden, arrives, trips)
                                if low >= below * SLACK:
                                    continue
                                new[LOW] = low
                                if count == len(cell):
                                    cell = longer(cell, 2 * count)
                                    cell_links = longer(cell_links, 2 * count)
                                count, likely = _insert(
                                    cell, cell_links, count, size, new, o, j, parent, likely)
                                if count > width:
                                    counts[3] += 1
                                    dropped = min(dropped, _drop_worst(cell, cell_links, count))
                                    count -= 1
                if count == 0:
                    continue
                if i == 0 and p.depths[s]:
                    for c in range(count):
                        if cell[c, END] < min(below, best[s]) * SLACK:
                            best[s], best_label[s] = cell[c, END], total + c
                            if not spread:
                                below = cell[c, END]
                while total + count > len(values):
                    values = longer(values, 2 * len(values))
                    links = longer(links, 2 * len(links))
                for c in range(count):
                    values[total + c] = cell[c, :FIGURES]
                    links[total + c, :3] = cell_links[c]
                    links[total + c, 3] = i
                    links[total + c, 4] = k
                begin[now, here], end[now, here] = total, total + count
                total += count
                if fillings == len(filled):
                    filled = longer(filled, 2 * fillings)
                filled[fillings, 0], filled[fillings, 1] = i, k
                fillings += 1
                counts[0] += 1
        if total == start:
            break
    counts[1] = total - 1
    stages = np.empty((0, 4), np.int64)
    for s in range(1, deepest + 1):
        if best[s] > below:
            best[s] = np.inf
        if best[s] < np.inf:
            stages = np.concatenate((stages, _way_back(links, best_label[s], L)))
    return best, stages, dropped, counts
