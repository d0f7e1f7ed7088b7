"""Operator graphs in files: JSON with the fields of the description, node-link, GraphML, ONNX.

Only data is read: nothing is unpickled, imported by name or executed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.inputs import read_description
from nest.inputs.arguments import need_path
from nest.inputs.files import read_text
from nest.inputs.operator_graph import OperatorGraph
from nest.network.readers.graphs import graph_of
from nest.network.readers.xml_text import parse_xml
from nest.units import shorten

_SUFFIXES = ".json, .yaml, .yml, .toml, .graphml, .xml or .onnx"


def load_graph(source: str | os.PathLike[str] | Mapping[str, Any]) -> OperatorGraph:
    """Read an operator graph.

    Parameters
    ----------
    source : a file, by its suffix (.json, .yaml, .toml: the fields of the description, or networkx
        node-link data; .graphml, .xml: GraphML; .onnx), or a mapping of one of the first two.
        Nodes of a graph have the fields of an operator as attributes, edges lead from an operator
        to those that take its output; the graph has `name` and `seq_len`.

    Raises
    ------
    InputError : an unreadable file, a cycle, fields that are missing or not allowed, or the extra
        that a format needs is not installed.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source, "graph")
    need_path("graph", source, ", or a mapping")
    path = Path(source)
    where = shorten(os.fspath(source), 300)[1:-1]
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        from nest.model.capture.onnx_model import from_onnx

        return from_onnx(path)
    if suffix in (".graphml", ".xml"):
        return _from_graphml(read_text(path), where, path.stem)
    if suffix in (".json", ".yaml", ".yml", ".toml"):
        return _from_mapping(read_description(path), where)
    raise InputError(f"{where}: got suffix {shorten(suffix)}; allowed: {_SUFFIXES}")


def _from_mapping(data: Mapping[str, Any], where: str) -> OperatorGraph:
    edges = "links" if "links" in data else "edges"
    if "nodes" not in data or edges not in data:
        return OperatorGraph.parse(data, where)
    if data.get("directed") is not True or data.get("multigraph"):
        raise InputError(f"{where}: directed: got {shorten(data.get('directed'))}; allowed: a "
                         "directed graph, multigraph false")
    nodes: dict[str, dict[str, Any]] = {}
    pairs = []
    for number, node in enumerate(_listed(data, "nodes", where)):
        if "id" not in node:
            raise InputError(f"{where}: nodes.{number}.id: missing; needed: an id for each node")
        name = str(node["id"])
        if name in nodes:
            raise InputError(f"{where}: nodes.{number}.id: got {shorten(name)} again; allowed: "
                             "once")
        nodes[name] = {key: value for key, value in node.items() if key != "id"}
    for number, edge in enumerate(_listed(data, edges, where)):
        for end in ("source", "target"):
            if str(edge.get(end)) not in nodes:
                raise InputError(f"{where}: {edges}.{number}.{end}: got "
                                 f"{shorten(edge.get(end))}; allowed: the id of a node")
        pairs.append((str(edge["source"]), str(edge["target"])))
    about = data.get("graph")
    return _ordered(nodes, pairs, about if isinstance(about, Mapping) else {}, where)


def _listed(data: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    found = data[key]
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise InputError(f"{where}: {key}: got {shorten(found)}; allowed: a list of mappings")
    return found


def _from_graphml(text: str, where: str, name: str) -> OperatorGraph:
    graph = graph_of(parse_xml(text, where), text, where)
    if not graph.is_directed():
        raise InputError(f"{where}: edgedefault: got undirected; allowed: directed")
    return _ordered({str(node): dict(fields) for node, fields in graph.nodes(data=True)},
                    [(str(a), str(b)) for a, b in graph.edges()], {"name": name, **graph.graph},
                    where)


def _ordered(
    nodes: Mapping[str, Mapping[str, Any]], pairs: list[tuple[str, str]],
    about: Mapping[str, Any], where: str,
) -> OperatorGraph:
    """The graph with its operators in topological order; the first of equals first."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(pairs)
    numbers = {name: number for number, name in enumerate(nodes)}
    try:
        order = list(nx.lexicographical_topological_sort(graph, key=lambda name: numbers[name]))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(shorten(a)[1:-1] for a, _ in list(nx.find_cycle(graph))[:6])
        raise InputError(f"{where}: edges: got the cycle {cycle}; allowed: none") from None
    operators = [
        {"type": "operator", **nodes[name], "name": name,
         "inputs": sorted(graph.predecessors(name), key=lambda name: numbers[name])}
        for name in order]
    own = {key: about[key] for key in ("name", "seq_len", "bytes_per_parameter", "source")
           if key in about}
    return OperatorGraph.parse({"name": "graph", **own, "operators": operators}, where)
