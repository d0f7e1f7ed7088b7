"""Which rows of columns of numbers differ, of groups too, and the least figures of alike rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FEW = 24
"""Up to so many rows Python is quicker than NumPy (measured)."""


def distinct_rows(*columns: Ints | Floats) -> tuple[Ints, Ints]:
    """Rows that differ in some column: the first of each, and the number of each row's."""
    if len(columns[0]) <= FEW:
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        numbers = {row: n for n, row in enumerate(sorted(set(rows)))}
        return (np.array([rows.index(row) for row in numbers], dtype=np.int64),
                np.array([numbers[row] for row in rows], dtype=np.int64))
    code: Any = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        # Small whole numbers need not be sorted, nor what is known of the columns before.
        number: Ints | Floats = column
        many = 0
        if column.dtype == np.int64 and len(column):
            number = column - column.min()
            many = int(number.max()) + 1
        if not 0 < many < 2**31:
            values, number = np.unique(column, return_inverse=True)
            many = len(values)
        if size * many > 2**62:
            values, code = np.unique(code, return_inverse=True)
            size = len(values)
        code, size = code * many + number, size * many
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return first.astype(np.int64), code.astype(np.int64)


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
