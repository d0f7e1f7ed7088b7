"""Nodes of unlike devices behind one leaf, with the default links of their kinds."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from nest.errors import InputError
from nest.inputs import Device, link_kinds, load_device
from nest.inputs.base import Problems, at_most
from nest.inputs.cluster import MOST_TYPES, Level, LinkKind
from nest.inputs.sources import CATALOG
from nest.network.draft import Draft
from nest.network.generators.fabric import Generator
from nest.network.topology import MOST_NODES, Topology
from nest.units import Bandwidth, shorten

_GROUP = re.compile(r"(?:(\d{1,6})\s*x\s*)?(\d{1,6})\s*x\s*([A-Za-z][\w.-]*)", re.ASCII)
_HELP = "DEVICES x DEVICE or NODES x DEVICES x DEVICE, such as 8xh100-sxm or 4x8xh100-sxm"


class Mixed(Generator):
    """Fields of `mixed`."""

    nodes: Annotated[tuple[str, ...], Field(min_length=1), at_most(1000)] = Field(
        description=f"nodes that are alike, each {_HELP}"
    )
    link: LinkKind = Field("infiniband", description="kind of the links between nodes")
    bandwidth: Bandwidth | None = Field(
        None, description="bytes/s of a device's port, each direction; default: that of the link"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        for number, text in enumerate(self.nodes):
            try:
                _inside(_group(text)[2])
            except InputError as error:
                problems.append((f"nodes.{number}", str(error)))
        if not problems and len({_group(text)[2] for text in self.nodes}) > MOST_TYPES + 1:
            given = f"got more than {MOST_TYPES + 1} types of device"
            problems.append(("nodes", f"{given}; allowed: {MOST_TYPES + 1}"))
        if problems:
            raise Problems(problems)
        return self

    def topology(self) -> Topology:
        """Give the network.

        Raises
        ------
        InputError : too many devices.
        """
        draft = Draft(f"mixed {','.join(self.nodes)} with default links", "mixed")
        port = _level(link=self.link, bandwidth=self.bandwidth)
        leaf, number = draft.switch("leaf", base_time=port.base_time, ramp=port.ramp), 0
        for text in self.nodes:
            count, size, device = _group(text)
            if count * size > MOST_NODES:
                raise draft.refuse("", f"got {text}; allowed: at most {MOST_NODES} devices")
            inner = _inside(device)
            for _ in range(count):
                switch = draft.switch(f"node{number}", base_time=inner.base_time, ramp=inner.ramp)
                for place in range(size):
                    gpu = draft.device(f"node{number}/gpu{place}", device)
                    nic = draft.switch(f"node{number}/nic{place}")
                    draft.cable(gpu, switch, _rate(inner), inner.latency / 2.0)
                    draft.cable(gpu, nic, _rate(port), 0.0)
                    draft.cable(nic, leaf, _rate(port), port.latency / 2.0)
                number += 1
        return draft.build()


def _group(text: str) -> tuple[int, int, Device]:
    """Nodes, devices of each, and their type.

    Raises
    ------
    InputError : another form, a number of 0, or an unknown device.
    """
    match = _GROUP.fullmatch(text.strip())
    if match is None or not int(match[1] or 1) or not int(match[2]):
        raise InputError(f"got {shorten(text)}; allowed: {_HELP}")
    return int(match[1] or 1), int(match[2]), load_device(match[3], sources=CATALOG)


def _inside(device: Device) -> Level:
    """The links inside a node of a type of device, by the beginning of its name.

    Raises
    ------
    InputError : no kind of link has it.
    """
    link = link_kinds.own_link(device.name)
    if link is None:
        raise InputError(f"got {device.name}, whose links in a node are not known; allowed: "
                         "a network in a file")
    return _level(link=link, bandwidth=link_kinds.device_rate(link, device.name))


def _level(**given: Any) -> Level:
    return Level.parse({"name": "link", "size": 1,
                        **{name: value for name, value in given.items() if value is not None}})


def _rate(level: Level) -> float:
    """Bytes/s that collectives reach."""
    assert level.bandwidth is not None
    return level.bandwidth * level.efficiency


def mixed(*nodes: str, **given: Any) -> Topology:
    """Nodes of unlike devices behind one leaf; one adapter per device.

    Figures are the defaults of the kinds of link (src/nest/catalog/links.yaml), with their sources.

    Parameters
    ----------
    nodes : nodes that are alike, such as `4x8xh100-sxm`: 4 nodes of 8.
    given : other fields of `Mixed`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return Mixed(nodes=nodes, **given).topology()
