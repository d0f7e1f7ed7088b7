"""Prices of groups and pairs of devices on a graph of links, for the oracle.

Every message of a pattern is sent along all its shortest paths, link by link; what runs at once is
added up. Nodes are numbered as in :class:`nest.inputs.links.Links`: devices first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import networkx as nx
import numpy as np
from oracle_rules import Outer, Spread, Spreads, shared_level

from nest.costs.network.collectives import Group, Paths
from nest.inputs import Cluster
from nest.inputs.links import Links

Messages = list[tuple[int, int, float]]
"""(from, to, bytes); they run at once."""
Groups = list[list[int]]
"""Devices of each group, member by member."""
Pattern = Callable[[Groups], Messages]
Block = tuple[int, range]
"""Where a block of a tile starts, and which of its devices send to each other."""
Tile = list[tuple[Groups, set[int]]]
"""Groups of each block of a tile, and the devices that send to each other in them."""
Pace = tuple[float, float]
"""Seconds per byte, and seconds."""


class Figures(NamedTuple):
    """Of the groups of a stage, as in :class:`nest.costs.network.collectives.Paths`."""

    per_byte: tuple[float, ...]
    latency: tuple[float, ...]
    ring_per_byte: float
    ring_latency: float
    spread_per_byte: float
    spread_latency: float
    rails_per_byte: float
    rails_latency: float
    tree_per_byte: float
    tree_latency: float
    """Of all steps up, or down."""


class Seen(NamedTuple):
    """A group as prices see it."""

    spread: Spread
    figures: Figures | None = None


def arrays(column: Sequence[Seen], times: int = 1) -> Group:
    """Groups of several choices, each so many times in a row."""
    def array(figures: Sequence[object]) -> np.ndarray:
        return np.repeat(np.array(figures), times, axis=0)

    paths = None
    figures = [seen.figures for seen in column if seen.figures is not None]
    if figures:
        assert len(figures) == len(column)
        paths = Paths(*map(array, zip(*figures, strict=True)))
    inside, even = zip(*(seen.spread for seen in column), strict=True)
    return Group(array(inside), array(even), paths)


def rounded(seconds: float) -> float:
    """12 significant digits."""
    return float(f"{seconds:.11e}")


def worst_of(paces: Sequence[Pace]) -> Pace:
    """The most bytes' seconds and the most latency."""
    return max(per_byte for per_byte, _ in paces), max(latency for _, latency in paces)


def worst(figures: Sequence[Figures]) -> Figures:
    """The largest over the replicas, each figure by itself."""
    each = list(zip(*figures, strict=True))
    levels = [tuple(max(values) for values in zip(*x, strict=True)) for x in each[:2]]
    return Figures(levels[0], levels[1], *(max(x) for x in each[2:]))


def ring(groups: Groups) -> Messages:
    """Each member to the next one."""
    return [(g[t], g[(t + 1) % len(g)], 1.0) for g in groups for t in range(len(g))]


def all_to_all(groups: Groups) -> Messages:
    """Each member to all others."""
    return [(a, b, 1.0 / len(g)) for g in groups for a in g for b in g if a != b]


def joined(groups: Groups, rails: int, parts: int, partner: int | None) -> Messages:
    """Subgroups of ``rails`` members, ``parts`` of them at a time.

    Each member sends to the same one of the subgroup whose number differs in the bit ``partner``;
    None: of the next subgroup.
    """
    found: Messages = []
    for g in groups:
        for t in range(len(g)):
            high, low = divmod(t, rails * parts)
            part, lane = divmod(low, rails)
            to = (part + 1) % parts if partner is None else part ^ partner
            found.append((g[t], g[high * rails * parts + to * rails + lane], 1.0))
    return found


class Tier(NamedTuple):
    """A level that a group crosses."""

    rails: int
    """Members in each subgroup."""
    parts: int


