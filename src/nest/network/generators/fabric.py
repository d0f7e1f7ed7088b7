"""The base of generated networks: the device type, its port, and a faster network in a node.

A device has one port into the fabric. With nodes of more than one device, the devices
``nodeI/gpuJ`` are also linked to the switch ``nodeI``, and the port is a separate node
``nodeI/nicJ`` between device and fabric: paths inside a node are then always shorter than paths
through the fabric.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from nest.errors import InputError
from nest.inputs import Description, Device, link_kinds, load_device
from nest.inputs.base import Number, Whole
from nest.inputs.cluster import Level
from nest.inputs.device import resolve_device
from nest.network.topology import MOST_NODES, Draft, Topology
from nest.units import Bandwidth, Delay

Count = Annotated[Whole, Field(ge=1, le=MOST_NODES)]
Node = Annotated[
    Whole,
    Field(
        ge=1, le=MOST_NODES, description="devices joined by a faster switch of their own; 1 = none"
    ),
]
Ratio = Annotated[Number, Field(ge=1, le=1e6)]
DeviceType = Annotated[Device, BeforeValidator(resolve_device)]


class Generator(Description, ABC):
    """Fields of a type of network, and the network."""

    @abstractmethod
    def topology(self) -> Topology:
        """Give the network.

        Raises
        ------
        InputError : inconsistent fields, such as ``node`` that does not divide the devices, or too
            many nodes or links.
        """


class SwitchedFabric(Generator):
    """Fields of all networks whose devices reach each other through switches."""

    device: DeviceType = Field(
        default_factory=lambda: load_device("h100-sxm"), description="type of the devices"
    )
    bandwidth: Bandwidth = Field(
        50e9,
        description="bytes/s of a device's port, each direction (one 400 Gb/s adapter per GPU: "
        "NVIDIA DGX H100 datasheet)",
    )
    latency: Delay = Field(
        4e-6,
        description="seconds of a device's port: half of 8 us a ring step over one leaf, as the "
        "catalog's dgx-h100",
    )
    switch_latency: Delay = Field(
        1e-6, description="seconds of a link between switches (assumed, as the catalog)"
    )
    node_bandwidth: Bandwidth | None = Field(
        default_factory=lambda given: _inside(given, "bandwidth"),
        description="bytes/s of a device to that switch; default: of the device's kind of link",
    )
    node_latency: Delay | None = Field(
        default_factory=lambda given: _inside(given, "latency"),
        description="seconds of a device to that switch; default: half of a ring step of the "
        "device's kind of link",
    )


def _inside(given: dict[str, Any], figure: str) -> float | None:
    """Figure of the links inside a node of the device that was given; None: not known.

    A latency is a link's, half of a ring step from device to device.
    """
    device = given.get("device")
    link = None if device is None else link_kinds.own_link(device.name)
    if device is None or link is None:
        return None
    level = Level.parse({"name": link, "size": 1, **link_kinds.figures(link, device.name)})
    return level.bandwidth if figure == "bandwidth" else level.latency / 2


def port_rate(given: dict[str, Any], usual: float) -> float:
    """Bytes/s of one link of the device that was given where links join devices directly."""
    device = given.get("device")
    rate = None if device is None else link_kinds.port_rate(device.name)
    return usual if rate is None else rate


def ports(
    draft: Draft, fabric: SwitchedFabric, count: int, node: int, word: str = "node"
) -> list[int]:
    """Add devices with their nodes; return the fabric's attachment point of each.

    Parameters
    ----------
    draft : where they are added.
    fabric : their description.
    count : devices.
    node : devices of a node; 1 = no nodes.
    word : what a node is called.

    Raises
    ------
    InputError : the devices do not fill the nodes, or the links in a node are not known.
    """
    if count % node:
        got = f"got {node}; allowed: a divisor of the {count} devices"
        raise InputError(f"{draft.where}: node: {got}")
    if count > MOST_NODES:
        raise draft.refuse("", f"got {count} devices; allowed: at most {MOST_NODES}")
    if node == 1:
        return [draft.device(f"gpu{number}", fabric.device) for number in range(count)]
    bandwidth, latency = fabric.node_bandwidth, fabric.node_latency
    if bandwidth is None or latency is None:
        field = "node_bandwidth" if bandwidth is None else "node_latency"
        raise draft.refuse(field, f"missing; needed: that of {fabric.device.name}, whose links in "
                           "a node are not in the catalog")
    found = []
    for number in range(count // node):
        switch = draft.switch(f"{word}{number}")
        for place in range(node):
            gpu = draft.device(f"{word}{number}/gpu{place}", fabric.device)
            port = draft.switch(f"{word}{number}/nic{place}")
            draft.cable(gpu, switch, bandwidth, latency)
            draft.cable(gpu, port, fabric.bandwidth, 0.0)
            found.append(port)
    return found
