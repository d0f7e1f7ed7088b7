"""The space that a plan is searched in: every dimension free, bounded or fixed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from nest.describe.base import Description, Problems
from nest.units import shorten

LARGEST = 10**7  # no degree is larger than this
_HELP = 'a whole number, a list of them, or text such as "8", "1..16" or "1,2,4"'
_PART = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", re.ASCII)
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class IntSet:
    """A set of whole numbers kept as ranges, so that 1..1000000 takes no room.

    Parameters
    ----------
    ranges : (first, last) pairs, both included, ascending and apart.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, value: object) -> IntSet:
        """Read 8, "8", "1..16", "1,2,4", [1, 2] or an IntSet.

        Raises
        ------
        ValueError : none of these, or outside 0..10**7.
        """
        if isinstance(value, IntSet):
            return value
        items: Iterable[object] = [value]
        if isinstance(value, (list, tuple, set, frozenset, range)):
            items = value
        pairs = sorted(pair for item in items for pair in _pairs(item, value))
        if not pairs:
            raise ValueError(f"got {shorten(value)}; allowed: {_HELP}, not empty")
        merged = [pairs[0]]
        for first, last in pairs[1:]:
            if first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(a <= number <= b for a, b in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(f"{a}" if a == b else f"{a}..{b}" for a, b in self.ranges)

    @property
    def smallest(self) -> int:
        """The smallest member."""
        return self.ranges[0][0]

    @property
    def largest(self) -> int:
        """The largest member."""
        return self.ranges[-1][1]

    def values(self, limit: int) -> tuple[int, ...]:
        """Members up to and including `limit`, ascending."""
        return tuple(n for a, b in self.ranges for n in range(a, min(b, limit) + 1))


def _pairs(item: object, whole: object) -> Iterator[tuple[int, int]]:
    refusal = ValueError(f"got {shorten(whole)}; allowed: {_HELP}")
    if isinstance(item, str):
        for part in item.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise refusal
            yield _checked(int(match[1]), int(match[2] or match[1]), whole)
    elif isinstance(item, int) and not isinstance(item, bool):
        yield _checked(item, item, whole)
    else:
        raise refusal


def _checked(first: int, last: int, whole: object) -> tuple[int, int]:
    if not 0 <= first <= last <= LARGEST:
        text = f"0 to {LARGEST}, and ranges from the smaller to the larger number"
        raise ValueError(f"got {shorten(whole)}; allowed: {text}")
    return first, last


def _any(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "any")


def _int_set(value: object) -> IntSet | None:
    return None if _any(value) else IntSet.of(value)


def _listed(value: object) -> object:
    """One value, or several in one text, as a tuple."""
    if _any(value):
        return None
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return (value,) if isinstance(value, bool) else value


def _flags(value: object) -> object:
    values = _listed(value)
    words = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}
    if isinstance(value, str) and isinstance(values, tuple):
        return tuple(words.get(str(v).lower(), v) for v in values)
    return values


def _distinct(value: Any) -> Any:
    return value if value is None else tuple(dict.fromkeys(value))


_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string"},
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
        {"type": "null"},
    ],
    "title": _HELP,
}
Ints = Annotated[
    IntSet | None,
    BeforeValidator(_int_set),
    PlainSerializer(lambda v: None if v is None else str(v)),
    WithJsonSchema(_SCHEMA),
]


class SearchSpace(Description):
    """What a plan may choose from; a dimension that is not given is free."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    outer_dp: Ints = Field(None, description="replicas of the super-pipeline")
    dp_in: Ints = Field(None, description="data parallel degree inside a block")
    tp: Ints = Field(None, description="tensor parallel degree")
    cp: Ints = Field(IntSet(((1, 1),)), description="context parallel degree; only 1")
    ep: Ints = Field(None, description="expert parallel degree")
    etp: Ints = Field(None, description="expert tensor parallel degree; not given: tp or 1")
    pp: Ints = Field(None, description="pipeline stages")
    vpp: Ints = Field(IntSet(((1, 1),)), description="virtual stages per device; only 1")
    micro_batch: Ints = Field(None, description="samples a super-pipeline takes at once")
    mbs: Ints = Field(None, description="samples a device takes at once (micro_batch / dp_in)")
    zero: Ints = Field(None, description="ZeRO stage, 0 to 3")
    recompute: Annotated[
        tuple[Recompute, ...] | None,
        BeforeValidator(_listed, json_schema_input_type=Recompute | list[Recompute] | None),
        AfterValidator(_distinct),
    ] = Field(None, description="what the backward computes again: none, selective, full")
    sp: Annotated[
        tuple[bool, ...] | None,
        BeforeValidator(_flags, json_schema_input_type=bool | list[bool] | None),
    ] = Field((True,), description="sequence parallelism where tp > 1: true, false or any of both")
    schedule: Annotated[tuple[Literal["1f1b"], ...] | None, BeforeValidator(_listed)] = Field(
        ("1f1b",), description="pipeline schedule; only 1f1b"
    )

    @model_validator(mode="after")
    def _legal(self) -> Self:
        limits = dict.fromkeys(("outer_dp", "dp_in", "tp", "ep", "etp", "pp"), (1, LARGEST))
        limits |= {"micro_batch": (1, LARGEST), "mbs": (1, LARGEST)}
        limits |= {"zero": (0, 3), "cp": (1, 1), "vpp": (1, 1)}
        problems = []
        for name, (low, high) in limits.items():
            given: IntSet | None = getattr(self, name)
            if given is not None and not (low <= given.smallest and given.largest <= high):
                allowed = str(low) if low == high else f"{low} to {high}"
                problems.append((name, f"got {given}; allowed: {allowed}"))
        for name in ("recompute", "sp", "schedule"):
            if getattr(self, name) == ():
                problems.append((name, "got an empty list; allowed: at least one value"))
        if problems:
            raise Problems(problems)
        return self

    def describe(self) -> dict[str, str]:
        """Each dimension as text: `any`, or the values it may take."""
        shown = {name: _shown(getattr(self, name)) for name in type(self).model_fields}
        return shown if self.etp is not None else {**shown, "etp": "1 or tp"}


def _shown(value: object) -> str:
    if value is None:
        return "any"
    if isinstance(value, tuple):
        return ",".join(str(v).lower() for v in value)
    return str(value)
