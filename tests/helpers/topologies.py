"""Small networks, and slow, obvious twins of what is computed on them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np

from nest.inputs import Device, load_device
from nest.network import Topology
from nest.network.hierarchy import Hierarchy
from nest.network.topology import Draft

H100 = load_device("h100-sxm")
A100 = load_device("a100-sxm-80gb")

Cable = tuple[str, str, float, float]


def network(devices: Iterable[str], cables: Iterable[Cable], device: Device = H100) -> Topology:
    """Topology of devices by name and of cables; all other names are switches."""
    draft = Draft("net", "net")
    names = {name: draft.device(name, device) for name in devices}
    for one, other, bandwidth, latency in cables:
        for name in (one, other):
            if name not in names:
                names[name] = draft.switch(name)
        draft.cable(names[one], names[other], bandwidth, latency)
    return draft.build()


def random_network(draw: random.Random, most: int = 9) -> Topology:
    """Connected network of a few devices and switches, with links in both directions or in one."""
    count = draw.randint(2, most)
    draft = Draft("random", "random")
    devices = draw.randint(1, count)
    kinds = [True] * devices + [False] * (count - devices)
    draw.shuffle(kinds)
    nodes = [
        draft.device(f"d{n}", H100) if kind else draft.switch(f"s{n}")
        for n, kind in enumerate(kinds)
    ]
    seen = set()
    for n in range(1, count):
        other = draw.randrange(n)
        seen |= {(n, other), (other, n)}
    for _ in range(draw.randint(0, 2 * count)):
        one, other = draw.sample(range(count), 2)
        seen.add((one, other))
        if draw.random() < 0.7:
            seen.add((other, one))
    for one, other in sorted(seen):
        draft.link(nodes[one], nodes[other], draw.choice([1e9, 2e9]), draw.choice([1e-6, 3e-6]))
    return draft.build()


def as_networkx(topology: Topology) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(topology.nodes)))
    for link in range(len(topology.source_E)):
        graph.add_edge(
            int(topology.source_E[link]), int(topology.target_E[link]), number=link,
            latency=float(topology.latency_E[link]))
    return graph


class Paths:
    """All shortest paths, one by one."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.graph = as_networkx(topology)
        self.between = cache(self._between)

    def _between(self, source: int, target: int) -> list[list[int]]:
        return list(nx.all_shortest_paths(self.graph, source, target))

    def shares(self, source: int, target: int) -> dict[int, float]:
        """Share of the traffic between two nodes on each link: even at every node."""
        found: dict[int, float] = {}
        for path in self.between(source, target):
            share = 1.0
            for node in path[:-1]:
                share /= len({onward[1] for onward in self.between(node, target)})
            for one, other in zip(path, path[1:], strict=False):
                link = self.graph.edges[one, other]["number"]
                found[link] = found.get(link, 0.0) + share
        return found

    def loads(self, messages: Iterable[tuple[int, int, float]]) -> np.ndarray:
        """Bytes on each link for messages between device numbers."""
        total = np.zeros(len(self.topology.source_E))
        for source, target, size in messages:
            if source != target:
                ends = self.topology.device_N[[source, target]]
                for link, share in self.shares(int(ends[0]), int(ends[1])).items():
                    total[link] += share * size
        return total

    def latencies(self, source: int, target: int) -> set[float]:
        """Seconds of each shortest path between two device numbers."""
        one, other = (int(node) for node in self.topology.device_N[[source, target]])
        edges = self.graph.edges
        return {
            sum(edges[a, b]["latency"] for a, b in zip(path, path[1:], strict=False))
            for path in self.between(one, other)
        }


def permutation(draw: random.Random, choices: Sequence[Sequence[int]]) -> list[int] | None:
    """For each device another one of its choices, none twice; None where there is no such way."""
    graph = nx.Graph()
    left = [("from", n) for n in range(len(choices))]
    edges = [(("from", n), ("to", other)) for n, some in enumerate(choices) for other in some]
    draw.shuffle(edges)
    graph.add_nodes_from(left)
    graph.add_edges_from(edges)
    matched = nx.bipartite.hopcroft_karp_matching(graph, left)
    if not all(node in matched for node in left):
        return None
    return [matched[node][1] for node in left]


def check_levels(topology: Topology, found: Hierarchy, draw: random.Random) -> None:
    """What a hierarchy says holds on the graph, for all pairs and for some permutations."""
    paths = Paths(topology)
    cluster, order = found.cluster, found.order_N
    count = len(order)
    assert cluster.size == count and sorted(order.tolist()) == list(range(count))
    sizes = cluster.group_sizes
    level = {
        (a, b): next(v for v, g in enumerate(sizes) if a // g == b // g)
        for a in range(count) for b in range(count) if a != b
    }
    for (a, b), v in level.items():
        seconds = paths.latencies(int(order[a]), int(order[b]))
        np.testing.assert_allclose(list(seconds), cluster.levels[v].latency, rtol=1e-12)
    for v in range(len(sizes)):
        choices = [[b for b in range(count) if level.get((a, b)) == v] for a in range(count)]
        if not all(choices):
            continue  # a level of one group
        for _ in range(3):
            peers = permutation(draw, choices)
            assert peers is not None
            messages = [(int(order[a]), int(order[b]), 1.0) for a, b in enumerate(peers)]
            seconds = (paths.loads(messages) / topology.bandwidth_E).max()
            np.testing.assert_allclose(
                1 / seconds, cluster.resolved_bandwidth[v], rtol=1e-12, err_msg=f"level {v}")


def put(folder: Path, content: str | dict | bytes, name: str) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
    return path
