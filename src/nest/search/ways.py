"""The search over what is kept in host memory and what the stack chooses: one for each way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nest.evaluation.stages import Pricing
from nest.inputs.base import FrozenDict
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.offload import Offload
from nest.search.branch_and_bound import search_one
from nest.search.cache import Cache, Identity
from nest.search.choices import combinations
from nest.search.query import Control, Query
from nest.search.solution import SearchResult, distinct


def search(
    query: Query, control: Control | None = None, below: float = np.inf, any_plan: bool = False
) -> SearchResult:
    """Best configuration over all ways: ``space.offload``, with what a stack may choose.

    Each way is searched (:func:`nest.search.branch_and_bound.search_one`) for plans below the best
    of those before it; of equally fast ones that of the first way is taken. The memory of the hosts
    is not among what a search bounds: a plan that needs more of it is replaced by one found with so
    many bytes counted that hosts are never full, and its step time stays as the lower bound.
    """
    control, top = control or Control(), query.top
    control.watch.begin()
    ways = [*_ways(query, control.cache)]
    if len(ways) == 1 and ways[0].offload == "none":
        return search_one(ways[0], control, below, any_plan)
    found = list[SearchResult]()
    for asked in reversed(ways):  # what makes steps short comes last, and is a first limit here
        # Of several plans, the next best of a way may be among the next best of all.
        limit = min([below, *(way.step_time * NEAR for way in found if top == 1)])
        way = search_one(asked, control, limit, any_plan)
        plans = (way.configuration, *(plan for _, plan in way.others))
        if any(_fills_host(asked, plan) for plan in plans if plan is not None):
            spared = search_one(asked.replace(spare_host=True), control, limit, any_plan)
            way = spared._replace(others_proved=False).after(way)
        found.insert(0, way)
        if any_plan and way.configuration is not None:
            break
    # Where nothing fits, the way that needs least says by how much.
    best = min(found, key=lambda way: (
        way.step_time, way.formulation.needs.min(initial=np.inf)))
    whole = best
    for way in found:
        whole = whole if way is best else whole.after(way)
    return whole if top == 1 else whole._replace(
        others=_ranked(found, query.job)[1:top],
        others_proved=all(way.others_proved for way in found))


NEAR = 1.0 + 1e-12
"""Ways whose plans are equally fast are all found, so that the first of them is taken."""


def _ways(query: Query, cache: Cache) -> Iterator[Query]:
    """What each search asks; what software and hosts do by themselves first."""
    space, cluster = query.space, query.cluster
    chosen = cache.of(("chosen", Identity(query.chain), cluster.device_types, cluster.size,
                       query.job, space, query.beyond_stack), lambda: combinations(query))
    for choices, job, bounds in chosen:
        for text in space.offload:
            every = {**bounds, **{
                name: tuple(value for value in values if space.allows(name, value))
                for name, values in Offload.of(text).needs.items()}}
            yield query.replace(job=job, choices=FrozenDict(choices), offload=text,
                                space=space.replace(**every) if every else space)


def _fills_host(query: Query, plan: Configuration) -> bool:
    """Whether a plan needs more memory of a host than there is."""
    if plan.offload == "none":
        return False
    pricing = Pricing(query.chain, query.cluster, query.job)
    return any(
        pricing.hosted(plan, number, pricing.stage(plan, stage)) > pricing.host_limit(plan, stage)
        for number, stage in enumerate(plan.stages))


def _ranked(found: list[SearchResult], job: Job) -> list[tuple[float, Configuration]]:
    """The best of each distinct plan of all ways."""
    least: dict[Any, tuple[float, Configuration]] = {}
    every = [pair for way in found for pair in ((way.step_time, way.configuration), *way.others)]
    for seconds, plan in sorted(every, key=lambda pair: pair[0]):
        if plan is not None:
            key = distinct(plan.outer_dp, plan.micro_batch, plan.pp, plan.vpp, plan.schedule,
                           job.global_batch // (plan.outer_dp * plan.micro_batch))
            least.setdefault(key, (seconds, plan))
    return [*least.values()]
