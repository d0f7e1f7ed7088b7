"""The text of a probe: what was measured, how sure that is, and what stays assumed."""

from __future__ import annotations

from collections.abc import Mapping

from nest.measured.probe.device import ProbedFigures
from nest.measured.probe.sources import ClusterFiles
from nest.report.calibration_text import figures
from nest.report.page import Page
from nest.units import format_seconds

TITLES = {"device": "Device", "cluster": "Network", "stack": "Software"}
MOST = 6
"""Reasons that are listed."""


def probe_text(
    told: ClusterFiles, found: Mapping[str, ProbedFigures], folder: str | None, width: int = 80,
    colour: bool = False, unicode: bool = True,
) -> str:
    """Give the report of a probe.

    Parameters
    ----------
    told : what was read.
    found : device, cluster and stack, as far as they were made.
    folder : where they are written; None: nowhere.
    width, colour, unicode : as of :class:`nest.report.page.Page`.
    """
    page = Page(width, colour, unicode)
    if told.results is not None:
        it = told.results
        hosts = len(it.nodes)
        page.paragraph(f"{it.device.name}: {len(it.hosts)} ranks on {hosts} "
                       f"{'node' if hosts == 1 else 'nodes'}, PyTorch {it.torch}, "
                       f"{sum(row.seconds is not None for row in it.rows)} measurements in "
                       f"{format_seconds(it.seconds, 2)}", "bold")
        _troubles(page, told)
    for note in told.notes:
        page.paragraph(f"Note: {note}.")
    for name, part in found.items():
        page.blank()
        page.paragraph(TITLES[name] + (f" ({folder}/{name}.yaml)" if folder else ""), "bold")
        if part.estimates:
            figures(page, part.estimates, "not determined")
        for note in part.notes:
            page.paragraph(f"Note: {note}.")
    page.blank()
    page.paragraph("Figures without a row, and those not determined, are assumed: those of the "
                   "catalog, or defaults; the files say which, in `source`.")
    where = folder or "DIR"
    also = f" --stack {where}/stack.yaml" if "stack" in found else ""
    page.paragraph(f"Use: nest plan MODEL {where}/cluster.yaml{also} ..."
                   + ("" if folder else " (after -o DIR)"))
    return page.text()


def _troubles(page: Page, told: ClusterFiles) -> None:
    """What could not be measured, and a rank that is slower than others."""
    it = told.results
    assert it is not None
    if it.slow is not None:
        rank, times = it.slow
        page.paragraph(f"Rank {rank} on {it.hosts[rank]} is slower than the others: "
                       f"{100 * (times - 1):.0f} % in the median.", "bold")
    refused = list(it.refused.items())
    for what, why in refused[:MOST]:
        page.paragraph(f"Not measured: {what}: {why}")
    if len(refused) > MOST:
        page.paragraph(f"Not measured: {len(refused) - MOST} more")
    if it.left:
        page.paragraph("No time was left for " + ", ".join(
            f"{count} of {part}" for part, count in it.left.items())
            + " (--seconds of the program).")
