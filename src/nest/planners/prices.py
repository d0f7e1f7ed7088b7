"""What published methods share: their base, and prices of many configurations one after another.

The prices have a cache of priced layers and stages. They equal those of :func:`nest.evaluate`,
which adds the report: methods that try thousands of configurations ask here, and have what they
choose priced by ``evaluate``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from nest.costs.network.placement import aligned
from nest.errors import InputError, NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plans import Plan
from nest.evaluation.stages import Layers, Pricing, StagePrice
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import outer_problem, schedule_problems, sequence_problem, stage_problem
from nest.model.schedules import group_of
from nest.schedules.registry import SCHEDULES, is_grouped


class Baseline(ABC):
    """A published method: it chooses a configuration, which :func:`nest.evaluate` prices.

    Attributes
    ----------
    name : as it is registered.
    fixed : choices that the method cannot vary.
    """

    name: ClassVar[str]
    fixed: ClassVar[Mapping[str, object]] = {}

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Choose, and price; see :class:`nest.planners.registry.PlanningMethod`."""
        chain = chain_of(model)
        if self.fixed:
            self._check(chain, job, space)
        return evaluate(model, cluster, job, self.choose(chain, cluster, job, space))

    @abstractmethod
    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """The configuration, unpriced.

        Raises
        ------
        NoPlanError : the method finds none that is legal and in the space.
        """

    def _check(self, chain: Chain, job: Job, space: SearchSpace) -> None:
        if problem := sequence_problem(chain, job):
            raise InputError(problem)
        for field, value in self.fixed.items():
            if not space.allows(field, value):
                raise NoPlanError(
                    f"{self.name}: the method knows {field} {value} only, and the space allows "
                    f"{space.describe()[field]}")


class Price(NamedTuple):
    """Step time and missing memory of a configuration."""

    step_time: float
    """Seconds."""
    excess: float
    """Bytes above what the devices may hold, summed over all devices; 0 where the plan fits."""


