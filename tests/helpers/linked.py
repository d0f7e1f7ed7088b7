"""Clusters with links: generated networks in the order given, and clusters of levels as graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.network.collectives import Group
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import aligned, strides
from nest.inputs import Cluster, Links
from nest.network import Topology, arrangements, graph_of, parse_generator


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


class Where(NamedTuple):
    """Groups in the first super-pipeline's block, or of it and its replicas."""

    start: int
    block: int
    outer_dp: int
    stride: int
    distance: int
    size: int
    inner: int
    """Every which device is in a group over replicas."""

    @property
    def shares_alike(self) -> bool:
        """Blocks fill their tile, or devices send to their own replicas only."""
        return self.stride % self.block == 0 or self.inner == self.block


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def nested(size: int, cluster: Cluster) -> bool:
    """Whether a size divides the groups of each level, or is whole groups."""
    return all(size % g == 0 or g % size == 0 for g in cluster.group_sizes)


def places(cluster: Cluster, rng: random.Random, count: int) -> Iterator[Where]:
    """Groups drawn at random whose replicas lie in the levels alike."""
    sizes, n = cluster.group_sizes, cluster.size
    replicas = [(outer, stride) for outer in divisors(n) if outer <= 8
                for stride in strides(n, outer, sizes) if nested(stride, cluster)]
    for _ in range(count):
        outer, stride = rng.choice(replicas)
        blocks = [a for a in range(1, stride + 1) if nested(a, cluster)]
        block = rng.choice(rng.choice((blocks, blocks[-2:])))
        start = rng.choice([k for k in range(0, stride - block + 1, block) if all(
            aligned(r * stride + k, block, sizes) for r in range(outer))])
        distance = rng.choice(divisors(block))
        size, inner = rng.choice(divisors(block // distance)), rng.choice(divisors(block))
        yield Where(start, block, outer, stride, distance, size, inner)


def groups(cluster: Cluster, at: Where) -> tuple[Group, Group]:
    """Those in the block, and those over replicas."""
    return (inside(cluster, at.block, at.distance, at.size, at.start, at.outer_dp, at.stride),
            over(cluster, at.block, at.inner, at.outer_dp, at.stride, at.start))


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
