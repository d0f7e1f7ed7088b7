"""Several planners on the same model, cluster, job and space."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nest.errors import InputError, NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plan_file import reread
from nest.evaluation.plans import Plan
from nest.evaluation.problems import told
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace
from nest.model.legality import sequence_problem, space_problems
from nest.planners.prices import outside
from nest.planners.registry import PlanningMethod, made, named, registered
from nest.plugins import Registration, UnusablePlugin
from nest.stacks import choice_problems, settled
from nest.units import shorten


class ComparedPlan(NamedTuple):
    """The plan of one planner, and the time to find it."""

    planner: str
    plan: Plan | None
    """The plan of :func:`nest.evaluate`; None where the planner found none."""
    reason: str | None
    """Why there is no plan, or what does not fit; None for a plan that fits."""
    search_seconds: float
    """Without compiling kernels."""

    @property
    def feasible(self) -> bool:
        return self.plan is not None and self.plan.feasible

    def document(self) -> dict[str, Any]:
        """Plain data for programs."""
        plan = self.plan
        return {
            "planner": self.planner, "feasible": self.feasible, "reason": self.reason,
            "runnable": None if plan is None else plan.runnable,
            "step_time_s": None if plan is None else plan.step_time_s,
            "tokens_per_s": None if plan is None else plan.tokens_per_s,
            "peak_memory_bytes": None if plan is None else peak_memory(plan),
            "search_seconds": self.search_seconds,
            "plan": None if plan is None else plan.model_dump(mode="json", by_alias=True),
        }


def compare(
    model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace | None = None,
    names: Iterable[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[ComparedPlan, ...]:
    """Run planners one after another; a planner that finds nothing has an entry, too.

    A planner of another package that cannot be used or fails has an entry that says so.

    Parameters
    ----------
    model, cluster, job : what is trained, where, how.
    space : what may be chosen; default: everything legal.
    names : of :func:`nest.planners.registered`, in the order of the answer; default: all.
    options : of each planner, by its name.

    Raises
    ------
    InputError
        Model, cluster, job and space are incompatible, or a planner is unknown.
    """
    space = space or SearchSpace()
    chain = chain_of(model)
    problems = [*filter(None, [sequence_problem(chain, job)])]
    problems += [*space_problems(chain, cluster, job, space),
                 *choice_problems(cluster, job, space)]
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    known = registered()
    made = [_made(named(name, known), (options or {}).get(name, {}))
            for name in (known if names is None else names)]
    job, found = settled(cluster, job, space), list[ComparedPlan]()
    for one in made:
        entry = _entry(one.name, one, model, cluster, job, space)
        found.append(entry)
        if one.name == "nest" and entry.plan is not None:
            # No other method chooses software: all have what NEST chose.
            job = entry.plan.inputs.job
    return tuple(found)


def _made(one: Registration, options: Mapping[str, Any]) -> PlanningMethod:
    """A planner; of another package, it is checked at every step."""
    if one.package is None:
        return made(one, options)
    try:
        return _Checked(one.name, made(one, options))
    except UnusablePlugin as error:
        return _Checked(one.name, None, str(error))


class _Checked(NamedTuple):
    """A planner of another package: what it does wrong is told in its entry, and in no other."""

    name: str
    planner: PlanningMethod | None
    problem: str = ""

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Its plan, priced once more; see :class:`nest.planners.registry.PlanningMethod`."""
        if self.planner is None:
            raise NoPlanError(self.problem)
        try:
            found = self.planner.plan(model, cluster, job, space).configuration
            left = outside(space, chain_of(model), found)
            if left is not None:
                raise NoPlanError(f"its plan is not within the space: {left}")
            return evaluate(model, cluster, job, found)
        except NoPlanError:
            raise
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise NoPlanError(f"the planner of another package failed: {said}") from error


def _entry(
    name: str, one: PlanningMethod, model: Model | Profile, cluster: Cluster, job: Job,
    space: SearchSpace,
) -> ComparedPlan:
    started = time.perf_counter()
    plan, reason = None, None
    try:
        if cluster.types and name != "nest" and not isinstance(one, _Checked):
            names = ", ".join(device.name for device in cluster.device_types)
            raise NoPlanError(f"assumes devices of one type; here they are {names}")
        plan = one.plan(model, cluster, job, space)
    except NoPlanError as error:
        reason = str(error)
    seconds = time.perf_counter() - started
    if plan is not None:
        if plan.search is not None:
            seconds -= plan.search.compile_seconds
        reason = None if plan.feasible else shortage(plan)
    return ComparedPlan(name, plan, reason, seconds)


def shortage(plan: Plan) -> str:
    """The stage that lacks most memory, its missing bytes and cause, and the number of others."""
    short = [s.memory_bytes.total - s.memory_limit_bytes for s in plan.stages
             if s.memory_bytes.total > s.memory_limit_bytes]  # a problem each, in this order
    others = len(short) - 1
    more = f" (and {others} more stage{'s' if others > 1 else ''})" if others else ""
    return f"runs out of memory: {plan.problems[short.index(max(short))]}{more}"


def peak_memory(plan: Plan) -> float:
    """Bytes on the fullest device."""
    return max(stage.memory_bytes.total for stage in plan.stages)


def to_json(entries: Iterable[ComparedPlan]) -> str:
    """The entries as the text of one JSON document."""
    return json.dumps([entry.document() for entry in entries], indent=2)


def entries_of(data: Sequence[Any], where: str) -> tuple[ComparedPlan, ...]:
    """The entries of such a document; their plans are priced again.

    Parameters
    ----------
    where : its file, for messages.

    Raises
    ------
    InputError : an entry is none, or its plan is not legal.
    """
    found = []
    for number, one in enumerate(data):
        place = f"{where}: [{number}]"
        if not isinstance(one, dict) or not isinstance(one.get("planner"), str):
            raise InputError(f"{place}: got {shorten(one)}; allowed: an entry as `nest compare "
                             "--json` writes it")
        seconds, reason, plan = one.get("search_seconds"), one.get("reason"), one.get("plan")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise InputError(f"{place}: search_seconds: got {shorten(seconds)}; allowed: seconds")
        if not isinstance(reason, (str, type(None))):
            raise InputError(f"{place}: reason: got {shorten(reason)}; allowed: a text or null")
        if not isinstance(plan, (dict, type(None))):
            raise InputError(f"{place}: plan: got {shorten(plan)}; allowed: a plan or null")
        with told(place):
            priced = None if plan is None else reread(plan)[0]
        found.append(ComparedPlan(one["planner"], priced, reason, float(seconds)))
    if not found:
        raise InputError(f"{where}: got no entry; allowed: at least one planner")
    return tuple(found)
