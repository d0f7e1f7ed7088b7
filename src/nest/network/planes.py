"""Tiers of switches with equal capacity for every device, if a graph consists of such tiers.

Shapes: V nodes, C cables, N devices.

A *plane* is a part of the network that shares only devices with the rest: the NVLink
switches of all nodes are one, adapters and the fabric behind them another. The *layer* of a switch
is its distance from the nearest device. A *tier* of a plane is all that lies between two layers.

`tiers` accepts a plane only if, in each tier,

1. every node below has equally many cables up;
2. all cables are equal: one bandwidth up, one down, one latency up, one down;
3. every switch above reaches all units of its group, and each over equally many cables, where the
   tiers below have joined the devices of a unit and this one joins those of a group;
4. all groups have equally many units and switches, and all units equally many nodes below.

Then paths between two devices that meet in tier j go straight up to any switch above it and
straight down, over 2 j cables. By induction over the tiers, even splitting over the next hops
gives all cables of a tier in a unit the same share of the traffic that leaves the unit (1 and 3),
and that reaches it. If every device sends to another one that it meets in tier j, and receives from
one, a cable of tier i <= j carries (devices of a unit) / (cables up of a unit) devices' traffic,
for any pairs. So the rate of a device follows from the tier alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from nest.network.topology import Flags, Floats, Ints

TOLERANCE = 1e-12
"""Relative difference at which two figures are the same: they are computed in several ways."""


class Uneven(Exception):
    """A network is not a hierarchy.

    Parameters
    ----------
    reason : why, with a pair of braces for the name of each of ``nodes``, if there are any.
    nodes : numbers of nodes that show it.
    """

    def __init__(self, reason: str, *nodes: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.nodes = nodes


@dataclass(frozen=True, eq=False)
class Cables:
    """Cables with both directions, oriented from the lower to the upper node.

    Attributes
    ----------
    layer_V : int64, shape (V,)
        Distance from the nearest device.
    virtual_V : bool, shape (V,)
        Nodes put into the middle of cables between two nodes of one layer.
    lower_C, upper_C : int64, shape (C,)
        Nodes; the upper one is a switch, one layer above.
    up_C, down_C : float64, shape (C,)
        Bytes/s.
    rise_C, fall_C : float64, shape (C,)
        Seconds.
    """

    layer_V: Ints
    virtual_V: Flags
    lower_C: Ints
    upper_C: Ints
    up_C: Floats
    down_C: Floats
    rise_C: Floats
    fall_C: Floats

    def chosen(self, kept_C: Flags) -> Cables:
        """Give some of the cables."""
        names = ("lower_C", "upper_C", "up_C", "down_C", "rise_C", "fall_C")
        parts = {name: getattr(self, name)[kept_C] for name in names}
        return Cables(layer_V=self.layer_V, virtual_V=self.virtual_V, **parts)


@dataclass(frozen=True, eq=False)
class Tier:
    """One tier of a plane, and the groups that it joins.

    Attributes
    ----------
    layer : of the switches above.
    group_N : int64, shape (N,)
        Label of each device's group.
    size : devices of a group.
    bandwidth : bytes/s that each device can deliver through this tier, all at once.
    latency : seconds up to this tier and down again, all tiers below included.
    switches : nodes above.
    """

    layer: int
    group_N: Ints
    size: int
    bandwidth: float
    latency: float
    switches: Ints

    @property
    def node(self) -> int:
        """A switch, to name the tier by."""
        return int(self.switches[0])


def orient(ends_C2: Ints, rate_C2: Floats, delay_C2: Floats, device_N: Ints, size: int) -> Cables:
    """Cables by layer, those between two nodes of one layer split by a virtual switch.

    Parameters
    ----------
    ends_C2 : int64, shape (C, 2)
        Nodes of each cable.
    rate_C2, delay_C2 : float64, shape (C, 2)
        Bytes/s and seconds, from the first node to the second and back.
    device_N : int64, shape (N,)
        Nodes of the devices.
    size : number of nodes.
    """
    ones = np.ones(len(ends_C2))
    graph = csr_array((ones, (ends_C2[:, 0], ends_C2[:, 1])), shape=(size, size))
    away = dijkstra(graph, directed=False, indices=device_N, unweighted=True, min_only=True)
    layer_V = np.where(np.isfinite(away), away, 0).astype(np.int64)
    one, other = layer_V[ends_C2[:, 0]], layer_V[ends_C2[:, 1]]
    flip = one > other
    ends = np.where(flip[:, None], ends_C2[:, ::-1], ends_C2)
    rate = np.where(flip[:, None], rate_C2[:, ::-1], rate_C2)
    delay = np.where(flip[:, None], delay_C2[:, ::-1], delay_C2)
    level = one == other
    middle = size + np.arange(int(level.sum()))
    layers = np.concatenate([layer_V, one[level] + 1])
    # a -> middle -> b carries what a -> b does: up at a and down at b
    there, back = rate[level], rate[level][:, ::-1]
    half, half_back = delay[level] / 2, delay[level][:, ::-1] / 2
    steep = ~level
    return Cables(
        layer_V=layers,
        virtual_V=np.arange(len(layers)) >= size,
        lower_C=np.concatenate([ends[steep, 0], ends[level, 0], ends[level, 1]]),
        upper_C=np.concatenate([ends[steep, 1], middle, middle]),
        up_C=np.concatenate([rate[steep, 0], there[:, 0], back[:, 0]]),
        down_C=np.concatenate([rate[steep, 1], there[:, 1], back[:, 1]]),
        rise_C=np.concatenate([delay[steep, 0], half[:, 0], half_back[:, 0]]),
        fall_C=np.concatenate([delay[steep, 1], half[:, 1], half_back[:, 1]]),
    )


def planes(cables: Cables, device_N: Ints) -> list[Cables]:
    """Cables of each plane, those that join fewer devices at once first.

    Raises
    ------
    Uneven : the switches of some plane do not divide the devices evenly.
    """
    size = len(cables.layer_V)
    number_V = np.full(size, -1, dtype=np.int64)
    number_V[device_N] = np.arange(len(device_N))
    high = number_V[cables.lower_C] < 0
    ones = np.ones(int(high.sum()), dtype=np.int8)
    ends = (cables.lower_C[high], cables.upper_C[high])
    graph = csr_array((ones, ends), shape=(size, size))
    part_V = connected_components(graph, directed=False)[1].astype(np.int64)
    low = ~high
    touched = np.unique(
        np.stack([part_V[cables.upper_C[low]], number_V[cables.lower_C[low]]], axis=1), axis=0
    )
    names, counts = np.unique(touched[:, 0], return_counts=True)
    found = []
    for count in np.unique(counts):
        chosen = names[counts == count]
        sets = touched[np.isin(touched[:, 0], chosen), 1].reshape(len(chosen), count)
        members = np.unique(sets, axis=0).ravel()
        _check_parts(members, int(count), device_N)
        found.append(cables.chosen(np.isin(part_V[cables.upper_C], chosen)))
    return found


def _check_parts(members: Ints, count: int, device_N: Ints) -> None:
    """Refuse sets of ``count`` devices that overlap or leave some out."""
    devices, times = np.unique(members, return_counts=True)
    several = devices[times > 1]
    if len(several):
        reason = (
            "{} meets some devices on one link or switch and others on another, as in a ring, a "
            "mesh or on rails"
        )
        raise Uneven(reason, int(device_N[several[0]]))
    if len(devices) < len(device_N):
        other = np.setdiff1d(np.arange(len(device_N)), devices)[0]
        reason = f"groups of unequal size: {count} devices in that of {{}}, not in that of {{}}"
        raise Uneven(reason, int(device_N[devices[0]]), int(device_N[other]))


def tiers(plane: Cables, device_N: Ints) -> list[Tier]:
    """Tiers of a plane from the devices on.

    Raises
    ------
    Uneven : the plane is not even (1 to 4 above).
    """
    size = len(plane.layer_V)
    unit_V = np.full(size, -1, dtype=np.int64)
    unit_V[device_N] = np.arange(len(device_N))
    unit_N = np.arange(len(device_N))
    layer_C = plane.layer_V[plane.upper_C]
    below, found = device_N, []
    bandwidth, latency, devices = np.inf, 0.0, 1
    for layer in range(1, int(layer_C.max()) + 1):
        part = plane.chosen(layer_C == layer)
        joined = _join(part, below, unit_V)
        direct = plane.virtual_V[joined.above]
        if np.ptp(direct.astype(np.int8)):
            reason = "some of one tier are linked to each other, some through {}"
            raise Uneven(reason, int(joined.above[~direct][0]))
        bandwidth = min(bandwidth, joined.bandwidth * joined.cables / devices)
        latency += joined.latency
        devices *= joined.units
        unit_N = joined.group_U[unit_N]
        unit_V[joined.above] = joined.group_X
        below = joined.above
        found.append(Tier(layer, unit_N, devices, bandwidth, latency, below))
    return found


@dataclass(frozen=True, eq=False)
class _Joined:
    above: Ints  # switches
    group_U: Ints  # group of each unit
    group_X: Ints  # group of each switch
    units: int  # of a group
    cables: int  # up, of a unit
    bandwidth: float  # of a cable
    latency: float  # up and down


def _join(part: Cables, below: Ints, unit_V: Ints) -> _Joined:
    above, place_C = np.unique(part.upper_C, return_inverse=True)
    unit_C = unit_V[part.lower_C]
    first_U = below[np.unique(unit_V[below], return_index=True)[1]]
    units = len(first_U)
    _check_alike(part)
    links = np.bincount(part.lower_C, minlength=len(unit_V))[below]
    _check_even(links, below, "links up")
    _check_even(np.bincount(unit_V[below], minlength=units), first_U, "switches in the group")
    pairs, cables = np.unique(
        np.stack([place_C, unit_C], axis=1), axis=0, return_counts=True
    )
    reached = np.bincount(pairs[:, 0], minlength=len(above))  # units of a switch
    _check_even(reached, above, "devices or groups right below")
    _check_even(cables, above[pairs[:, 0]], "links to one group")
    total = units + len(above)
    ends = (pairs[:, 1], units + pairs[:, 0])
    graph = csr_array((np.ones(len(pairs), dtype=np.int8), ends), shape=(total, total))
    label = connected_components(graph, directed=False)[1].astype(np.int64)
    first_G, label = np.unique(label, return_index=True, return_inverse=True)[1:]
    node_G = np.concatenate([first_U, above])[first_G]  # a node of each group
    members = np.bincount(label[:units], minlength=len(node_G))
    switches = np.bincount(label[units:], minlength=len(node_G))
    _check_even(members, node_G, "devices or groups in the group")
    _check_even(switches, node_G, "switches above the group")
    if members[0] != reached[0]:
        shares = f"{reached[0]} of the {members[0]} devices or groups"
        raise Uneven(f"{{}} joins only {shares} that its tier joins", int(above[0]))
    return _Joined(
        above=above,
        group_U=label[:units].astype(np.int64),
        group_X=label[units:].astype(np.int64),
        units=int(members[0]),
        cables=len(part.lower_C) // units,
        bandwidth=float(min(part.up_C.min(), part.down_C.min())),
        latency=float(part.rise_C[0] + part.fall_C[0]),
    )


def _check_alike(part: Cables) -> None:
    """Refuse cables of one tier with different figures."""
    figures = {"bandwidth": (part.up_C, part.down_C), "latency": (part.rise_C, part.fall_C)}
    for word, both in figures.items():
        for values in both:
            if np.ptp(values) > TOLERANCE * values.max():
                ends = [
                    int(node)
                    for cable in (values.argmin(), values.argmax())
                    for node in (part.lower_C[cable], part.upper_C[cable])
                ]
                reason = f"links of one tier differ in {word}, such as {{}} - {{}} and {{}} - {{}}"
                raise Uneven(reason, *ends)


def _check_even(counts: Ints, nodes: Ints, what: str) -> None:
    """Refuse nodes that do not all have equally many of something, and at least one."""
    low, high = int(counts.argmin()), int(counts.argmax())
    if 0 < counts[low] == counts[high]:
        return
    reason = f"{what}: {counts[low]} at {{}}, {counts[high]} at {{}}"
    raise Uneven(reason, int(nodes[low]), int(nodes[high]))
