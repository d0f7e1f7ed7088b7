"""`nest bench`: published evaluations, repeated, and a set of problems for all planners."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from nest.cli import instances, options, output
from nest.cli.examples import epilog
from nest.cli.naming import App

if TYPE_CHECKING:
    from nest.bench.paper import PaperQuestion
    from nest.bench.results import Result

app = App(
    help="Repeat a published evaluation, or score planners on problems.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


for _name in ("instances", "answers", "score"):
    app.command(_name, epilog=epilog(f"bench {_name}"))(getattr(instances, _name))


@app.callback(invoke_without_command=True)
def _bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        output.emit(context.get_help())


@app.command("paper", epilog=epilog("bench paper"))
def paper(
    folder: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FOLDER",
                     help="Folder for answers, tables and figures; an interrupted run "
                     "continues there."),
    ] = "nest-paper",
    planners: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="all (default), or some of nest, manual, zero, mcmc, "
                     "alpa, phaze, piper, exhaustive, joined by commas."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="all (default), or some of bert-large, llama2-7b, "
                     "llama3-70b, gpt3-175b, mixtral-8x7b, joined by commas."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="NAMES",
                     help="all (default), or some of scaling, micro-batch, h100."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat the evaluation of the published NEST paper.

    Five models on the TPUv4 fat tree with 64 to 1,024 devices, with micro-batches of 1 to 8 samples
    on 256 devices, and on the H100 spine-leaf. All plans are priced in the same way. Answers are
    stored, so that a later run only computes those that are missing.
    """
    from nest.bench.answers import StoredAnswers
    from nest.bench.asking import ask
    from nest.bench.paper import MODELS, PARTS, questions
    from nest.bench.results import results
    from nest.cli.compare import chosen
    from nest.cli.present import progress
    from nest.planners import usable
    from nest.report.figure import need_matplotlib

    need_matplotlib("bench paper")
    names = chosen("planners", planners, usable())
    wanted = questions(chosen("part", part, PARTS), chosen("models", models, MODELS))
    answers = StoredAnswers(folder)
    with closing(answers), progress(quiet), _bar(len(wanted) * len(names), quiet) as tell:
        found = results(ask(wanted, names, answers, tell))
    files = [answers.path]

    def save(path: str, write: Callable[[], None]) -> None:
        write()
        files.append(path)

    def text() -> str:
        from nest.bench.tables import to_json
        from nest.bench.text import paper_text

        return to_json(found) if as_json else paper_text(found, files, **output.page())

    output.deliver(text, *(partial(save, *one) for one in _writes(folder, found)),
                   quiet=quiet and not as_json)


@contextmanager
def _bar(total: int, quiet: bool) -> Iterator[Callable[[PaperQuestion, str], None]]:
    """A progress bar on stderr; a call advances it and shows the current question."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}", markup=False), BarColumn(24),
                  MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True),
                  disable=quiet) as bar:
        task = bar.add_task("", total=total)
        started = False

        def tell(question: PaperQuestion, planner: str) -> None:
            nonlocal started
            bar.update(task, advance=int(started), description=(
                f"{question.model}, {question.devices:,} devices, {planner}"))
            started = True

        yield tell
        bar.update(task, completed=total, description="asked")


def _writes(folder: str, found: list[Result]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Tables, and figures of the parts that have a base: each file, and what writes it."""
    from nest.bench.charts import part_figure
    from nest.bench.results import distinct
    from nest.bench.tables import to_csv, to_markdown
    from nest.inputs import write_text_atomic
    from nest.report.figure import SUFFIXES, save_figure

    for name, text in (("results.csv", to_csv(found)), ("results.md", to_markdown(found))):
        path = os.path.join(folder, name)
        yield path, partial(write_text_atomic, path, text)
    for part in distinct(one.asked.question.part for one in found if one.relative is not None):
        figure = part_figure(found, part)
        for suffix in SUFFIXES:
            path = os.path.join(folder, f"{part}{suffix}")
            yield path, partial(save_figure, path, figure)