def circle(tier: Tier, groups: Groups) -> Messages:
    """A byte from each subgroup to the next, over all rails."""
    return [(source, target, size / tier.rails)
            for source, target, size in joined(groups, *tier, None)]


def parents(parts: int) -> list[dict[int, int]]:
    """Parent of each part but the root in either of two trees."""
    tree = {}
    for s in range(1, parts):
        bit = next(2**j for j in range(parts) if s >> j & 1)
        above = s - bit + (0 if s & 2 * bit else 2 * bit)
        tree[s] = above if above < parts else s - bit
    if parts % 2:
        return [tree, {(s + 1) % parts: (up + 1) % parts for s, up in tree.items()}]
    return [tree, {parts - 1 - s: parts - 1 - up for s, up in tree.items()}]


def two_trees(tier: Tier, groups: Groups) -> Messages:
    """Half a byte up each of two trees, over all rails."""
    found: Messages = []
    for g in groups:
        for first in range(0, len(g), tier.rails * tier.parts):
            for tree in parents(tier.parts):
                for s, up in tree.items():
                    for lane in range(tier.rails):
                        child, parent = (g[first + x * tier.rails + lane] for x in (s, up))
                        found.append((child, parent, 1 / (2 * tier.rails)))
    return found


def side_by_side(first: int, end: int, head: int, size: int) -> list[Block]:
    """Blocks of a tile on the devices [first, end), whole ones from the ``head``-th device on.

    Devices in front of the whole blocks send to each other as in a block that begins at ``first``,
    those behind as in one that ends at ``end``. Where there is no room for a block nobody sends.
    """
    if end - first < size:
        return []
    found: list[Block] = []
    if head:
        found.append((first, range(first, first + head)))
    left = first + head
    while left + size <= end:
        found.append((left, range(left, left + size)))
        left += size
    if left < end:
        found.append((end - size, range(left, end)))
    return found


