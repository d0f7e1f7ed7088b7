"""Methods to choose a configuration: NEST and earlier ones.

Each is an implementation of a published method over the configurations of NEST; all plans are
priced by :func:`nest.evaluate`, never by the planner's own estimate.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nest.errors import InputError
from nest.planners.planner import Planner

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


def planner(name: str, **options: Any) -> Planner:
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
    found: Planner = getattr(import_module(f"nest.planners.{name}"), PLANNERS[name])(**options)
    return found
