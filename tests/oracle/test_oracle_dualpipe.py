"""DualPipe as ``evaluate`` prices it, against its naive twin."""

from __future__ import annotations

from random import Random
from typing import Any

import oracle_dualpipe as oracle
import pytest
from plain import stack

import nest
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.inputs import Configuration
from nest.model import build_chain
from nest.schedules.registry import chunks_at


def drawn(rng: Random) -> tuple[nest.Model, nest.Cluster, nest.Job, Configuration]:
    """A configuration that is seldom out of place.

    Raises
    ------
    InputError : more devices than there are.
    """
    experts = rng.random() < 0.6
    model = nest.load_model("mixtral-8x7b" if experts else "llama3-8b")
    cluster = nest.load_cluster(rng.choice(("dgx-h100", "h100-spine-leaf")), devices=64)
    pp, outer_dp = rng.choice((2, 4, 8)), rng.choice((1, 2, 4))
    ep = rng.choice((2, 4)) if experts else 1
    m = 2 * rng.randint(pp, pp + 6)
    job = nest.Job(global_batch=m * outer_dp * ep, seq_len=2048,
                   stack=stack(overlap_p2p=rng.choice((0.0, 0.5)), overlap_ep=rng.choice((0.5, 1))))
    given: dict[str, Any] = {"zero": rng.choice((0, 1, 1))}
    if given["zero"] and outer_dp > 1 and ep > 1 and rng.random() < 0.4:
        given["shard"] = "dp_in"
    plan = even_configuration(
        model, cluster, job, pp=pp, ep=ep, dp_in=ep, tp=2 if ep == 1 else 1, outer_dp=outer_dp,
        schedule="dualpipe", recompute=rng.choice(("none", "full")), **given)
    if rng.random() < 0.5:
        layers = plan.stages[0].chunks[-1][1]
        cuts = [0, *sorted(rng.randint(1, layers) for _ in range(pp - 1)), layers]
        plan = plan.replace(stages=[
            stage.replace(chunks=spans, layers=(spans[0][0], spans[-1][1]))
            for stage, spans in zip(plan.stages, chunks_at(cuts, pp, "dualpipe"), strict=True)])
    return model, cluster, job, plan


def test_prices_of_dualpipe_are_those_of_the_naive_twin() -> None:
    rng, seen = Random(31), dict[tuple[int, str], int]()
    while sum(seen.values()) < 60:
        try:
            model, cluster, job, plan = drawn(rng)
            found = nest.evaluate(model, cluster, job, plan)
        except InputError:
            continue
        wanted = oracle.price(build_chain(model), cluster, job, plan)
        assert found.step_time_s == pytest.approx(wanted.step, rel=1e-9), plan
        for stage, held in zip(found.stages, wanted.memory, strict=True):
            assert stage.memory_bytes.total == pytest.approx(held, rel=1e-9), plan
        key = plan.stages[0].zero, plan.stages[0].shard
        seen[key] = seen.get(key, 0) + 1
    assert min(seen[0, "dp"], seen[1, "dp"], seen[1, "dp_in"]) >= 5