class Fabric:
    """The links of a cluster."""

    def __init__(self, links: Links, sizes: tuple[int, ...]) -> None:
        self.sizes, self.devices = sizes, sizes[-1]
        self.ends = list(zip(links.source, links.target, strict=True))
        self.bandwidth, self.latency = links.bandwidth, links.latency
        self.leaving: list[list[int]] = [[] for _ in range(self.devices + links.switches)]
        for e, (source, _) in enumerate(self.ends):
            self.leaving[source].append(e)
        graph = nx.DiGraph(self.ends)
        self.hops = [nx.shortest_path_length(graph, target=d) if len(graph) else {d: 0}
                     for d in range(self.devices)]
        self._routes: dict[tuple[int, int], tuple[dict[int, float], float]] = {}
        self._known: dict[tuple[object, ...], Figures] = {}
        self._pairs: dict[tuple[int, int], Pace] = {}

    # ------------------------------------------------------------ messages

    def route(self, node: int, device: int) -> tuple[dict[int, float], float]:
        """Part of a message that passes each link on its way, and the largest latency."""
        if node == device:
            return {}, 0.0
        if (node, device) not in self._routes:
            hops = self.hops[device]
            nearer = [e for e in self.leaving[node]
                      if hops.get(self.ends[e][1], -1) == hops[node] - 1]
            share, latency = dict.fromkeys(nearer, 1.0 / len(nearer)), 0.0
            for e in nearer:
                beyond, rest = self.route(self.ends[e][1], device)
                for link, part in beyond.items():
                    share[link] = share.get(link, 0.0) + part / len(nearer)
                latency = max(latency, self.latency[e] + rest)
            self._routes[node, device] = share, latency
        return self._routes[node, device]

    def pace(self, own: Messages, every: Messages) -> Pace:
        """What ``own`` messages take while ``every`` message is under way."""
        load = [0.0] * len(self.ends)
        for source, target, size in every:
            for e, part in self.route(source, target)[0].items():
                load[e] += size * part
        seconds = latency = 0.0
        for source, target, _ in own:
            share, lasts = self.route(source, target)
            seconds = max(seconds, *(load[e] / self.bandwidth[e] for e in share))
            latency = max(latency, lasts)
        return rounded(seconds), latency

    # ------------------------------------------------------------ groups

    def tile(self, start: int, size: int, devices: int) -> list[Block]:
        """Blocks like this one in the groups of the level that holds it, on so many devices."""
        g = min(g for g in self.sizes if start // g == (start + size - 1) // g)
        head = start % g % size
        return [block for first in range(0, devices, g)
                for block in side_by_side(first, min(first + g, devices), head, size)]

    def together(self, pattern: Pattern, own: Groups, every: Tile) -> Pace:
        """What the pattern takes in groups ``own`` while the whole tile does the same.

        Devices that are left over send only to each other what they would in all of their block.
        """
        sent = [(source, target, size) for groups, talking in every
                for source, target, size in pattern(groups)
                if source in talking and target in talking]
        return self.pace(pattern(own), sent)

    def figures(self, own: Groups, every: Tile, seen: Spread) -> Figures:
        """Of the groups ``own`` while the whole tile does the same."""
        inside, even = seen
        nothing = (0.0,) * len(inside)
        if len(own[0]) == 1:
            return Figures(nothing, nothing, *(0.0,) * 8)
        around = self.together(ring, own, every)
        crossed = self.crossed(own)
        rings, trees = self.on_rails(crossed, own, every)
        tiers: list[Pace] = []
        for rails, members in zip((1, *inside[:-1]), inside, strict=True):
            if members == rails:
                tiers.append((0.0, 0.0))
            elif even:
                tiers.append(self.tier(own, every, rails, members // rails))
            else:
                tiers.append((min(around[0], rings[0]), 0.0))
        per_byte, latency = zip(*tiers, strict=True)
        spread = self.together(all_to_all, own, every)
        return Figures(per_byte, latency, *around, *spread, *rings, *trees)

    def crossed(self, own: Groups) -> list[Tier]:
        """Levels at which members of a group are in several subgroups.

        Where subgroups differ in their members, equal parts of them count, as large as can be.
        """
        found: list[Tier] = []
        rails = 1
        for g in self.sizes:
            members = Counter((n, d // g) for n, group in enumerate(own) for d in group).values()
            inside = math.gcd(*members)
            if inside > rails:
                found.append(Tier(rails, inside // rails))
            rails = inside
        return found

    def on_rails(self, crossed: list[Tier], own: Groups, every: Tile) -> tuple[Pace, Pace]:
        """Rings on rails; and the double tree, with the latency of all steps up."""
        def shares(groups: Groups) -> Messages:
            return [(source, target, size if tier is crossed[-1] else size * (1 - 1 / tier.parts))
                    for tier in crossed for source, target, size in circle(tier, groups)]

        circles = [self.together(partial(circle, tier), own, every) for tier in crossed]
        rails = worst_of([*circles, self.together(shares, own, every)])
        trees = [self.together(partial(two_trees, tier), own, every) for tier in crossed]
        steps = sum(math.ceil(math.log2(tier.parts)) * latency
                    for tier, (_, latency) in zip(crossed, trees, strict=True))
        return rails, (max(rails[0], worst_of(trees)[0]), steps)

    def tier(self, own: Groups, every: Tile, rails: int, parts: int) -> Pace:
        """Halving and doubling among a power of two of subgroups, a ring among others."""
        def step(partner: int | None) -> Pace:
            pattern = partial(joined, rails=rails, parts=parts, partner=partner)
            return self.together(pattern, own, every)

        if parts & (parts - 1):
            per_byte, latency = step(None)
            return per_byte / rails, latency
        rounds = [step(2**j) for j in range(parts.bit_length() - 1)]
        sent = sum(per_byte / 2 ** (j + 1) for j, (per_byte, _) in enumerate(rounds))
        return (sent / ((parts - 1) / parts) / rails,
                sum(latency for _, latency in rounds) / len(rounds))

    def inner(self, start: int, size: int, distance: int, number: int, spread: Spread) -> Figures:
        """Groups of ``number`` devices, ``distance`` apart, inside a block."""
        key = ("inner", start, size, distance, number, spread)
        if key not in self._known:
            span = distance * number

            def groups(p: int) -> Groups:
                return [[p + b * span + q + distance * t for t in range(number)]
                        for b in range(size // span) for q in range(distance)]

            every = [(groups(p), set(talking))
                     for p, talking in self.tile(start, size, self.devices)]
            self._known[key] = self.figures(groups(start), every, spread)
        return self._known[key]

    def replicas(
        self, outer: Outer, start: int, size: int, distance: int, spread: Spread
    ) -> Figures:
        """Groups of every ``distance``-th device of a block and of its replicas.

        The tile is that of the first super-pipeline; all others have it at the same places.
        """
        key = ("replicas", outer.outer_dp, outer.stride, start, size, distance, spread)
        if key not in self._known:
            origins = [r * outer.stride for r in range(outer.outer_dp)]

            def groups(k: int) -> Groups:
                return [[o + k + q + distance * t for o in origins for t in range(size // distance)]
                        for q in range(distance)]

            every = [(groups(k), {o + d for o in origins for d in talking})
                     for k, talking in self.tile(start, size, outer.stride)]
            self._known[key] = self.figures(groups(start), every, spread)
        return self._known[key]

    def seen(
        self, outer: Outer, start: int, size: int, tp: int, cp: int, folded: tuple[int, int],
        spreads: Spreads, swapped: int = 1,
    ) -> Iterator[Seen]:
        """All groups of a stage, in the order of its spreads; ``folded``: ep and etp."""
        ep, etp = folded
        inner = [("tp", 1, tp), ("swap", tp, swapped), ("cp", tp * swapped, cp // swapped),
                 ("ep", etp, ep), ("etp", 1, etp),
                 ("inner", tp, size // tp), ("inner_expert", ep * etp, size // (ep * etp))]
        found = {
            name: worst([
                self.inner(r * outer.stride + start, size, distance, number, getattr(spreads, name))
                for r in range(outer.outer_dp)])
            for name, distance, number in inner}
        for name, distance in (("dp", tp), ("expert_dp", ep * etp), ("outer", size),
                               ("every", 1)):
            found[name] = self.replicas(outer, start, size, distance, getattr(spreads, name))
        for name, spread in spreads._asdict().items():
            yield Seen(spread, found[name])

    # ------------------------------------------------------------ pairs

    def pair(self, x: int, y: int) -> Pace:
        """From one device to another while every device sends as far.

        Their whole groups of the level below the one that joins them send side by side.
        """
        if x == y:
            return 0.0, 0.0
        if (x, y) not in self._pairs:
            g = (1, *self.sizes)[shared_level(x, y, self.sizes)]
            first, last = x - x % g, y - y % g
            own = [(first + lane, last + lane, 1.0) for lane in range(g)]
            far = last - first
            every = [(i, i + far, 1.0) for i in range(self.devices)
                     if 0 <= i + far < self.devices]
            self._pairs[x, y] = self.pace(own, every)
        return self._pairs[x, y]

    def between(self, outer: Outer, x: int, y: int) -> Pace:
        """The same of the slowest replica, there or back."""
        pairs = [self.pair(r * outer.stride + a, r * outer.stride + b)
                 for r in range(outer.outer_dp) for a, b in ((x, y), (y, x))]
        return max(per_byte for per_byte, _ in pairs), max(latency for _, latency in pairs)


@lru_cache(maxsize=4)
def _fabric(links: Links, sizes: tuple[int, ...]) -> Fabric:
    return Fabric(links, sizes)


def fabric(cluster: Cluster) -> Fabric | None:
    """The links of a cluster; None where its levels are all of its network."""
    return None if cluster.links is None else _fabric(cluster.links, cluster.group_sizes)
