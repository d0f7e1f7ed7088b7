"""Partial plans, which are labels: their arrays, and which of a cell are kept.

Shapes as in :mod:`nest._kernels.pipeline`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from nest._kernels import leaf
from nest.records import (
    FRONT,
    LEAST,
    Floats,
    Floats2,
    Int32s2,
    Ints,
    Ints2,
    Ints3,
    Rows,
)
from nest.records.problems import Problem
from nest.schedules import gpipe, one_f_one_b
from nest.schedules.one_f_one_b import FIGURES

SLACK = 1.0 - 1e-12
"""A plan must beat the best by more than rounding to replace it."""
LOW = FIGURES
"""Of a label, behind its figures: the least that a plan with it takes."""
LABELS, CELL = 16384, 1024
"""Room at first: labels in all, and of a cell."""
# Where a label comes from: its option, the cut behind its stage, the label behind, its own cell.
OPTION, CUT, PARENT, LAYER, POSITION = range(5)
LINKS = 5
# How far the work is: the depth (stages of a label), the cut and the number of the cell at hand,
# its labels, the one that dominated last; labels of all depths, those before this depth, cells that
# it filled; the depth that bounds were made for, cells that can be reached; and of the problem the
# most stages, m // 2 where a stage may have as many behind it, and how many figures decide.
(DEPTH, CELL_CUT, CELL_NUMBER, COUNT, LIKELY, TOTAL, BEFORE, FILLED, BOUNDED, REACHED, DEEPEST,
 HALF, DECIDE) = range(13)
STATE = 13
# What is counted: cells filled, labels kept, transitions tried, labels dropped by rank.
CELLS, KEPT, TRIED, RANKED = range(4)
# No plan that takes as long is looked for; the least that a label dropped by rank may take.
BELOW, DROPPED = range(2)


class LabelWork(NamedTuple):
    """Arrays that ``solve`` of ``pipeline`` makes and its helpers fill."""

    state: Ints
    """(STATE,) see above."""
    counts: Ints
    """(4,)"""
    seconds: Floats
    """(2,)"""
    values: Floats2
    """(labels, FIGURES) of all depths, the first of what is behind the last stage."""
    links: Ints2
    """(labels, LINKS)"""
    cell: Floats2
    """(labels, FIGURES + 1) of the cell at hand, with their bounds."""
    cell_links: Ints2
    """(labels, 3)"""
    new: Floats
    """(FIGURES + 1,) a label and its bound."""
    place: Int32s2
    """(L+1, K+1) number of a cell, -1: it cannot be reached."""
    front: Annotated[Rows, 1, FRONT]
    """((L+1) (K+1),) see ``reach`` of ``bounds``."""
    stages: Ints
    """((L+1) (K+1),) most stages in front."""
    least: Annotated[Rows, 1, LEAST]
    """(O,) least figures of (price, signature), in the row of its first option."""
    begin_at: Ints
    """(L+2,) where the cells of each cut begin in ``position``."""
    position: Ints
    """(Z,) ascending for each cut."""
    spans: Ints2
    """(4, Z) first label and end of a cell at an even depth, and at an odd one."""
    filled: Ints2
    """(2, Z) cuts and positions of the cells that a depth filled, the highest cut first."""
    taken_begin: Ints
    """(K+2,) where those of each position begin in ``taken``."""
    taken: Ints
    """(Z,) cuts of the cells that the depth before filled, ascending for each position."""
    best: Floats
    """(D+1,) seconds of the best plan by number of stages."""
    best_label: Ints
    """(D+1,)"""


class Labels(NamedTuple):
    """Those of a search for free cuts (:mod:`nest._kernels.uniform.labels`); names as above."""

    state: Ints
    """(STATE,)"""
    values: Floats2
    """(labels, FIGURES)"""
    links: Ints2
    """(labels, 3)"""
    cell: Floats2
    """(labels, FIGURES + 1)"""
    cell_links: Ints2
    """(labels, 3)"""
    new: Floats
    """(FIGURES + 1,)"""
    spans: Ints3
    """(2, 2, N+1) first label and end of the cells of a stage, and of that behind, by cut."""
    fronts: Floats2
    """(S+1, N+1) no step is shorter whose stages in front of one end at a cut."""


def work_of(problem: Problem, limit: float) -> LabelWork:
    """Room for a problem, before the first label."""
    L, K = len(problem.depths) - 1, problem.price.shape[1] - 1
    deepest, half = int(np.flatnonzero(problem.depths).max(initial=0)), problem.micro_batches // 2
    figures, cells = gpipe if problem.gpipe else one_f_one_b, (L + 1) * (K + 1)
    work = LabelWork(
        state=np.zeros(STATE, np.int64), counts=np.zeros(4, np.int64),
        seconds=np.array([limit, np.inf]), values=np.zeros((LABELS, FIGURES)),
        links=np.empty((LABELS, LINKS), np.int64), cell=np.empty((CELL, FIGURES + 1)),
        cell_links=np.empty((CELL, 3), np.int64), new=np.zeros(FIGURES + 1),
        place=np.full((L + 1, K + 1), -1, np.int32), front=np.empty(cells, FRONT),
        stages=np.empty(cells, np.int64),
        least=np.empty(len(problem.option), LEAST), begin_at=np.empty(L + 2, np.int64),
        position=np.empty(cells, np.int64), spans=np.empty((4, cells), np.int64),
        filled=np.empty((2, cells), np.int64), taken_begin=np.empty(K + 2, np.int64),
        taken=np.empty(cells, np.int64), best=np.full(deepest + 1, np.inf),
        best_label=np.zeros(deepest + 1, np.int64))
    work.values[0, : figures.FIGURES] = figures.NOTHING
    copies = (problem.option["later"] > 0.0).any()
    work.state[[CELL_CUT, TOTAL, DEEPEST, HALF, DECIDE]] = (
        -1, 1, deepest, half if half < deepest else 0,
        figures.FIGURES if copies else figures.UNTIED)
    return work


def wider(work: LabelWork) -> LabelWork:
    """The same with room for more labels."""
    total = work.state[TOTAL]
    if total + len(work.cell) <= len(work.values):  # a cell had too little
        rows = 2 * len(work.cell)
        return work._replace(cell=np.empty((rows, FIGURES + 1)),
                          cell_links=np.empty((rows, 3), np.int64))
    rows = 2 * len(work.values) + len(work.cell)
    values, links = np.empty((rows, FIGURES)), np.empty((rows, LINKS), np.int64)
    values[:total], links[:total] = work.values[:total], work.links[:total]
    return work._replace(values=values, links=links)


@leaf
def insert(work: LabelWork | Labels, option: int, cut: int, parent: int) -> None:
    """Add the new label to a cell unless dominated, drop those it dominates.

    The label that dominated the one before is asked first: labels of one parent tend to lose to the
    same one. The first figures decide, as many as ``work.state`` says.
    """
    cell, links, new, state = work.cell, work.cell_links, work.new, work.state
    count, size = state[COUNT], state[DECIDE]
    for c in range(-1, count):
        other, x = state[LIKELY] if c < 0 else c, 0
        while x < size and cell[other, x] <= new[x]:
            x += 1
        if x == size and other < count:
            state[LIKELY] = other
            return
    kept = 0
    for c in range(count):
        x = 0
        while x < size and new[x] <= cell[c, x]:
            x += 1
        if x < size:
            if kept != c:
                for x in range(FIGURES + 1):
                    cell[kept, x] = cell[c, x]
                for x in range(3):
                    links[kept, x] = links[c, x]
            kept += 1
    for x in range(FIGURES + 1):
        cell[kept, x] = new[x]
    links[kept, OPTION], links[kept, CUT], links[kept, PARENT] = option, cut, parent
    state[COUNT] = kept + 1


@leaf
def drop_worst(work: LabelWork) -> float:
    """Take out the label of the highest bound, of equal ones the last; its bound."""
    cell, links, last = work.cell, work.cell_links, work.state[COUNT] - 1
    worst = 0
    for c in range(1, last + 1):
        if cell[c, LOW] >= cell[worst, LOW]:
            worst = c
    bound = cell[worst, LOW]
    for c in range(worst, last):
        for x in range(FIGURES + 1):
            cell[c, x] = cell[c + 1, x]
        for x in range(3):
            links[c, x] = links[c + 1, x]
    work.state[COUNT] = last
    return bound
