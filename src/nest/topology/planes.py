"""Tiers of switches with equal capacity for every device, where a graph has nothing else.

Shapes: V nodes, C cables, N devices.

A *plane* is a part of the network that shares nothing with the rest but devices: the NVLink
switches of all nodes are one, adapters and the fabric behind them another. The *layer* of a switch
is its distance from the nearest device. A *tier* of a plane is all that lies between two layers.

`tiers` accepts a plane only if, in each tier,

1. every node below has equally many cables up;
2. all cables are alike: one bandwidth up, one down, one latency up, one down;
3. every switch above reaches all units of its group, and each over equally many cables, where a
   unit is what the tiers below have joined and a group what this one joins;
4. all groups have equally many units and switches, and all units equally many nodes below.

Then ways between two devices that meet in tier j go straight up to any switch above it and
straight down, over 2 j cables. By induction over the tiers, even splitting over the next hops
gives all cables of a tier in a unit the same share of what leaves the unit (1 and 3), and of what
reaches it. If every device sends to another one that it meets in tier j, and receives from one, a
cable of tier i <= j carries (devices of a unit) / (cables up of a unit) devices' traffic,
whoever sends to whom. So what a device can deliver follows from the tier alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from nest.topology.topology import Flags, Floats, Ints

TOLERANCE = 1e-12
"""Relative difference at which two figures are the same: they are computed in several ways."""


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
    """What one tier of a plane joins.

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


def planes(cables: Cables, device_N: Ints) -> list[Cables] | None:
    """Cables of each plane, those that join fewer devices at once first.

    None where the switches of some plane do not divide the devices evenly.
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
        if len(members) != len(device_N) or len(np.unique(members)) != len(device_N):
            return None
        found.append(cables.chosen(np.isin(part_V[cables.upper_C], chosen)))
    return found


def tiers(plane: Cables, device_N: Ints) -> list[Tier] | None:
    """Tiers of a plane from the devices on; None where it is not even (1 to 4 above)."""
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
        if joined is None or np.ptp(plane.virtual_V[joined.above].astype(np.int8)):
            return None
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


def _join(part: Cables, below: Ints, unit_V: Ints) -> _Joined | None:
    above, place_C = np.unique(part.upper_C, return_inverse=True)
    unit_C = unit_V[part.lower_C]
    units = int(unit_V[below].max()) + 1
    figures = (part.up_C, part.down_C, part.rise_C, part.fall_C)
    if not all(_alike(values) for values in figures):
        return None
    if not _even(np.bincount(part.lower_C, minlength=len(unit_V))[below]):  # cables up of a node
        return None
    if not _even(np.bincount(unit_V[below], minlength=units)):  # nodes of a unit
        return None
    pairs, cables = np.unique(
        np.stack([place_C, unit_C], axis=1), axis=0, return_counts=True
    )
    reached = np.bincount(pairs[:, 0], minlength=len(above))  # units of a switch
    if not (_even(cables) and _even(reached)):
        return None
    total = units + len(above)
    ends = (pairs[:, 1], units + pairs[:, 0])
    graph = csr_array((np.ones(len(pairs), dtype=np.int8), ends), shape=(total, total))
    label = connected_components(graph, directed=False)[1].astype(np.int64)
    label = np.unique(label, return_inverse=True)[1].astype(np.int64)
    members = np.bincount(label[:units], minlength=label.max() + 1)
    switches = np.bincount(label[units:], minlength=label.max() + 1)
    if not (_even(members) and _even(switches)) or members[0] != reached[0]:
        return None
    return _Joined(
        above=above,
        group_U=label[:units],
        group_X=label[units:],
        units=int(members[0]),
        cables=len(part.lower_C) // units,
        bandwidth=float(min(part.up_C.min(), part.down_C.min())),
        latency=float(part.rise_C[0] + part.fall_C[0]),
    )


def _alike(values: Floats) -> bool:
    return bool(np.ptp(values) <= TOLERANCE * values.max())


def _even(counts: Ints) -> bool:
    return bool(counts.min() == counts.max() and counts.min() > 0)
