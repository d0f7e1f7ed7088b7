"""The text of a calibration: each figure with its uncertainty, then the errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from nest.measured.calibration.collectives import NetworkFit, decades
from nest.measured.calibration.fit import Array, Estimate, median_and_tail, percent_off
from nest.measured.calibration.gemms import DeviceFit
from nest.measured.calibration.runs import RunsFit
from nest.report.page import Page, PageOptions
from nest.units import format_bandwidth, format_bytes, format_seconds

NOT_TOLD = "not determined by these measurements"
MOST_RUNS, MOST_REASONS, LONGEST = 20, 5, 36
"""Runs and reasons that are listed, and characters of a run's name."""
_SHOWN = {"s": format_seconds, "B": format_bytes, "B/s": format_bandwidth}
FEW = 5
"""Measurements below which no 90th percentile is shown."""


def device_text(found: DeviceFit, **options: Unpack[PageOptions]) -> str:
    """Give the report of products fitted to a device.

    Parameters
    ----------
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    page.paragraph(f"{found.before.name}: matrix products", "bold")
    for each in found.formats:
        page.blank()
        page.paragraph(f"{each.dtype}, {each.count} products", "bold")
        figures(page, each.fit.estimates)
        errors(page, each.fit.before, each.after)
        if each.note:
            page.paragraph(f"Note: {each.note}.")
    return page.text()


def network_text(found: NetworkFit, notes: Sequence[str], **options: Unpack[PageOptions]) -> str:
    """Give the report of collectives fitted to a cluster; arguments as :func:`device_text`."""
    page = Page(**options)
    page.paragraph(f"{found.before.name}: {len(found.measured)} collectives", "bold")
    for note in notes:
        page.paragraph(f"Note: {note}.")
    page.blank()
    figures(page, found.fit.estimates)
    if any(each.bound == "upper" and each.parameter.name.endswith(": efficiency")
           for each in found.fit.estimates):
        page.paragraph("Note: a level is faster than its bandwidth allows. Check the bandwidth, "
                       "and whether its switches reduce (in_network_reduction).")
    untold = [level.name for level in found.before.levels if level.name not in found.crossed]
    if untold:
        page.paragraph(f"Not measured, unchanged: {', '.join(untold)}.")
    errors(page, found.fit.before, found.fit.after)
    page.blank()
    _decades(page, found)
    page.blank()
    _collectives(page, found)
    return page.text()


def runs_text(found: RunsFit, **options: Unpack[PageOptions]) -> str:
    """Give the report of training runs fitted to a stack; arguments as :func:`device_text`."""
    page = Page(**options)
    chosen = found.chosen
    count, ways = len(chosen.runs), round(float(found.weights.sum()))
    page.paragraph(f"{chosen.stack.name}: {count} runs, {ways} configurations, on "
                   f"{', '.join(sorted(chosen.devices))}", "bold")
    for reason, number in sorted(chosen.skipped.items(), key=lambda pair: -pair[1])[:MOST_REASONS]:
        page.paragraph(f"Left out: {number}, {reason}")
    page.blank()
    figures(page, found.fit.estimates)
    errors(page, found.fit.before, found.fit.after)
    median, tail = median_and_tail(found.left_out)
    text = f"Error of runs left out one at a time: median {median:.1f} %"
    page.paragraph(text + (f"; 90th percentile {tail:.1f} %." if count >= FEW else "."))
    if median >= median_and_tail(found.fit.before)[0]:
        page.paragraph("These runs do not show that the fit is better than the figures before: "
                       "keep those, or measure more.", "bold")
    page.blank()
    _runs(page, found)
    return page.text()


def _runs(page: Page, found: RunsFit) -> None:
    """Runs with their errors; the largest errors where there are many."""
    order = list(range(len(found.chosen.runs)))
    title = "Predicted over measured step"
    if len(order) > MOST_RUNS:
        order = sorted(order, key=lambda i: -abs(found.fit.after[i]))[:MOST_RUNS]
        title += f": the {MOST_RUNS} largest errors"
    rows = []
    for i in order:
        run = found.chosen.runs[i]
        name = run.run_id if len(run.run_id) <= LONGEST else run.run_id[: LONGEST - 3] + "..."
        off = (found.fit.before[i], found.fit.after[i], found.left_out[i])
        rows.append((name, format_seconds(run.measured_s or 0.0),
                     *(f"{100 * math.expm1(each):+.1f} %" for each in off)))
    page.table(title, ("run", "measured", "before", "after", "left out"), rows, (0,))


def figures(page: Page, estimates: Sequence[Estimate], untold: str = NOT_TOLD) -> None:
    """Add a table of what was fitted, with a remark where nothing was determined."""
    rows = []
    for each in estimates:
        unit = each.parameter.unit
        remark = untold if not each.determined else ""
        remark = f"at its {each.bound} bound" if each.bound else remark
        error = shown(each.error, unit, 2) if each.determined and each.error else ""
        rows.append((each.parameter.name, shown(each.value, unit), error,
                     shown(each.parameter.catalog, unit), remark))
    page.table("", ("figure", "value", "+-", "before", ""), rows, (0, 4))


def errors(page: Page, before: Array, after: Array) -> None:
    """Add a line with the errors of predictions, before and after."""
    (median, tail), (median_after, tail_after) = median_and_tail(before), median_and_tail(after)
    text = f"Error: median {median:.1f} % before, {median_after:.1f} % after"
    if len(after) >= FEW:
        text += f"; 90th percentile {tail:.1f} %, {tail_after:.1f} %"
    page.paragraph(text + ".")


def shown(value: float, unit: str, digits: int = 3) -> str:
    """A figure with its unit."""
    if unit in _SHOWN:
        return _SHOWN[unit](value, digits) if value > 1e-12 else f"0 {unit}"
    return f"{value:.{digits}g}" if abs(value) > 1e-9 else "0"


def _decades(page: Page, found: NetworkFit) -> None:
    """Errors by the power of ten of the message; small ones were not fitted."""
    rows = [(f"{_power(each.from_bytes)} to {_power(each.to_bytes)}", str(each.count),
             f"{100 * each.before:.1f} %", f"{100 * each.after:.1f} %",
             "" if each.fitted else "not fitted") for each in decades(found)]
    page.table("Median error by size", ("message", "collectives", "before", "after", ""), rows,
               (0, 4))


def _power(size: int) -> str:
    """A power of ten of bytes, as 100 MB."""
    step = min((len(str(size)) - 1) // 3, 4)
    return f"{size / 1000**step:g} {('B', 'kB', 'MB', 'GB', 'TB')[step]}"


def _collectives(page: Page, found: NetworkFit) -> None:
    """Errors by collective and ranks, with their sign."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for each, before, after in zip(found.measured, found.fit.before, found.fit.after, strict=True):
        groups.setdefault((each.collective, each.ranks), []).append((float(before), float(after)))
    rows = []
    for (collective, ranks), pairs in sorted(groups.items()):
        off, sides = percent_off(np.array(pairs)), np.expm1(np.array(pairs))
        rows.append((collective, str(ranks), str(len(pairs)), f"{np.median(off[:, 0]):.1f} %",
                     f"{np.median(off[:, 1]):.1f} %", f"{100 * np.median(sides[:, 1]):+.1f} %"))
    page.table("Median error by collective (bias: signed; above 0 is priced too slow)",
               ("collective", "ranks", "count", "before", "after", "bias"), rows, (0,))
