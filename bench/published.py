"""Repeat the evaluation of the published NEST paper: docs/evaluation.md has the results.

    python bench/published.py [--part h100] [--models bert-large] [--planners nest,manual]

`python bench/published.py --help` has all options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Annotated

from paper.answers import PlannerRun, StoredAnswers, ask
from paper.charts import part_figure
from paper.questions import MODELS, PARTS, questions
from paper.results import Result, distinct, results
from paper.tables import paper_text, to_csv, to_json, to_markdown

from nest.cli import options, output
from nest.cli.main import main as run
from nest.cli.naming import App
from nest.cli.options import chosen, text
from nest.cli.progress import bar, progress
from nest.inputs import write_text_atomic
from nest.planners import usable
from nest.report.figure import need_matplotlib, save_figure

app = App(add_completion=False)


@app.command("published")
def published(
    folder: Annotated[str, text(
        "Folder for answers, tables and figures; an interrupted run continues there.", "FOLDER",
        "--output", "-o")] = "nest-paper",
    planners: Annotated[str | None, text(
        "all (default), or some of nest, manual, zero, mcmc, alpa, phaze, piper, exhaustive, "
        "joined by commas.", "NAMES")] = None,
    models: Annotated[str | None, text(
        "all (default), or some of bert-large, llama2-7b, llama3-70b, gpt3-175b, mixtral-8x7b, "
        "joined by commas.", "NAMES")] = None,
    part: Annotated[str | None, text(
        "all (default), or some of scaling, micro-batch, h100.", "NAMES")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat the evaluation of the published NEST paper.

    Five models on the TPUv4 fat tree with 64 to 1,024 devices, with micro-batches of 1 to 8 samples
    on 256 devices, and on the H100 spine-leaf. All plans are priced in the same way. Answers are
    stored, so that a later run only computes those that are missing.
    """
    need_matplotlib("bench/published.py")
    names = chosen("planners", planners, usable())
    wanted = questions(chosen("part", part, PARTS), chosen("models", models, MODELS))
    answers = StoredAnswers(folder)
    with closing(answers), progress(quiet), bar(len(wanted) * len(names), quiet) as tell:
        found = results(ask(wanted, names, answers, lambda one: tell(_line(one))))
    files = [answers.path]

    def save(path: str, write: Callable[[], None]) -> None:
        write()
        files.append(path)

    output.deliver(
        lambda: to_json(found) if as_json else paper_text(found, files, **output.page()),
        *(partial(save, *one) for one in _writes(folder, found)), quiet=quiet and not as_json)


def _line(one: PlannerRun) -> str:
    return f"{one.question.model}, {one.question.devices:,} devices, {one.planner}"


def _writes(folder: str, found: list[Result]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Tables, and figures of the parts that have a base: each file, and what writes it."""
    for name, table in (("results.csv", to_csv(found)), ("results.md", to_markdown(found))):
        path = os.path.join(folder, name)
        yield path, partial(write_text_atomic, path, table)
    for part in distinct(one.asked.question.part for one in found if one.relative is not None):
        figure = part_figure(found, part)
        for suffix in (".png", ".svg"):
            path = os.path.join(folder, f"{part}{suffix}")
            yield path, partial(save_figure, path, figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit codes are those of `nest`."""
    return run(arguments, app, "bench/published.py")


if __name__ == "__main__":
    sys.exit(main())
