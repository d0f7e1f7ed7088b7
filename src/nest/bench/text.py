"""The text of the results."""

from __future__ import annotations

from collections.abc import Sequence

from nest.bench.paper import PARTS, bounds_text, marked
from nest.bench.published import CLAIM, RECOUNTED, published
from nest.bench.results import BASE, OWN, Result, distinct, gain, published_gain, select
from nest.bench.tables import others
from nest.report.page import Page


def paper_text(
    found: Sequence[Result], files: Sequence[str], width: int = 80, colour: bool = False,
    unicode: bool = True,
) -> str:
    """Give the report of an evaluation.

    Parameters
    ----------
    found : of :func:`nest.bench.results.results`.
    files : that were written.
    width, colour, unicode : as of :class:`nest.report.page.Page`.

    Returns
    -------
    str
        NEST's gain over each planner, the published gains beside it, what does not fit and why.
    """
    page = Page(width, colour, unicode)
    parts = distinct(one.asked.question.part for one in found)
    planners = others(found)
    if planners and any(one.asked.planner == OWN for one in found):
        for part in parts:
            _gains(page, select(found, part), part, planners)
        if bounds_text(planners):
            page.paragraph(bounds_text(planners), "dim")
            page.blank()
        if "scaling" in parts and BASE in planners:
            _published(page, select(found, "scaling"))
    missing = {(one.asked.question.model, one.asked.question.devices, one.asked.question.mbs,
                one.asked.planner): one.asked.answer.reason or ""
               for one in found if not one.asked.answer.feasible}
    if missing:
        page.paragraph("Infeasible", "bold")
        for (model, devices, mbs, planner), reason in missing.items():
            page.fact(planner, f"{model}, {devices:,} devices, micro-batch {mbs}: {reason}")
        page.blank()
    page.fact("Written", ", ".join(files))
    return page.text()


def _gains(page: Page, found: Sequence[Result], part: str, planners: Sequence[str]) -> None:
    """A table: models down, planners across; the last line counts what does not fit."""
    lines = []
    for model in [*distinct(one.asked.question.model for one in found), None]:
        means = [gain(select(found, model=model, planner=planner)).mean for planner in planners]
        lines.append((model or "all", *("-" if mean is None else f"{mean:.2f}" for mean in means)))
    counts = [gain(select(found, planner=planner)).infeasible for planner in planners]
    lines.append(("infeasible", *map(str, counts)))
    page.table(f"{PARTS[part]}: throughput of {OWN} over each planner's, geometric means",
               ("model", *map(marked, planners)), lines, (0,))
    page.blank()


def _published(page: Page, found: Sequence[Result]) -> None:
    known = [one for one in published() if one.part == "scaling"]
    lines = []
    for model in distinct(one.asked.question.model for one in found):
        said = published_gain([one for one in known if one.model == model], BASE)
        here = gain(select(found, model=model, planner=BASE))
        low, high = RECOUNTED.get(model, (None, None))
        lines.append((model, _range(said.least, said.most), _range(low, high),
                      _range(here.least, here.most)))
    page.table(f"Gain over {BASE}, TPUv4 fat tree (recounted: with the correct layer count of the "
               f"expert's plan; claimed over any planner: up to {CLAIM})",
               ("model", "published", "recounted", "here"), lines, (0,))
    page.blank()


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f}..{high:.2f}"
