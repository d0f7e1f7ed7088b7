"""The public function :func:`improve`, and the report of what it finds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from nest.api import Planner
from nest.errors import InfeasibleError, InputError, LimitError, NestError
from nest.evaluation.plans import Plan
from nest.frameworks.figures import figures
from nest.frameworks.improvement import Change, Improvement, RunningJob, WrittenFiles
from nest.frameworks.megatron.running import RunningScript
from nest.frameworks.reader import check_ignored, names_of, names_of_words, opened
from nest.frameworks.running_file import RunningFile
from nest.frameworks.source import Stated
from nest.inputs.arguments import need, takes
from nest.inputs.cluster import Cluster
from nest.inputs.job import Stack
from nest.inputs.model import Model
from nest.inputs.space import SearchSpace
from nest.report.page import Page
from nest.report.plan_text import proved, sure
from nest.units import format_bytes, format_seconds, shorten

if TYPE_CHECKING:
    from nest.search.progress import Follower

SHOWN = ("tp", "sp", "pp", "vpp", "cp", "cp_comm", "cp_a2a", "ep", "etp", "dp", "outer_dp",
         "micro_batch",
         "micro_batches", "schedule", "group", "zero", "shard", "recompute", "recompute_modules",
         "recompute_layers")
"""Figures of a plan that a difference lists."""
LEAST = 1e-9
"""Share of a step below which a plan is not faster; seconds that each search has at least."""


@takes(path="path", target="text", vocab="whole", seq_len="whole", precision="text",
       optimizer="text", stack="text", function="text", variables="mapping", ignore="texts",
       keep="texts", launch="whole", time_limit="number", progress="function")
def improve(
    path: str | os.PathLike[str], cluster: Cluster, space: SearchSpace | None = None, *,
    target: str | None = None, model: Model | str | None = None, vocab: int | None = None,
    seq_len: int | None = None, precision: str | None = None, optimizer: str | None = None,
    stack: str | None = None, function: str | None = None,
    variables: Mapping[str, str] | None = None, ignore: Sequence[str] = (),
    keep: Sequence[str] = (), in_place: bool = False, launch: int | None = None,
    threads: int | None = None, time_limit: float | None = None, progress: Follower | None = None,
) -> Improvement:
    """Price what a job's own file does, and find the fastest plan in its place.

    Devices, global batch, length and number formats stay as they are, and so does the software: the
    plan is the fastest that the file's stack can run. Overlap that this software has and the
    file does not ask for is switched on, and Megatron-LM does not gather tokens for experts
    (``--moe-token-dispatcher-type alltoall``); nothing changes a number that is computed.

    Parameters
    ----------
    path : of a launch script or a configuration file; it is read as text and never executed.
    cluster : that it runs on, with as many devices as the job takes.
    space : bounds of the plan; default: everything that the stack can run.
    target, model, vocab, seq_len, precision, optimizer, stack, function, variables, ignore, launch
        : as of :func:`nest.read`.
    keep : what is not switched on: arguments of Megatron-LM without hyphens, settings of other
        files by name.
    in_place : scripts of Megatron-LM: only plans that arguments say alone, without a list of nodes
        or ranks, so that the script keeps its launcher. Other files have no such plans.
    threads, time_limit, progress : as of :func:`nest.plan`.

    Returns
    -------
    Improvement
        With both plans, the difference, and the texts of the new files in ``files``. They are the
        old ones with settings replaced, or a new script where that cannot say the plan.

    Raises
    ------
    InputError : as :func:`nest.read`, but for command lines that do not fit these devices.
    InfeasibleError : nothing fits.
    LimitError : no plan was found in time.
    """
    need("cluster", cluster, (Cluster,), 'nest.load_network("dgx-h100")')
    need("space", space, (SearchSpace, type(None)), "nest.SearchSpace(tp=8)")
    ignored = tuple(one.removeprefix("--") for one in ignore)
    asked = Stated(model, vocab, seq_len, precision, optimizer, stack, cluster.size, ignored,
                  function)
    file = opened(path, target, asked, variables, launch)
    running: RunningJob
    if file is None:
        running = RunningScript.read(path, cluster, vocab, stack, variables, ignored, in_place,
                                     launch)
        names = names_of_words(running.launch.words)
    else:
        running = RunningFile.read(file, cluster)
        names = names_of(file.target, file.source) if ignored else []
    check_ignored(ignored, names, running.where)
    keep = _checked(keep, running.keeps)
    now = running.now()
    before, notes = now.plan, (*running.notes, *now.notes)
    found, unsaid, nothing = _fastest(
        running, [*running.spaces(before, space, keep)], time_limit,
        {"threads": threads, "progress": progress})
    if nothing is not None and (before is None or not before.feasible):
        raise nothing
    runs = before is not None and not now.problems
    if unsaid is not None and (found is None or _faster(unsaid.plan, found)):
        notes += (f"left out: a plan of {format_seconds(unsaid.plan.step_time_s)} per step; "
                  + "; ".join(unsaid.refused),)
    known = before if runs else None
    other = None if unsaid is None or unsaid.searched else unsaid.plan
    plan = next((one for one in (found, other) if one is not None
                 and (known is None or _faster(one, known))), None)
    written = WrittenFiles(refused=unsaid.refused if plan and unsaid else ())
    if plan is not None and plan is found:
        written = running.written(before, plan)
    return Improvement(
        target=running.target, script=running.where, line=running.line,
        notes=(*notes, *written.notes), before=before, problems=now.problems, plan=plan,
        faster=None if plan is None or before is None else
        before.step_time_s / plan.step_time_s - 1.0,
        options=() if plan is None else tuple(_options(before, plan)), arguments=written.changes,
        refused=written.refused, files=dict(written.files))


def _faster(plan: Plan, than: Plan) -> bool:
    return plan.step_time_s < than.step_time_s * (1.0 - LEAST)


def _checked(keep: Sequence[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(str(name).removeprefix("--") for name in keep)
    for name in found:
        if name not in allowed:
            raise InputError(f"keep: got {shorten(name)}; allowed: {', '.join(allowed) or 'none'}")
    return found


class _Unsaid(NamedTuple):
    """A plan that the files of a job cannot say."""

    plan: Plan
    refused: tuple[str, ...]
    """Why, a sentence each."""
    searched: bool
    """Parts of its space without such plans were searched."""


def _fastest(
    running: RunningJob, spaces: Sequence[tuple[Stack, SearchSpace]], time_limit: float | None,
    options: Mapping[str, Any],
) -> tuple[Plan | None, _Unsaid | None, InfeasibleError | None]:
    """The fastest plan of several spaces, the fastest that files cannot say, or why nothing fits.

    Raises
    ------
    InputError : no space has a legal value in each dimension.
    LimitError : no plan was found in time.
    """
    planner = Planner()
    best: Plan | None = None
    unsaid: _Unsaid | None = None
    nothing: dict[type[NestError], NestError] = {}
    ends = None if time_limit is None else time.monotonic() + time_limit
    # Parts of a space are searched best first: its best plan is no slower than theirs.
    left = [(0.0, number, *each) for number, each in enumerate(spaces)]
    numbers = count(len(left))
    while left:
        bound, _, stack, space = heappop(left)
        if best is not None and bound >= best.step_time_s:
            break
        seconds = None if ends is None else max(LEAST, ends - time.monotonic())
        # Libraries, graphs and formats stay as the file has them: they may need other software.
        same = running.job.replace(stack=stack.replace(choices={}))
        try:
            found = planner.plan(running.model, running.cluster, same, space,
                                 time_limit=seconds, **options)
        except (InfeasibleError, InputError, LimitError) as error:
            nothing.setdefault(type(error), error)
            continue
        if best is not None and found.step_time_s >= best.step_time_s:
            continue
        refused = running.lacks(found)
        if not refused:
            best = found
            continue
        finer = [*running.narrower(space, found)]
        for part in finer:
            heappush(left, (found.step_time_s, next(numbers), stack, part))
        if unsaid is None or (bool(finer), found.step_time_s) < (
                unsaid.searched, unsaid.plan.step_time_s):
            unsaid = _Unsaid(found, refused, bool(finer))
    if best is not None or unsaid is not None:
        return best, unsaid, None
    infeasible = nothing.get(InfeasibleError)
    if other := nothing.get(LimitError) or (None if infeasible else nothing.get(InputError)):
        raise other
    assert infeasible is None or isinstance(infeasible, InfeasibleError)
    return None, None, infeasible


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


LONGEST, SHORTEST = 46, 12
"""Characters of a value in a table: at most, and at least where lines would get too long."""


def improvement_text(
    found: Improvement, width: int = 80, colour: bool = False, unicode: bool = True
) -> str:
    """Give the report of an improvement.

    Parameters
    ----------
    found : what is shown.
    width, colour, unicode : as of :class:`nest.report.page.Page`.
    """
    page = Page(width, colour, unicode)
    known = found.plan or found.before
    job = "" if known is None else (
        f": {known.inputs.cluster.size:,} devices of {known.inputs.cluster.name}, "
        f"{known.inputs.job.global_batch:,} sequences of {known.inputs.job.seq_len:,} tokens, "
        f"{known.inputs.job.precision}, {known.inputs.job.stack.name}")
    script = found.target == "megatron"
    line = "" if found.line == 1 and not script else f", line {found.line}"
    page.fact("Script" if script else "File", f"{found.script}{line}{job}")
    page.fact("Now", "not priced" if found.before is None else speed(found.before))
    for problem in found.problems:
        page.fact("", f"cannot run: {problem}")
    if found.plan is None:
        page.fact("Better", "none found that the launcher can start" if found.problems
                  else "none: no plan that the stack can run is faster")
    else:
        more = "" if found.faster is None else f"; {100 * found.faster:+.1f} %"
        page.fact("Better", speed(found.plan) + more)
        for name, text in sure(found.plan):
            page.fact(name, text)
        page.fact("Optimal", proved(found.plan))
        for need in found.plan.launch_needs:
            page.fact("Launch", need.sentence)
    for note in found.notes:
        page.fact("Note", note)
    _table(page, "Plan", "", found.options)
    if script:
        _table(page, "Arguments of the script", "argument", found.arguments)
    else:
        _table(page, "Settings", "setting", found.arguments)
    if found.refused:
        page.blank()
        for reason in found.refused:
            page.fact("No script" if script else "No file", reason)
    return page.text()


def speed(plan: Plan) -> str:
    """Seconds, tokens and memory of a plan."""
    most = plan.stages[plan.fullest]
    return (f"{format_seconds(plan.step_time_s)} per step, {plan.tokens_per_s:,.0f} tokens/s, "
            f"{format_bytes(most.memory_bytes.total)} of {format_bytes(most.memory_limit_bytes)} "
            "on a device")


def _table(page: Page, title: str, head: str, lines: Sequence[Change]) -> None:
    if not lines:
        return
    page.blank()
    names = max(len(line.name) for line in lines)
    before = max(len("now"), *(len(_short(line.before, LONGEST)) for line in lines))
    places = max(len(line.line) for line in lines)
    wide = max(len("line"), places) + 2 if places else 0
    room = max(SHORTEST, page.width - names - before - wide - 4)
    rows = [(line.name, _short(line.before, LONGEST), _short(line.after, min(room, LONGEST)),
             *((line.line,) if places else ())) for line in lines]
    page.table(title, (head, "now", "better", *(("line",) if places else ())), rows, (0, 1, 2, 3))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 3] + "..."
