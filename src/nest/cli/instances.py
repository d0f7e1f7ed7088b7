"""`nest bench instances`, `answers` and `score`: a set of planning problems for all planners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from nest.cli import options, output
from nest.errors import InputError

FOLDER = "nest-instances"
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="NAMES", help="all (default), or names of instances joined by "
                 "commas."),
]
Instances = Annotated[
    str, typer.Option("--instances", metavar="FOLDER",
                      help="Folder that `nest bench instances` has written.")]
Workers = Annotated[
    int | None, options.number("Processes that plan; default: one for each processor.")]


def instances(
    folder: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the files and the "
                     "answers; an interrupted run continues there."),
    ] = FOLDER,
    only: Only = None,
    time_limit: Annotated[
        float, options.seconds("Longest search for one instance; default 600.")] = 600.0,
    workers: Workers = None,
    quiet: options.Quiet = False,
) -> None:
    """Write 60 planning problems with their best configurations.

    A file each: model, cluster, job and space with all figures, the fastest configuration, whether
    it is proved that none is faster, and how it was found.
    """
    from nest.bench.instance import read_problems
    from nest.bench.instances_text import instances_text
    from nest.bench.solving import solve
    from nest.cli.compare import chosen
    from nest.cli.inputs import check_counts
    from nest.cli.present import progress
    from nest.studies.engines import engine

    check_counts(threads=workers)
    problems = read_problems()
    asked = {name: problems[name] for name in chosen("only", only, problems)}
    with progress(quiet), _told(len(asked), quiet) as tell:
        found, unsolved = solve(asked, folder, engine("local", workers), time_limit, tell)
    output.deliver(lambda: instances_text(found, unsolved, folder, **output.page()), quiet=quiet)


def answers(
    folder: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for a file of answers of "
                     "each planner; an interrupted run continues there."),
    ] = "nest-answers",
    source: Instances = FOLDER,
    planners: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="all (default), or some of manual, zero, mcmc, alpa, "
                     "phaze, piper, exhaustive, joined by commas."),
    ] = None,
    only: Only = None,
    time_limit: Annotated[
        float, options.seconds("CPU seconds for one answer; default 60.")] = 60.0,
    workers: Workers = None,
    quiet: options.Quiet = False,
) -> None:
    """Have the other planners of `nest compare` answer the instances.

    Writes a file for `nest bench score` of each.
    """
    from nest.bench.instance import load_instances
    from nest.bench.planned import answers_of, others
    from nest.cli.compare import chosen
    from nest.cli.inputs import check_counts
    from nest.cli.present import progress
    from nest.studies.engines import engine

    check_counts(threads=workers)
    names = chosen("planners", planners, others())
    known = load_instances(source)
    asked = {name: known[name] for name in chosen("only", only, known)}
    with progress(quiet), _told(len(asked) * len(names), quiet) as tell:
        files = answers_of(names, asked, folder, engine("local", workers), time_limit, tell)
    output.deliver(lambda: "\n".join(files.values()) + "\n", quiet=quiet)


def score(
    files: Annotated[
        list[str], typer.Argument(metavar="ANSWERS...", help="Files of answers, of a planner "
                                  "each (`nest schema submission`).")],
    source: Instances = FOLDER,
    as_json: options.Json = False,
) -> None:
    """Price the configurations of planners beside the best ones.

    Says of each answer whether it counts, why not, and how much slower it is than the best
    configuration that is known.
    """
    from nest.bench.instance import load_instances
    from nest.bench.instances_text import score_text
    from nest.bench.score import check_prices
    from nest.bench.score import score as scored
    from nest.bench.score_document import document
    from nest.bench.submission import load_submission

    known = load_instances(source)
    check_prices(known.values())
    found = {}
    for file in files:
        given, notes = load_submission(file, {
            name: one.digest for name, one in known.items()})
        for note in notes:
            output.say(f"nest: {note}")
        if given.planner in found:
            raise InputError(f"{file}: planner: got {given.planner[:100]!r} again; allowed: a name "
                             "of its own for each file")
        found[given.planner] = scored(given, known)
    output.deliver(lambda: document(found).model_dump_json(by_alias=True, indent=2) + "\n"
                   if as_json else score_text(found, **output.page()))


@contextmanager
def _told(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; a call advances it and shows what is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}", markup=False), BarColumn(24),
                  MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True),
                  disable=quiet) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
