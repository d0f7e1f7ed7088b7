"""A comparison of planners, as the document of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nest.planners.compare import ComparedPlan
from nest.report.comparison_text import (
    bar_text,
    fastest,
    heads,
    in_a_line,
    ranked,
    rate,
    rate_name,
    row,
    spaces_text,
)
from nest.report.web.answer import answer, waterfall
from nest.report.web.document import plain
from nest.units import format_seconds


def comparison_document(entries: Sequence[ComparedPlan]) -> dict[str, Any]:
    """The document of a comparison, the fastest plan first.

    Parameters
    ----------
    entries : of :func:`nest.planners.compare.compare`.
    """
    order, best = ranked(entries), fastest(entries)
    any_plan = best or next((one.plan for one in order if one.plan is not None), None)
    first = None if any_plan is None else answer(any_plan, None)
    return {
        "kind": "comparison",
        "title": "Planners compared" if first is None else f"Planners of {first.subject} compared",
        "setting": "" if first is None else first.setting,
        "verdict": " ".join(_verdict(order)), "unit": rate_name(entries),
        "heads": heads(entries), "cells": [row(one, best) for one in order],
        "spaces": "" if best is None else spaces_text(entries, best),
        "rows": [_shown(one) for one in order]}


def _shown(entry: ComparedPlan) -> dict[str, Any]:
    plan = entry.plan
    return {
        "planner": entry.planner, "rate": 0.0 if plan is None else rate(plan),
        "told": bar_text(entry), "step_s": 0.0 if plan is None else plan.step_time_s,
        "reason": entry.reason or "",
        "state": "short" if not entry.feasible or plan is None else
        "refused" if plan.runnable is False else "fits",
        "plan": "" if plan is None else in_a_line(plan),
        "step": "" if plan is None else format_seconds(plan.step_time_s),
        "steps": [] if plan is None else plain(waterfall(plan))}


def _verdict(order: Sequence[ComparedPlan]) -> Iterator[str]:
    """Which one is the fastest, and by how much."""
    fit = [one for one in order if one.feasible and one.plan is not None]
    if not fit:
        yield "No planner has a plan that fits."
        return
    runs = [one for one in fit if one.plan is not None and one.plan.runnable is not False] or fit
    steps = [one.plan.step_time_s for one in runs if one.plan is not None]
    equal = [one.planner for one, step in zip(runs, steps, strict=True) if step == steps[0]]
    names = " and ".join(filter(None, (", ".join(equal[:-1]), equal[-1])))
    yield f"{names}: {format_seconds(steps[0])} a step."
    if len(steps) > len(equal):
        yield (f"The next one, {runs[len(equal)].planner}, takes "
               f"{100 * (steps[len(equal)] / steps[0] - 1.0):.1f} % longer.")
