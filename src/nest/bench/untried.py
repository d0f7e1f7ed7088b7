"""Legal configurations that NEST's searches leave out, and that may therefore beat them."""

from __future__ import annotations

from nest.bench.instance import Instance
from nest.costs.network.placement import strides
from nest.inputs.configuration import Configuration
from nest.model import Chain
from nest.model.layouts import family
from nest.schedules.registry import UNLIKE, position
from nest.search.cut_lists import LONGEST


def untried(
    instance: Instance, chain: Chain, way: Configuration, runnable: bool | None
) -> str | None:
    """What of a legal configuration no search of the instance tries; None: nothing.

    Parameters
    ----------
    chain : the layers of the instance.
    runnable : the job's stack can run it.
    """
    cluster, space = instance.question.cluster, instance.question.space
    if way.stride not in strides(cluster.size, way.outer_dp, cluster.group_sizes):
        return f"stride {way.stride}"
    if way.group not in (None, way.pp):
        return f"group {way.group}"
    for stage in way.stages:
        if (space.recompute_modules is None and stage.recompute == "selective"
                and stage.recompute_modules not in chain.module_sets):
            return f"recompute of {', '.join(stage.recompute_modules)} together"
    if way.schedule not in UNLIKE and len(way.stages) * way.vpp > 1 and not _listed(
            chain, way, instance.beyond_stack and not runnable):
        return "its division into chunks"
    return None


def _listed(chain: Chain, way: Configuration, even: bool) -> bool:
    """Whether a search lists a division into chunks; ``even``: of equal chunks alone."""
    if len(chain) > LONGEST:
        return False
    spans = sorted((position(way.schedule, way.pp, s, n, way.vpp), span)
                   for s, stage in enumerate(way.stages) for n, span in enumerate(stage.chunks))
    cuts = [0, *(stop for _, (_, stop) in spans)]
    first, last = chain.body
    sizes = {min(max(stop, first), last) - min(max(start, first), last)
             for _, (start, stop) in spans}
    if even and len(sizes) > 1:
        return False
    return bool((family(chain, way.pp, way.vpp) == cuts).all(axis=1).any())
