"""The result of a simulation, and slices of time on the streams of its stages for a trace.

Units: seconds, bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from nest.inputs.base import Written


class SimulatedTime(Written):
    """Seconds of a step on one stage, by activity; they add up to the step."""

    forward: float = Field(description="computing forward")
    backward: float = Field(description="computing backward, with recompute")
    traffic: float = Field(description="exposed tensor, context and expert parallel traffic")
    zero: float = Field(description="waiting for ZeRO-2 and ZeRO-3 traffic of micro-batches")
    refresh: float = Field(description="waiting for updated parameters at the start of the step")
    bubble: float = Field(description="waiting for other stages and for hand-overs")
    reduce: float = Field(description="waiting for gradients after the last backward")
    tied: float = Field(description="exchanging gradients of tied embeddings")
    update: float = Field(description="the optimizer")
    waiting: float = Field(description="for the end of the step, once all is done")


class SimulatedStage(Written):
    """One stage of the replica that takes longest."""

    time_s: SimulatedTime
    last_backward_s: float = Field(description="when its last backward ended")
    end_s: float = Field(description="when it had updated its parameters")
    peak_memory_bytes: float = Field(description="most that a device of the stage held")
    closed_form_memory_bytes: float = Field(description="the same by evaluate")


class Simulation(Written):
    """One training step of a plan, simulated."""

    step_time_s: float = Field(description="until the last stage of the slowest replica was "
                               "through, simulated")
    closed_form_s: float = Field(description="the plan's step time by evaluate")
    relative_difference: float = Field(description="closed_form_s / step_time_s, less 1")
    peak_memory_bytes: float = Field(description="most that any device held")
    events: int = Field(description="passes through layers or chunks, transfers, messages; of all "
                        "replicas simulated")
    replica: int = Field(description="the slowest one; the stages are its")
    replicas_s: tuple[float, ...] = Field(description="seconds of each replica")
    stages: tuple[SimulatedStage, ...]
    schema_: Annotated[Literal["nest.simulation/1"], Field(alias="schema")] = "nest.simulation/1"

    def to_json(self, indent: int | None = 2) -> str:
        """The simulation as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)


COMPUTE, DATA, AHEAD, BACK = range(4)
"""Streams of a stage: computing, data-parallel traffic, links to the next and previous stage."""


class Slice(NamedTuple):
    """An activity of a stream, with start and end."""

    stage: int
    stream: int
    name: str
    start: float
    end: float
    task: int = -1
    """Position of a task in the stage's order."""


class Record:
    """Slices of some micro-batches.

    Parameters
    ----------
    kept : micro-batches at each end of the step whose slices are kept; the others are left out.
    micro_batches : of the step.
    """

    def __init__(self, kept: int, micro_batches: int) -> None:
        self.slices: list[Slice] = []
        first, last = kept, micro_batches - kept
        self.left_out = range(first, max(first, last))
        """Micro-batches without slices."""

    def wants(self, micro_batch: int) -> bool:
        """Whether slices of a micro-batch are kept; -1 stands for the step as a whole."""
        return micro_batch not in self.left_out
