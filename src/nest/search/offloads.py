"""The search over what is kept in the memory of the hosts: one search for each way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nest.evaluation.stages import Pricing
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.offload import Offload
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.search.kept import Kept, Same
from nest.search.progress import Watch
from nest.search.rounds import search_one
from nest.search.signatures import Signatures, signatures
from nest.search.solution import Found, distinct


def search(
    chain: Chain,
    cluster: Cluster,
    job: Job,
    space: SearchSpace,
    threads: int | None = None,
    any_plan: bool = False,
    top: int = 1,
    watch: Watch | None = None,
    below: float = np.inf,
    *,
    beyond_stack: bool = False,
    known: Signatures | None = None,
    kept: Kept | None = None,
) -> Found:
    """Best configuration over all ways of ``space.offload``.

    Each way is searched (:func:`nest.search.rounds.search_one`) for plans below the best of those
    before it. The memory of the hosts is not among what a search bounds: a plan that needs more of
    it is replaced by one found with so many bytes counted that hosts are never full, and its step
    time stays as the lower bound.
    """
    watch = watch or Watch()
    watch.begin()
    one = partial(search_one, chain, cluster, job, threads=threads, any_plan=any_plan, top=top,
                  watch=watch, beyond_stack=beyond_stack, known=known or kept_signatures(
                      chain, job, Kept() if kept is None else kept), kept=kept)
    if space.offload == ("none",):
        return one(space, below=below)
    found = list[Found]()
    for text in space.offload:
        # Of several plans, the next best of a way may be among the next best of all.
        limit = min([below, *(way.step_time for way in found if top == 1)])
        bounds = space.replace(**{
            name: tuple(value for value in values if space.allows(name, value))
            for name, values in Offload.of(text).needs.items()})
        way = one(bounds, below=limit, offload=text)
        plans = (way.configuration, *(plan for _, plan in way.others))
        if any(_fills_host(chain, cluster, job, plan) for plan in plans if plan is not None):
            spared = one(bounds, below=limit, offload=text, spare_host=True)
            way = spared._replace(others_proved=False).after(way)
        found.append(way)
        if any_plan and way.configuration is not None:
            break
    # Where nothing fits, the way that needs least says by how much.
    best = min(found, key=lambda way: (way.step_time, way.builder.needs.min(initial=np.inf)))
    whole = best
    for way in found:
        whole = whole if way is best else whole.after(way)
    return whole if top == 1 else whole._replace(
        others=_ranked(found, job)[1:top], others_proved=all(way.others_proved for way in found))


def kept_signatures(chain: Chain, job: Job, kept: Kept) -> Signatures:
    """Signatures of a chain; the job's where they tell bytes that are relayed or received."""
    same = chain.is_chain and not job.stack.receives_all
    return kept.of(("signatures", Same(chain), None if same else job),
                   lambda: signatures(chain, job))


def _fills_host(chain: Chain, cluster: Cluster, job: Job, plan: Configuration) -> bool:
    """Whether a plan needs more memory of a host than there is."""
    if plan.offload == "none":
        return False
    pricing = Pricing(chain, cluster, job)
    return any(
        pricing.hosted(plan, number, pricing.stage(plan, stage)) > pricing.host_limit(plan, stage)
        for number, stage in enumerate(plan.stages))


def _ranked(found: list[Found], job: Job) -> list[tuple[float, Configuration]]:
    """The best of each distinct plan of all ways."""
    least: dict[Any, tuple[float, Configuration]] = {}
    every = [pair for way in found for pair in ((way.step_time, way.configuration), *way.others)]
    for seconds, plan in sorted(every, key=lambda pair: pair[0]):
        if plan is not None:
            key = distinct(plan.outer_dp, plan.micro_batch, plan.pp, plan.vpp, plan.schedule,
                           job.global_batch // (plan.outer_dp * plan.micro_batch))
            least.setdefault(key, (seconds, plan))
    return [*least.values()]
