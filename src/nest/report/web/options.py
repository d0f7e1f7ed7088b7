"""Other plans and what each would cost, and what more of a resource would bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nest.evaluation.plans import Plan
from nest.explanation.explanation import Explanation, ShadowPrice
from nest.explanation.neighbours import Neighbour
from nest.report.explanation_text import in_words
from nest.report.plan_text import percent
from nest.units import format_seconds


class OtherPlan(NamedTuple):
    """Another plan, or the plan with more of a resource."""

    name: str
    step: str
    """Seconds of a step; empty: there is none."""
    slower: str
    share: float | None
    """Of the plan's step that it takes more; below 0: less."""
    state: str
    """fits, refused (fits, but the stack cannot run it), or short (of memory, or not legal)."""
    note: str


@dataclass(frozen=True)
class OtherPlans:
    """Tables of options.

    Attributes
    ----------
    best : the next best plans of the search.
    changed : the plan with one choice changed.
    simpler : the best plans under simple restrictions.
    resources : the step with more of each resource.
    searched : resources were searched again; else the plan stays as it is.
    """

    best: tuple[OtherPlan, ...]
    best_note: str
    changed: tuple[OtherPlan, ...]
    simpler: tuple[OtherPlan, ...]
    resources: tuple[OtherPlan, ...]
    resources_note: str


def options(
    plan: Plan, changed: tuple[Neighbour, ...], prices: tuple[ShadowPrice, ...],
    found: Explanation | None,
) -> OtherPlans:
    """Options of a plan.

    Parameters
    ----------
    changed : of :func:`nest.explanation.neighbours.neighbours`.
    prices : effects of resources on the plan as it is, taken where ``found`` is None.
    found : what a search found; None: nothing was searched.
    """
    solved = found is not None and found.method == "solved"
    return OtherPlans(
        best=tuple(OtherPlan(
            in_words(one.configuration), format_seconds(one.step_time_s), percent(one.slower, 2),
            one.slower, "fits", "its range overlaps with that of the plan" if one.overlaps else "")
            for one in plan.alternatives),
        best_note="" if plan.alternatives else "Only the best plan was kept: nest plan --top 5 "
        "keeps the next best ones too, and the report shows them.",
        changed=tuple(OtherPlan(
            one.change, format_seconds(one.step_time_s), percent(one.slower, 1), one.slower,
            "fits" if not one.why_not else "refused" if one.feasible else "short",
            one.why_not or f"memory {100 * one.memory_share:.0f} % full") for one in changed),
        simpler=tuple(OtherPlan(
            one.name, "" if one.step_time_s is None else format_seconds(one.step_time_s),
            "" if one.slower is None else percent(one.slower, 1), one.slower,
            "short" if one.slower is None else "fits",
            one.note or ("" if one.configuration is None else in_words(one.configuration)))
            for one in (() if found is None else found.simpler)),
        resources=tuple(_resource(one, solved) for one in
                        (prices if found is None else found.prices)),
        resources_note="The best plan with each change, searched again." if solved else
        "This plan as it is, estimated again: a new plan may use more memory, devices or bandwidth "
        "better. nest report --search looks for it.")


def _resource(one: ShadowPrice, solved: bool) -> OtherPlan:
    name = one.name if one.resource == "devices" else f"{one.name} {percent(one.factor - 1, 0)}"
    if one.step_time_s is None or one.share is None:
        return OtherPlan(name, "", "", None, "short", one.note)
    if not solved and one.resource in ("memory", "devices") and not one.share:
        return OtherPlan(name, format_seconds(one.step_time_s), "", 0.0, "fits",
                         "only another plan can use it: --search")
    return OtherPlan(name, format_seconds(one.step_time_s), percent(one.share, 2), one.share,
                     "fits", one.changes or ("the same plan" if solved else ""))
