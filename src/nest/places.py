"""Where the blocks of a super-pipeline may start, and which starts cost the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import span_level
from nest.costs.groups import place_class

Ints = NDArray[np.int64]


class Places:
    """Starts of blocks under one distance between super-pipelines; the same in each of them."""

    def __init__(self, outer_dp: int, stride: int, group_sizes: tuple[int, ...]) -> None:
        self.stride, self.group_sizes = stride, group_sizes
        self.span = span_level(outer_dp, stride, group_sizes)
        regular = not place_class(0, outer_dp, stride, group_sizes)
        self.origins = stride * np.arange(1 if regular else outer_dp)[:, None]
        self.classes: Ints = np.zeros(stride, dtype=np.int64)
        if not regular:
            names: dict[tuple[int, ...], int] = {}
            for start in range(stride):
                key = place_class(start, outer_dp, stride, group_sizes)
                self.classes[start] = names.setdefault(key, len(names))
        # Highest level, over the replicas, between the devices on both sides of a start.
        self.hop_level: Ints = np.zeros(stride + 1, dtype=np.int64)
        device = self.origins + np.arange(1, stride)
        for g in group_sizes:
            self.hop_level[1:stride] += ((device - 1) // g != device // g).any(axis=0)
        # Highest level, over the replicas, between a device and the first one.
        self.first_level: Ints = np.zeros(stride, dtype=np.int64)
        device = self.origins + np.arange(stride)
        for g in group_sizes:
            self.first_level += (self.origins // g != device // g).any(axis=0)
        self._allowed: dict[int, NDArray[np.bool_]] = {}
        self._representatives: dict[int, list[int]] = {}

    def allowed(self, block: int) -> NDArray[np.bool_]:
        """Whether a block may start at each device; (stride,)."""
        if block not in self._allowed:
            first = self.origins + np.arange(self.stride - block + 1)
            good = np.ones(first.shape, dtype=np.bool_)
            for g in self.group_sizes:
                inside = first // g == (first + block - 1) // g
                good &= inside | ((first % g == 0) & (block % g == 0))
            result = np.zeros(self.stride, dtype=np.bool_)
            result[: self.stride - block + 1] = good.all(axis=0)
            self._allowed[block] = result
        return self._allowed[block]

    def representatives(self, block: int) -> list[int]:
        """One start for every class of places that a block may take, ascending."""
        if block not in self._representatives:
            starts = np.flatnonzero(self.allowed(block))
            _, first = np.unique(self.classes[starts], return_index=True)
            self._representatives[block] = sorted(int(s) for s in starts[first])
        return self._representatives[block]

    def prices(self, block: int, starts: Ints, numbers: dict[tuple[int, int], int]) -> Ints:
        """Price of a block at ``starts`` (the last is the end), -1 where it may not start."""
        known = np.array([numbers.get((block, c), -1) for c in range(self.classes.max() + 1)])
        result = np.full(len(starts), -1, dtype=np.int64)
        inner = starts[:-1]
        result[:-1] = np.where(self.allowed(block)[inner], known[self.classes[inner]], -1)
        return result
