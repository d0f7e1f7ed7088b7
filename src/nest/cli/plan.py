"""`nest plan`: the fastest plan that fits."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from nest.cli import options
from nest.cli.output import note
from nest.cli.present import PlanOutput
from nest.cli.progress import Follow, progress
from nest.errors import InputError


def _batches(text: str | int | range) -> int | range:
    low, dots, high = str(text).partition("..")
    if isinstance(text, range) or not dots:
        return text if isinstance(text, range) else options.whole(text)
    return range(options.whole(low), options.whole(high) + 1)


@dataclass(frozen=True, kw_only=True)
class BatchesOptions(options.ProblemOptions):
    """A problem whose batch may be any of a range."""

    global_batch: Annotated[int | None, options.text(
        "Sequences in one training step, or a range such as 4000..4200, of which the batch with "
        "the least time per sequence is taken.", "B", parser=_batches)] = None


@dataclass(frozen=True, kw_only=True)
class PlanSpaceOptions(options.SpaceOptions):
    """The space that NEST alone searches."""

    offload: Annotated[str | None, options.set_of(
        "What is kept in host memory: none (default), optimizer, optimizer:0.5, layers:8, "
        "core_attn+moe_act and so on (docs/offloading.md).")] = None


def plan(
    names: Annotated[list[str] | None, options.argument(
        "Catalog names (`nest list models`, `nest list clusters`) or files; CLUSTER may also be a "
        "graph (docs/topologies.md): a file, or a text such as fat-tree:k=8. Or - alone: a "
        "question as JSON on stdin (docs/planner.md).", "MODEL CLUSTER")] = None,
    *,
    problem: BatchesOptions,
    space: PlanSpaceOptions,
    top: Annotated[int | None, options.number(
        "Show the N best plans that differ in outer_dp, micro_batch, pp, vpp or schedule; 1 "
        "(default) to 100.")] = None,
    prefer: Annotated[str | None, options.text(
        "fastest (default), or measured: of plans that the error of prices does not tell apart, "
        "the one with the nearest measured runs, then the safest in memory.", "WHICH")] = None,
    time_limit: options.TimeLimit = None,
    beyond_stack: options.BeyondStack = False,
    try_fillings: Annotated[bool, options.text(
        "If groups are partly used, also try other numbers of devices per group for a faster "
        "plan.", None, "--try-fillings")] = False,
    keep_order: Annotated[bool, options.text(
        "Keep the device order of a graph; do not try other orders for a faster plan.", None,
        "--keep-order")] = False,
    threads: options.Threads = None,
    shown: PlanOutput,
) -> None:
    """Find the fastest plan that fits.

    Every plan that the job's stack can run is searched; a SET bounds one dimension of the search.
    Ctrl-C ends the search with the best plan so far and its gap.
    """
    shown.check()
    options.check_counts(threads=threads, top=top)
    if names == ["-"]:
        own = {"top": top, "time_limit": time_limit, "beyond_stack": beyond_stack or None,
               "prefer": prefer,
               "try_fillings": try_fillings or None, "keep_order": keep_order or None}
        _plan_question(options.given(problem) | options.given(space) | {
            name: value for name, value in own.items() if value is not None}, threads, shown)
        return
    subject, cluster = problem.subject_and_cluster(names or ())
    batch: Any = problem.global_batch  # as `_batches` reads it
    several = isinstance(batch, range)
    if several and not batch:
        raise InputError(f"global_batch: got {batch.start}..{batch.stop - 1}; allowed: from the "
                         "smaller to the larger number, such as 4000..4200")
    wanted = replace(problem, global_batch=batch[0] if several else batch).described_job(cluster)
    bounds = space.described()
    shown.check(cluster)
    from nest import api

    what = f"{subject.name[:30]} on {cluster.size:,} devices"
    with progress(shown.quiet), Follow(what, shown.quiet) as follow:
        ask = (partial(api.plan_batches, batches=batch) if several
               else partial(api.plan, near_batches=True))
        found = ask(subject, cluster, wanted, space=bounds, threads=threads, top=top or 1,
                    time_limit=time_limit, reorder=not keep_order, fillings=try_fillings,
                    beyond_stack=beyond_stack, prefer=prefer or "fastest", progress=follow)
    shown.present(found)
    follow.reraise()


def _plan_question(more: dict[str, Any], threads: int | None, shown: PlanOutput) -> None:
    """Read a question from stdin, and print its plan as JSON.

    Raises
    ------
    InputError : no question, or options that are part of it.
    """
    from nest.api import Planner
    from nest.inputs.files import LARGEST
    from nest.questions import read_question

    if more:
        raise InputError(f"arguments: got - with {options.spelled(sorted(more))}; allowed: the "
                         "question says it")
    text = b"" if sys.stdin is None else sys.stdin.buffer.read(LARGEST + 1)
    question, notes = read_question(text, "standard input")
    note(notes, "")
    shown.check(question.cluster)
    what = f"{question.subject.name[:30]} on {question.cluster.size:,} devices"
    with progress(shown.quiet), Follow(what, shown.quiet) as follow:
        found = Planner(0).answer(question, threads, follow)
    replace(shown, as_json=True).present(found)
    follow.reraise()
