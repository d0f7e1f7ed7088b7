"""Phaze: a dynamic program over layers with one tensor width, on a flat network.

I. Wang, J. Tarnawski, A. Phanishayee, D. Mahajan, "Integrated Hardware Architecture and Device
Placement Search", ICML 2024, arXiv:2407.13143; the part that places layers on given devices, as
its authors' program has it (msr-fiddle/phaze, Solver/device_placement/device_placement.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.memory import limit_bytes
from nest.costs.network.placement import aligned, replicas_alike, strides
from nest.costs.stage import hop as hand_over
from nest.errors import NoPlanError
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
    LayerSplit,
    body_prices,
    flat_network,
    full_allowed,
    most_that_fit,
    policies,
    replicated,
    ways,
)
from nest.planners.prices import Baseline


@dataclass(frozen=True)
class Phaze(Baseline):
    """One tensor width t, stages of t devices each, d replicas of the pipeline.

    dp[s][cut], the least longest load of s stages that hold the layers after a cut, is filled from
    the last stage on; a stage is left out if its memory does not hold s micro-batches. A step takes
    (micro-batches of a replica + s - 1) x the longest load, and the gradient reduction of the first
    stage (``runDP`` of the program). Every t, d and s is tried, and around it every micro-batch
    size, and recompute off and on.

    What differs from the program, and why:

    - d divides the micro-batches, and replicas start at aligned devices: other plans are illegal.
    - Every stage takes t devices: embeddings and heads are tensor-parallel too.
    - Seconds and bytes are those of :mod:`nest.costs`: the gradient reduction is the all-reduce of
      the flat network, there 4 (d - 1)/d x parameter bytes / bandwidth.
    - Recompute keeps the input of every layer; there it keeps only the input of the stage, which no
      configuration can express. The last stage recomputes only where it does not fit otherwise;
      there it never does.
    """

    name: ClassVar[str] = "phaze"
    fixed: ClassVar[Mapping[str, object]] = {
        "dp_in": 1, "cp": 1, "vpp": 1, "zero": 0, "schedule": "1f1b"}

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """Choose by the dynamic program."""
        choice = PhazePipelines(chain, cluster, job, space).best()
        if choice is None:
            raise NoPlanError(
                f"{self.name}: no width, depth and micro-batch of the space fits the memory of "
                f"the devices by the method's own count for {chain.name} on {cluster.name}")
        return choice.configuration()


class PhazeChoice(NamedTuple):
    """A pipeline and the method's own estimate."""

    seconds: float
    """Of a step."""
    way: LayerSplit
    mbs: int
    replicas: int
    stride: int
    cuts: Cuts
    path: tuple[int, ...]
    """Cuts between the stages, from none to all layers."""
    recompute: tuple[str, ...]
    """Policy of each stage."""

    def configuration(self) -> Configuration:
        """The pipeline with stages on blocks of t devices, the first at device 0."""
        way = self.way
        stages = tuple(
            StageConfiguration.parse({
                "layers": span, "devices": (way.tp * n, way.tp * (n + 1)), "tp": way.tp,
                "sp": way.sp, "ep": way.ep, "etp": way.etp, "recompute": policy,
            }, self.cuts.chain.name)
            for n, (span, policy) in enumerate(
                zip(self.cuts.spans(self.path), self.recompute, strict=True)))
        return Configuration(
            outer_dp=self.replicas, micro_batch=self.mbs, stages=stages, stride=self.stride,
            order=self.cuts.order(self.path))


class Loads(NamedTuple):
    """Every stage between two of J cuts; arrays of shape (J, J), infinite where there is none."""

    last: Array
    """Seconds of a micro-batch on it as the last stage; infinite where it does not fit."""
    other: Array
    """Seconds of a micro-batch on it before other stages."""
    deepest: Array
    """Most stages from this one to the end, itself included, for which memory suffices."""
    keeps: NDArray[np.bool_]
    """As the last stage it needs no recompute."""

    def of(self, s: int) -> Array:
        """Loads of stages followed by s - 1 others."""
        return self.last if s == 1 else np.where(self.deepest >= s, self.other, np.inf)


