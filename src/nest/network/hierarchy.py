"""Graphs that are hierarchies: the same network as levels, and levels as a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nest.errors import LimitError
from nest.inputs import Cluster, Level
from nest.network.planes import TOLERANCE, Tier, Uneven, orient, planes, tiers
from nest.network.routing import Routes
from nest.network.topology import Draft, Flags, Ints, Topology
from nest.units import shorten

MOST_LEVELS = 8  # of a cluster
MOST_ROUTED = 20_000_000
"""Most devices times links for which unused links are found by routing."""


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A graph as a cluster with levels.

    Attributes
    ----------
    cluster : its levels, innermost first; their bandwidth is the resolved one.
    order_N : int64, shape (N,)
        Number in the topology of each device of the cluster, so that groups are consecutive.
    """

    cluster: Cluster
    order_N: Ints


def levels_of(topology: Topology) -> Hierarchy | None:
    """Levels of a graph that is a hierarchy, None for every other one; see `hierarchy_of`.

    Parameters
    ----------
    topology : the network.
    """
    try:
        return hierarchy_of(topology)
    except LimitError:
        return None


def hierarchy_of(topology: Topology) -> Hierarchy:
    """Levels of a graph that is a hierarchy.

    All devices are of one type. Groups of equal size are nested, and traffic leaves them over links
    with equal capacity per device (the conditions are in `nest.network.planes`). The bandwidth of
    a level is the rate of one device to a peer that it meets there while all devices send: that of
    the narrowest link on the path, shared evenly, with equal paths added up. Its latency is the sum
    over the links of a path. Tiers that join nothing (a port) count in both, but are not a level.
    Links that no shortest path uses are ignored; in large networks only those to switches that lead
    nowhere are.

    Parameters
    ----------
    topology : the network.

    Raises
    ------
    LimitError : the graph is not a hierarchy; the message says why.
    """
    try:
        return _recognised(topology)
    except Uneven as why:
        names = [
            shorten(topology.nodes[node])[1:-1] if node < len(topology.nodes) else "a direct link"
            for node in why.nodes
        ]
        reason = why.reason.format(*names) if names else why.reason
        raise LimitError(
            f"{topology.name}: the network is no hierarchy ({reason}); supported: "
            "devices of one type in nested groups of equal size, with equal links in each tier, "
            "as in fat trees, spine-leaf fabrics and NVLink domains"
        ) from None


def _recognised(topology: Topology) -> Hierarchy:
    if len(topology.types) != 1:
        names = ", ".join(shorten(device.name)[1:-1] for device in topology.types[:5])
        raise Uneven(f"{len(topology.types)} types of device: {names}")
    everything = np.ones(len(topology.source_E), dtype=np.bool_)
    try:
        return _levels(topology, everything)
    except Uneven:
        if len(topology.device_N) * len(everything) > MOST_ROUTED:
            raise
        used = _used(topology)
        if used.all():
            raise
    return _levels(topology, used)


def _used(topology: Topology) -> Flags:
    """Links on shortest paths between devices, bool of shape (E,)."""
    devices = len(topology.device_N)
    sources, targets = (ends.ravel() for ends in np.indices((devices, devices)))
    return Routes(topology).loads(sources, targets, np.ones(len(sources))) > 0


def _levels(topology: Topology, used_E: Flags) -> Hierarchy:
    links = np.flatnonzero(used_E)
    if not len(links):
        raise Uneven("no links")
    back = topology.links(topology.target_E[links], topology.source_E[links])
    alone = (back < 0) | ~used_E[back]
    if alone.any():
        link = links[alone][0]
        raise Uneven(
            "a link that exists or is used in one direction only, from {} to {}",
            int(topology.source_E[link]),
            int(topology.target_E[link]),
        )
    once = topology.source_E[links] < topology.target_E[links]
    pairs = np.stack([links[once], back[once]], axis=1)
    pairs = pairs[_leading_somewhere(topology, pairs)]
    ends = np.stack([topology.source_E[pairs[:, 0]], topology.target_E[pairs[:, 0]]], axis=1)
    rates, delays = topology.bandwidth_E[pairs], topology.latency_E[pairs]
    cables = orient(ends, rates, delays, topology.device_N, len(topology.nodes))
    joining: list[Tier] = []
    for part in planes(cables, topology.device_N):
        _nest(joining, tiers(part, topology.device_N))
    return _hierarchy(topology, joining)


