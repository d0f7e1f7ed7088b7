"""Where blocks of devices lie in the levels of the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def aligned(start: int, size: int, group_sizes: Sequence[int]) -> bool:
    """Whether devices ``start..start+size`` lie in one group or are whole groups, in all levels."""
    for g in group_sizes:
        inside = start // g == (start + size - 1) // g
        whole = start % g == 0 and size % g == 0
        if not (inside or whole):
            return False
    return True


def aligned_starts(
    start: NDArray[np.int64], size: int, group_sizes: Sequence[int]
) -> NDArray[np.bool_]:
    """:func:`aligned` for blocks of one size that start at each of ``start``, of any shape."""
    good = np.ones(start.shape, dtype=np.bool_)
    for g in group_sizes:
        inside = start // g == (start + size - 1) // g
        good &= inside | ((start % g == 0) & (size % g == 0))
    return good


def tile_of(
    start: NDArray[np.int64], size: int, group_sizes: Sequence[int]
) -> NDArray[np.int64]:
    """Number of the tile of blocks of one size, side by side, that each of some starts is in.

    It is the distance of the first block of the tile from the start of the smallest group that
    holds a block.
    """
    holds = next(g for g in group_sizes if g >= size)
    return start % holds % size


def replicas_alike(stride: int, group_sizes: Sequence[int]) -> bool:
    """Whether blocks ``stride`` apart lie in the groups of every level in the same way."""
    return all(stride % g == 0 or g % stride == 0 for g in group_sizes)


def shared_level(a: int, b: int, group_sizes: Sequence[int]) -> int:
    """Lowest level whose group holds both devices."""
    return next(v for v, g in enumerate(group_sizes) if a // g == b // g)


@lru_cache(maxsize=100_000)
def worst_level(
    a: int, b: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> int:
    """Highest level, over all replicas, that devices a and b of a super-pipeline share."""
    if replicas_alike(stride, group_sizes):
        outer_dp = 1
    return max(shared_level(r * stride + a, r * stride + b, group_sizes) for r in range(outer_dp))


def strides(devices: int, outer_dp: int, group_sizes: Sequence[int]) -> tuple[int, ...]:
    """Distances between super-pipelines to try: N/outer_dp rounded down to each group size."""
    share = devices // outer_dp
    found = {share} | {share // g * g for g in group_sizes}
    return tuple(sorted((s for s in found if s), reverse=True))


@lru_cache(maxsize=100_000)
def place_class(
    start: int, outer_dp: int, stride: int, group_sizes: tuple[int, ...]
) -> bytes:
    """Key of the spread of a block's replicas besides sizes; equal = same prices.

    Empty where all replicas lie in the groups in the same way: then all starts are equal.
    """
    if outer_dp == 1 or replicas_alike(stride, group_sizes):
        return b""
    origins = start + stride * np.arange(outer_dp)
    return b"".join((origins // g - start // g).tobytes() for g in group_sizes)
