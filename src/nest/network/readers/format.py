"""The format of a file, and its topology."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from nest.errors import InputError
from nest.inputs import Device
from nest.inputs.device import resolve_device
from nest.inputs.files import SUFFIXES, parse_text, read_text
from nest.network.readers.fabric import IBNETDISCOVER, SLURM, TOPO_MATRIX
from nest.network.readers.graphs import (
    NODE_LINK_MARKS,
    ROOTS,
    NetworkFile,
    from_description,
    from_networkx,
    from_node_link,
    graph_of,
)
from nest.network.readers.nccl import from_nccl_xml
from nest.network.readers.simulators import ASTRA_MARKS, HEADER, from_astra_yaml, from_simai_text
from nest.network.readers.xml_text import parse_xml
from nest.network.topology import Topology
from nest.units import shorten

FORMATS = (
    "NEST topology (YAML, JSON, TOML), GraphML, node-link JSON, NCCL topology XML, "
    "SimAI topology text, ASTRA-sim network YAML"
)

_WITHOUT_RATES = (
    (SLURM, "Slurm's topology.conf, which has switches and hosts, but neither devices nor rates"),
    (TOPO_MATRIX, "the matrix of `nvidia-smi topo -m`, which has kinds of paths, but no rates; "
     "NCCL writes a file with rates (NCCL_TOPO_DUMP_FILE=topo.xml)"),
    (IBNETDISCOVER, "output of ibnetdiscover, which has switches and adapters, but no devices"),
)
"""What other tools say of a part of a network, by how the text looks."""


def read_topology(
    path: str | os.PathLike[str], device: Device | str | dict[str, Any] | None = None
) -> Topology:
    """Topology of a file, in the format that its suffix and content show.

    Parameters
    ----------
    path : the file, at most 16 MiB.
    device : type of the devices that the file names no type for (of all of them where the format
        has one type or none): a catalog name, a mapping, or a Device.

    Raises
    ------
    InputError : an unreadable or too large file, an unknown format, what the format's reader
        refuses, or a bad network: no device, disconnected, a node linked to itself, a link twice,
        a bandwidth that is zero or missing, a device without a type or memory.
    """
    file = _file(path, _device(device))
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{file.where}: is empty; allowed: {FORMATS}")
    suffix = Path(path).suffix.lower()
    start = text.lstrip()[:1]
    if suffix in SUFFIXES or start == "{":
        suffix = suffix if suffix in SUFFIXES else ".json"
        return _of_data(parse_text(text, suffix, file.where), file)
    if start == "<":
        return _from_xml(parse_xml(text, file.where), text, file)
    if HEADER.match(text):
        return from_simai_text(text, file)
    for mark, what in _WITHOUT_RATES:
        if mark.search(text):
            raise InputError(f"{file.where}: got {what}; allowed: {FORMATS}; or a cluster file "
                             "with levels (`link: nvlink4`, `link: infiniband`), docs/formats.md, "
                             "which `nest probe` makes of it")
    raise InputError(f"{file.where}: got an unknown format; allowed: {FORMATS}")


def _file(path: str | os.PathLike[str], device: Device | None) -> NetworkFile:
    name = Path(path).stem.strip()[:100]
    return NetworkFile(name if name.isprintable() and name else "topology",
                       shorten(os.fspath(path), 300)[1:-1], device)


def _device(given: Device | str | dict[str, Any] | None) -> Device | None:
    if given is None or isinstance(given, Device):
        return given
    try:
        data = resolve_device(given)
    except ValueError as error:
        raise InputError(f"device: {error}") from None
    return Device.parse(data, "device")


def _from_xml(root: Element, text: str, file: NetworkFile) -> Topology:
    if root.tag == "system":
        return from_nccl_xml(root, file)
    if root.tag in ROOTS:
        return from_networkx(graph_of(root, text, file.where), file)
    raise InputError(f"{file.where}: got XML with the root {shorten(root.tag)}; allowed: graphml "
                     "or system (NCCL)")


def describes_graph(data: Mapping[str, Any]) -> bool:
    """Whether the data of a file is meant as a graph."""
    return "nodes" in data or all(mark in data for mark in ASTRA_MARKS)


def topology_from(
    data: Any, path: str | os.PathLike[str], device: Device | None = None
) -> Topology:
    """Topology of the data of a YAML, JSON or TOML file; arguments and errors of `read_topology`.
    """
    return _of_data(data, _file(path, device))


def _of_data(data: Any, file: NetworkFile) -> Topology:
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(f"{file.where}: got {shorten(data)}; allowed: a mapping of fields")
    if all(mark in data for mark in ASTRA_MARKS):
        return from_astra_yaml(data, file)
    if "levels" in data and "nodes" not in data:
        raise InputError(f"{file.where}: got a cluster description with levels; allowed: "
                         f"{FORMATS}")
    nodes = data.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    by_id = isinstance(first, dict) and "id" in first and "name" not in first
    if by_id or any(mark in data for mark in NODE_LINK_MARKS):
        return from_node_link(data, file)
    return from_description(data, file)
