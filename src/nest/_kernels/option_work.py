"""The arrays of a search for options of stages; shapes as in :mod:`nest._kernels.options`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from nest._kernels.spans import PART, Wanted
from nest.records import (
    CHANGE,
    FIGURES,
    LAYER,
    OPTION,
    TOTAL,
    Floats,
    Int32s2,
    Ints,
    Ints2,
    Rows,
)
from nest.records.tables import Tables

OPTIONS, EACH = 65536, 16
"""Room at first: options in all, and of a signature under one price."""


class OptionWork(NamedTuple):
    """Arrays that ``select`` of ``options`` makes and its helpers fill."""

    wanted: Wanted
    first: Ints2
    """(P, G+1), see ``select``."""
    options: Annotated[Rows, 1, OPTION]
    """(O,)"""
    place: Int32s2
    """(P, G) place of a stage that is wanted in ``kept`` and ``tally``."""
    kept: Annotated[Rows, 2, OPTION]
    """(places, EACH) options of the price at hand."""
    sequence: Ints
    """(EACH,) options of a signature, by ascending t."""
    tally: Ints
    """(places,) how many there are."""
    base: Floats
    """(G,) least seconds of a step."""
    totals: Annotated[Rows, 1, TOTAL]
    """(G+1,) sums of layers without recompute; the last row is that of no layer."""
    stack: Ints
    """(G,)"""
    order: Ints
    """(G,) signatures as they are reached."""
    short: Ints
    """(G,) those that hold fewer micro-batches than they might."""
    held: Ints
    """(G,) micro-batches without recompute."""
    layers: Annotated[Rows, 2, LAYER]
    """(R, T)"""
    changes: Annotated[Rows, 2, CHANGE]
    """(R, T) see ``policy_changes``."""
    kinds: Ints
    """(layers,)"""
    again: Ints
    """(layers,)"""
    best_back: Floats
    """(T,) least of all policies."""
    best_held: Floats
    """(T,)"""
    chunk: Annotated[Rows, 1, FIGURES]
    """(1,)"""
    new: Annotated[Rows, 1, OPTION]
    """(1,) the option at hand."""


def work_of(tables: Tables, wanted: Wanted, options: int = OPTIONS, each: int = EACH) -> OptionWork:
    """Room for so many options in all and of a signature."""
    G, T, R, longest = len(tables.part), tables.ahead.shape[1], tables.back.shape[1], int(
        tables.depth.max())
    place = np.cumsum(wanted.most > PART, axis=1, dtype=np.int32) - 1
    places = int(place[:, -1].max()) + 1
    return OptionWork(
        wanted=wanted, first=np.zeros((int(tables.price[-1]) + 1, G + 1), np.int64),
        options=np.empty(options, OPTION), place=place, kept=np.empty((places, each), OPTION),
        sequence=np.empty(each, np.int64), tally=np.zeros(places, np.int64), base=np.empty(G),
        totals=np.zeros(G + 1, TOTAL),
        stack=np.empty(G, np.int64), order=np.empty(G, np.int64), short=np.empty(G, np.int64),
        held=np.zeros(G, np.int64), layers=np.empty((R, T), LAYER),
        changes=np.zeros((R, T), CHANGE),
        kinds=np.empty(longest, np.int64), again=np.empty(longest, np.int64),
        best_back=np.zeros(T), best_held=np.zeros(T), chunk=np.zeros(1, FIGURES),
        new=np.zeros(1, OPTION))


def wider(work: OptionWork) -> OptionWork:
    """The same with more room where there is none left."""
    places, each = work.kept.shape
    if work.tally.max() < each:
        return work._replace(options=np.concatenate((work.options, np.empty_like(work.options))))
    more = (4 if each < 256 else 2) * each
    kept = np.empty((places, more), OPTION)
    for n, count in enumerate(work.tally.tolist()):  # memory that is never touched takes none
        kept[n, :count] = work.kept[n, :count]
    return work._replace(kept=kept, sequence=np.empty(more, np.int64))


# The helpers below index whole arrays: a slice or an iterator in an inner loop costs more than its
# work. They are called, not inlined: in one large function too few figures stay in registers.
