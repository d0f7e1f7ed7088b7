"""Direct links that an optical switch sets: TopoOpt's topology for a strategy.

W. Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for
Distributed Training Jobs", arXiv:2202.00433 (NSDI'23), section 4 and algorithm 1. The places of a
level (:mod:`nest.planners.demands`) have ``degree`` links each, which share the level's bandwidth.

- Links are divided between rings and pairs by their bytes: d_A = ceil(d x rings / all), and the
  rest. A ring of k members gets permutations i -> i + p, p prime to k (TotientPerms), whose p are
  close to a geometric sequence (SelectPermutations); groups that meet in a place share its d_A
  links by their bytes. The remaining links are rounds of maximum-weight matchings on the bytes of
  pairs, which each round halves where it serves them.
- If places of one group remain unconnected, the first link of each joins all of them in a ring, as
  one all-reduce over all does in the paper.
- Rings use their own links, all permutations equally; rings of other groups and pairs take shortest
  paths, forwarded by the places between.
- *Effective figures*: the level's bandwidth times

      share = (most bytes that a place sends) / (degree x most bytes on a link),

  the time of a switch that joins all pairs over the time of the busiest link; its latency times
  the most hops of a message. A strategy is priced on the cluster with these figures, of its own
  demands under the topology; the figures are no better than those of the switch.

Unlike the paper, whose simulator follows flows, one share describes the whole level.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from nest.errors import InputError
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.model import Chain
from nest.planners.demands import Demands, LevelTraffic, Members
from nest.planners.prices import PlannerPrices, Price

Link = tuple[int, int]

STEPS = 16
"""Steps per power of two that shares are rounded down to while strategies are compared (chosen:
prices of layers are then looked up; what is returned is priced exactly)."""


@dataclass(frozen=True)
class DirectLinks:
    """A level whose places are joined by direct links.

    Parameters
    ----------
    level : of the cluster, 0 innermost; its places are the groups of the level below.
    degree : links of a place.
    """

    level: int
    degree: int

    def check(self, cluster: Cluster) -> None:
        """Check the level and the degree.

        Raises
        ------
        InputError : no such level, a level that joins nothing, or no link; or the cluster is a
            graph, whose links are fixed.
        """
        if cluster.links is not None:
            raise InputError(f"links: got a level of {cluster.name}, a graph that is no hierarchy; "
                             "allowed: a cluster with levels")
        if not 0 <= self.level < len(cluster.levels):
            raise InputError(f"links: level: got {self.level}; allowed: 0 to "
                             f"{len(cluster.levels) - 1}, the levels of {cluster.name}")
        if self.degree < 1:
            raise InputError(f"links: degree: got {self.degree}; allowed: 1 or more")
        if cluster.levels[self.level].size < 2:
            raise InputError(f"links: level: got {self.level}; allowed: a level that joins more "
                             f"than one group ({cluster.levels[self.level].name} joins 1)")


@dataclass
class RingTopology:
    """Links between places: their numbers, and the rings on them."""

    links: Counter[Link] = field(default_factory=Counter)
    rings: dict[Members, list[int]] = field(default_factory=dict)
    """Strides of the permutations of each ring."""

    def __post_init__(self) -> None:
        self._next: dict[int, dict[int, int]] = {}
        """For each target, the next place on the path from every other one."""

    def paths(self, a: int, b: int) -> list[Link]:
        """Links of a shortest path.

        Raises
        ------
        KeyError : there is none.
        """
        if b not in self._next:
            self._next[b] = self._towards(b)
        found = []
        while a != b:
            step = self._next[b][a]
            found.append((a, step))
            a = step
        return found

    def _towards(self, target: int) -> dict[int, int]:
        into: dict[int, list[int]] = {}
        for a, b in sorted(self.links):
            into.setdefault(b, []).append(a)
        found, queue = {target: target}, deque([target])
        while queue:
            here = queue.popleft()
            for before in into.get(here, ()):
                if before not in found:
                    found[before] = here
                    queue.append(before)
        return found

    def load(self, demands: Demands) -> tuple[float, int]:
        """Most bytes on one link, and the most hops of a message."""
        loads: dict[Link, float] = {}
        hops = 0

        def add(a: int, b: int, size: float, direct: bool) -> int:
            path = [(a, b)] if direct else self.paths(a, b)
            for link in path:
                loads[link] = loads.get(link, 0.0) + size
            return len(path)

        for members, size in demands.rings.items():
            laid = members in self.rings
            strides = self.rings[members] if laid else [1]
            for stride in strides:
                for a, b in permutation(members, stride):
                    hops = max(hops, add(a, b, size / len(strides), laid))
        for (a, b), size in demands.pairs.items():
            hops = max(hops, add(a, b, size, False))
        return max((size / self.links[link] for link, size in loads.items()), default=0.0), hops


def permutation(members: Sequence[int], stride: int) -> list[Link]:
    """Links from every member to the one ``stride`` further."""
    count = len(members)
    return [(members[i], members[(i + stride) % count]) for i in range(count)]


def totient_strides(members: int, wanted: int) -> list[int]:
    """Strides of permutations that are one ring each, close to a geometric sequence.

    Parameters
    ----------
    members : of the ring, at least 2.
    wanted : permutations; beyond the distinct ones they repeat (arXiv:2202.00433, algorithms 2
        and 3: strides prime to ``members``, the ratio of the sequence its root of that order).
    """
    free = [p for p in range(1, members) if math.gcd(p, members) == 1]
    found: list[int] = []
    left = list(free)
    for n in range(wanted):
        left = left or list(free)
        target = members ** (n / wanted)
        found.append(min(left, key=lambda p: (abs(p - target), p)))
        left.remove(found[-1])
    return found


def build(demands: Demands, groups: Sequence[Sequence[int]], degree: int) -> RingTopology:
    """Links for the demands of a strategy.

    Parameters
    ----------
    demands : bytes of a step.
    groups : places that may be linked with each other.
    degree : links of a place, in and out.
    """
    found = _assigned(demands, degree, RingTopology())
    graph = nx.DiGraph(list(found.links))
    for group in groups:
        if not (set(group) <= set(graph) and nx.is_strongly_connected(graph.subgraph(group))):
            start = RingTopology()
            for every in groups:
                start.links.update(permutation(every, 1))
            return _assigned(demands, degree - 1, start)
    return found


def _assigned(demands: Demands, degree: int, topology: RingTopology) -> RingTopology:
    """Rings first, then rounds of matchings with the remaining links."""
    free: dict[int, int] = dict.fromkeys(demands.sent(), degree)
    for _, b in demands.pairs:
        free.setdefault(b, degree)
    ringed = sum(len(members) * size for members, size in demands.rings.items())
    paired = sum(demands.pairs.values())
    if ringed and degree:
        share = max(1, math.ceil(degree * ringed / (ringed + paired)))
        meeting: dict[int, float] = {}
        for members, size in demands.rings.items():
            for member in members:
                meeting[member] = meeting.get(member, 0.0) + size
        for members, size in sorted(demands.rings.items(), key=lambda item: (-item[1], item[0])):
            part = max(size / meeting[member] for member in members)
            wanted = min(math.ceil(share * part), *(free[member] for member in members))
            if wanted:
                topology.rings[members] = totient_strides(len(members), wanted)
                for stride in topology.rings[members]:
                    topology.links.update(permutation(members, stride))
                for member in members:
                    free[member] -= wanted
    left: dict[Link, float] = {}
    for (a, b), size in demands.pairs.items():
        left[min(a, b), max(a, b)] = left.get((min(a, b), max(a, b)), 0.0) + size
    while True:
        graph = nx.Graph()
        graph.add_weighted_edges_from(
            (a, b, size) for (a, b), size in sorted(left.items()) if free[a] and free[b])
        matched = sorted((min(pair), max(pair)) for pair in nx.max_weight_matching(graph))
        if not matched:
            return topology
        for a, b in matched:
            topology.links.update([(a, b), (b, a)])
            free[a] -= 1
            free[b] -= 1
            left[a, b] /= 2.0


class ReconfigurablePrices:
    """Prices strategies on the last topology; at first on a full switch."""

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, links: DirectLinks) -> None:
        links.check(cluster)
        self.chain, self.cluster, self.job, self.links = chain, cluster, job, links
        self.topology: RingTopology | None = None
        self._traffic = LevelTraffic(chain, cluster, job, links.level)
        self._known: dict[tuple[int, int], PlannerPrices] = {}
        places = cluster.size // self._traffic.below
        each = cluster.levels[links.level].size
        self.groups = [range(n, n + each) for n in range(0, places, each)]

    def rebuild(self, plan: Configuration) -> bool:
        """Set the links for a strategy; whether any moved."""
        before = self.topology
        self.topology = build(self._traffic.of(plan), self.groups, self.links.degree)
        return before is None or before.links != self.topology.links

    def figures(self, plan: Configuration) -> tuple[float, int]:
        """Share of the level's bandwidth for a strategy, and the most hops of a message."""
        if self.topology is None:
            return 1.0, 1
        demands = self._traffic.of(plan)
        most = max(demands.sent().values(), default=0.0)
        load, hops = self.topology.load(demands)
        return (min(1.0, most / (self.links.degree * load)) if load else 1.0), max(1, hops)

    def price(self, plan: Configuration) -> Price:
        """Seconds and missing bytes, with the share rounded down to a step."""
        share, hops = self.figures(plan)
        step = math.floor(STEPS * math.log2(share))
        if (step, hops) not in self._known:
            cluster = self._changed(2.0 ** (step / STEPS), hops)
            self._known[step, hops] = PlannerPrices(self.chain, cluster, self.job)
        return self._known[step, hops].price(plan)

    def cluster_for(self, plan: Configuration) -> Cluster:
        """The cluster with the effective figures of a strategy."""
        return self._changed(*self.figures(plan))

    def _changed(self, share: float, hops: int) -> Cluster:
        """The level's effective figures; levels further out keep their nominal bandwidth."""
        cluster, number = self.cluster, self.links.level
        levels = list(cluster.levels)
        for n, nominal in enumerate(cluster.nominal_bandwidth):
            levels[n] = levels[n].replace(bandwidth=nominal, oversubscription=None)
        level = levels[number]
        reached = share * cluster.resolved_bandwidth[number]
        levels[number] = level.replace(
            bandwidth=reached / level.efficiency, latency=level.latency * hops)
        name = f"{cluster.name}, {level.name} as {self.links.degree} direct links a group"
        return cluster.replace(levels=tuple(levels), name=name[:200])
