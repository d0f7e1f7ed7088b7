"""The contents of a picture of a network: a square per device or group of devices, and switches.

Shapes: S squares, V nodes (squares, then switches), C cables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest.errors import InputError
from nest.inputs import Cluster
from nest.network import Topology, graph_of
from nest.units import shorten

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Near = list[dict[int, float]]

MOST_NODES = 600
"""Squares and switches of a picture (chosen: some 20 inches wide)."""
MOST_CABLES = 20_000
"""Lines of a picture (chosen: an SVG of some 3 MB)."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """A network as it is drawn.

    Attributes
    ----------
    each : devices of a square; square n stands for devices n * each and following.
    number_S : int64, shape (S,)
        Numbers of the squares in the graph that the cluster was given as, which is the order of a
        torus that is numbered row by row.
    groups : squares of a group of each level of the cluster, innermost first, where that is more
        than one.
    names : of the switches; none where the cluster has links, which do not name them.
    ends_C : int64, shape (C, 2)
        Nodes that a cable joins, the lower one first.
    bandwidth_C : float64, shape (C,)
        Bytes/s of the faster direction, parallel cables together.
    """

    each: int
    number_S: Ints
    groups: tuple[int, ...]
    switches: int
    names: tuple[str, ...]
    ends_C: Ints
    bandwidth_C: Floats

    @property
    def squares(self) -> int:
        """S."""
        return len(self.number_S)

    def near(self) -> Near:
        """Neighbours of each node, and the bytes/s of the cable to each."""
        return _near(self.squares + self.switches, self.ends_C, self.bandwidth_C)


def sketch(cluster: Cluster) -> Sketch:
    """The contents of a picture of a cluster.

    A port (a switch that only passes the cable of a device on, where the device has other cables)
    is part of the cable; a switch with one cable leads nowhere and is left out. Where there are too
    many nodes, a square stands for the devices of an innermost group and the switches inside it.

    Parameters
    ----------
    cluster : a hierarchy is drawn with a switch for each group of a level.

    Raises
    ------
    InputError : more nodes than :data:`MOST_NODES` or cables than :data:`MOST_CABLES` are left.
    """
    group = next((size for size in cluster.group_sizes if size > 1), 1)
    sizes = [1, group] if 1 < group < cluster.size else [1]
    few = [size for size in sizes if cluster.size // size <= MOST_NODES]
    network = None
    if few:
        network = graph_of(cluster) if cluster.links is None else Topology.of_links(cluster)
        for each in few:
            found = _drawn(cluster, network, each)
            if found.squares + found.switches <= MOST_NODES and len(found.ends_C) <= MOST_CABLES:
                return found
    name = shorten(cluster.name, 200)[1:-1]
    raise InputError(
        f"map: got {name} with {cluster.size:,} devices, too large for a picture; allowed: at most "
        f"{MOST_NODES} devices (or innermost groups of devices) and switches, and {MOST_CABLES:,} "
        "links (--ranks FILE lists which device does what)")


def _drawn(cluster: Cluster, network: Topology, each: int) -> Sketch:
    squares = -(-cluster.size // each)
    node_V = np.empty(len(network.nodes), dtype=np.int64)
    node_V[network.device_N] = np.arange(cluster.size) // each
    switch_W = np.flatnonzero(network.type_V < 0)
    node_V[switch_W] = squares + np.arange(len(switch_W))
    source_E, target_E = node_V[network.source_E], node_V[network.target_E]
    total = squares + len(switch_W)
    between = source_E != target_E
    keys, place = np.unique(source_E[between] * total + target_E[between], return_inverse=True)
    rates = np.zeros(len(keys))
    np.add.at(rates, place, network.bandwidth_E[between])
    ends = np.stack([keys // total, keys % total], axis=1)
    near = _near(total, ends, rates)
    _without_ports(near, squares, each > 1)
    left = [*range(squares), *(v for v in range(squares, total) if near[v])]
    number = {node: place for place, node in enumerate(left)}
    cables = [(number[one], number[other], rate) for one in left
              for other, rate in sorted(near[one].items()) if one < other]
    numbers = np.array(cluster.numbers or range(cluster.size))
    kept = [network.nodes[switch_W[node - squares]] for node in left[squares:]]
    return Sketch(
        each=each, number_S=np.minimum.reduceat(numbers, np.arange(0, cluster.size, each)) // each,
        groups=tuple(size // each for size in cluster.group_sizes if size > each),
        switches=len(kept), names=() if cluster.links else tuple(kept),
        ends_C=np.array([cable[:2] for cable in cables], dtype=np.int64).reshape(-1, 2),
        bandwidth_C=np.array([cable[2] for cable in cables]),
    )


def _near(nodes: int, ends: Ints, rates: Floats) -> Near:
    near: Near = [{} for _ in range(nodes)]
    for (one, other), rate in zip(ends.tolist(), rates.tolist(), strict=True):
        near[one][other] = max(rate, near[one].get(other, 0.0))
        near[other][one] = max(rate, near[other].get(one, 0.0))
    return near


def _without_ports(near: Near, squares: int, grouped: bool) -> None:
    """Make ports parts of cables, and leave out switches that lead nowhere.

    Of grouped devices, switches that join no two groups go as well.
    """
    waiting = list(range(squares, len(near)))
    while waiting:
        node = waiting.pop()
        ends = sorted(near[node])
        first = ends[0] if ends else -1
        if first < 0 or (first < squares and not grouped and len(near[first]) == 1):
            continue
        if len(ends) == 1:
            del near[first][node]
            near[node] = {}
        elif len(ends) == 2 and first < squares <= ends[1]:
            rate = min(near[node].values()) + near[first].get(ends[1], 0.0)
            del near[first][node], near[ends[1]][node]
            near[node] = {}
            near[first][ends[1]] = near[ends[1]][first] = rate
        waiting += [end for end in ends if end >= squares and not near[node]]
