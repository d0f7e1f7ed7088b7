"""Guarantee G1 where something is kept in the memory of the hosts: the planner and the oracle."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import oracle_prices
import pytest
from instances import Instance, instance
from oracle import solve
from oracle_plans import Answer

from nest.costs.choices import StageSetting
from nest.costs.host import kept_away
from nest.inputs import Cluster
from nest.inputs.offload import OFFLOAD_MODULES, Offload
from nest.model.legality import offload_problem
from nest.search.query import Query
from nest.search.ways import search

pytestmark = pytest.mark.kernels
INSTANCES = int(os.environ.get("NEST_INSTANCES", "96"))


def with_hosts(rng: Random, cluster: Cluster) -> Cluster:
    """The cluster with hosts of any speed, and more memory than anything takes."""
    memory = cluster.device.memory_bandwidth
    figures: dict[str, Any] = {
        "host_link": memory / rng.choice((2, 20, 100)), "host_memory": 1e15,
        "host_memory_bandwidth": memory / rng.choice((4, 20, 50))}
    return cluster.replace(
        device=cluster.device.replace(**figures),
        types=tuple(device.replace(**figures) for device in cluster.types))


def ways_of(rng: Random, x: Instance, cluster: Cluster) -> list[str]:
    """Legal texts of each kind."""
    has = [name for name in OFFLOAD_MODULES
           if offload_problem(x.chain, cluster, f"core_attn+{name}".replace(
               "core_attn+core_attn", "core_attn")) is None]
    chosen = [name for name in has if rng.random() < 0.6]
    if "attn_proj" in chosen and "core_attn" not in chosen:
        chosen.append("core_attn")
    texts = ["none", "optimizer", f"optimizer:{rng.choice((0.3, 0.75))}", "+".join(chosen),
             "+".join(("optimizer", *chosen)), rng.choice(("checkpoints", "optimizer+checkpoints"))]
    if x.chain.repeated > 1:
        texts.append(f"layers:{rng.randint(1, x.chain.repeated - 1)}")
    ways = dict.fromkeys(str(Offload.of(text)) for text in texts if text)
    return [text for text in ways if all(
        any(x.space.allows(name, value) for value in values)
        for name, values in Offload.of(text).needs.items())]


def best_of(x: Instance, cluster: Cluster, text: str) -> Answer:
    """By the oracle, which takes the costs of a layer from the package."""
    gone, space = kept_away(x.chain, text), x.space
    for name, values in Offload.of(text).needs.items():
        space = space.replace(**{name: [one for one in values if space.allows(name, one)]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle_prices, "StageSetting",
                      lambda *inputs, waits: StageSetting(*inputs, gone, waits))
        return solve(x.chain, cluster, x.job, space)


@pytest.mark.parametrize("start", range(0, INSTANCES, 40))
def test_no_way_to_use_the_hosts_is_better(start):
    chosen: set[str] = set()
    for seed in range(start, min(start + 40, INSTANCES)):
        x, rng = instance(seed), Random(f"hosts {seed}")
        if x.cluster.links is not None:
            continue
        cluster = with_hosts(rng, x.cluster)
        ways = rng.sample(found := ways_of(rng, x, cluster), min(4, len(found)))
        oracle = {text: best_of(x, cluster, text).seconds for text in ways}
        plan = search(Query(x.chain, cluster, x.job, x.space.replace(offload=ways),
                            beyond_stack=True))
        fitting = [seconds for seconds in oracle.values() if seconds is not None]
        assert plan.step_time == pytest.approx(min(fitting, default=float("inf")), rel=1e-9), seed
        assert plan.lower_bound == plan.step_time
        if plan.configuration is not None:
            chosen.add(plan.configuration.offload.partition(":")[0])
            best = oracle[plan.configuration.offload]
            assert best == pytest.approx(plan.step_time, rel=1e-9), seed
    assert start or len(chosen) > 2, "some best plans keep something on the hosts"
