"""How true prices are today, and how true they were when `golden/accuracy.json` was written.

`python tests/measured/validation/refresh_accuracy.py` writes that file anew. Its difference
belongs into the change that made prices better or worse, where it is reviewed.
"""

from __future__ import annotations

import json
from pathlib import Path

from measured import rows

from nest.measured import validation

GOLDEN = Path(__file__).parents[2] / "golden" / "accuracy.json"
SLACK = 0.005
"""Half a point: what a group's median may lose without being noticed."""
FIELDS = ("rows", "priced", "median_abs_error", "bias", "memory_median_abs_error")


def measured() -> dict[str, dict[str, float | int | None]]:
    """Scores of NEST's own table of measured runs, by group; errors rounded to 0.01 %."""
    report = validation.score(rows())
    every = {**report.groups, "all": report.overall}
    return {name: {field: _rounded(getattr(found, field)) for field in FIELDS}
            for name, found in every.items()}


def _rounded(value: float | int | None) -> float | int | None:
    return round(value, 4) if isinstance(value, float) else value


def golden() -> dict[str, dict[str, float | int | None]]:
    """The scores that were written down."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def write(scores: dict[str, dict[str, float | int | None]]) -> None:
    """Write scores down, a group a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in scores.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def worse(
    before: dict[str, dict[str, float | int | None]],
    now: dict[str, dict[str, float | int | None]],
) -> list[str]:
    """What got worse by more than ``SLACK``, or is no longer priced, a sentence each."""
    found = []
    for name, old in before.items():
        new = now.get(name)
        if new is None:
            found.append(f"{name}: the group is gone")
            continue
        if (new["priced"] or 0) < (old["priced"] or 0):
            found.append(f"{name}: {new['priced']} rows are priced, {old['priced']} were")
        for field in ("median_abs_error", "memory_median_abs_error"):
            was, is_ = old[field], new[field]
            if was is not None and (is_ is None or is_ > was + SLACK):
                found.append(f"{name}: {field} is {is_}, was {was}")
    return found
