"""Bars of the throughput of planners side by side, as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nest.planners.compare import ComparedPlan
from nest.report.comparison_text import fastest, rate, rate_name, short_number, thousands
from nest.report.figure import BLUE, GREY, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, ABOVE, BAR = 8.0, 1.2, 0.4
"""Inches: of the picture; of the margins above and below the bars; of a bar and the gap."""


def comparison_figure(entries: Sequence[ComparedPlan], title: str) -> Figure:
    """Draw a bar for every planner: throughput to the right, in the order given.

    Parameters
    ----------
    entries : of :func:`nest.planners.compare.compare`.
    title : one line above the picture.

    Returns
    -------
    Figure
        Plans that do not fit are grey, planners without a plan have no bar.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter

    with look():
        figure = Figure((WIDTH, ABOVE + BAR * max(len(entries), 1)), layout="constrained")
        axes = figure.subplots()
        rates = [0.0 if entry.plan is None else rate(entry.plan) for entry in entries]
        colours = [BLUE if entry.feasible else GREY for entry in entries]
        bars = axes.barh(range(len(entries)), rates, 0.64, color=colours)
        best = fastest(entries)
        for mark, entry in zip(axes.bar_label(bars, [_told(e) for e in entries], padding=5),
                               entries, strict=True):
            if entry.plan is not None and entry.plan is best:
                mark.set_fontweight("bold")
        axes.set_yticks(range(len(entries)), [entry.planner for entry in entries])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0.0, 1.15 * max(rates, default=0.0) or 1.0)  # room for the last label
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        axes.grid(axis="x")
        axes.set_xlabel(rate_name(entries))
        axes.set_title(textwrap.fill(title, 90))
        if any(entry.plan is not None and not entry.feasible for entry in entries):
            figure.legend(handles=[Patch(color=BLUE, label="fits"),
                                   Patch(color=GREY, label="out of memory")],
                          loc="outside lower right", ncols=2)
    return figure


def _told(entry: ComparedPlan) -> str:
    """The label of a bar."""
    if entry.plan is None:
        return "no plan"
    return short_number(rate(entry.plan)) + ("" if entry.feasible else ", does not fit")


def _tick(value: float, position: object = None) -> str:
    factor, prefix = thousands(value)
    return f"{value / factor:g}{prefix}"
