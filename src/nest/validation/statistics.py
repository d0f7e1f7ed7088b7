"""Statistics of prices against measurements, on plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

DIFFERENT = 0.05
"""Runs whose measured seconds differ by no more are alike: repeats of one run differ by 2 to 8 %
(chosen below the upper end of that)."""
FEWEST = 3  # configurations that an order is made of


def median(values: Iterable[float]) -> float | None:
    """Middle value, the mean of two where their number is even; None: there are none."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def mean(values: Iterable[float]) -> float | None:
    """Mean; None: there are no values."""
    found = list(values)
    return sum(found) / len(found) if found else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda n: values[n])
    found = [0.0] * len(values)
    start = 0
    for stop in range(1, len(order) + 1):
        if stop == len(order) or values[order[stop]] != values[order[start]]:
            for place in range(start, stop):
                found[order[place]] = (start + 1 + stop) / 2
            start = stop
    return found


def spearman(measured: Sequence[float], predicted: Sequence[float]) -> float | None:
    """Spearman's rank correlation, -1 to 1.

    None for fewer than three values, for measurements that are all alike, or where all values of
    one side are equal.
    """
    if len(measured) < FEWEST or max(measured) <= min(measured) * (1.0 + DIFFERENT):
        return None
    a, b = ranks(measured), ranks(predicted)
    centre = (len(a) + 1) / 2
    spread = [sum((x - centre) ** 2 for x in side) for side in (a, b)]
    if not all(spread):
        return None
    together = sum((x - centre) * (y - centre) for x, y in zip(a, b, strict=True))
    return float(together / (spread[0] * spread[1]) ** 0.5)


def ordered(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Pairs that predictions put in the right order, and pairs that measurements tell apart.

    Measurements tell two runs apart where they differ by more than ``DIFFERENT`` of the smaller.
    """
    right = told = 0
    for (m, p), (n, q) in combinations(zip(measured, predicted, strict=True), 2):
        if max(m, n) > min(m, n) * (1.0 + DIFFERENT):
            told += 1
            right += (m - n) * (p - q) > 0
    return right, told
