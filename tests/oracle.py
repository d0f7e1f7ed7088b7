"""Exhaustive twin of the planner: every legal plan is built and priced, none is left out.

It shares with the package the descriptions, the chain and the cost functions of one layer; groups,
legality, sums over stages, memory, hand-overs and the step time are written again here, plainly.
:func:`price` looks at one plan with loops. :func:`solve` lists all of them, as arrays with one
entry per (unfinished) plan: a plan grows at its front, one stage at a time, and no entry is ever
dropped because another one is better.

Array names end in what an entry stands for: ``_C`` a choice of degrees on a block under an outer
choice, ``_O`` an option (a choice and a range of layers), ``_P`` a plan that is not yet finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle_rules import (
    RECOMPUTE,
    Choice,
    Outer,
    alike_blocks,
    choices,
    expert_degrees,
    outer_choices,
    shards,
    shared_level,
    spreads,
    tp_legal,
)

from nest.costs.collectives import Group, Network
from nest.costs.compute import Machine
from nest.costs.layer import Choices, Setting, layer_costs
from nest.costs.memory import limit_bytes
from nest.describe import Cluster, Configuration, Job, SearchSpace, StageConfiguration
from nest.graph import Chain, Layer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_ENTRIES = 6_000_000


class StagePrice(NamedTuple):
    """What a step sees of one stage."""

    forward: Floats
    backward: Floats
    finish: Floats
    resident: Floats
    activations: Floats


@dataclass(frozen=True)
class Priced:
    """One plan, priced stage by stage."""

    seconds: float
    memory: tuple[float, ...]
    """Bytes of each stage with its micro-batches in flight."""
    limit: float

    @property
    def fits(self) -> bool:
        return all(m <= self.limit for m in self.memory)


@dataclass(frozen=True)
class Answer:
    """The best of all plans; ``seconds`` is None when none fits."""

    seconds: float | None
    plans: int
    configuration: Configuration | None


# ---------------------------------------------------------------- prices


class Pricer:
    """Prices of stages: layers under the choices given, summed as they are asked for."""

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, rows: Sequence[tuple[Outer, Choice]]
    ) -> None:
        self.chain, self.cluster, self.job = chain, cluster, job
        self.machine = Machine(cluster.device, job.stack, job.precision)
        self.network = Network(
            np.array(cluster.resolved_bandwidth),
            np.array([level.latency for level in cluster.levels]),
            np.array([level.in_network_reduction for level in cluster.levels]),
        )
        self.limit = limit_bytes(cluster.device, job)
        # Choices that a layer cannot tell apart are priced once: a row of the tables.
        index: dict[tuple[Any, ...], int] = {}
        self.row_C = np.array([index.setdefault(self._key(*row), len(index)) for row in rows])
        keys = list(index)
        self.layers = [{} for _ in chain.kinds] if not keys else [
            self._layer(kind, keys) for kind in chain.kinds]

    def tied_level(self, outer: Outer) -> int:
        """Highest level that a super-pipeline spans, over the replicas."""
        first = [r * outer.stride for r in range(outer.outer_dp)]
        sizes = self.cluster.group_sizes
        return max(shared_level(k, k + outer.stride - 1, sizes) for k in first)

    def _key(self, outer: Outer, c: Choice) -> tuple[Any, ...]:
        groups = spreads(self.cluster.group_sizes, outer.outer_dp, outer.stride, c.start, c.size,
                         c.tp, c.ep, c.etp)
        samples = outer.micro_batch // c.dp_in
        return (self.tied_level(outer), samples, *c[3:], *groups)

    def _layer(self, kind: Layer, keys: list[tuple[Any, ...]]) -> dict[str, Floats]:
        """Every figure of one kind of layer, an entry a row."""
        table: dict[str, Floats] = {}
        for level in sorted({key[0] for key in keys}):
            rows = np.array([n for n, key in enumerate(keys) if key[0] == level])
            columns = list(zip(*(keys[n][1:] for n in rows), strict=True))
            samples, tp, sp, ep, etp, zero, policy = (np.array(x) for x in columns[:7])
            spread_of = [Group(np.array([s[0] for s in groups]), np.array([s[1] for s in groups]))
                         for groups in columns[7:]]
            setting = Setting(self.machine, self.network, self.job, self.chain.hidden, level)
            costs = layer_costs(
                kind, Choices(samples, tp, sp, ep, etp, zero, policy, *spread_of), setting)
            for name, values in vars(costs).items():
                table.setdefault(name, np.zeros(len(keys)))[rows] = values
        return table

    def stage(self, start: int, stop: int) -> StagePrice:
        """Layers ``start..stop`` as one stage, an entry a row."""
        kinds = [self.layers[kind] for kind in self.chain.stage(start, stop)]
        stack = self.job.stack

        def total(*names: str) -> Floats:
            return np.sum([layer[name] for layer in kinds for name in names], axis=0)

        def largest(name: str) -> Floats:
            return np.max([layer[name] for layer in kinds], axis=0)

        sync = total("sync") - stack.overlap_grad_reduce * total("backward", "recompute")
        gather = total("gather") - stack.overlap_param_gather * total("forward")
        return StagePrice(
            total("forward", "tp_forward", "ep_forward", "zero_forward"),
            total("backward", "recompute", "tp_backward", "ep_backward", "zero_backward"),
            np.maximum(0.0, sync) + total("tied", "update") + np.maximum(0.0, gather),
            total("parameters", "gradients", "optimizer") + largest("work") + largest("buffers"),
            total("activations"),
        )

    def handed(self, outer: Outer, layer: int, start: int) -> tuple[float, int]:
        """Bytes handed over in front of ``layer`` and the level that a block at ``start`` needs."""
        job, sizes = self.job, self.cluster.group_sizes
        level = max(shared_level(r * outer.stride + start - 1, r * outer.stride + start, sizes)
                    for r in range(outer.outer_dp))
        measured = self.chain.kinds[self.chain.order[layer - 1]].output_bytes
        if measured is None:
            measured = job.seq_len * self.chain.hidden * (4 if job.precision == "fp32" else 2)
        return outer.micro_batch * measured, level

    def hop(self, size: Any, level: Any, lanes: Any) -> Any:
        """Seconds to hand ``size`` bytes over and as many back."""
        once = size / lanes / self.network.bandwidth[level] + self.network.latency[level]
        return 2.0 * (1.0 - self.job.stack.overlap_p2p) * once


def add_front(
    rest: Floats, after: Floats, f: Floats, b: Floats, hop: Floats, n: int, m: Ints
) -> tuple[Floats, Floats]:
    """Put a stage in front of ``n`` others; entry by entry, see ``docs/algorithm.md``."""
    t = f + b
    if n == 0:
        return m * t, t
    trip = after + hop
    time = t + hop + rest
    few = np.maximum.reduce([time, m * t, f + trip + m * b, m * f + trip + b])
    many = np.maximum(
        time, m * t + np.maximum(0.0, trip - n * f) + np.maximum(0.0, trip - n * b))
    q, r = (m - 1) // (n + 1), (m - 1) % (n + 1)
    pace = np.maximum(np.maximum(f, b), (rest - after) / np.maximum(m - 1, 1))
    many = np.maximum(many, (q + 1) * (t + trip) + r * pace)
    pair = t + hop + np.minimum(t, after / n)
    ends = np.maximum(trip + t, n * f + b + pair - t)
    ends = ends + np.maximum(trip + t, n * b + f + pair - t)
    many = np.maximum(many, ends + (m - n - 2) * pair / 2)
    return np.where(m < n + 2, few, many), t + trip


def add_finish(
    done: Floats, idle: Floats, rest: Floats, after: Floats, forward: Floats, backward: Floats,
    finish: Floats, hop: Floats, behind: int, m: Ints,
) -> tuple[Floats, Floats]:
    """Put a stage in front: seconds until all have finished, and the same for one micro-batch.

    ``rest`` and ``after`` are those of :func:`add_front` with the new stage. All that waits behind
    starts a forward pass and a one-way hand-over later; the last micro-batch leaves once the stage
    has run every forward pass and, of the backward passes, all but those in flight then.
    """
    if behind == 0:
        return rest + finish, after + finish
    leaves = m * forward + np.maximum(0, m - behind - 1) * backward + hop / 2
    through = np.maximum(rest + finish, forward + hop / 2 + done)
    return np.maximum(through, leaves + idle), np.maximum(after + finish, forward + hop / 2 + idle)



# ---------------------------------------------------------------- one plan


def price(chain: Chain, cluster: Cluster, job: Job, plan: Configuration) -> Priced:
    """Price one plan, stage by stage from the last to the first.

    Raises
    ------
    ValueError : the plan is not legal.
    """
    outer = Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    stages = [
        Choice(s.devices[0], s.devices[1] - s.devices[0], s.dp_in, s.tp, s.sp, s.ep, s.etp,
               s.zero, RECOMPUTE.index(s.recompute))
        for s in plan.stages
    ]
    check(chain, cluster, job, plan, stages)
    pricer = Pricer(chain, cluster, job, [(outer, c) for c in stages])
    samples = outer.outer_dp * outer.micro_batch
    m, depth = job.global_batch // samples, len(stages)
    many = np.array([m])
    rest = after = done = idle = np.zeros(1)
    memory: list[float] = []
    for s in range(depth - 1, -1, -1):
        row = pricer.row_C[s : s + 1]
        cost = StagePrice(*(x[row] for x in pricer.stage(*plan.stages[s].layers)))
        hop = np.zeros(1)
        if s < depth - 1:
            lanes = min(shards(stages[s]), shards(stages[s + 1]))
            handed = pricer.handed(outer, plan.stages[s].layers[1], stages[s + 1].start)
            hop += pricer.hop(*handed, lanes)
        rest, after = add_front(
            rest, after, cost.forward, cost.backward, hop, depth - 1 - s, many)
        done, idle = add_finish(done, idle, rest, after, cost.forward, cost.backward,
                                cost.finish, hop, depth - 1 - s, many)
        memory.insert(0, float((cost.resident + min(depth - s, m) * cost.activations)[0]))
    return Priced(float(done[0]), tuple(memory), pricer.limit)


def check(
    chain: Chain, cluster: Cluster, job: Job, plan: Configuration, stages: Sequence[Choice]
) -> None:
    """Refuse a plan that is not among those that :func:`solve` enumerates."""
    outer = Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    if outer not in outer_choices(cluster, job, SearchSpace()):
        raise ValueError(f"{outer} is no outer choice")
    layer = device = 0
    for s, c in zip(plan.stages, stages, strict=True):
        if s.layers[0] != layer or c.start != device:
            raise ValueError(f"stage {s} does not follow the one in front")
        layer, device = s.layers[1], s.devices[1]
        etps = SearchSpace(etp=s.etp).etp
        origins = [r * outer.stride + c.start for r in range(outer.outer_dp)]
        if c.size != c.dp_in * c.tp or outer.micro_batch % c.dp_in:
            raise ValueError(f"dp_in of stage {s}")
        if not all(alike_blocks(o, c.size, cluster.group_sizes) for o in origins):
            raise ValueError(f"block of stage {s} is not aligned")
        if not tp_legal(chain, job, c.tp, c.sp):
            raise ValueError(f"tp of stage {s}")
        if (c.ep, c.etp) not in expert_degrees(chain, c.size, c.tp, etps):
            raise ValueError(f"ep or etp of stage {s}")
        if len(stages) > 1 and c.zero not in job.stack.zero_with_pipeline:
            raise ValueError(f"zero of stage {s} with a pipeline")
    if layer != len(chain) or device > outer.stride:
        raise ValueError("layers or devices of the last stage")


# ---------------------------------------------------------------- all plans


@dataclass(frozen=True)
class Options:
    """A choice and a range of layers: all that a stage can be. Arrays, an entry an option."""

    choice: Ints
    outer: Ints
    first: Ints
    stop: Ints
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.choice)


def options(
    chain: Chain, job: Job, outers: Sequence[Outer], rows: Sequence[tuple[int, Choice]]
) -> Options:
    """Every stage of every plan; ``rows`` are choices with the number of their outer choice."""
    total = len(chain)
    outer_C = np.array([o for o, _ in rows], dtype=np.int64)
    start_C = np.array([c.start for _, c in rows], dtype=np.int64)
    end_C = start_C + np.array([c.size for _, c in rows], dtype=np.int64)
    stride_C = np.array([outers[o].stride for o, _ in rows], dtype=np.int64)
    piped_C = np.array([c.zero in job.stack.zero_with_pipeline for _, c in rows], dtype=bool)
    parts = []
    for i in range(total):
        for j in range(i + 1, total + 1):
            legal = (start_C == 0) == (i == 0)
            if j < total:
                legal = legal & (end_C < stride_C)
            if j - i < total:
                legal = legal & piped_C
            chosen = np.flatnonzero(legal)
            parts.append(np.stack([chosen, np.full_like(chosen, i), np.full_like(chosen, j)]))
    choice, first, stop = np.concatenate(parts, axis=1)
    return Options(choice, outer_C[choice], first, stop, start_C[choice], end_C[choice])


def cells(outer: Ints, layer: Ints, device: Ints) -> Ints:
    """One number for an outer choice, the layer and the device that a plan begins with."""
    return (outer * 100 + layer) * 100 + device


def listed(
    chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
) -> tuple[list[Outer], list[tuple[int, Choice]], Options]:
    """Outer choices, the choices under each, and the options that they make."""
    outers = outer_choices(cluster, job, space)
    rows = [(n, c) for n, outer in enumerate(outers)
            for c in choices(chain, cluster, job, space, outer)]
    return outers, rows, options(chain, job, outers, rows)


def entries(chain: Chain, space: SearchSpace, found: Options) -> tuple[float, float]:
    """How many plans, finished or not, :func:`solve` would list if all fitted; how many finished.
    """
    if not len(found):
        return 0.0, 0.0
    names, own = np.unique(
        cells(found.outer, found.first, found.start), return_inverse=True)
    behind = cells(found.outer, found.stop, found.end)
    place = np.minimum(np.searchsorted(names, behind), len(names) - 1)
    follows = (names[place] == behind) & (found.stop < len(chain))
    total = finished = 0.0
    ways_O = (found.stop == len(chain)).astype(np.float64)
    for depth in range(1, deepest(chain, space) + 1):
        total += float(ways_O.sum())
        if space.pp is None or depth in space.pp:
            finished += float(ways_O[found.first == 0].sum())
        ways = np.bincount(own, weights=ways_O, minlength=len(names))
        ways_O = np.where(follows, ways[place], 0.0)
    return total, finished


def deepest(chain: Chain, space: SearchSpace) -> int:
    """Most stages that a plan can have."""
    return len(chain) if space.pp is None else min(len(chain), space.pp.largest)


@dataclass(frozen=True)
class Partial:
    """Unfinished plans with equally many stages. Arrays, an entry a plan."""

    option: Ints
    parent: Ints
    """Entry of the plan behind, among those with one stage less; -1: none."""
    rest: Floats
    after: Floats
    done: Floats
    idle: Floats


def solve(chain: Chain, cluster: Cluster, job: Job, space: SearchSpace | None = None) -> Answer:
    """The best of all legal plans that fit.

    Ties go to the plan with fewer stages, then to the one listed first.
    """
    space = space or SearchSpace()
    outers, rows, found = listed(chain, cluster, job, space)
    if not len(found):
        return Answer(None, 0, None)
    if entries(chain, space, found)[0] > MOST_ENTRIES:
        raise MemoryError("too many plans to list")
    pricer = Pricer(chain, cluster, job, [(outers[o], c) for o, c in rows])
    table = Table(pricer, outers, rows, found)
    levels: list[Partial] = []
    plans, best, where = 0, np.inf, (0, 0)
    for depth in range(1, deepest(chain, space) + 1):
        levels.append(table.grow(levels[-1] if levels else None, depth))
        at = levels[-1].option
        done = np.flatnonzero(found.first[at] == 0)
        if not len(at):
            break
        if not len(done) or (space.pp is not None and depth not in space.pp):
            continue
        plans += len(done)
        seconds = levels[-1].done[done]
        if seconds.min() < best:
            best, where = float(seconds.min()), (depth, int(done[seconds.argmin()]))
    if not plans:
        return Answer(None, 0, None)
    return Answer(best, plans, table.configuration(levels, *where))


class Table:
    """Prices of all options, and how plans grow by them."""

    def __init__(
        self, pricer: Pricer, outers: Sequence[Outer], rows: Sequence[tuple[int, Choice]],
        found: Options,
    ) -> None:
        self.pricer, self.outers, self.rows, self.found = pricer, outers, rows, found
        total, row_O = len(pricer.chain), pricer.row_C[found.choice]
        self.price = StagePrice(*np.zeros((5, len(found))))
        for i in range(total):
            for j in range(i + 1, total + 1):
                here = np.flatnonzero((found.first == i) & (found.stop == j))
                for all_O, figure in zip(self.price, pricer.stage(i, j), strict=True):
                    all_O[here] = figure[row_O[here]]
        self.shards = np.array([shards(c) for _, c in rows])[found.choice]
        batch = pricer.job.global_batch
        self.m = np.array([batch // (o.outer_dp * o.micro_batch) for o in outers])[found.outer]
        self.size, self.level = self._handed(total)

    def _handed(self, total: int) -> tuple[Floats, Ints]:
        found = self.found
        size, level = np.zeros(len(found)), np.zeros(len(found), dtype=np.int64)
        inner = np.flatnonzero(found.stop < total)
        places = np.stack([found.outer, found.stop, found.end])[:, inner]
        unique, back = np.unique(places, axis=1, return_inverse=True)
        handed = [self.pricer.handed(self.outers[o], j, k) for o, j, k in unique.T]
        if handed:
            size[inner] = np.array([h[0] for h in handed], dtype=np.float64)[back.ravel()]
            level[inner] = np.array([h[1] for h in handed])[back.ravel()]
        return size, level

    def grow(self, behind: Partial | None, depth: int) -> Partial:
        """All plans of ``depth`` stages: those behind with each option that fits in front."""
        found, p = self.found, self.price
        held = p.resident + np.minimum(depth, self.m) * p.activations
        fits = held <= self.pricer.limit
        if behind is None:
            option = np.flatnonzero(fits & (found.stop == len(self.pricer.chain)))
            parent = np.full(len(option), -1)
            zeros = np.zeros(len(option))
            rest, after, hop, done, idle = zeros, zeros, zeros, zeros, zeros
        else:
            option, parent = self._joined(behind, np.flatnonzero(fits))
            rest, after = behind.rest[parent], behind.after[parent]
            lanes = np.minimum(self.shards[option], self.shards[behind.option[parent]])
            hop = self.pricer.hop(self.size[option], self.level[option], lanes)
            done, idle = behind.done[parent], behind.idle[parent]
        rest, after = add_front(rest, after, p.forward[option], p.backward[option], hop,
                                depth - 1, self.m[option])
        done, idle = add_finish(done, idle, rest, after, p.forward[option], p.backward[option],
                                p.finish[option], hop, depth - 1, self.m[option])
        return Partial(option, parent, rest, after, done, idle)

    def _joined(self, behind: Partial, fitting: Ints) -> tuple[Ints, Ints]:
        """Pairs of an option and a plan that begins where the option ends."""
        found = self.found
        last = behind.option
        names = cells(found.outer[last], found.first[last], found.start[last])
        order = np.argsort(names, kind="stable")
        wanted = cells(found.outer, found.stop, found.end)[fitting]
        low = np.searchsorted(names[order], wanted, "left")
        count = np.searchsorted(names[order], wanted, "right") - low
        option = np.repeat(fitting, count)
        begin = np.repeat(low - (np.cumsum(count) - count), count)
        return option, order[begin + np.arange(len(option))]

    def configuration(self, levels: Sequence[Partial], depth: int, entry: int) -> Configuration:
        """The plan that ``entry`` of the given depth stands for."""
        stages, outer = [], self.outers[0]
        for level in reversed(levels[:depth]):
            option = int(level.option[entry])
            number, c = self.rows[self.found.choice[option]]
            outer = self.outers[number]
            stages.append(StageConfiguration(
                layers=(int(self.found.first[option]), int(self.found.stop[option])),
                devices=(c.start, c.start + c.size), dp_in=c.dp_in, tp=c.tp, sp=c.sp,
                ep=c.ep, etp=c.etp, zero=c.zero, recompute=RECOMPUTE[c.recompute]))
            entry = int(level.parent[entry])
        return Configuration(outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                             stages=tuple(stages), stride=outer.stride)
