"""GraphML, read by networkx.

Format: graphml.graphdrawing.org/specification.html; which parts of it are read:
networkx.org/documentation/stable/reference/readwrite/graphml.html (no hyperedges, no ports).
"""

from __future__ import annotations

import warnings
from typing import Any
from xml.etree import ElementTree

from nest.errors import InputError
from nest.inputs import Device
from nest.network.readers.networkx_graph import from_networkx
from nest.network.topology import Topology

NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
ROOTS = ("graphml", f"{{{NAMESPACE}}}graphml")


def from_graphml(
    root: ElementTree.Element, text: str, name: str, where: str, device: Device | None
) -> Topology:
    """Topology of a GraphML text.

    Parameters
    ----------
    root : root element, from `parse_xml`, which has made sure that the text is harmless.
    text : the same as text.
    name : of the topology.
    where : name of the file.
    device : type of devices that name none.

    Raises
    ------
    InputError : not what networkx can read, several graphs, or a bad network.
    """
    return from_networkx(graph_of(root, text, where), name, where, device)


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
