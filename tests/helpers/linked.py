"""Clusters with links: generated networks in the order given, and clusters of levels as graphs."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from nest.costs.network.collectives import Group
from nest.costs.network.fabric import fabric_of
from nest.describe import Cluster, Links
from nest.topology import Topology, arrangements, graph_of, parse_generator


def arranged(network: str | Topology) -> Cluster:
    """A network, or the text of a generator, with links even where it is a hierarchy."""
    topology = parse_generator(network) if isinstance(network, str) else network
    return next(arrangements(topology)).cluster


def linked(cluster: Cluster) -> Cluster:
    """A cluster of levels with the links that these stand for."""
    graph = graph_of(cluster)
    links = Links(
        switches=len(graph.nodes) - cluster.size, source=graph.source_E.tolist(),
        target=graph.target_E.tolist(), bandwidth=graph.bandwidth_E.tolist(),
        latency=graph.latency_E.tolist())
    return cluster.replace(links=links)


def shuffled(topology: Topology, seed: int) -> Topology:
    """The same network with its nodes, and so its devices, numbered at random."""
    order = list(range(len(topology.nodes)))
    random.Random(seed).shuffle(order)
    place = np.argsort(order)
    return Topology(
        topology.name, tuple(topology.nodes[n] for n in order), topology.types,
        topology.type_V[order], place[topology.source_E], place[topology.target_E],
        topology.bandwidth_E, topology.latency_E, topology.base_time_V[order],
        topology.ramp_V[order], topology.reduces_V[order])


def column(value: float) -> NDArray[np.int64]:
    return np.array([value], dtype=np.int64)


def inside(
    cluster: Cluster, block: int, distance: int, size: int, start: int = 0, outer_dp: int = 1,
    stride: int | None = None,
) -> Group:
    """Groups of ``size`` devices, ``distance`` apart, in a block; all-to-all may be asked for."""
    columns = (start, block, outer_dp, stride or cluster.size, distance, size)
    return fabric_of(cluster).inside(*map(column, columns), np.array([True]))


def over(
    cluster: Cluster, block: int, inner: int, outer_dp: int, stride: int, start: int = 0
) -> Group:
    """Groups of every ``inner``-th device of a block and of its replicas."""
    columns = (start, block, outer_dp, stride, inner)
    return fabric_of(cluster).over_replicas(*map(column, columns))
