"""What follows a loss of devices: the next plan, and what each device must receive for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nest.evaluation.plans import Plan
from nest.inputs.base import Shown, Written

SCHEMA = "nest.replan/1.0"
SCHEMAS = r"^nest\.replan/1(\.\d{1,9})?$"


class Move(Written):
    """What a device receives."""

    rank: int = Field(description="in the new plan")
    name: str = Field(description="of the device")
    parameters_bytes: float
    optimizer_bytes: float


class Moves(Written):
    """Bytes that devices must receive because they do not hold them yet."""

    total_bytes: float
    most_bytes: float = Field(description="of one device")
    parameters_bytes: float = Field(description="the part of total_bytes that are parameters")
    optimizer_bytes: float = Field(description="the part that are optimizer states")
    lost_parameters_bytes: float = Field(
        description="parameters that no device left holds: a checkpoint must have them")
    lost_optimizer_bytes: float = Field(description="optimizer states likewise")
    devices: tuple[Move, ...] = Field(description="devices that receive something, by rank")


class Replan(Shown):
    """The next plan after devices are lost or return."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    without: tuple[str, ...] = Field(description="what was lost, as given")
    lost: tuple[str, ...] = Field(description="names of the devices lost")
    idle: tuple[str, ...] = Field(
        description="names of devices that the search left out to keep groups equal")
    step_time_before_s: float = Field(description="step time of the plan before")
    moves: Moves
    plan: Plan = Field(description="the next plan; inputs.cluster is what is left")

    def to_json(self, indent: int | None = 2) -> str:
        """The result as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)
