"""One exact way to train: every stage, its layers, its devices and its degrees."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nest.describe.base import Degree, Description, Flag, Problems, Whole, at_most
from nest.describe.space import Recompute

Index = Annotated[Whole, Field(ge=0, le=10**7)]
Range = Annotated[tuple[Index, Index], Field()]


class StageConfiguration(Description):
    """One stage of the super-pipeline."""

    layers: Range = Field(description="layers [i, j) of the chain")
    devices: Range = Field(description="devices [k, k+a) of super-pipeline 0")
    dp_in: Degree = Field(1, description="data parallel degree inside the block")
    tp: Degree = Field(1, description="tensor parallel degree")
    sp: Flag = Field(
        default_factory=lambda data: data["tp"] > 1,
        description="sequence parallelism; default: where tp > 1",
    )
    cp: Degree = Field(1, description="context parallel degree")
    ep: Degree = Field(1, description="expert parallel degree")
    etp: Degree = Field(
        default_factory=lambda data: data["tp"],
        description="expert tensor parallel degree; default: tp",
    )
    zero: Annotated[Whole, Field(ge=0, le=3)] = Field(0, description="ZeRO stage, 0 to 3")
    recompute: Recompute = Field("none", description="what the backward computes again")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        for name in ("layers", "devices"):
            first, end = getattr(self, name)
            if first >= end:
                text = f"got [{first}, {end}); allowed: a range [first, end) with first < end"
                problems.append((name, text))
        if problems:
            raise Problems(problems)
        return self


class Configuration(Description):
    """A whole plan without its prices; what `evaluate` takes."""

    outer_dp: Degree = Field(1, description="replicas of the super-pipeline")
    micro_batch: Degree = Field(description="samples that a super-pipeline takes at once")
    stages: Annotated[
        tuple[StageConfiguration, ...], Field(min_length=1, max_length=10**4), at_most(10**4)
    ] = Field(description="stages, the first of the pipeline first")
    stride: Degree = Field(
        default_factory=lambda data: max(s.devices[1] for s in data["stages"]),
        description="devices from one replica's first device to the next one's",
    )
    schedule: Literal["1f1b"] = Field("1f1b", description="pipeline schedule")
    vpp: Degree = Field(1, description="virtual stages per device")

    @property
    def pp(self) -> int:
        """Number of stages."""
        return len(self.stages)
