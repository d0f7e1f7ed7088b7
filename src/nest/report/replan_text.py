"""The text of a next plan: what is lost, what moves, and the plan."""

from __future__ import annotations

from typing import Unpack

from nest.replanning.replan import Moves, Replan
from nest.report.page import Page, PageOptions
from nest.report.plan_text import percent
from nest.units import format_bytes, format_seconds

NAMED = 6
"""Groups of devices named."""
SHOWN = 8
"""Devices listed, those that receive most first."""


def replan_text(found: Replan, **options: Unpack[PageOptions]) -> str:
    """Give the report of a next plan.

    Parameters
    ----------
    found : what is shown.
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    plan, cluster = found.plan, found.plan.inputs.cluster
    slower = plan.step_time_s / found.step_time_before_s - 1.0
    page.fact("Lost", f"{_devices(len(found.lost))}{_named(found.lost)}; "
              f"{_devices(cluster.size + len(found.idle))} left")
    if found.idle:
        page.fact("Idle", f"{_devices(len(found.idle))} left out to keep groups equal"
                  f"{_named(found.idle)}")
    page.fact("Step", f"{format_seconds(plan.step_time_s)}, {percent(slower, 1)} against "
              f"{format_seconds(found.step_time_before_s)} before")
    moves = found.moves
    page.fact("To receive", f"{format_bytes(moves.total_bytes)} in all "
              f"({format_bytes(moves.parameters_bytes)} parameters, "
              f"{format_bytes(moves.optimizer_bytes)} optimizer states), on one device at most "
              f"{format_bytes(moves.most_bytes)}")
    page.fact("Checkpoint", _checkpoint(moves))
    page.blank()
    _table(page, moves)
    page.blank()
    return page.text() + "\n" + plan.report(**options)


def _devices(count: int) -> str:
    return f"{count:,} device{'s' if count != 1 else ''}"


def _named(names: tuple[str, ...]) -> str:
    """Names of devices, those of a group by its name."""
    groups = [*dict.fromkeys(name.rpartition("/")[0] or name for name in names)]
    more = ", ..." if len(groups) > NAMED else ""
    return f" ({'of ' if any('/' in name for name in names) else ''}" \
        f"{', '.join(groups[:NAMED])}{more})" if groups else ""


def _checkpoint(moves: Moves) -> str:
    lost = [f"{format_bytes(size)} of {noun}" for noun, size in (
        ("parameters", moves.lost_parameters_bytes),
        ("optimizer states", moves.lost_optimizer_bytes)) if size]
    if not lost:
        return "not needed: the devices left hold all parameters and optimizer states"
    return f"needed: no device left holds {' and '.join(lost)}"


def _table(page: Page, moves: Moves) -> None:
    first = sorted(moves.devices, key=lambda one: (
        -one.parameters_bytes - one.optimizer_bytes, one.rank))[:SHOWN]
    if not first:
        page.paragraph("No device receives anything.")
        return
    more = len(moves.devices) - len(first)
    rows = [(str(one.rank), one.name, format_bytes(one.parameters_bytes),
             format_bytes(one.optimizer_bytes)) for one in first]
    page.table("What devices receive, most first",
               ("rank", "device", "parameters", "optimizer"), rows, (1,))
    if more:
        page.paragraph(f"and {_devices(more)} more (--json lists all)")
