"""The network of a plan as a picture: devices in the colours of their stages, switches, links."""

from __future__ import annotations

import colorsys
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nest.evaluation.plans import Plan, Stage
from nest.inputs.space import IntSet
from nest.report.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILION,
    look,
)
from nest.report.network.layout import MapLayout, layout
from nest.report.network.sketch import Floats, Sketch, sketch
from nest.units import format_bandwidth, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

YELLOW = "#f0e442"
OKABE_ITO = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, VERMILION, YELLOW, BLACK)
"""M. Okabe and K. Ito, "Color Universal Design", 2008; neighbouring stages differ in lightness."""
SIDE, DOT = 0.8, 0.42
"""Side of a square, and width of the dot of a switch; 1 is the distance of two squares."""
UNIT, LEAST = 0.33, 0.15
"""Inches of that distance: most, and least."""
PAGE = (11.0, 8.0)
"""Inches that a picture should not exceed while squares are larger than the least."""
LINE, CHARACTER, MARGIN, LEAST_WIDE = 0.18, 0.066, 0.15, 6.5
"""Inches: of a line of text, of a character of the legend, of the margin, of a picture."""
THIN, THICK, POWER = 0.7, 3.0, 0.4
"""Points: width of the slowest links, and most; widths go by this power of the bandwidth."""
MOST_LISTED, COLUMN, SHORT = 60, 20, 4
"""Stages that the legend lists; lines of a column, most and least."""

Role = tuple[int, int]
"""Stage and replica."""


def network_chart(plan: Plan) -> Figure:
    """Draw the network of a plan: which stage and which replica each device works for.

    Parameters
    ----------
    plan : as `plan` or `evaluate` gives it.

    Returns
    -------
    Figure
        A collection of squares for each stage with the gid ``stage0`` and so on, ``idle`` for
        devices that do nothing, ``switches``, ``links``. Where a square stands for several
        devices, it has a strip for each stage, in the share of its devices.

    Raises
    ------
    InputError : the network is too large, see :func:`nest.report.network.sketch.sketch`.
    """
    from matplotlib.figure import Figure

    drawn = sketch(plan.inputs.cluster)
    found = layout(drawn)
    points = np.concatenate([found.position_V, *(line for line, _ in found.lines)])
    low, high = points.min(axis=0) - 0.7, points.max(axis=0) + 0.7
    width, height = (high - low).tolist()
    unit = max(LEAST, min(UNIT, PAGE[0] / width, PAGE[1] / height))
    labels = [_label(plan, n) for n in range(len(plan.stages))][:MOST_LISTED]
    # inches: of the network, of the names of rows, of the legend
    wide, tall = unit * width, unit * height
    named = MARGIN + max((CHARACTER * len(name) for _, name in found.rows), default=0.0)
    beside = wide < 1.3 * tall
    each = 0.5 + CHARACTER * max(map(len, labels))
    columns = math.ceil(len(labels) / COLUMN)
    if not beside:
        columns = max(columns, min(int(wide / each), math.ceil(len(labels) / SHORT)))
    listed = columns * each
    lines = LINE * (math.ceil(len(labels) / columns) + 3)
    across = max(named + wide + MARGIN + listed * beside, listed, LEAST_WIDE)
    head = [*textwrap.wrap(_title(plan), int(0.8 * across / CHARACTER))]
    notes = textwrap.wrap("; ".join([*_notes(plan, drawn), *found.notes]),
                          int(1.1 * across / CHARACTER))
    above = MARGIN + LINE * (1.2 * len(head) + len(notes)) + MARGIN
    below = MARGIN if beside else lines + MARGIN
    whole = above + (max(tall, lines) if beside else tall) + below
    with look():
        figure = Figure((across, whole))
        middle = below + max(0.0, whole - above - below - tall) / 2
        axes = figure.add_axes((named / across, middle / whole, wide / across, tall / whole))
        axes.set_axis_off()
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        _draw_links(axes, drawn, found)
        _draw_switches(axes, drawn, found, unit)
        _draw_squares(axes, plan, drawn, found.position_V, unit)
        _write_head(figure, head, notes, above)
        spot = (((named + wide + MARGIN / 2) / across, (middle + tall / 2) / whole) if beside
                else (MARGIN / across, 0.5 * MARGIN / whole))
        _legend(figure, plan, labels, columns, spot, beside)
    return figure


