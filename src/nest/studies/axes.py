"""An axis of a study: the values that a field, or several fields together, take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from nest.inputs.base import Description, Freeze, Name, Number, Problems, Whole, at_most
from nest.units import shorten

MOST_VALUES = 10_000
LARGEST = 1e100
"""Magnitude of the bounds of a range, and of the inverse of the smallest but 0."""
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\D*)", re.ASCII)


class Choice(NamedTuple):
    """One value of an axis."""

    label: str | int | float | bool | None
    """What tables and figures call it."""
    fields: Mapping[str, Any]
    """What it sets, by dotted paths."""


class Bound(NamedTuple):
    """A number with the text of its unit; "" without one."""

    number: float
    unit: str
    whole: bool


class Axis(Description):
    """Values of a field: a list, a range, or choices that set several fields each."""

    values: Annotated[tuple[Any, ...], Field(min_length=1), at_most(MOST_VALUES)] | None = Field(
        None, description="values of the field, whatever it takes")
    choices: Annotated[dict[Name, Annotated[dict[str, Any], Freeze]], Field(min_length=1), Freeze,
                       at_most(MOST_VALUES)] | None = Field(
        None, description="fields that change together: by the name of a choice, paths and values")
    start: Any = Field(None, alias="from", description="first value of a range, may have a unit")
    to: Any = Field(None, description="last value of a range, of the same unit")
    count: Annotated[Whole, Field(ge=2, le=MOST_VALUES)] | None = Field(
        None, description="number of values, evenly spaced on `scale`")
    step: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="distance of two values, in the unit of `from`")
    times: Annotated[Number, Field(gt=1)] | None = Field(None, description="ratio of two values")
    scale: Literal["linear", "log"] = Field("linear", description="spacing of `count` values, or "
                                            "of samples of a range without values of its own")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ways = [self.values is not None, self.choices is not None, self.start is not None]
        if sum(ways) != 1:
            text = ("got none or several of a list, choices and from; allowed: a list of values, "
                    "a mapping of choices, or from and to with count, step or times")
            raise Problems([("", text)])
        spaced = [name for name in ("count", "step", "times") if getattr(self, name) is not None]
        if self.start is None:
            if self.to is not None or spaced:
                raise Problems([(spaced[0] if spaced else "to",
                                 "got no from; allowed: with from and to")])
            return self
        if len(spaced) > 1:
            raise Problems([(spaced[1], f"got {' and '.join(spaced)}; allowed: one of them")])
        low, high = _bound("from", self.start), _bound("to", self.to)
        if low.unit != high.unit:
            raise Problems([("to", f"got {shorten(self.to)}; allowed: the unit of from, "
                             f"{low.unit or 'none'}")])
        if not low.number < high.number:
            raise Problems([("to", f"got {shorten(self.to)}; allowed: more than from")])
        if (self.scale == "log" or self.times is not None) and low.number <= 0:
            raise Problems([("from", f"got {shorten(self.start)}; allowed: above 0 on scale log")])
        most = 1 + max((high.number - low.number) / self.step if self.step else 0.0,
                       math.log(high.number / low.number, self.times) if self.times else 0.0)
        if most > MOST_VALUES:
            raise Problems([("step", f"got {most:.0f} values; allowed: at most {MOST_VALUES}")])
        return self

    @property
    def continuous(self) -> bool:
        """A range without values of its own, of which only samples can be taken."""
        return self.start is not None and (self.count, self.step, self.times) == (None,) * 3

    def listed(self, name: str) -> tuple[Choice, ...]:
        """All values; empty where it is continuous.

        Parameters
        ----------
        name : of the axis; where there are no choices, the path of its field.
        """
        if self.choices is not None:
            return tuple(Choice(_named(name), fields) for name, fields in self.choices.items())
        values = self.values if self.values is not None else tuple(self._spaced())
        return tuple(Choice(_label(value), {name: value}) for value in values)

    def at(self, name: str, share: float) -> Choice:
        """The value at a share of the range, 0 to 1, of a continuous axis."""
        low, high = _bound("from", self.start), _bound("to", self.to)
        value = _written(_between(low.number, high.number, share, self.scale), low,
                         low.whole and high.whole)
        return Choice(_label(value), {name: value})

    def _spaced(self) -> Iterator[Any]:
        """The values of a range, each once."""
        if self.continuous:
            return
        low, high = _bound("from", self.start), _bound("to", self.to)
        numbers: list[float] = []
        if self.count is not None:
            numbers = [_between(low.number, high.number, place / (self.count - 1), self.scale)
                       for place in range(self.count)]
        while self.count is None:
            place = len(numbers)
            number = (low.number + place * self.step if self.step is not None
                      else low.number * (self.times or 2.0) ** place)
            if number > high.number * (1 + 1e-12):
                break
            numbers.append(number)
        whole = low.whole and high.whole and (self.step is None or self.step.is_integer())
        yield from dict.fromkeys(_written(number, low, whole) for number in numbers)


def _read(value: Any) -> Any:
    """A list, or a mapping of mappings, in the place of the field that it belongs to."""
    if isinstance(value, (list, tuple)):
        return {"values": value}
    if isinstance(value, dict) and value and all(isinstance(one, dict) for one in value.values()):
        return {"choices": {str(name): one for name, one in value.items()}}
    return value


AnyAxis = Annotated[Axis, BeforeValidator(_read, json_schema_input_type=list[Any] | dict[str, Any])]


def _bound(field: str, value: Any) -> Bound:
    number, unit, whole = value, "", isinstance(value, int)
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        number, unit = float(match[1]), match[2].strip()
        whole = match[1].lstrip("+-").isdigit()
    if isinstance(number, (int, float)) and not isinstance(number, bool) and (
            number == 0 or 1 / LARGEST <= abs(number) <= LARGEST):
        return Bound(float(number), unit, whole)
    raise Problems([(field, f"got {shorten(value)}; allowed: a number, or a number with a unit, "
                     f"0 or of a magnitude of {1 / LARGEST:g} to {LARGEST:g}")])


def _between(low: float, high: float, share: float, scale: str) -> float:
    if share in (0.0, 1.0):
        return (low, high)[int(share)]
    return low * (high / low) ** share if scale == "log" else low + (high - low) * share


def _written(number: float, like: Bound, whole: bool) -> Any:
    """A number in the manner of the bounds: with their unit; whole where these are whole."""
    if like.unit:
        return f"{float(f'{number:.6g}'):.12g} {like.unit}"
    return round(number) if whole else float(f"{number:.12g}")


def _named(name: str) -> str | int | float:
    """The name of a choice as a number where it is one."""
    if not _PLAIN.fullmatch(name):
        return name
    return int(name) if name.lstrip("+-").isdigit() else float(name)


def _label(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, dict):
        return str(value.get("name") or value.get("base") or shorten(value))
    return shorten(value)
