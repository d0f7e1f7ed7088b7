"""Points of a grid of uniform configurations as arrays, each layer kind priced for all of them.

Shapes: R points of one number of stages, S stages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import CORE_ATTN, FULL, bodies, span_level, states
from nest.costs.configured import mask
from nest.costs.layer import layer_costs
from nest.costs.schedules import SCHEDULES
from nest.costs.stage import SUMMED, StageCosts, Sums, stage_costs, sums
from nest.even import even_sizes
from nest.graph import boundary_bytes, relay_bytes
from nest.legality import interleaved_chunks
from nest.planners.prices import hidden_share, place_of

if TYPE_CHECKING:
    from nest.planners.exhaustive import Grid

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

POLICIES = {"none": 0, "selective": CORE_ATTN, "full": FULL}
"""Recompute of the grid; Calculon's none, attn_only and full."""


class Layout(NamedTuple):
    """How one number of stages shares out the devices."""

    pp: int
    tp: int
    sp: bool
    ep: int
    etp: int
    dp_in: int
    outer_dp: int

    @property
    def block(self) -> int:
        return self.tp * self.dp_in


class Point(NamedTuple):
    """One configuration of the grid."""

    layout: Layout
    mbs: int
    zero: int
    recompute: str
    schedule: str
    vpp: int


@dataclass
class Best:
    """The fastest point that fits, and the one that lacks the fewest bytes; the first of equals."""

    seconds: float = math.inf
    point: Point | None = None
    short: float = math.inf
    nearest: Point | None = None


