"""Rows that differ in some column, numbered in their order."""

from __future__ import annotations

import numpy as np
import pytest

from nest.costs.distinct import distinct_rows


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_numbered_by_their_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 200))
    most = 2 ** int(rng.integers(1, 62))
    kinds = [lambda: rng.integers(-most, most, length), lambda: rng.integers(0, 3, length),
             lambda: rng.choice([0.0, 0.1, np.inf, 1e300], length)]
    columns = [kinds[rng.integers(3)]() for _ in range(rng.integers(1, 9))]
    first, number = distinct_rows(*columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    ordered = sorted(set(rows))
    assert number.tolist() == [ordered.index(row) for row in rows]
    assert first.tolist() == [rows.index(row) for row in ordered]


def test_no_rows() -> None:
    first, number = distinct_rows(np.zeros(0, dtype=np.int64), np.zeros(0))
    assert not len(first) and not len(number)
