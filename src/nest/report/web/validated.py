"""Prices against measured runs, as the document of a page."""

from __future__ import annotations

from typing import Any

from nest.measured.validation.score import Report
from nest.units import format_seconds


def validation_document(report: Report, where: str) -> dict[str, Any]:
    """The document of a validation.

    Parameters
    ----------
    report : of :func:`nest.measured.validation.score.score`.
    where : the runs, in words.
    """
    overall, groups = report.overall, [*report.groups]
    return {
        "kind": "validation", "title": f"Prices against {where}",
        "figures": [
            {"name": "Median error", "value": _share(overall.median_abs_error),
             "note": f"of {overall.configurations:,} configurations", "tone": "plain"},
            {"name": "Bias", "value": _share(overall.bias, sign=True),
             "note": "mean of signed errors; below 0: priced too fast", "tone": "plain"},
            {"name": "Order", "value": _share(overall.ordered),
             "note": "of pairs of like runs are ranked as measured", "tone": "plain"},
            {"name": "Memory", "value": _share(overall.memory_median_abs_error),
             "note": f"median error of {overall.memory_configurations:,}", "tone": "plain"},
            {"name": "Priced", "value": f"{overall.priced:,}",
             "note": f"of {overall.rows:,} runs", "tone": "plain"}],
        "groups": groups,
        "points": [[one.measured_s, one.predicted_s, groups.index(one.group),
                    f"{one.model}, {one.framework} ({one.group})\nmeasured "
                    f"{format_seconds(one.measured_s)}, priced {format_seconds(one.predicted_s)} "
                    f"({100 * one.error:+.1f} %)"] for one in report.compared],
        "rows": [[name, f"{score.rows:,}", f"{score.configurations:,}",
                  _share(score.median_abs_error), _share(score.bias, sign=True),
                  _share(score.ordered), _share(score.memory_median_abs_error)]
                 for name, score in report.groups.items()],
        "refused": [[count, why] for why, count in report.reasons.most_common()],
    }


def _share(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.1f} %"
