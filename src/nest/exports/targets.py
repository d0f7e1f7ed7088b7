"""The software that plans are exported to, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from nest.describe.given import need, need_count
from nest.errors import InputError, UnsupportedError, did_you_mean
from nest.exports import megatron
from nest.exports.places import per_node, places
from nest.exports.script import Script, places_files, script_text
from nest.pricing.plans import Plan
from nest.units import format_seconds, shorten

Files = dict[str, str]
LAUNCH = "launch.sh"


def export(plan: Plan, target: str, *, gpus_per_node: int | None = None) -> Files:
    """Write a plan as the files that its software is launched with.

    Parameters
    ----------
    plan : one that ``target`` runs; what it cannot express is refused.
    target : "megatron": the launch script of Megatron-LM.
    gpus_per_node : devices of a node; default: those of the innermost level of the cluster, or 4
        where that is a rack (more than 16 devices).

    Returns
    -------
    Texts of the files by name: a script, and where the ranks need it a list of nodes (``hosts``)
    or of ranks (``ranks``).

    Raises
    ------
    InputError : no target, no plan, or nodes that do not divide the cluster.
    UnsupportedError : the plan does not fit, its stack is not the target's, or the target cannot
        express it; one sentence for each.
    """
    need("plan", plan, (Plan,), 'nest.load_plan("plan.json")')
    need_target(target)
    if gpus_per_node is not None:
        gpus_per_node = need_count("gpus_per_node", gpus_per_node)
    return TARGETS[target](plan, gpus_per_node)


def need_target(target: object) -> None:
    """Refuse what is no target.

    Raises
    ------
    InputError : it is none; lists those there are.
    """
    if not isinstance(target, str) or target not in TARGETS:
        near = did_you_mean(target, TARGETS) if isinstance(target, str) else ""
        raise InputError(
            f"target: got {shorten(target)}; {near}allowed: {', '.join(TARGETS)}")


def _refuse(problems: list[str], target: str) -> None:
    if problems:
        raise UnsupportedError("\n".join(
            [f"{target} cannot launch this plan:", *problems]), tuple(problems))


def _common(plan: Plan, software: tuple[str, ...], version: str, stacks: str) -> list[str]:
    """Why a plan is not for some software."""
    known = plan.inputs.job.stack.capabilities
    name = plan.inputs.job.stack.name
    if known is None or known.software not in software or known.version != version:
        what = "not known what it runs" if known is None else f"{known.software} {known.version}"
        return [f"stack {name} ({what}): plan for {stacks} (--stack), whose prices and rules are "
                "the target's"]
    return [*(finding.sentence for finding in plan.not_runnable), *plan.problems]


def _megatron(plan: Plan, gpus_per_node: int | None) -> Files:
    model, job, way = plan.inputs.model, plan.inputs.job, plan.configuration
    problems = _common(plan, megatron.SOFTWARE, megatron.RULES, "megatron-core or megatron-fsdp")
    if model is None:
        problems.append("inputs.profile: measured layers are no model that arguments describe")
    elif not problems:
        problems += megatron.inexpressible(model, job, way)
        if plan.layout is None and way.pp * way.vpp > 1:
            problems.append("layers of the chunks: --pipeline-model-parallel-layout has no text "
                            "for them")
    _refuse(problems, "megatron")
    assert model is not None
    listed = bool(plan.launch_needs)
    ranks = plan.ranks()
    if not megatron.replica_by_replica(way, listed):  # stage by stage
        ranks = tuple(sorted(ranks, key=attrgetter("stage")))
    found = places(ranks, per_node(plan.inputs.cluster, gpus_per_node))
    title = f"{model.name}, {len(ranks)} devices of {plan.inputs.cluster.name}"
    sections = megatron.arguments(model, job, way, plan.layout, listed)
    script = Script(
        title=(f"{title}: for {megatron.VERSION}.",
               f"Priced: {format_seconds(plan.step_time_s)} per step, "
               f"{plan.tokens_per_s:,.0f} tokens/s."),
        variables=megatron.variables(way, job, plan.inputs.cluster.device.name),
        asked=megatron.ASKED, given=megatron.data(model),
        sections={name: megatron.options(given) for name, given in sections.items() if given},
        program='"$MEGATRON/pretrain_gpt.py"', more=("DATA",))
    return {LAUNCH: script_text(script, found),
            **places_files(found, f"{title}: for {megatron.VERSION}.")}


TARGETS: Mapping[str, Callable[[Plan, int | None], Files]] = {"megatron": _megatron}
"""Targets by name: what makes their files of a plan and the devices of a node."""
