"""The figures of a plan's report as pictures, in the colours of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nest.evaluation.plans import Plan
from nest.report.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILION,
    look,
)
from nest.report.network.chart import network_chart
from nest.report.stages import CATEGORIES, GIB
from nest.report.web.answer import waterfall
from nest.report.web.timeline import KINDS, MOST_RECORDED, StepTimeline, timeline
from nest.report.web.traffic import traffic
from nest.simulation.step import Traced
from nest.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, ROW, ABOVE = 9.0, 0.34, 1.5
"""Inches: of a picture; of a row; of title, axis and legend."""
MOST_SHAPES = 4000
"""Passes from which on they are drawn as dots within a vector file (chosen: some 1 MB)."""
PAINTS = (SKY_BLUE, BLUE, "#2f8fc9", PURPLE, GREEN, GREEN, ORANGE, ORANGE, LIGHT, "#c6dcec")
"""By the kinds of :data:`nest.report.web.timeline.KINDS`."""
NAMES = {"wait": "waiting (bubble)", "left out": "passes not drawn", "optimizer": "end of step",
         "end": "end of step", "hand-over": "collectives and hand-overs",
         "collective": "collectives and hand-overs"}
"""Of kinds, in a legend; kinds of one colour have one name."""
CAUSES = {"compute": BLUE, "traffic": VERMILION, "wait": GREY, "end": GREEN}
PURPOSES = (VERMILION, ORANGE, PURPLE, SKY_BLUE, GREEN)
MEMORY = (BLUE, SKY_BLUE, PURPLE, ORANGE, GREY)


def _axes(plan: Plan, rows: int, what: str) -> tuple[Figure, Axes]:
    """A picture of so many rows under the headline of the plan."""
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, ABOVE + ROW * max(rows, 2)), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{plan.headline}\n{what}", fontsize=9.0)
    return figure, axes


def _legend(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    figure.legend(handles=[Patch(color=paint, label=name) for name, paint in entries],
                  loc="outside lower left", ncols=6, fontsize=8.0)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _traced(plan: Plan) -> StepTimeline:
    return timeline(plan, Traced(plan, most=MOST_RECORDED))


def timeline_figure(plan: Plan) -> Figure:
    """Draw the simulated step of the slowest replica, a row for each stage."""
    from matplotlib.collections import PolyCollection

    found, stages = _traced(plan), len(plan.stages)
    with look():
        figure, axes = _axes(plan, stages, "one step, simulated")
        used: dict[str, str] = {}
        for kind, name in enumerate(KINDS):
            lane = name in ("collective", "hand-over")
            low, high = (0.2, 0.44) if lane else (-0.42, 0.18)
            shapes = [[(x0, y + low), (x1, y + low), (x1, y + high), (x0, y + high)]
                      for y, k, start, length in zip(
                          found.stage, found.kind, found.start, found.length, strict=True)
                      if k == kind for x0, x1 in (
                          (start * found.tick_s, (start + length) * found.tick_s),)]
            if not shapes:
                continue
            used[PAINTS[kind]] = NAMES.get(name, name)
            drawn = PolyCollection(shapes, facecolors=PAINTS[kind], linewidths=0.0,
                                   rasterized=len(found.stage) > MOST_SHAPES)
            drawn.set_snap(False)
            drawn.set_gid(f"timeline-{name.replace(' ', '-')}")
            axes.add_collection(drawn)
        _rows(axes, [f"stage {number}" for number in range(stages)])
        axes.set_xlim(0.0, found.step_s)
        axes.set_xlabel("seconds")
        _legend(figure, [(name, paint) for paint, name in used.items()])
    return figure


def memory_figure(plan: Plan) -> Figure:
    """Draw what a device of each stage holds, by category, against its limit."""
    stages = plan.stages
    with look():
        figure, axes = _axes(plan, len(stages), "memory of a device of each stage")
        from_ = [0.0] * len(stages)
        for (part, _), paint in zip(CATEGORIES, MEMORY, strict=True):
            sizes = [getattr(stage.memory_bytes, part) / GIB for stage in stages]
            axes.barh(range(len(stages)), sizes, 0.7, left=from_, color=paint)
            from_ = [a + b for a, b in zip(from_, sizes, strict=True)]
        limits = [stage.memory_limit_bytes / GIB for stage in stages]
        for row, (limit, total) in enumerate(zip(limits, from_, strict=True)):
            axes.plot([limit, limit], [row - 0.4, row + 0.4], color=BLACK, linewidth=1.4)
            axes.annotate(f"{total:.1f} of {limit:.1f}", (max(limit, total), row), (5, 0),
                          textcoords="offset points", va="center", fontsize=8.0)
        _rows(axes, [f"stage {number}" for number in range(len(stages))])
        axes.set_xlim(0.0, 1.18 * max(*limits, *from_))
        axes.set_xlabel("GiB (the black line is the limit)")
        _legend(figure, [(part, paint) for (part, _), paint in zip(CATEGORIES, MEMORY,
                                                                  strict=True)])
    return figure


def waterfall_figure(plan: Plan) -> Figure:
    """Draw the parts of the priced step, each from where the last one ends."""
    steps = waterfall(plan)
    with look():
        figure, axes = _axes(plan, len(steps) + 1, "where the step goes")
        at = 0.0
        for row, step in enumerate(steps):
            axes.barh(row, step.seconds, 0.7, left=at, color=CAUSES[step.kind],
                      hatch="///" if step.kind == "wait" else None, edgecolor="white")
            at += step.seconds
            axes.annotate(f"{step.text}, {100 * step.share:.1f} %", (at, row), (5, 0),
                          textcoords="offset points", va="center", fontsize=8.0)
        axes.barh(len(steps), at, 0.7, color=LIGHT)
        axes.annotate(format_seconds(at), (at, len(steps)), (5, 0), textcoords="offset points",
                      va="center", fontsize=8.0, fontweight="bold")
        _rows(axes, [*(step.name for step in steps), "step"])
        axes.set_xlim(0.0, 1.2 * at)
        axes.set_xlabel("seconds")
        _legend(figure, [("computing", BLUE), ("exposed traffic", VERMILION), ("waiting", GREY),
                         ("end of step", GREEN)])
    return figure


def links_figure(plan: Plan) -> Figure:
    """Draw the load of levels, or of the busiest links: shares of the step, by purpose."""
    found = traffic(plan)
    with look():
        figure, axes = _axes(plan, len(found.loads), found.title.lower())
        for row, load in enumerate(found.loads):
            at, whole = 0.0, sum(load.bytes) or 1.0
            for size, paint in zip(load.bytes, PURPOSES, strict=True):
                share = 100 * load.share * size / whole
                axes.barh(row, share, 0.7, left=at, color=paint)
                at += share
            axes.annotate(f"{load.text}, {at:.1f} %", (at, row), (5, 0),
                          textcoords="offset points", va="center", fontsize=8.0)
        _rows(axes, [f"{load.name}\n{load.note}" for load in found.loads])
        axes.set_xlim(0.0, 1.3 * max([100 * load.share for load in found.loads], default=1.0))
        axes.set_xlabel("% of the step at the full rate")
        _legend(figure, [*zip(found.purposes, PURPOSES, strict=True)])
    return figure


FIGURES: Mapping[str, Callable[[Plan], Figure]] = {
    "timeline": timeline_figure, "memory": memory_figure, "cluster": network_chart,
    "waterfall": waterfall_figure, "links": links_figure}
"""Figures by the names that `nest plot --kind` takes."""
