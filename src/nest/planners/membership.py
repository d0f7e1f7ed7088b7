"""Whether a configuration lies in a search space."""

from __future__ import annotations

from collections.abc import Iterator

from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.schedules import group_of
from nest.planners.prices import degrees_of
from nest.schedules.registry import is_grouped


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
