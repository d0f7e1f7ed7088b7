"""Which devices form a group, and how the levels of the network divide it.

Device order inside a block, fastest first: tensor parallel, then context, then data parallel.
Expert layers fold the same devices as expert-tensor, expert, expert-data parallel (Megatron-Core
parallel folding, arXiv:2504.14960, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
