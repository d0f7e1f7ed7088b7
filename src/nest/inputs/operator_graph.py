"""Operators of any model with their FLOP, bytes and parameters, and the blocks that they form."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from nest.inputs.base import Description, Name, Number, Problems, Whole, at_most
from nest.inputs.device import Device
from nest.inputs.profile import MeasuredLayer, Measurement, Profile
from nest.units import shorten

MOST = 10**5  # operators of a graph
Amount = Annotated[Number, Field(ge=0, le=1e21)]
Shard = Literal["column", "row", "heads", "experts", "none"]


class GraphOperator(Description):
    """One operator; amounts are forward, per sample, on one device."""

    name: Name = Field(description="name, unique in the graph")
    type: Name = Field(description="what it computes, such as linear")
    flop: Amount = Field(0.0, description="FLOP; a multiply-add is two")
    bytes: Amount = Field(0.0, description="bytes read and written")
    parameters: Annotated[Whole, Field(ge=0, le=10**15)] = Field(
        0, description="parameters that no earlier operator has"
    )
    output_bytes: Amount = Field(0.0, description="bytes of its output")
    saved_bytes: Amount = Field(0.0, description="bytes kept for the backward")
    inputs: Annotated[tuple[Name, ...], at_most(MOST)] = Field(
        (), description="operators whose output it takes, all of them before it"
    )
    block: Annotated[str, Field(max_length=1000)] = Field(
        "", description="the block it belongs to, such as model.layers.3"
    )
    shard: Shard = Field(
        "none", description="axis that tensor parallelism divides; none: every rank runs all of it"
    )


class OperatorBlock(NamedTuple):
    """Operators in a row that belong together."""

    name: str
    operators: tuple[GraphOperator, ...]

    @property
    def form(self) -> tuple[tuple[str, float, float, int], ...]:
        """What blocks that repeat have in common."""
        return tuple((op.type, op.flop, op.bytes, op.parameters) for op in self.operators)

    def total(self, name: str) -> float:
        """Sum of one amount."""
        return float(sum(getattr(op, name) for op in self.operators))


class OperatorGraph(Description):
    """Operators in topological order, for samples of ``seq_len`` tokens."""

    name: Name = Field(description="name of the model")
    seq_len: Annotated[Whole, Field(ge=1, le=10**9)] = Field(
        description="tokens of the sample that the amounts are for"
    )
    bytes_per_parameter: Annotated[Whole, Field(ge=1, le=8)] = Field(
        2, description="bytes of a parameter"
    )
    source: Annotated[str, Field(max_length=4000)] = Field("", description="what it was read from")
    operators: Annotated[
        tuple[GraphOperator, ...], Field(min_length=1, max_length=MOST), at_most(MOST)
    ] = Field(description="operators, each after its inputs")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: set[str] = set()
        for number, op in enumerate(self.operators):
            if op.name in seen:
                text = f"got {shorten(op.name)} again; allowed: a name of its own"
                raise Problems([(f"operators.{number}.name", text)])
            for place, name in enumerate(op.inputs):
                if name not in seen:
                    text = f"got {shorten(name)}; allowed: an operator that comes before it"
                    raise Problems([(f"operators.{number}.inputs.{place}", text)])
            seen.add(op.name)
        return self

    @property
    def flop(self) -> float:
        """FLOP of a sample forward."""
        return sum(op.flop for op in self.operators)

    @property
    def moved(self) -> float:
        """Bytes that the operators read and write for a sample, forward."""
        return sum(op.bytes for op in self.operators)

    def parameters(self) -> int:
        """All parameters, those that operators share once."""
        return sum(op.parameters for op in self.operators)

    @property
    def blocks(self) -> tuple[OperatorBlock, ...]:
        """Blocks in order; operators outside of any form one with their neighbours."""
        found = []
        seen: Counter[str] = Counter()
        for name, ops in groupby(self.operators, key=lambda op: op.block):
            seen[name] += 1
            title = name or f"part {seen[name]}"
            again = f" ({seen[name]})" if name and seen[name] > 1 else ""
            found.append(OperatorBlock(title + again, tuple(ops)))
        return tuple(found)

    @property
    def repeated(self) -> dict[str, int]:
        """Number of blocks of one form, by the name of the first, where there are several."""
        first: dict[object, str] = {}
        times: Counter[str] = Counter()
        for block in self.blocks:
            times[first.setdefault(block.form, block.name)] += 1
        return {name: count for name, count in times.items() if count > 1}

    def profile(self, device: Device) -> Profile:
        """Priced layers, a chain of the blocks, to plan with: ``nest.plan(profile, ...)``.

        Each operator takes the longer of its FLOP at the product rate and its bytes at the memory
        rate (roofline) and the launch; the backward twice that. Blocks that branch are put in a
        row. Only without tensor parallelism: a graph does not say what its ranks would exchange.
        """
        blocks = self.blocks
        handed = _handed_on(blocks)
        layers = []
        for number, block in enumerate(blocks):
            ahead = sum(_seconds(op, device) for op in block.operators)
            times = Measurement(
                forward=ahead, backward=2.0 * ahead,
                parameter_bytes=block.total("parameters") * self.bytes_per_parameter,
                activation_bytes=block.total("saved_bytes"))
            layers.append(MeasuredLayer(
                name=f"{number} {block.name}"[:200], output_bytes=handed[number],
                tp={1: times}))
        return Profile(name=self.name, note=f"priced by roofline: {self.source}"[:4000],
                       bytes_per_parameter=self.bytes_per_parameter, layers=tuple(layers))


def _seconds(op: GraphOperator, device: Device) -> float:
    """Seconds of one operator forward; one that computes and moves nothing is free."""
    if not op.flop and not op.bytes:
        return 0.0
    figures = device.gemm.get("bf16", device.gemm["default"])
    rate = device.peak_flops["bf16"] * figures.peak_fraction
    memory = device.memory_bandwidth * device.memory_efficiency
    return float(max(op.flop / rate, op.bytes / memory) + device.launch_overhead)


def _handed_on(blocks: tuple[OperatorBlock, ...]) -> list[float]:
    """Bytes that each block hands on: outputs that later blocks read, else its last one."""
    made = {op.name: (number, op.output_bytes)
            for number, block in enumerate(blocks) for op in block.operators}
    read: dict[str, None] = {}
    for number, block in enumerate(blocks):
        for op in block.operators:
            read |= dict.fromkeys(name for name in op.inputs if made[name][0] != number)
    found = [0.0] * len(blocks)
    for name in read:
        number, size = made[name]
        found[number] += size
    return [size or block.operators[-1].output_bytes
            for size, block in zip(found, blocks, strict=True)]
