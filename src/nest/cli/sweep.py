"""`nest sweep`: a study of many questions, and what its answers show."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from nest.cli import options, output
from nest.cli.naming import App
from nest.cli.options import number, text
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.studies.results import Results
    from nest.studies.running import StudyProgress
    from nest.studies.sweep import Sweep
    from nest.studies.thresholds import AxisLine

USUAL = "run"


class _WithUsual(TyperGroup):
    """A group whose first command may be left out: `nest sweep STUDY` is `nest sweep run STUDY`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [USUAL, *args]
        return super().parse_args(ctx, args)


app = App(
    "sweep", cls=_WithUsual,
    help="Ask the planner the many questions of a study.\n\n"
    "A study has ranges, lists and grids over any field. `nest sweep STUDY.yaml` "
    "is `nest sweep run STUDY.yaml`.")


@app.command(USUAL)
def run(
    study: Annotated[str, options.argument("File of a study.", "STUDY")],
    folder: Annotated[str | None, text(
        "Folder for answers and tables; default: NAME-sweep. An interrupted study continues there.",
        "FOLDER", "--output", "-o")] = None,
    engine: Annotated[str, text(
        "local (default), dask://HOST:PORT, mpi, ray, ray://HOST:PORT, or inline.",
        "ENGINE")] = "local",
    workers: Annotated[int | None, number(
        "Processes of this machine; default: one for each processor. Each has one thread.")] = None,
    parquet: Annotated[bool, text("Write points.parquet too.", None, "--parquet")] = False,
    prove: Annotated[bool, text(
        "Ask only what may change the front or the best plans; prove the rest.", None,
        "--prove")] = False,
    within: Annotated[float | None, options.fraction(
        "The same, but leave out what is better by at most this share, such as 1%.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Ask all questions of a study that have no answer yet.

    Shows the answers. Writes answers.db, points.csv and points.json. Several processes may work on
    one folder. Ends with code 2 if all points are invalid or excluded.
    """
    from nest.studies.sweep import load_study, sweep
    from nest.studies.text import need_parquet

    if parquet:
        need_parquet()
    found = load_study(study)
    done = None
    with _follow(found.name, quiet) as follow, suppress(KeyboardInterrupt):
        done = sweep(found, folder, engine=engine, workers=workers, progress=follow, prove=prove,
                     within=within or 0.0)
    if done is None or not done.complete:
        output.say(f"nest: {follow.last}; the same command goes on")
        raise typer.Exit(130)
    shown = _deliver(done, ("csv", "json", *(["parquet"] if parquet else [])), as_json, quiet)
    if shown.no_question:
        first = shown.reasons[0]
        output.say(f"nest: error: {study[:200]}: no question could be asked, all points are "
                   f"invalid; {first.points:,} of {shown.counts.total():,}: {first.message}")
        raise typer.Exit(2)  # results are printed: no other document on stdout
    if not shown.counts.total():
        output.say(f"nest: error: {study[:200]}: constraints: exclude all {found.size:,} points; "
                   "allowed: constraints that leave one")
        raise typer.Exit(2)


@app.command("show")
def show(
    source: Annotated[str, options.argument(
        "File of a study, or the folder of its answers.", "STUDY")],
    *,
    folder: Annotated[str | None, text(
        "Folder for pictures; default: that of the answers.", "FOLDER", "--output", "-o")] = None,
    answers: Annotated[str | None, text(
        "Folder of the answers of a study's file; default: NAME-sweep.", "FOLDER")] = None,
    objective: Annotated[str | None, text(
        "Objective of the heat map; default: the first of the study.", "NAME")] = None,
    x: Annotated[str | None, text(
        "Horizontal axis of the heat map; default: the axis with most values.", "AXIS")] = None,
    y: Annotated[str | None, text("Vertical axis.", "AXIS")] = None,
    suffix: Annotated[str, text("svg (default), png or pdf.", "NAME", "--format")] = "svg",
    plan: Annotated[int | None, number(
        "Show the plan of this point instead; with --json as a plan file.", "NUMBER")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the front, a heat map and the effect of each axis.

    Writes front, heat-map and sensitivity as pictures and prints the answers; of a study that
    still runs, it shows the answers so far.
    """
    from nest.report.figure import SUFFIXES, need_matplotlib

    done = _stored(source, answers)
    if plan is not None:
        found = done.plan(plan)
        output.emit(found.to_json() if as_json else found.report(**output.page()))
        return
    need_matplotlib("sweep show")
    if f".{suffix}" not in SUFFIXES:
        raise InputError(f"format: got {suffix[:60]!r}; allowed: svg, png, pdf")
    place = done.folder if folder is None else folder
    from nest.report.figure import save_figure
    from nest.studies.charts import (
        front_figure,
        heat_map,
        objective_of,
        pair_of,
        sensitivity_figure,
    )
    from nest.studies.store import make_folder

    make_folder(place)
    wanted = objective_of(done.study, objective)
    with done.results() as results:
        if not results.light:
            raise _no_plan(source, results)
        figures = {"front": front_figure(results), "sensitivity": sensitivity_figure(results)}
        if len(done.study.axes) > 1 or x or y:
            figures["heat-map"] = heat_map(results, wanted, *pair_of(done.study, x, y))
    files = {os.path.join(place, f"{name}.{suffix}"): figure for name, figure in figures.items()}
    _deliver(done, (), as_json, quiet,
             {file: partial(save_figure, file, figure) for file, figure in files.items()})


@app.command("least")
def least(
    study: Annotated[str, options.argument("File of a study.", "STUDY")],
    *,
    axis: Annotated[str, text("Axis whose least value is wanted.", "AXIS")],
    goal: Annotated[str, text('What a plan has to reach, such as "days <= 30".', "GOAL")],
    as_json: options.Json = False,
) -> None:
    """Find the least value of an axis for which a goal holds, with proof.

    The least bandwidth, memory or number of devices, or the most oversubscription, by bisection,
    at each setting of the other axes.
    """
    from nest.studies.sweep import load_study
    from nest.studies.thresholds import Goal
    from nest.studies.thresholds import least as found

    known = load_study(study)
    _lines(axis, found(known, axis, Goal.of(goal, known)), as_json, f"Least {axis}: {goal}")


@app.command("curve")
def curve(
    study: Annotated[str, options.argument("File of a study.", "STUDY")],
    *,
    axis: Annotated[str, text("Axis along which steps are wanted.", "AXIS")],
    within: Annotated[float | None, options.fraction(
        "Ask nothing between steps that differ by at most this share, such as 1%.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show what a step takes along an axis, and its shadow price.

    The shadow price is the per cent that a step gets longer for 1 % more of the axis.
    """
    from nest.studies.sweep import load_study, need_within
    from nest.studies.thresholds import curve as found

    lines = found(load_study(study), axis, need_within(within or 0.0))
    _lines(axis, lines, as_json, f"Steps along {axis}")


def _lines(axis: str, lines: list[AxisLine], as_json: bool, title: str) -> None:
    """Print what is known along an axis."""
    import json

    from nest.report.page import Page
    from nest.studies.text import line_rows

    if as_json:
        output.emit(json.dumps({"schema": "nest.thresholds/1", "axis": axis,
                                "lines": [line.as_dict() for line in lines]}, indent=2))
        return
    page = Page(**output.page())
    page.table(title, *line_rows(lines), left=[])
    output.emit(page.text())


def _no_plan(source: str, results: Results) -> InputError:
    """The error of a study without a plan that could be drawn: how its points stand, and why."""
    from nest.studies.text import reason_lines, status_text

    asks = " (`nest sweep` asks)" if results.counts["open"] or not results.counts else ""
    return InputError("\n".join((
        f"{source[:200]}: got no plan to draw ({status_text(results)}); allowed: a study with "
        f"plans{asks}", *reason_lines(results))))


def _stored(source: str, answers: str | None) -> Sweep:
    """The answers of a study's file, or of a folder."""
    from nest.studies.sweep import Sweep, folder_of, load_study, stored

    if os.path.isdir(source):
        return stored(source)
    study = load_study(source)
    place = folder_of(study.name) if answers is None else answers
    if stored(place).study.digest != study.digest:
        raise InputError(f"{source[:200]}: differs from the study that was started last in "
                         f"{place}; allowed: `nest sweep` with it first, or the folder alone")
    return Sweep(study, place, False)


def _deliver(done: Sweep, formats: tuple[str, ...], as_json: bool, quiet: bool,
             writes: dict[str, Any] | None = None) -> Results:
    """Write tables and pictures, then print the report; what it shows is returned."""
    from nest.studies.text import head, write

    with done.results() as results:
        files = dict(writes or {})
        for one in formats:
            path = os.path.join(done.folder, f"points.{one}")
            files[path] = partial(write, results, one, path)
        named = (os.path.join(done.folder, "answers.db"), *files) if formats else (*files,)

        def text() -> str:
            from nest.studies.text import report_text

            return head(results) if as_json else report_text(results, named, **output.page())

        output.deliver(text, *files.values(), quiet=quiet and not as_json)
        return results


class _Follow:
    """Shows how far a sweep is, and ends it at Ctrl-C.

    The first Ctrl-C waits for the questions in flight; the second does not.
    """

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task
        self.last = "nothing is answered"
        self.interrupted = False

    def __call__(self, now: StudyProgress) -> bool:
        self.last = f"{now.done:,} of {now.total:,} points have answers"
        if self._bar is not None:
            self._bar.update(self._task, total=now.total, completed=now.done)
        return not self.interrupted

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        output.say("nest: waiting for the questions in flight; Ctrl-C again leaves them")


@contextmanager
def _follow(name: str, quiet: bool) -> Iterator[_Follow]:
    """A bar with rate and time left on a terminal, and nothing elsewhere."""
    shows = not quiet and sys.stderr is not None and sys.stderr.isatty()
    before: Any = None
    main = threading.current_thread() is threading.main_thread()
    with _bar(name) if shows else nullcontext((None, None)) as (bar, task):
        follow = _Follow(bar, task)
        if main:
            before = signal.signal(signal.SIGINT, follow.interrupt)
        try:
            yield follow
        finally:
            if main:
                signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(name: str) -> Iterator[tuple[Any, Any]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        """Points a second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.3g}/s")

    with Bar(TextColumn("{task.description}", markup=False), BarColumn(24), MofNCompleteColumn(),
             Rate(), TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
             transient=True) as bar:
        yield bar, bar.add_task(name, total=None)