class PhazePipelines:
    """All pipelines of a space.

    Parameters
    ----------
    chain, cluster, job, space : what is trained, where, how, and what may be chosen.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.cuts = Cuts(chain, job, chain.downsets())
        self.ways = ways(chain, cluster, job, space)
        self.flat = flat_network(cluster)

    def best(self) -> PhazeChoice | None:
        """The fastest by the method's own estimate; None: nothing fits."""
        found = None
        for mbs in divisors(self.job.global_batch):
            if not (self.ways and self.space.allows("mbs", mbs)
                    and self.space.allows("micro_batch", mbs)):
                continue
            prices = body_prices(self.chain, self.cluster, self.job, self.ways,
                                 [mbs] * len(self.ways))
            for number in range(len(self.ways)):
                one = BodyPrices(*(column[:, number:number + 1] for column in prices))
                for policy in policies(self.space):
                    limit = found.seconds if found else math.inf
                    found = self._fastest(number, mbs, one, policy, limit) or found
        return found

    def loads(self, number: int, mbs: int, prices: BodyPrices, recompute: str) -> Loads:
        """Load and memory of every stage (``getLoadOfStageForA`` of the program).

        Activations come in before the forward and gradients before the backward; a recomputed
        forward overlaps the transfer of gradients. ``prices`` has the column of the way alone.
        """
        cuts, hop = self.cuts, self._transfers(self.ways[number], mbs)
        size, full = cuts.last + 1, recompute == "full"
        table = Loads(np.full((size, size), np.inf), np.full((size, size), np.inf),
                      np.zeros((size, size)), np.zeros((size, size), dtype=bool))
        limit = limit_bytes(self.cluster.device, self.job)
        for i in range(cuts.last):
            j = cuts.after(i)
            total = BodyPrices(*(cuts.sums(i, column)[:, 0] for column in prices[:5]),
                               *(cuts.largest(i, column)[:, 0] for column in prices[5:]))
            room = limit - cuts.sums(i, self._resident[:, number:number + 1])[:, 0]
            plain = hop[i] + total.forward + hop[j] + total.backward
            fits, load = most_that_fit(room - total.work, total.kept), plain
            keeps = (fits >= 1) & self.space.allows("recompute", "none")
            if full:
                load = hop[i] + total.forward + np.maximum(total.again, hop[j]) + total.backward
                fits = most_that_fit(room - total.full_work, total.kept - total.spared)
                fits = fits * full_allowed(self.space, cuts.recomputed(i))
            table.last[i, j] = np.where(keeps, plain, np.where(fits >= 1, load, np.inf))
            table.other[i, j] = load
            table.deepest[i, j] = fits
            table.keeps[i, j] = keeps
        return table

    def _transfers(self, way: LayerSplit, mbs: int) -> Array:
        """Seconds of handing a micro-batch over at each cut, one way, over the flat network."""
        lanes = way.tp if way.sp or self.job.stack.scatter_gather else 1
        per_byte = 1.0 / self.flat.resolved_bandwidth[0]
        hop = [hand_over(size * mbs, lanes, per_byte, self.flat.levels[0].latency,
                         self.job.stack).both / 2.0 for size in self.cuts.bytes.tolist()]
        hop[0] = hop[-1] = 0.0
        return np.array(hop)

    @cached_property
    def _resident(self) -> Array:
        """Bytes of parameters, gradients and optimizer states, (K, C) by kind and way."""
        held = replicated(self.chain, self.flat, self.job, self.ways, [1] * len(self.ways))
        return np.stack([c.parameters + c.gradients + c.optimizer for c in held])

    @cached_property
    def _replicas(self) -> list[tuple[int, Array]]:
        """Degrees of data parallelism, each with its gradient reduction; (K, C)."""
        found = []
        for d in divisors(self.job.global_batch):
            fitting = [way for way in self.ways if way.tp * d <= self.cluster.size]
            if fitting and self.space.allows("outer_dp", d):
                costs = replicated(self.chain, self.flat, self.job, fitting, [d] * len(fitting))
                found.append((d, np.stack([c.sync for c in costs])))
        return found

    def _fastest(
        self, number: int, mbs: int, prices: BodyPrices, recompute: str, limit: float
    ) -> PhazeChoice | None:
        """The fastest replicas, depth and cuts, if a step takes less than ``limit``."""
        cuts, way, found = self.cuts, self.ways[number], None
        table = self.loads(number, mbs, prices, recompute)
        dp = depths(table, min(cuts.last, self.cluster.size // way.tp))
        for d, sync in self._replicas:
            batches, left = divmod(self.job.global_batch, mbs * d)
            if left or d * way.tp > self.cluster.size:
                continue
            stride, most = deepest_pipeline(self.cluster, d, way.tp)
            reduced = cuts.sums(0, sync[:, number:number + 1])[:, 0]
            for s in range(1, min(most, len(dp) - 1) + 1):
                load = np.maximum(table.of(s)[0], dp[s - 1])[cuts.after(0)]
                seconds = load * (batches + s - 1) + reduced
                first = int(seconds.argmin())
                if seconds[first] < limit and self.space.allows("pp", s):
                    limit = float(seconds[first])
                    found = d, stride, s, int(cuts.after(0)[first])
        if found is None:
            return None
        d, stride, s, first = found
        path = trace(table, dp, s, first)
        last = "none" if table.keeps[path[-2], path[-1]] else recompute
        return PhazeChoice(limit, way, mbs, d, stride, cuts, path, (recompute,) * (s - 1) + (last,))


def depths(table: Loads, most: int) -> list[Array]:
    """dp[s][i]: least longest load of s stages that hold all layers after cut i.

    ``most`` is the largest s; the arrays, of shape (J,), are infinite where s stages do not fit.
    """
    found = [np.full(len(table.last), np.inf)]
    found[0][-1] = 0.0
    for s in range(1, most + 1):
        found.append(np.maximum(table.of(s), found[-1][None, :]).min(axis=1))
    return found


def trace(table: Loads, dp: list[Array], s: int, first: int) -> tuple[int, ...]:
    """Cuts of a pipeline of s stages whose first one ends at cut ``first``."""
    path = [0, first]
    for left in range(s - 1, 0, -1):
        path.append(int(np.maximum(table.of(left)[path[-1]], dp[left - 1]).argmin()))
    return tuple(path)


def deepest_pipeline(cluster: Cluster, replicas: int, width: int) -> tuple[int, int]:
    """Stride of replicas, and the number of stages of ``width`` aligned devices in a replica.
    """
    best = (0, 0)
    for stride in strides(cluster.size, replicas, cluster.group_sizes):
        stages = 0
        if replicas_alike(stride, cluster.group_sizes):
            starts = [0]  # all replicas lie in the same way
        else:
            starts = [r * stride for r in range(replicas)]
        while (stages + 1) * width <= stride and all(
                aligned(start + stages * width, width, cluster.group_sizes) for start in starts):
            stages += 1
        if stages > best[1]:
            best = stride, stages
    return best
