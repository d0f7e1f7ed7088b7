"""How true prices are today, and how true they were when `golden/accuracy.json` was written.

`python tests/measured/validation/refresh_accuracy.py` writes that file anew, and the table of
evidence. Their difference belongs into the change that made prices better or worse.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from measured import other_rows, rows

from nest.measured import validation

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = FOLDER / "accuracy.json"
REASONS = FOLDER / "accuracy_reasons.csv"
"""Groups that may get worse: group, the largest error that it may have, and why."""
SLACK = 0.01
"""A point: what a group's median may lose without a stated reason."""
FIELDS = ("rows", "priced", "median_abs_error", "bias", "memory_median_abs_error")
WATCHED = ("median_abs_error", "memory_median_abs_error")

Scores = Mapping[str, Mapping[str, float | int | None]]


def measured() -> dict[str, dict[str, float | int | None]]:
    """Scores of all tables of measured runs, by group; errors rounded to 0.01 %.

    ``all`` is NEST's own table alone; nothing is fitted to the others.
    """
    report = validation.score(rows())
    every = {**report.groups, **validation.score(other_rows()).groups, "all": report.overall}
    return {name: {field: _rounded(getattr(found, field)) for field in FIELDS}
            for name, found in every.items()}


def _rounded(value: float | int | None) -> float | int | None:
    return round(value, 4) if isinstance(value, float) else value


def golden() -> dict[str, dict[str, float | int | None]]:
    """The scores that were written down."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def write(scores: Scores) -> None:
    """Write scores down, a group a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in scores.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def reasons() -> dict[str, float]:
    """The largest errors that have a stated reason, by group."""
    with open(REASONS, encoding="utf-8", newline="") as stream:
        stated = csv.DictReader(line for line in stream if not line.startswith("#"))
        return {row["group"]: float(row["most"]) for row in stated if row["reason"].strip()}


def worse(before: Scores, now: Scores, stated: Mapping[str, float] | None = None) -> list[str]:
    """What got worse by more than ``SLACK`` or is gone without a reason, or is no longer priced, a
    sentence each.

    Parameters
    ----------
    stated : of :func:`reasons`; None: there are none.
    """
    found = []
    for name, old in before.items():
        new = now.get(name)
        if new is None:
            found += [] if name in (stated or {}) else [f"{name}: the group is gone"]
            continue
        if (new["priced"] or 0) < (old["priced"] or 0):
            found.append(f"{name}: {new['priced']} rows are priced, {old['priced']} were")
        for field in WATCHED:
            was, is_ = old[field], new[field]
            if was is not None and (is_ is None or is_ > max(
                    was + SLACK, (stated or {}).get(name, 0.0))):
                found.append(f"{name}: {field} is {is_}, was {was}")
    return found


def table(before: Scores, now: Scores) -> str:
    """Errors of the groups that changed, old against new; empty: none did."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    heads = ("group", "rows", "median", "", "bias", "", "memory", "")
    lines = [heads] + [(name, *_cells(before.get(name, {}), now.get(name, {}))) for name in changed]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    return "\n".join("  ".join(
        cell.rjust(width) if n else cell.ljust(width)
        for n, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines) if changed else ""


def _cells(old: Mapping[str, float | int | None], new: Mapping[str, float | int | None]) -> list[
        str]:
    cells = [str(new.get("priced", "gone"))]
    for field in ("median_abs_error", "bias", "memory_median_abs_error"):
        cells += [f"{_percent(old.get(field))} ->", _percent(new.get(field))]
    return cells


def _percent(value: float | int | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
