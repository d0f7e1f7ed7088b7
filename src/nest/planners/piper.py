"""Piper: a dynamic program over downsets, each stage with degrees of its own.

J. Tarnawski, D. Narayanan, A. Phanishayee, "Piper: Multidimensional Planner for DNN
Parallelization", NeurIPS 2021, and its authors' program (msr-fiddle/piper, algo.cpp).

Shapes: K kinds of layers, C columns (a way to split over t devices, and d data-parallel ranks),
J cuts that a stage may end at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from nest.costs.memory import limit_bytes
from nest.costs.stage import hop
from nest.errors import KernelError, NoPlanError
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import divisors
from nest.planners.flat import (
    Array,
    BodyPrices,
    Cuts,
    Ints,
    LayerSplit,
    body_prices,
    flat_network,
    full_allowed,
    legal_starts,
    most_that_fit,
    replicated,
    ways,
)
from nest.planners.prices import Baseline

TOLERANCE = 1e-12
"""Relative: smaller improvements of the time-per-sample are not searched."""


@dataclass(frozen=True)
class Piper(Baseline):
    """Stages with a data-parallel degree d, a tensor-parallel degree t and recompute of their own.

    The longest time-per-sample of a stage is minimised over all downsets, d, t and recompute, with
    at most k devices; the program's table dp[downset][k][s] has s, the sum of d of the stages
    placed, because a stage holds ceil(s / d) micro-batches. Here the program is solved for a limit
    on the time-per-sample, which is then lowered until nothing is feasible: for a limit, only the
    least s of a downset and a first device matters, since it minimises the memory of every stage
    before. The result is the same. Around it every micro-batch size is tried.

    What differs from the program, and why:

    - Blocks lie in device order and are aligned (:func:`nest.costs.network.placement.aligned`):
      others are illegal. Devices may stay unused at the end.
    - A stage splits each micro-batch over its ranks, where Piper assigns whole ones. So the
      micro-batch of the configuration is D of Piper's, with D a common multiple of all d, a device
      takes D/d of them at once, and a stage holds as many configured ones as stages are left. Hence
      s counts D for every stage, not d, and temporary bytes within a layer are D/d times as many.
      If all d are equal this is Piper's own count; otherwise its count would assume memory that no
      configuration here has. Every D is tried.
    - Gradient reduction is the all-reduce of the flat network, there 4 (d - 1)/d x parameter
      bytes / bandwidth: equal volumes for 16-bit parameters with 32-bit gradients.
    """

    name: ClassVar[str] = "piper"
    fixed: ClassVar[Mapping[str, object]] = {
        "outer_dp": 1, "cp": 1, "vpp": 1, "zero": 0, "schedule": "1f1b"}

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """Choose by the dynamic program."""
        found = self.best(chain, cluster, job, space)
        if found is None:
            raise NoPlanError(
                f"{self.name}: no stages of the space fit the memory of the devices by the "
                f"method's own count for {chain.name} on {cluster.name}")
        pipeline, _, micro_batch = found
        return _configuration(chain, job, pipeline, micro_batch, cluster.size)

    def best(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> tuple[PiperPipeline, float, int] | None:
        """The best stages by the method's own estimate, its seconds of a step, and micro_batch."""
        cuts = Cuts(chain, job, chain.downsets())
        found = ways(chain, cluster, job, space)
        best, chosen = math.inf, None
        for mbs in divisors(job.global_batch) if found else ():
            prices = body_prices(chain, cluster, job, found, [mbs] * len(found))
            batches = job.global_batch // mbs
            for common in divisors(batches):
                pairs = _columns(found, cluster, space, mbs, common)
                if not pairs:
                    continue
                at = [n for n, _ in pairs]
                stages = PiperStages(cuts, cluster, job, space, [(found[n], d) for n, d in pairs],
                                BodyPrices(*(column[:, at] for column in prices)), mbs, common)
                pipeline = Devices(stages, cluster, space, batches).best(best / batches)
                if pipeline is not None:
                    best = pipeline.time * batches
                    chosen = pipeline, best, mbs * common
        return chosen


