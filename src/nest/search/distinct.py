"""Which groups the network sees alike, and the least figures of alike rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nest.costs.distinct import distinct_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def spread(group: Any) -> Ints:
    """A number for each group that the network sees alike."""
    if group.paths is None:
        return distinct_rows(*group.inside.T, group.even.astype(np.int64))[1]
    table = np.column_stack([group.inside, group.even, *group.paths]).astype(np.float64)
    rows = table.view(np.dtype((np.void, table.strides[0]))).ravel()  # one sort for all columns
    code: Ints = np.unique(rows, return_inverse=True)[1]
    return code


def least_of(figures: Floats, same: Ints) -> Floats:
    """Of rows with the same number the least of each figure, in the place of each; (C, ...)."""
    by = np.argsort(same, kind="stable")
    begin = np.flatnonzero(np.diff(same[by], prepend=-1))
    found: Floats = np.minimum.reduceat(figures[by], begin, axis=0)[same]
    return found
