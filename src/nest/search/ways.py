"""The search over what is kept in host memory, what the stack chooses and how ranks wait for longer
samples: one for each way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nest.costs.imbalance import ALONE, waits_of
from nest.evaluation.stages import Pricing
from nest.inputs.base import FrozenDict
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.offload import Offload
from nest.inputs.space import IntSet
from nest.schedules.registry import UNLIKE
from nest.search.branch_and_bound import parts_of, search_one
from nest.search.cache import Cache, Identity
from nest.search.choices import combinations
from nest.search.query import Control, Query
from nest.search.solution import SearchResult, distinct
from nest.stacks.figures import model_figures
from nest.stacks.rules import applies, wrong


def search(
    query: Query, control: Control | None = None, below: float = np.inf, any_plan: bool = False
) -> SearchResult:
    """Best configuration over all ways: ``space.offload``, with what a stack may choose.

    Prices of samples of many lengths depend on the number of stages, the schedule and ZeRO-3: plans
    in which ranks wait alike are a way too (:func:`nest.costs.imbalance.waits_of`).
    Each way is searched (:func:`nest.search.branch_and_bound.search_one`) for plans below the best
    of those before it; of equally fast ones that of the first way is taken. The memory of the hosts
    is not among what a search bounds: a plan that needs more of it is replaced by one found with so
    many bytes counted that hosts are never full, and its step time stays as the lower bound.
    """
    control, top = control or Control(), query.top
    control.watch.begin()
    ways = [*_ways(query, control.cache)]
    if len(ways) == 1 and ways[0].offload == "none" and ways[0].waits is None:
        return search_one(ways[0], control, below, any_plan)
    known: dict[int, SearchResult] = {}
    # What makes steps short comes last, and is a first limit here; but few stages come first.
    order = sorted(range(len(ways)), key=lambda n: (ways[n].waits or ALONE).stages * len(ways) - n)
    for number in order:
        asked = ways[number]
        # Of several plans, the next best of a way may be among the next best of all.
        limit = min([below, *(way.step_time * NEAR for way in known.values() if top == 1)])
        way = search_one(asked, control, limit, any_plan)
        plans = (way.configuration, *(plan for _, plan in way.others))
        if any(_fills_host(asked, plan) for plan in plans if plan is not None):
            spared = search_one(asked.replace(spare_host=True), control, limit, any_plan)
            way = spared._replace(others_proved=False).after(way)
        known[number] = way
        if any_plan and way.configuration is not None:
            break
    found = [known[number] for number in sorted(known)]
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
            asked = query.replace(job=job, choices=FrozenDict(choices), offload=text,
                                  space=space.replace(**every) if every else space)
            yield from _waiting(asked) if job.uneven else (asked,)


def _waiting(query: Query) -> Iterator[Query]:
    """By how ranks wait for each other: the more of them meet, the wider the space, so that a plan
    is found where it takes least, and as long as :func:`nest.evaluate` says."""
    space, unlike = query.space, () if query.rules is not None else UNLIKE
    pipelines = [(one.pp, one.schedule) for part in parts_of(query)
                 for one in (*part.pipelines, *part.later)]
    pipelines += [(pp, name) for name in space.schedules if name in unlike
                  for pp in range(1, min(len(query.chain), query.cluster.size) + 1)
                  if space.allows("pp", pp)]
    pipelines = [(pp, name) for pp, name in pipelines
                 if _may(query, pp=pp, schedule=name)] or pipelines
    zeros = [n for n in range(4) if space.allows("zero", n)]
    zero = [n for n in zeros if _may(query, zero=n)] or zeros
    known = {waits_of(pp, name, ()) for pp, name in pipelines}
    if not known:  # nothing can be run, which the search explains
        yield query
    three = space.zero if unlike else IntSet.of(3)
    for waits in sorted(known):
        if zero not in ([], [3]):
            yield query.replace(waits=waits, space=space.replace(
                zero=[n for n in zero if n < 3]))
        if 3 in zero and space.allows("shard", "dp_in"):
            yield query.replace(waits=waits._replace(meet="block"),
                                space=space.replace(zero=three, shard="dp_in"))
        if 3 in zero and space.allows("shard", "dp"):
            yield query.replace(waits=waits._replace(meet="all"), space=space.replace(zero=three))


def _may(query: Query, **figures: int | str) -> bool:
    """Whether no rule of the stack about these figures and the model forbids them."""
    if query.rules is None:
        return True
    known = {**model_figures(query.chain, query.job), **figures}
    return not any(
        rule.allowed is not None and len(rule.fields) == 1 and rule.fields[0] in figures
        and {*rule.when} <= {*known} and applies(rule, known) and wrong(rule, rule.fields[0], known)
        for rule in query.rules.rules.values())


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
