"""Two plans side by side: what differs, and why one is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from nest.evaluation.plans import Plan
from nest.report.plan_text import ROUNDING, WORDS
from nest.report.web.answer import KINDS, choices
from nest.report.web.document import PlanDocument, plain
from nest.units import format_seconds


class CauseDifference(NamedTuple):
    """Seconds of a cause in both plans."""

    name: str
    kind: str
    first: str
    second: str
    seconds: float
    """More in the second one."""
    text: str


class Difference(NamedTuple):
    """A choice or figure of both plans."""

    name: str
    first: str
    second: str
    same: bool


@dataclass(frozen=True)
class PairDocument:
    """What the page of two plans shows."""

    title: str
    names: tuple[str, str]
    verdict: tuple[str, ...]
    rows: tuple[Difference, ...]
    causes: tuple[CauseDifference, ...]
    plans: tuple[PlanDocument, PlanDocument]
    kind: str = "pair"

    def data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def pair_document(
    plans: tuple[Plan, Plan], documents: tuple[PlanDocument, PlanDocument], names: tuple[str, str],
) -> PairDocument:
    """The document of two plans.

    Parameters
    ----------
    plans, documents : both plans, and their own documents.
    names : of their files.
    """
    return PairDocument(
        title=f"{names[0]} and {names[1]}", names=names, verdict=tuple(_verdict(plans, names)),
        rows=tuple(_rows(plans, documents)), causes=_causes(plans), plans=documents)


def _causes(plans: tuple[Plan, Plan]) -> tuple[CauseDifference, ...]:
    """Causes of the steps, the largest difference first."""
    one, other = (plan.breakdown_s.model_dump() for plan in plans)
    least = ROUNDING * plans[0].step_time_s
    found = [CauseDifference(
        WORDS[cause], KINDS[cause], format_seconds(one[cause]), format_seconds(other[cause]),
        other[cause] - one[cause], _signed(other[cause] - one[cause]))
        for cause in one if abs(one[cause]) > least or abs(other[cause]) > least]
    return tuple(sorted(found, key=lambda cause: -abs(cause.seconds)))


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0.0 else '+'}{format_seconds(abs(seconds), 3)}"


def _verdict(plans: tuple[Plan, Plan], names: tuple[str, str]) -> Iterator[str]:
    """Which one is faster and why, and whether prices can tell."""
    first, second = plans
    if not (first.feasible and second.feasible):
        short = [name for name, plan in zip(names, plans, strict=True) if not plan.feasible]
        yield f"{' and '.join(short)} {'does' if len(short) == 1 else 'do'} not fit into memory."
    if first.inputs != second.inputs:
        parts = [part for part in ("subject", "cluster", "job")
                 if getattr(first.inputs, part) != getattr(second.inputs, part)]
        words = {"subject": "model", "cluster": "cluster", "job": "job"}
        yield (f"They answer different questions: the {' and the '.join(words[p] for p in parts)} "
               f"{'differ' if len(parts) > 1 else 'differs'}.")
    per = [plan.step_time_s / plan.parallelism.global_batch for plan in plans]
    if per[0] == per[1]:
        yield "They are equally fast."
        return
    faster, slower = (0, 1) if per[0] < per[1] else (1, 0)
    share = per[slower] / per[faster] - 1.0
    unit = "" if first.parallelism.global_batch == second.parallelism.global_batch \
        else " per sequence"
    yield f"{names[faster]} is faster: {names[slower]} takes {100 * share:.1f} % longer{unit}."
    sign = 1.0 if faster == 0 else -1.0
    lost = [one for one in _causes(plans) if sign * one.seconds > 0.0][:3]
    gained = [one for one in _causes(plans) if sign * one.seconds < 0.0][:2]
    if not unit and lost:
        told = ", ".join(f"{one.name} {_signed(abs(one.seconds))}" for one in lost)
        yield f"{names[slower]} loses by {told}" + (
            ", and gains by " + ", ".join(f"{one.name} {_signed(-abs(one.seconds))}"
                                          for one in gained) if gained else "") + "."
    ranges = [plan.confidence for plan in plans]
    if ranges[0] is not None and ranges[1] is not None:
        apart = (ranges[slower].low_s > ranges[faster].high_s)  # type: ignore[union-attr]
        yield ("Their ranges of step times do not overlap: the order is sure." if apart else
               "Their ranges of step times overlap: measure both before choosing.")


def _rows(
    plans: tuple[Plan, Plan], documents: tuple[PlanDocument, PlanDocument]
) -> Iterator[Difference]:
    """Figures of the first screen, then choices."""
    for one, other in zip(*(_named(document) for document in documents), strict=True):
        yield Difference(one[0], one[1], other[1], one[1] == other[1])
    first, second = ({one.name: f"{one.value} ({one.own})" for one in choices(plan)}
                     for plan in plans)
    for name in {**first, **second}:
        values = first.get(name, "-"), second.get(name, "-")
        yield Difference(name, *values, values[0] == values[1])


def _named(document: PlanDocument) -> list[tuple[str, str]]:
    figures = {one.name: f"{one.value} ({one.note})" if one.note else one.value
               for one in document.answer.figures}
    return [("Model and setting", f"{document.answer.subject}: {document.answer.setting}"),
            *((name, figures.get(name, "-")) for name in
              ("Step", "Speed", "MFU", "Memory", "Evidence", "Optimal"))]
