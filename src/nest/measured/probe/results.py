"""`nest.probe/1`: what the probe program measured on a cluster, read."""

from __future__ import annotations

import os
from collections import Counter
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nest.errors import InputError
from nest.inputs.base import Name, Number, Problems, Whole, Written, at_most
from nest.inputs.device import Dtype
from nest.inputs.files import read_description
from nest.measured.calibration.collectives import Collective, MeasuredCollective
from nest.measured.calibration.gemms import FEWEST, FORMATS, Products, products_of

Seconds = Annotated[Number, Field(gt=0, le=1e6)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Size = Annotated[Whole, Field(ge=1, le=10**15)]
Part = Literal["products", "grouped", "attention", "bytes", "host", "collectives", "overlap"]

COLUMNS: dict[Part, tuple[str, ...]] = {
    "products": ("dtype", "m", "n", "k"),
    "grouped": ("dtype", "way", "groups", "m", "n", "k"),
    "attention": ("dtype", "way", "heads", "width", "tokens"),
    "bytes": ("kernel", "bytes"), "host": ("what",),
    "collectives": ("collective", "n_ranks", "n_nodes", "message_bytes"),
    "overlap": ("what", "n_ranks")}
"""What a measurement of a part has besides its seconds."""


class ProbeRow(Written):
    """One measurement, or why there is none."""

    part: Part
    why: Annotated[str, Field(max_length=1000)] | None = None
    seconds: Seconds | None = Field(None, description="median of all repeats and ranks")
    low: Seconds | None = Field(None, description="a quarter takes no longer")
    high: Seconds | None = Field(None, description="a quarter takes no less")
    slowest: Annotated[Whole, Field(ge=0)] | None = None
    slower: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="median of the slowest rank over that of all")
    dtype: Dtype | None = None
    m: Count | None = None
    n: Count | None = None
    k: Count | None = None
    groups: Count | None = None
    way: Literal["each", "fused", "forward", "backward"] | None = None
    heads: Count | None = None
    width: Count | None = None
    tokens: Count | None = None
    kernel: Name | None = None
    bytes: Size | None = None
    what: Name | None = None
    count: Count = 1
    collective: Collective | None = None
    n_ranks: Count | None = None
    n_nodes: Count | None = None
    message_bytes: Size | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        needed = () if self.why is not None else ("seconds", *COLUMNS[self.part])
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise Problems([(missing[0], f"got none; needed: a value for {self.part}")])
        return self


class ProbedDevice(Written):
    """The device of a rank, as PyTorch names it."""

    kind: Literal["cuda", "cpu"]
    name: Name
    memory_bytes: Size
    capability: Annotated[Whole, Field(ge=0, le=10**4)] = 0


class ProbeResults(Written):
    """What one start of the probe program measured."""

    schema_: Annotated[str, Field(alias="schema", pattern=r"^nest\.probe/1(\.\d+)?$")]
    torch: Name
    device: ProbedDevice
    hosts: Annotated[tuple[Name, ...], Field(min_length=1), at_most(10**5)] = Field(
        description="host of each rank")
    host_memory_bytes: Size = Field(description="of the host, for each rank")
    rows: Annotated[tuple[ProbeRow, ...], at_most(10**5)]
    left: dict[Part, Count] = Field(
        default_factory=dict, description="measurements of a part that the time did not allow")
    seconds: Annotated[Number, Field(ge=0)] = 0.0
    context_bytes: Annotated[Whole, Field(ge=0)] = 0
    buffer_bytes: Annotated[Whole, Field(ge=0)] = 0

    @cached_property
    def nodes(self) -> Counter[str]:
        """Ranks of each host."""
        return Counter(self.hosts)

    @property
    def per_node(self) -> int:
        """Ranks of a host, the fewest of any."""
        return min(self.nodes.values())

    def of(self, part: Part, **cells: str) -> list[ProbeRow]:
        """Measurements of a part, those with the given cells."""
        return [row for row in self.rows if row.part == part and row.seconds is not None
                and all(getattr(row, name) == value for name, value in cells.items())]

    @property
    def products(self) -> dict[Dtype, Products]:
        """Products by format, where there are enough."""
        lists: dict[Dtype, list[tuple[float, ...]]] = {}
        for row in self.of("products"):
            assert row.dtype and row.m and row.n and row.k and row.seconds
            lists.setdefault(row.dtype, []).append((row.m, row.n, row.k, row.seconds))
        return products_of({name: each for name, each in lists.items()
                            if name in FORMATS and len(each) >= FEWEST})

    @property
    def collectives(self) -> tuple[MeasuredCollective, ...]:
        """Collectives as the fit of a network takes them."""
        return tuple(
            MeasuredCollective(row.collective, row.n_ranks, row.n_nodes, row.message_bytes,
                               row.seconds)
            for row in self.of("collectives") if row.collective and row.n_ranks and row.n_nodes
            and row.message_bytes and row.seconds)

    @property
    def refused(self) -> dict[str, str]:
        """What could not be measured, and why, each kind once."""
        return {" ".join([row.part, *filter(None, (row.way, row.collective, row.kernel, row.what,
                                                    row.dtype))]): row.why
                for row in self.rows if row.why is not None}

    @property
    def slow(self) -> tuple[int, float] | None:
        """The rank that is slowest in most measurements of single devices, and by how much.

        None: none is slower by a tenth in half of them.
        """
        own = [row for row in self.rows if row.part in ("products", "attention", "bytes")
               and row.slowest is not None and row.slower is not None]
        if len(own) < 4 or len(self.hosts) < 3:
            return None
        rank, times = Counter(row.slowest for row in own).most_common(1)[0]
        by = sorted(row.slower or 1.0 for row in own if row.slowest == rank)
        middle = by[len(by) // 2]
        return (rank or 0, middle) if times > len(own) / 2 and middle > 1.1 else None


def load_probe(path: str | os.PathLike[str]) -> ProbeResults:
    """Read what the probe program wrote.

    Raises
    ------
    InputError : the file cannot be read, or is none.
    """
    data = read_description(path)
    found = ProbeResults.parse(data, os.fspath(path))
    if not any(row.seconds for row in found.rows):
        raise InputError(f"{os.fspath(path)}: rows: got no measurement; needed: some "
                         f"({'; '.join(list(found.refused.values())[:2]) or 'none was tried'})")
    return found
