"""Seconds of collectives on a *group of devices*, not on a count.

Shapes: C groups priced at once, V levels of the network (innermost first).

A group is described by how many of its members share a subgroup of each level (:class:`Group`).
Every device owns its share of each level's bandwidth (a level's bandwidth is per device), and a
group uses the shares of its own members: groups that run side by side on disjoint devices do not
slow each other down, and g members below a link drive g shares of it. On a network that is not a
hierarchy the load of the links determines the seconds per byte (:class:`Paths`).

References: ring and recursive halving-doubling, R. Thakur, R. Rabenseifner, W. Gropp,
"Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005, section 4;
double binary trees, P. Sanders et al., "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35(12), 2009.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ALGORITHMS = ("none", "ring", "hierarchical", "tree")


@dataclass(frozen=True)
class Network:
    """Per-device figures of each level, innermost first."""

    bandwidth: Array
    """float64, shape (V,): bytes/s that one device delivers to a peer through the level."""
    latency: Array
    """float64, shape (V,): seconds of one step to a peer through the level."""
    in_network: NDArray[np.bool_]
    """bool, shape (V,): switches of the level reduce all-reduces in the network."""
    base_time: Array | float = 0.0
    """float64, shape (V,): seconds of a collective through the level, for any size."""
    ramp: Array | float = 0.0
    """float64, shape (V,): square root of seconds, see :func:`_start`."""
    axes: Array | float = 0.0
    """float64, shape (V,): of levels that are tori, with ``bandwidth`` along each; 0: switches."""
    sizes: Array | float = 1.0
    """float64, shape (V,): subgroups that a level joins."""


class Paths(NamedTuple):
    """Links between the members of C groups; seconds per byte, and seconds.

    Figures are those of :class:`nest.costs.network.paths.LinkPrices`, with the traffic of all
    groups that run at the same time.
    """

    per_byte: Array
    """(C, V): of the exchange between the subgroups that each level joins; 0: it joins none."""
    latency: Array
    """(C, V): of one step of it."""
    ring_per_byte: Array
    """(C,): when every member sends to the next: one ring."""
    ring_latency: Array
    spread_per_byte: Array
    """(C,): when every member sends an equal part of a byte to each."""
    spread_latency: Array
    rails_per_byte: Array
    """(C,): of rings on rails, a ring for each member of an outermost subgroup."""
    rails_latency: Array
    tree_per_byte: Array
    """(C,): of the double tree, for each of its two passes; of groups that are even."""
    tree_latency: Array
    """(C,): of all steps of a pass."""

    def take(self, rows: NDArray[np.intp]) -> Paths:
        return Paths(*(figure[rows] for figure in self))


@dataclass(frozen=True, eq=False)
class Group:
    """C groups of devices and their spread over the levels.

    Attributes
    ----------
    inside : int64, shape (C, V)
        Fewest members in a subgroup of level v that has any; ``inside[:, V-1]`` is the size.
    even : bool, shape (C,)
        All subgroups with members have equally many, at every level.
    paths : Paths; None where prices follow from the levels
    """

    inside: NDArray[np.int64]
    even: NDArray[np.bool_]
    paths: Paths | None = None

    @property
    def size(self) -> NDArray[np.int64]:
        return self.inside[:, -1]

    # All layer kinds have their collectives on the same few groups: what follows from the members
    # alone is worked out once.

    @cached_property
    def rails(self) -> Array:
        """Members of a subgroup of the level below, (C, V)."""
        inside = self.inside.astype(np.float64)
        return np.concatenate([np.ones((len(inside), 1)), inside[:, :-1]], axis=1)

    @cached_property
    def children(self) -> Array:
        """Subgroups of the level below that a level joins, (C, V)."""
        return self.inside / self.rails

    @cached_property
    def crossed(self) -> NDArray[np.bool_]:
        """Whether a level joins any, (C, V)."""
        return self.children > 1

    @cached_property
    def depth(self) -> Array:
        """Depth of a binary tree of the subgroups, before rounding, (C, V)."""
        return np.log2(np.maximum(self.children, 1.0))

    @cached_property
    def steps(self) -> Array:
        """Steps among equal subgroups: halving-doubling for powers of two, else a ring; (C, V)."""
        return np.where(self.depth == np.round(self.depth), self.depth, self.children - 1.0)

    @cached_property
    def lines(self) -> dict[bool, tuple[Network, Lines]]:
        """Of all-reduces, and of reduce-scatters, on the last network: :func:`lines_of`."""
        return {}

    def take(self, rows: NDArray[np.intp]) -> Group:
        return Group(self.inside[rows], self.even[rows],
                     None if self.paths is None else self.paths.take(rows))


def _rates(network: Network, group: Group) -> tuple[Array, Array]:
    """Seconds per byte and seconds of a step at each level, of shape (C, V) or (V,)."""
    if group.paths is not None:
        return group.paths.per_byte, group.paths.latency
    used = network.bandwidth * group.rails
    return 1.0 / (used * _axes(network, group) if np.any(network.axes) else used), network.latency


def _axes(network: Network, group: Group) -> Array:
    """Axes of a torus whose links a group uses, 1 and more, (C, V); 1 where there are switches.

    A collective runs along all axes at once, each with a part of the bytes
    (jax-ml.github.io/scaling-book/sharding). A group of c = s^(a/axes) of s devices is a block of a
    axes; between two whole numbers a part of the bytes is taken to have the axis more.
    """
    part = np.log(np.maximum(group.children, 1.0)) / np.log(np.maximum(network.sizes, 2.0))
    found: Array = np.clip(network.axes * part, 1.0, np.maximum(network.axes, 1.0))
    return found


def _hops(network: Network, group: Group) -> Array:
    """How often a link carries each byte of an all-to-all on a torus, 1 and more, (C, V).

    The mean way along a ring of n is n/4 links, in both directions; rings of different axes work at
    once (the same).
    """
    side = np.maximum(group.children, 1.0) ** (1.0 / _axes(network, group))
    return np.where(np.asarray(network.axes) > 0, np.maximum(1.0, side / 4.0), 1.0)


def _largest(group: Group, figures: Array) -> Array:
    """The largest figure of a level crossed, (C,)."""
    return _over_levels(np.maximum, np.where(group.crossed, figures, 0.0))


def _over_levels(function: np.ufunc, figures: Array) -> Array:
    """Figures of (C, V) put together level by level, (C,).

    NumPy's own reduction over a short axis takes four to twenty times as long.
    """
    found: Array = functools.reduce(function, figures.T)
    return found


def _start(size: Array, network: Network, group: Group, per_byte: Array) -> Array:
    """Seconds besides steps and volume at each level, shape (C, V): base + ramp * sqrt(V/(r B)).

    The root describes messages too small to fill channels and links; it is fitted, see
    docs/calibration.md, and falls with more bandwidth.
    """
    start = network.base_time + network.ramp * np.sqrt(size[:, None] * per_byte)
    return np.where(group.crossed, start, 0.0)


class Lines(NamedTuple):
    """Seconds of a collective as slope x bytes + fixed, and a share of the root of the bytes."""

    base: list[Array]
    """Of each level, (C,): :func:`_start` is base + root sqrt(bytes)."""
    root: list[Array]
    rings: list[tuple[Array, Array]]
    """Slopes and fixed parts of rings, of which the fastest counts, (C,) each."""
    hierarchy: tuple[Array, Array, Array]
    """Slope, fixed part and root; infinite where subgroups are uneven."""
    tree: tuple[Array, Array] | None
    """Slope and fixed part, to reduce; likewise."""


def lines_of(network: Network, group: Group, reduce: bool) -> Lines:
    """What does not depend on the bytes: all layer kinds share the groups, and so this."""
    known = group.lines.get(reduce)
    if known is not None and known[0] is network:
        return known[1]
    per_byte, latency = _rates(network, group)
    base = np.where(group.crossed, network.base_time, 0.0)
    root = np.where(group.crossed, network.ramp * np.sqrt(per_byte), 0.0)
    times = 2.0 if reduce else 1.0
    volume = times * (group.children - 1) / np.maximum(group.children, 1)
    steps = times * group.steps
    if reduce and group.paths is None:
        in_network = network.in_network & group.crossed
        volume = np.where(in_network, np.minimum(volume, 1.0), volume)
        steps = np.where(in_network, 2.0, steps)
    uneven = np.where(group.even, 0.0, np.inf)
    tree = None
    if reduce:
        if group.paths is None:
            rate = _largest(group, per_byte)
            hops = _over_levels(np.add, np.ceil(group.depth) * latency)
        else:
            rate, hops = group.paths.tree_per_byte, group.paths.tree_latency
        tree = 2.0 * rate, 2.0 * hops + uneven
    found = Lines(
        list(base.T), list(root.T),
        [(times * slope, times * fixed) for slope, fixed in _rings(network, group)],
        (_over_levels(np.add, volume * per_byte),
         _over_levels(np.add, steps * latency + base) + uneven, _over_levels(np.add, root)), tree)
    group.lines[reduce] = network, found
    return found


def _rings(network: Network, group: Group) -> list[tuple[Array, Array]]:
    n, paths = group.size, group.paths
    if paths is None:
        rates = [tuple(_largest(group, figures) for figures in _rates(network, group))]
    else:
        rates = [(paths.ring_per_byte, paths.ring_latency),
                 (paths.rails_per_byte, paths.rails_latency)]
    return [((n - 1) / n * per_byte, (n - 1) * latency) for per_byte, latency in rates]


def _fastest(size: Array, rings: list[tuple[Array, Array]]) -> Array:
    return _least([slope * size + fixed for slope, fixed in rings])


def ring_pass(size: Array, network: Network, group: Group) -> Array:
    """Seconds until each of n blocks, ``size`` bytes together, has passed all members; (C,).

    n-1 steps of size/n bytes to the next member, over the narrowest link between neighbours. On
    links the better of one ring and rings on rails.
    """
    return _fastest(size, _rings(network, group))


def reduce_scatter(size: Array, network: Network, group: Group) -> Array:
    """Seconds to reduce buffers of ``size`` bytes and leave 1/n on each member; shape (C,).

    The better of a ring ((n-1)/n of the buffer through the narrowest link, n-1 steps) and a
    hierarchy (level by level from the inside, each with what is left of the buffer).
    An all-gather that ends with ``size`` bytes takes equally long.
    """
    return _least(_seconds(size, network, group, reduce=False))


all_gather = reduce_scatter


def all_reduce(size: Array, network: Network, group: Group) -> Array:
    """Seconds to sum buffers of ``size`` bytes on all members; shape (C,).

    The best of: ring and hierarchy (reduce-scatter and all-gather), where a level that reduces
    in the network carries each byte once (not on links); and a pipelined double tree.
    """
    return _least(_seconds(size, network, group, reduce=True))


def algorithm(size: Array, network: Network, group: Group, reduce: bool) -> NDArray[np.int64]:
    """Index into :data:`ALGORITHMS` of the priced algorithm; shape (C,)."""
    seconds = np.stack(_seconds(size, network, group, reduce))
    return np.where(seconds.any(axis=0), seconds.argmin(axis=0) + 1, 0)


def _least(seconds: list[Array]) -> Array:
    found: Array = functools.reduce(np.minimum, seconds)
    return found


def _seconds(size: Array, network: Network, group: Group, reduce: bool) -> list[Array]:
    """Seconds of ring, hierarchy and, to reduce, tree; infinite where one cannot be, 0 for nothing.

    (C,) each.
    """
    size = np.asarray(size, dtype=np.float64)
    nothing = (group.size <= 1) | (size <= 0)
    if nothing.all():  # most dimensions of most configurations
        return [np.zeros(len(nothing))]
    lines = lines_of(network, group, reduce)
    some = np.sqrt(np.maximum(size, 0.0))
    latest: Array = functools.reduce(np.maximum, (
        base + root * some for base, root in zip(lines.base, lines.root, strict=True)))
    slope, fixed, root = lines.hierarchy
    ways = [_fastest(size, lines.rings) + latest, slope * size + fixed + root * some]
    if lines.tree is not None:
        slope, fixed = lines.tree
        ways.append(slope * size + fixed + latest)
    return [np.where(nothing, 0.0, seconds) for seconds in ways]


def all_to_all(size: Array, network: Network, group: Group) -> Array:
    """Seconds for every member to spread ``size`` bytes evenly over the group; shape (C,).

    All messages travel at once; those for peers outside a subgroup share the device's
    own bandwidth through that level, and the slowest level sets the time.
    """
    size = np.asarray(size, dtype=np.float64)
    per_byte, latency = _rates(network, group)
    start = _over_levels(np.maximum, _start(size, network, group, per_byte))
    if group.paths is not None:
        return size * group.paths.spread_per_byte + group.paths.spread_latency + start
    n = group.size[:, None]
    away = np.where(group.crossed, (n - group.rails) / n, 0.0)
    if np.any(network.axes):
        away = away * _hops(network, group)
    slowest = _over_levels(np.maximum, away * size[:, None] / network.bandwidth)
    return slowest + _largest(group, latency) + start


def reached(parts: Array, top_k: int, groups: int, limit: int) -> Array:
    """Of ``parts`` equal parts of the experts, those that hold an expert of a token, on average.

    top_k experts drawn at random, of which at most ``limit`` of ``groups`` groups have any; a group
    is spread over parts / groups of the parts.
    """
    most = np.minimum(parts, limit * np.maximum(1.0, parts / groups))
    found: Array = most * (1.0 - (1.0 - 1.0 / most) ** top_k)
    return found


def dispatch(
    size: Array, top_k: int, limits: tuple[int, int], network: Network, group: Group,
    most_rate: float,
) -> Array:
    """Seconds for members to send their tokens, ``size`` bytes, once to where they go; shape (C,).

    Through a level a token is sent once to each subgroup of the level below that holds one of its
    experts: to each node, and within a node to each device (deepseek-ai/DeepEP README.md; HybridEP
    of the same repository). Of these, the share (c - 1)/c is not its own subgroup, with c subgroups
    joined. On links this holds at the outermost level alone, which is the slowest. ``limits``:
    groups of experts, and how many of them a token uses; ``most_rate``: bytes/s that a device
    handles.
    """
    size = np.asarray(size, dtype=np.float64)
    per_byte, latency = _rates(network, group)
    parts = group.size[:, None] / group.rails
    copies = np.where(group.crossed, reached(parts, top_k, *limits), 0.0)
    away = np.where(group.crossed, copies * (1.0 - 1.0 / np.maximum(group.children, 1.0)), 0.0)
    handled = _over_levels(np.maximum, away) * size / most_rate
    outer = copies[np.arange(len(size)), _outermost(group)] * size
    start = _over_levels(np.maximum, _start(outer, network, group, per_byte))
    if group.paths is not None:
        sent = outer * group.paths.spread_per_byte
        return np.maximum(sent, handled) + group.paths.spread_latency + start
    slowest = _over_levels(np.maximum, away * size[:, None] / network.bandwidth)
    return np.maximum(slowest, handled) + _largest(group, latency) + start


def _outermost(group: Group) -> NDArray[np.intp]:
    """The outermost level crossed; 0: none."""
    levels = group.crossed.shape[1]
    return np.where(group.crossed.any(axis=1),
                    levels - 1 - np.argmax(group.crossed[:, ::-1], axis=1), 0)


def point_to_point(size: float, network: Network, level: int) -> float:
    """Seconds to send ``size`` bytes to a peer reached through ``level``."""
    return float(size / network.bandwidth[level] + network.latency[level])
