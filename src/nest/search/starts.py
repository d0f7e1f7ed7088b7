"""Legal starts of the blocks of a super-pipeline, and which starts cost the same."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from nest.costs.network.fabric import Fabric, GroupShapes
from nest.costs.network.placement import aligned_starts, replicas_alike

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class BlockPlaces:
    """Starts of blocks under one distance between super-pipelines; the same in each of them.

    Parameters
    ----------
    outer_dp, stride : number of super-pipelines, and their distance in devices.
    fabric : the network.
    shapes : of the groups in a block of a size.
    alike : all blocks of a super-pipeline have one size, so that each starts at a multiple of it.
    """

    def __init__(
        self, outer_dp: int, stride: int, fabric: Fabric, shapes: Callable[[int], GroupShapes],
        alike: bool = False,
    ) -> None:
        self.outer_dp, self.stride, self._side_by_side = outer_dp, stride, alike
        self._fabric, self._shapes = fabric, shapes
        origins = 1 if replicas_alike(stride, fabric.group_sizes) else outer_dp
        self.origins = stride * np.arange(origins)[:, None]
        self._allowed: dict[int, NDArray[np.bool_]] = {}
        self._classes: dict[int, Ints] = {}
        self._first: dict[int, Ints] = {}
        self._pairs: dict[tuple[int, int], tuple[float, float]] = {}
        self._twins: dict[tuple[int, int], Floats] = {}

    def on(self, fabric: Fabric) -> BlockPlaces:
        """The same in another network, by levels of the same sizes: classes of places are shared.
        """
        other = copy(self)
        other._fabric, other._pairs, other._twins = fabric, {}, {}
        return other

    def allowed(self, block: int) -> NDArray[np.bool_]:
        """Whether a block may start at each device; (stride,)."""
        if block not in self._allowed:
            first = self.origins + np.arange(self.stride - block + 1)
            result = np.zeros(self.stride, dtype=np.bool_)
            result[: first.shape[1]] = aligned_starts(
                first, block, self._fabric.group_sizes).all(axis=0)
            if self._side_by_side:
                result &= np.arange(self.stride) % block == 0
            starts = np.flatnonzero(result)
            result[starts] = self._fabric.alike(starts, block, self.outer_dp, self.stride)
            self._allowed[block] = result
        return self._allowed[block]

    def sites(self, block: int) -> Ints:
        """Where blocks of all replicas may start, those of one behind the other."""
        starts = np.flatnonzero(self.allowed(block))
        found: Ints = (starts + self.stride * np.arange(self.outer_dp)[:, None]).ravel()
        return found

    def classes(self, block: int) -> Ints:
        """Class of each start of a block: equal ones cost the same; -1: illegal; (stride,)."""
        if block not in self._classes:
            starts = np.flatnonzero(self.allowed(block))
            self._classes[block] = np.full(self.stride, -1, dtype=np.int32)
            if len(starts):
                self._classes[block][starts] = self._fabric.classes(
                    starts, block, self.outer_dp, self.stride, self._shapes)
        return self._classes[block]

    def representatives(self, block: int) -> Ints:
        """One start for every class of places that a block may take, ascending."""
        if block not in self._first:
            starts = np.flatnonzero(self.allowed(block))
            _, first = np.unique(self.classes(block)[starts], return_index=True)
            self._first[block] = np.sort(starts[first])
        return self._first[block]

    def prices(self, block: int, starts: Ints, numbers: dict[tuple[int, int], int]) -> Ints:
        """Price of a block at ``starts`` (the last is the end), -1 where it may not start."""
        classes = self.classes(block)
        known = np.array([numbers.get((block, c), -1) for c in range(classes.max() + 1)] + [-1])
        result = np.full(len(starts), -1, dtype=np.int64)
        result[:-1] = known[classes[starts[:-1]]]
        return result

    def pair(self, x: int, y: int) -> tuple[float, float]:
        """Seconds per byte and latency between two devices, see :meth:`Fabric.pair`."""
        if (x, y) not in self._pairs:
            self._pairs[x, y] = self._fabric.pair(x, y, self.outer_dp, self.stride)
        return self._pairs[x, y]

    def twins(self, block: int, pp: int) -> Floats:
        """Seconds per byte and latency from each of ``pp`` stages to the one that is as far from
        the other end, device by device; inf where these are of another type; (2, pp)."""
        key = block, pp
        if key not in self._twins:
            found, starts = np.empty((2, pp)), block * np.arange(pp)
            types = self._fabric.types(starts)
            for s in range(pp):
                # By levels all devices of aligned blocks are as far apart as the first ones.
                ways = [self.pair(block * s + k, block * (pp - 1 - s) + k)
                        for k in range(block if self._fabric.by_links else 1)]
                found[:, s] = np.max(ways, axis=0) if types[s] == types[pp - 1 - s] else np.inf
            self._twins[key] = found
        return self._twins[key]

    def hops(self, starts: Ints) -> tuple[Floats, Floats]:
        """Seconds per byte and latency between the devices on both sides of each start; ends: 0."""
        found = [self.pair(k - 1, k) if 0 < k < self.stride else (0.0, 0.0)
                 for k in starts.tolist()]
        per_byte, latency = zip(*found, strict=True)
        return np.array(per_byte), np.array(latency)
