"""Pipeline schedules, a file each: what a stage holds, and how long a step takes."""

from __future__ import annotations

from types import ModuleType

from nest.costs.schedules import gpipe, interleaved, one_f_one_b
from nest.costs.schedules.steps import StepTime

SCHEDULES: dict[str, ModuleType] = {
    "1f1b": one_f_one_b, "interleaved": interleaved, "gpipe": gpipe,
}

__all__ = ["SCHEDULES", "StepTime"]
