"""Parity plot: priced against measured seconds, on logarithmic axes, as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nest.validation import Report
from nest.validation.score import Compared

SIDE, LEFT, TOP, BOTTOM, LEGEND = 520, 70, 46, 56, 250
BAND = 0.10  # lines at this share above and below
MANY = 3.5  # powers of ten from which on labels are fewer
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f3c8d", "#333333",
            "#a52a2a")
"""Those of Okabe and Ito (2008) that show on white, and three more; markers change after nine."""


def parity_svg(report: Report, title: str) -> str:
    """Draw every configuration as a point: measured to the right, priced upwards.

    Parameters
    ----------
    report : of :func:`nest.validation.score`.
    title : one line above the picture.

    Returns
    -------
    str
        An SVG document; empty axes where nothing was priced.
    """
    points = report.compared
    seconds = [value for one in points for value in (one.measured_s, one.predicted_s)]
    low = math.floor(math.log10(min(seconds, default=0.1)) * 2) / 2
    high = max(math.ceil(math.log10(max(seconds, default=10.0)) * 2) / 2, low + 0.5)
    scale = _Scale(low, high)
    names = list(dict.fromkeys(one.group for one in points))
    parts = [*_frame(title), *_grid(scale), *_diagonals(scale)]
    for number, name in enumerate(names):
        parts += [_mark(number, scale.x(one.measured_s), scale.y(one.predicted_s), _told(one))
                  for one in points if one.group == name]
    parts += _legend(names, report)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Scale:
    """Logarithmic axes from 10^low to 10^high seconds, equal on both sides."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def _share(self, seconds: float) -> float:
        return (math.log10(seconds) - self.low) / (self.high - self.low)

    def x(self, seconds: float) -> float:
        return LEFT + SIDE * self._share(seconds)

    def y(self, seconds: float) -> float:
        return TOP + SIDE * (1.0 - self._share(seconds))

    def ticks(self) -> list[float]:
        """1, 2 and 5 times the powers of ten, or 1 and 3 where there are many powers."""
        first, last = math.floor(self.low), math.ceil(self.high)
        steps = (1, 2, 5) if self.high - self.low < MANY else (1, 3)
        every = (step * 10.0**power for power in range(first, last + 1) for step in steps)
        return [tick for tick in every if self.low - 1e-9 <= math.log10(tick) <= self.high + 1e-9]


def _frame(title: str) -> list[str]:
    width, height = LEFT + SIDE + LEGEND, TOP + SIDE + BOTTOM
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 42}" text-anchor="middle">measured seconds '
        'of a step</text>',
        f'<text x="18" y="{TOP + SIDE / 2}" text-anchor="middle" '
        f'transform="rotate(-90 18 {TOP + SIDE / 2})">priced seconds of a step</text>',
    ]


def _grid(scale: _Scale) -> list[str]:
    parts = []
    for tick in scale.ticks():
        x, y, label = scale.x(tick), scale.y(tick), f"{tick:g}"
        parts += [
            _line(x, TOP, x, TOP + SIDE, "#e4e4e4"), _line(LEFT, y, LEFT + SIDE, y, "#e4e4e4"),
            f'<text x="{x:.1f}" y="{TOP + SIDE + 18}" text-anchor="middle">{label}</text>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" '
                 'stroke="#666"/>')
    return parts


def _diagonals(scale: _Scale) -> list[str]:
    """The line of equal seconds, and those a tenth above and below."""
    parts = []
    for factor, dash in ((1.0, ""), (1.0 + BAND, "4 4"), (1.0 - BAND, "4 4")):
        low = max(scale.low, scale.low - math.log10(factor))
        high = min(scale.high, scale.high - math.log10(factor))
        parts.append(_line(scale.x(10**low), scale.y(factor * 10**low), scale.x(10**high),
                           scale.y(factor * 10**high), "#888", dash))
    return parts


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" '
            f'stroke="{colour}"{dashes}/>')


def _mark(number: int, x: float, y: float, told: str = "") -> str:
    """A point of a group: a circle, for later groups a square."""
    colour = _COLOURS[number % len(_COLOURS)]
    text = f"<title>{escape(told)}</title>" if told else ""
    look = f'fill="{colour}" fill-opacity="0.75" stroke="white" stroke-width="0.5"'
    if number // len(_COLOURS) % 2 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}>{text}</circle>'
    return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" {look}>{text}</rect>'


def _told(one: Compared) -> str:
    return (f"{one.members[0].run.run_id}: measured {one.measured_s:.4g} s, priced "
            f"{one.predicted_s:.4g} s ({100 * one.error:+.0f} %)")


def _legend(names: Sequence[str], report: Report) -> list[str]:
    x = LEFT + SIDE + 22
    parts = [f'<text x="{x - 4}" y="{TOP + 8}" fill="#444">group, median error</text>']
    for number, name in enumerate(names):
        y = TOP + 30 + 20 * number
        error = report.groups[name].median_abs_error
        label = name if error is None else f"{name}, {100 * error:.1f} %"
        parts += [_mark(number, x, y), f'<text x="{x + 12}" y="{y + 4}">{escape(label)}</text>']
    y = TOP + 44 + 20 * len(names)
    parts.append(f'<text x="{x - 4}" y="{y}" fill="#444">dashed: {100 * BAND:.0f} % off</text>')
    return parts
