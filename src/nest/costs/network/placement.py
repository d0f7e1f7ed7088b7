"""Where blocks of devices lie in the levels of the network, and how levels divide their groups.

Device order inside a block, fastest first: tensor parallel, then context, then data parallel.
Expert layers fold the same devices as expert-tensor, expert, expert-data parallel (Megatron-Core
parallel folding, arXiv:2504.14960, section 3.2).
"""

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


# ---------------------------------------------------------------- groups


FEW = 4
"""Subgroups of a level for each member of a group up to which counting is faster than sorting."""


def count(members: NDArray[np.int64], group_sizes: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Fewest members per subgroup of each level over several groups, and whether all are even.

    Parameters
    ----------
    members : int64, shape (G, n)
        Device numbers of G groups of n devices.
    """
    fewest, even = [], True
    rows, size = np.arange(len(members))[:, None], members.shape[1]
    for g in group_sizes:
        group = members // g
        group -= group.min()
        wide = int(group.max()) + 1
        code = (rows * wide + group).ravel()
        if wide <= FEW * size:
            counts = np.bincount(code)
            counts = counts[counts > 0]
        else:
            counts = np.unique(code, return_counts=True)[1]
        fewest.append(int(counts.min()))
        even &= bool(counts.min() == counts.max())
    return tuple(fewest), even


@lru_cache(maxsize=100_000)
def inner_group(
    group_sizes: tuple[int, ...], block: int, stride: int, size: int
) -> tuple[tuple[int, ...], bool]:
    """Spread of the groups of ``size`` devices at distance ``stride`` that fill a block.

    ``stride * size`` divides ``block``, which is aligned: levels that hold the block hold every
    group, smaller levels divide the block from its start on. The worst group of the block counts.
    """
    span = stride * size
    regular = []
    for g in group_sizes:
        if g >= block or g % span == 0:
            regular.append(size)
        elif g % stride == 0 and span % g == 0:
            regular.append(g // stride)
        elif stride % g == 0:
            regular.append(1)
        else:
            break
    if len(regular) == len(group_sizes):
        return tuple(regular), True
    start = np.arange(0, block, span)[:, None, None] + np.arange(stride)[None, :, None]
    members = (start + stride * np.arange(size)[None, None, :]).reshape(-1, size)
    limits = tuple(g if g < block else block for g in group_sizes)
    return count(members, limits)


@lru_cache(maxsize=100_000)
def replica_group(
    group_sizes: tuple[int, ...], start: int, block: int, inner: int, outer_dp: int, stride: int
) -> tuple[tuple[int, ...], bool]:
    """Spread of the data-parallel groups of a block and its replicas.

    A group takes every ``inner``-th device of the block ``[start, start + block)`` and the same
    devices of every replica, ``stride`` apart. The worst group counts.
    """
    dp_in = block // inner
    regular, even = [], True
    for g in group_sizes:
        if g < block:
            if g % inner == 0:
                regular.append(g // inner)
            elif inner % g == 0:
                regular.append(1)
            else:
                break
        elif stride % g == 0 or outer_dp == 1:
            regular.append(dp_in)
        elif g % stride == 0:
            together = g // stride
            left = outer_dp % together if outer_dp > together else 0
            even &= left == 0
            regular.append(dp_in * (left or min(outer_dp, together)))
        else:
            break
    if len(regular) == len(group_sizes):
        return tuple(regular), even
    device = start + np.arange(inner)[:, None, None] + inner * np.arange(dp_in)[None, :, None]
    members = device + stride * np.arange(outer_dp)[None, None, :]
    return count(members.reshape(inner, -1), group_sizes)
