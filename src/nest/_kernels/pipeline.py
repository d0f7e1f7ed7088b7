"""Solve one outer choice exactly: stages, blocks and options of one super-pipeline.

Shapes: L cuts, K positions, B block sizes, P prices, G signatures, O options, as in
:class:`nest.records.problems.Problem`; D most stages, Z cells that can be reached.

Recursion, last stage first, over labels of the cell (s stages, layers i..L-1, devices k..). A label
is the figures of :mod:`nest.schedules.one_f_one_b`, or under GPipe of
:mod:`nest.schedules.gpipe`, and behind them the least that a plan with it takes.

A label is dropped when another of its cell is no worse in all of them, or when it cannot end below
the best plan known: :func:`reach` gives, per cell, the least that the stages in front still add.
Tie rule: the first found wins, loops run in ascending order. One thread solves one outer choice;
outer choices run side by side (the kernels release the GIL), so thread counts change nothing.
Work: labels x options per reachable (cell, block, cut); bounds cells x blocks x cuts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nest._kernels import entry, form, inlined, leaf
from nest._kernels.bounds import reach
from nest._kernels.labels import (
    BEFORE,
    BELOW,
    BOUNDED,
    CELL_CUT,
    CELL_NUMBER,
    CELLS,
    COUNT,
    DEEPEST,
    DEPTH,
    DROPPED,
    FILLED,
    HALF,
    KEPT,
    LAYER,
    LIKELY,
    LOW,
    POSITION,
    RANKED,
    REACHED,
    SLACK,
    TOTAL,
    TRIED,
    LabelWork,
    drop_worst,
    insert,
    wider,
    work_of,
)
from nest.records import Floats, Ints, Ints2, Row
from nest.records.problems import Problem
from nest.schedules import gpipe, one_f_one_b
from nest.schedules.one_f_one_b import (
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
from nest.schedules.stage import StageSeconds

add_stage, add_gpipe_stage = form(one_f_one_b.add_stage), form(gpipe.add_stage)

def solve(
    problem: Problem, limit: float, width: int, spread: bool,
) -> tuple[Floats, Ints2, float, Ints]:
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
    work = work_of(problem, limit)
    while not run(problem, work, width, spread):
        work = wider(work)
    work.best[work.best > work.seconds[BELOW]] = np.inf
    stages = []
    for depth in np.flatnonzero(work.best < np.inf).tolist():
        label = int(work.best_label[depth])
        while label:
            option, cut, label, start, position = work.links[label].tolist()
            stages.append((start, cut, position, option))
    found = np.array(stages, dtype=np.int64).reshape(-1, 4)
    return work.best, found, float(work.seconds[DROPPED]), work.counts


@entry
def run(problem: Problem, work: LabelWork, width: int, spread: bool) -> bool:
    """Go on until the problem is solved; False: there is no room."""
    state = work.state
    while state[DEPTH] < state[DEEPEST] or state[CELL_CUT] >= 0:
        if state[CELL_CUT] < 0:
            state[DEPTH] += 1
            _begin(problem, work)
        s = state[DEPTH]
        while state[CELL_CUT] >= 0:
            i = state[CELL_CUT]
            while state[CELL_NUMBER] < work.begin_at[i + 1]:
                if state[TOTAL] + len(work.cell) > len(work.values):
                    return False
                k = work.position[state[CELL_NUMBER]]
                here = work.place[i, k]
                if work.front[here].added < np.inf and (
                        work.front[here].forced < work.seconds[BELOW] * SLACK):
                    if not _cell(problem, work, s, i, k, width):
                        return False
                    if state[COUNT]:
                        _keep(problem, work, s, i, k, spread)
                state[CELL_NUMBER] += 1
            state[CELL_CUT] -= 1
            state[CELL_NUMBER] = work.begin_at[max(i - 1, 0)]
        if state[TOTAL] == state[BEFORE]:
            break
    work.counts[KEPT] = state[TOTAL] - 1
    return True


@leaf
def _begin(problem: Problem, work: LabelWork) -> None:
    """Begin a depth: its bounds, and where its stages may end."""
    state, s, L = work.state, work.state[DEPTH], len(problem.depths) - 1
    # Bounds again whenever the stages behind have doubled.
    if state[BOUNDED] == 0 or s >= 2 * state[BOUNDED]:
        state[BOUNDED] = s
        reached = reach(problem, work, problem.micro_batches if problem.gpipe
            else min(s + 1, problem.micro_batches), s,
                        work.seconds[BELOW], state[REACHED])
        if state[REACHED] == 0:
            state[REACHED] = reached
            _order(work)
    _ends(work, s)
    state[BEFORE], state[FILLED] = state[TOTAL], 0
    state[CELL_CUT], state[CELL_NUMBER] = L - s, work.begin_at[L - s]


@leaf
def _order(work: LabelWork) -> None:
    """Number the cells that can be reached by cut and position; none has a label."""
    total = 0
    for i in range(work.place.shape[0]):
        work.begin_at[i] = total
        for k in range(work.place.shape[1]):
            if work.place[i, k] >= 0:
                work.position[total] = k
                total += 1
    work.begin_at[work.place.shape[0]] = total
    for x in range(4):
        for here in range(total):
            work.spans[x, here] = 0


@leaf
def _ends(work: LabelWork, s: int) -> None:
    """List the cells that the depth before filled, by position."""
    K, begin = work.place.shape[1] - 1, work.taken_begin
    if s == 1:  # the last stage may end anywhere
        for k in range(K + 1):
            begin[k], work.taken[k] = k, work.place.shape[0] - 1
        begin[K + 1] = K + 1
    else:
        for k in range(K + 2):
            begin[k] = 0
        for n in range(work.state[FILLED]):
            begin[work.filled[1, n] + 1] += 1
        for k in range(K + 1):
            begin[k + 1] += begin[k]
        # From the last of each position to the first, which leaves where those of it begin.
        for n in range(work.state[FILLED]):
            k = work.filled[1, n]
            begin[k + 1] -= 1
            work.taken[begin[k + 1]] = work.filled[0, n]
        for k in range(K + 1):
            begin[k] = begin[k + 1]
        begin[K + 1] = work.state[FILLED]


@leaf
def _cell(problem: Problem, work: LabelWork, s: int, i: int, k: int, width: int) -> bool:
    """Find the labels of a cell; False: there is no room."""
    state = work.state
    state[COUNT] = state[LIKELY] = 0
    here, m, below = work.place[i, k], problem.micro_batches, work.seconds[BELOW]
    front, new, half = work.front[here], work.new, state[HALF]
    added, fronts, hidden, held = front.added, front.fronts, front.hidden, front.ready
    arrives, trips = front.arrives, -np.inf
    if m >= s + work.stages[here] + 1:
        trips = front.trips
    if s > state[BOUNDED]:
        arrives -= (s - state[BOUNDED]) * below / m
        trips -= (s - state[BOUNDED]) * below / m
    flight = m if problem.gpipe else min(s, m)
    before = 2 * ((s - 1) % 2)
    tried = ranked = 0
    for x in range(len(problem.sizes)):
        kind, stop = problem.price[x, k], k + problem.sizes[x]
        if kind < 0 or stop >= work.place.shape[1]:
            continue
        for y in range(work.taken_begin[stop], work.taken_begin[stop + 1]):
            j = work.taken[y]
            if j < problem.ends[0, kind, i]:
                continue
            if j >= problem.ends[1, kind, i]:
                break
            g = problem.signature[i, j]
            if g < 0:
                continue
            lo, hi = problem.first[kind, g], problem.first[kind, g + 1]
            source, source_end = 0, 1
            if s > 1:
                there = work.place[j, stop]
                source, source_end = work.spans[before, there], work.spans[before + 1, there]
            fill = problem.hop_bytes[j] * problem.hop_per_byte[stop]
            for parent in range(source, source_end):
                old = work.values[parent]
                for o in range(lo, hi):
                    option = problem.option[o]
                    if option.held < flight:
                        continue
                    tried += 1
                    new[SHARE] = 1.0 / option.shards
                    both = gap = 0.0
                    if s > 1:
                        gap = fill * max(old[SHARE], new[SHARE])
                        both = problem.both * (gap + problem.hop_latency[stop])
                    if problem.gpipe:
                        extend_gpipe(old, _stage(option), both, gap, s - 1, m, fronts, new)
                        low = low_gpipe(m, new, added, fronts, hidden)
                    else:
                        extend(old, _stage(option), both, gap, s - 1, m, half, hidden, held, fronts,
                               new)
                        low = low_of(new, added, fronts, hidden, arrives, trips)
                    if low >= below * SLACK:
                        continue
                    new[LOW] = low
                    if state[COUNT] == len(work.cell):
                        return False
                    insert(work, o, j, parent)
                    if state[COUNT] > width:
                        ranked += 1
                        work.seconds[DROPPED] = min(work.seconds[DROPPED], drop_worst(work))
    work.counts[TRIED] += tried
    work.counts[RANKED] += ranked
    return True


@inlined
def _stage(option: Row) -> StageSeconds:
    """What the forms take of an option."""
    return StageSeconds(
        option.forward, option.backward, option.last, option.turn, option.chase,
        option.queue_forward, option.queue_backward, option.wait, option.left, option.later)


@inlined
def extend_gpipe(
    old: Floats, stage: StageSeconds, both: float, gap: float, n: int, m: int, fronts: float,
    new: Floats,
) -> None:
    """Fill ``new`` with the label of a stage in front of the ``n`` of ``old``."""
    add_gpipe_stage(old, stage, both, gap, n, m, new)
    down = new[gpipe.DOWN] + (m - 1) * new[gpipe.SLOWEST_FORWARD]
    new[gpipe.TURNED] = max(new[gpipe.TURNED], down + fronts)
    new[gpipe.END] = new[gpipe.TURNED] + max(
        new[gpipe.DONE], new[gpipe.READY] + new[gpipe.EXCHANGE])


@inlined
def extend(
    old: Floats, stage: StageSeconds, both: float, gap: float, n: int, m: int, half: Any,
    hidden: float, held: float, fronts: float, new: Floats,
) -> None:
    """The same under 1F1B; ``hidden``, ``held`` and ``fronts`` are bounds of its cell.

    Figures are raised as far as no step below the limit changes, so that labels merge:
    docs/proofs.md, Lemma 26 (raised figures).
    """
    add_stage(old, stage, both, gap, n, m, half, new)
    rest, after = new[REST], new[AFTER]
    new[END] = max(new[END], max(new[DONE], new[READY] + new[EXCHANGE]) + fronts)
    new[BACK] = max(new[BACK], rest + fronts)
    new[DONE], new[IDLE] = max(new[DONE], rest + hidden), max(new[IDLE], after + hidden)
    new[READY], new[IDLE_READY] = max(new[READY], rest + held), max(new[IDLE_READY], after + held)


@inlined
def low_gpipe(m: int, new: Floats, added: float, fronts: float, hidden: float) -> float:
    """No plan with the label takes less; bounds are those of ``reach``."""
    down = new[gpipe.DOWN] + (m - 1) * new[gpipe.SLOWEST_FORWARD]
    finish = max(new[gpipe.DONE], new[gpipe.READY] + new[gpipe.EXCHANGE])
    return max(down + new[gpipe.RETURNED] + added, down + finish + fronts,
               new[gpipe.TURNED] + new[gpipe.RETURNED] + hidden, new[END])


@inlined
def low_of(
    new: Floats, added: float, fronts: float, hidden: float, arrives: float, trips: float,
) -> float:
    """The same under 1F1B."""
    return max(new[REST] + added, new[DONE] + fronts, new[READY] + new[EXCHANGE] + fronts,
               new[IDLE] + arrives, 2.0 * new[AFTER] + trips, new[BACK] + hidden, new[END])


@leaf
def _keep(problem: Problem, work: LabelWork, s: int, i: int, k: int, spread: bool) -> None:
    """Keep the labels of a cell, and the best whole plan among them."""
    state, total, count = work.state, work.state[TOTAL], work.state[COUNT]
    for c in range(count):
        if i == 0 and problem.depths[s]:
            end = work.cell[c, END]
            if end < min(work.seconds[BELOW], work.best[s]) * SLACK:
                work.best[s], work.best_label[s] = end, total + c
                if not spread:
                    work.seconds[BELOW] = end
        for x in range(FIGURES):
            work.values[total + c, x] = work.cell[c, x]
        for x in range(3):
            work.links[total + c, x] = work.cell_links[c, x]
        work.links[total + c, LAYER], work.links[total + c, POSITION] = i, k
    here, now = work.place[i, k], 2 * (s % 2)
    work.spans[now, here], work.spans[now + 1, here] = total, total + count
    state[TOTAL] = total + count
    work.filled[0, state[FILLED]], work.filled[1, state[FILLED]] = i, k
    state[FILLED] += 1
    work.counts[CELLS] += 1
