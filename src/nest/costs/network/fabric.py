"""Groups and pairs of devices of a cluster, described by its levels or by its links.

Shapes: C configurations, V levels. Columns of int64, shape (C,), give the place of a configuration:
``start`` and ``block`` in the first super-pipeline, ``outer_dp`` of them ``stride`` apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nest.costs.distinct import distinct_rows
from nest.costs.network.collectives import Group, Paths
from nest.costs.network.placement import (
    aligned,
    aligned_starts,
    inner_group,
    place_class,
    replica_group,
    replicas_alike,
    tile_of,
    worst_level,
)
from nest.inputs.cluster import Cluster
from nest.records.links import Twins

if TYPE_CHECKING:
    from nest.costs.network.paths import LinkPrices

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
GroupShapes = tuple[tuple[tuple[int, int, bool], ...], tuple[int, ...]]
"""Groups of a block: distance, size and whether all-to-all is used (:meth:`Fabric.inside`); and the
steps in the block of groups over replicas (:meth:`Fabric.over_replicas`)."""


@lru_cache(maxsize=16)
def fabric_of(cluster: Cluster, twins: Twins | None = None) -> Fabric:
    """The network of a cluster; prices of its links are cached.

    ``twins``: compiled functions, see :class:`nest.costs.network.paths.LinkPrices`.
    """
    return Fabric(cluster, twins)


class Fabric:
    """The network of a cluster.

    Attributes
    ----------
    group_sizes : devices of a group of each level.
    """

    def __init__(self, cluster: Cluster, twins: Twins | None = None) -> None:
        self.group_sizes = cluster.group_sizes
        self._per_byte = 1.0 / np.array(cluster.resolved_bandwidth)
        self._latency = np.array([level.latency for level in cluster.levels])
        self._links: LinkPrices | None = None
        if cluster.links is not None:  # modules of graphs are loaded only for a graph
            from nest.costs.network.paths import LinkPrices

            self._links = LinkPrices(cluster, twins)
        self._known: dict[tuple[int, ...], _Figures] = {}
        numbers = cluster.type_numbers
        self._types = None if numbers is None else np.array(numbers)

    @property
    def by_links(self) -> bool:
        """Whether prices depend on the start of a block, besides its size and its replicas."""
        return self._links is not None

    @property
    def rates(self) -> tuple[Floats, Floats]:
        """Seconds per byte, and latency, of the levels."""
        return self._per_byte, self._latency

    def straddled(self, start: int, block: int) -> int | None:
        """Size of a group that a block is partly in; None: it may be there."""
        return next((g for g in self.group_sizes if not aligned(start, block, (g,))), None)

    def alike(self, starts: Ints, block: int, outer_dp: int, stride: int) -> NDArray[np.bool_]:
        """Whether all devices of a block and of its replicas are of one type; (K,)."""
        if self._types is None or not len(starts):
            return np.ones(len(starts), dtype=np.bool_)
        site = starts[:, None, None] + stride * np.arange(outer_dp)[:, None] + np.arange(block)
        types = self._types[site].reshape(len(starts), -1)
        same: NDArray[np.bool_] = (types == types[:, :1]).all(axis=1)
        return same

    def types(self, starts: Ints) -> Ints:
        """Type of the device at each start."""
        found: Ints = 0 * starts if self._types is None else self._types[starts]
        return found

    # ------------------------------------------------------------ groups

    def inside(
        self, start: Ints, block: Ints, outer_dp: Ints, stride: Ints, distance: Ints, size: Ints,
        spread: NDArray[np.bool_] | None = None,
    ) -> Group:
        """Groups of ``size`` devices, ``distance`` apart, that fill a block; the worst replica's.

        ``spread``: bool, shape (C,), whether all-to-all will be priced; None: nowhere.
        """
        first, row = distinct_rows(block, distance, size)
        shapes = zip(*(x[first].tolist() for x in (block, distance, size)), strict=True)
        groups = _group([inner_group(self.group_sizes, *shape) for shape in shapes]).take(row)
        if self._links is None:
            return groups
        every = 0 * size if spread is None else spread.astype(np.int64)
        first, number = distinct_rows(row, outer_dp, stride, start, every)
        columns = np.stack([start, block, outer_dp, stride, distance, size, every])[:, first]
        figures = [self._worst(np.array([k]), b, r, far, d, n, bool(every))[0]
                   for k, b, r, far, d, n, every in columns.T.tolist()]
        return replace(groups, paths=_paths(np.array(figures)[number]))

    def fill(
        self, groups: Sequence[tuple[Ints, tuple[int, int, int, bool]]],
        each_of: Callable[..., Iterable[None]],
    ) -> None:
        """Price groups on links: starts of blocks, with (block, distance, size, spread).

        ``each_of`` calls a function with each of some arguments, in threads or not.
        """
        def price(group: tuple[Ints, tuple[int, int, int, bool]]) -> None:
            start, (block, distance, size, spread) = group
            self._worst(start, block, 1, 0, distance, size, spread)

        list(each_of(price, groups))

    def over_replicas(
        self, start: Ints, block: Ints, outer_dp: Ints, stride: Ints, inner: Ints
    ) -> Group:
        """Groups of every ``inner``-th device of a block and of its replicas."""
        columns = (start, block, inner, outer_dp, stride)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        spreads = [replica_group(self.group_sizes, *row) for row in rows]
        groups = _group(spreads)
        if self._links is None:
            return groups
        first, number = distinct_rows(*columns)
        figures = [self._over(np.array(rows[n][:1]), *rows[n][1:])[0] for n in first.tolist()]
        return replace(groups, paths=_paths(np.array(figures)[number]))

    def _worst(
        self, start: Ints, block: int, outer_dp: int, stride: int, distance: int, size: int,
        spread: bool,
    ) -> Floats:
        """Figures of groups inside blocks, the largest over the replicas; (K, 2 V + 8)."""
        links, key = self._links, (block, distance, size, spread)
        assert links is not None
        if key not in self._known:
            self._known[key] = _Figures(
                self.group_sizes, block, np.arange(self.group_sizes[-1] - block + 1)[None, :],
                lambda starts: links.inside(starts, block, distance, size, spread))
        found: Floats = self._known[key].at(
            start + stride * np.arange(outer_dp)[:, None]).max(axis=0)
        return found

    def _over(
        self, start: Ints, block: int, inner: int, outer_dp: int, stride: int
    ) -> Floats:
        """Figures of groups over replicas of the blocks at some starts; (K, 2 V + 8)."""
        if outer_dp == 1 and stride == self.group_sizes[-1]:
            return self._worst(start, block, outer_dp, stride, inner, block // inner, False)
        links, key = self._links, (block, inner, outer_dp, stride, -1)
        assert links is not None
        if key not in self._known:
            site = stride * np.arange(outer_dp)[:, None] + np.arange(stride - block + 1)
            self._known[key] = _Figures(
                self.group_sizes, block, site,
                lambda starts: links.over_replicas(starts, block, inner, outer_dp, stride))
        return self._known[key].at(start)

    def place(self, start: int, outer_dp: int, stride: int) -> Hashable:
        """Part of the key of prices besides sizes and replicas; equal: same prices."""
        if self.by_links:
            return (start,)
        return place_class(start, outer_dp, stride, self.group_sizes)

    def classes(
        self, starts: Ints, block: int, outer_dp: int, stride: int,
        shapes: Callable[[int], GroupShapes],
    ) -> Ints:
        """Class of each start of a block; all prices are equal within a class.

        Classes are numbered in order of appearance; ``starts`` ascend; ``shapes``: of the groups in
        a block of a size.
        """
        keys: list[Hashable]
        if self.by_links:
            keys = self._priced(starts, block, outer_dp, stride, shapes(block))
        elif outer_dp == 1 or replicas_alike(stride, self.group_sizes):
            return 0 * starts
        else:
            keys = [self.place(k, outer_dp, stride) for k in starts.tolist()]
        names: dict[Hashable, int] = {}
        return np.array([names.setdefault(key, len(names)) for key in keys], dtype=np.int64)

    def _priced(
        self, starts: Ints, block: int, outer_dp: int, stride: int, shapes: GroupShapes
    ) -> list[Hashable]:
        """Key of all prices of a block, for each start."""
        inside, over = shapes
        columns = [
            self._worst(starts, block, outer_dp, stride, *shape) for shape in inside]
        for inner in over:
            seen = [replica_group(self.group_sizes, k, block, inner, outer_dp, stride)
                    for k in starts.tolist()]
            columns += [np.array([[*members, even] for members, even in seen], dtype=np.float64),
                        self._over(starts, block, inner, outer_dp, stride)]
        columns.append(self.types(starts)[:, None].astype(np.float64))
        return [row.tobytes() for row in np.concatenate(columns, axis=1)]

    # ------------------------------------------------------------ pairs

    def pair(self, x: int, y: int, outer_dp: int, stride: int) -> tuple[float, float]:
        """Seconds per byte and latency between two devices of a super-pipeline; worst replica.

        By levels: over the highest level that both share. By links: see ``LinkPrices.pair``; the
        slower direction counts.
        """
        if self._links is None:
            level = worst_level(min(x, y), max(x, y), outer_dp, stride, self.group_sizes)
            return float(self._per_byte[level]), float(self._latency[level])
        found = [self._links.pair(r * stride + a, r * stride + b)
                 for r in range(outer_dp) for a, b in ((x, y), (y, x))]
        return max(rate for rate, _ in found), max(latency for _, latency in found)

    def ends(self, outer_dp: Ints, stride: Ints) -> tuple[Ints, Floats, Floats]:
        """:meth:`pair` of the first and the last device of super-pipelines, (C,), behind numbers
        that are equal where these are so whatever the rates of levels."""
        first, row = distinct_rows(outer_dp, stride)
        found = [(0, far - 1, dp, far) for dp, far in zip(
            outer_dp[first].tolist(), stride[first].tolist(), strict=True)]
        per_byte, latency = np.array([self.pair(*ends) for ends in found]).reshape(-1, 2).T
        number = distinct_rows(per_byte, latency)[1] if self.by_links else np.array(
            [worst_level(*ends, self.group_sizes) for ends in found], dtype=np.int64)
        return number[row], per_byte[row], latency[row]


class _Figures:
    """Figures of groups of blocks of a size, by start; a tile is priced when one is asked for.

    Parameters
    ----------
    group_sizes : of the network.
    site : int64, shape (R, K): where the replicas of a block are that starts at 0, 1, ...; it may
        start where all of them are aligned.
    price : the figures of some of these, (K, 2 V + 8); they do not depend on what else is asked.
    """

    def __init__(
        self, group_sizes: tuple[int, ...], block: int, site: Ints, price: Callable[[Ints], Floats]
    ) -> None:
        self._starts = np.flatnonzero(aligned_starts(site, block, group_sizes).all(axis=0))
        self._price = price
        self._tile = tile_of(np.arange(group_sizes[-1]), block, group_sizes)
        self._figures = np.zeros((len(self._tile), 2 * len(group_sizes) + 8))
        self._known = np.zeros(len(self._tile), dtype=np.bool_)

    def at(self, start: Ints) -> Floats:
        """Figures of the blocks that begin at each start, of any shape; 0 where none may."""
        if not self._known[start].all():
            tiles = np.unique(self._tile[start[~self._known[start]]])
            here = self._starts[np.isin(self._tile[self._starts], tiles)]
            self._figures[here] = self._price(here)
            self._known[np.isin(self._tile, tiles)] = True  # last: threads share the figures
        found: Floats = self._figures[start]
        return found


def _group(spreads: list[tuple[tuple[int, ...], bool]]) -> Group:
    """Groups from their spread over the levels."""
    inside, even = zip(*spreads, strict=True)
    return Group(np.array(inside, dtype=np.int64), np.array(even, dtype=bool))


def _paths(figures: Floats) -> Paths:
    """Paths of groups from their figures; (C, 2 V + 8)."""
    levels = (figures.shape[1] - 8) // 2
    return Paths(figures[:, :levels], figures[:, levels : 2 * levels], *figures[:, 2 * levels :].T)