def _write_head(
    figure: Figure, head: Sequence[str], notes: Sequence[str], inches: float
) -> None:
    wide, tall = figure.get_size_inches()
    figure.text(MARGIN / wide, 1.0 - MARGIN / tall, "\n".join(head), fontsize=10.0,
                fontweight="bold", va="top")
    figure.text(MARGIN / wide, 1.0 - (inches - MARGIN) / tall, "\n".join(notes), fontsize=8.0,
                color="#444444", va="bottom")


def _title(plan: Plan) -> str:
    subject = plan.inputs.model or plan.inputs.profile
    name = subject.name if subject is not None else "chain"
    cluster = plan.inputs.cluster
    return (f"{name} on {cluster.name}, {_counted(cluster.size, 'device')}: "
            f"{format_seconds(plan.step_time_s)} per step")


def _label(plan: Plan, number: int) -> str:
    """Legend of a stage: its layers and degrees."""
    stage = plan.stages[number]
    context = f" x cp {stage.cp}" if stage.cp > 1 else ""
    expert = f", ep {stage.ep}" if stage.ep > 1 else ""
    cluster = plan.inputs.cluster
    device = cluster.device_types[cluster.type_at(stage.devices[0])].name
    device_type = f", on {device}" if cluster.types else ""
    return (f"stage {number}: layers {_layers(plan, stage)}, tp {stage.tp}{context} x dp_in "
            f"{stage.dp_in}{expert}, ZeRO {stage.zero}{device_type}")


def _layers(plan: Plan, stage: Stage) -> str:
    order = plan.parallelism.order
    spans = stage.chunks or (stage.layers,)
    if order is not None:
        return str(IntSet.of(order[spans[0][0] : spans[-1][1]]))
    shown = [f"{i}..{j - 1}" if j - i > 1 else str(i) if j > i else "-" for i, j in spans]
    return " ".join(shown if len(shown) <= 2 else (shown[0], "..", shown[-1]))


def _notes(plan: Plan, drawn: Sketch) -> list[str]:
    notes = []
    many, numbered = len(plan.replicas) > 1, len(plan.stages) > len(OKABE_ITO)
    if many or numbered:
        notes.append("numbers: " + ", below ".join(["stage"] * numbered + ["replica"] * many))
    if drawn.each > 1:
        notes.append(f"each square: a group of {drawn.each} devices")
    if plan.inputs.cluster.links is None:
        notes.append("each switch: all that join its group")
    rates = drawn.bandwidth_C
    if len(rates):
        ends = [format_bandwidth(float(rate), 3) for rate in (rates.min(), rates.max())]
        notes.append(f"links: {ends[0]} (thin) to {ends[1]} (wide)" if ends[0] != ends[1]
                     else f"links: {ends[0]} each")
    return notes


def _roles(plan: Plan) -> list[Role | None]:
    """Stage and replica of each device; None: idle."""
    roles: list[Role | None] = [None] * plan.inputs.cluster.size
    for replica, origin in enumerate(plan.replicas):
        for number, stage in enumerate(plan.stages):
            first, stop = stage.devices
            roles[origin + first : origin + stop] = [(number, replica)] * (stop - first)
    return roles


def stage_colours(count: int) -> list[str]:
    """Colours of ``count`` stages: those of Okabe and Ito, then further distinct ones.

    Further hues are a golden section apart, so that neighbours differ, in three lightnesses.

    Parameters
    ----------
    count : how many.
    """
    more = (colorsys.hls_to_rgb(0.08 + 0.618034 * n % 1.0, (0.35, 0.6, 0.8)[n % 3], 0.6)
            for n in range(max(count - len(OKABE_ITO), 0)))
    colours = [*OKABE_ITO, *("#" + "".join(f"{round(255 * c):02x}" for c in rgb) for rgb in more)]
    return colours[:count]


# ---------------------------------------------------------------- drawing


def _draw_links(axes: Axes, drawn: Sketch, found: MapLayout) -> None:
    from matplotlib.collections import LineCollection

    if not found.lines:
        return
    faster = drawn.bandwidth_C / drawn.bandwidth_C.min()
    power = min(POWER, np.log(THICK / THIN) / np.log(max(faster.max(), 1.01)))
    width = THIN * faster**power
    lines = LineCollection(
        [line for line, _ in found.lines], linewidths=[width[cable] for _, cable in found.lines],
        colors="#b4b4b4", capstyle="round", zorder=1.0)
    lines.set_gid("links")
    axes.add_collection(lines)


def _draw_switches(axes: Axes, drawn: Sketch, found: MapLayout, unit: float) -> None:
    spots = found.position_V[drawn.squares :]
    if not len(spots):
        return
    dots = axes.scatter(spots[:, 0], spots[:, 1], (72.0 * unit * DOT) ** 2, color="#8a8a8a",
                        edgecolors="white", linewidths=0.5, zorder=2.0)
    dots.set_gid("switches")
    for height, name in found.rows:
        axes.text(axes.get_xlim()[0], height, name, fontsize=7.5, color="#666666", ha="right",
                  va="center")


