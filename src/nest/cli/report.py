"""`nest report` and `nest plot`: what a plan is, as a page to look at, and its figures."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Any

from nest.cli import options, output
from nest.cli.options import argument, text
from nest.cli.plan_commands import plan_of
from nest.cli.present import check_target
from nest.cli.progress import progress
from nest.units import shorten


def report(
    file: Annotated[str, argument("A plan, as `nest plan -o` writes it.", "PLAN.json")],
    target: Annotated[str | None, text(
        "The page to write; default: the name of the plan with .html.", "FILE.html", "--output",
        "-o")] = None,
    search: Annotated[float | None, options.seconds(
        "Also search for so long for simpler plans, and for the best plan with 10 % more of each "
        "resource; default: the plan as it is is priced with them.")] = None,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Write a plan as one HTML page with all figures.

    The page shows what to run, how sure its speed is, the devices, the simulated step, memory,
    links, other plans and the launch files. It opens from disk and sends no request.
    """
    from nest.evaluation.problems import told
    from nest.inputs.files import write_text_atomic

    options.check_counts(threads=threads)
    place = target or os.path.splitext(file)[0] + ".html"
    check_target(place)
    plan = plan_of("report", file)
    from nest.frameworks.targets import launch_files
    from nest.report.web.document import MORE, facts, plan_document
    from nest.report.web.pages import page

    found: Any = None
    with progress(quiet), told(file):
        if search is not None:
            from nest.explanation.explanation import explain

            found = explain(plan, threads=threads, time_limit=search, more=MORE)
        document = plan_document(plan, facts(plan, found), os.path.basename(file),
                                 launch_files(plan)).data()
    output.deliver(lambda: place, partial(write_text_atomic, place, page(document)), quiet=quiet)


def plot(
    file: options.PlanFile,
    target: Annotated[str, text(
        "The picture to write, as .svg, .png or .pdf.", "FILE", "--output", "-o")],
    kind: Annotated[str, text(
        "What is drawn: timeline (default), memory, cluster, waterfall or links.",
        "KIND")] = "timeline",
) -> None:
    """Draw one figure of a plan's report as a picture.

    Needs the extra plot. A cluster is drawn as by nest plan --map.
    """
    from nest.errors import InputError, did_you_mean
    from nest.evaluation.problems import told
    from nest.report.figure import check_picture, save_figure

    check_picture("output", target)
    check_target(target)
    from nest.report.web.plots import FIGURES

    if kind not in FIGURES:
        raise InputError(f"kind: got {shorten(kind)}; {did_you_mean(kind, FIGURES)}allowed: "
                         f"{', '.join(FIGURES)}")
    plan = plan_of("plot", file)
    with told(file):
        figure = FIGURES[kind](plan)
    output.deliver(lambda: target, partial(save_figure, target, figure))
