"""The text of what runs taught, and of what to run next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nest.evaluation.plans import Plan
from nest.measured.learning import Learned, Next
from nest.measured.learning.following import SURE
from nest.measured.learning.posterior import BYTES
from nest.report.page import Page
from nest.units import format_seconds

NAMES = {"compute": "computing", "tp": "tensor parallelism",
         "exchange": "cp, ep, host", "reduction": "end of step, ZeRO",
         "activations": "activations", "states": "states"}
MOST, LONGEST = 20, 27
"""Runs that are listed, and characters of a name."""


def learned_text(
    found: Learned, width: int = 80, colour: bool = False, unicode: bool = True
) -> str:
    """Give what runs taught; arguments as of :class:`nest.report.page.Page`."""
    page = Page(width, colour, unicode)
    ran = [one for one in found.observations if one.verdict == "ran"]
    failed = len(found.observations) - len(ran)
    page.paragraph(f"{found.stack.name}: {len(ran)} runs, {failed} out of memory, on "
                   f"{', '.join(found.devices)}", "bold")
    page.blank()
    rows = []
    for name, figure in found.figures.items():
        down, up = figure.value / figure.doubt, figure.value * figure.doubt
        kind = "bytes" if name in BYTES else "seconds"
        rows.append((NAMES[name], kind, f"{figure.value:.2f}", f"{down:.2f} to {up:.2f}",
                     _cut(figure.told_by or ("" if len(found.observations) > 40 else "no run"))))
    page.table("Measured over priced", ("", "of", "times", "9 of 10 within", "most told by"), rows,
               (0, 1, 4))
    _errors(page, found)
    page.blank()
    _left_out(page, found)
    page.paragraph(f"Plans keep {100 * found.margin:.0f} % of the memory free, so that 9 of 10 "
                   "fit (--memory-margin).")
    return page.text()


def _errors(page: Page, found: Learned) -> None:
    """Errors of prices before, and of runs left out."""
    timed = [one for one in found.left_out if one.seconds is not None]
    if not timed:
        return
    before = [abs((one.priced / one.seconds) - 1.0) for one in timed if one.seconds]
    after = [abs((one.expected / one.seconds) - 1.0) for one in timed if one.seconds]
    inside = sum(one.low <= (one.seconds or 0.0) <= one.high for one in timed)
    text = f"Error: median {100 * float(np.median(before)):.1f} % before"
    if len(timed) > 1:
        text += (f", {100 * float(np.median(after)):.1f} % of runs left out; {inside} of "
                 f"{len(timed)} in their range")
    page.paragraph(text + ".")


def _left_out(page: Page, found: Learned) -> None:
    """Each run as the others price it; the worst where there are many."""
    def off(seconds: float | None, priced: float) -> float:
        return abs(math.log(priced / seconds)) if seconds else 0.0

    runs = list(found.left_out)
    title = "Runs, each left out"
    if len(runs) > MOST:
        runs = sorted(runs, key=lambda one: -off(one.seconds, one.expected))[:MOST]
        title += f": the {MOST} largest errors"
    rows = []
    for one in runs:
        measured = format_seconds(one.seconds) if one.seconds else one.verdict
        rows.append((_cut(one.name), measured, format_seconds(one.priced),
                     f"{format_seconds(one.low)} to {format_seconds(one.high)}",
                     f"{100 * one.fits:.0f} %"))
    page.table(title, ("run", "measured", "priced", "expected", "fits"), rows, (0,))


def next_text(
    found: Sequence[Next], plans: Sequence[Plan], folder: str | None, width: int = 80,
    colour: bool = False, unicode: bool = True,
) -> str:
    """Give the runs to do next; arguments as of :class:`nest.report.page.Page`."""
    page = Page(width, colour, unicode)
    if not found:
        page.paragraph("Stop: no further run is expected to be worth it (--worth).", "bold")
        return page.text()
    rows = []
    for place, one in enumerate(found, 1):
        way, first = plans[one.number].parallelism, plans[one.number].stages[0]
        degrees = " ".join(f"{name}{value}" for name, value in (
            ("tp", first.tp), ("pp", way.pp), ("vpp", way.vpp), ("cp", first.cp), ("ep", first.ep),
            ("dp", way.outer_dp * first.dp_in)) if value > 1)
        rows.append((str(place), degrees or "dp1", str(way.micro_batch // first.dp_in),
                     f"{first.zero}", first.recompute, format_seconds(one.seconds),
                     f"{format_seconds(one.low)} to {format_seconds(one.high)}",
                     f"{100 * one.fits:.0f} %"))
    page.table("Run next", ("", "degrees", "mbs", "zero", "recompute", "expected", "9 of 10",
                            "fits"), rows, (1, 4))
    risky = [place for place, one in enumerate(found, 1) if one.fits < SURE]
    if risky:
        page.paragraph(f"Run {risky[0]} may run out of memory; that tells, too.")
    if found[0].saves is not None:
        page.paragraph(f"The first is expected to save {100 * found[0].saves:.1f} % of the best "
                       "step so far, failures counted.")
    where = folder or "DIR"
    page.paragraph(f"Then: nest learn LEARNED.yaml {where}/next-1.json:SECONDS (or :oom) ... -o "
                   "MORE.yaml")
    return page.text()


def _cut(name: str) -> str:
    """The name, without its middle where it is long: names of a sweep differ at their ends."""
    half = (LONGEST - 3) // 2
    return name if len(name) <= LONGEST else f"{name[:half]}...{name[-half:]}"
