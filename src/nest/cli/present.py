"""What commands have in common: progress, and handing over a priced plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nest.cli import output
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.plans import Plan

MOST_TASKS = 20_000
"""Passes of micro-batches through chunks that are simulated unasked."""


def check_target(file: str | None) -> None:
    """Refuse a file that cannot be written before time is spent on what goes into it.

    Raises
    ------
    InputError : the name is empty or a folder, or its folder does not exist.
    """
    if file is None:
        return
    folder = os.path.dirname(file) or "."
    if not file or os.path.isdir(file):
        given = f"{file} is a folder" if file else "got ''"
        raise InputError(f"output: {given}; allowed: a file to write")
    if not os.path.isdir(folder):
        raise InputError(f"output: {file} cannot be written (no folder {folder})")


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """Say on stderr what takes seconds, or nothing where it should be quiet."""
    from nest import compiled

    before = compiled.announce
    compiled.announce = (
        (lambda text: None) if quiet else (lambda text: output.say(f"nest: {text}")))
    try:
        yield
    finally:
        compiled.announce = before


def present(
    plan: Plan, as_json: bool, file: str | None, quiet: bool, ranks: str | None = None
) -> None:
    """Write the files first, then print: what is printed has been saved.

    Raises
    ------
    InputError : a file cannot be written.
    """
    from nest.describe import write_text_atomic

    if file is not None and plan.feasible:
        write_text_atomic(file, plan.to_json() + "\n")
    if ranks is not None and plan.feasible:
        from nest.report.ranks import ranks_text

        write_text_atomic(ranks, ranks_text(plan))
    if as_json:
        output.emit(plan.to_json())
    elif not quiet:
        from nest.report.plan_text import plan_text

        output.emit(plan_text(plan, simulated=_simulated(plan), **output.page()))


def _simulated(plan: Plan) -> float | None:
    """Seconds of the step event by event; None where that would take longer than a blink."""
    p = plan.parallelism
    if p.micro_batches * p.pp * p.vpp > MOST_TASKS:
        return None
    from nest.simulation import simulate

    return simulate(plan).step_time_s
