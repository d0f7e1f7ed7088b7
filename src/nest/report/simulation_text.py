"""The text of a simulation: the error of the closed form, then each stage."""

from __future__ import annotations

from typing import Unpack

from nest.evaluation.plans import Plan
from nest.report.page import Page, PageOptions
from nest.report.plan_text import blocks, percent, scale
from nest.report.stages import GIB
from nest.schedules.registry import SCHEDULES
from nest.simulation import Simulation
from nest.simulation.result import SimulatedStage
from nest.units import format_seconds

BAR = 24
MOST_STAGES = 16
"""Rows of the table; of more stages, the first and last ones are shown."""
PARTS = (
    ("forward", "forward"), ("backward", "backward"), ("traffic", "tp, cp, ep traffic"),
    ("zero", "ZeRO traffic"), ("refresh", "parameter gathers"), ("bubble", "pipeline bubble"),
    ("reduce", "gradient reduction"), ("tied", "tied embeddings"), ("update", "optimizer"),
    ("waiting", "waiting for the last stage"),
)


def simulation_text(plan: Plan, found: Simulation, **options: Unpack[PageOptions]) -> str:
    """Give the report of a simulation.

    Parameters
    ----------
    plan : what was simulated.
    found : its simulation.
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    if not plan.feasible:
        page.paragraph("DOES NOT FIT", "bold red")
    page.paragraph(plan.headline, "bold")
    page.blank()
    p = plan.parallelism
    virtual = f", vpp {p.vpp}" if p.vpp > 1 else ""
    page.fact("Plan", f"pp {p.pp} x blocks of {blocks(plan.configuration)} x outer_dp "
              f"{p.outer_dp}{virtual}, {SCHEDULES[p.schedule].label}, {p.micro_batches:,} "
              "micro-batches")
    page.fact("Simulated", f"{format_seconds(found.step_time_s)} per step")
    page.fact("Closed form", f"{format_seconds(found.closed_form_s)} per step, "
              f"{percent(found.relative_difference, 2)} against the simulation")
    page.fact("Replicas", _replicas(found))
    page.fact("Events", f"{found.events:,}")
    page.blank()
    _stages(page, found)
    page.blank()
    _last(page, found)
    return page.text()


def _replicas(found: Simulation) -> str:
    least, most = min(found.replicas_s), max(found.replicas_s)
    if len(found.replicas_s) == 1:
        return "1"
    if most - least <= 1e-9 * most:
        return f"{len(found.replicas_s):,}, all equal"
    return (f"{len(found.replicas_s):,}, the fastest {format_seconds(least)}; replica "
            f"{found.replica}, the slowest, is shown")


def _stages(page: Page, found: Simulation) -> None:
    """Busy, exposed and idle seconds of each stage, and its memory."""
    factor, _, unit = scale(found.step_time_s)
    rows: list[tuple[str, ...]] = []
    for number, stage in _shown(found.stages):
        if stage is None:
            rows.append(("..",) + ("",) * 7)
            continue
        t = stage.time_s
        groups = (t.forward + t.backward + t.update, t.traffic + t.zero,
                  t.refresh + t.reduce + t.tied, t.bubble + t.waiting)
        share = groups[0] / found.step_time_s if found.step_time_s else 0.0
        rows.append((str(number), *(f"{factor * x:.3f}" for x in groups),
                     f"{100 * share:.1f} %", f"{stage.peak_memory_bytes / GIB:.1f}",
                     f"{stage.closed_form_memory_bytes / GIB:.1f}"))
    page.table(f"Stages ({unit} per step; GiB per device, simulated and priced)",
               ("stage", "busy", "exposed", "at the ends", "idle", "utilised", "GiB", "priced"),
               rows, (0,))
    page.paragraph(
        "busy: compute and optimizer; exposed: traffic of micro-batches that compute waits for; at "
        "the ends: the same for parameters and gradients, once per step; idle: bubble and waiting "
        "for the last stage; utilised: busy / step", "dim")


def _shown(stages: tuple[SimulatedStage, ...]) -> list[tuple[int, SimulatedStage | None]]:
    numbered: list[tuple[int, SimulatedStage | None]] = list(enumerate(stages))
    if len(numbered) <= MOST_STAGES:
        return numbered
    half = MOST_STAGES // 2
    return [*numbered[:half], (half, None), *numbered[-half:]]


def _last(page: Page, found: Simulation) -> None:
    """Time of the stage that finishes last, by cause."""
    number = max(range(len(found.stages)), key=lambda n: found.stages[n].end_s)
    times = found.stages[number].time_s
    factor, _, unit = scale(found.step_time_s)
    rows = []
    for name, words in PARTS:
        seconds = getattr(times, name)
        if seconds > 0.0:
            share = seconds / found.step_time_s
            rows.append((words, f"{factor * seconds:,.3f} {unit}", f"{100 * share:.1f} %",
                         "█" * round(BAR * share)))
    rows.append(("step", f"{factor * found.step_time_s:,.3f} {unit}", "100.0 %", ""))
    page.table(f"Time of stage {number}, the last to finish",
               ("cause", "time", "share", ""), rows, (0, 3))
