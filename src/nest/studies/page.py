"""A study as the document of a page: front, heat map, effects, and what was refused and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nest.studies.charts import WITHOUT, heat_panels, labelled, ordered, other_value
from nest.studies.results import OBJECTIVES, Results
from nest.studies.study import ObjectiveName
from nest.studies.text import short_names, shown, status_text, title

MOST_POINTS, MOST_ROWS = 5000, 200
"""Points of the front's picture, evenly chosen of more; rows of a table (chosen)."""


def study_document(
    results: Results, objective: ObjectiveName, pair: tuple[str, str] | None
) -> dict[str, Any]:
    """The document of a study.

    Parameters
    ----------
    objective : of the heat map.
    pair : its axes; None: the study has only one.
    """
    study = results.study
    return {
        "kind": "study", "title": f"Study {study.name}", "name": study.name,
        "status": status_text(results), "front": _front(results),
        "heat": None if pair is None else _heat(results, objective, *pair),
        "effects": _effects(results), "best": _best(results),
        "refused": [[one.status, one.points, one.message] for one in results.reasons[:MOST_ROWS]],
        "doubts": [[points, text] for text, points in [*results.doubts.items()][:MOST_ROWS]],
    }


def _front(results: Results) -> dict[str, Any]:
    """All plans by the first two objectives, and which are on the front of their group."""
    study = results.study
    first, *others = study.wanted
    groups = []
    for group, found in results.groups.items():
        every = -(-len(results.light) // MOST_POINTS)
        kept = [one for n, one in enumerate(found) if n % every == 0
                or one.number in results.front]
        points = [(other_value(results, one, others), results.value(one, first)) for one in kept]
        labels = dict(labelled(results, kept, points))
        groups.append({"name": _named(results, study.groups, group), "points": [
            [*point, one.number, one.number in results.front,
             labels.get(point) or ", ".join(map(shown, one.labels))]
            for point, one in zip(points, kept, strict=True)]})
    return {"x": title(others[0], study) if others else "point", "y": title(first, study),
            "groups": groups}


def _named(results: Results, names: Sequence[str], group: Sequence[Any]) -> str:
    """A group by its axes and values."""
    short = dict(zip(results.study.axes, short_names(results.study), strict=True))
    return ", ".join(f"{short[name]} {shown(value)}"
                     for name, value in zip(names, group, strict=True))


def _heat(results: Results, objective: ObjectiveName, x: str, y: str) -> dict[str, Any]:
    study = results.study
    short = dict(zip(study.axes, short_names(study), strict=True))
    panels = []
    for group, (cells, empty) in heat_panels(results, objective, x, y).items():
        along, up = (ordered({cell[side] for cell in (*cells, *empty)}) for side in (0, 1))
        panels.append({
            "name": _named(results, [one for one in study.groups if one not in (x, y)], group),
            "along": [*map(shown, along)], "up": [*map(shown, up)],
            "cells": [[along.index(one), up.index(other), value, shown(value)]
                      for (one, other), value in cells.items()],
            "empty": [[along.index(one), up.index(other), why]
                      for (one, other), why in empty.items()]})
    return {"x": short[x], "y": short[y], "what": title(objective, study),
            "most": OBJECTIVES[objective].most, "panels": panels,
            "reasons": {why: said for why, (_, said) in WITHOUT.items()}}


def _effects(results: Results) -> list[list[Any]]:
    """Axis, objective, best over worst value less 1, and where it is best."""
    study = results.study
    short = dict(zip(study.axes, short_names(study), strict=True))
    return [[short[one.axis], title(one.objective, study), one.ratio - 1.0, shown(one.better)]
            for one in results.sensitivity() if one.ratio is not None]


def _best(results: Results) -> dict[str, Any]:
    """The best point of each group by each objective."""
    study = results.study
    best = {(name, group): one for name in study.wanted
            for group, one in results.best(name).items()}
    rows = {row.number: row for row in results.chosen({one.number for one in best.values()})}
    return {"heads": ["best by", *short_names(study), "value", "plan", "point"], "rows": [
        [title(name, study), *map(shown, one.labels), shown(results.value(one, name)),
         rows[one.number].plan or "", str(one.number)]
        for (name, _), one in [*best.items()][:MOST_ROWS]]}
