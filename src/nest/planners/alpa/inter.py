"""Alpa's inter-operator pass: stages and their meshes by a dynamic program.

arXiv:2201.12023, section 5.2, and ``dp`` of its authors' program
(alpa-projects/alpa, alpa/pipeline_parallel/stage_construction.py).

Shapes: P stages that may be (pairs of cuts), C ways to run one on a mesh, K cuts, N devices.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.planners.flat import Array, Ints


class StageTable(NamedTuple):
    """All stages on all meshes."""

    first: Ints
    """Cut at which each stage begins, ascending; (P,)."""
    end: Ints
    """Cut at which it ends; (P,)."""
    mesh: Ints
    """Devices of the mesh of each way; (C,)."""
    seconds: Array
    """Latency of a micro-batch, forward and backward; (P, C)."""
    deepest: Array
    """Most stages from this one to the end, itself included, for which memory suffices; (P, C)."""


class AlpaStage(NamedTuple):
    """One stage of a pipeline."""

    cuts: tuple[int, int]
    start: int
    way: int


class AlpaPipeline(NamedTuple):
    """The pass's own estimate of a step, and its stages."""

    seconds: float
    stages: tuple[AlpaStage, ...]


class _Filled(NamedTuple):
    """F(s, k, d) for one limit on the latency of a stage."""

    total: float
    depth: int
    tables: list[Array]


