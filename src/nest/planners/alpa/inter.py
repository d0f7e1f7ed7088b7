"""Alpa's inter-operator pass: stages and their meshes by a dynamic program.

arXiv:2201.12023, section 5.2; ``dp``, ``get_submesh_choices`` and
``get_one_submesh_autosharding_config_choices`` of its authors' program
(alpa-projects/alpa, alpa/pipeline_parallel/stage_construction.py).

Shapes: P stages that may be (pairs of cuts), C ways to run one on a mesh, K cuts or kinds of
layers, N devices.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL, Site, bodies, setting, states
from nest.costs.layer import layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import fabric_of
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain, boundary_bytes
from nest.model.legality import expert_problem, tensor_degrees
from nest.planners.alpa.intra import AlpaLayerSeconds, Mesh, Pair, alone, clusters, figures, shard
from nest.planners.flat import (
    Array,
    Cuts,
    Ints,
    LayerSplit,
    body_prices,
    full_allowed,
    legal_starts,
    most_that_fit,
    sequence_split,
    two_level_network,
)


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


# ---------------------------------------------------------------- stages


class Option(NamedTuple):
    """A way to run a stage."""

    mesh: int
    """Devices."""
    way: LayerSplit
    zero: int
    alone: bool
    """Only if one stage holds the whole model: the stack has no such ZeRO stage in pipelines."""


class AlpaLayerBytes(NamedTuple):
    """Bytes of a layer under C options, (C,), stacked (K, C): what adds up, and what does not."""

    resident: Array
    activations: Array
    work: Array
    """Largest, not summed."""
    buffers: Array
    """Largest, not summed."""


class Meshes:
    """Meshes, options on them, and their prices on the two-level network.

    Parameters
    ----------
    chain, cluster, job, space : what is trained, where, how, and what may be chosen.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.view = two_level_network(cluster)
        self.starts: dict[int, Ints] = {}
        for size in submeshes(self.view):
            starts = legal_starts(size, cluster)
            if len(starts):
                self.starts[size] = starts
        node = self.view.group_sizes[0]
        self.degrees = [(tp, sp) for tp in tensor_degrees(chain, node)
                        if (sp := sequence_split(chain, job, space, tp)) is not None]

    @cached_property
    def cuts(self) -> Cuts:
        """Cuts between clusters; layers of a graph stand in the order of the model.

        Clusters are balanced by forward seconds on the fewest devices; Alpa counts FLOP, which
        measured layers lack.
        """
        chain, job = self.chain, self.job
        fewest = 1 if chain.profile is None else chain.profile.degrees[0]
        prices = body_prices(chain, self.view, job, [LayerSplit(fewest, fewest > 1, 1, fewest)],
                             [1])
        work = prices.forward[np.array(chain.order), 0]
        received = np.array([boundary_bytes(chain, job, (1 << n) - 1) for n in range(len(chain))])
        return Cuts(chain, job, [(1 << n) - 1 for n in clusters(work, received)])

    def options(self, micro_batch: int) -> list[Option]:
        """Ways to run a stage, by mesh, over which a micro-batch can be divided."""
        if not self.space.allows("micro_batch", micro_batch):
            return []
        found: list[Option] = []
        for size in self.starts:
            for tp, sp in self.degrees:
                ranks, left = divmod(size, tp)
                pairs = [] if left else self._pairs(ranks, tp)
                if (not pairs or micro_batch % ranks or not self.space.allows("dp_in", ranks)
                        or not self.space.allows("mbs", micro_batch // ranks)):
                    continue
                mesh = Mesh(ranks, tp, micro_batch // ranks)
                for replicate in (True, False):
                    chosen = shard(self.chain, self.view, self.job, mesh, pairs, replicate)
                    way = LayerSplit(tp, sp, *chosen.pair)
                    found += [Option(size, way, zero, alone)
                              for zero, alone in self._zeros(chosen.parameters)]
        return list(dict.fromkeys(found))

    def _pairs(self, ranks: int, tp: int) -> list[Pair]:
        """Ways to distribute experts over one axis of a mesh, over both, or to divide each."""
        if self.chain.experts is None:
            return [(1, tp)] if self.space.allows("ep", 1) and self.space.allows("etp", tp) else []
        listed = dict.fromkeys(((1, tp), (tp, 1), (ranks, tp), (ranks * tp, 1), (1, 1)))
        return [(ep, etp) for ep, etp in listed
                if self.space.allows("ep", ep) and self.space.allows("etp", etp)
                and not expert_problem(self.chain, ep, etp)]

    def _zeros(self, parameters: bool) -> list[tuple[int, bool]]:
        """ZeRO stages that correspond to the sharding of parameters, and where they may be used."""
        allowed = [zero for zero in ((3,) if parameters else (1, 2, 0))
                   if self.space.allows("zero", zero)
                   and (zero == 0 or self.space.allows("shard", "dp"))]
        piped = [zero for zero in allowed if zero in self.job.stack.zero_with_pipeline]
        found = [(zero, False) for zero in piped[:1]]
        return found if allowed[:1] == piped[:1] else [*found, (allowed[0], True)]

    def table(self, micro_batch: int, options: Sequence[Option], recompute: str) -> StageTable:
        """Latency and memory of every stage under every option.

        The latency is that of the stage alone (:func:`nest.planners.alpa.intra.alone`); with s
        stages from itself to the end it holds s micro-batches (section 5.2).
        """
        cuts, (each, held) = self.cuts, self._kinds(micro_batch, options, recompute)
        batches = self.job.global_batch // micro_batch
        limit = limit_bytes(self.cluster.device, self.job)
        only = np.array([option.alone for option in options])
        latencies = self._latencies(each, batches)
        rows = []
        for i in range(cuts.last):
            room = limit - (cuts.sums(i, held.resident) + cuts.largest(i, held.work)
                            + cuts.largest(i, held.buffers))
            deepest = most_that_fit(room, cuts.sums(i, held.activations))
            whole = (i == 0) & (cuts.after(i) == cuts.last)
            deepest[np.ix_(~whole, only)] = 0.0
            if recompute == "full":
                deepest[~full_allowed(self.space, cuts.recomputed(i))] = 0.0
            rows.append((np.full(len(deepest), i), cuts.after(i), latencies[i], deepest))
        first, end, seconds, deepest = (np.concatenate(part) for part in zip(*rows, strict=True))
        mesh = np.array([option.mesh for option in options], dtype=np.int64)
        return StageTable(first, end, mesh, seconds, deepest)

    def _latencies(self, each: AlpaLayerSeconds, batches: int) -> list[Array]:
        """Seconds of a micro-batch on the stages that begin at each cut, by the cut they end at."""
        stack, chain = self.job.stack, self.chain
        layers = np.array([mask.bit_count() for mask in self.cuts.masks])
        found: list[list[Array]] = [[] for _ in layers[:-1]]
        ends = set(layers.tolist())
        for n, seconds in enumerate(
                alone(each, np.array(chain.order), layers[:-1], batches, stack), start=1):
            for i, row in enumerate(seconds):
                if int(layers[i]) + n in ends:
                    found[i].append(row)
        # One stage holds both copies of a tied embedding as one.
        whole = np.array(chain.stage(range(len(chain))))
        *_, last = alone(each, whole, layers[:1], batches, stack)
        found[0][-1] = last[0]
        return [np.stack(rows) for rows in found]

    def _kinds(
        self, micro_batch: int, options: Sequence[Option], recompute: str
    ) -> tuple[AlpaLayerSeconds, AlpaLayerBytes]:
        """Each kind of layer under each option; (K, C)."""
        mesh, zero = (np.array([getattr(o, name) for o in options]) for name in ("mesh", "zero"))
        tp, sp, ep, etp = (np.array(column) for column in zip(
            *(option.way for option in options), strict=True))
        one, fabric, site = np.ones_like(mesh), fabric_of(self.view), Site.alone(mesh)
        body = bodies(fabric, site, micro_batch * tp // mesh, tp, sp, one, one, one == 0, ep,
                      etp, recompute=one * (FULL if recompute == "full" else 0))
        # Where a stage has not all layers, the pipeline spans the cluster.
        per_byte, latency = fabric.pair(0, self.view.size - 1, 1, self.view.size)
        state = states(
            fabric, site, tp, ep * etp, zero, 0 * one, self.job.reduces_maxima)._replace(
            tied_per_byte=one * per_byte, tied_latency=one * latency)
        s = setting(self.view, self.job)
        priced = [layer_costs(kind, body, state, s) for kind in self.chain.kinds]
        held = [(c.parameters + c.gradients + c.optimizer, c.activations, c.work, c.buffers)
                for c in priced]
        return (AlpaLayerSeconds(*map(np.stack, zip(*map(figures, priced), strict=True))),
                AlpaLayerBytes(*map(np.stack, zip(*held, strict=True))))


def submeshes(view: Cluster) -> list[int]:
    """Devices of the meshes that stages may have: powers of two in a node, and whole nodes.

    A node whose size is not a power of two has the powers that divide it (where Alpa stops).
    ``view`` has one or two levels.
    """
    node = view.group_sizes[0]
    powers = [1 << n for n in range(node.bit_length()) if node % (1 << n) == 0 and 1 << n < node]
    return [*powers, *(nodes * node for nodes in range(1, view.size // node + 1))]
