"""Bars of the throughput of planners side by side, as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nest.planners.compare import Entry
from nest.report.comparison_text import (
    fastest,
    in_a_line,
    rate,
    rate_name,
    short_number,
    thousands,
)

LEFT, TOP, BAR, GAP, LONGEST, RIGHT, BOTTOM = 100, 76, 26, 18, 520, 160, 60
FITS, MISSES = "#0072b2", "#bbbbbb"
"""Of Okabe and Ito (2008): a plan that fits; grey: one that does not."""
TICKS = 5
"""Lines of the grid, about."""


def comparison_svg(entries: Sequence[Entry], title: str) -> str:
    """Draw a bar for every planner: throughput to the right, in the order given.

    Parameters
    ----------
    entries : of :func:`nest.planners.compare.compare`.
    title : one line above the picture.

    Returns
    -------
    str
        An SVG document; plans that do not fit are grey, planners without a plan have no bar.
    """
    most = max((rate(e.plan) for e in entries if e.plan is not None), default=1.0)
    step = _step(most)
    end = step * math.ceil(most / step * (1.0 - 1e-9))
    width = LEFT + LONGEST + RIGHT
    height = TOP + len(entries) * (BAR + GAP) + BOTTOM
    bottom = TOP + len(entries) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_legend(),
        f'<text x="{LEFT + LONGEST / 2}" y="{bottom + 40}" text-anchor="middle">'
        f'{rate_name(entries)}</text>',
    ]
    factor, prefix = thousands(end)
    for n in range(round(end / step) + 1):
        x = LEFT + LONGEST * n * step / end
        label = f"{n * step / factor:g}{prefix}" if n else "0"
        parts += [f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" '
                  'stroke="#e4e4e4"/>',
                  f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>']
    best = fastest(entries)
    for number, entry in enumerate(entries):
        top = TOP + number * (BAR + GAP)
        parts += _bar(entry, top, end, best is not None and entry.plan is best)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _step(most: float) -> float:
    """A round distance of grid lines: 1, 2 or 5 times a power of ten."""
    rough = most / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1.0 - 1e-9))


def _legend() -> list[str]:
    parts = []
    for x, colour, words in ((LEFT, FITS, "fits"), (LEFT + 70, MISSES, "out of memory")):
        parts += [f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/>',
                  f'<text x="{x + 18}" y="50" fill="#444">{words}</text>']
    return parts


def _bar(entry: Entry, top: float, end: float, best: bool) -> list[str]:
    """Name, bar and figure of one planner."""
    middle = top + BAR / 2 + 4
    weight = ' font-weight="bold"' if best else ""
    parts = [f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end"{weight}>'
             f'{escape(entry.planner)}</text>']
    if entry.plan is None:
        return [*parts, f'<text x="{LEFT + 8}" y="{middle}" fill="#666">no plan'
                f'<title>{escape(entry.reason or "")}</title></text>']
    length = LONGEST * rate(entry.plan) / end
    colour = FITS if entry.feasible else MISSES
    told = in_a_line(entry.plan) + (f"; {entry.reason}" if entry.reason else "")
    figure = short_number(rate(entry.plan)) + ("" if entry.feasible else ", does not fit")
    return [*parts,
            f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}">'
            f'<title>{escape(told)}</title></rect>',
            f'<text x="{LEFT + length + 8:.1f}" y="{middle}"{weight}>{figure}</text>']
