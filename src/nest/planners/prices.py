"""Prices of many configurations one after another: what was priced before is looked up.

The same cost functions and the same sums as :func:`nest.evaluate`, without its report: methods that
try thousands of configurations ask here, and have what they choose priced by ``evaluate``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from nest.costs.choices import setting, span_level
from nest.costs.configured import body_of, layers_of, mask, relayed_bytes, shards_of, state_of
from nest.costs.groups import aligned, place_class, shared_level
from nest.costs.layer import layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.schedules import SCHEDULES, StepTime
from nest.costs.stage import SUMMED, Sums, hop_seconds, stage_costs, sums
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job
from nest.graph import Chain, boundary_bytes
from nest.legality import outer_problem, schedule_problems, stage_problem


class Price(NamedTuple):
    """What a configuration takes and lacks."""

    step_time: float
    """Seconds."""
    excess: float
    """Bytes above what the devices may hold, summed over all devices; 0 where the plan fits."""


class _Stage(NamedTuple):
    forward: float
    backward: float
    finish: float
    traffic: float
    """Seconds after the last backward where nothing hides."""
    resident: float
    activations: float


class Prices:
    """Prices configurations of one model, cluster and job.

    Parameters
    ----------
    chain : the layers of the model or profile.
    cluster, job : where and how it is trained.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job) -> None:
        self.chain, self.cluster, self.job = chain, cluster, job
        self.limit = limit_bytes(cluster.device, job)
        self._setting = setting(cluster, job)
        self._layers: dict[tuple[Any, ...], Sums] = {}
        self._stages: dict[tuple[Any, ...], _Stage] = {}
        self._legal: dict[tuple[Any, ...], bool] = {}
        self._sizes: dict[tuple[Any, ...], float] = {}
        """Bytes per sample behind a stage."""

    def legal(self, plan: Configuration) -> bool:
        """Whether ``evaluate`` would take a configuration whose cuts and blocks join."""
        if outer_problem(self.cluster, self.job, plan) or any(
                schedule_problems(self.chain, self.job, plan)):
            return False
        sizes = self.cluster.group_sizes
        for stage in plan.stages:
            start, stop = stage.devices
            key = (degrees_of(stage), plan.micro_batch, plan.pp > 1, plan.outer_dp > 1)
            if key not in self._legal:
                self._legal[key] = stage_problem(self.chain, self.job, stage, plan) is None
            if not self._legal[key] or not aligned_everywhere(
                    start, stop - start, plan.outer_dp, plan.stride, sizes):
                return False
        return True

    def price(self, plan: Configuration) -> Price:
        """Seconds of a step and bytes too many of a legal configuration."""
        m = self.job.global_batch // (plan.outer_dp * plan.micro_batch)
        schedule = SCHEDULES[plan.schedule]
        order = plan.order or range(len(self.chain))
        stages = [self._stage(plan, order, stage) for stage in plan.stages]
        hops = [self._hop(plan, order, number) for number in range(plan.pp)]
        excess = 0.0
        for number, (stage, costs) in enumerate(zip(plan.stages, stages, strict=True)):
            held = schedule.in_flight(number, plan.pp, m, plan.vpp) / plan.vpp
            more = costs.resident + held * costs.activations - self.limit
            if more > 0.0:
                excess += more * (stage.devices[1] - stage.devices[0]) * plan.outer_dp
        lists = ([s.forward for s in stages], [s.backward for s in stages],
                 [s.finish for s in stages], hops if plan.vpp > 1 else hops[:-1])
        step_time: Callable[..., StepTime] = schedule.step_time
        if plan.vpp == 1:
            return Price(step_time(*lists, m).total, excess)
        overlap = hidden_share(self.job)
        traffic = [s.traffic for s in stages]
        return Price(step_time(*lists, m, plan.vpp, traffic, overlap).total, excess)

    def _stage(
        self, plan: Configuration, order: Sequence[int], stage: StageConfiguration
    ) -> _Stage:
        start, _ = stage.devices
        sizes = self.cluster.group_sizes
        place = place_of(start, plan.outer_dp, plan.stride, sizes)
        outer = (plan.micro_batch, plan.outer_dp, plan.stride, place)
        key = (stage.chunks, degrees_of(stage), plan.order, outer)
        if key not in self._stages:
            counts = Counter(pair for span in stage.chunks
                             for pair in layers_of(self.chain, order, stage, span))
            parts = [(self._layer(plan, stage, pair, outer), n) for pair, n in counts.items()]
            summed = Sums(*(
                np.sum([n * layer[f] for layer, n in parts], axis=0) if f < SUMMED
                else np.max([layer[f] for layer, _ in parts], axis=0)
                for f in range(len(Sums._fields))))
            held = relayed_bytes(self.chain, self.job, plan, order, stage, stage.layers)
            summed = summed._replace(activations=summed.activations + held)
            costs = stage_costs(summed, plan.vpp)
            self._stages[key] = _Stage(
                *(float(x[0]) for x in (costs.forward, costs.backward, costs.finish,
                                     summed.exposed + summed.traffic, costs.resident,
                                     costs.activations)))
        return self._stages[key]

    def _layer(
        self, plan: Configuration, stage: StageConfiguration, pair: tuple[int, int],
        outer: tuple[Any, ...],
    ) -> Sums:
        """Sums of one layer: its kind and recompute policy under the degrees of a stage."""
        kind, policy = pair
        key = (kind, policy, degrees_of(stage)[:10], outer)
        if key not in self._layers:
            sizes = self.cluster.group_sizes
            tied = span_level(plan.outer_dp, plan.stride, sizes)
            costs = layer_costs(
                self.chain.kinds[kind], body_of(stage, plan, policy, sizes),
                state_of(stage, plan, tied, sizes), self._setting)
            self._layers[key] = sums(costs, self.job.stack)
        return self._layers[key]

    def _hop(self, plan: Configuration, order: Sequence[int], number: int) -> float:
        """Round trip behind a stage."""
        stage, after = plan.stages[number], plan.stages[(number + 1) % plan.pp]
        cuts = tuple(stop for _, stop in stage.chunks if stop < len(self.chain))
        if not cuts:
            return 0.0
        lanes = min(shards_of(stage, self.job.stack), shards_of(after, self.job.stack))
        key = (cuts, plan.order)
        if key not in self._sizes:
            self._sizes[key] = max(
                boundary_bytes(self.chain, self.job, mask(order[:cut])) for cut in cuts)
        return self.hop(self._sizes[key] * plan.micro_batch / lanes, stage.devices[1] - 1,
                        after.devices[0], plan.outer_dp, plan.stride)

    def hop(self, size: float, a: int, b: int, outer_dp: int, stride: int) -> float:
        """Seconds of a hand-over there and back over the worst replica's level.

        Parameters
        ----------
        size : bytes on one lane, one way.
        a, b : devices of the first replica that it joins.
        outer_dp, stride : replicas, and devices from one to the next.
        """
        level = _worst_level(a, b, outer_dp, stride, self.cluster.group_sizes)
        return hop_seconds(size, 1.0, 1.0 / self.cluster.resolved_bandwidth[level],
                           self.cluster.levels[level].latency, self.job.stack)