def _columns(
    found: Sequence[LayerSplit], cluster: Cluster, space: SearchSpace, mbs: int, common: int
) -> list[tuple[int, int]]:
    """Ways by number, with the data-parallel degrees that ``common`` is a multiple of."""
    if not space.allows("micro_batch", mbs * common):
        return []
    degrees = [d for d in divisors(common)
               if space.allows("dp_in", d) and space.allows("mbs", mbs * common // d)]
    return [(n, d) for n, way in enumerate(found) for d in degrees if way.tp * d <= cluster.size]


class PiperStage(NamedTuple):
    """One stage of a pipeline."""

    cuts: tuple[int, int]
    start: int
    column: Column
    recompute: str
    recompute_layers: int | None


class PiperPipeline(NamedTuple):
    """Stages and their longest time-per-sample."""

    time: float
    stages: tuple[PiperStage, ...]


class Devices:
    """Places stages on devices.

    Shapes: N devices, S numbers of stages where the space bounds them, else 1.

    Parameters
    ----------
    batches : micro-batches of a step: s may not be more (``boundOnS`` of the program).
    """

    def __init__(
        self, stages: PiperStages, cluster: Cluster, space: SearchSpace, batches: int
    ) -> None:
        self.stages, self.cuts, self.devices = stages, stages.cuts, cluster.size
        self.most = batches
        self.counted = space.pp is not None
        deepest = min(self.cuts.last, cluster.size)
        self.depths = [n for n in range(1, deepest + 1) if space.allows("pp", n)]
        sizes = [way.tp * d for way, d in stages.columns]
        starts = {size: legal_starts(size, cluster) for size in set(sizes)}
        self.places: list[tuple[int, Ints]] = [(size, starts[size]) for size in sizes]

    def best(self, limit: float) -> PiperPipeline | None:
        """The pipeline with the least longest time-per-sample, if that is below ``limit``."""
        found, low = None, 0.0
        while self.depths:
            # Mostly bisect the range; each fourth time test whether the best is optimal.
            below = limit * (1.0 - TOLERANCE)
            better = self._within(below)
            if better is None:
                return found
            found, limit = better, better.time
            for _ in range(3):
                middle = (low + limit) / 2.0
                better = self._within(middle)
                if better is None:
                    low = middle
                else:
                    found, limit = better, better.time
        return found

    def _within(self, limit: float) -> PiperPipeline | None:
        """A pipeline all of whose stages take at most ``limit``, with the least s at each cut."""
        last = self.cuts.last
        depth = max(self.depths) if self.counted else 0
        least = np.full((depth + 1, last + 1, self.devices + 1), np.inf)
        least[0, last] = 0.0
        caps: list[Array] = [np.zeros(0)] * last
        for i in range(last - 1, -1, -1):
            caps[i] = self.stages.deepest(i, limit) * self.stages.ranks
            np.minimum(caps[i], float(self.most), out=caps[i])
            self._fill(least, i, caps[i])
        ends = [n for n in self.depths if np.isfinite(least[n, 0, 0])] if self.counted else (
            [0] if np.isfinite(least[0, 0, 0]) else [])
        return self._trace(least, caps, ends[0]) if ends else None

    def _fill(self, least: Array, i: int, caps: Array) -> None:
        """Least s of the layers after cut ``i``, by number of stages and first device."""
        after = self.cuts.after(i)
        for c, (size, starts) in enumerate(self.places):
            open_ = np.flatnonzero(caps[:, c] >= self.stages.common)
            if not (len(open_) and len(starts)):
                continue
            source = least[:, after[open_]][:, :, starts + size] + self.stages.common
            source[source > caps[open_, c][None, :, None]] = np.inf
            found = source.min(axis=1)
            if self.counted:
                found = np.concatenate([np.full((1, len(starts)), np.inf), found[:-1]])
            least[:, i, starts] = np.minimum(least[:, i, starts], found)

    def _trace(self, least: Array, caps: Sequence[Array], depth: int) -> PiperPipeline:
        """The stages of an entry of the table."""
        i, start, chosen, longest = 0, 0, [], 0.0
        while i < self.cuts.last:
            left = depth - 1 if self.counted else 0
            total = least[depth, i, start]
            c, j = self._step(least[left], caps[i], i, start, total)
            ranks = int(self.stages.ranks[c])
            time, policy, layers = self.stages.time(i, j, c, math.ceil(total / ranks))
            chosen.append(PiperStage((i, j), start, self.stages.columns[c], policy, layers))
            longest = max(longest, time)
            i, start, depth = j, start + self.places[c][0], left
        return PiperPipeline(longest, tuple(chosen))

    def _step(
        self, behind: Array, caps: Array, i: int, start: int, total: float
    ) -> tuple[int, int]:
        """Column and end of the first stage of an entry of the table."""
        after = self.cuts.after(i)
        for c, (size, starts) in enumerate(self.places):
            at = int(np.searchsorted(starts, start))
            if at == len(starts) or starts[at] != start:
                continue
            fits = (behind[after, start + size] + self.stages.common == total) & (
                total <= caps[:, c])
            if fits.any():
                return c, int(after[np.flatnonzero(fits)[0]])
        raise KernelError(f"{Piper.name}: a table entry has no predecessor")


def _configuration(
    chain: Chain, job: Job, pipeline: PiperPipeline, micro_batch: int, stride: int
) -> Configuration:
    """The pipeline on consecutive blocks, the first at device 0, with all devices to itself."""
    cuts = Cuts(chain, job, chain.downsets())
    path = [0, *(stage.cuts[1] for stage in pipeline.stages)]
    stages = []
    for span, stage in zip(cuts.spans(path), pipeline.stages, strict=True):
        way, d = stage.column
        stages.append(StageConfiguration.parse({
            "layers": span, "devices": (stage.start, stage.start + way.tp * d), "dp_in": d,
            "tp": way.tp, "sp": way.sp, "ep": way.ep, "etp": way.etp,
            "recompute": stage.recompute, "recompute_layers": stage.recompute_layers,
        }, chain.name))
    return Configuration(micro_batch=micro_batch, stages=tuple(stages), stride=stride,
                         order=cuts.order(path))


Column = tuple[LayerSplit, int]


class PiperStages:
    """Time-per-sample of stages by micro-batches in flight and recompute.

    A stage of d ranks takes every d-th micro-batch on each: its time-per-sample is
    (compute + hand-overs on both sides) / d + gradient reduction / micro-batches of the step
    (``getAllTPSsForIdealPair`` of the program). Each device holds y = s / d micro-batches, with s
    the sum of D of this stage and all behind it; a stage may run the first r of its layers
    again. The fewest that fit are chosen: what the program's knapsack gives where layers are
    alike. In a graph with branches all layers run again, or none.

    Parameters
    ----------
    columns : ways to split with data-parallel degrees; C of them.
    prices : layers under the ways of the columns; (K, C).
    mbs : samples of a micro-batch.
    common : D, see :class:`nest.planners.piper.Piper`.
    """

    def __init__(
        self, cuts: Cuts, cluster: Cluster, job: Job, space: SearchSpace,
        columns: Sequence[Column], prices: BodyPrices, mbs: int, common: int,
    ) -> None:
        self.cuts, self.space, self.prices, self.common = cuts, space, prices, common
        self.columns, self.limit = columns, limit_bytes(cluster.device, job)
        self.ranks = np.array([d for _, d in columns], dtype=np.int64)
        flat, found = flat_network(cluster), [way for way, _ in columns]
        held = replicated(cuts.chain, flat, job, found, self.ranks.tolist())
        self._resident = np.stack([c.parameters + c.gradients + c.optimizer for c in held])
        self._sync = np.stack([c.sync for c in held]) / (job.global_batch // mbs)
        self._hops = _hops(cuts, flat, job, found, mbs)
        self._none, self._full = (space.allows("recompute", p) for p in ("none", "full"))
        self._extra, self._spared, self._again = self._prefixes()
        self._cache: dict[int, tuple[Array, ...]] = {}

    def _prefixes(self) -> tuple[Array, Array, Ints]:
        """Seconds and bytes of recomputing the layers before each cut, and their number.

        Of shape (J, C) and (J,); empty if the layers are not a chain, or only all of them may run
        again.
        """
        chain, partly = self.cuts.chain, self.space.recompute_layers
        if not (chain.is_chain and self._full and (partly is None or partly.smallest < len(chain))):
            empty = np.zeros((0, len(self.columns)))
            return empty, empty, np.zeros(0, dtype=np.int64)
        order = np.array(chain.order)
        zero = np.zeros((1, len(self.columns)))
        again = np.array([kind.checkpointed for kind in chain.kinds], dtype=np.int64)[order]
        return (np.concatenate([zero, np.cumsum(self.prices.again[order], axis=0)]),
                np.concatenate([zero, np.cumsum(self.prices.spared[order], axis=0)]),
                np.concatenate([[0], np.cumsum(again)]))

    def _base(self, i: int) -> tuple[Array, ...]:
        """Of the stages that begin at cut ``i``, (J, C) each.

        Time-per-sample without recompute, the extra time with recompute of all layers, free bytes
        beside parameters and work without and with recompute, bytes of a micro-batch, and the part
        of them that full recompute saves.
        """
        if i not in self._cache:
            cuts, p = self.cuts, self.prices
            after = cuts.after(i)
            busy = cuts.sums(i, p.forward + p.backward) + self._hops[i] + self._hops[after]
            room = self.limit - cuts.sums(i, self._resident)
            share = self.common / self.ranks
            work, full_work = (share * cuts.largest(i, each) for each in (p.work, p.full_work))
            self._cache[i] = (
                busy / self.ranks + cuts.sums(i, self._sync), cuts.sums(i, p.again) / self.ranks,
                room - work, room - np.maximum(work, full_work),
                cuts.sums(i, p.kept), cuts.sums(i, p.spared))
        return self._cache[i]

    def deepest(self, i: int, limit: float) -> Array:
        """Most micro-batches y with which stages from cut ``i`` on take at most ``limit``; (J, C).

        Zero if a stage takes longer even so. Recompute is used up to the limit.
        """
        base, again, room, full_room, kept, spared = self._base(i)
        found = np.zeros(base.shape)
        if self._none:
            found = np.where(base <= limit, most_that_fit(room, kept), 0.0)
        if not self._full:
            return found
        layers = self.cuts.recomputed(i)
        allowed = full_allowed(self.space, layers)[:, None] & (base + again <= limit)
        found = np.where(allowed, np.maximum(found, most_that_fit(full_room, kept - spared)),
                         found)
        rows = self._partial(i)
        if len(rows):
            more = self._extra[rows] - self._extra[i]
            less = self._spared[rows] - self._spared[i]
            number = self._again[rows] - self._again[i]
            ends = np.searchsorted(number, layers, side="left")[:, None]
            for c in range(base.shape[1]):
                slack = (limit - base[:, c]) * self.ranks[c]
                at = np.searchsorted(more[:, c], slack, side="right")
                at = np.minimum(at, ends[:, 0]) - 1
                many = most_that_fit(full_room[:, c], kept[:, c] - less[np.maximum(at, 0), c])
                found[:, c] = np.where(at >= 0, np.maximum(found[:, c], many), found[:, c])
        return found

    def _partial(self, i: int) -> Ints:
        """Cuts after the first r layers of stages from cut ``i`` on, for each r of the space."""
        if not len(self._again):
            return np.zeros(0, dtype=np.int64)
        number = self._again[i:] - self._again[i]
        rows = i + np.flatnonzero(np.diff(number, prepend=0) > 0)
        given = self.space.recompute_layers
        keep = [given is None or int(n) in given for n in number[rows - i]]
        return np.asarray(rows[np.array(keep, dtype=bool)], dtype=np.int64)

    def time(self, i: int, j: int, column: int, in_flight: int) -> tuple[float, str, int | None]:
        """Least time-per-sample of one stage that fits, its recompute policy and layers."""
        at = int(np.searchsorted(self.cuts.after(i), j))
        base, again, room, full_room, kept, spared = (
            float(part[at, column]) for part in self._base(i))
        if self._none and in_flight * kept <= room:
            return base, "none", None
        layers = int(self.cuts.recomputed(i)[at])
        for row in self._partial(i).tolist():
            number = int(self._again[row] - self._again[i])
            less = float(self._spared[row, column] - self._spared[i, column])
            if number < layers and in_flight * (kept - less) <= full_room:
                more = float(self._extra[row, column] - self._extra[i, column])
                return base + more / int(self.ranks[column]), "full", number
        return base + again, "full", None


def _hops(cuts: Cuts, flat: Cluster, job: Job, found: Sequence[LayerSplit], mbs: int) -> Array:
    """Round trip of a micro-batch at each cut over the flat network; (J, C)."""
    per_byte, latency = 1.0 / flat.resolved_bandwidth[0], flat.levels[0].latency
    hops = np.array([
        [hop(size * mbs, way.tp if way.sp or job.stack.scatter_gather else 1, per_byte, latency,
             job.stack).both for way in found] for size in cuts.bytes.tolist()])
    hops[0] = hops[-1] = 0.0
    return hops
