"""Measured layers that replace a model: times and sizes per layer and tensor-parallel degree."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from nest.inputs.base import Degree, Description, Freeze, Name, Problems, Whole, at_most
from nest.units import BytesOrZero, Seconds, shorten

LONGEST = 10**4  # layers of a chain, repetitions counted


def _key(value: object) -> object:
    """Take "8" as 8: keys of JSON and TOML are text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value


DegreeKey = Annotated[Degree, BeforeValidator(_key)]


class Measurement(Description):
    """One layer at one tensor-parallel degree, on one device.

    Times and activations are per sample of the device's micro-batch; parameter bytes
    do not depend on it.
    """

    forward: Seconds = Field(description="seconds of the forward per sample")
    backward: Seconds = Field(description="seconds of the backward per sample")
    parameter_bytes: BytesOrZero = Field(
        description="bytes of parameters on one device, in the precision they are computed in"
    )
    activation_bytes: BytesOrZero = Field(
        description="bytes kept from forward to backward per sample"
    )
    work_bytes: BytesOrZero = Field(
        0.0, description="bytes needed only while the layer computes, per sample"
    )


class MeasuredLayer(Description):
    """A layer, possibly repeated: the first takes the inputs, each other one the previous."""

    name: Name = Field(description="name of the layer, unique")
    output_bytes: BytesOrZero = Field(
        description="bytes that the layer hands on, per sample, all of tp together"
    )
    repeat: Annotated[Whole, Field(ge=1, le=LONGEST)] = Field(
        1, description="how many times the layer comes in a row"
    )
    inputs: Annotated[
        tuple[Name, ...], Field(max_length=LONGEST), at_most(LONGEST)
    ] | None = Field(
        None, description="names of the layers whose output it takes, all of them before it; "
        "default: the layer before; [] = none"
    )
    tp: Annotated[
        dict[DegreeKey, Measurement], Field(min_length=1, max_length=64), Freeze, at_most(64)
    ] = Field(description="measurements per tensor-parallel degree")


class Profile(Description):
    """Measured layers, first to last: a chain, or a graph where layers name their inputs."""

    name: Name = Field(description="what was measured")
    note: Annotated[str, Field(max_length=4000)] = Field("", description="how it was measured")
    bytes_per_parameter: Annotated[Whole, Field(ge=1, le=8)] = Field(
        2, description="bytes that one parameter takes in parameter_bytes"
    )
    layers: Annotated[
        tuple[MeasuredLayer, ...], Field(min_length=1, max_length=LONGEST), at_most(LONGEST)
    ] = Field(description="measured layers, first to last")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        seen: set[str] = set()
        for index, layer in enumerate(self.layers):
            if layer.name in seen:
                text = f"got {shorten(layer.name)} again; allowed: a name of its own (or repeat)"
                problems.append((f"layers.{index}.name", text))
            problems += _input_problems(index, layer, seen)
            seen.add(layer.name)
        if self.length > LONGEST:
            text = f"got {self.length} layers with repetitions; allowed: at most {LONGEST}"
            problems.append(("layers", text))
        if not self.degrees:
            text = "got no tp degree that every layer has; allowed: at least one in common"
            problems.append(("layers", text))
        for tp in self.degrees:
            if not any(layer.tp[tp].forward + layer.tp[tp].backward for layer in self.layers):
                text = f"got no time at all at tp {tp}; allowed: some time above 0"
                problems.append(("layers", text))
        if problems:
            raise Problems(problems)
        return self

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees at which every layer was measured, ascending."""
        common = set(self.layers[0].tp).intersection(*(layer.tp for layer in self.layers))
        return tuple(sorted(common))

    @property
    def length(self) -> int:
        """Layers of the chain, repetitions counted."""
        return sum(layer.repeat for layer in self.layers)

    @property
    def inputs(self) -> tuple[tuple[str, ...], ...]:
        """Names of the layers that each layer takes its input from."""
        before = ((), *((layer.name,) for layer in self.layers[:-1]))
        return tuple(
            default if layer.inputs is None else layer.inputs
            for layer, default in zip(self.layers, before, strict=True))


def _input_problems(index: int, layer: MeasuredLayer, before: set[str]) -> list[tuple[str, str]]:
    """Inputs that are not an earlier layer, or are named twice."""
    problems = []
    seen: set[str] = set()
    for place, name in enumerate(layer.inputs or ()):
        field = f"layers.{index}.inputs.{place}"
        if name not in before:
            text = f"got {shorten(name)}; allowed: the name of a layer that comes before it"
            problems.append((field, text))
        elif name in seen:
            problems.append((field, f"got {shorten(name)} again; allowed: each name once"))
        seen.add(name)
    return problems
