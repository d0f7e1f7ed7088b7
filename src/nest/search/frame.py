"""What a search looks at, before any price: it is the same for clusters of one shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nest.search.candidates import Candidates, Outer, Rows, outers
from nest.search.floors import Floors
from nest.search.runnable import Runnable

Ints = NDArray[np.int64]
Useful = dict[int, NDArray[np.bool_]]


class Frame:
    """Outer choices, and the candidates of a stage that the job's stack can run under each.

    Parameters
    ----------
    useful : see :meth:`nest.search.candidates.Candidates.rows`; by the size of a micro-batch.
    runnable : what the stack can run; it learns of the candidates.

    Attributes
    ----------
    outers : those under which some block is legal.
    rows : their candidates.
    first : int64 (len(outers) + 1,) where those of each begin.
    """

    def __init__(
        self, candidates: Candidates, useful: Callable[[int], Useful], runnable: Runnable,
    ) -> None:
        c = candidates
        self.outers: list[Outer] = []
        rows: list[Rows] = []
        known: dict[int, Useful] = {}
        for outer in outers(c.cluster, c.job, c.space):
            if outer.micro_batch not in known:
                known[outer.micro_batch] = useful(outer.micro_batch)
            found = c.rows(outer, known[outer.micro_batch])
            if len(found.block):
                self.outers.append(outer)
                rows.append(found)
        first = np.cumsum([0, *(len(one.block) for one in rows)])
        none: Ints = np.zeros(0, dtype=np.int64)
        every = Rows(*(np.concatenate([none, *column]) for column in zip(*rows, strict=True))
                     ) if rows else Rows(*[none] * 5)
        runnable.look_at(every, c.splits, c.pairs)
        kept = np.flatnonzero(runnable.rows)
        runnable.keep(kept)
        self._runnable = runnable
        self.rows, self.first = every.take(kept), firsts(first, kept)
        self.floors = Floors(len(self.outers))

    @property
    def extent(self) -> int:
        """Grows when the frame does."""
        return self.floors.asked

    @property
    def runnable(self) -> Runnable:
        """A copy, which may leave out candidates."""
        return self._runnable.copy()

    @cached_property
    def verdicts(self) -> Ints:
        """A number for candidates that can be run alike; (C,)."""
        return self._runnable.verdicts


def firsts(first: Ints, kept: Ints) -> Ints:
    """Where the candidates of each outer choice begin once only some rows are ``kept``."""
    found: Ints = np.searchsorted(kept, first)
    return found
