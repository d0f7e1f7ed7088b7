"""Networks as simulators write them: ASTRA-sim's YAML, SimAI's text.

Network YAML of ASTRA-sim's analytical back end.

    topology: [Ring, FullyConnected, Switch]
    npus_count: [2, 8, 4]
    bandwidth: [200.0, 100.0, 50.0]     # of a link and direction, GB of 2**30 bytes
    latency: [50.0, 500.0, 2000.0]      # of a link, ns

Format: astra-sim/astra-network-analytical, common/network-parser/NetworkParser.cpp (commit
1f4d8e6c); that a GB has 2**30 bytes there: common/NetworkFunction.cc. Dimensions multiply: NPUs
that differ in one coordinate only form a ring, are fully connected, or hang from a switch of their
own (ASTRA-sim 2.0, arXiv:2303.14006, section IV-B). A ring of two is one link.

Topology text of SimAI and of ASTRA-sim's ns-3 back end with NVSwitches.

    nodes gpus_per_server nv_switches switches links gpu_type
    ids of the NVSwitches, then of the other switches
    source target bandwidth latency error_rate        (a line for each link)

Format: aliyun/SimAI, astra-sim-alibabacloud/inputs/topo/gen_Topo_Template.py, and the reader
SetupNetwork in astra-sim's network_frontend/ns3/common.h, which takes words apart by white space
alone. A link carries its bandwidth in each direction. Error rates are read and left out.

With NVSwitches, the port of a GPU to another switch is a separate node: paths over an NVSwitch are
then shorter than those over a switch of the same GPUs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nest.errors import InputError
from nest.inputs import Description, Device
from nest.inputs.base import Number, Problems, Whole, at_most
from nest.network.readers.graphs import DeviceTypes, NetworkFile
from nest.network.topology import MOST_LINKS, MOST_NODES, Draft, Topology
from nest.units import parse_bandwidth, parse_seconds, shorten

ASTRA_MARKS = ("topology", "npus_count")
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


def from_astra_yaml(data: dict[str, Any], file: NetworkFile) -> Topology:
    """Topology of the data of a network file of ASTRA-sim.

    Raises
    ------
    InputError : fields that are missing or not allowed, no type of device, or too many links.
    """
    name, where, device = file
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


# ---------------------------------------------------------------- simai text


HEADER = re.compile(r"\s*(\d+[ \t]+){5}[A-Za-z]\S*([ \t]+\d+)?[ \t]*(\n|$)", re.ASCII)
"""First line of such a file; one dialect adds the GPUs of a node."""
_TYPES = {
    "A100": "a100-sxm-80gb",
    "A800": "a100-sxm-80gb",
    "H100": "h100-sxm",
    "H800": "h800",
    "H200": "h200-sxm",
}
"""Types in the catalog; the A800 differs from the A100 in its NVLinks only, which the text has."""


class _Words:
    """Words of a text in order, with their lines."""

    def __init__(self, text: str, where: str) -> None:
        self._left: Iterator[tuple[int, str]] = (
            (number, word)
            for number, line in enumerate(text.splitlines(), 1)
            for word in line.split()
        )
        self.where = where
        self.line = 1

    def next(self, meaning: str) -> str:
        """Give the next word."""
        found = next(self._left, None)
        if found is None:
            raise InputError(f"{self.where}: line {self.line}: ends early; needed: {meaning}")
        self.line, word = found
        return word

    def refuse(self, meaning: str, problem: str) -> InputError:
        """Give the error for the word that was read last."""
        return InputError(f"{self.where}: line {self.line}: {meaning}: {problem}")

    def whole(self, meaning: str, low: int, high: int) -> int:
        """Give the next word as a whole number."""
        word = self.next(meaning)
        value = int(word) if word.isascii() and word.isdigit() and len(word) < 12 else -1
        if not low <= value <= high:
            raise self.refuse(meaning, f"got {shorten(word)}; allowed: {low} to {high}")
        return value

    def rest(self) -> str | None:
        """Give the next word, if there is one."""
        found = next(self._left, None)
        if found is not None:
            self.line = found[0]
        return found[1] if found else None


def from_simai_text(text: str, file: NetworkFile) -> Topology:
    """Topology of a text of SimAI.

    Raises
    ------
    InputError : a word that is missing or not allowed, with its line, or a bad network.
    """
    name, where, device = file
    words = _Words(text, where)
    nodes = words.whole("number of nodes", 1, MOST_NODES)
    words.whole("GPUs per server", 1, MOST_NODES)
    nv_switches = words.whole("number of NVSwitches", 0, nodes)
    switches = words.whole("number of switches", 0, nodes)
    links = words.whole("number of links", 0, MOST_LINKS // 2)
    device_type = _device(words, words.next("type of GPU"), device)
    if len(text[: text.find("\n")].split()) == 7:
        words.whole("GPUs of a node", 1, MOST_NODES)
    draft = Draft(name, where)
    roles = _roles(words, nodes, nv_switches, switches)
    for number, role in enumerate(roles):
        if role:
            draft.switch(f"{role}{number}")
        else:
            draft.device(f"gpu{number}", device_type)
    for _ in range(links):
        source = words.whole("source of a link", 0, nodes - 1)
        target = words.whole("target of a link", 0, nodes - 1)
        place = f"line {words.line}"
        bandwidth = _quantity(words, "bandwidth", parse_bandwidth, 1.0, 1e18)
        latency = _quantity(words, "latency", parse_seconds, 0.0, 100.0)
        _error_rate(words)
        if nv_switches and {roles[source], roles[target]} == {"", "switch"}:
            gpu, switch = (source, target) if roles[target] else (target, source)
            port_name = f"gpu{gpu}/port{switch}"
            if draft.find(port_name) is not None:
                problem = f"got a second link between {gpu} and {switch}; allowed: one, with the "
                raise draft.refuse(place, f"{problem}bandwidth of all its cables")
            port = draft.switch(port_name, place)
            draft.cable(gpu, port, bandwidth, 0.0, place)
            source, target = port, switch
        draft.cable(source, target, bandwidth, latency, place)
    extra = words.rest()
    if extra is not None:
        problem = f"got {shorten(extra)} after {links} links; allowed: as many as line 1 says"
        raise words.refuse("links", problem)
    return draft.build()


def _device(words: _Words, text: str, device: Device | None) -> Device:
    if device is not None:
        return device
    if text not in _TYPES:
        hint = f"{', '.join(_TYPES)}, or a type of device given besides"
        raise words.refuse("type of GPU", f"got {shorten(text)}; allowed: {hint}")
    return DeviceTypes({}, None).get(_TYPES[text])


def _roles(words: _Words, nodes: int, nv_switches: int, switches: int) -> list[str]:
    roles = [""] * nodes
    for role, count in (("nvswitch", nv_switches), ("switch", switches)):
        for _ in range(count):
            number = words.whole(f"id of a {role}", 0, nodes - 1)
            if roles[number]:
                raise words.refuse(f"id of a {role}", f"got {number} twice; allowed: once")
            roles[number] = role
    return roles


def _quantity(
    words: _Words, meaning: str, parse: Callable[[object], float], low: float, high: float
) -> float:
    word = words.next(f"{meaning} of a link")
    try:
        value = parse(word)
    except ValueError as error:
        raise words.refuse(meaning, str(error)) from None
    if not low <= value <= high:
        raise words.refuse(meaning, f"got {shorten(word)}; allowed: {low:g} to {high:g}")
    return value


def _error_rate(words: _Words) -> None:
    word = words.next("error rate of a link")
    try:
        rate = float(word)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise words.refuse("error rate", f"got {shorten(word)}; allowed: 0 to 1")
