"""A validation as a text (errors of each group of runs, the largest errors) and a parity plot."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Unpack

from nest.report.figure import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILION,
    look,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from nest.measured.validation import Report, Score
from nest.measured.validation.score import Compared
from nest.report.page import Page, PageOptions
from nest.report.plan_text import WORDS
from nest.units import format_seconds

MOST_WORST, MOST_OF_A_GROUP = 10, 2
MOST_REASONS = 12
LONGEST_NAME = 38
HEADS = ("group", "rows", "priced", "conf.", "median", "mean", "bias", "rank", "pairs", "memory")


def validation_text(report: Report, where: str, **options: Unpack[PageOptions]) -> str:
    """Give the report of a table of measured runs.

    Parameters
    ----------
    report : of :func:`nest.measured.validation.score`.
    where : the table, for the first line.
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    page.paragraph(_headline(report.overall, where), "bold")
    page.blank()
    _groups(page, report)
    page.blank()
    _worst(page, report)
    if report.reasons:
        page.blank()
        _reasons(page, report)
    return page.text()


def _headline(overall: Score, where: str) -> str:
    told = f"{where}: {overall.priced} of {overall.rows} runs priced"
    if overall.median_abs_error is None or overall.bias is None:
        return told
    memory = "" if overall.memory_median_abs_error is None else (
        f", of peak memory {_percent(overall.memory_median_abs_error)} %")
    return (f"{told}, {overall.configurations} configurations; median error of step time "
            f"{_percent(overall.median_abs_error)} %{memory}")


def _groups(page: Page, report: Report) -> None:
    rows = []
    for name, found in report.groups.items():
        rows.append(_row(name, found))
        without = report.without_anomalous.get(name)
        if without is not None:
            rows.append(_row("  without anomalous", without))
    if len(report.groups) > 1:
        rows.append(_row("all", report.overall))
    page.table("Step time and peak memory against measurements (%)", HEADS, rows, (0,))
    page.paragraph(
        "conf.: configurations priced, each once per software version; median, mean: of the "
        "absolute error; bias: mean of the signed errors, below 0 where prices are too low; rank: "
        "Spearman's correlation within a model; pairs: of configurations of a model that differ "
        "by more than 5 %, share ordered correctly; memory: median absolute error.", "dim")
    if report.overall.misfits:
        page.paragraph("Configurations that ran but are predicted not to fit: "
                       f"{report.overall.misfits}.", "dim")


def _row(name: str, found: Score) -> tuple[str, ...]:
    rank = "" if found.spearman is None else f"{found.spearman:.2f}"
    numbers = (found.median_abs_error, found.mean_abs_error)
    return (name, str(found.rows), str(found.priced), str(found.configurations),
            *(_percent(number) for number in numbers), _percent(found.bias, signed=True), rank,
            "" if found.ordered is None else f"{100 * found.ordered:.0f}",
            _percent(found.memory_median_abs_error))


def _percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"


def _worst(page: Page, report: Report) -> None:
    each = MOST_OF_A_GROUP if len(report.groups) > 1 else None
    worst = report.worst(MOST_WORST, each)
    if not worst:
        return
    rows = [(_shortened(one.members[0].run.run_id), format_seconds(one.measured_s, 3),
             format_seconds(one.predicted_s, 3), f"{100 * one.error:+.0f} %", _largest(one))
            for one in worst]
    title = "Largest errors" + (f", {each} per group" if each else "")
    page.table(title, ("run", "measured", "priced", "error", "largest cause"), rows,
               (0, 4))


def _largest(one: Compared) -> str:
    """The largest part of a price, in words."""
    name, share = max(one.members[0].shares.items(), key=lambda item: item[1])
    return f"{WORDS[name]} {100 * share:.0f} %"


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def _reasons(page: Page, report: Report) -> None:
    counted = report.reasons.most_common()
    rows = [(str(number), reason[:70]) for reason, number in counted[:MOST_REASONS]]
    left = sum(number for _, number in counted[MOST_REASONS:])
    if left:
        rows.append((str(left), "other reasons"))
    page.table("Not priced", ("rows", "reason"), rows, (1,))


# ---------------------------------------------------------------- the parity plot

SIZE = (7.9, 5.4)
"""Inches."""
BAND = 0.10  # lines at this share above and below
MANY = 3.5  # powers of ten from which on labels are fewer
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, SKY_BLUE, ORANGE, "#7f3c8d", "#333333", "#a52a2a")
_MARKERS = "os^"
"""A marker for each round through the colours."""


def parity_figure(report: Report, title: str) -> Figure:
    """Draw every configuration as a point: measured to the right, priced upwards.

    Parameters
    ----------
    report : of :func:`nest.measured.validation.score`.
    title : one line above the picture.

    Returns
    -------
    Figure
        A series of points for each group; empty axes where nothing was priced.
    """
    from matplotlib.figure import Figure

    points = report.compared
    seconds = [value for one in points for value in (one.measured_s, one.predicted_s)]
    low = math.floor(math.log10(min(seconds, default=0.1)) * 2) / 2
    high = max(math.ceil(math.log10(max(seconds, default=10.0)) * 2) / 2, low + 0.5)
    with look():
        figure = Figure(SIZE, layout="constrained")
        axes = figure.subplots()
        _scales(axes, low, high)
        ends = (10.0**low, 10.0**high)
        for factor, line in ((1.0, "-"), (1.0 + BAND, "--"), (1.0 - BAND, "--")):
            axes.plot(ends, [factor * end for end in ends], line, color="#888888", linewidth=0.8)
        for number, name in enumerate(dict.fromkeys(one.group for one in points)):
            group = [one for one in points if one.group == name]
            error = report.groups[name].median_abs_error
            axes.scatter(
                [one.measured_s for one in group], [one.predicted_s for one in group], 24,
                zorder=2.0 + 1.0 / len(group),  # small groups are not hidden
                color=_COLOURS[number % len(_COLOURS)], alpha=0.75, edgecolors="white",
                linewidths=0.5, marker=_MARKERS[number // len(_COLOURS) % len(_MARKERS)],
                label=name if error is None else f"{name}, {100 * error:.1f} %")
        axes.set_title(textwrap.fill(title, 90))
        if points:
            axes.legend(
                title=f"group, median error\n(dashed: {100 * BAND:.0f} % off)", alignment="left",
                loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0,
                handletextpad=0.2)
    return figure


def _scales(axes: Axes, low: float, high: float) -> None:
    """Logarithmic axes from 10^low to 10^high seconds, equal on both sides.

    Labels at 1, 2 and 5 times the powers of ten, or 1 and 3 where there are many powers.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    steps = (1, 2, 5) if high - low < MANY else (1, 3)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        axes.set(**{f"{name}scale": "log", f"{name}lim": (10.0**low, 10.0**high)})
        axis.set_major_locator(LogLocator(subs=steps, numticks=100))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.set_aspect("equal")
    axes.grid()
    axes.set_xlabel("measured seconds of a step")
    axes.set_ylabel("priced seconds of a step")
