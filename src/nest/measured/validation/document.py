"""A report as a JSON document, and as a table of rows."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from nest.inputs.files import csv_cell
from nest.measured.validation.pricing import PricedRun
from nest.measured.validation.score import Report, as_dict

SCHEMA = "nest.validation/1"
GIB = 2.0**30
COLUMNS = ("run_id", "group", "model", "framework", "stack", "measured_s", "predicted_s", "low_s",
           "high_s", "error",
           "memory_measured_gb", "memory_predicted_gb", "fits", "reason", "remarks", "source")


def to_json(report: Report) -> str:
    """The report as the text of one JSON document, schema `nest.validation/1`.

    Errors are shares (0.05 is 5 %), memory is in GiB.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "groups": {name: as_dict(found) for name, found in report.groups.items()},
        "without_anomalous": {name: as_dict(found)
                              for name, found in report.without_anomalous.items()},
        "overall": as_dict(report.overall),
        "rows": [_row(row) for row in report.rows],
    }
    return json.dumps(document, indent=2)


def _row(row: PricedRun) -> dict[str, Any]:
    return {
        "run_id": row.run.run_id,
        "measured_s": row.run.measured_s,
        "predicted_s": row.predicted_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "error": row.error,
        "memory_measured_gb": _gib(row.run.measured_memory),
        "memory_predicted_gb": _gib(row.predicted_memory),
        "reason": row.reason,
    }


def _gib(size: float | None) -> float | None:
    return None if size is None else size / GIB


def to_csv(report: Report) -> str:
    """All rows with their prices as CSV text, in the order of the table."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in report.rows:
        cells = {
            **_row(row), "group": row.run.group, "model": row.run.model,
            "framework": row.run.framework, "stack": row.stack, "source": row.run.source,
            "fits": {None: "", True: "1", False: "0"}[row.fits],
            "remarks": "; ".join(row.remarks),
        }
        writer.writerow([_cell(cells[column]) for column in COLUMNS])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(csv_cell(value))