def degrees_of(stage: StageConfiguration) -> tuple[Any, ...]:
    """What a stage is besides its layers and its place; block first, recompute last."""
    return (stage.devices[1] - stage.devices[0], stage.dp_in, stage.tp, stage.sp, stage.cp,
            stage.cp_comm, stage.ep, stage.etp, stage.zero, stage.shard, stage.recompute,
            stage.recompute_modules, stage.recompute_layers)


def hidden_share(job: Job) -> float:
    """Share of the last micro-batches that hides traffic of interleaved stages."""
    return job.stack.overlap_grad_reduce / 2 + job.stack.overlap_param_gather / 4


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def tensor_degrees(chain: Chain, most: int) -> tuple[int, ...]:
    """Tensor-parallel degrees that may be legal for a model or profile, up to ``most``."""
    widths = [width for _, width in chain.tensor_widths]
    found = divisors(math.gcd(*widths)) if chain.profile is None else chain.profile.degrees
    return tuple(tp for tp in found if tp <= most)


@lru_cache(maxsize=100_000)
def aligned_everywhere(
    start: int, size: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> bool:
    """Whether a block is aligned (:func:`nest.costs.groups.aligned`) in every replica."""
    return all(aligned(r * stride + start, size, group_sizes) for r in range(outer_dp))


@lru_cache(maxsize=100_000)
def place_of(
    start: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """What the price of a block depends on besides its size and the replicas."""
    return place_class(start, outer_dp, stride, group_sizes)


@lru_cache(maxsize=100_000)
def _worst_level(
    a: int, b: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> int:
    return max(shared_level(r * stride + a, r * stride + b, group_sizes)
               for r in range(outer_dp))