def _draw_squares(axes: Axes, plan: Plan, drawn: Sketch, place: Floats, unit: float) -> None:
    """Squares of one colour, or strips of several; the numbers of replicas on them."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patheffects import withStroke

    colours = stage_colours(len(plan.stages))
    numbered = len(plan.stages) > len(OKABE_ITO)
    roles = _roles(plan)
    strips: dict[int, list[Floats]] = {}
    for square in range(drawn.squares):
        own = roles[square * drawn.each : (square + 1) * drawn.each]
        counts = Counter(-1 if role is None else role[0] for role in own)
        left = place[square] - SIDE / 2
        for stage, devices in sorted(counts.items(), key=lambda item: (item[0] < 0, item[0])):
            wide = SIDE * devices / drawn.each
            strips.setdefault(stage, []).append(
                left + np.array([[0.0, 0.0], [wide, 0.0], [wide, SIDE], [0.0, SIDE]]))
            left = left + (wide, 0.0)
        used = [role for role in own if role is not None]
        if used:
            main = counts.most_common(1)[0][0]
            text = _text(used, numbered, len(plan.replicas) > 1)
            mixed = len(counts) > 1
            axes.text(
                place[square, 0], place[square, 1], text, fontsize=_points(text, unit), zorder=4.0,
                ha="center", va="center" if "\n" in text else "center_baseline", linespacing=0.95,
                color="black" if mixed or _light(colours[main]) else "white",
                path_effects=[withStroke(linewidth=1.2, foreground="white")] if mixed else None)
    for stage, shapes in sorted(strips.items()):
        squares = PolyCollection(
            shapes, facecolors="white" if stage < 0 else colours[stage],
            edgecolors=GREY if stage < 0 else "#333333", linewidths=0.6, zorder=3.0,
            linestyles="dashed" if stage < 0 else "solid")
        squares.set_gid("idle" if stage < 0 else f"stage{stage}")
        axes.add_collection(squares)


def _text(used: Sequence[Role], numbered: bool, many: bool) -> str:
    """Text on a square: its stages if colours do not suffice, and its replicas."""
    parts = []
    for wanted, place in ((numbered, 0), (many, 1)):
        if wanted:
            values = sorted({role[place] for role in used})
            parts.append(str(values[0]) if len(values) == 1 else f"{values[0]}..{values[-1]}")
    return "\n".join(parts)


def _points(text: str, unit: float) -> float:
    """Size of a text that fits into a square: a digit is 0.62 of it wide, a line 1.1 high."""
    lines = text.split("\n")
    room = 72.0 * unit * SIDE * 0.86
    return min(8.0, room / (0.62 * max(1, *map(len, lines))), room / (1.1 * len(lines)))


def _light(colour: str) -> bool:
    """Whether black reads better on a colour than white: relative luminance, WCAG 2.1."""
    rgb = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179


def _legend(
    figure: Figure, plan: Plan, labels: Sequence[str], columns: int, spot: tuple[float, float],
    beside: bool,
) -> None:
    from matplotlib.patches import Patch

    colours = stage_colours(len(plan.stages))
    handles = [Patch(facecolor=colour, edgecolor="#333333", linewidth=0.6, label=label)
               for colour, label in zip(colours, labels, strict=False)]
    if left := len(plan.stages) - len(labels):
        handles.append(Patch(alpha=0.0, label=f"and {left} more stages"))
    if idle := _roles(plan).count(None):
        handles.append(Patch(facecolor="white", edgecolor=GREY, linestyle="--",
                             label="idle: " + _counted(idle, "device") + _kinds(plan)))
    p = plan.parallelism
    figure.legend(
        handles=handles, ncols=columns, loc="center left" if beside else "lower left",
        bbox_to_anchor=spot, borderaxespad=0.0, alignment="left", handlelength=1.2,
        handleheight=1.2,
        title=f"{_counted(p.pp, 'stage')} x {_counted(p.outer_dp, 'replica')}")


def _kinds(plan: Plan) -> str:
    """Idle devices by type, where there are several."""
    cluster = plan.inputs.cluster
    if not cluster.types:
        return ""
    counts = Counter(cluster.device_types[cluster.type_at(device)].name
                     for device, role in enumerate(_roles(plan)) if role is None)
    return f" ({', '.join(f'{count:,} {name}' for name, count in counts.items())})"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
