"""What each target says of itself, why a plan is refused, and a script with its lists of places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from nest.errors import UnsupportedError
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.hosts import RankPlaces
from nest.frameworks.script import LaunchScript, places_files, script_text
from nest.inputs.model import Model
from nest.units import format_seconds

Files = dict[str, str]
LAUNCH = "launch.sh"
_STATES = {"moment_dtype": "fp32", "master_copy": "true"}
"""What optimizers keep of parameters in 16 bits, as files are written."""


class Sheet(NamedTuple):
    """What the files of a plan are written from."""

    plan: Plan
    title: str
    """What is launched, for which version; one line."""
    priced: str
    """The price; one line."""
    places: RankPlaces
    launcher: str


class Target(NamedTuple):
    """Software that a plan can be written for."""

    version: str
    """Name and version, as the files say them."""
    rules: tuple[tuple[str, str], ...]
    """Software and version of the tables of rules that hold for it."""
    stacks: str
    """Stacks that have these, in words."""
    inexpressible: Callable[[Plan], Iterable[str]]
    """What it has no setting for, a sentence each; the rules of the stack are not repeated. Asked
    for plans that break none of these and have a model."""
    order: Callable[[Plan], tuple[Rank, ...]]
    """Ranks as it numbers them."""
    files: Callable[[Sheet], Files]
    """Texts by name, but for the places."""
    capacity: bool = False
    """It has settings for experts of limited capacity."""
    alone: bool = False
    """Each process is started by its rank, as torchrun and DeepSpeed do not know its variables."""


def refuse(target: Target, plan: Plan, name: str) -> None:
    """Raise if a target does not run a plan.

    Raises
    ------
    UnsupportedError : it does not fit, its stack is not the target's, or the target cannot
        express it; one sentence for each.
    """
    problems = [*_reasons(target, plan)]
    if problems:
        raise UnsupportedError("\n".join(
            [f"{name} cannot launch this plan:", *problems]), tuple(problems))


def _reasons(target: Target, plan: Plan) -> Iterator[str]:
    known, stack = plan.inputs.job.stack.capabilities, plan.inputs.job.stack.name
    if known is None or (known.software, known.version) not in target.rules:
        what = "not known what it runs" if known is None else f"{known.software} {known.version}"
        yield (f"stack {stack} ({what}): plan for {target.stacks} (--stack), whose prices and "
               "rules are the target's")
        return
    broken = [*(finding.sentence for finding in plan.not_runnable), *plan.problems]
    yield from broken
    if plan.inputs.model is None:
        yield "inputs.profile: measured layers are no model that settings describe"
    elif not broken:
        if plan.inputs.job.expert_capacity is not None and not target.capacity:
            yield ("job.expert_capacity: no setting of a capacity of experts is written; allowed: "
                   "null")
        yield from (f"stack.{name} {given}: what asks for it is not written; allowed: {usual}"
                    for name, usual in _STATES.items()
                    if (given := f"{getattr(plan.inputs.job.stack, name)}".lower()) != usual)
        yield from target.inexpressible(plan)


def sheet(target: Target, plan: Plan, places: RankPlaces, launcher: str) -> Sheet:
    """The sheet of a plan that a target runs."""
    name = plan.inputs.model.name if plan.inputs.model else plan.inputs.cluster.name
    return Sheet(
        plan=plan, title=f"{name}, {len(places.at)} devices of {plan.inputs.cluster.name}: for "
        f"{target.version}.",
        priced=f"Priced: {format_seconds(plan.step_time_s)} per step, "
        f"{plan.tokens_per_s:,.0f} tokens/s.", places=places, launcher=launcher)


def stage_by_stage(plan: Plan) -> tuple[Rank, ...]:
    """Ranks in the order of most software: the stages are outermost."""
    return tuple(sorted(plan.ranks(), key=attrgetter("stage")))


def model_of(plan: Plan) -> Model:
    """The model of a plan that was not refused."""
    assert plan.inputs.model is not None
    return plan.inputs.model


def written(given: Sheet, script: LaunchScript, files: Files) -> Files:
    """A script, what it hands to the program, and the lists of its places."""
    return {LAUNCH: script_text(script, given.places, given.launcher), **files,
            **places_files(given.places, given.title, given.launcher, script.variables)}