class Inter:
    """Minimises sum(t) + (B - 1) max(t) over stages and meshes that cover all devices.

    For a limit t_max on the latency of a stage, F(s, k, d; t_max) is the least sum of latencies of
    s stages that hold all layers after cut k on exactly d devices; a way to run a stage counts if
    the memory holds s micro-batches. A limit is skipped if F of a larger limit, which is a lower
    bound, rules it out; the program tries all, ascending.

    Parameters
    ----------
    table : stages and ways; ``cuts`` is the number of the last cut, ``devices`` N.
    starts : by devices of a mesh, where one may start: N - d of a state is the first device of a
        stage, so only aligned meshes are taken.
    micro_batches : B.
    depths : allowed numbers of stages; None: all.
    tolerance : the result may exceed the optimum by this share. 0: it is optimal.
    """

    def __init__(
        self, table: StageTable, cuts: int, devices: int, starts: dict[int, Ints],
        micro_batches: int,
        depths: Sequence[int] | None = None, tolerance: float = 0.0,
    ) -> None:
        self.table, self.cuts, self.devices, self.starts = table, cuts, devices, starts
        self.batches, self.tolerance = micro_batches, tolerance
        self.depths = set(range(1, cuts + 1) if depths is None else depths)
        self.least = np.where(table.deepest >= 1, table.seconds, np.inf)
        self.meshes = [(size, np.flatnonzero(table.mesh == size)) for size in sorted(starts)]
        # Of the ways on a mesh, the fastest at any depth.
        self.fastest = {size: self.least[:, ways].min(axis=1) if len(ways) else
                        np.full(len(table.first), np.inf) for size, ways in self.meshes}

    def best(self, limit: float = math.inf) -> AlpaPipeline | None:
        """The pipeline with the least latency, if it takes less than ``limit`` seconds a step."""
        values = np.unique(self.least[np.isfinite(self.least)])
        low, found = self._shortest_limit(values), None
        if low == len(values):
            return None
        left: list[tuple[float, int, int, float]] = []

        def look(position: int) -> float:
            """F for a limit; a better result than the best so far is kept."""
            nonlocal limit, found
            filled = self._fill(float(values[position]))
            if filled is None:
                return math.inf
            pipeline = self._trace(filled, float(values[position]))
            if pipeline.seconds < limit:
                limit, found = pipeline.seconds, pipeline
            return filled.total

        def push(first: int, last: int, total: float) -> None:
            """Store the limits between two positions, whose F is at least ``total``."""
            bound = total + (self.batches - 1) * float(values[min(first, last)])
            if first <= last and bound < limit * (1.0 - self.tolerance):
                heapq.heappush(left, (bound, first, last, total))

        if (self.batches - 1) * values[low] >= limit:
            return None
        total = look(len(values) - 1)
        push(low, len(values) - 2, total)
        while left:
            bound, first, last, total = heapq.heappop(left)
            if bound >= limit * (1.0 - self.tolerance):
                break
            # Limits too long for any F to compensate are left out at once.
            if self.batches > 1:
                most = (limit - total) / (self.batches - 1)
                last = min(last, int(np.searchsorted(values, most, side="left")))
            middle = (first + last) // 2
            inside = look(middle)
            push(first, middle - 1, inside)
            push(middle + 1, last, total)
        return found

    def _shortest_limit(self, values: Array) -> int:
        """Position of the shortest limit with enough devices, without memory by depth."""
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            if self._needed(float(values[middle]))[0][0] <= self.devices:
                high = middle
            else:
                low = middle + 1
        return low

    def _needed(self, limit: float) -> tuple[Array, Array]:
        """Fewest devices for all layers after each cut, and before it; (K,)."""
        need = np.full(len(self.table.first), np.inf)
        for size, _ in reversed(self.meshes):
            need[self.fastest[size] <= limit] = size
        dense = np.full((self.cuts + 1, self.cuts + 1), np.inf)
        dense[self.table.first, self.table.end] = need
        behind, front = (np.full(self.cuts + 1, np.inf) for _ in range(2))
        behind[-1] = front[0] = 0.0
        for cut in range(self.cuts - 1, -1, -1):
            behind[cut] = (dense[cut] + behind).min()
        for cut in range(1, self.cuts + 1):
            front[cut] = (dense[:, cut] + front).min()
        return behind, front

    def _choices(self, limit: float) -> list[tuple[int, Ints, Ints, Array, Array]]:
        """By mesh: its size, ways, and stages on it that leave enough devices for the rest."""
        behind, front = self._needed(limit)
        first, end = self.table.first, self.table.end
        found = []
        for size, ways in self.meshes:
            fits = (self.fastest[size] <= limit) & (
                front[first] + size + behind[end] <= self.devices)
            rows = np.flatnonzero(fits)
            if len(rows) and len(self.starts[size]):
                seconds = self.least[np.ix_(rows, ways)]
                seconds = np.where(seconds <= limit, seconds, np.inf)
                found.append((size, ways, rows, seconds, self.table.deepest[np.ix_(rows, ways)]))
        return found

    def _fill(self, limit: float) -> _Filled | None:
        """F for a limit, with its least total over all numbers of stages."""
        choices = self._choices(limit)
        tables = [np.full((self.cuts + 1, self.devices + 1), np.inf)]
        tables[0][-1, -1] = 0.0
        best, depth = math.inf, 0
        for s in range(1, max(self.depths, default=0) + 1):
            after, now = tables[-1], np.full_like(tables[0], np.inf)
            for size, _, rows, seconds, deepest in choices:
                self._extend(after, now, size, rows, np.where(deepest >= s, seconds, np.inf))
            if not np.isfinite(now).any():
                break
            tables.append(now)
            if s in self.depths and now[0, 0] < best:
                best, depth = float(now[0, 0]), s
        return _Filled(best, depth, tables) if depth else None

    def _extend(self, after: Array, now: Array, size: int, rows: Ints, seconds: Array) -> None:
        """Place stages on meshes of one size before those of ``after``."""
        cost = seconds.min(axis=1)
        live = np.isfinite(cost)
        rows, cost = rows[live], cost[live]
        starts = self.starts[size]
        ends = self.table.end[rows]
        if len(rows):
            reached = np.isfinite(after[np.unique(ends)][:, starts + size]).any(axis=0)
            starts = starts[reached]
        if not (len(rows) and len(starts)):
            return
        total = after[ends[:, None], (starts + size)[None, :]] + cost[:, None]
        first = self.table.first[rows]
        groups = np.flatnonzero(np.diff(first, prepend=-1))
        least = np.minimum.reduceat(total, groups, axis=0)
        place = np.ix_(first[groups], starts)
        now[place] = np.minimum(now[place], least)

    def _trace(self, filled: _Filled, limit: float) -> AlpaPipeline:
        """The stages with the least total."""
        cut, start, stages, longest = 0, 0, [], 0.0
        choices = self._choices(limit)
        for s in range(filled.depth, 0, -1):
            wanted, after = filled.tables[s][cut, start], filled.tables[s - 1]
            for size, ways, rows, seconds, deepest in choices:
                here: NDArray[np.bool_] = self.table.first[rows] == cut
                if start not in self.starts[size] or not here.any():
                    continue
                cost = np.where(deepest >= s, seconds, np.inf)[here]
                total = after[self.table.end[rows[here]], start + size][:, None] + cost
                hit = np.argwhere(total == wanted)
                if len(hit):
                    row, way = hit[0]
                    end = int(self.table.end[rows[here][row]])
                    stages.append(AlpaStage((cut, end), start, int(ways[way])))
                    longest = max(longest, float(cost[row, way]))
                    cut, start = end, start + size
                    break
        return AlpaPipeline(filled.total + (self.batches - 1) * longest, tuple(stages))
