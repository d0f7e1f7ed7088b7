"""Formats with named nodes and links: NEST's own (YAML, JSON, TOML), GraphML and node-link JSON.

The latter two are read by networkx (networkx.org/documentation/stable/reference/readwrite:
graphml.html, without hyperedges and ports; json_graph.node_link_data.html, whose list of edges is
called ``edges`` from networkx 3.4 on and ``links`` before, and in D3). Nodes have the attributes
``kind`` (device or switch) and ``device`` (a type), edges ``bandwidth`` and ``latency``; others,
such as positions and colours, are left alone. GraphML: graphml.graphdrawing.org/specification.html.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple
from xml.etree import ElementTree

from pydantic import BeforeValidator, Field

from nest.errors import InputError
from nest.inputs import Description, Device, catalog
from nest.inputs.base import Flag, Freeze, Name, Number, Whole, at_most
from nest.inputs.device import resolve_device
from nest.network.topology import MOST_LINKS, MOST_NODES, Draft, Topology
from nest.units import Bandwidth, Delay, shorten


class NetworkFile(NamedTuple):
    """A file of a network, besides its content."""

    name: str
    """Of the network, where the content has none."""
    where: str
    """Name of the file, for messages."""
    device: Device | None
    """Type of devices that name none, or of all where the format has one type or none."""


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
            self._found[name] = Device.parse(resolve_device(known), known)
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


# ---------------------------------------------------------------- nest file


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


def from_description(data: dict[str, Any], file: NetworkFile) -> Topology:
    """Topology of the data of a file of NEST's own.

    Raises
    ------
    InputError : fields that are missing or not allowed, or a bad network.
    """
    given = TopologyDescription.parse(data, file.where)
    types = DeviceTypes(given.device_types, file.device or given.device)
    draft = Draft(given.name, file.where)
    for number, node in enumerate(given.nodes):
        add_node(draft, node, types, f"nodes.{number}")
    for number, link in enumerate(given.links):
        add_link(draft, link, f"links.{number}")
    return draft.build()


# ---------------------------------------------------------------- networkx graph


_NODE = ("kind", "device")
_LINK = ("bandwidth", "latency")


def from_networkx(graph: Any, file: NetworkFile) -> Topology:
    """Topology of a Graph, DiGraph or multigraph of networkx; parallel edges are refused.

    An edge without direction is a link in both.

    Raises
    ------
    InputError : attributes that are missing or not allowed, or a bad network.
    """
    where = file.where
    draft = Draft(file.name, where)
    for what, count, most in (
        ("nodes", graph.number_of_nodes(), MOST_NODES),
        ("edges", graph.number_of_edges(), MOST_LINKS),
    ):
        if count > most:
            raise draft.refuse(what, f"got {count}; allowed: at most {most}")
    types = DeviceTypes({}, file.device)
    node_default, edge_default = (usual if isinstance(usual, dict) else {} for usual in map(
        graph.graph.get, ("node_default", "edge_default")))
    names: dict[Any, str] = {}
    for node, given in graph.nodes(data=True):
        field = f"node {shorten(node)}"
        attributes = {**node_default, **given}
        chosen = {key: attributes[key] for key in _NODE if attributes.get(key) not in (None, "")}
        entry = NodeEntry.parse({"name": str(node), **chosen}, f"{where}: {field}")
        names[node] = entry.name
        add_node(draft, entry, types, field)
    for source, target, given in graph.edges(data=True):
        field = f"edge {shorten(source)} - {shorten(target)}"
        attributes = {**edge_default, **given}
        chosen = {key: attributes[key] for key in _LINK if key in attributes}
        ends = {"source": names[source], "target": names[target], "one_way": graph.is_directed()}
        add_link(draft, LinkEntry.parse({**ends, **chosen}, f"{where}: {field}"), field)
    return draft.build()


# ---------------------------------------------------------------- node link


NODE_LINK_MARKS = ("directed", "multigraph", "graph", "edges")
"""Fields that NEST's own format does not have."""


