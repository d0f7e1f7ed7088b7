"""NEST's own description of a network: nodes and links, as YAML, JSON or TOML."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from nest.inputs import Description, Device
from nest.inputs.base import Freeze, Name, at_most
from nest.inputs.device import resolve_device
from nest.network.draft import Draft
from nest.network.readers.entries import DeviceTypes, LinkEntry, NodeEntry, add_link, add_node
from nest.network.topology import MOST_LINKS, MOST_NODES, Topology

MOST_TYPES = 100
DeviceType = Annotated[
    Device, BeforeValidator(resolve_device, json_schema_input_type=Device | str | dict[str, Any])
]


class TopologyDescription(Description):
    """A network as a graph."""

    name: Name = Field(description="name of the network")
    device: DeviceType | None = Field(
        None,
        description="type of devices that name none: a catalog name, a mapping, or a mapping with "
        "`base` and changes",
    )
    device_types: Annotated[dict[Name, DeviceType], Freeze, at_most(MOST_TYPES)] = Field(
        default_factory=dict, description="further types, by the name that nodes use"
    )
    nodes: Annotated[tuple[NodeEntry, ...], at_most(MOST_NODES)] = Field(
        description="devices, in device order, and switches"
    )
    links: Annotated[tuple[LinkEntry, ...], at_most(MOST_LINKS // 2)] = Field(
        (), description="links between nodes, each in both directions unless one_way"
    )


def from_description(data: dict[str, Any], where: str, device: Device | None) -> Topology:
    """Topology of the data of a file.

    Parameters
    ----------
    data : the file's mapping.
    where : name of the file.
    device : type of devices that name none, in the place of the file's own.

    Raises
    ------
    InputError : fields that are missing or not allowed, or a bad network.
    """
    given = TopologyDescription.parse(data, where)
    types = DeviceTypes(given.device_types, device or given.device)
    draft = Draft(given.name, where)
    for number, node in enumerate(given.nodes):
        add_node(draft, node, types, f"nodes.{number}")
    for number, link in enumerate(given.links):
        add_link(draft, link, f"links.{number}")
    return draft.build()
