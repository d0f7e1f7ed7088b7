"""Which questions dominate which: what can be no worse in a cluster, a job or a space.

A question dominates another if all figures here are no worse and everything else is the same. Then
no plan of the other takes less than its best (docs/proofs.md, Lemma 54 (dominating questions)).
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, NamedTuple

from nest.costs.memory import limit_bytes
from nest.inputs import Cluster, Job, Model, SearchSpace
from nest.inputs.choices import CHOICES
from nest.inputs.space import IntSet
from nest.questions import Question
from nest.schedules.registry import SCHEDULES

LESS = ("launch_overhead",)
"""Figures of a device of which less is better; of ``MORE``, more."""
MORE = ("memory_bandwidth", "host_link", "host_memory_bandwidth")
DELAYS = ("latency", "base_time", "ramp")
"""Figures of a level of which less is better; its bandwidth counts as it is resolved."""
LISTS = ("group", *CHOICES)
"""Dimensions of a space that are not free where they are not given."""
NOT_PRICED = ("name", "source", "default_devices", "names")


class Standing(NamedTuple):
    """How a question stands among others."""

    same: str
    """Equal for questions that may dominate each other."""
    space: SearchSpace
    figures: tuple[float, ...]
    """The more, the better; as many wherever ``same`` is equal."""


def standing(question: Question) -> Standing:
    """How a question of a model stands among others.

    Parameters
    ----------
    question : its cluster has levels or links; with links, memory alone counts as a figure.
    """
    model, cluster, job = question.model, question.cluster, question.job
    assert model is not None
    rates = cluster.links is None and rates_count(model, job, question.space)
    network, figures = _network(cluster, rates)
    search = question.search.as_dict()
    wide = float(search.pop("beyond_stack"))
    memory = tuple(limit_bytes(device, job) for device in cluster.device_types)
    return Standing(
        "\n".join((_model(model), network, _job(job), json.dumps(search, sort_keys=True),
                   json.dumps([rates, len(memory)]))),
        question.space, (*memory, wide, *figures))


def rates_count(model: Model, job: Job, space: SearchSpace) -> bool:
    """Whether faster devices and networks never make a step longer.

    Not with learned factors, which weigh a second of traffic otherwise than the computing that
    hides it, nor where a host that launches kernels late meets schedules that divide passes: what
    it waits for then hides more.
    """
    if job.stack.learned is not None:
        return False
    late = max(job.stack.host(model.moe is not None, job.counted)[2:]) > 0.0 or (
        model.moe is not None and job.stack.expert_overhead > 0.0 and not job.counted)
    names = [*SCHEDULES] if space.schedule is None else space.schedule
    return not (late and any(SCHEDULES[name].parts for name in names))


@lru_cache(maxsize=64)
def _model(model: Model) -> str:
    return json.dumps(model.as_dict(), sort_keys=True)


@lru_cache(maxsize=256)
def _job(job: Job) -> str:
    """A job without its margin, which counts as memory."""
    data = job.as_dict()
    del data["memory_margin"]
    return json.dumps(data, sort_keys=True)


def _network(cluster: Cluster, rates: bool) -> tuple[str, tuple[float, ...]]:
    """What of a cluster has to be the same, and its figures."""
    data: dict[str, Any] = cluster.as_dict()
    for name in NOT_PRICED:
        data.pop(name)
    figures: list[float] = []
    for device in (data["device"], *data["types"]):
        for name in ("memory", "memory_reserved", "source"):
            device.pop(name)
        given = ("host_memory", *(MORE if rates else ()))
        figures += [math.inf if device[name] is None else device.pop(name) for name in given]
        if rates:
            figures += [-device.pop(name) for name in LESS]
            figures += device["peak_flops"].values()
            device["peak_flops"] = [*device["peak_flops"]]
    for level, reached in zip(data["levels"], cluster.resolved_bandwidth, strict=True):
        level.pop("source")
        level.pop("name")
        if rates:
            for name in ("bandwidth", "oversubscription", "efficiency", "link"):
                level.pop(name)
            figures += [reached, *(-level.pop(name) for name in DELAYS)]
    return json.dumps(data, sort_keys=True), tuple(figures)


@lru_cache(maxsize=4096)
def wider(one: SearchSpace, other: SearchSpace) -> bool:
    """Whether a space holds all plans of another."""
    return one == other or all(
        _holds(name, getattr(one, name), getattr(other, name))
        for name in type(one).model_fields if name != "schedule") and (
        one.schedule == other.schedule or None not in (one.schedule, other.schedule)
        and {*one.schedules} >= {*other.schedules})


def _holds(name: str, one: Any, other: Any) -> bool:
    if one == other:
        return True
    if one is None:
        return name not in LISTS
    if other is None:
        return False
    if isinstance(one, IntSet):
        return all(any(low <= first and last <= high for low, high in one.ranges)
                   for first, last in other.ranges)
    return {*one} >= {*other}
