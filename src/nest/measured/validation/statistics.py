"""Statistics of prices against measurements, on plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

DIFFERENT = 0.05
"""Runs whose measured seconds differ by no more are equal: repeats of one run differ by 2 to 8 %
(chosen below the upper end of that)."""
FEWEST = 3  # fewest configurations for an order


def median(values: Iterable[float]) -> float | None:
    """Median; None: there are no values."""
    found = list(values)
    return statistics.median(found) if found else None


def mean(values: Iterable[float]) -> float | None:
    """Mean; None: there are no values."""
    found = list(values)
    return statistics.fmean(found) if found else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean."""
    from scipy.stats import rankdata  # takes long to import, and not all who read runs need it

    return [float(rank) for rank in rankdata(values)]


def spearman(measured: Sequence[float], predicted: Sequence[float]) -> float | None:
    """Spearman's rank correlation, -1 to 1.

    None for fewer than three values, for measurements that are all equal, or if all values of one
    side are equal.
    """
    if len(measured) < FEWEST or max(measured) <= min(measured) * (1.0 + DIFFERENT):
        return None
    if len(set(predicted)) == 1:
        return None
    return float(np.corrcoef(ranks(measured), ranks(predicted))[0, 1])


def ordered(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Pairs that predictions order correctly, and pairs that measurements distinguish.

    Measurements distinguish two runs if they differ by more than ``DIFFERENT`` of the smaller.
    """
    right = told = 0
    for (m, p), (n, q) in combinations(zip(measured, predicted, strict=True), 2):
        if max(m, n) > min(m, n) * (1.0 + DIFFERENT):
            told += 1
            right += (m - n) * (p - q) > 0
    return right, told