def _leading_somewhere(topology: Topology, pairs: Ints) -> Flags:
    """Cables left after repeatedly removing those to switches with one cable."""
    ends = [topology.source_E[pairs[:, 0]].tolist(), topology.target_E[pairs[:, 0]].tolist()]
    at: list[list[int]] = [[] for _ in topology.nodes]
    for cable, (one, other) in enumerate(zip(*ends, strict=True)):
        at[one].append(cable)
        at[other].append(cable)
    left = [len(cables) for cables in at]
    kept = np.ones(len(pairs), dtype=np.bool_)
    # the only device of a network keeps its switch
    alone = len(topology.device_N) == 1
    waiting = [] if alone else [
        node for node, count in enumerate(left) if count == 1 and topology.type_V[node] < 0
    ]
    while waiting:
        node = waiting.pop()
        last = [cable for cable in at[node] if kept[cable]]
        if not last:
            continue
        cable = last[0]
        kept[cable] = False
        other = ends[0][cable] + ends[1][cable] - node
        left[other] -= 1
        if left[other] == 1 and topology.type_V[other] < 0:
            waiting.append(other)
    return kept


def _nest(joining: list[Tier], stack: list[Tier]) -> None:
    """Add the tiers of a plane that join more than all planes before.

    Devices that an inner plane joins must meet there over fewer links than in this plane, else
    traffic would be split between both. Groups are either inside those of the inner planes, or
    unions of them: else a path through a neighbour in an inner plane could be equally short.

    Raises
    ------
    Uneven : they do not nest.
    """
    inner = joining[-1] if joining else None
    for tier in stack:
        if tier.size == 1:
            continue
        if inner is not None:
            if tier.layer <= inner.layer:
                reason = "paths over {} are not longer than over {}, so devices use both"
                raise Uneven(reason, tier.node, inner.node)
            small, large = sorted((tier, inner), key=lambda one: one.size)
            if not _inside(small.group_N, large.group_N):
                raise Uneven("the groups of {} and of {} overlap", small.node, large.node)
            if tier.size <= inner.size:
                continue
        last = joining[-1] if joining else None
        if last is not None and tier.size == last.size:
            continue
        if last is not None and tier.bandwidth > last.bandwidth * (1 + TOLERANCE):
            reason = f"{tier.bandwidth / last.bandwidth:.3g} times as fast"
            raise Uneven(f"paths over {{}} are {reason} as those over {{}}, which is nearer",
                         tier.node, last.node)
        joining.append(tier)


def _inside(small_N: Ints, large_N: Ints) -> bool:
    """Whether every small group lies in one large group."""
    first = np.zeros(int(small_N.max()) + 1, dtype=np.int64)
    first[small_N] = large_N
    return bool((first[small_N] == large_N).all())


def _hierarchy(topology: Topology, joining: list[Tier]) -> Hierarchy:
    devices = len(topology.device_N)
    if devices == 1:
        return _single(topology)
    if not joining or joining[-1].size != devices:
        raise Uneven("no tier of switches joins all devices")
    if len(joining) > MOST_LEVELS:
        raise Uneven(f"{len(joining)} tiers, more than {MOST_LEVELS}")
    for tier in joining:
        if not (1 <= tier.bandwidth <= 1e18 and tier.latency <= 1e6):
            reason = f"{tier.bandwidth:.3g} bytes/s and {tier.latency:.3g} s over {{}}"
            raise Uneven(f"{reason}, outside the range of a level", tier.node)
    levels, inner = [], 1
    names = _names(topology, joining)
    for name, tier in zip(names, joining, strict=True):
        real = tier.switches[tier.switches < len(topology.nodes)]
        figures = {
            "base_time": np.unique(topology.base_time_V[real]),
            "ramp": np.unique(topology.ramp_V[real]),
            "in_network_reduction": np.unique(topology.reduces_V[real]),
        }
        for word, values in figures.items():
            if len(values) > 1:
                raise Uneven(f"switches of one tier differ in {word}, such as {{}}", tier.node)
        given = {key: values[0].item() for key, values in figures.items() if len(values)}
        levels.append(
            Level(
                name=name,
                size=tier.size // inner,
                bandwidth=tier.bandwidth,
                latency=tier.latency,
                source="from the graph",
                **given,
            )
        )
        inner = tier.size
    keys = [_first(tier.group_N) for tier in joining]
    order = np.lexsort((np.arange(devices), *keys))
    cluster = Cluster(name=topology.name, device=topology.types[0], levels=tuple(levels))
    return Hierarchy(cluster, order.astype(np.int64))


def _single(topology: Topology) -> Hierarchy:
    """One device: the level is the link to its switch, if there is just one."""
    out = np.flatnonzero(topology.source_E == topology.device_N[0])
    into = np.flatnonzero(topology.target_E == topology.device_N[0])
    if len(out) != 1 or len(into) != 1:
        raise Uneven("one device with several links")
    switch = topology.target_E[out[0]]
    both = [out[0], into[0]]
    level = Level(
        name=_stem(topology.nodes[switch]) or "level0",
        size=1,
        bandwidth=float(topology.bandwidth_E[both].min()),
        latency=float(topology.latency_E[both].sum()),
        base_time=float(topology.base_time_V[switch]),
        ramp=float(topology.ramp_V[switch]),
        in_network_reduction=bool(topology.reduces_V[switch]),
        source="from the graph",
    )
    cluster = Cluster(name=topology.name, device=topology.types[0], levels=(level,))
    return Hierarchy(cluster, np.zeros(1, dtype=np.int64))


