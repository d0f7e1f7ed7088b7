"""Methods to choose a configuration: NEST and earlier ones.

Each is an implementation of a published method over the configurations of NEST; all plans are
priced by :func:`nest.evaluate`, never by the planner's own estimate.

`planner` is the interface and `compare` asks them all; one file or folder each: `nest`, `manual`,
`zero`, `mcmc`, `alpa`, `phaze`, `piper`, `exhaustive`. They share `prices` (fast ones, equal to
those of ``evaluate``), `flat` (the flat network that some see) and `membership` (is a plan in a
space?). `reconfigurable` sets optical links by the `demands` of a strategy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nest.errors import InputError
from nest.planners.planner import PlanningMethod

PLANNERS = {
    "nest": "Nest",
    "manual": "Manual",
    "zero": "Zero",
    "mcmc": "Mcmc",
    "alpa": "Alpa",
    "phaze": "Phaze",
    "piper": "Piper",
    "exhaustive": "Exhaustive",
}
"""Class of each planner, in the module of the planner's name; loaded on request."""

__all__ = ["PLANNERS", "Planner", "planner"]


def planner(name: str, **options: Any) -> PlanningMethod:
    """Make a planner.

    Parameters
    ----------
    name : one of :data:`PLANNERS`.
    options : of its class, such as ``seed`` and ``proposals`` of ``mcmc``.

    Raises
    ------
    InputError
        There is no planner of this name.
    """
    if name not in PLANNERS:
        raise InputError(f"planner: got {name[:60]!r}; allowed: {', '.join(PLANNERS)}")
    method = getattr(import_module(f"nest.planners.{name}"), PLANNERS[name])
    found: PlanningMethod = method(**options)
    return found
