"""The grid: layouts, micro-batches, ZeRO, recompute and schedules; its points as arrays.

The points have memory, and lower bounds of the step.

Each layer kind is priced for all points. Shapes: R points of one number of stages, S stages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import accumulate, islice, pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import CORE_ATTN, FULL, Site, bodies, setting, states
from nest.costs.layer import LayerCosts, layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import fabric_of
from nest.evaluation.divisions import even_sizes
from nest.evaluation.even import even_configuration
from nest.evaluation.stages import mask
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job, Stack
from nest.inputs.space import SearchSpace
from nest.model import Chain, boundary_bytes, relay_bytes
from nest.model.legality import (
    divisors,
    expert_problem,
    interleaved_chunks,
    tensor_degrees,
    tp_problem,
)
from nest.planners.prices import PlannerPrices, Price, aligned_everywhere
from nest.schedules.orders import warm_up
from nest.schedules.registry import PLAIN, SCHEDULES

POLICIES = {"none": 0, "selective": CORE_ATTN, "full": FULL}
"""Recompute of the grid: Calculon's none, attn_only and full. Sets of other modules are not in its
grid; with all that a search tries, a grid would have up to 16 times as many points."""


class GridDivision(NamedTuple):
    """A division of the devices for one number of stages."""

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


class GridPoint(NamedTuple):
    """One configuration of the grid."""

    layout: GridDivision
    mbs: int
    zero: int
    recompute: str
    schedule: str
    vpp: int


@dataclass
class Grid:
    """The points of a grid, by number of stages."""

    chain: Chain
    cluster: Cluster
    job: Job
    space: SearchSpace
    points: int = field(default=0, init=False)
    """Points priced so far."""

    def __post_init__(self) -> None:
        self.setting = setting(self.cluster, self.job)
        self.limit = limit_bytes(self.cluster.device, self.job)
        self.prices = PlannerPrices(self.chain, self.cluster, self.job)

    def configuration(self, point: GridPoint) -> Configuration:
        """A point as a configuration of layers and devices."""
        n = point.layout
        return even_configuration(
            self.chain, self.cluster, self.job, pp=n.pp, tp=n.tp, sp=n.sp, ep=n.ep, etp=n.etp,
            dp_in=n.dp_in, outer_dp=n.outer_dp, mbs=point.mbs, zero=point.zero,
            recompute=point.recompute,  # type: ignore[arg-type]
            vpp=point.vpp, schedule=point.schedule)  # type: ignore[arg-type]

    def price(self, point: GridPoint) -> Price:
        """Price of a point, equal to that of ``evaluate``."""
        return self.prices.price(self.configuration(point))

    # ------------------------------------------------------------ what is in the grid

    def layouts(self, pp: int) -> list[GridDivision]:
        """Legal ways to divide the devices among ``pp`` stages."""
        chain, space, size = self.chain, self.space, self.cluster.size
        found = []
        for tp in tensor_degrees(chain, size):
            if size % (tp * pp) or not space.allows("tp", tp):
                continue
            dp = max(d for d in divisors(self.job.global_batch) if d <= size // (tp * pp))
            for sp, (ep, etp) in product((True, False) if tp > 1 else (False,), self._pairs(tp)):
                if (tp > 1 and not space.allows("sp", sp)
                        or tp_problem(chain, self.job, tp, sp)):
                    continue
                inner = ep * etp // math.gcd(ep * etp, tp)
                for dp_in in dict.fromkeys((dp, inner)):
                    if dp % dp_in or tp * dp_in % (ep * etp):
                        continue
                    layout = GridDivision(pp, tp, sp, ep, etp, dp_in, dp // dp_in)
                    if self._in_space(layout) and self._aligned(layout):
                        found.append(layout)
        return list(dict.fromkeys(found))

    def _pairs(self, tp: int) -> list[tuple[int, int]]:
        """Expert-parallel and expert-tensor degrees beside a tp."""
        moe = self.chain.experts
        pairs = [(1, tp)] if moe is None else [
            (ep, etp) for etp in dict.fromkeys((1, tp)) for ep in divisors(moe.experts)]
        return [(ep, etp) for ep, etp in pairs
                if self.space.allows("ep", ep) and self.space.allows("etp", etp)
                and not expert_problem(self.chain, ep, etp)]

    def _in_space(self, n: GridDivision) -> bool:
        return self.space.allows("dp_in", n.dp_in) and self.space.allows("outer_dp", n.outer_dp)

    def _aligned(self, n: GridDivision) -> bool:
        stride = self.cluster.size // n.outer_dp
        return all(aligned_everywhere(s * n.block, n.block, n.outer_dp, stride,
                                      self.cluster.group_sizes) for s in range(n.pp))

    def ways(self, pp: int) -> Iterator[tuple[str, int]]:
        """Schedules of a pipeline, and the virtual stages of each."""
        first, last = self.chain.body
        for name in self.space.schedules:
            if name not in PLAIN:
                continue
            if name != "interleaved":
                if self.space.allows("vpp", 1):
                    yield name, 1
            elif (pp > 1 and self.chain.is_chain and (last - first) % pp == 0
                    and self.space.allows("group", pp)):
                yield from ((name, vpp) for vpp in divisors((last - first) // pp)
                            if vpp > 1 and self.space.allows("vpp", vpp))

    def rows(self, layouts: Sequence[GridDivision]) -> list[tuple[int, int, int, str]]:
        """Layout, micro-batch of a device, ZeRO stage and recompute of every point."""
        space, stack = self.space, self.job.stack
        again = [name for name in POLICIES if space.allows("recompute", name)
                 and (name != "selective" or ("core_attn" in self.chain.modules
                      and space.allows("recompute_modules", "core_attn")))]
        found = []
        for number, n in enumerate(layouts):
            zeros = [z for z in range(4) if space.allows("zero", z)
                     and (z == 0 or space.allows("shard", "dp"))
                     and (n.pp == 1 or z in stack.zero_with_pipeline)]
            sizes = [mbs for mbs in divisors(self.job.global_batch // (n.dp_in * n.outer_dp))
                     if space.allows("mbs", mbs) and space.allows("micro_batch", mbs * n.dp_in)]
            found += [(number, *rest) for rest in product(sizes, zeros, again)]
        return found


# ---------------------------------------------------------------- table


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

@dataclass
class Best:
    """The fastest point that fits, and the one that lacks the fewest bytes; the first of equals."""

    seconds: float = math.inf
    point: GridPoint | None = None
    short: float = math.inf
    nearest: GridPoint | None = None


class LayerFigures(NamedTuple):
    """Of layers; arrays that add up, and two that do not; (R,)."""

    seconds: Floats
    """A micro-batch, forward and backward, without ZeRO traffic."""
    zero: Floats
    """ZeRO traffic of a micro-batch minus the compute that may hide it."""
    wait: Floats
    """Parameter all-gather of a step minus the compute that may hide it."""
    left: Floats
    """Gradient reduction of a step minus the compute that may hide it."""
    update: Floats
    resident: Floats
    """Bytes of parameters, gradients and optimizer states."""
    activations: Floats
    trailing: Floats
    """Part of ``zero`` that does not delay micro-batches if a chunk begins with the layer."""
    work: Floats
    """Largest, not summed."""
    buffers: Floats
    """Largest, not summed."""


SUMMED = len(LayerFigures._fields) - 2
"""The first so many fields of :class:`LayerFigures` add up over layers."""


def figures(c: LayerCosts, zero: Ints, stack: Stack) -> LayerFigures:
    """One layer under all points; ``zero`` is the ZeRO stage of each."""
    traffic = c.gathered + c.regathered + c.scattered
    return LayerFigures(
        seconds=(c.forward + c.tp_forward + c.ep_forward
                 + c.backward + c.recompute + c.tp_backward + c.ep_backward
                 + c.slowed_forward + c.slowed_backward),
        zero=traffic - stack.overlap_zero3 * (c.free_forward + c.free_backward),
        wait=c.gather - stack.overlap_param_gather * c.free_forward,
        left=c.sync - stack.overlap_grad_reduce * c.free_backward,
        update=c.update, resident=c.parameters + c.gradients + c.optimizer,
        activations=c.activations, trailing=np.where(zero == 2, c.scattered, 0.0),
        work=c.work, buffers=c.buffers,
    )


class ChunkStages(NamedTuple):
    """The chunks of S stages, and their sums."""

    first: list[LayerFigures]
    """Of the first chunk."""
    all: list[LayerFigures]
    trailing: list[Floats]
    """Of the first layers of all chunks."""
    kept: list[list[Floats]]
    """Bytes of a micro-batch in flight, by chunk."""


class PointTable:
    """Points of one number of stages as arrays; each layer kind priced for all of them."""

    def __init__(
        self, grid: Grid, pp: int, layouts: Sequence[GridDivision],
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
        self._priced: dict[tuple[int, ...], list[LayerFigures]] = {}

    def visit(self, schedule: str, vpp: int, best: Best) -> None:
        """Keep the best of these points under a schedule."""
        grid, pp = self.grid, self.pp
        stages = self.stages(vpp)
        legal = (self.micro_batches % pp == 0) | (schedule != "interleaved")
        if not self._all_again(vpp):
            legal &= self.policy != FULL
        grid.points += int(legal.sum())
        short = self.memory(stages, schedule, vpp).max(axis=1) - grid.limit
        short = np.where(legal, short, np.inf)
        nearest = int(short.argmin())
        if short[nearest] < best.short:
            best.short, best.nearest = float(short[nearest]), self._point(nearest, schedule, vpp)
        bound = np.where(short <= 0.0, self.bound(stages), np.inf)
        for row in np.argsort(bound, kind="stable").tolist():
            if bound[row] >= best.seconds:
                break
            point = self._point(row, schedule, vpp)
            seconds = grid.price(point).step_time
            if seconds < best.seconds:
                best.seconds, best.point = seconds, point

    def bound(self, stages: ChunkStages) -> Floats:
        """Lower bound of the seconds of each point under any schedule; (R,).

        A stage waits until the first micro-batch has passed the first chunk of all earlier stages,
        then runs all of its own passes, and the last micro-batch returns the same way. The
        parameters of the first chunk are gathered before that, and its gradients reduced after it.
        Overlap of ZeRO traffic is largest if it is one sum over all layers; the ZeRO traffic of the
        first micro-batch is not counted.
        """
        m, longest = self.micro_batches, np.zeros(len(self.rows))
        ahead = np.zeros(len(self.rows))
        for first, total, trailing in zip(stages.first, stages.all, stages.trailing, strict=True):
            pace = np.maximum(0.0, total.zero - trailing)
            longest = np.maximum(longest, ahead + m * total.seconds + (m - 1) * pace)
            ahead = ahead + first.seconds
        first = stages.first[0]
        return np.asarray(np.maximum(0.0, first.wait) + longest + np.maximum(0.0, first.left)
                          + stages.all[0].update)

    def memory(self, stages: ChunkStages, schedule: str, vpp: int) -> Floats:
        """Bytes on a device of each stage; (R, S)."""
        each, of = np.unique(self.micro_batches, return_inverse=True)
        in_flight, found = SCHEDULES[schedule].in_flight, []
        for s, (total, kept) in enumerate(zip(stages.all, stages.kept, strict=True)):
            if vpp == 1:
                many = np.array([in_flight(s, self.pp, m, 1) for m in each.tolist()])[of]
                held = many * kept[0]
            else:
                held = np.zeros(len(self.rows))
                # A few groups of micro-batches show the maximum: nest.schedules.path.
                few = np.minimum(self.micro_batches, 4 * self.pp)
                for m in np.unique(few).tolist():
                    here = few == m
                    chunks = np.stack([chunk[here] for chunk in kept])
                    held[here] = (in_flight_by_chunk(s, self.pp, m, vpp) @ chunks).max(axis=0)
            found.append(total.resident + total.work + total.buffers + held)
        return np.stack(found, axis=1)

    def _point(self, row: int, schedule: str, vpp: int) -> GridPoint:
        number, mbs, zero, recompute = self.rows[row]
        return GridPoint(self.layouts[number], mbs, zero, recompute, schedule, vpp)

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
        """Whether the space allows full recompute of all layers of every chunk."""
        chain, allowed = self.grid.chain, self.grid.space.recompute_layers
        most = max(sum(chain.kinds[kind].checkpointed for kind in chain.order[a:b])
                   for chunks in self._chunks(vpp) for a, b in chunks)
        return allowed is None or most <= allowed.largest

    def stages(self, vpp: int) -> ChunkStages:
        """Figures of every stage and of its chunks."""
        chain, found = self.grid.chain, ChunkStages([], [], [], [])
        known: dict[tuple[object, ...], LayerFigures] = {}
        for s, chunks in enumerate(self._chunks(vpp)):
            places = self._places(s)
            priced, parts = self._prices(places), []
            for a, b in chunks:
                kinds = chain.stage(range(a, b))
                key = (places, tuple(sorted(kinds)))
                if key not in known:
                    known[key] = _together(
                        [(priced[kind], n) for kind, n in Counter(kinds).items()])
                parts.append(known[key])
            relayed = relay_bytes(chain, self.grid.job, mask(range(chunks[0][0])),
                                  mask(range(chunks[-1][1])))
            held = relayed * self.mbs / np.where(self.sp > 0, self.tp, 1)
            found.first.append(parts[0])
            total = _together([(part, 1) for part in parts])
            found.all.append(total._replace(resident=total.resident + self._received(chunks)))
            found.trailing.append(reduce(np.add, [
                priced[chain.stage(range(a, b))[0]].trailing for a, b in chunks]))
            found.kept.append([part.activations + held for part in parts])
        return found

    def _received(self, chunks: Sequence[tuple[int, int]]) -> Floats:
        """Bytes of buffers for what a stage receives in a step; (R,)."""
        chain, job = self.grid.chain, self.grid.job
        size = sum(boundary_bytes(chain, job, mask(range(cut)))
                   for chunk in chunks for cut in chunk) * job.stack.receives_all
        lanes = np.where((self.sp > 0) | job.stack.scatter_gather, self.tp, 1)
        found: Floats = size * (job.global_batch // self.outer_dp) / (self.dp_in * lanes)
        return found

    def _places(self, stage: int) -> tuple[int, ...]:
        """For each layout the first stage whose place costs the same as that of ``stage``."""
        grid, found = self.grid, []
        for n in self.layouts:
            stride, fabric = grid.cluster.size // n.outer_dp, fabric_of(grid.cluster)
            classes = [fabric.place(s * n.block, n.outer_dp, stride) for s in range(stage + 1)]
            found.append(classes.index(classes[stage]))
        return tuple(found)

    def _prices(self, places: tuple[int, ...]) -> list[LayerFigures]:
        """Every layer kind on the places given, one a layout; fields of shape (R,)."""
        if places not in self._priced:
            grid = self.grid
            fabric, stack = fabric_of(grid.cluster), grid.job.stack.of_stages(self.pp)
            one = np.ones_like(self.tp)
            start = np.array(places, dtype=np.int64)[self.number] * self.block
            site = Site(start, self.block, self.outer_dp, self.stride)
            body, which = _distinct(self.number, self.mbs, self.policy)
            bodied = bodies(fabric, site.take(body), *(column[body] for column in (
                self.mbs, self.tp, self.sp > 0, one, one, one > 1, self.ep, self.etp)),
                recompute=self.policy[body])
            state, of = _distinct(self.number, self.zero)
            stated = states(fabric, site.take(state), *(column[state] for column in (
                self.tp, self.ep * self.etp, self.zero, 0 * one)))
            # Waits for longer samples are left out of the bound.
            bodied = bodied.take(which)._replace(recompute=self.policy, replicas=None)
            stated = stated.take(of)._replace(zero=self.zero, shard=0 * one)
            self._priced[places] = [
                figures(layer_costs(kind, bodied, stated, grid.setting), self.zero, stack)
                for kind in grid.chain.kinds]
        return self._priced[places]


def _together(parts: Sequence[tuple[LayerFigures, int]]) -> LayerFigures:
    """Figures of layers or chunks with multiplicities."""
    return LayerFigures(*(
        reduce(np.add if f < SUMMED else np.maximum,
               [(n if f < SUMMED else 1) * part[f] for part, n in parts])
        for f in range(len(LayerFigures._fields))))


@lru_cache(maxsize=1000)
def in_flight_by_chunk(stage: int, stages: int, micro_batches: int, vpp: int) -> Ints:
    """Micro-batches that each chunk of an interleaved stage holds, one row per moment.

    Equal moments are merged; they are those of :func:`nest.schedules.orders.held`.
    """
    passes = np.arange(micro_batches * vpp)
    warm = warm_up(stage, stages, vpp, micro_batches, stages, 2, 0)
    ahead = np.eye(vpp, dtype=np.int64)[passes // stages % vpp]
    back = np.eye(vpp, dtype=np.int64)[vpp - 1 - passes // stages % vpp]
    done = np.cumsum(back, axis=0)[:max(0, len(passes) - warm - 1)]
    held = np.cumsum(ahead, axis=0)
    held[warm + 1:] -= done
    found: Ints = np.unique(held[min(warm, len(passes) - 1):], axis=0)
    return found


def _distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Rows that differ in some column: the first of each, and the number of each row's."""
    _, first, number = np.unique(np.stack(columns, axis=1), axis=0, return_index=True,
                                 return_inverse=True)
    return first.astype(np.int64), number.reshape(-1).astype(np.int64)
