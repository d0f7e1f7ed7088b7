"""`nest.diagnosis/1`: from the priced step to the measured one, cause by cause; and the memory."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from nest.inputs.base import Shown, Written

CauseName = Literal[
    "computing", "update", "tp", "cp", "ep", "dp", "pp", "collectives", "copies", "gaps", "data",
    "checkpoint", "evaluation", "collection", "stragglers", "stalls", "drift", "settings",
    "unexplained", "first", "restarts"]
TITLES: dict[str, str] = {
    "computing": "computing", "update": "optimizer",
    "tp": "exposed tensor-parallel traffic", "cp": "exposed context-parallel traffic",
    "ep": "exposed expert traffic", "dp": "exposed data-parallel traffic",
    "pp": "bubble and hand-overs", "collectives": "exposed collectives of unknown groups",
    "copies": "copies to and from the host", "gaps": "gaps of the host", "data": "data loading",
    "checkpoint": "checkpoints", "evaluation": "evaluation", "collection": "garbage collection",
    "stragglers": "straggler", "stalls": "slow steps", "drift": "drift",
    "settings": "other settings than the plan's", "unexplained": "unexplained",
    "first": "first steps", "restarts": "restarts", "parameters": "parameters",
    "gradients": "gradients", "optimizer": "optimizer states", "activations": "activations",
    "buffers": "buffers", "fragments": "held by the allocator, not used"}
"""What reports call causes of seconds and bytes."""
MemoryName = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "fragments",
                     "unexplained"]


class Cause(Written):
    """A part of the difference between the priced and the measured seconds."""

    name: CauseName
    seconds: float = Field(description="more than priced, of a step; below 0: less")
    evidence: tuple[str, ...] = Field(description="what shows it: lines, kernels, ranks")
    advice: tuple[str, ...] = Field((), description="what to try")


class MemoryCause(Written):
    """A part of the difference between priced and measured bytes."""

    name: MemoryName
    bytes: float = Field(description="more than priced; below 0: less")
    evidence: tuple[str, ...] = Field(description="what shows it")
    advice: tuple[str, ...] = Field((), description="what to try")


class SourceFile(Written):
    """A file that was read."""

    file: str
    kind: Literal["plan", "log", "trace", "snapshot", "learned"]
    rank: int | None = Field(None, description="whose it is; null: not told")
    steps: int | None = Field(None, description="that it holds; null: none, or not told")


class PartSeconds(Written):
    """Seconds of one kind of work in a typical step of the rank that waits least."""

    name: Annotated[str, Field(description="as causes are named")]
    priced: float
    measured: float = Field(description="while nothing above it in the list runs")


class MemoryDiagnosis(Written):
    """Bytes of a device, as priced and as measured; causes add up to the difference."""

    where: str = Field(description="the file that says it")
    rank: int | None = Field(description="null: not told")
    stage: int
    priced_bytes: float = Field(description="that the plan holds on a device of the stage")
    measured_bytes: float = Field(description="largest reserved, or allocated where that is all "
                                  "that is known")
    counted: Literal["reserved", "allocated"]
    limit_bytes: float = Field(description="of the device, without what NEST keeps free")
    causes: tuple[MemoryCause, ...] = Field(description="largest first")


class OutOfMemory(Written):
    """A rank that ran out of memory."""

    where: str
    rank: int | None
    asked_bytes: float | None = Field(description="null: not told")
    stage: int | None
    priced_bytes: float | None
    limit_bytes: float | None
    advice: tuple[str, ...] = Field((), description="what to try, against the largest priced kind")


class Diagnosis(Shown):
    """Why a run is slower, or holds more, than its plan is priced."""

    headline: str = Field(description="priced and measured step in a sentence")
    priced_s: float = Field(description="of a step, by the plan")
    low_s: float | None = Field(description="nine of ten measured steps are expected above it and "
                                "below high_s; null: not known")
    high_s: float | None
    measured_s: float | None = Field(description="mean of a step, without the first ones; null: "
                                     "no time of a step was measured")
    causes: tuple[Cause, ...] = Field(
        description="largest first; priced_s and their seconds add up to measured_s")
    beside: tuple[Cause, ...] = Field(
        (), description="seconds of the whole run that are no part of its steps")
    parts: tuple[PartSeconds, ...] = Field((), description="of a trace; empty without one")
    memory: tuple[MemoryDiagnosis, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = Field((), description="what was left out or is in doubt")
    schema_: Annotated[Literal["nest.diagnosis/1"], Field(alias="schema")] = "nest.diagnosis/1"

    @property
    def explained_s(self) -> float:
        """Priced seconds and those of all causes; equal to ``measured_s``."""
        return math.fsum((self.priced_s, *(one.seconds for one in self.causes)))

    def to_json(self, indent: int | None = 2) -> str:
        """The diagnosis as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.headline}>"
