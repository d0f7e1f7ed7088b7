"""No planner finds a plan in the space of NEST that is faster than NEST's own."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from random import Random

import pytest
from instances import Instance
from planner_instances import small_instance

import nest
from nest.costs.network.placement import strides
from nest.errors import InfeasibleError, NoPlanError
from nest.inputs import SearchSpace
from nest.model.legality import space_problems
from nest.planners import planner
from nest.planners.prices import outside

pytestmark = pytest.mark.kernels
BATCH = 30
INSTANCES = 60
"""Four of five have a bounded space."""
QUICK = ("manual", "zero", "exhaustive", "phaze", "piper")
BOUNDS: tuple[dict[str, str | int], ...] = (
    {"zero": "0,1"}, {"zero": "0,3"}, {"zero": 0}, {"recompute": "none,full"},
    {"recompute": "none"}, {"schedule": "1f1b"}, {"schedule": "1f1b,gpipe,interleaved"},
    {"pp": "1..2"}, {"tp": "1,2"}, {"outer_dp": "1,2"}, {"micro_batch": "1..4"}, {"dp_in": "1,2"},
)
FIRST, FIRST_SLOW = range(0, INSTANCES, BATCH), range(0, 30, 15)
"""The first instances of batches; the second of those that slow planners are asked, too."""


def question(seed: int) -> tuple[Instance, SearchSpace]:
    """An instance of 4 to 8 devices and few kinds of layers, every 17th with more; a space."""
    large, number = seed % 17 == 3, seed
    while True:
        x = small_instance(number, 16 if large else 8, cuts=8, batch=6)
        prices = len(x.chain.kinds) * len(x.cluster.levels)
        if x.cluster.size >= 4 and (large or prices <= 4):
            break
        number += 2 * INSTANCES + 1  # of another theme
    space = SearchSpace()
    if seed % 5:
        a, b, c = Random(f"bounds {seed}").sample(BOUNDS, 3)
        space = SearchSpace.parse({**a, **b, **c})
    return x, SearchSpace() if space_problems(x.chain, x.cluster, x.job, space) else space


def compare(seed: int, names: tuple[str, ...], options: dict[str, dict[str, int]]) -> Counter[str]:
    """Ask NEST and others; every plan of the space that fits is as slow as NEST's, or slower.

    Returns the plans compared of each planner, and how many of them are as fast as NEST's.
    """
    seen: Counter[str] = Counter()
    x, space = question(seed)
    try:
        least = nest.plan(x.model, x.cluster, x.job, space, threads=1,
                          beyond_stack=True).step_time_s
    except InfeasibleError:
        least = math.inf  # nobody's plan may fit
    for name in names:
        try:
            plan = planner(name, **options.get(name, {})).plan(x.model, x.cluster, x.job, space)
        except NoPlanError:
            continue
        if not plan.feasible or outside(space, x.chain, plan.configuration):
            continue
        q = plan.parallelism
        assert q.stride in strides(x.cluster.size, q.outer_dp, x.cluster.group_sizes), (seed, name)
        assert plan.step_time_s >= least * (1.0 - 1e-9), (seed, name, plan.step_time_s / least)
        seen[name] += 1
        seen[f"{name} as fast"] += plan.step_time_s <= least * (1.0 + 1e-9)
    return seen


@cache
def compared(first: int) -> Counter[str]:
    """A batch of instances."""
    return sum((compare(seed, QUICK, {}) for seed in range(first, first + BATCH)), Counter[str]())


@cache
def compared_slow(first: int) -> Counter[str]:
    """The same of slow planners."""
    return sum((compare(seed, ("alpa", "mcmc"), {"mcmc": {"proposals": 150, "seed": seed}})
                for seed in range(first, first + 15)), Counter[str]())


@pytest.mark.parametrize("first", FIRST)
def test_no_plan_is_faster(first: int) -> None:
    compared(first)


@pytest.mark.parametrize("first", FIRST_SLOW)
def test_nor_those_of_slow_planners(first: int) -> None:
    compared_slow(first)


def test_what_was_compared() -> None:
    """The instances mean something: many plans fit, and some are the best there is."""
    seen = sum([*map(compared, FIRST), *map(compared_slow, FIRST_SLOW)], Counter[str]())
    for name in QUICK:
        assert seen[name] > INSTANCES / 4, seen
        assert seen[f"{name} as fast"] > INSTANCES / 25, seen
    assert seen["alpa"] > 10 and seen["mcmc"] > 15, seen
