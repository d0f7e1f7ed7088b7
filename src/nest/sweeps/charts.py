"""The results as pictures: the front, an objective over two axes, the effect of each axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nest.errors import InputError, did_you_mean
from nest.report.figure import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, look
from nest.sweeps.objectives import OBJECTIVES
from nest.sweeps.results import Light, Results, number_of
from nest.sweeps.study import ObjectiveName, Study
from nest.sweeps.text import short_names, shown, title
from nest.units import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK)
PANEL, WIDTH = 3.4, 8.0
"""Inches: height of a panel, width of a picture."""
MOST_PANELS = 12


def pair_of(study: Study, x: str | None, y: str | None) -> tuple[str, str]:
    """The two axes of a heat map: those asked for, else those with most values.

    Raises
    ------
    InputError : an axis that the study does not have, the same twice, or a study with one axis.
    """
    for option, name in (("x", x), ("y", y)):
        if name is not None and name not in study.axes:
            raise InputError(f"{option}: got {shorten(name)}; {did_you_mean(name, study.axes)}"
                             f"allowed: {', '.join(study.axes)}")
    left = [name for name in study.axes if name not in (x, y, *study.groups)]
    left += [name for name in study.groups if name not in (x, y)]
    left.sort(key=lambda name: (name in study.groups, -len(study.listed(name))))
    if len(study.axes) < 2 or x == y is not None:
        raise InputError(f"heat map: got {x or 'one axis'} for both; allowed: two axes of the "
                         "study")
    first = x if x is not None else left.pop(0)
    return first, y if y is not None else left.pop(0)


def objective_of(study: Study, name: str | None) -> ObjectiveName:
    """An objective of a study by its name; None: the first.

    Raises
    ------
    InputError : it is none of the study's.
    """
    for known in study.wanted:
        if name in (None, known):
            return known
    raise InputError(f"objective: got {shorten(name)}; {did_you_mean(str(name), study.wanted)}"
                     f"allowed: {', '.join(study.wanted)}")


def front_figure(results: Results) -> Figure:
    """Draw all plans by the first two objectives, and the front of each group.

    Returns
    -------
    Figure
        With one objective alone, that over the number of the point.
    """
    from matplotlib.figure import Figure

    study = results.study
    first, *others = study.wanted
    with look():
        figure = Figure((WIDTH, 4.5), layout="constrained")
        axes = figure.subplots()
        for colour, (group, found) in zip(_colours(), results.groups.items(), strict=False):
            points = [(_other(results, one, others), results.value(one, first)) for one in found]
            on_front = [point for point, one in zip(points, found, strict=True)
                        if one.number in results.front]
            axes.plot(*_columns(points), ".", color=colour, alpha=0.35, markersize=5.0)
            axes.plot(*_columns(sorted(on_front)), "o-", color=colour, markersize=5.0,
                      linewidth=1.0, label=_named(group) or "front")
        axes.set_xlabel(title(others[0], study) if others else "point")
        axes.set_ylabel(title(first, study))
        axes.set_title(f"{study.name}: all plans and the front")
        axes.grid(True)
        if results.light:
            axes.legend(loc="best", fontsize=8.0)
        _thousands(axes)
    return figure


def heat_map(results: Results, objective: ObjectiveName, x: str, y: str) -> Figure:
    """Draw the best of an objective over two axes, a panel for each group.

    Parameters
    ----------
    x, y : axes; of all others, but for those of the study's groups, the best value counts.
    """
    from matplotlib.figure import Figure

    study = results.study
    names = [*study.axes]
    places = names.index(x), names.index(y)
    outer = [names.index(name) for name in study.groups if name not in (x, y)]
    panels: dict[tuple[Any, ...], dict[tuple[Any, Any], float]] = {}
    pick = max if OBJECTIVES[objective].most else min
    for one in results.light:
        cells = panels.setdefault(tuple(one.labels[place] for place in outer), {})
        cell = one.labels[places[0]], one.labels[places[1]]
        value = results.value(one, objective)
        if math.isfinite(value):
            cells[cell] = pick(cells.get(cell, value), value)
    panels = dict([*panels.items()][:MOST_PANELS]) or {(): {}}
    short = dict(zip(names, short_names(study), strict=True))
    columns = 1 if len(panels) == 1 else 2
    lines = -(-len(panels) // columns)
    with look():
        figure = Figure((WIDTH, PANEL * lines + 0.6), layout="constrained")
        drawn = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, (group, cells) in zip(drawn, panels.items(), strict=False):
            _map(axes, cells, [_ordered({cell[side] for cell in cells}) for side in (0, 1)])
            axes.set_title(_named(group), fontsize=9.0)
            axes.set_xlabel(short[x])
            axes.set_ylabel(short[y])
        for axes in drawn[len(panels):]:
            axes.set_axis_off()
        best = "most" if OBJECTIVES[objective].most else "least"
        figure.suptitle(f"{study.name}: {title(objective, study)}, the {best} over all other axes",
                        fontsize=10.0, fontweight="bold", x=0.01, ha="left")
    return figure


def sensitivity_figure(results: Results) -> Figure:
    """Draw the effect of each axis on each objective: best over worst value, all else equal."""
    from matplotlib.figure import Figure

    study = results.study
    short = dict(zip(study.axes, short_names(study), strict=True))
    effects = [effect for effect in results.sensitivity() if effect.ratio is not None]
    with look():
        figure = Figure((WIDTH, 1.0 + 0.32 * max(len(effects), 2)), layout="constrained")
        axes = figure.subplots()
        for place, effect in enumerate(reversed(effects)):
            colour = COLOURS[study.wanted.index(effect.objective) % len(COLOURS)]
            gain = 100.0 * (effect.ratio - 1.0 if effect.ratio is not None else 0.0)
            axes.barh(place, gain, 0.7, color=colour)
            axes.annotate(f"{gain:.3g} %, best at {shown(effect.better)}", (gain, place), (3, 0),
                          textcoords="offset points", va="center", fontsize=7.0)
        axes.set_yticks(range(len(effects)), [f"{short[effect.axis]}: "
                                              f"{title(effect.objective, study)}"
                                              for effect in reversed(effects)])
        axes.set_xlabel("best value over worst, all else equal (%, geometric mean)")
        axes.set_title(f"{study.name}: effect of each axis")
        axes.margins(x=0.3)
        axes.grid(axis="x")
    return figure


def _map(axes: Axes, cells: Mapping[tuple[Any, Any], float], sides: Sequence[list[Any]]) -> None:
    """One panel: colours, and figures where there is room; cells without a plan stay grey."""
    along, up = sides
    table = [[cells.get((one, other), math.nan) for one in along] for other in up]
    axes.set_facecolor("#e4e4e4")
    if cells:
        image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
        axes.figure.colorbar(image, ax=axes, shrink=0.8)
        middle = (min(cells.values()) + max(cells.values())) / 2.0
        for row, line in enumerate(table):
            for column, value in enumerate(line):
                if len(along) <= 10 and math.isfinite(value):
                    axes.annotate(shown(value), (column, row), ha="center", va="center",
                                  fontsize=6.5, color="white" if value < middle else BLACK)
    axes.set_xticks(range(len(along)), [shown(label) for label in along], rotation=30)
    axes.set_yticks(range(len(up)), [shown(label) for label in up])


def _ordered(labels: set[Any]) -> list[Any]:
    """Labels by their numbers, or by their text."""
    numbers = {label: number_of(label) for label in labels}
    return sorted(labels, key=lambda label: (numbers[label] is None, numbers[label] or 0.0,
                                             str(label)))


def _other(results: Results, one: Light, others: Sequence[ObjectiveName]) -> float:
    return results.value(one, others[0]) if others else float(one.number)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _named(group: tuple[Any, ...]) -> str:
    return ", ".join(map(shown, group))


def _colours() -> list[str]:
    return [*COLOURS, *[GREY] * 1000]


def _thousands(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, place: shown(float(value))))
