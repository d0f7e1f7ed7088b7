"""Parity plot: priced against measured seconds, on logarithmic axes, as a picture."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from nest.measured.validation import Report
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
