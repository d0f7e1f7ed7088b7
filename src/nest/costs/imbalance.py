"""Attention of ranks whose samples differ in length: the busiest, which a step waits for.

Shapes: C configurations.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_EDGE, _POINTS = 9.0, 3001
_AT = np.linspace(-_EDGE, _EDGE, _POINTS)
_BELOW = np.array([NormalDist().cdf(x) for x in _AT])


class Largest(NamedTuple):
    """The largest of some numbers drawn at random."""

    mean: float
    deviation: float


@lru_cache(maxsize=4096)
def largest_of(count: int) -> Largest:
    """Of ``count`` standard normal numbers, by integrals of their distribution's power."""
    below, width = _BELOW**count, 2.0 * _EDGE / (_POINTS - 1)
    mean = _EDGE - float(np.sum(below[1:] + below[:-1])) * width / 2.0
    twice = 2.0 * _AT * below
    square = _EDGE**2 - float(np.sum(twice[1:] + twice[:-1])) * width / 2.0
    return Largest(mean, math.sqrt(max(0.0, square - mean * mean)))


class Keys(NamedTuple):
    """Keys that a token of a sample sees in the mean, by its length."""

    length: float
    share: float
    """Of all tokens."""
    keys: float


def busiest(every: list[Keys], tokens: float, replicas: NDArray[np.int64], above: float) -> Array:
    """Pairs of the busiest of some ranks with data of their own, over the mean of all; (C,).

    A rank takes samples until it has its tokens. The pairs of T tokens are then, for many samples,
    normal with a variance of T times the sum of q(l) l (k(l) - K)^2, where q(l) of the tokens are
    in samples of length l and see k(l) keys, K in the mean (renewal rewards: Asmussen, Applied
    Probability and Queues, 2nd ed., theorem VI.3.2). Expected is the largest of ``replicas`` such
    numbers, and no more than if all samples were those that see most.

    Parameters
    ----------
    tokens : of a step, in all ranks.
    above : standard deviations of that largest number that are added: how a step differs from
        others.
    """
    mean = math.fsum(one.share * one.keys for one in every)
    most = max(one.keys for one in every) / mean
    varies = math.fsum(one.share * one.length * (one.keys - mean) ** 2 for one in every)
    values, number = np.unique(replicas, return_inverse=True)
    found = []
    for count in values.tolist():
        largest = largest_of(count)
        relative = math.sqrt(varies * count / tokens) / mean
        found.append(min(most, 1.0 + relative * (largest.mean + above * largest.deviation)))
    times: Array = np.array(found)[number]
    return times
