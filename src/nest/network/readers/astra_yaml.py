"""Network YAML of ASTRA-sim's analytical back end.

    topology: [Ring, FullyConnected, Switch]
    npus_count: [2, 8, 4]
    bandwidth: [200.0, 100.0, 50.0]     # of a link and direction, GB of 2**30 bytes
    latency: [50.0, 500.0, 2000.0]      # of a link, ns

Format: astra-sim/astra-network-analytical, common/network-parser/NetworkParser.cpp (commit
1f4d8e6c); that a GB has 2**30 bytes there: common/NetworkFunction.cc. Dimensions multiply: NPUs
that differ in one coordinate only form a ring, are fully connected, or hang from a switch of their
own (ASTRA-sim 2.0, arXiv:2303.14006, section IV-B). A ring of two is one link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nest.errors import InputError
from nest.inputs import Description, Device
from nest.inputs.base import Number, Problems, Whole, at_most
from nest.network.draft import Draft
from nest.network.topology import MOST_NODES, Topology

MARKS = ("topology", "npus_count")
GIGABYTE = 2.0**30
MOST_DIMENSIONS = 10
_Count = Annotated[Whole, Field(ge=2, le=MOST_NODES)]
_Rate = Annotated[Number, Field(gt=0, le=1e9)]
_Delay = Annotated[Number, Field(ge=0, le=1e15)]
_Some = at_most(MOST_DIMENSIONS)


class AstraNetwork(Description):
    """The file's fields, each with an entry for each dimension."""

    topology: Annotated[
        tuple[Literal["Ring", "FullyConnected", "Switch"], ...], Field(min_length=1), _Some
    ] = Field(description="Ring, FullyConnected or Switch for each dimension")
    npus_count: Annotated[tuple[_Count, ...], _Some] = Field(description="NPUs of each dimension")
    bandwidth: Annotated[tuple[_Rate, ...], _Some] = Field(
        description="GB/s (2**30 bytes) of a link and direction for each dimension"
    )
    latency: Annotated[tuple[_Delay, ...], _Some] = Field(
        description="ns of a link for each dimension"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        count = len(self.topology)
        problems = [
            (name, f"got {len(getattr(self, name))} entries; allowed: {count}, as of topology")
            for name in ("npus_count", "bandwidth", "latency")
            if len(getattr(self, name)) != count
        ]
        if not problems and math.prod(self.npus_count) > MOST_NODES:
            total = math.prod(self.npus_count)
            problems.append(("npus_count", f"got {total} NPUs; allowed: at most {MOST_NODES}"))
        if problems:
            raise Problems(problems)
        return self


def from_astra_yaml(
    data: dict[str, Any], name: str, where: str, device: Device | None
) -> Topology:
    """Topology of the data of a file.

    Parameters
    ----------
    data : the file's mapping.
    name : of the topology.
    where : name of the file.
    device : type of all NPUs, which the format does not name.

    Raises
    ------
    InputError : fields that are missing or not allowed, no type of device, or too many links.
    """
    network = AstraNetwork.parse(data, where)
    if device is None:
        hint = "the type of its NPUs, which the format does not name (`nest list devices`)"
        raise InputError(f"{where}: device: missing; needed: {hint}")
    draft = Draft(name, where)
    npus = [draft.device(f"npu{n}", device) for n in range(math.prod(network.npus_count))]
    stride = 1
    for number, (topology, count) in enumerate(
        zip(network.topology, network.npus_count, strict=True)
    ):
        bandwidth = network.bandwidth[number] * GIGABYTE
        latency = network.latency[number] * 1e-9
        for place, first in enumerate(_starts(len(npus), stride, count)):
            group = [npus[first + stride * step] for step in range(count)]
            if topology == "Switch":
                centre = draft.switch(f"dimension{number}.switch{place}")
                pairs: Iterator[tuple[int, int]] = ((npu, centre) for npu in group)
            else:
                pairs = _pairs(topology, group)
            for one, other in pairs:
                draft.cable(one, other, bandwidth, latency, f"topology.{number}")
        stride *= count
    return draft.build()


def _starts(total: int, stride: int, count: int) -> Iterator[int]:
    """First NPU of each group that differs in one coordinate only."""
    for outer in range(0, total, stride * count):
        yield from range(outer, outer + stride)


def _pairs(topology: str, group: list[int]) -> Iterator[tuple[int, int]]:
    if topology == "FullyConnected":
        return itertools.combinations(group, 2)
    ring = itertools.pairwise([*group, group[0]] if len(group) > 2 else group)
    return iter(ring)