class PlannerPrices:
    """Prices configurations of one model, cluster and job.

    Parameters
    ----------
    chain : the layers of the model or profile.
    cluster, job : where and how it is trained.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job) -> None:
        self.chain, self.cluster, self.job = chain, cluster, job
        self._pricing = Pricing(chain, cluster, job)
        self._layers: dict[tuple[Any, ...], Layers] = {}
        self._stages: dict[tuple[Any, ...], StagePrice] = {}
        self._legal: dict[tuple[Any, ...], bool] = {}
        self._sites: dict[tuple[int, int, int, int], bool] = {}

    def legal(self, plan: Configuration) -> bool:
        """Whether ``evaluate`` accepts a configuration with consecutive stages and blocks."""
        if (sequence_problem(self.chain, self.job) or outer_problem(self.cluster, self.job, plan)
                or any(schedule_problems(self.chain, self.job, plan))):
            return False
        for stage in plan.stages:
            start, stop = stage.devices
            key = (degrees_of(stage), plan.micro_batch, plan.pp > 1, plan.outer_dp > 1)
            if key not in self._legal:
                self._legal[key] = stage_problem(self.chain, self.job, stage, plan) is None
            if not self._legal[key] or not self._may_lie(
                    start, stop - start, plan.outer_dp, plan.stride):
                return False
        return True

    def _may_lie(self, start: int, size: int, outer_dp: int, stride: int) -> bool:
        """Whether a block is aligned in every replica, and all its devices are of one type."""
        site = (start, size, outer_dp, stride)
        if site not in self._sites:
            starts = np.array([start])
            self._sites[site] = aligned_everywhere(*site, self.cluster.group_sizes) and bool(
                self._pricing.fabric.alike(starts, size, outer_dp, stride).all())
        return self._sites[site]

    def price(self, plan: Configuration) -> Price:
        """Seconds of a step and missing bytes of a legal configuration."""
        pricing, m = self._pricing, self.job.global_batch // (plan.outer_dp * plan.micro_batch)
        stages = [self._stage(plan, stage) for stage in plan.stages]
        hops = [pricing.hops(plan, number) for number in range(plan.pp)]
        excess = 0.0
        for number, (stage, costs) in enumerate(zip(plan.stages, stages, strict=True)):
            held = _held(plan.schedule, costs.kept, number, plan.pp, m)
            more = costs.resident + held - pricing.limit(stage)
            if more > 0.0:
                excess += more * (stage.devices[1] - stage.devices[0]) * plan.outer_dp
        return Price(pricing.step_time(plan, stages, hops).total, excess)

    def _stage(self, plan: Configuration, stage: StageConfiguration) -> StagePrice:
        place = self._pricing.fabric.place(stage.devices[0], plan.outer_dp, plan.stride)
        outer = (plan.micro_batch, plan.outer_dp, plan.stride, place, self._pricing.waits(plan))
        degrees = degrees_of(stage)
        key = (stage.chunks, degrees, plan.order, outer)
        if key not in self._stages:
            known = self._layers.setdefault((degrees[:11], outer), {})
            self._stages[key] = self._pricing.stage(plan, stage, known)
        return self._stages[key]


@lru_cache(maxsize=10_000)
def _held(schedule: str, kept: tuple[float, ...], stage: int, stages: int, m: int) -> float:
    """Bytes of activations of all micro-batches in flight on a stage."""
    return SCHEDULES[schedule].held(kept, stage, stages, m)


def degrees_of(stage: StageConfiguration) -> tuple[Any, ...]:
    """A stage without its layers and place; block first, recompute last."""
    return (stage.devices[1] - stage.devices[0], stage.dp_in, stage.tp, stage.sp, stage.cp,
            stage.cp_comm, stage.cp_a2a, stage.ep, stage.etp, stage.zero, stage.shard,
            stage.recompute,
            stage.recompute_modules, stage.recompute_layers)


@lru_cache(maxsize=100_000)
def aligned_everywhere(
    start: int, size: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> bool:
    """Whether a block is :func:`~nest.costs.network.placement.aligned` in every replica."""
    return all(aligned(r * stride + start, size, group_sizes) for r in range(outer_dp))


# ---------------------------------------------------------------- membership


def outside(space: SearchSpace, chain: Chain, plan: Configuration) -> str | None:
    """The first dimension in which a configuration leaves a space, with its value.

    Parameters
    ----------
    space : what may be chosen; a dimension counts only where it has an effect, such as ``sp`` where
        tp is above 1 (as in the search).
    chain : the layers that the configuration places.
    plan : every stage.

    Returns
    -------
    str or None
        As ``tp 16``; None where the configuration lies in the space.
    """
    for name, value in _chosen(chain, plan):
        if not space.allows(name, value):
            return f"{name} {value}"
    most = space.recompute_layers.largest if space.recompute_layers is not None else None
    for stage in plan.stages:
        if most is not None and stage.recompute == "full" and stage.recompute_layers is None:
            for first, stop in stage.chunks:
                again = sum(chain.kinds[kind].checkpointed for kind in chain.order[first:stop])
                if again > most:
                    return f"recompute_layers {again}"
    return None


def _chosen(chain: Chain, plan: Configuration) -> Iterator[tuple[str, object]]:
    yield "pp", plan.pp
    yield "outer_dp", plan.outer_dp
    yield "micro_batch", plan.micro_batch
    yield "vpp", plan.vpp
    yield "schedule", plan.schedule
    if is_grouped(plan.schedule, plan.vpp):
        yield "group", group_of(plan)
    yield "offload", plan.offload
    seen: set[tuple[object, ...]] = set()
    for stage in plan.stages:
        if degrees_of(stage) not in seen:
            seen.add(degrees_of(stage))
            yield from _of_stage(stage, plan.micro_batch)


def _of_stage(stage: StageConfiguration, micro_batch: int) -> Iterator[tuple[str, object]]:
    for name in ("dp_in", "tp", "cp", "ep", "etp", "zero", "recompute"):
        yield name, getattr(stage, name)
    yield "mbs", micro_batch // stage.dp_in
    if stage.tp > 1:
        yield "sp", stage.sp
    if stage.cp > 1:
        yield "cp_comm", stage.cp_comm
    if stage.cp_comm == "a2a+p2p":
        yield "cp_a2a", stage.cp_a2a
    if stage.zero:
        yield "shard", stage.shard
    if stage.recompute == "selective":
        yield "recompute_modules", "+".join(stage.recompute_modules)
    if stage.recompute_layers is not None:
        yield "recompute_layers", stage.recompute_layers
