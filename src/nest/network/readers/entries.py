"""The base of formats with named nodes: an entry for each node and link, and device types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from nest.inputs import Description, Device, catalog
from nest.inputs.base import Flag, Name, Number, Whole
from nest.network.draft import Draft
from nest.units import Bandwidth, Delay, shorten


class NodeEntry(Description):
    """A node as files describe it."""

    name: Name = Field(description="name of the node")
    kind: Literal["device", "switch"] = Field(description="device or switch")
    device: Name | None = Field(
        None, description="type of a device: a name in the catalog, or of `device_types`"
    )
    base_time: Delay = Field(
        0.0, description="of a switch: seconds that a collective over it takes whatever its size"
    )
    ramp: Annotated[Number, Field(ge=0, le=1)] = Field(
        0.0, description="of a switch: root of seconds, as the field of a level"
    )
    in_network_reduction: Flag = Field(False, description="the switch adds up all-reduces")


class LinkEntry(Description):
    """A link as files describe it."""

    source: Name = Field(description="node at one end")
    target: Name = Field(description="node at the other end")
    bandwidth: Bandwidth = Field(description="bytes/s of one cable in each direction")
    latency: Delay = Field(description="seconds that a message takes over the link")
    count: Annotated[Whole, Field(ge=1, le=10**6)] = Field(1, description="parallel cables")
    one_way: Flag = Field(False, description="only from source to target")


class DeviceTypes:
    """Types of device by name, each looked up once.

    Parameters
    ----------
    own : types that the file itself describes.
    default : type of devices that name none.
    """

    def __init__(self, own: Mapping[str, Device], default: Device | None) -> None:
        self._found = dict(own)
        self._default = default

    def get(self, name: str | None) -> Device:
        """Give the type of a name.

        Raises
        ------
        ValueError : an unknown name, or none where there is no default.
        """
        if name is None:
            if self._default is None:
                hint = "a type for each device, or one for all of them"
                raise ValueError(f"missing; needed: {hint} (a name from `nest list devices`)")
            return self._default
        if name not in self._found:
            known = catalog.find("devices", name)
            if known is None:
                hint = catalog.suggestions("devices", name)
                raise ValueError(f"got {shorten(name)}; allowed: {hint}")
            self._found[name] = Device.parse(catalog.load("devices", known), known)
        return self._found[name]


def add_node(draft: Draft, entry: NodeEntry, types: DeviceTypes, field: str) -> None:
    """Add a node to a draft.

    Raises
    ------
    InputError : a name twice, a device without a type, or a field that its kind does not have.
    """
    if entry.kind == "switch":
        if entry.device is not None:
            got = shorten(entry.device)
            raise draft.refuse(f"{field}.device", f"got {got} on a switch; allowed: on devices")
        draft.switch(entry.name, field, entry.base_time, entry.ramp, entry.in_network_reduction)
        return
    for name in ("base_time", "ramp", "in_network_reduction"):
        if getattr(entry, name):
            problem = f"got {getattr(entry, name)} on a device; allowed: on switches"
            raise draft.refuse(f"{field}.{name}", problem)
    try:
        device = types.get(entry.device)
    except ValueError as error:
        raise draft.refuse(f"{field}.device", str(error)) from None
    draft.device(entry.name, device, field)


def add_link(draft: Draft, entry: LinkEntry, field: str) -> None:
    """Add a link to a draft, in both directions unless it says otherwise.

    Raises
    ------
    InputError : unknown nodes, a node linked to itself, or a second link.
    """
    source = draft.node(entry.source, f"{field}.source")
    target = draft.node(entry.target, f"{field}.target")
    add = draft.link if entry.one_way else draft.cable
    add(source, target, entry.bandwidth * entry.count, entry.latency, field)
