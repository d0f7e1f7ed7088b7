"""Measured layers that replace a model: times and sizes per layer and tensor-parallel degree;
as a table, one row for each of these."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from nest.errors import InputError
from nest.inputs.base import Degree, Description, Freeze, Name, Problems, Whole, at_most
from nest.inputs.files import csv_rows
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


NEEDED = ("layer", "tp", "forward_s", "backward_s", "parameter_bytes", "activation_bytes")
NEEDED_ONCE = ("output_bytes",)
OPTIONAL = ("repeat", "work_bytes", "inputs")
COLUMNS = (*NEEDED, *NEEDED_ONCE, *OPTIONAL)


def profile_from_csv(text: str, name: str, where: str) -> dict[str, Any]:
    """Plain data of a profile from CSV text with a header line.

    Parameters
    ----------
    text : columns layer, tp, forward_s, backward_s, parameter_bytes, activation_bytes,
        output_bytes and, optionally, repeat, work_bytes and inputs (names separated by ";", ";"
        alone for none); in any order.
    name : name of the profile.
    where : what messages start with.

    Raises
    ------
    InputError : columns are missing or unknown, a row is ragged, or rows of a layer disagree.
    """
    rows = csv_rows(text, where)
    if not rows:
        raise InputError(f"{where}: is empty; allowed: columns {', '.join(COLUMNS)}")
    header = [cell.strip() for cell in rows[0][1]]
    _check_header(header, where)
    layers: dict[str, dict[str, Any]] = {}
    for number, cells in rows[1:]:
        place = f"{where}: line {number}"
        if len(cells) != len(header):
            raise InputError(f"{place}: got {len(cells)} cells; allowed: {len(header)}")
        _add_row(layers, dict(zip(header, (c.strip() for c in cells), strict=True)), place)
    return {"name": name, "layers": list(layers.values())}


def _check_header(header: list[str], where: str) -> None:
    problems = [
        f"{where}: line 1: column {column} is missing; needed: {', '.join(NEEDED + NEEDED_ONCE)}"
        for column in (*NEEDED, *NEEDED_ONCE)
        if column not in header
    ]
    for column in dict.fromkeys(header):
        if column not in COLUMNS:
            allowed = ", ".join(COLUMNS)
            problems.append(
                f"{where}: line 1: unknown column {shorten(column)}; allowed: {allowed}"
            )
        elif header.count(column) > 1:
            problems.append(f"{where}: line 1: column {column} comes twice; allowed: once")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))


def _add_row(layers: dict[str, dict[str, Any]], row: dict[str, str], place: str) -> None:
    same: dict[str, Any] = {"output_bytes": row["output_bytes"]}
    if row.get("repeat"):
        same["repeat"] = _whole(row["repeat"], "repeat", place)
    if row.get("inputs"):
        given = (name.strip() for name in row["inputs"].split(";"))
        same["inputs"] = [name for name in given if name]
    layer = layers.setdefault(row["layer"], {"name": row["layer"], **same, "tp": {}})
    for column, value in same.items():
        if layer.get(column) != value:
            text = f"{shorten(layer.get(column))} as in the layer's first row"
            raise InputError(f"{place}: {column}: got {shorten(value)}; allowed: {text}")
    degree = _whole(row["tp"], "tp", place)
    if degree in layer["tp"]:
        text = f"got {degree} again for {shorten(row['layer'])}; allowed: once"
        raise InputError(f"{place}: tp: {text}")
    names = {"forward_s": "forward", "backward_s": "backward", "parameter_bytes": "parameter_bytes"}
    names |= {"activation_bytes": "activation_bytes", "work_bytes": "work_bytes"}
    layer["tp"][degree] = {field: row[column] for column, field in names.items() if row.get(column)}


def _whole(text: str, column: str, place: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise InputError(f"{place}: {column}: got {shorten(text)}; allowed: a whole number")
