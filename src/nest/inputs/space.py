"""The space that a plan is searched in: every dimension free, bounded or fixed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from nest.inputs.base import Description, Name, Problems
from nest.inputs.choices import word
from nest.inputs.offload import OffloadText
from nest.schedules.registry import BEYOND, USUAL, Schedule
from nest.units import shorten

LARGEST = 10**7  # no degree is larger than this
MOST_GROUPS = 100
"""Sizes of groups of micro-batches that a space may name: each is a pipeline of its own."""
_HELP = 'a whole number, a list of them, or text such as "8", "1..16" or "1,2,4"'
_PART = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", re.ASCII)
Recompute = Literal["none", "selective", "full"]
Module = Literal[
    "core_attn", "norm", "mlp_act", "moe", "mlp", "mla_up_proj", "shared_experts",
    "gdn_norm_out", "qkv_linear", "attn_proj"]
MODULES: tuple[Module, ...] = get_args(Module)
"""Parts of a layer that selective recompute may run again, with Megatron-Core's names."""
Precision = Literal[
    "bf16", "fp16", "fp32", "fp8", "fp8-delayed", "fp8-blockwise", "mxfp8", "nvfp4"]
"""Number formats of matrix products; their figures: :mod:`nest.inputs.formats`."""
Graphs = Literal["none", "layers", "step"]
"""What CUDA graphs capture."""
Loss = Literal["whole", "chunks", "liger", "cut"]
"""How the loss runs: over all tokens; over parts of them, with the head; likewise, as Liger's
kernels; without logits in memory, as cut cross-entropy."""
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
"""How tokens reach their experts."""
Capacity = Literal["none", "limited", "padded"]
"""How experts of limited capacity are filled; none: there is no limit."""
Preference = Literal["fastest", "measured"]
Optimizer = Literal["adam", "sgd", "sgd-momentum", "muon", "adam-8bit", "adafactor"]
CpComm = Literal["p2p", "a2a", "all_gather", "a2a+p2p"]
Shard = Literal["dp", "dp_in"]


@dataclass(frozen=True)
class IntSet:
    """A set of whole numbers stored as ranges, so that 1..1000000 takes little memory.

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
        ValueError : none of these, or an empty range.
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
            yield _range(int(match[1]), int(match[2] or match[1]), whole)
    elif isinstance(item, int) and not isinstance(item, bool):
        yield _range(item, item, whole)
    else:
        raise refusal


def _range(first: int, last: int, whole: object) -> tuple[int, int]:
    if first > last:
        raise ValueError(f"got {shorten(whole)}, and {first}..{last} is empty; allowed: ranges "
                         f"from the smaller to the larger number, such as {last}..{first}")
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


def _offloads(value: object) -> object:
    """Texts of what is kept; they are never free."""
    return (value,) if isinstance(value, str) and _any(value) else _listed(value)


def _schedules(value: object) -> object:
    """Names of schedules; `any` of them, or `default`: as if not given."""
    if value in (None, "default"):
        return None
    return get_args(Schedule) if _any(value) else _listed(value)


def _flags(value: object) -> object:
    values = _listed(value)
    words = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}
    if isinstance(value, str) and isinstance(values, tuple):
        return tuple(words.get(str(v).lower(), v) for v in values)
    return values


def _distinct(value: Any) -> Any:
    return value if value is None else tuple(dict.fromkeys(value))


def _combinations(value: Any) -> Any:
    """Module combinations with their modules in one order."""
    if value is None:
        return None
    found = []
    for text in value:
        modules = text.split("+")
        if len(set(modules)) < len(modules) or not set(modules) <= set(MODULES):
            raise ValueError(f"got {shorten(text)}; allowed: {_COMBINATION}")
        found.append("+".join(m for m in MODULES if m in modules))
    return tuple(dict.fromkeys(found))


_COMBINATION = "modules joined by +, of " + ", ".join(MODULES)


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


def _words(value: object) -> object:
    found = _listed(value)
    return tuple(map(word, found)) if isinstance(found, (list, tuple)) else found


Chosen = Annotated[
    tuple[Name, ...] | None,
    BeforeValidator(_words, json_schema_input_type=str | bool | list[str | bool] | None),
    AfterValidator(_distinct),
]
"""Values of a choice that the job's stack lists; not given: all of them."""