def _first(group_N: Ints) -> Ints:
    """Number of the first device of each device's group, so that groups keep their order."""
    first = np.full(int(group_N.max()) + 1, len(group_N), dtype=np.int64)
    np.minimum.at(first, group_N, np.arange(len(group_N)))
    return first[group_N]


def _stem(name: str) -> str:
    return re.sub(r"[\d\s._-]+$", "", name.rpartition("/")[2], flags=re.ASCII)


def _names(topology: Topology, joining: list[Tier]) -> list[str]:
    """Names of the switches of each level without their numbers, or level0 and so on."""
    found = []
    for number, tier in enumerate(joining):
        real = tier.switches[tier.switches < len(topology.nodes)]
        stems = {_stem(topology.nodes[node]) for node in real}
        found.append(stems.pop() if len(stems) == 1 and "" not in stems else f"level{number}")
    return found if len(set(found)) == len(found) else [f"level{n}" for n in range(len(found))]


def graph_of(cluster: Cluster) -> Topology:
    """Graph of a cluster: a switch for each group of each level, linked to those below.

    Devices have the names of the cluster, else names by their group at the innermost level.
    A link out of a group carries the resolved bandwidth of the level times the devices of the
    group. Latencies grow outwards along a path; where those of a cluster fall, the levels from
    there on get separate switches and ports. Levels of one group of the level below are left out:
    no two devices meet there, and the resolved bandwidth of the next level includes theirs.

    Parameters
    ----------
    cluster : with its number of devices.

    Raises
    ------
    InputError : more nodes or links than a topology may have.
    """
    draft = Draft(cluster.name, f"graph of {cluster.name}")
    sizes, rates = cluster.group_sizes, cluster.resolved_bandwidth
    stems = group_stems(cluster)
    names = device_names(cluster)
    devices = [draft.device(name, cluster.device) for name in names]
    below, joined, before = devices, 1, 0.0  # nodes, the devices of each, latency up to there
    for depth, (v, stem) in enumerate(stems.items()):
        level = cluster.levels[v]
        if level.latency < before:
            below, joined, before = _add_ports(draft, devices, depth, rates[v]), 1, 0.0
        switches = [
            draft.switch(
                f"{stem}{number}", "", level.base_time, level.ramp, level.in_network_reduction
            )
            for number in range(-(-cluster.size // sizes[v]))
        ]
        half = (level.latency - before) / 2
        for number, node in enumerate(below):
            above = switches[number * joined // sizes[v]]
            held = min(joined, cluster.size - number * joined)  # the last group may have fewer
            draft.cable(node, above, rates[v] * held, half)
        below, joined, before = switches, sizes[v], level.latency
    return draft.build()


def _add_ports(draft: Draft, devices: list[int], depth: int, bandwidth: float) -> list[int]:
    """Give each device a row of ports, so that paths after them are longer than all before."""
    below = devices
    for place in range(depth):
        ports = [draft.switch(f"port{depth}.{place}.{n}") for n in range(len(devices))]
        for node, port in zip(below, ports, strict=True):
            draft.cable(node, port, bandwidth, 0.0)
        below = ports
    return below


def device_names(cluster: Cluster) -> Sequence[str]:
    """Names of the devices of a cluster: its own, or those by group that its graph has."""
    if cluster.names is not None:
        return cluster.names
    if cluster.links is not None:
        return [f"device{number}" for number in range(cluster.size)]
    level, stem = next(iter(group_stems(cluster).items()))
    inner = cluster.group_sizes[level]
    return [f"{stem}{number // inner}/device{number % inner}" for number in range(cluster.size)]


def group_stems(cluster: Cluster) -> dict[int, str]:
    """Prefixes of the names of groups, by level: those that join several groups of the one below.
    """
    shown = [v for v, level in enumerate(cluster.levels) if level.size > 1] or [0]
    return dict(zip(shown, _stems([cluster.levels[v].name for v in shown]), strict=True))


def _stems(names: list[str]) -> list[str]:
    """Prefixes of switch names from names of levels, distinct before their numbers."""
    found = [_stem(name) for name in names]
    if "" in found or len(set(found)) < len(found) or any("/" in name for name in names):
        return [f"tier{letter}" for letter in "abcdefgh"[: len(names)]]
    return found
