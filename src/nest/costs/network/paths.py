"""What groups and pairs of devices take on a network that is no hierarchy, by the load of links.

Everybody is taken to do the same at the same time: beside the groups of one block run those of all
blocks of its *tile*, blocks of the same size side by side. A pattern of messages then takes, per
byte, as long as the most loaded link that its own messages pass; routes are those of
:class:`nest.network.Routes`. On a hierarchy this gives the figures of its levels. See
docs/topologies.md, "Prices on links".

Shapes: N devices, E links, V levels, B blocks, K blocks asked for, Q patterns. A
row of *figures* is what :class:`nest.costs.network.collectives.Paths` holds of a group, one behind
the other: 2 V + 8 columns.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.costs.network.placement import inner_group, replica_group, shared_level, tile_of
from nest.errors import LimitError
from nest.inputs.cluster import Cluster
from nest.network import Routes, Topology
from nest.records.links import Ends, KnownWays, Patterns, Tiles, Twins

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = TypeVar("Kind", np.int32, np.int64, np.float64)
MOST_DEVICES = 16_384
"""Of a network that is no hierarchy: a table has 4 bytes for each pair of nodes that they hang
from, touched as they send."""
DIGITS = 12
"""Significant digits of a figure, so that places that are alike cost the same bit for bit."""


class PatternTimes(NamedTuple):
    """What patterns of messages take, each by itself; in the end, some at once."""

    per_byte: Floats
    """(K, Q + 1)"""
    latency: Floats
    """(K, Q)"""


class GroupTier(NamedTuple):
    """A level at which a group has members in several subgroups, and the patterns there."""

    level: int
    rails: int
    """Members in each subgroup."""
    parts: int
    rounds: tuple[int, ...]
    """Of recursive halving and doubling; one, a ring of the parts, if these are no power of two."""
    circle: int
    trees: int


class GroupLayout(NamedTuple):
    """How the members of groups are spread over the levels."""

    inside: tuple[int, ...]
    """Fewest in a subgroup of each level."""
    even: bool
    common: tuple[int, ...]
    """Greatest common divisor of those in a subgroup."""


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
        self._shifts: dict[tuple[int, int], PatternTimes] = {}

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
        float64, shape (K, 2 V + 8)
        """
        seen = inner_group(self.group_sizes, block, distance, size)
        b, q, t = np.ix_(np.arange(block // (distance * size)), np.arange(distance),
                         np.arange(size))
        members = (b * distance * size + q + distance * t).reshape(-1, size)
        layout = self._layout(seen, members)
        return self._figures(starts, block, members, layout, spread, self.size)

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
        float64, shape (K, 2 V + 8)
        """
        q, r, t = np.ix_(np.arange(inner), np.arange(outer_dp), np.arange(block // inner))
        members = (q + stride * r + inner * t).reshape(inner, -1)
        layouts = []
        for k in starts.tolist():
            seen = replica_group(self.group_sizes, k, block, inner, outer_dp, stride)
            layouts.append(self._layout(seen, members + k))
        result = np.zeros((len(starts), 2 * len(self.group_sizes) + 8))
        for layout in set(layouts):
            rows = np.array([n for n, one in enumerate(layouts) if one == layout])
            result[rows] = self._figures(starts[rows], block, members, layout, False, stride)
        return result

    def _layout(self, seen: tuple[tuple[int, ...], bool], members: Ints) -> GroupLayout:
        """Of groups ``members`` (G, n), with what :mod:`~nest.costs.network.placement` says."""
        inside, even = seen
        if even:
            return GroupLayout(inside, even, inside)
        row = np.arange(len(members))[:, None] * self.size
        counts = (np.unique(row + members // g, return_counts=True)[1] for g in self.group_sizes)
        return GroupLayout(inside, even, tuple(int(np.gcd.reduce(count)) for count in counts))

    def _tiles(self, starts: Ints, block: int, end: int) -> tuple[Tiles, Ints]:
        """Tiles, in devices [0, end), of the blocks at some starts; and which blocks these are."""
        holds = next(g for g in self.group_sizes if g >= block)
        group = np.arange(0, end, holds)
        room = np.minimum(end - group, holds)
        group, room = group[room >= block], room[room >= block]
        offset, tile = np.unique(tile_of(starts, block, self.group_sizes), return_inverse=True)
        count, left = np.divmod(room - offset[:, None], block)
        t, g = np.divmod(np.arange(count.size).repeat(count.ravel()), len(group))
        number = np.arange(len(t)) - np.repeat(np.cumsum(count) - count.ravel(), count.ravel())
        start = group[g] + offset[t] + number * block
        behind, last = np.nonzero(left)
        before, lead = np.nonzero(offset[:, None] + 0 * group)
        of = np.concatenate([t, behind, before])
        order = np.argsort(of, kind="stable")
        where = np.argsort(order)[np.searchsorted(t * end + start, tile * end + starts)]
        start = np.concatenate([start, (group + room)[last] - block, group[lead]])
        low = np.concatenate([0 * t, block - left[behind, last], 0 * before])
        high = np.concatenate([0 * t + end, 0 * behind + block, offset[before]])
        first = np.searchsorted(of[order], np.arange(len(offset) + 1))
        return Tiles(start[order], low[order], high[order], first), where

    def _figures(
        self, starts: Ints, block: int, members: Ints, layout: GroupLayout, spread: bool,
        stride: int
    ) -> Floats:
        """Figures of the blocks at some starts; ``members`` of groups, from there on.

        The blocks of groups over replicas are ``stride`` apart.
        """
        inside = layout.inside
        levels, size = len(inside), inside[-1]
        result = np.zeros((len(starts), 2 * levels + 8))
        if size == 1:
            return result
        tiles, own = self._tiles(starts, block, stride)
        patterns, tiers = _patterns(layout.common, layout.even)
        if spread:
            patterns = _spread(patterns, size)
        every = members.T
        per_byte, latency = self._messages.rates(tiles, own, stride, patterns._replace(
            source=every[patterns.source].ravel(), target=every[patterns.target].ravel(),
            begin=len(members) * patterns.begin))
        ring, last = slice(2 * levels, 2 * levels + 2), latency.shape[1] - 1
        result[:, ring] = np.stack([per_byte[:, 0], latency[:, 0]], axis=1)
        if spread:
            result[:, 2 * levels + 2] = per_byte[:, last] / size
            result[:, 2 * levels + 3] = latency[:, last]
        rails, trees = result[:, 2 * levels + 4 : 2 * levels + 6], result[:, 2 * levels + 6 :]
        for tier in tiers:
            for j, q in enumerate(tier.rounds):
                result[:, tier.level] += 0.5 ** (j + 1) * per_byte[:, q]
                result[:, levels + tier.level] += latency[:, q]
            result[:, tier.level] /= (1 - 0.5 ** len(tier.rounds)) * tier.rails
            result[:, levels + tier.level] /= len(tier.rounds)
            rails[:, 0] = np.maximum(rails[:, 0], per_byte[:, tier.circle] / tier.rails)
            rails[:, 1] = np.maximum(rails[:, 1], latency[:, tier.circle])
            trees[:, 0] = np.maximum(trees[:, 0], per_byte[:, tier.trees] / (2 * tier.rails))
            trees[:, 1] += (tier.parts - 1).bit_length() * latency[:, tier.trees]
        rails[:, 0] = np.maximum(rails[:, 0], per_byte[:, last + 1])
        trees[:, 0] = np.maximum(trees[:, 0], rails[:, 0])
        if not layout.even:  # has neither exchange nor tree
            here = np.diff(inside, prepend=1) > 0
            result[:, :levels] = here * np.minimum(result[:, ring], rails)[:, :1]
            result[:, levels : 2 * levels] = 0.0
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
                Tiles(first, 0 * first, 0 * first + self.size, np.array([0, len(first)])),
                np.arange(len(first)), self.size,
                Patterns(lane, lane + shift, np.array([0, g]), np.ones(1)))
            self._shifts[shift, g] = known
        at = (x // g * g - max(0, -shift)) // g
        per_byte, latency = self._shifts[shift, g]
        return float(per_byte[at, 0]), float(latency[at, 0])


@lru_cache(maxsize=256)
def _patterns(common: tuple[int, ...], even: bool) -> tuple[Patterns, tuple[GroupTier, ...]]:
    """Patterns of a group but all-to-all, one ring first; rings on rails run beside each other.

    As many rings as an outermost subgroup has members share the bytes equally, and each member is
    the last of its subgroup in equally many rings. So a member of a subgroup of r sends 1/r of a
    byte to its counterpart in the next of c subgroups; where all levels send at once, the share
    1 - 1/c of it, at the outermost level all. The load of a link is the larger of the most that a
    single level puts on it and the shares of all levels. A double tree sends 1/(2 r) of a byte over
    each edge, in 2 ceil(log2 c) steps at each level of the largest latency between part and
    parent; its seconds are those of the slowest level, and no less than those of the rings.

    ``common``: members in a subgroup of each level. Where groups are not ``even``, of the parts
    that subgroups consist of; all patterns of a level are its circle then.
    """
    size, known = common[-1], dict[bytes, int]()
    tiers: list[GroupTier] = []

    def number(rails: int, parts: int, one: Ints, other: Ints) -> int:
        """Of the pattern in which a part sends to another, each member to that of its number."""
        t = np.arange(size)
        first = t[t % (rails * parts) < rails, None]
        ends = np.stack([(first + rails * part).ravel() for part in (one, other)])
        return known.setdefault(ends.tobytes(), len(known))

    t = np.arange(size)
    number(1, size, t, (t + 1) % size)
    for level, held in enumerate(common):
        rails = common[level - 1] if level else 1
        parts = held // rails
        if parts == 1:
            continue
        s = np.arange(parts)
        circle = number(rails, parts, s, (s + 1) % parts)
        rounds, trees = [circle], circle
        if even:
            trees = number(rails, parts, *_edges(parts))
            if not parts & (parts - 1):
                bits = range(parts.bit_length() - 1)
                rounds = [number(rails, parts, s, s ^ 1 << j) for j in bits]
        tiers.append(GroupTier(level, rails, parts, tuple(rounds), circle, trees))
    share = np.zeros(len(known))
    for tier in tiers:
        share[tier.circle] = (1.0 if tier is tiers[-1] else 1.0 - 1.0 / tier.parts) / tier.rails
    ends = [np.frombuffer(key, dtype=np.int64).reshape(2, -1) for key in known]
    begin = np.cumsum([0, *(pair.shape[1] for pair in ends)])
    source, target = np.concatenate(ends, axis=1)
    return Patterns(source, target, begin, share), tuple(tiers)


def _edges(parts: int) -> tuple[Ints, Ints]:
    """Edges of two binary trees: parts that send, and their parents.

    The root is 0. The parent of s, with b the lowest bit that is set in s, is s with bit b cleared
    and bit 2 b set, or s - b if there is no such part. The second tree is the mirror image of the
    first one for an even number of parts, else the first one shifted by a part.
    ``src/graph/trees.cc`` of NVIDIA/nccl, ncclGetBtree and ncclGetDtree.
    """
    s = np.arange(1, parts)
    bit = s & -s
    up = (s - bit) | 2 * bit
    up = np.where(up < parts, up, s - bit)
    ends = np.stack([s, up])
    twin = (ends + 1) % parts if parts % 2 else parts - 1 - ends
    one, other = np.concatenate([ends, twin], axis=1)
    order = np.argsort(one, kind="stable")  # two parts send as in a ring
    return one[order], other[order]


def _spread(patterns: Patterns, size: int) -> Patterns:
    """With one more: each member to each."""
    source, step = np.divmod(np.arange(size * (size - 1)), size - 1)
    return Patterns(
        np.append(patterns.source, source),
        np.append(patterns.target, (source + 1 + step) % size),
        np.append(patterns.begin, len(patterns.source) + len(source)),
        np.append(patterns.share, 0.0))


Told = tuple[Ints, Floats, Floats]
"""Pairs of anchors whose ways have to be found first; if there are none, the figures of
:class:`PatternTimes`, not rounded."""


class _Messages:
    """Messages between devices, and what they take where many are under way at once."""

    def __init__(self, topology: Topology, twins: Twins | None) -> None:
        self._routes = Routes(topology, twins and twins.ways)
        self._rates = twins.rates if twins else _rates
        routes = self._routes
        self._ends = Ends(
            anchors=routes.anchors, anchor=routes.anchor_N, up=routes.up_N, down=routes.down_N,
            # Compiled code is for arrays to write to.
            bandwidth=topology.bandwidth_E.copy(), latency=topology.latency_E.copy())
        self._lock = Lock()  # outer choices are solved side by side
        self._size = len(topology.device_N)
        if self._size > MOST_DEVICES:
            raise LimitError(
                f"{topology.name}: got {self._size} devices on a network that is no hierarchy; "
                f"allowed: at most {MOST_DEVICES}")
        # See ``KnownWays``.
        self._number = np.zeros(routes.anchors**2, dtype=np.int32)
        self._first, self._latency = _Growing(np.int64), _Growing(np.float64)
        self._link, self._part = _Growing(np.int32), _Growing(np.float64)
        self._first.add(np.zeros(1, dtype=np.int64))

    def rates(self, tiles: Tiles, own: Ints, stride: int, patterns: Patterns) -> PatternTimes:
        """What the messages of some blocks take while those of their tiles run, one by one.

        Parameters
        ----------
        own : int64, shape (K,)
            Numbers of blocks that are whole in their tile.
        stride : devices after which a replica of a block begins, whose devices count as its own.
        patterns : each block's messages, between devices numbered from its first one on.
        """
        lacking, per_byte, latency = self._told(tiles, own, stride, patterns, False)
        if len(lacking):
            with self._lock:
                lacking, per_byte, latency = self._told(tiles, own, stride, patterns, True)
                if len(lacking):
                    self._route(lacking)
                    _, per_byte, latency = self._told(tiles, own, stride, patterns, True)
        return PatternTimes(_rounded(per_byte), latency)

    def _told(
        self, tiles: Tiles, own: Ints, stride: int, patterns: Patterns, marks: bool
    ) -> Told:
        known = KnownWays(
            number=self._number, first=self._first.values, link=self._link.values,
            part=self._part.values, latency=self._latency.values)
        return self._rates(self._ends, known, tiles, own, stride, patterns, marks)

    def _route(self, pairs: Ints) -> None:
        """Look for the ways of pairs of anchors, which are numbered one * anchors + other."""
        anchors = self._ends.anchors
        found = self._routes.ways(pairs // anchors, pairs % anchors)
        number = len(self._latency.values) + np.arange(1, len(pairs) + 1)
        self._latency.add(found.latency)
        self._link.add(found.link.astype(np.int32))
        self._part.add(found.part)
        # In this order: others may read, who take `first` before all else and no later number.
        self._first.add(self._first.values[-1] + found.first[1:])
        self._number[pairs] = number


def _sent(tiles: Tiles, stride: int, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Ends of the messages that blocks send."""
    start, low, high = (column[:, None] for column in tiles[:3])
    one, other = source % stride, target % stride
    sends = (low <= one) & (one < high) & (low <= other) & (other < high)
    return (start + source)[sends], (start + target)[sends]


def _rates(
    ends: Ends, known: KnownWays, tiles: Tiles, own: Ints, stride: int, patterns: Patterns,
    marks: bool,
) -> Told:
    """Pairs of anchors that lack a way, or else seconds per byte and seconds of patterns of the
    blocks ``own``; it writes nothing, ``marks`` or not."""
    lacking, count = np.zeros(0, dtype=np.int64), len(patterns.share)
    per_byte, slowest = np.zeros((len(own), count + 1)), np.zeros((len(own), count))
    for low, high in pairwise(tiles.first.tolist()):
        one = slice(low, high)
        tile = Tiles(tiles.start[one], tiles.low[one], tiles.high[one], np.array([0, high - low]))
        rows = np.flatnonzero((low <= own) & (own < high))
        new, per_byte[rows], slowest[rows] = _of_tile(
            ends, known, tile, tiles.start[own[rows]], stride, patterns)
        lacking = np.union1d(lacking, new)
    return lacking, per_byte, slowest


def _of_tile(
    ends: Ends, known: KnownWays, tile: Tiles, own: Ints, stride: int, patterns: Patterns,
) -> Told:
    """The same of the blocks of one tile that start at ``own``."""
    source, target, begin, share = patterns
    one, other = (ends.anchor[end] for end in _sent(tile, stride, source, target))
    pair = (one * ends.anchors + other)[one != other]
    number = known.number[pair]
    lacking = np.unique(pair[(number <= 0) | (number >= len(known.first))])
    if len(lacking):
        return lacking, np.zeros((len(own), len(share) + 1)), np.zeros((len(own), len(share)))

    def passed(begin: Ints, end: Ints) -> tuple[Ints, Floats, Ints, Floats]:
        """Links that messages pass, with a part of each; the message; seconds of each message."""
        up, down = ends.up[begin], ends.down[end]
        row = known.number[ends.anchor[begin] * ends.anchors + ends.anchor[end]] - 1
        between, above, below = (np.flatnonzero(there >= 0) for there in (row, up, down))
        entry, at = _slices(known.first, row[between])
        padded = np.append(ends.latency, 0.0)
        seconds = padded[up] + padded[down]
        seconds[between] += known.latency[row[between]]
        return (np.concatenate([known.link[entry], up[above], down[below]]),
                np.concatenate([known.part[entry], np.ones(len(above) + len(below))]),
                np.concatenate([between[at], above, below]), seconds)

    pieces = [slice(*piece) for piece in zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True)]
    load = np.zeros((len(pieces) + 1, len(ends.bandwidth)))
    for q, piece in enumerate(pieces):
        link, amount, _, _ = passed(*_sent(tile, stride, source[piece], target[piece]))
        load[q] = np.bincount(link, amount, len(ends.bandwidth)) / ends.bandwidth
        load[-1] += share[q] * load[q]
    per_byte, slowest = np.zeros((len(load), len(own))), np.zeros((len(pieces), len(own)))
    for q, piece in enumerate(pieces):
        one, other = ((own[:, None] + end[piece]).ravel() for end in (source, target))
        link, _, message, seconds = passed(one, other)
        for x in (q, -1) if share[q] else (q,):
            np.maximum.at(per_byte[x], message // (len(one) // len(own)), load[x, link])
        slowest[q] = seconds.reshape(len(own), -1).max(axis=1)
    return lacking, per_byte.T, slowest.T


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
