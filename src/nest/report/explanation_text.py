"""The text of an explanation: the effect of each resource, then simpler plans."""

from __future__ import annotations

from typing import Unpack

from nest.evaluation.plans import Plan
from nest.explanation.explanation import Explanation, ShadowPrice, SimplerPlan
from nest.inputs.configuration import Configuration
from nest.report.page import Page, PageOptions
from nest.report.plan_text import WORDS, blocks, percent
from nest.schedules.registry import SCHEDULES
from nest.units import format_seconds

MOST_CAUSES = 4
SMALL = 0.001
"""Share of the plan's step below which a difference is not shown."""


def explanation_text(plan: Plan, found: Explanation, **options: Unpack[PageOptions]) -> str:
    """Give the report of an explanation.

    Parameters
    ----------
    plan : what is explained.
    found : its explanation.
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    if not plan.feasible:
        page.paragraph("DOES NOT FIT", "bold red")
    page.paragraph(plan.headline, "bold")
    page.blank()
    page.fact("Plan", in_words(plan.configuration))
    page.fact("Bound by", found.bottleneck.replace("%", " %"))
    page.blank()
    _prices(page, found)
    page.blank()
    _simpler(page, plan, found)
    return page.text()


def in_words(way: Configuration) -> str:
    """A configuration in a line; degrees that all stages share."""
    parts = [f"pp {way.pp} x blocks of {blocks(way)} x outer_dp {way.outer_dp}"]
    for name, usual in (("tp", 1), ("cp", 1), ("ep", 1), ("dp_in", 1), ("zero", 0),
                        ("recompute", "none"), ("recompute_layers", None)):
        values = {getattr(stage, name) for stage in way.stages}
        if len(values) == 1 and usual not in values:
            parts.append(f"{name} {values.pop()}")
    parts.append(f"micro_batch {way.micro_batch}")
    parts += [f"vpp {way.vpp}"] if way.vpp > 1 else []
    return ", ".join((*parts, SCHEDULES[way.schedule].label))


def _prices(page: Page, found: Explanation) -> None:
    rows, notes = [], []
    for price in found.prices:
        name = price.name
        if price.resource != "devices":
            name += f" {percent(price.factor - 1, 0)}"
        if price.step_time_s is None or price.change_s is None or price.share is None:
            rows.append((name, "-", "", "", price.note))
            continue
        mark = "" if price.proven or found.method == "priced" else "<= "
        rows.append((name, mark + format_seconds(price.step_time_s), _signed(price.change_s),
                     percent(price.share, 2), _stays(price, found)))
        if price.changes:
            notes.append((name, price.changes))
    heads = ("resource", "step time", "change", "relative", "best plan")
    page.table("Effect of each resource", heads, rows, (0, 4))
    for name, text in notes:
        page.fact("", f"{name}: {text}", 1)
    page.paragraph(
        "Each row shows the best plan of the same space, searched again with this change."
        if found.method == "solved" else
        "Each row shows this configuration, priced again with this change. The space was not "
        "searched again, because no search proved the plan optimal.", "dim")
    if any("<= " in row[1] for row in rows):
        page.paragraph("<=: the search was stopped early; a faster plan may exist.", "dim")


def _stays(price: ShadowPrice, found: Explanation) -> str:
    if found.method == "priced":
        return ""
    return "another" if price.changes else "the same" if price.proven else "the same so far"


def _simpler(page: Page, plan: Plan, found: Explanation) -> None:
    rows = []
    for other in found.simpler:
        if other.step_time_s is None or other.slower is None:
            rows.append((other.name, "-", ""))
            continue
        mark = "" if other.proven else "<= "
        rows.append((other.name, mark + format_seconds(other.step_time_s),
                     percent(other.slower, 1)))
    page.table("Simpler plans", ("plan", "step time", "slower"), rows, (0,))
    for other in found.simpler:
        page.fact("-", f"{other.name}: {_why(other, plan, found)}", 1)


def _why(other: SimplerPlan, plan: Plan, found: Explanation) -> str:
    """Causes of the difference, or why there is no such plan."""
    if other.step_time_s is None or other.configuration is None or other.note:
        return other.note
    faster = other.step_time_s < plan.step_time_s
    parts = sorted(other.differences_s.items(), key=lambda x: -abs(x[1]))
    told = [f"{WORDS[cause]} {_signed(seconds)}" for cause, seconds in parts[:MOST_CAUSES]
            if abs(seconds) >= SMALL * plan.step_time_s]
    outside = "outside the searched space: " if found.method == "solved" and faster else ""
    return f"{outside}{in_words(other.configuration)}; {', '.join(told) or 'equally fast'}"


def _signed(seconds: float) -> str:
    if seconds == 0.0:
        return "0 s"
    return ("-" if seconds < 0 else "+") + format_seconds(abs(seconds), 3)
