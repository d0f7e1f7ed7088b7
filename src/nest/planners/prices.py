"""Prices of many configurations one after another: what was priced before is looked up.

The same cost functions and the same sums as :func:`nest.evaluate`, without its report: methods that
try thousands of configurations ask here, and have what they choose priced by ``evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from nest.costs.choices import setting
from nest.costs.layer import layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import aligned
from nest.costs.schedules import SCHEDULES, StepTime
from nest.costs.stage import ChunkCosts, LayerSeconds, chunk_costs, layer_seconds
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job
from nest.graph import Chain, boundary_bytes
from nest.graph.legality import outer_problem, schedule_problems, stage_problem
from nest.pricing.stages import body_of, hops_of, layers_of, mask, relayed_bytes, state_of


class Price(NamedTuple):
    """What a configuration takes and lacks."""

    step_time: float
    """Seconds."""
    excess: float
    """Bytes above what the devices may hold, summed over all devices; 0 where the plan fits."""


class _Layer(NamedTuple):
    seconds: LayerSeconds
    update: float
    tied: float
    resident: float
    """Bytes of parameters, gradients and optimizer states."""
    activations: float
    work: float
    buffers: float


class _Stage(NamedTuple):
    chunks: tuple[ChunkCosts, ...]
    kept: tuple[float, ...]
    """Bytes of activations of a micro-batch in flight, by chunk."""
    resident: float


class Prices:
    """Prices configurations of one model, cluster and job.

    Parameters
    ----------
    chain : the layers of the model or profile.
    cluster, job : where and how it is trained.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job) -> None:
        self.chain, self.cluster, self.job = chain, cluster, job
        self._limits = [limit_bytes(device, job) for device in cluster.device_types]
        self._settings = [setting(cluster, job, kind) for kind in range(len(self._limits))]
        self._fabric = fabric_of(cluster)
        self._layers: dict[tuple[Any, ...], _Layer] = {}
        self._stages: dict[tuple[Any, ...], _Stage] = {}
        self._legal: dict[tuple[Any, ...], bool] = {}
        self._sizes: dict[tuple[Any, ...], float] = {}
        """Bytes per sample that cross a cut."""

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
        order = plan.order or range(len(self.chain))
        stages = [self._stage(plan, order, stage) for stage in plan.stages]
        hops = [hops_of(self._fabric, self.job, plan, number,
                        lambda stop: self._handed(plan, stop)) for number in range(plan.pp)]
        excess = 0.0
        for number, (stage, costs) in enumerate(zip(plan.stages, stages, strict=True)):
            held = _held(plan.schedule, costs.kept, number, plan.pp, m)
            limit = self._limits[self.cluster.kind_at(stage.devices[0])]
            more = costs.resident + held - limit
            if more > 0.0:
                excess += more * (stage.devices[1] - stage.devices[0]) * plan.outer_dp
        step_time: Callable[..., StepTime] = SCHEDULES[plan.schedule].step_time
        if plan.vpp > 1:
            return Price(step_time([s.chunks for s in stages], hops, m).total, excess)
        return Price(step_time([s.chunks[0] for s in stages], [behind[0] for behind in hops[:-1]],
                               m).total, excess)

    def _stage(
        self, plan: Configuration, order: Sequence[int], stage: StageConfiguration
    ) -> _Stage:
        start, _ = stage.devices
        place = self._fabric.place(start, plan.outer_dp, plan.stride)
        outer = (plan.micro_batch, plan.outer_dp, plan.stride, place)
        key = (stage.chunks, degrees_of(stage), plan.order, outer)
        if key not in self._stages:
            known: dict[tuple[int, int], _Layer] = {}
            chunks, kept, resident = [], [], 0.0
            for span in stage.chunks:
                pairs = layers_of(self.chain, order, stage, span)
                known |= {pair: self._layer(plan, stage, pair, outer) for pair in set(pairs)}
                layers = [known[pair] for pair in pairs]
                chunks.append(chunk_costs(
                    [layer.seconds for layer in layers], sum(layer.update for layer in layers),
                    sum(layer.tied for layer in layers), self.job.stack))
                kept.append(sum(layer.activations for layer in layers)
                            + relayed_bytes(self.chain, self.job, plan, order, stage, span))
                resident += sum(layer.resident for layer in layers)
            resident += max(layer.work for layer in known.values())
            resident += max(layer.buffers for layer in known.values())
            self._stages[key] = _Stage(tuple(chunks), tuple(kept), resident)
        return self._stages[key]

    def _layer(
        self, plan: Configuration, stage: StageConfiguration, pair: tuple[int, int],
        outer: tuple[Any, ...],
    ) -> _Layer:
        """One layer: its kind and recompute policy under the degrees of a stage."""
        kind, policy = pair
        key = (kind, policy, degrees_of(stage)[:10], outer)
        if key not in self._layers:
            using = self._settings[self.cluster.kind_at(stage.devices[0])]
            c = layer_costs(
                self.chain.kinds[kind], body_of(stage, plan, policy, self._fabric),
                state_of(stage, plan, self._fabric), using)
            resident = c.parameters + c.gradients + c.optimizer
            self._layers[key] = _Layer(layer_seconds(c), *(float(x[0]) for x in (
                c.update, c.tied, resident, c.activations, c.work, c.buffers)))
        return self._layers[key]

    def _handed(self, plan: Configuration, stop: int) -> float:
        """Bytes per sample that are handed over behind so many layers."""
        key = (stop, plan.order)
        if key not in self._sizes:
            order = plan.order or range(len(self.chain))
            self._sizes[key] = boundary_bytes(self.chain, self.job, mask(order[:stop]))
        return self._sizes[key]


@lru_cache(maxsize=10_000)
def _held(schedule: str, kept: tuple[float, ...], stage: int, stages: int, m: int) -> float:
    """Bytes of activations of all micro-batches in flight on a stage."""
    held: float = SCHEDULES[schedule].held(kept, stage, stages, m)
    return held


def degrees_of(stage: StageConfiguration) -> tuple[Any, ...]:
    """What a stage is besides its layers and its place; block first, recompute last."""
    return (stage.devices[1] - stage.devices[0], stage.dp_in, stage.tp, stage.sp, stage.cp,
            stage.cp_comm, stage.ep, stage.etp, stage.zero, stage.shard, stage.recompute,
            stage.recompute_modules, stage.recompute_layers)


@lru_cache(maxsize=100_000)
def aligned_everywhere(
    start: int, size: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> bool:
    """Whether a block is :func:`~nest.costs.network.placement.aligned` in every replica."""
    return all(aligned(r * stride + start, size, group_sizes) for r in range(outer_dp))
