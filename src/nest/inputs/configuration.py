"""One exact way to train: every stage, its layers, its devices and its degrees."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from nest.inputs.base import Degree, Description, Flag, FrozenDict, Problems, Whole, at_most
from nest.inputs.choices import ChosenValues
from nest.inputs.offload import OffloadText
from nest.inputs.space import MODULES, CpComm, Module, Recompute, Shard
from nest.schedules.registry import Schedule

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
    cp_comm: CpComm = Field("p2p", description="how cp exchanges keys and values")
    cp_a2a: Degree = Field(
        1, description="ranks of cp that exchange by all-to-all in cp_comm a2a+p2p; others: 1"
    )
    ep: Degree = Field(1, description="expert parallel degree")
    etp: Degree = Field(
        default_factory=lambda data: data["tp"],
        description="expert tensor parallel degree; default: tp",
    )
    zero: Annotated[Whole, Field(ge=0, le=3)] = Field(0, description="ZeRO stage, 0 to 3")
    shard: Shard = Field("dp", description="ZeRO shards over all of dp, or dp_in only (HSDP)")
    recompute: Recompute = Field("none", description="recompute policy")
    recompute_modules: tuple[Module, ...] = Field(
        default_factory=lambda data: ("core_attn",) if data["recompute"] == "selective" else (),
        description="modules of selective recompute; default: core_attn",
    )
    recompute_layers: Degree | None = Field(
        None, description="full recompute of only this many first layers; null: all"
    )
    chunks: Annotated[tuple[Range, ...], Field(min_length=1, max_length=10**4), at_most(10**4)] = (
        Field(
            default_factory=lambda data: (data["layers"],),
            description="layers [i, j) of each virtual stage, vpp of them; default: layers",
        )
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        ranges = [("layers", self.layers), ("devices", self.devices)]
        ranges += [(f"chunks.{n}", chunk) for n, chunk in enumerate(self.chunks)]
        for name, (first, end) in ranges:
            if first > end or (first == end and name == "devices"):
                sign = "<" if name == "devices" else "<="
                text = f"got [{first}, {end}); allowed: a range [first, end) with first {sign} end"
                problems.append((name, text))
        hull = self.chunks[0][0], self.chunks[-1][1]
        if hull != self.layers:
            problems.append(("chunks", f"got {list(map(list, self.chunks))}; allowed: from the "
                             f"first to the last of layers [{self.layers[0]}, {self.layers[1]})"))
        modules = tuple(m for m in MODULES if m in self.recompute_modules)
        if modules != self.recompute_modules or bool(modules) != (self.recompute == "selective"):
            given = ", ".join(self.recompute_modules) or "none"
            problems.append(("recompute_modules", f"got {given}; "
                             f"allowed: some of {', '.join(MODULES)}, in this order, with "
                             "recompute selective only"))
        if self.recompute_layers is not None and self.recompute != "full":
            problems.append(("recompute_layers", f"got {self.recompute_layers}; allowed: with "
                             "recompute full only"))
        if problems:
            raise Problems(problems)
        return self


class Configuration(Description):
    """A plan without its prices; the input of `evaluate`."""

    outer_dp: Degree = Field(1, description="replicas of the super-pipeline")
    micro_batch: Degree = Field(description="samples that a super-pipeline takes at once")
    stages: Annotated[
        tuple[StageConfiguration, ...], Field(min_length=1, max_length=10**4), at_most(10**4)
    ] = Field(description="stages, the first of the pipeline first")
    stride: Degree = Field(
        default_factory=lambda data: max(s.devices[1] for s in data["stages"]),
        description="devices from one replica's first device to the next one's",
    )
    vpp: Degree = Field(1, description="virtual stages per device")
    schedule: Schedule = Field(
        default_factory=lambda data: "interleaved" if data["vpp"] > 1 else "1f1b",
        description="pipeline schedule",
    )
    group: Degree | None = Field(
        None, description="consecutive micro-batches of a virtual stage; null: pp"
    )
    order: Annotated[tuple[Index, ...], at_most(10**4)] | None = Field(
        None, description="order of the layers that ranges refer to; null: as the model lists them"
    )
    offload: OffloadText = Field(
        "none", description="what is kept in the memory of the hosts, such as optimizer"
    )
    choices: ChosenValues = Field(
        default_factory=FrozenDict, description="values of the stack's choices, such as "
        "cuda_graphs: layers; those left out are as the stack's figures say"
    )

    @property
    def pp(self) -> int:
        """Number of stages."""
        return len(self.stages)
