"""Node-link JSON, read by networkx.

Format: networkx.org/documentation/stable/reference/readwrite/generated/
networkx.readwrite.json_graph.node_link_data.html. The list of edges is called ``edges`` (networkx
3.4 and later) or ``links`` (before, and in D3).
"""

from __future__ import annotations

import warnings
from typing import Any

from nest.errors import InputError
from nest.inputs import Device
from nest.network.readers.networkx_graph import from_networkx
from nest.network.topology import MOST_LINKS, MOST_NODES, Topology
from nest.units import shorten

MARKS = ("directed", "multigraph", "graph", "edges")
"""Fields that NEST's own format does not have."""


def from_node_link(
    data: dict[str, Any], name: str, where: str, device: Device | None
) -> Topology:
    """Topology of the data of a node-link file.

    Parameters
    ----------
    data : the file's mapping.
    name : of the topology.
    where : name of the file.
    device : type of devices that name none.

    Raises
    ------
    InputError : not node-link data, or a bad network.
    """
    import networkx as nx

    key = "edges" if "edges" in data else "links"
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
    return from_networkx(graph, name, where, device)


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
