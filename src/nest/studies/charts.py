"""The results as pictures: the front, an objective over two axes, the effect of each axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nest.errors import InputError, did_you_mean
from nest.report.figure import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, look
from nest.studies.results import OBJECTIVES, Light, Results, number_of
from nest.studies.study import ObjectiveName, Study
from nest.studies.text import short_names, shown, title
from nest.units import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK)
PANEL, WIDTH = 3.4, 8.0
"""Inches: height of a panel, width of a picture."""
MOST_PANELS = 12
MOST_LABELS = 10
"""Points of fronts that are labelled in a picture (chosen: more overlap)."""
WITHOUT: Mapping[str, tuple[str, str]] = {
    "proved": ("#e1e1e1", "proved, not asked"), "late": ("#d2d2d2", "late"),
    "infeasible": ("#a8a8a8", "does not fit"),
    "limit": ("#8c8c8c", "time limit"), "failed": ("#6e6e6e", "failed"),
    "invalid": ("#4a4a4a", "refused"), "open": ("#f0f0f0", "not asked yet")}
"""Shades of cells without a plan, and what the legend says; the nearest to a plan first."""


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
            points = [(other_value(results, one, others), results.value(one, first))
                      for one in found]
            on_front = [point for point, one in zip(points, found, strict=True)
                        if one.number in results.front]
            axes.plot(*_columns(points), ".", color=colour, alpha=0.35, markersize=5.0)
            axes.plot(*_columns(sorted(on_front)), "o-", color=colour, markersize=5.0,
                      linewidth=1.0, label=named(group) or "front")
            for (x, y), text in _thinned(labelled(results, found, points), len(results.groups)):
                axes.annotate(text, (x, y), (4, 4), textcoords="offset points", fontsize=6.5,
                              color=colour)
        axes.set_xlabel(title(others[0], study) if others else "point")
        axes.set_ylabel(title(first, study))
        axes.set_title(f"{study.name}: all plans and the front")
        axes.grid(True)
        axes.margins(x=0.15, y=0.1)
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

    study, panels = results.study, heat_panels(results, objective, x, y)
    short = dict(zip(study.axes, short_names(study), strict=True))
    columns = 1 if len(panels) == 1 else 2
    lines = -(-len(panels) // columns)
    with look():
        figure = Figure((WIDTH, PANEL * lines + 0.6), layout="constrained")
        drawn = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, (group, (cells, empty)) in zip(drawn, panels.items(), strict=False):
            _map(axes, cells, empty, [ordered({cell[side] for cell in (*cells, *empty)})
                                      for side in (0, 1)], title(objective, study))
            axes.set_title(named(group), fontsize=9.0, loc="right")
            axes.set_xlabel(short[x])
            axes.set_ylabel(short[y])
        for axes in drawn[len(panels):]:
            axes.set_axis_off()
        best = "most" if OBJECTIVES[objective].most else "least"
        figure.suptitle(f"{study.name}: {title(objective, study)}, the {best} over all other axes",
                        fontsize=10.0, fontweight="bold", x=0.01, ha="left")
    return figure


Cells = dict[tuple[Any, Any], float]
"""A value for each pair of labels."""


def heat_panels(
    results: Results, objective: ObjectiveName, x: str, y: str
) -> dict[tuple[Any, ...], tuple[Cells, dict[tuple[Any, Any], str]]]:
    """Cells of a heat map, and why others are empty, for each group; at most ``MOST_PANELS``.

    Parameters
    ----------
    objective, x, y : as of :func:`heat_map`.
    """
    study = results.study
    names = [*study.axes]
    places = names.index(x), names.index(y)
    outer = [names.index(name) for name in study.groups if name not in (x, y)]
    panels: dict[tuple[Any, ...], Cells] = {}
    missing = _missing(results, places, outer)
    pick = max if OBJECTIVES[objective].most else min
    for one in results.light:
        cells = panels.setdefault(tuple(one.labels[place] for place in outer), {})
        cell = one.labels[places[0]], one.labels[places[1]]
        value = results.value(one, objective)
        if math.isfinite(value):
            cells[cell] = pick(cells.get(cell, value), value)
    found = {}
    for group in [*dict.fromkeys([*panels, *missing])][:MOST_PANELS] or [()]:
        cells = panels.get(group, {})
        found[group] = cells, {cell: why for cell, why in missing.get(group, {}).items()
                               if cell not in cells}
    return found


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


def _missing(
    results: Results, places: tuple[int, int], outer: Sequence[int]
) -> dict[tuple[Any, ...], dict[tuple[Any, Any], str]]:
    """Why cells have no plan in the race, by panel and cell: the reason nearest to a plan."""
    late, order = {*results.late}, [*WITHOUT]
    found: dict[tuple[Any, ...], dict[tuple[Any, Any], str]] = {}
    for row in results.rows():
        why = "late" if row.number in late else row.status
        if why in WITHOUT:
            panel = found.setdefault(tuple(row.labels[place] for place in outer), {})
            cell = row.labels[places[0]], row.labels[places[1]]
            panel[cell] = min(panel.get(cell, why), why, key=order.index)
    return found


def labelled(
    results: Results, found: Sequence[Light], points: Sequence[tuple[float, float]]
) -> list[tuple[tuple[float, float], str]]:
    """Points of the front with the values of their axes, but for those of the group."""
    study = results.study
    kept = [place for place, name in enumerate(study.axes) if name not in study.groups
            and len({one.labels[place] for one in results.light}) > 1]
    return sorted((point, ", ".join(shown(one.labels[place]) for place in kept))
                  for point, one in zip(points, found, strict=True) if one.number in results.front)


def _thinned(labelled: Sequence[Any], groups: int) -> list[Any]:
    """As many as there is room for, from the first to the last."""
    most = max(2, MOST_LABELS // max(groups, 1))
    if len(labelled) <= most:
        return [*labelled]
    return [labelled[round(n * (len(labelled) - 1) / (most - 1))] for n in range(most)]


def _map(
    axes: Axes, cells: Mapping[tuple[Any, Any], float], empty: Mapping[tuple[Any, Any], str],
    sides: Sequence[list[Any]], what: str,
) -> None:
    """One panel: colours, and figures where there is room; cells without a plan are grey, and a
    legend says why."""
    from matplotlib.patches import Patch, Rectangle

    along, up = sides
    table = [[cells.get((one, other), math.nan) for one in along] for other in up]
    axes.set_facecolor("#e4e4e4")
    if cells:
        image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, label=what)
        bar.ax.yaxis.set_major_formatter(lambda value, place: shown(float(value)))
        middle = (min(cells.values()) + max(cells.values())) / 2.0
        for row, line in enumerate(table):
            for column, value in enumerate(line):
                if len(along) <= 10 and math.isfinite(value):
                    axes.annotate(shown(value), (column, row), ha="center", va="center",
                                  fontsize=6.5, color="white" if value < middle else BLACK)
    for (one, other), why in empty.items():
        axes.add_patch(Rectangle((along.index(one) - 0.5, up.index(other) - 0.5), 1.0, 1.0,
                                 facecolor=WITHOUT[why][0], edgecolor="white", linewidth=0.5))
    if empty:
        axes.set_xlim(-0.5, len(along) - 0.5)
        axes.set_ylim(-0.5, len(up) - 0.5)
        axes.legend(handles=[Patch(facecolor=colour, label=said) for why, (colour, said) in
                             WITHOUT.items() if why in empty.values()], fontsize=6.5,
                    loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False)
    axes.set_xticks(range(len(along)), [shown(label) for label in along], rotation=30)
    axes.set_yticks(range(len(up)), [shown(label) for label in up])


def ordered(labels: set[Any]) -> list[Any]:
    """Labels by their numbers, or by their text."""
    numbers = {label: number_of(label) for label in labels}
    return sorted(labels, key=lambda label: (numbers[label] is None, numbers[label] or 0.0,
                                             str(label)))


def other_value(results: Results, one: Light, others: Sequence[ObjectiveName]) -> float:
    return results.value(one, others[0]) if others else float(one.number)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def named(group: tuple[Any, ...]) -> str:
    return ", ".join(map(shown, group))


def _colours() -> list[str]:
    return [*COLOURS, *[GREY] * 1000]


def _thousands(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, place: shown(float(value))))
