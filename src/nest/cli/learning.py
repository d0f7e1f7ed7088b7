"""`nest learn` and `nest next`: what own runs say of prices, and what to run next."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from nest.cli import options, output
from nest.cli.measured import check_yaml, hand_over
from nest.cli.options import argument, fraction, number, text
from nest.cli.progress import Follow, progress
from nest.errors import InputError


def learn(
    sources: Annotated[list[str], argument(
        "Tables of runs (.csv, docs/accuracy.md), where a row without a step time ran out of "
        "memory; plans with the seconds that a step took, PLAN.json:6.2, or PLAN.json:oom; logs of "
        "runs (docs/read.md); files that were learned before.", "RUN...")],
    stack: Annotated[str | None, text(
        "Price all runs with this stack, a name (`nest list stacks`) or a file; default: the one "
        "of the runs.", "NAME")] = None,
    gpu: Annotated[str | None, text(
        "Device of runs whose log does not print it; a name of `nest list devices` or such as "
        "H100.", "NAME")] = None,
    target: Annotated[str | None, text(
        "Also write what was learned, for --learned and `nest next`.", "FILE.yaml", "--output",
        "-o")] = None,
) -> None:
    """Learn from runs of your own, for the prices of the next plans.

    Times, memory and runs that ran out of memory count. One run is enough to begin with. What no
    run has told keeps the catalog's figure and its doubt.
    """
    check_yaml(target)
    from nest.inputs import load_stack
    from nest.measured.learning import learn as taught_by
    from nest.report.learning_text import learned_text

    found = taught_by(sources, None if stack is None else load_stack(stack), gpu)
    hand_over(learned_text(found, **output.page()), (
        target, found.as_data, "nest next MODEL CLUSTER --learned {} ..."))


def following(
    names: Annotated[list[str], argument("As for `nest plan`.", "MODEL CLUSTER")],
    *,
    problem: options.ProblemOptions,
    space: options.SpaceOptions,
    runs: Annotated[int, number("Runs to choose at the most; 1 (default) to 20.")] = 1,
    worth: Annotated[float, fraction(
        "Share of the best step so far that a run must be expected to save; default 0.5%."
    )] = 0.005,
    folder: Annotated[str | None, text(
        "Also write the plans, as next-1.json and so on; created if missing.", "DIR", "--output",
        "-o")] = None,
    time_limit: options.TimeLimit = None,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Choose what to run next, after what was learned.

    What is likely best, or tells most about it, comes first. At most one of the runs is a risk of
    memory. Where no run is worth it any more, it says so. Give the results to `nest learn`, with
    what was learned before.
    """
    options.check_counts(runs=runs)
    if problem.learned is None:
        raise InputError("--learned: missing; needed: a file of `nest learn -o`; before the first "
                         "run, `nest plan` says what to run")
    subject, cluster = problem.subject_and_cluster(names)
    # Runs may be chosen up to the edge of memory; the chance to fit counts instead of a margin.
    job = replace(problem, memory_margin=problem.memory_margin or 0.0).described_job(cluster)
    from nest import api
    from nest.inputs import write_text_atomic
    from nest.measured.learning import following as choose
    from nest.measured.learning import load_learned
    from nest.measured.learning.following import CANDIDATES, candidates
    from nest.report.learning_text import next_text

    known = load_learned(problem.learned)
    what = f"{subject.name[:30]} on {cluster.size:,} devices"
    with progress(quiet), Follow(what, quiet) as follow:
        best = api.plan(subject, cluster, job, space=space.described(), threads=threads,
                        top=CANDIDATES, time_limit=time_limit, progress=follow)
    follow.reraise()
    plans, points = candidates(best, known)
    found = choose(known.observations, points, runs, worth)

    def write() -> None:
        if folder is None:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for place, one in enumerate(found, 1):
            write_text_atomic(Path(folder) / f"next-{place}.json", plans[one.number].to_json())

    output.deliver(partial(next_text, found, plans, folder, **output.page()), write)
