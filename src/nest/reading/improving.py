"""The public function :func:`improve`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from nest.api import Planner
from nest.describe.arguments import need
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration
from nest.describe.job import Job, Stack
from nest.describe.loading import load_stack
from nest.describe.model import Model
from nest.describe.space import SearchSpace
from nest.errors import (
    InfeasibleError,
    InputError,
    KernelError,
    LimitError,
    NestError,
    UnsupportedError,
)
from nest.exports import megatron
from nest.exports.figures import figures
from nest.exports.launchers import DEFAULT, LAUNCHERS
from nest.exports.places import MOST_PER_NODE, Places, per_node, places
from nest.exports.targets import TARGETS
from nest.pricing.evaluation import evaluate
from nest.pricing.plans import Plan
from nest.reading import edit, flags
from nest.reading.arguments import arguments_of, known
from nest.reading.batches import bounded, common_batch
from nest.reading.improvement import Change, Improvement
from nest.reading.megatron import Described, described
from nest.reading.megatron_arguments import TABLE
from nest.reading.places import devices_of
from nest.reading.remade import NAME, remade
from nest.reading.run import Launch, followed, name_of, opened, placed_beside

if TYPE_CHECKING:
    from nest.search.progress import Follower

OVERLAPS = {"overlap-grad-reduce": "overlap_grad_reduce",
            "overlap-param-gather": "overlap_param_gather", "tp-comm-overlap": "overlap_tp"}
"""Arguments that switch overlap on, and the field of a stack that prices it."""
MAPPED = "--use-tp-pp-dp-mapping"
"""The argument by which ranks go replica by replica."""
SHOWN = ("tp", "sp", "pp", "vpp", "cp", "cp_comm", "ep", "etp", "dp", "outer_dp", "micro_batch",
         "micro_batches", "schedule", "group", "zero", "shard", "recompute", "recompute_modules",
         "recompute_layers")
"""Figures of a plan that a difference lists."""
ORDER = ('Ranks of nodes: the first node of "$here/hosts" is rank 0, the next one rank 1, and so '
         "on; nodes are numbered as in the cluster, from 0.")
"""Comment of a script whose nodes have another order than those of the cluster."""
UNSET = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
"""Variables that mean this where they are not set (CUDA C++ Programming Guide, CUDA Environment
Variables)."""
LEAST = 1e-9
"""Share of a step below which a plan is not faster; seconds that each search has at least."""


class _Asked(NamedTuple):
    """A launch script and how it is to be read."""

    path: str
    launch: Launch
    described: Described
    model: Model
    job: Job
    cluster: Cluster
    again: Mapping[str, Any]
    """Arguments of :func:`described` besides words, devices and places."""


def improve(
    path: str | os.PathLike[str], cluster: Cluster, space: SearchSpace | None = None, *,
    vocab: int | None = None, stack: str | None = None,
    variables: Mapping[str, str] | None = None, ignore: Sequence[str] = (),
    keep: Sequence[str] = (), in_place: bool = False, threads: int | None = None,
    time_limit: float | None = None, progress: Follower | None = None,
) -> Improvement:
    """Price what a launch script of Megatron-LM does, and find the fastest plan in its place.

    Devices, global batch, length and number formats stay as they are, and so does the software: the
    plan is the fastest that the script's stack can run. Overlap that this software has and the
    script does not ask for is switched on, and tokens are not gathered for experts
    (``--moe-token-dispatcher-type alltoall``); nothing changes a number that is computed.

    Parameters
    ----------
    path : of the launch script; it is read as text and never executed.
    cluster : that it runs on, with as many devices as the job takes.
    space : bounds of the plan; default: everything that the stack can run.
    vocab, stack, variables, ignore : as of :func:`nest.read`.
    keep : arguments that are not switched on, without hyphens: those of ``OVERLAPS`` and
        moe-token-dispatcher-type.
    in_place : only plans that arguments say alone, without a list of nodes or ranks, so that the
        script keeps its launcher.
    threads, time_limit, progress : as of :func:`nest.plan`.

    Returns
    -------
    Improvement
        With both plans, the difference, and the text of the new script in ``files``. It is the old
        one with arguments replaced, or a new one where that cannot say the plan.

    Raises
    ------
    InputError : as :func:`nest.read`, but for configurations that do not fit these devices.
    InfeasibleError : nothing fits.
    LimitError : no plan was found in time.
    """
    need("cluster", cluster, (Cluster,), 'nest.load_network("dgx-h100")')
    keep = _checked(keep)
    asked = _asked(path, cluster, vocab, stack, variables, ignore)
    before, problems, notes = _before(asked)
    notes = (*asked.described.notes, *notes)
    given, _ = arguments_of(asked.launch.words, known(TABLE))
    spaces = [*_spaces(before, space, in_place)]
    if common := common_batch(given, asked.job.global_batch):
        notes += (f"batches of the schedule are multiples of {common}: micro-batch x data "
                  "parallel size divides it",)
        spaces = [part for each in spaces for part in bounded(each, common)]
    plan, nothing = _fastest(
        asked, spaces, [*_stacks(asked, keep)], in_place,
        time_limit, {"threads": threads, "progress": progress})
    if nothing is not None and (before is None or not before.feasible):
        raise nothing
    runs = before is not None and not problems
    if plan is None or (runs and before is not None and plan.step_time_s >= before.step_time_s * (
            1.0 - LEAST)):
        return Improvement(
            script=asked.launch.where, line=asked.launch.command.line, notes=notes, before=before,
            problems=problems, plan=None, faster=None, options=(), arguments=(), files={})
    files, changes, refused = _written(asked, before, plan)
    return Improvement(
        script=asked.launch.where, line=asked.launch.command.line, notes=notes,
        before=before, problems=problems, plan=plan,
        faster=None if before is None else before.step_time_s / plan.step_time_s - 1.0,
        options=tuple(_options(before, plan)), arguments=changes, refused=refused, files=files)


def _checked(keep: Sequence[str]) -> tuple[str, ...]:
    allowed = (*OVERLAPS, "moe-token-dispatcher-type")
    found = tuple(str(name).removeprefix("--") for name in keep)
    for name in found:
        if name not in allowed:
            raise InputError(f"keep: got {name[:60]!r}; allowed: {', '.join(allowed)}")
    return found


def _asked(
    path: str | os.PathLike[str], cluster: Cluster, vocab: int | None, stack: str | None,
    variables: Mapping[str, str] | None, ignore: Sequence[str],
) -> _Asked:
    launch = opened(path, variables)
    again: dict[str, Any] = {"name": name_of(path), "vocab": vocab, "stack": stack,
             "ignored": tuple(one.removeprefix("--") for one in ignore)}
    found = described(launch.words, cluster.size, lenient=True,
                      places=placed_beside(path, launch.launcher), **again)
    return _Asked(os.fspath(path), launch, found, Model.parse(found.model, launch.where),
                  Job.parse(found.job, launch.where), cluster, again)


def _before(asked: _Asked) -> tuple[Plan | None, tuple[str, ...], tuple[str, ...]]:
    """The plan of a script, why it cannot run, and what was assumed."""
    if asked.described.problem:
        return None, tuple(asked.described.problem.splitlines()), ()
    notes: tuple[str, ...] = ()
    try:
        found = _evaluated(asked, asked.described)
    except InputError as error:
        if "straddle" not in str(error):
            return None, tuple(str(error).splitlines()), ()
        try:  # ranks stage by stage leave groups of the cluster partly used
            found = _evaluated(asked, described(
                (*asked.launch.words, MAPPED), asked.cluster.size, **asked.again))
        except InputError:
            return None, tuple(str(error).splitlines()), ()
        notes = ("ranks are priced replica by replica: stages straddle groups of the cluster",)
    return found, (*found.problems, *(one.sentence for one in found.not_runnable)), notes


def _evaluated(asked: _Asked, found: Described) -> Plan:
    return evaluate(asked.model, asked.cluster, asked.job, Configuration.parse(
        found.configuration, asked.launch.where))


# ---------------------------------------------------------------- the search


def _fastest(
    asked: _Asked, spaces: Sequence[SearchSpace], stacks: Sequence[Stack], in_place: bool,
    time_limit: float | None, options: Mapping[str, Any],
) -> tuple[Plan | None, InfeasibleError | None]:
    """The fastest plan of several spaces and stacks, or why nothing fits.

    Raises
    ------
    InputError : no space has a legal value in each dimension.
    LimitError : no plan was found in time.
    """
    planner, best = Planner(), None
    nothing: dict[type[NestError], NestError] = {}
    ends = None if time_limit is None else time.monotonic() + time_limit
    for stack, space in product(stacks, spaces):
        left = None if ends is None else max(LEAST, ends - time.monotonic())
        try:
            found = planner.plan(asked.model, asked.cluster, asked.job.replace(stack=stack), space,
                                 time_limit=left, **options)
        except (InfeasibleError, InputError, LimitError) as error:
            nothing.setdefault(type(error), error)
            continue
        if not (in_place and found.launch_needs) and (
                best is None or found.step_time_s < best.step_time_s):
            best = found
    infeasible = nothing.get(InfeasibleError)
    if best is None and (other := nothing.get(LimitError) or (
            None if infeasible else nothing.get(InputError))):
        raise other
    assert infeasible is None or isinstance(infeasible, InfeasibleError)
    return best, infeasible if best is None else None


def _stacks(asked: _Asked, keep: Sequence[str]) -> Iterator[Stack]:
    """The software of a job with what it can switch on and computes no number otherwise."""
    own = asked.job.stack
    base = load_stack(_base(asked))
    changes = {field: getattr(base, field) for name, field in OVERLAPS.items()
               if name not in keep and getattr(own, field) != getattr(base, field)}
    stack = own.replace(**changes) if changes else own
    yield stack
    if own.dispatcher == "allgather" and asked.model.moe and (
            "moe-token-dispatcher-type" not in keep):
        yield stack.replace(dispatcher="alltoall")


def _base(asked: _Asked) -> str:
    given = asked.described.job["stack"]
    return str(given["base"] if isinstance(given, dict) else given)


def _spaces(
    before: Plan | None, space: SearchSpace | None, in_place: bool
) -> Iterator[SearchSpace]:
    """The space asked for; if none is, also what the script does and no search tries by itself."""
    bounds = [space or SearchSpace()]
    if before is not None and space is None:
        way, stage = before.configuration, before.configuration.stages[0]
        if way.schedule == "combined":
            bounds.append(SearchSpace(schedule=("combined",)))
        if way.offload != "none":
            bounds.append(SearchSpace(offload=(way.offload,)))
        if {"mlp", "mla_up_proj", "shared_experts"} & {*stage.recompute_modules}:
            bounds.append(SearchSpace(recompute_modules=("+".join(stage.recompute_modules),)))
    # Ranks go stage by stage, or with a flag replica by replica.
    ways = ("pp", "outer_dp", "dp_in") if in_place else ("",)
    for each, name in product(bounds, ways):
        if not name:
            yield each
        elif each.allows(name, 1):
            yield each.replace(**{name: 1})


# ---------------------------------------------------------------- the difference


def _options(before: Plan | None, plan: Plan) -> Iterator[Change]:
    """The difference in the words of plans."""
    model = plan.inputs.model
    experts = model is not None and model.moe is not None
    old, new = ({} if one is None else {
        **{name: figures(one.inputs.job, one.configuration)[name] for name in SHOWN},
        "layout": one.layout, "offload": one.parallelism.offload,
        "dispatcher": one.inputs.job.stack.dispatcher} for one in (before, plan))
    for name, value in new.items():
        if name in ("ep", "etp", "dispatcher") and not experts:
            continue
        if old and old[name] != value:
            yield Change(name=name, before=_text(old[name]), after=_text(value))
        elif not old and name in SHOWN and value not in (None, ()):
            yield Change(name=name, before="", after=_text(value))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def _written(
    asked: _Asked, before: Plan | None, plan: Plan
) -> tuple[dict[str, str], tuple[Change, ...], tuple[str, ...]]:
    """Files of a plan by name, the difference in arguments, and why there are none."""
    stack = plan.inputs.job.stack.capabilities
    if stack is None or (stack.software, stack.version) not in TARGETS["megatron"].rules:
        what = "an unknown version" if stack is None else f"{stack.software} {stack.version}"
        return {}, (), (f"a script is written for {megatron.VERSION}, and the stack is {what}",)
    table = known(TABLE)
    given, _ = arguments_of(asked.launch.words, table)
    try:
        new = flags.said(plan, flags.mapped(plan))
        old = flags.unpriced(given, new) if before is None else flags.said(
            before, MAPPED[2:] in given)
    except UnsupportedError as error:
        return {}, (), error.problems
    change = flags.changed(given, old, new, plan)
    files = _files(asked, plan, change)
    names = dict.fromkeys((*change.taken, *change.given))
    lines = (Change(name=f"--{name}", before=_said(given, name), after=_said(change.given, name))
             for name in names)
    return files, tuple(line for line in lines if line.before != line.after), ()


def _said(given: Mapping[str, tuple[str, ...]], name: str) -> str:
    return (" ".join(given[name]) or "given") if name in given else ""


def _files(asked: _Asked, plan: Plan, change: flags.Flags) -> dict[str, str]:
    launch, table = asked.launch, known(TABLE)
    each = int(launch.launcher.get("each", "0"))
    if not 1 <= each <= MOST_PER_NODE:  # a launcher that starts all ranks says nothing of nodes
        each = per_node(asked.cluster)
    found = places(TARGETS["megatron"].order(plan), each,
                   in_a_row=asked.cluster.numbers is None)
    title = f"{asked.model.name}, {asked.cluster.size} devices: for {megatron.VERSION}."
    listed = LAUNCHERS[DEFAULT].files(found, title)
    wanted = {name: value for name, value in megatron.variables(
        plan.configuration, plan.inputs.job, asked.cluster.device.name).items()
        if launch.command.variables.get(name, UNSET.get(name)) != value}
    own = placed_beside(asked.path, launch.launcher) is not None  # it orders its nodes itself
    other = own or "ranks" in listed or len(found.at) != asked.cluster.size
    text = None if other else edit.edited(
        launch, change, table, wanted, ORDER if "hosts" in listed else "")
    name = os.path.basename(asked.path)
    if text is None:
        marked, _ = arguments_of(launch.marked, table)
        given, _ = arguments_of(launch.words, table)
        text, name = remade(launch, plan, flags.applied(given, change), marked, found,
                            (title,)), NAME
    files = {name: text, **listed}
    _check(asked, plan, files, name, found)
    return files


def _check(
    asked: _Asked, plan: Plan, files: Mapping[str, str], name: str, at: Places
) -> None:
    """Read a new script: it must have the plan's step time.

    Raises
    ------
    KernelError : it has another one.
    """
    launch = followed(files[name], asked.launch.where, asked.launch.given, asked.launch.folder)
    where = f"{asked.launch.where}, changed"
    hosts, ranks = files.get("hosts"), files.get("ranks")
    found = described(
        launch.words, len(at.at), **asked.again,
        places=devices_of(hosts, ranks, at.each or at.per_node or 1, where)
        if hosts or ranks else None)
    priced = evaluate(Model.parse(found.model, where), asked.cluster, Job.parse(found.job, where),
                      Configuration.parse(found.configuration, where))
    if priced.step_time_s != plan.step_time_s:
        raise KernelError(f"the new script takes {priced.step_time_s} s by what it says, the plan "
                          f"{plan.step_time_s} s")
