"""The document of a plan: everything that its page shows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from nest.evaluation.plans import Plan
from nest.explanation.explanation import Explanation, ShadowPrice, priced
from nest.explanation.neighbours import Neighbour, neighbours
from nest.report.network.chart import stage_colours
from nest.report.stages import CATEGORIES, GIB, stage_tables
from nest.report.web.answer import FirstScreen, Step, answer, waterfall
from nest.report.web.options import OtherPlans, options
from nest.report.web.places import Places, places
from nest.report.web.timeline import MOST_RECORDED, StepTimeline, timeline
from nest.report.web.traffic import LinkLoads, traffic
from nest.simulation.step import Traced
from nest.units import format_seconds

MORE = 1.1
"""Changed amount of a resource over the actual one, in a report."""
LONGEST = 12_000
"""Characters of a launch file that are shown (chosen)."""
UNLIMITED = 10_000  # columns: stages are one table


def plain(value: Any) -> Any:
    """Records as dictionaries of their fields, tuples as lists."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        named = getattr(value, "_asdict", None)
        return plain(named()) if named else list(map(plain, value))
    return value


@dataclass(frozen=True)
class StageMemoryRow:
    """Memory of a device of a stage, GiB."""

    parts: tuple[float, ...]
    total: float
    limit: float
    simulated: float
    in_flight: int


@dataclass(frozen=True)
class PlanDocument:
    """What the page of a plan shows."""

    title: str
    answer: FirstScreen
    colours: tuple[str, ...]
    """Of the stages."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Stages, equal neighbours folded."""
    places: Places
    timeline: StepTimeline
    steps: tuple[Step, ...]
    step: str
    memory: tuple[StageMemoryRow, ...]
    categories: tuple[str, ...]
    traffic: LinkLoads
    options: OtherPlans
    commands: tuple[str, ...]
    target: str
    """The software that the files are for; empty: none."""
    files: tuple[tuple[str, str], ...]
    """Names and texts of the files that launch it."""
    kind: str = "plan"

    def data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


@dataclass(frozen=True)
class FirstDocument:
    """What the page of a plan shows while better ones are looked for."""

    title: str
    answer: FirstScreen
    steps: tuple[Step, ...]
    step: str
    kind: str = "first"

    def data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def first_document(plan: Plan) -> FirstDocument:
    """The first screen of a plan, without a simulation."""
    return FirstDocument(plan.headline, answer(plan, None), waterfall(plan),
                         format_seconds(plan.step_time_s))


@dataclass(frozen=True)
class PlanFacts:
    """What is computed of a plan for its document, beyond what it says itself."""

    traced: Traced
    changed: tuple[Neighbour, ...]
    prices: tuple[ShadowPrice, ...]
    explanation: Explanation | None = None


def facts(plan: Plan, explanation: Explanation | None = None) -> PlanFacts:
    """Simulate a plan and price its neighbours; nothing is searched.

    Parameters
    ----------
    explanation : what a search found, with resources changed by :data:`MORE`.
    """
    return PlanFacts(Traced(plan, most=MOST_RECORDED), neighbours(plan),
                 () if explanation is not None else priced(plan, MORE), explanation)


def plan_document(
    plan: Plan, found: PlanFacts, name: str = "PLAN.json",
    launch: tuple[str, Mapping[str, str]] | None = None,
) -> PlanDocument:
    """The document of a plan.

    Parameters
    ----------
    plan : as `plan` or `evaluate` gives it.
    found : of :func:`facts`.
    name : of its file, for commands.
    launch : a target, and texts of its files by name; None: no software launches it.
    """
    simulation = found.traced.simulation
    table = stage_tables(plan, UNLIMITED)[0]
    target, texts = launch or ("", {})
    return PlanDocument(
        title=plan.headline, answer=answer(plan, simulation, target),
        colours=tuple(stage_colours(len(plan.stages))), heads=table.heads, rows=table.rows,
        places=places(plan), timeline=timeline(plan, found.traced), steps=waterfall(plan),
        step=format_seconds(plan.step_time_s),
        memory=tuple(StageMemoryRow(
            tuple(getattr(stage.memory_bytes, part) / GIB for part, _ in CATEGORIES),
            stage.memory_bytes.total / GIB, stage.memory_limit_bytes / GIB,
            one.peak_memory_bytes / GIB, stage.in_flight)
            for stage, one in zip(plan.stages, simulation.stages, strict=True)),
        categories=tuple(part for part, _ in CATEGORIES), traffic=traffic(plan),
        options=options(plan, found.changed, found.prices, found.explanation),
        commands=tuple(f"nest {words}" for words in (
            *([f"export {name} --to {target} -o launch"] if target else []),
            f"simulate {name} --trace step.json", f"explain {name}")),
        target=target,
        files=tuple((place, text if len(text) <= LONGEST else
                     f"{text[:LONGEST]}\n... {len(text) - LONGEST:,} more characters")
                    for place, text in texts.items()))
