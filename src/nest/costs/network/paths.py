"""What groups and pairs of devices take on a network that is no hierarchy, by the load of links.

Everybody is taken to do the same at the same time: beside the groups of one block run those of all
blocks of its *tile*, blocks of the same size side by side. A pattern of messages then takes, per
byte, as long as the most loaded link that its own messages pass; routes are those of
:class:`nest.topology.Routes`. On a hierarchy this gives the figures of its levels. See
docs/topologies.md, "Prices on links".

Shapes: N devices, E links, V levels, B blocks of a tile, K blocks asked for. A row of *figures* is
what :class:`nest.costs.network.collectives.Paths` holds of a group, one behind the other: 2 V + 4
columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.costs.network.groups import inner_group, replica_group
from nest.costs.network.placement import shared_level
from nest.costs.network.twins import Twins
from nest.describe.cluster import Cluster
from nest.errors import LimitError
from nest.topology import Routes, Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = TypeVar("Kind", np.int32, np.int64, np.float64)
MOST_DEVICES = 16_384
"""Of a network that is no hierarchy: a table has 4 bytes for each pair of nodes that they hang
from, touched as they send."""
DIGITS = 12
"""Significant digits of a figure, so that places that are alike cost the same bit for bit."""


class Rates(NamedTuple):
    """What messages take."""

    per_byte: Floats
    latency: Floats


class Tile(NamedTuple):
    """Blocks that do the same at the same time; int64, each of shape (B,)."""

    start: Ints
    low: Ints
    """Of the devices of a block, numbered from 0, ``low`` to ``high`` - 1 send to each other."""
    high: Ints


class LinkPrices:
    """Figures of groups and pairs on the links of a cluster.

    Parameters
    ----------
    cluster : one with links.
    twins : what is compiled of all this; None: NumPy does it.
    """

    def __init__(self, cluster: Cluster, twins: Twins | None = None) -> None:
        self.size, self.group_sizes = cluster.size, cluster.group_sizes
        self._messages = _Messages(Topology.of_links(cluster), twins)
        self._shifts: dict[tuple[int, int], Rates] = {}

    # ------------------------------------------------------------ groups

    def inside(
        self, starts: Ints, block: int, distance: int, size: int, spread: bool
    ) -> Floats:
        """Figures of groups of ``size`` devices, ``distance`` apart, that fill blocks.

        Parameters
        ----------
        starts : int64, shape (K,)
            Devices at which aligned blocks of ``block`` devices start.
        spread : whether the figures of all-to-all are asked for; 0 otherwise.

        Returns
        -------
        float64, shape (K, 2 V + 4)
        """
        inside, even = inner_group(self.group_sizes, block, distance, size)
        b, q, t = np.ix_(np.arange(block // (distance * size)), np.arange(distance),
                         np.arange(size))
        members = (b * distance * size + q + distance * t).reshape(-1, size)
        result = np.zeros((len(starts), 2 * len(inside) + 4))
        for rows, tile in self._tiles(starts, block, self.size):
            result[rows] = self._figures(
                tile, starts[rows], members, inside, even, spread, self.size)
        return result

    def over_replicas(
        self, starts: Ints, block: int, inner: int, outer_dp: int, stride: int
    ) -> Floats:
        """Figures of groups of every ``inner``-th device of a block and of its replicas.

        Parameters
        ----------
        starts : int64, shape (K,)
            Starts of blocks in the first super-pipeline.

        Returns
        -------
        float64, shape (K, 2 V + 4)
        """
        q, r, t = np.ix_(np.arange(inner), np.arange(outer_dp), np.arange(block // inner))
        members = (q + stride * r + inner * t).reshape(inner, -1)
        spreads = [replica_group(self.group_sizes, k, block, inner, outer_dp, stride)
                   for k in starts.tolist()]
        result = np.zeros((len(starts), 2 * len(self.group_sizes) + 4))
        for tiled, tile in self._tiles(starts, block, stride):
            for inside, even in sorted({spreads[n] for n in tiled.tolist()}):
                rows = np.array([n for n in tiled.tolist() if spreads[n] == (inside, even)])
                result[rows] = self._figures(
                    tile, starts[rows], members, inside, even, False, stride)
        return result

    def _tiles(self, starts: Ints, block: int, end: int) -> Iterator[tuple[Ints, Tile]]:
        """Blocks with the same tile, by their place in ``starts``; it lies in devices [0, end)."""
        holds = next(g for g in self.group_sizes if g >= block)
        group = np.arange(0, end, holds)
        room = np.minimum(end - group, holds)
        group, room = group[room >= block], room[room >= block]
        offsets = starts % holds % block
        for offset in np.unique(offsets).tolist():
            count = (room - offset) // block
            at = group.repeat(count)
            number = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
            left = room - offset - count * block
            ends = np.flatnonzero(left)
            last = (group + room - block)[ends]
            begins = group if offset else group[:0]
            yield np.flatnonzero(offsets == offset), Tile(
                np.concatenate([at + offset + number * block, last, begins]),
                np.concatenate([0 * at, block - left[ends], 0 * begins]),
                np.concatenate([0 * at + end, 0 * ends + block, 0 * begins + offset]))

    def _figures(
        self, tile: Tile, own: Ints, members: Ints, inside: tuple[int, ...], even: bool,
        spread: bool, stride: int,
    ) -> Floats:
        """Figures of the blocks that start at ``own``; ``members`` of groups, from there on.

        The blocks of groups over replicas are ``stride`` apart.
        """
        size = members.shape[1]
        levels = len(inside)
        result = np.zeros((len(own), 2 * levels + 4))
        if size == 1:
            return result

        def rates(to: Ints, weight: float = 1.0) -> Rates:
            """Each member sends to the members of numbers ``to``, shape (size,) or (size, X)."""
            target = members[:, to].ravel()
            source = np.repeat(members, len(target) // members.size)
            return self._messages.rates(tile, own, stride, source, target, weight)

        t = np.arange(size)
        ring = rates((t + 1) % size)
        result[:, 2 * levels], result[:, 2 * levels + 1] = ring
        if spread:
            others = (t[:, None] + np.arange(1, size)) % size
            result[:, 2 * levels + 2], result[:, 2 * levels + 3] = rates(others, 1.0 / size)
        rails = 1
        for v, count in enumerate(inside):
            children = count // rails
            if children > 1 and not even:
                result[:, v], result[:, levels + v] = ring
            elif children > 1:
                first, s, lane = t // count * count, t % count // rails, t % rails
                if children & (children - 1):
                    exchange = rates(first + (s + 1) % children * rails + lane)
                    result[:, v], result[:, levels + v] = exchange
                else:
                    rounds = children.bit_length() - 1
                    for j in range(rounds):
                        exchange = rates(first + (s ^ 1 << j) * rails + lane)
                        result[:, v] += 0.5 ** (j + 1) * exchange.per_byte
                        result[:, levels + v] += exchange.latency
                    result[:, v] /= (children - 1) / children
                    result[:, levels + v] /= rounds
                result[:, v] /= rails
            rails = count
        return result

    # ------------------------------------------------------------ pairs

    def pair(self, x: int, y: int) -> tuple[float, float]:
        """Seconds a byte and seconds between two devices, each for its group to the other's.

        They are in groups of the level below the lowest that holds both. All devices send over
        the same distance at once.
        """
        if x == y:
            return 0.0, 0.0
        level = shared_level(x, y, self.group_sizes)
        g = self.group_sizes[level - 1] if level else 1
        shift = (y // g - x // g) * g
        if (shift, g) not in self._shifts:
            first = np.arange(max(0, -shift), self.size - max(0, shift), g)
            lane = np.arange(g)
            known = self._messages.rates(
                Tile(first, 0 * first, 0 * first + self.size), first, self.size, lane, lane + shift)
            self._shifts[shift, g] = known
        at = (x // g * g - max(0, -shift)) // g
        per_byte, latency = self._shifts[shift, g]
        return float(per_byte[at]), float(latency[at])


class _Messages:
    """Messages between devices, and what they take where many are under way at once."""

    def __init__(self, topology: Topology, twins: Twins | None) -> None:
        self._routes = Routes(topology, twins and twins.ways)
        self._unrouted = twins.unrouted if twins else _unrouted
        self._rates = twins.rates if twins else _rates
        # Compiled code is for arrays to write to.
        self._bandwidth_E, self._latency_E = topology.bandwidth_E.copy(), topology.latency_E.copy()
        self._lock = Lock()  # outer choices are solved side by side
        self._size = len(topology.device_N)
        if self._size > MOST_DEVICES:
            raise LimitError(
                f"{topology.name}: got {self._size} devices on a network that is no hierarchy; "
                f"allowed: at most {MOST_DEVICES}")
        # 1 + number of the ways known so far, by source * anchors + target; their parts on links.
        self._number = np.zeros(self._routes.anchors**2, dtype=np.int32)
        self._first, self._latency = _Growing(np.int64), _Growing(np.float64)
        self._link, self._part = _Growing(np.int32), _Growing(np.float64)
        self._first.add(np.zeros(1, dtype=np.int64))

    def rates(
        self, tile: Tile, own: Ints, stride: int, source: Ints, target: Ints, weight: float = 1.0
    ) -> Rates:
        """What all messages of some blocks take while those of a tile run.

        Parameters
        ----------
        tile : B blocks.
        own : int64, shape (K,)
            First devices of blocks that are whole in the tile.
        stride : devices after which a replica of a block begins, whose devices count as its own.
        source, target : int64, shape (M,)
            Ends of each block's messages, from its first device; not the same device.
        weight : bytes of each message.

        Returns
        -------
        Rates
            float64, shape (K,): seconds per byte and seconds.
        """
        routes, anchors = self._routes, self._routes.anchors
        with self._lock:
            key = self._unrouted(
                self._number, anchors, routes.anchor_N, *tile, stride, source, target)
            if len(key):
                found = routes.ways(key // anchors, key % anchors)
                self._number[key] = len(self._latency.values) + np.arange(1, len(key) + 1)
                self._latency.add(found.latency)
                self._first.add(self._first.values[-1] + found.first[1:])
                self._link.add(found.link.astype(np.int32))
                self._part.add(found.part)
            per_byte, latency = self._rates(
                self._number, anchors, routes.anchor_N, routes.up_N, routes.down_N,
                self._first.values, self._link.values, self._part.values, self._latency.values,
                self._bandwidth_E, self._latency_E, *tile, own, stride, source, target, weight)
        return Rates(_rounded(per_byte), latency)


def _sent(tile: Tile, stride: int, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Ends of the messages that the blocks of a tile send."""
    start, low, high = (column[:, None] for column in tile)
    one, other = source % stride, target % stride
    sends = (low <= one) & (one < high) & (low <= other) & (other < high)
    return (start + source)[sends], (start + target)[sends]