class Table:
    """Points of one number of stages as arrays; each layer kind priced for all of them."""

    def __init__(
        self, grid: Grid, pp: int, layouts: Sequence[Layout],
        rows: Sequence[tuple[int, int, int, str]],
    ) -> None:
        self.grid, self.pp, self.layouts, self.rows = grid, pp, layouts, rows
        number, self.mbs, self.zero = np.array([row[:3] for row in rows], dtype=np.int64).T
        self.policy = np.array([POLICIES[row[3]] for row in rows])
        self.number = number
        (self.tp, self.sp, self.ep, self.etp, self.dp_in, self.outer_dp, self.block,
         self.stride) = np.array([
             (n.tp, n.sp, n.ep, n.etp, n.dp_in, n.outer_dp, n.block,
              grid.cluster.size // n.outer_dp) for n in layouts], dtype=np.int64)[number].T
        self.micro_batches = grid.job.global_batch // (self.outer_dp * self.dp_in * self.mbs)
        self._priced: dict[tuple[int, ...], list[Sums]] = {}
        self._sizes: dict[int, list[float]] = {}

    def visit(self, schedule: str, vpp: int, best: Best) -> None:
        """Keep the best of these points under a schedule."""
        grid, pp = self.grid, self.pp
        costs, traffic = self._stages(vpp)
        legal = (self.micro_batches % pp == 0) | (schedule != "interleaved")
        if not self._all_again(vpp):
            legal &= self.policy != FULL
        grid.points += int(legal.sum())
        each, of = np.unique(self.micro_batches, return_inverse=True)
        in_flight = SCHEDULES[schedule].in_flight
        held = np.array([[in_flight(s, pp, m, vpp) / vpp for s in range(pp)]
                         for m in each.tolist()])[of]
        short = (costs.resident + held * costs.activations).max(axis=1) - grid.limit
        short = np.where(legal, short, np.inf)
        nearest = int(short.argmin())
        if short[nearest] < best.short:
            best.short, best.nearest = float(short[nearest]), self._point(nearest, schedule, vpp)
        slowest = (costs.forward + costs.backward).max(axis=1)
        bound = np.where(short <= 0.0, self.micro_batches * slowest, np.inf)
        for row in np.argsort(bound, kind="stable").tolist():
            if bound[row] >= best.seconds:
                break
            seconds = self._step_time(row, schedule, vpp, costs, traffic)
            if seconds < best.seconds:
                best.seconds, best.point = seconds, self._point(row, schedule, vpp)

    def _point(self, row: int, schedule: str, vpp: int) -> Point:
        number, mbs, zero, recompute = self.rows[row]
        return Point(self.layouts[number], mbs, zero, recompute, schedule, vpp)

    def _step_time(
        self, row: int, schedule: str, vpp: int, costs: StageCosts, traffic: Floats
    ) -> float:
        """Seconds of a step of one point."""
        grid, n = self.grid, self.layouts[self.rows[row][0]]
        m, block, job = int(self.micro_batches[row]), n.block, grid.job
        lanes = n.dp_in * (n.tp if n.sp or job.stack.scatter_gather else 1)
        hops = []
        for s, size in enumerate(self._boundaries(vpp)):
            after = 0 if s == self.pp - 1 else (s + 1) * block
            each = size * self.rows[row][1] * n.dp_in / lanes
            hops.append(grid.prices.hop(each, (s + 1) * block - 1, after, n.outer_dp,
                                        grid.cluster.size // n.outer_dp) if size else 0.0)
        lists = [column[row].tolist() for column in
                 (costs.forward, costs.backward, costs.finish)]
        step_time = SCHEDULES[schedule].step_time
        if vpp == 1:
            return float(step_time(*lists, hops[:-1], m).total)
        hidden = hidden_share(job)
        return float(step_time(*lists, hops, m, vpp, traffic[row].tolist(), hidden).total)

    # ------------------------------------------------------------ stages

    def _chunks(self, vpp: int) -> list[tuple[tuple[int, int], ...]]:
        """Layers of every chunk of every stage."""
        chain, pp = self.grid.chain, self.pp
        if vpp > 1:
            return interleaved_chunks(chain, pp, vpp)
        first, last = chain.body
        inner = accumulate(even_sizes(last - first, pp)[:-1], initial=first)
        cuts = [0, *islice(inner, 1, None), len(chain)]
        return [((a, b),) for a, b in pairwise(cuts)]

    def _all_again(self, vpp: int) -> bool:
        """Whether the space lets full recompute take all layers of every chunk."""
        chain, allowed = self.grid.chain, self.grid.space.recompute_layers
        most = max(sum(chain.kinds[kind].checkpointed for kind in chain.order[a:b])
                   for chunks in self._chunks(vpp) for a, b in chunks)
        return allowed is None or most <= allowed.largest

    def _boundaries(self, vpp: int) -> list[float]:
        """Most bytes per sample that each stage hands over at once; 0: none."""
        grid = self.grid
        if vpp not in self._sizes:
            self._sizes[vpp] = [
                max((boundary_bytes(grid.chain, grid.job, mask(range(stop)))
                     for _, stop in chunks if stop < len(grid.chain)), default=0.0)
                for chunks in self._chunks(vpp)]
        return self._sizes[vpp]

    def _stages(self, vpp: int) -> tuple[StageCosts, Floats]:
        """Figures of every stage, and its traffic at the end where nothing hides; (R, S)."""
        chain, known, found = self.grid.chain, {}, []
        for s, chunks in enumerate(self._chunks(vpp)):
            counts = Counter(kind for a, b in chunks for kind in chain.stage(range(a, b)))
            relayed = relay_bytes(chain, self.grid.job, mask(range(chunks[0][0])),
                                  mask(range(chunks[-1][1])))
            places = self._places(s)
            key = (tuple(sorted(counts.items())), relayed, places)
            if key not in known:
                priced = self._prices(places)
                summed = Sums(*(
                    reduce(np.add if f < SUMMED else np.maximum, [
                        (n if f < SUMMED else 1) * priced[kind][f]
                        for kind, n in counts.items()])
                    for f in range(len(Sums._fields))))
                held = relayed * self.mbs / np.where(self.sp > 0, self.tp, 1)
                summed = summed._replace(activations=summed.activations + held)
                known[key] = (*stage_costs(summed, vpp), summed.exposed + summed.traffic)
            found.append(known[key])
        *costs, traffic = (np.stack(column, axis=1) for column in zip(*found, strict=True))
        return StageCosts(*costs), traffic

    def _places(self, stage: int) -> tuple[int, ...]:
        """For each layout the first stage whose place costs the same as that of ``stage``."""
        grid, found = self.grid, []
        for n in self.layouts:
            stride, sizes = grid.cluster.size // n.outer_dp, grid.cluster.group_sizes
            classes = [place_of(s * n.block, n.outer_dp, stride, sizes) for s in range(stage + 1)]
            found.append(classes.index(classes[stage]))
        return tuple(found)

    def _prices(self, places: tuple[int, ...]) -> list[Sums]:
        """Every layer kind on the places given, one a layout; fields of shape (R,)."""
        if places not in self._priced:
            grid = self.grid
            sizes, stack = grid.cluster.group_sizes, grid.job.stack
            one = np.ones_like(self.tp)
            body, which = _distinct(self.number, self.mbs, self.policy)
            bodied = bodies(sizes, *(column[body] for column in (
                self.block, self.mbs, self.tp, self.sp > 0, one, one > 1, self.ep, self.etp,
                self.policy)))
            start = np.array(places, dtype=np.int64)[self.number] * self.block
            tied = np.array([span_level(n.outer_dp, grid.cluster.size // n.outer_dp, sizes)
                             for n in self.layouts], dtype=np.int64)[self.number]
            state, of = _distinct(self.number, self.zero)
            stated = states(sizes, *(column[state] for column in (
                start, self.block, self.tp, self.ep * self.etp, self.outer_dp, self.stride, tied,
                self.zero, 0 * one)))
            bodied = bodied.take(which)._replace(recompute=self.policy)
            stated = stated.take(of)._replace(zero=self.zero, shard=0 * one)
            self._priced[places] = [
                sums(layer_costs(kind, bodied, stated, grid.setting), stack)
                for kind in grid.chain.kinds]
        return self._priced[places]


def _distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Rows that differ in some column: the first of each, and the number of each row's."""
    _, first, number = np.unique(np.stack(columns, axis=1), axis=0, return_index=True,
                                 return_inverse=True)
    return first.astype(np.int64), number.reshape(-1).astype(np.int64)
