"""`nest validate`: measured training runs, priced with exactly their configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from nest.cli import options, output
from nest.errors import InputError


def validate(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[RUNS.csv]",
                       help="Measured runs; default: the table that comes with NEST."),
    ] = None,
    annotations: Annotated[
        str | None,
        typer.Option("--annotations", metavar="FILE.csv",
                     help="Further columns of the runs, matched by run_id, such as dispatchers."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME",
                     help="Use only this group of runs; may be repeated."),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE.csv",
                     help="Also write every run with its price as a table."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE",
                     help="Also draw priced against measured seconds, as .png or .svg."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare prices of step time and memory with measured runs."""
    from nest.cli.present import check_target
    from nest.report.figure import check_picture, save_figure

    check_picture("plot", plot)
    for target in (result, plot):
        check_target(target)
    from nest.inputs import write_text_atomic
    from nest.measured import validation
    from nest.measured.validation.score import to_csv, to_json

    runs = validation.read(file, annotations)
    if group:
        known = dict.fromkeys(run.group for run in runs)
        for name in group:
            if name not in known:
                raise InputError(f"group: got {name[:60]!r}; allowed: {', '.join(known)}")
        runs = tuple(run for run in runs if run.group in group)
    report = validation.score(validation.price(runs))
    where = file or "measured runs of NEST"

    def tabulate() -> None:
        if result is not None:
            write_text_atomic(result, to_csv(report))

    def draw() -> None:
        from nest.report.parity import parity_figure

        if plot is not None:
            save_figure(plot, parity_figure(report, "Priced against measured step time"))

    def text() -> str:
        from nest.report.validation_text import validation_text

        return to_json(report) if as_json else validation_text(report, where, **output.page())

    output.deliver(text, tabulate, draw)
