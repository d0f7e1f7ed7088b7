"""Attention of ranks whose samples differ in length: what a step waits for.

Shapes: C configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from nest.schedules.registry import SCHEDULES
from nest.schedules.traits import Slack

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


Meeting = Literal["step", "block", "all"]
MEETINGS: tuple[Meeting, ...] = get_args(Meeting)
"""Which ranks with samples of their own finish each micro-batch together: none but those that share
experts, those of a block, all (ZeRO-3 gathers the parameters of every layer from them)."""


class Waits(NamedTuple):
    """How ranks wait for those with longer samples, the same in all stages of a plan."""

    stages: int = 1
    """Of the pipeline, as :func:`rounded`."""
    slack: Slack = "some"
    meet: Meeting = "step"
    above: float = 0.0
    """Standard deviations by which the busiest rank's samples are longer than expected."""


ALONE = Waits()
"""Replicas of one stage, which wait for each other once a step."""


def rounded(stages: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, ...: a search has a part for each, in which waits are alike."""
    two: int = 1 << max(0, stages - 1).bit_length()
    return two * 3 // 4 if stages <= two * 3 // 4 and two > 2 else two


def waits_of(
    pp: int, schedule: str, ways: Iterable[tuple[int, str]], above: float = 0.0
) -> Waits:
    """Those of a plan; ``ways``: ZeRO and what it shards over, of each stage."""
    every = [*ways]
    meet: Meeting = "step"
    if any(zero == 3 for zero, _ in every):
        meet = "all" if any(zero and shard == "dp" for zero, shard in every) else "block"
    return Waits(rounded(pp), SCHEDULES[schedule].slack if pp > 1 else "some", meet, above)


def waiting(stages: int, slack: Slack, m: int) -> float:
    """Standard deviations of a micro-batch that a pipeline of m unlike ones takes longer.

    To first order a step takes the most deviations on any of its longest paths. All forwards in a
    row take their sum and p - 1 times the longest one. Where a micro-batch comes back just when its
    stage would be idle without it, as in 1F1B, each trip takes as long as the largest of p;
    micro-batches in store make up for that but in warm-up and drain. Coefficients: pipelines drawn
    at random, of 2 to 16 stages, one to 64 times as many micro-batches, and deviations of 10 %;
    all within 25 %, tests/costs/test_waits.py.
    """
    if stages == 1 or m == 1:
        return 0.0
    if slack == "all":
        return (stages - 1) * largest_of(m).mean
    if slack == "some":
        return 0.62 * (stages - 1) * largest_of(min(m, 2 * stages)).mean
    return m * largest_of(min(m, stages)).mean * (1.0 - 1.25 / math.pow(m, 0.6))


class Ranks(NamedTuple):
    """Who takes the samples of a step; (C,)."""

    replicas: NDArray[np.int64]
    batches: NDArray[np.int64]
    """Micro-batches of each."""
    tokens: float
    """Of a step, in all ranks."""


def busiest(
    every: list[Keys], ranks: Ranks, meet: list[NDArray[np.int64]], waits: Waits
) -> Array:
    """Pairs that a step waits for, over the mean of all ranks with data of their own; (C,).

    A rank takes samples until it has its tokens. The pairs of T tokens are then, for many samples,
    normal with a variance of T times the sum of q(l) l (k(l) - K)^2, where q(l) of the tokens are
    in samples of length l and see k(l) keys, K in the mean (renewal rewards: Asmussen, Applied
    Probability and Queues, 2nd ed., theorem VI.3.2). Ranks that meet in each micro-batch take as
    long as the largest of such numbers, stages of a pipeline wait for unlike micro-batches
    (:func:`waiting`), and the step for the largest of the ranks' sums. No part is longer than if
    all samples were those that see most.

    Parameters
    ----------
    meet : ranks that finish each micro-batch together, the fewest that may first; more of them
        never take less.
    """
    mean = math.fsum(one.share * one.keys for one in every)
    most = max(one.keys for one in every) / mean
    varies = math.fsum(one.share * one.length * (one.keys - mean) ** 2 for one in every)
    values, number = np.unique(np.stack([ranks.replicas, ranks.batches, *meet]), axis=1,
                               return_inverse=True)
    found = []
    for replicas, m, *together in values.T.tolist():
        relative = math.sqrt(varies * replicas * m / ranks.tokens) / mean
        longest = max(_longer(waits, m, replicas, some) for some in together)
        found.append(min(most, 1.0 + relative * longest))
    times: Array = np.array(found)[number.reshape(-1)]
    return times


@lru_cache(maxsize=65536)
def _longer(waits: Waits, m: int, replicas: int, together: int) -> float:
    """Standard deviations of a rank's micro-batch, on each of the m + p - 1 that a step takes."""
    each, last = largest_of(together), largest_of(max(1, replicas // together))
    late = math.sqrt(m) * (last.mean + waits.above * last.deviation)
    trips = m + waits.stages - 1
    return each.mean + each.deviation * (waiting(waits.stages, waits.slack, m) + late) / trips