class SearchSpace(Description):
    """The choices of a plan; a dimension that is not given is free."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    outer_dp: Ints = Field(None, description="replicas of the super-pipeline")
    dp_in: Ints = Field(None, description="data parallel degree inside a block")
    tp: Ints = Field(None, description="tensor parallel degree")
    sp: Annotated[
        tuple[bool, ...] | None,
        BeforeValidator(_flags, json_schema_input_type=bool | list[bool] | None),
    ] = Field(None, description="sequence parallelism where tp > 1: true, false or any of both")
    cp: Ints = Field(None, description="context parallel degree")
    cp_comm: Annotated[
        tuple[CpComm, ...] | None,
        BeforeValidator(_listed, json_schema_input_type=CpComm | list[CpComm] | None),
        AfterValidator(_distinct),
    ] = Field(
        None, description="how cp exchanges keys and values: p2p (ring), all_gather, a2a "
        "(all-to-all), a2a+p2p (all-to-all in groups, ring across them)"
    )
    cp_a2a: Ints = Field(None, description="ranks of cp that exchange by all-to-all in a2a+p2p")
    ep: Ints = Field(None, description="expert parallel degree")
    etp: Ints = Field(None, description="expert tensor parallel degree")
    pp: Ints = Field(None, description="pipeline stages")
    vpp: Ints = Field(None, description="virtual stages per device; above 1: interleaved")
    group: Ints = Field(
        None, description="consecutive micro-batches of a virtual stage, of schedules that "
        "leave it open; not given: pp, or the least legal numbers from pp and 2 pp on"
    )
    micro_batch: Ints = Field(None, description="samples a super-pipeline takes at once")
    mbs: Ints = Field(None, description="samples a device takes at once (micro_batch / dp_in)")
    zero: Ints = Field(None, description="ZeRO stage, 0 to 3")
    shard: Annotated[
        tuple[Shard, ...] | None,
        BeforeValidator(_listed, json_schema_input_type=Shard | list[Shard] | None),
        AfterValidator(_distinct),
    ] = Field(None, description="ZeRO shards over: dp (all ranks), dp_in (the block's, HSDP)")
    recompute: Annotated[
        tuple[Recompute, ...] | None,
        BeforeValidator(_listed, json_schema_input_type=Recompute | list[Recompute] | None),
        AfterValidator(_distinct),
    ] = Field(None, description="recompute policy: none, selective, full")
    recompute_modules: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_listed, json_schema_input_type=str | list[str] | None),
        AfterValidator(_combinations),
    ] = Field(None, description=f"modules of selective recompute: {_COMBINATION}")
    recompute_layers: Ints = Field(
        None, description="full recompute of only this many first layers of a stage; not given: "
        "any number, all of them included"
    )
    schedule: Annotated[
        tuple[Schedule, ...] | None,
        BeforeValidator(_schedules, json_schema_input_type=Schedule | list[Schedule] | None),
        AfterValidator(_distinct),
    ] = Field(
        None, description="pipeline schedules: " + ", ".join(get_args(Schedule)) + "; default: "
        "those of the job's stack, or where anything may run "
        + ", ".join((*USUAL, *BEYOND))
    )
    cuda_graphs: Chosen = Field(None, description="CUDA graphs of: none, layers, step")
    dispatcher: Chosen = Field(
        None, description="how tokens reach experts: alltoall, allgather, deepep, hybridep")
    fused_experts: Chosen = Field(
        None, description="activation functions as part of experts' products: true, false")
    fp8_attention: Chosen = Field(None, description="attention core in 8 bits: true, false")
    fp8_head: Chosen = Field(None, description="head in 8 bits: true, false")
    fp8_gather: Chosen = Field(
        None, description="ZeRO gathers parameters in 8 bits: true, false")
    tp_overlap: Chosen = Field(
        None, description="tensor-parallel traffic overlaps with products: true, false")
    loss: Chosen = Field(None, description="how the loss runs: whole, chunks, liger, cut")
    offload: Annotated[
        tuple[OffloadText, ...],
        BeforeValidator(_offloads, json_schema_input_type=str | list[str]),
        AfterValidator(_distinct),
    ] = Field(
        ("none",), description="what is kept in the memory of the hosts: none, optimizer, "
        "optimizer:0.5, layers:8, core_attn+moe_act, ..."
    )

    @model_validator(mode="after")
    def _legal(self) -> Self:
        limits = {
            name: (1, LARGEST) for name, field in type(self).model_fields.items()
            if IntSet in get_args(field.annotation)
        }
        limits["zero"] = (0, 3)
        problems = []
        for name, (low, high) in limits.items():
            given: IntSet | None = getattr(self, name)
            if given is not None and not (low <= given.smallest and given.largest <= high):
                problems.append((name, f"got {given}; allowed: {low} to {high}"))
        if self.group is not None and len(self.group) > MOST_GROUPS:
            problems.append(("group", f"got {self.group}; allowed: at most {MOST_GROUPS} numbers"))
        for name in type(self).model_fields:
            if getattr(self, name) == ():
                problems.append((name, "got an empty list; allowed: at least one value"))
        if problems:
            raise Problems(problems)
        return self

    def describe(self) -> dict[str, str]:
        """Each dimension as text that `parse` takes: `any`, or the values it may take."""
        return {name: _shown(getattr(self, name)) for name in type(self).model_fields} | (
            {"schedule": "default"} if self.schedule is None else {})

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Those that are named, or else the usual ones."""
        return USUAL if self.schedule is None else self.schedule

    def allows(self, name: str, value: object) -> bool:
        """Whether a dimension may take a value."""
        given = getattr(self, name)
        return given is None or value in given


def _shown(value: object) -> str:
    if value is None:
        return "any"
    if isinstance(value, tuple):
        return ",".join(str(v).lower() for v in value)
    return str(value)
