"""A graph of networkx whose nodes and edges carry NEST's attributes.

Nodes: ``kind`` (device or switch), ``device`` (a type). Edges: ``bandwidth``, ``latency``.
Other attributes, such as positions and colours, are left alone.
"""

from __future__ import annotations

from typing import Any

from nest.inputs import Device
from nest.network.draft import Draft
from nest.network.readers.entries import DeviceTypes, LinkEntry, NodeEntry, add_link, add_node
from nest.network.topology import MOST_LINKS, MOST_NODES, Topology
from nest.units import shorten

_NODE = ("kind", "device")
_LINK = ("bandwidth", "latency")


def from_networkx(graph: Any, name: str, where: str, device: Device | None) -> Topology:
    """Topology of a networkx graph; an edge without direction is a link in both.

    Parameters
    ----------
    graph : a Graph, DiGraph or multigraph of networkx; parallel edges are refused.
    name : of the topology.
    where : name of the file.
    device : type of devices that name none.

    Raises
    ------
    InputError : attributes that are missing or not allowed, or a bad network.
    """
    draft = Draft(name, where)
    for what, count, most in (
        ("nodes", graph.number_of_nodes(), MOST_NODES),
        ("edges", graph.number_of_edges(), MOST_LINKS),
    ):
        if count > most:
            raise draft.refuse(what, f"got {count}; allowed: at most {most}")
    types = DeviceTypes({}, device)
    usual = graph.graph.get("node_default")
    node_default = usual if isinstance(usual, dict) else {}
    usual = graph.graph.get("edge_default")
    edge_default = usual if isinstance(usual, dict) else {}
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
