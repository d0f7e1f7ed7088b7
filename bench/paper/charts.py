"""The results as pictures: a panel for each model, a group of bars for each point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nest.report.figure import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, look
from paper.questions import PARTS, bounds_text, marked
from paper.results import BASE, OWN, Result, distinct, select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "nest": VERMILION, "manual": BLACK, "zero": GREY, "mcmc": ORANGE, "alpa": SKY_BLUE,
    "phaze": GREEN, "piper": PURPLE, "exhaustive": BLUE,
}
OTHER = "#8c8c8c"
"""Of planners of other packages."""
WIDTH, ABOVE, PANEL = 8.0, 1.2, 1.35
"""Inches: of the picture; of title, legend and list; of a panel."""
GROUP = 0.84
"""Share of the width of a group that its bars take."""
POINTS = {"scaling": "devices", "micro-batch": "micro-batch", "h100": "devices"}
"""What changes along the axis of each part."""


def part_figure(found: Sequence[Result], part: str) -> Figure:
    """Draw a part: throughput of a device, relative to the base's where it fits first.

    Parameters
    ----------
    found : of ``results`` in results.py.
    part : of ``PARTS`` in questions.py.

    Returns
    -------
    Figure
        What is infeasible is a cross in the place of its bar, and a line below the panels.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    chosen = select(found, part)
    models = distinct(one.asked.question.model for one in chosen)
    planners = distinct(one.asked.planner for one in chosen)
    missing = [one for one in chosen if not one.asked.answer.feasible]
    with look():
        figure = Figure((WIDTH, ABOVE + PANEL * len(models) + 0.13 * len(missing)),
                        layout="constrained")
        panels = figure.subplots(len(models), squeeze=False)[:, 0]
        for axes, model in zip(panels, models, strict=True):
            _panel(axes, select(chosen, model=model), planners)
            axes.set_title(model, fontsize=9.0)
        panels[-1].set_xlabel(POINTS[part])
        handles: list[Patch | Line2D] = [
            Patch(color=COLOURS.get(planner, OTHER), label=marked(planner)) for planner in planners]
        if missing:
            handles.append(
                Line2D([], [], color=BLACK, marker="x", linestyle="", label="infeasible"))
        notes = [*filter(None, [bounds_text(planners)]), *map(_missing, missing)]
        figure.supxlabel("\n".join(notes), fontsize=7.0, x=0.01, ha="left")
        figure.legend(
            handles=handles, loc="outside upper left", ncols=len(handles), alignment="left",
            title=f"{PARTS[part]}\nThroughput of a device; 1: {BASE} where it first fits",
            title_fontproperties={"size": 10.0, "weight": "bold"}, handlelength=1.0,
            columnspacing=1.2, handletextpad=0.5)
    return figure


def _panel(axes: Axes, found: Sequence[Result], planners: Sequence[str]) -> None:
    """The bars of a model, with figures on those of NEST."""
    points = sorted({one.asked.question.point for one in found})
    width = GROUP / len(planners)
    top = max((one.a_device for one in found if one.a_device), default=1.0)
    for number, planner in enumerate(planners):
        for one in select(found, planner=planner):
            group = points.index(one.asked.question.point)
            x = group + width * (number - (len(planners) - 1) / 2.0)
            if one.a_device is not None:
                axes.bar(x, one.a_device, 0.9 * width, color=COLOURS.get(planner, OTHER))
            elif not one.asked.answer.feasible:
                axes.plot(x, 0.07 * top, "x", color=COLOURS.get(planner, OTHER), markersize=5.0,
                          markeredgewidth=1.5)
            if planner == OWN and one.a_device is not None:
                axes.annotate(f"{one.a_device:.2f}", (x, one.a_device), (0, 3),
                              textcoords="offset points", ha="center", fontsize=7.0,
                              color=COLOURS[OWN],
                              bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})
    axes.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
    axes.set_ylim(0.0, 1.2 * max(top, 1.0))
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_xticks(range(len(points)), [f"{point:,}" for point in points])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")


def _missing(one: Result) -> str:
    """A line about what is infeasible."""
    question = one.asked.question
    return (f"Infeasible: {question.model}, {POINTS[question.part]} {question.point:,}, "
            f"{one.asked.planner}: {one.asked.answer.reason or ''}")[:160]
