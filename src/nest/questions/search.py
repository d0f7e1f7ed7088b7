"""How the planner searches."""

from __future__ import annotations

from pydantic import Field

from nest.inputs.base import Description, Flag
from nest.units import Seconds


class Search(Description):
    """How the planner searches: arguments of :func:`nest.plan`."""

    beyond_stack: Flag = Field(False, description="also what the job's stack cannot run")
    time_limit: Seconds | None = Field(
        None, description="seconds for a question; null: none. With it, answers depend on the "
        "speed of the machine")
    reorder: Flag = Field(True, description="try other orders of the devices of a graph")
    fillings: Flag = Field(False, description="try other fillings of groups partly used")
