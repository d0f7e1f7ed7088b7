"""`nest bench`: a set of problems for all planners, and their scores."""

from __future__ import annotations

from typing import Annotated

from nest.cli import options, output
from nest.cli.naming import App
from nest.cli.options import chosen, text
from nest.cli.progress import bar, progress
from nest.errors import InputError

FOLDER = "nest-instances"
Only = Annotated[str | None, text(
    "all (default), or names of instances joined by commas.", "NAMES")]
Instances = Annotated[str, text(
    "Folder that `nest bench instances` has written.", "FOLDER", "--instances")]
Workers = Annotated[int | None, options.number(
    "Processes that plan; default: one for each processor.")]

app = App("bench", help="Score planners on problems.")


@app.command("instances")
def instances(
    folder: Annotated[str, text(
        "Folder for the files and the answers; an interrupted run continues there.", "FOLDER",
        "--output", "-o")] = FOLDER,
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
    from nest.studies.engines import engine

    options.check_counts(threads=workers)
    problems = read_problems()
    asked = {name: problems[name] for name in chosen("only", only, problems)}
    with progress(quiet), bar(len(asked), quiet) as tell:
        found, unsolved = solve(asked, folder, engine("local", workers), time_limit, tell)
    output.deliver(lambda: instances_text(found, unsolved, folder, **output.page()), quiet=quiet)


@app.command("answers")
def answers(
    folder: Annotated[str, text(
        "Folder for a file of answers of each planner; an interrupted run continues there.",
        "FOLDER", "--output", "-o")] = "nest-answers",
    source: Instances = FOLDER,
    planners: Annotated[str | None, text(
        "all (default), or some of manual, zero, mcmc, alpa, phaze, piper, exhaustive, joined by "
        "commas.", "NAMES")] = None,
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
    from nest.studies.engines import engine

    options.check_counts(threads=workers)
    names = chosen("planners", planners, others())
    known = load_instances(source)
    asked = {name: known[name] for name in chosen("only", only, known)}
    with progress(quiet), bar(len(asked) * len(names), quiet) as tell:
        files = answers_of(names, asked, folder, engine("local", workers), time_limit, tell)
    output.deliver(lambda: "\n".join(files.values()) + "\n", quiet=quiet)


@app.command("score")
def score(
    files: Annotated[list[str], options.argument(
        "Files of answers, of a planner each (`nest schema submission`).", "ANSWERS...")],
    source: Instances = FOLDER,
    as_json: options.Json = False,
) -> None:
    """Price the configurations of planners beside the best ones.

    Says of each answer whether it counts, why not, and how much slower it is than the best
    configuration that is known.
    """
    from nest.bench.instance import load_instances
    from nest.bench.instances_text import score_text
    from nest.bench.score import check_prices, document
    from nest.bench.score import score as scored
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
