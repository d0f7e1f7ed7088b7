"""The cluster of a name in the catalog, of a file with levels, or of a graph."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nest.errors import InputError
from nest.inputs import (
    Cluster,
    Device,
    catalog,
    link_kinds,
    load_cluster,
    load_device,
    read_description,
)
from nest.inputs.arguments import takes
from nest.inputs.files import SUFFIXES
from nest.inputs.filling import fillings
from nest.inputs.sources import CATALOG, FILES, Catalog, Source
from nest.units import format_bandwidth, shorten

if TYPE_CHECKING:
    from nest.network import Arrangement, Topology

Parts = str | Sequence[str]
LONGEST = 200  # characters of a cluster's name
GRAPH_SUFFIXES = (".graphml", ".xml", ".txt")
"""Suffixes of files that can only be graphs; others are identified by their content."""

# A possible generator; for all other names no module of graphs is loaded.
_GENERATOR = re.compile(r"\s*[\w-]{2,}\s*(:|$)")


@takes(sources="sources")
def load_network(
    source: Source | Cluster | Topology,
    *,
    without: Parts | None = None,
    degrade: Parts | None = None,
    device: Source | Device | None = None,
    devices: int | None = None,
    filling: int | None = None,
    sources: Catalog = FILES,
) -> Cluster:
    """Read a cluster with levels, or a graph.

    Parameters
    ----------
    source : all that `load_cluster` takes; the text of a generator, such as
        ``fat-tree:k=8,device=h100-sxm``; a file of any format of `nest.network.read_topology`; or
        a Topology.
    without : parts that have failed, in the syntax of `nest.network.without`; several texts are
        joined. Those of a cluster with levels are named as in `nest.network.graph_of`.
    degrade : parts that are slow, applied after ``without``, in the syntax of
        `nest.network.degrade`.
    device : type of all devices, a name, a file or a Device; None = that of the source. What stays
        of the other type's network is a warning (``UserWarning``).
    devices, filling : number of devices of a cluster with levels, and how many of each group, as in
        `load_cluster`; those of a graph are fixed.
    sources : what a text may name; default: files too.

    Returns
    -------
    Cluster
        With ``order`` and ``names`` if it comes from a graph, and with ``links`` if that is not a
        hierarchy.

    Raises
    ------
    InputError : an unknown name, an unreadable file, a bad network, no such part, or ``devices``
        for a graph.
    """
    device_type = None if device is None else load_device(device, sources=sources)
    graph = _graph(source, device_type, sources)
    numbers = None
    if graph is None:
        cluster = load_cluster(
            source, devices, filling, sources=sources)  # type: ignore[arg-type]
        if device_type is not None:
            _tell(_kept(cluster, device_type))
            cluster = cluster.with_device(device_type)
        if without is None and degrade is None:
            return cluster
        from nest.network import Topology, graph_of

        graph = graph_of(cluster) if cluster.links is None else Topology.of_links(cluster)
        numbers = cluster.numbers
    elif devices is not None or filling is not None:
        count = len(graph.device_N)
        field, given = ("devices", devices) if devices is not None else ("filling", filling)
        raise InputError(
            f"{field}: got {shorten(given)} for a graph of {count} devices; allowed: "
            "none (--without removes devices)"
        )
    if device_type is not None and graph.types != (device_type,):
        _tell(f"{graph.name}: the links keep their rates with {device_type.name} in the place "
              f"of {' and '.join(one.name for one in graph.types)}")
        graph = graph.with_device(device_type)
    return _cluster(graph, numbers, _joined("without", without), _joined("degrade", degrade))


def _tell(note: str) -> None:
    """Warn the caller of `load_network`, whose arguments are checked in between."""
    if note:
        warnings.warn(note, stacklevel=4)


def _kept(cluster: Cluster, device: Device) -> str:
    """A note on the levels of a cluster that do not follow another type of device; or none."""
    if cluster.device.name == device.name:
        return ""
    link = link_kinds.own_link(device.name)
    changed = cluster.with_device(device)
    rates = zip(changed.nominal_bandwidth, changed.levels, strict=True)
    kept = ", ".join(f"{level.name} {format_bandwidth(rate)}" for rate, level in rates
                     if not level.follows(device))
    if not kept:
        return ""
    own = "not known" if link is None else (
        f"{format_bandwidth(link_kinds.device_rate(link, device.name) or 0.0)} (link: {link})")
    return (f"{cluster.name}: levels that keep their bandwidth with {device.name} in the place of "
            f"{cluster.device.name}: {kept}; links in a node of {device.name}: {own}")


def network_data(source: Source, sources: Catalog = FILES) -> dict[str, Any]:
    """Plain data of a cluster; a template of the catalog or of a file stays one, for any size.

    Raises
    ------
    InputError : as of :func:`load_network`.
    """
    graph = _graph(source, None, sources)
    if graph is None:
        return sources.entry(source, "clusters", "cluster").data
    return load_network(graph).as_dict()


def _graph(source: object, device: Device | None, sources: Catalog) -> Topology | None:
    """The graph of a source; None for other sources, which `load_cluster` reads or refuses."""
    if isinstance(source, (Cluster, Mapping)):
        return None
    if isinstance(source, str):
        if catalog.find("clusters", source) is not None:
            return None
        if _GENERATOR.match(source):
            from nest.network import names_generator, parse_generator

            # with fields it is no name of a cluster: the message is about generators
            if names_generator(source) or ("=" in source and not sources.exists(source)):
                return parse_generator(source, device)
    elif not isinstance(source, os.PathLike) or not isinstance(os.fspath(source), str):
        from nest.network import Topology

        return source if isinstance(source, Topology) else None
    path = sources.file(source, (*SUFFIXES, *GRAPH_SUFFIXES))
    if path is None:
        raise _unknown(source, sources)
    return _from_file(path, device)


def _unknown(name: Any, sources: Catalog) -> InputError:
    from nest.network.generators.text import every_name

    known = catalog.suggestions("clusters", os.fspath(name))
    file = "" if sources is CATALOG else f"or a file ({', '.join((*SUFFIXES, *GRAPH_SUFFIXES))}); "
    return InputError(f"cluster: got {shorten(name)}; allowed: {known}; {file}or a network to "
                      f"generate ({', '.join(every_name())})")


def _from_file(path: str | os.PathLike[str], device: Device | None) -> Topology | None:
    if Path(path).suffix.lower() not in SUFFIXES:
        from nest.network import read_topology

        return read_topology(path, device)
    data = read_description(path)
    if "levels" in data:
        return None
    from nest.network.readers.format import describes_graph, topology_from

    if not describes_graph(data):
        return None
    return topology_from(data, path, device)


def _joined(name: str, parts: Parts | None) -> str | None:
    if parts is None or isinstance(parts, str):
        return parts
    texts = list(parts) if isinstance(parts, Iterable) else [parts]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{name}: got {shorten(parts)}; allowed: a text or a list of texts")
    return ",".join(texts)


def _cluster(
    graph: Topology, numbers: Sequence[int] | None, without: str | None, degrade: str | None
) -> Cluster:
    """The cluster of a changed graph; its devices keep their ``numbers`` in the whole one."""
    from nest import network

    name, left = graph.name, graph
    if without is not None:
        left = network.without(left, without)
        name = named_without(name, [without])
    if degrade is not None:
        left = network.degrade(left, degrade)
        name += f" degraded by {' '.join(degrade.split())}"
    found: network.Hierarchy | network.Arrangement | None = network.levels_of(left)
    if found is None and len(left.types) > 1:
        found = network.together(left)
    elif found is None:
        found = next(network.arrangements(left))
    nodes = [left.nodes[node] for node in left.device_N[found.order_N]]
    order = graph.number_V[[graph.index[node] for node in nodes]].tolist()
    if numbers is not None:
        order = [numbers[number] for number in order]
    return found.cluster.replace(
        name=_short(name),
        order=None if order == list(range(len(order))) else order,
        names=nodes,
    )


def named_without(name: str, parts: Sequence[str]) -> str:
    """Name of a cluster without some parts."""
    return _short(f"{name} without {' '.join(','.join(parts).split())}")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3].rstrip()}..."


def other_orders(cluster: Cluster, replicas: Sequence[int]) -> Iterator[tuple[Cluster, int | None]]:
    """A cluster with links, with its devices in other orders that keep near ones together.

    Parameters
    ----------
    cluster : its own order is not repeated; without links there is no other.
    replicas : numbers of super-pipelines that need an order, if there are several types of device.

    Yields
    ------
    The cluster, and how many super-pipelines its order is for; None: any.
    """
    if cluster.links is None:
        return
    from nest.network import Topology, arrangements, mixtures

    topology = Topology.of_links(cluster)
    found: Iterable[tuple[Arrangement, int | None]]
    numbers = cluster.order or range(cluster.size)
    found = ((one, None) for one in arrangements(topology, numbers))
    if cluster.type_numbers is not None:
        found = chain(found, mixtures(topology, replicas))
    most = {field: max(getattr(level, field) for level in cluster.levels)
            for field in ("base_time", "ramp")}
    for one, count in found:
        order = one.order_N.tolist()
        if order != list(range(cluster.size)):
            yield one.cluster.replace(
                levels=[level.replace(**most) for level in one.cluster.levels],
                order=[numbers[device] for device in order]), count


def other_fillings(cluster: Cluster) -> Iterator[tuple[Cluster, int | None]]:
    """A cluster without links whose groups are partly used, with others of their devices.

    Yields
    ------
    The cluster, and None, as :func:`other_orders` does.
    """
    for filling in fillings(cluster.whole_sizes, cluster.size) if cluster.links is None else ():
        other = cluster.with_devices(cluster.size, filling)
        if other.group_sizes != cluster.group_sizes:
            yield other, None
