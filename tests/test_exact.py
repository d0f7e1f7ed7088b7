"""Guarantees G1 to G3: the planner against the oracle, on random instances of every kind.

``NEST_INSTANCES`` sets how many (default 2,000; 120 where numba compiles nothing).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest
from instances import Instance, instance
from instances_finish import finish_instance
from oracle import Answer, price, solve

import nest
from nest.describe import Configuration

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
INSTANCES = int(os.environ.get("NEST_INSTANCES", "120" if WITHOUT_JIT else "2000"))
CHUNKS = 40
SEEN = 500
"""Instances among which every maximum and every choice has to occur."""
CLOSE = 1e-9


@cache
def solved(seed: int) -> Answer:
    x = instance(seed)
    return solve(x.chain, x.cluster, x.job, x.space)


def planned(x: Instance) -> nest.Plan | None:
    try:
        return nest.plan(x.model, x.cluster, x.job, x.space)
    except (nest.InfeasibleError, nest.InputError):  # the latter: a bound without legal value
        return None


def mismatch(x: Instance, best: Answer) -> str | None:
    """What the planner got wrong on an instance; None when all of it holds."""
    seed = x.seed
    plan = planned(x)
    if plan is None or best.seconds is None:
        if plan is None and best.seconds is None:
            return None
        return f"instance {seed}: oracle {best.seconds} s, plan {plan and plan.step_time_s} s"
    found = plan.step_time_s
    if abs(found - best.seconds) > CLOSE * best.seconds:
        return (f"instance {seed}: found {found} s, best of {best.plans} is {best.seconds} s: "
                f"{plan.configuration} against {best.configuration}")
    priced = price(x.chain, x.cluster, x.job, plan.configuration)
    if abs(found - priced.seconds) > CLOSE * priced.seconds:
        return f"instance {seed}: reports {found} s, its plan takes {priced.seconds} s"
    if not priced.fits:
        return f"instance {seed}: {priced.memory} bytes, {priced.limit} allowed"
    again = nest.evaluate(x.model, x.cluster, x.job, plan.configuration).step_time_s
    if abs(found - again) > CLOSE * again:
        return f"instance {seed}: reports {found} s, evaluate says {again} s"
    return None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_plan_is_the_best_of_all(chunk: int) -> None:
    wrong = [text for seed in range(chunk, INSTANCES, CHUNKS)
             if (text := mismatch(instance(seed), solved(seed)))]
    assert not wrong, "\n".join(wrong[:3])


@pytest.mark.parametrize("chunk", range(8))
def test_plan_is_the_best_where_the_finish_decides(chunk: int) -> None:
    wrong = []
    for seed in range(chunk, INSTANCES // 2, 8):
        x = finish_instance(seed)
        best = solve(x.chain, x.cluster, x.job, x.space)
        wrong += [text for text in [mismatch(x, best)] if text]
    assert not wrong, "\n".join(wrong[:3])


def test_maxima_occur() -> None:
    seen = [instance(seed) for seed in range(SEEN)]
    assert max(len(x.chain) for x in seen) == 7
    assert max(x.cluster.size for x in seen) == 16
    assert {len(x.cluster.levels) for x in seen} == {1, 2, 3, 4}
    assert max(solved(x.seed).plans for x in seen) > 1e5
    infeasible = sum(solved(x.seed).seconds is None for x in seen)
    assert 0.02 * SEEN < infeasible < 0.2 * SEEN


def traits(x: Instance, plan: Configuration) -> Iterator[str]:
    """What a plan makes use of."""
    stages, sizes = plan.stages, x.cluster.group_sizes
    for name in ("dp_in", "tp", "ep"):
        if max(getattr(s, name) for s in stages) > 1:
            yield name
    for s in stages:
        yield f"zero {s.zero}"
        yield f"recompute {s.recompute}"
        if x.chain.model is not None and x.chain.model.moe is not None and s.tp > 1:
            yield "etp = tp" if s.etp == s.tp else "etp 1"
    if plan.outer_dp > 1:
        yield "outer_dp"
        if any(plan.stride % g and g % plan.stride for g in sizes):
            yield "irregular stride"
    yield "pp 3" if plan.pp > 2 else f"pp {plan.pp}"
    if plan.micro_batch > 1:
        yield "micro_batch"
    if plan.outer_dp * plan.micro_batch < x.job.global_batch:
        yield "many micro-batches"
    if len({s.devices[1] - s.devices[0] for s in stages}) > 1:
        yield "uneven blocks"
    if len({(s.tp, s.dp_in, s.zero, s.recompute) for s in stages}) > 1:
        yield "configurations per stage"
    if plan.outer_dp * stages[-1].devices[1] < x.cluster.size:
        yield "unused devices"


def test_every_choice_is_made_by_some_best_plan() -> None:
    made: set[str] = set()
    for seed in range(SEEN):
        best = solved(seed).configuration
        if best is not None:
            made.update(traits(instance(seed), best))
    assert made >= {
        "outer_dp", "dp_in", "tp", "ep", "etp = tp", "etp 1", "pp 1", "pp 2", "pp 3",
        "zero 0", "zero 1", "zero 2", "zero 3", "recompute none", "recompute selective",
        "recompute full", "micro_batch", "many micro-batches", "uneven blocks",
        "configurations per stage", "unused devices", "irregular stride",
    }
