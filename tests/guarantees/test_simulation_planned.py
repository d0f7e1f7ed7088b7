"""The closed forms against the simulation on plans that ``nest.plan`` finds.

A search favours what its prices flatter, so these say more of a step time than plans at random.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from simulated_plans import CLUSTERS, EVEN, Case, cluster, model, spread
from test_simulation_plans import CLOSE, errors, table

import nest
from nest.errors import InfeasibleError
from nest.evaluation.plans import Plan
from nest.inputs.loading import load_stack
from nest.simulation import Simulation, simulate

pytestmark = pytest.mark.kernels
COUNT = 60
SMALL = ("small", "gpt2-xl", "bert-large", "llama3-8b", "llama2-7b", "qwen3-30b-a3b")
SPACE: dict[str, Any] = {
    "cp": 1, "sp": True, "recompute": "none,selective,full", "recompute_modules": "core_attn",
    "recompute_layers": "1000",
}


def drawn(rng: Random) -> Plan | None:
    """The best plan of a random question; None where nothing fits."""
    subject = model(rng.choice(SMALL))
    where = cluster(rng.choice(CLUSTERS), rng.choice((8, 16, 32)))
    job = nest.Job(global_batch=rng.choice((16, 32, 64, 128, 512)),
                   seq_len=rng.choice((512, 1024, 2048)),
                   stack=load_stack(rng.choice(("megatron-core", "megatron-core", "fsdp",
                                                "megatron-2021"))))
    space = dict(SPACE)
    if rng.random() < 0.5:
        space["pp"] = rng.choice(("2..4", "4..8", "2", "4"))
    if rng.random() < 0.4:
        space["zero"] = rng.choice((0, 1, 2, 3))
    if rng.random() < 0.3:
        space["schedule"] = rng.choice(("1f1b", "gpipe", "interleaved"))
        if space["schedule"] == "interleaved":
            space.pop("pp", None)
    try:
        return nest.plan(subject, where, job, nest.SearchSpace(**space), threads=1,
                         beyond_stack=True)
    except (InfeasibleError, nest.InputError):
        return None


@cache
def planned() -> tuple[tuple[Case, Simulation], ...]:
    found = []
    number = 0
    while len(found) < COUNT:
        plan = drawn(Random(f"planned {number}"))
        number += 1
        if plan is not None:
            case = Case(plan, plan.parallelism.schedule, spread(plan) < EVEN, plan.stages[0].zero)
            found.append((case, simulate(plan)))
    return tuple(found)


def test_plans_are_within_two_per_cent() -> None:
    print("\n" + table(planned()))
    assert np.mean(np.abs(errors(planned())) <= CLOSE) >= 0.99


def test_errors_do_not_grow() -> None:
    off = np.abs(errors(planned()))
    assert np.median(off) < 0.0005
    assert np.percentile(off, 95) < 0.001
    assert off.max() < 0.02
    busy = errors([(case, found) for case, found in planned() if case.zero > 1])
    assert np.abs(busy).max() < 0.02


def test_a_proved_plan_fits_when_it_is_simulated() -> None:
    for case, found in planned():
        limit = case.plan.stages[0].memory_limit_bytes
        assert found.peak_memory_bytes <= limit * (1 + 1e-9)