def _unrouted(
    number: NDArray[np.int32], anchors: int, anchor_N: Ints, start: Ints, low: Ints, high: Ints,
    stride: int, source: Ints, target: Ints,
) -> Ints:
    """Pairs of different anchors that have no number yet, each once."""
    one, other = (anchor_N[end] for end in _sent(Tile(start, low, high), stride, source, target))
    key = (one * anchors + other)[one != other]
    return np.unique(key[number[key] == 0])


def _rates(
    number: NDArray[np.int32], anchors: int, anchor_N: Ints, up_N: Ints, down_N: Ints,
    first: Ints, link: NDArray[np.int32], part: Floats, latency: Floats,
    bandwidth_E: Floats, latency_E: Floats, start: Ints, low: Ints, high: Ints, own: Ints,
    stride: int, source: Ints, target: Ints, weight: float,
) -> tuple[Floats, Floats]:
    """Seconds per byte and seconds of the messages of blocks that start at ``own``."""

    def passed(begin: Ints, end: Ints) -> tuple[Ints, Floats, Ints, Floats]:
        """Links that messages pass, with a part of each; the message; seconds of each message."""
        up, down = up_N[begin], down_N[end]
        row = number[anchor_N[begin] * anchors + anchor_N[end]].astype(np.int64) - 1
        between, above, below = (np.flatnonzero(known >= 0) for known in (row, up, down))
        entry, at = _slices(first, row[between])
        padded = np.append(latency_E, 0.0)
        seconds = padded[up] + padded[down]
        seconds[between] += latency[row[between]]
        return (np.concatenate([link[entry], up[above], down[below]]),
                np.concatenate([part[entry], np.ones(len(above) + len(below))]),
                np.concatenate([between[at], above, below]), seconds)

    link_, share, _, _ = passed(*_sent(Tile(start, low, high), stride, source, target))
    rate_E = weight * np.bincount(link_, share, len(bandwidth_E)) / bandwidth_E
    link_, _, message, seconds = passed(
        (own[:, None] + source).ravel(), (own[:, None] + target).ravel())
    per_byte = np.zeros(len(own))
    np.maximum.at(per_byte, message // len(source), rate_E[link_])
    return per_byte, seconds.reshape(len(own), -1).max(axis=1)


def _slices(first: Ints, number_K: Ints) -> tuple[Ints, Ints]:
    """Entries of some rows of lists that lie one behind the other, and the place of each's row."""
    start, count = first[number_K], first[number_K + 1] - first[number_K]
    at = np.repeat(np.arange(len(number_K)), count)
    entry: Ints = np.arange(len(at)) - np.repeat(np.cumsum(count) - count - start, count)
    return entry, at


class _Growing(Generic[Kind]):
    """An array to which entries are added behind, with room to spare."""

    def __init__(self, kind: type[Kind]) -> None:
        self._room: NDArray[Kind] = np.zeros(1024, dtype=kind)
        self._size = 0

    @property
    def values(self) -> NDArray[Kind]:
        return self._room[: self._size]

    def add(self, new: NDArray[Kind]) -> None:
        size = self._size + len(new)
        if size > len(self._room):
            room = np.zeros(2 * size, dtype=self._room.dtype)
            room[: self._size] = self.values
            self._room = room
        self._room[self._size : size] = new
        self._size = size


def _rounded(figure: Floats) -> Floats:
    """Figures above 0 with so many digits that sums in another order give the same."""
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(figure)))
    rounded: Floats = np.round(figure * scale) / scale
    return rounded