def from_node_link(data: dict[str, Any], file: NetworkFile) -> Topology:
    """Topology of the data of a node-link file.

    Raises
    ------
    InputError : not node-link data, or a bad network.
    """
    import networkx as nx

    key, where = "edges" if "edges" in data else "links", file.where
    nodes = _entries(data, "nodes", MOST_NODES, where)
    edges = _entries(data, key, MOST_LINKS, where)
    known = {node["id"] for node in _named(nodes, ("id",), "nodes", where)}
    if len(known) < len(nodes):
        raise InputError(f"{where}: nodes: got an id twice; allowed: an id of its own for each")
    for number, edge in enumerate(_named(edges, ("source", "target"), key, where)):
        for end in ("source", "target"):
            if edge[end] not in known:
                field = f"{key}.{number}.{end}"
                got = shorten(edge[end])
                raise InputError(f"{where}: {field}: got {got}; allowed: the id of a node")
    directed = data.get("directed", False)
    if not isinstance(directed, bool):
        raise InputError(f"{where}: directed: got {shorten(directed)}; allowed: true or false")
    # as a multigraph, so that parallel edges stay apart and are refused
    bare = [{k: v for k, v in edge.items() if k != "key"} for edge in edges]
    plain = {"directed": directed, "multigraph": True, "nodes": nodes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # releases differ in which of the two names they look for
        graph = nx.node_link_graph({**plain, "edges": bare, "links": bare})
    return from_networkx(graph, file)


def _entries(data: dict[str, Any], field: str, most: int, where: str) -> list[dict[str, Any]]:
    value = data.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(f"{where}: {field}: got {shorten(value)}; allowed: a list of mappings")
    if len(value) > most:
        raise InputError(f"{where}: {field}: got {len(value)} entries; allowed: at most {most}")
    return value


def _named(
    entries: list[dict[str, Any]], fields: tuple[str, ...], what: str, where: str
) -> list[dict[str, Any]]:
    """The entries, once each has text or a whole number in these fields."""
    for number, entry in enumerate(entries):
        for field in fields:
            value = entry.get(field)
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                place = f"{what}.{number}.{field}"
                allowed = "text or a whole number"
                raise InputError(f"{where}: {place}: got {shorten(value)}; allowed: {allowed}")
        if not all(isinstance(key, str) for key in entry):
            raise InputError(f"{where}: {what}.{number}: allowed: text as field names")
    return entries


# ---------------------------------------------------------------- graphml


NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
ROOTS = ("graphml", f"{{{NAMESPACE}}}graphml")


def graph_of(root: ElementTree.Element, text: str, where: str) -> Any:
    """The networkx graph of a file of one graph.

    Raises
    ------
    InputError : not what networkx can read, several graphs, or ids that do not fit.
    """
    import networkx as nx

    graphs = [part for part in root if part.tag.rpartition("}")[2] == "graph"]
    if len(graphs) != 1:
        raise InputError(f"{where}: got {len(graphs)} graphs; allowed: one graph")
    check_ids(graphs[0], where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = nx.parse_graphml(text, node_type=str)
    except RecursionError:
        raise InputError(f"{where}: nested too deep") from None
    except (nx.NetworkXException, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: malformed GraphML: {reason}") from None
    return graph


def check_ids(graph: ElementTree.Element, where: str) -> None:
    """Refuse what networkx would merge or make up: a node twice, an edge to no node."""
    seen: set[str] = set()
    parts = list(graph.iter())
    for part in parts:
        if part.tag.rpartition("}")[2] == "node":
            label = part.get("id")
            if label is None:
                raise InputError(f"{where}: node: id: missing; needed: an id for each node")
            if label in seen:
                raise InputError(f"{where}: node {label[:60]!r}: given twice; allowed: once")
            seen.add(label)
    for part in parts:
        if part.tag.rpartition("}")[2] == "edge":
            for end in ("source", "target"):
                if part.get(end) not in seen:
                    got = str(part.get(end))[:60]
                    allowed = "the id of a node"
                    raise InputError(f"{where}: edge: {end}: got {got!r}; allowed: {allowed}")
