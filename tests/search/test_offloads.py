"""The search over what is kept in the memory of the hosts."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from test_alike import DEVICE, EXPERTS, LEVELS, MODEL, TIED, every, seconds_of

import nest
from nest.evaluation.even import even_configuration
from nest.inputs import Cluster, Job, load_cluster, load_model, load_stack
from nest.inputs.space import LARGEST, SearchSpace
from nest.model import build_chain
from nest.search.query import Query
from nest.search.ways import search

pytestmark = pytest.mark.kernels
HOST = {"host_link": "20 GB/s", "host_memory": "64 GiB", "host_memory_bandwidth": "50 GB/s"}
SPACE = SearchSpace(cp=1, tp=(1, 2), mbs=(1, 2), pp="1..3", vpp="1..2", zero="0,1")


def cluster(memory: str, **host: str) -> Cluster:
    return load_cluster({"name": "c", "device": {**DEVICE, **HOST, **host, "memory": memory},
                         "levels": LEVELS})


def job(stack: str) -> Job:
    return Job(global_batch=4, seq_len=256, memory_margin=0.0,
               stack=load_stack(stack).replace(workspace=0))


CASES = [
    ("megatron-core", TIED, "30 MiB", ("optimizer:0.5", "layers:1")),
    ("megatron-core", EXPERTS, "40 MiB", ("optimizer", "core_attn+attn_proj")),
    ("deepspeed", MODEL, "30 MiB", ("optimizer",)),
]
"""Without `none`, which test_alike.py has."""


@pytest.mark.parametrize(("stack", "model", "memory", "ways"), CASES)
def test_no_runnable_pipeline_is_faster(stack: str, model: Any, memory: str, ways: Any) -> None:
    """The naive enumeration prices each alike pipeline with each way."""
    model, where, batch = load_model(model), cluster(memory), job(stack)
    chain = build_chain(model)
    space = SearchSpace(
        cp=1, recompute_modules="core_attn", tp=(1, 2, 4), pp="1..3", vpp="1..2", zero=(0, 1),
        recompute_layers=f"1,{LARGEST}", offload=ways,
        **({"etp": 1, "ep": (1, 2)} if chain.experts else {}))
    found = search(Query(chain, where, batch, space))
    listed, best = [*every(chain, where, batch)], dict.fromkeys(ways, float("inf"))
    for text in ways:
        fitting = seconds_of(
            chain, where, batch, (way.replace(offload=text) for way in listed))
        assert len(fitting) > 10
        best[text], way = min(fitting, key=itemgetter(0))
        plan = nest.evaluate(model, where, batch, way)
        assert plan.runnable and plan.feasible and plan.step_time_s == best[text]
    assert found.step_time == pytest.approx(min(best.values()), rel=1e-9)
    assert found.lower_bound == found.step_time
    assert found.configuration is not None
    assert best[found.configuration.offload] == pytest.approx(found.step_time, rel=1e-9)


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("beyond", [True, False])
def test_plans_of_all_ways_are_ranked(beyond: bool) -> None:
    model, where, batch = load_model(TIED), cluster("28 MiB"), job("megatron-core")
    ways = ("none", "optimizer", "layers:1")
    alone = []
    for text in ways:
        try:
            alone.append(nest.plan(model, where, batch, SPACE.replace(offload=text), threads=1,
                                   top=3, beyond_stack=beyond))
        except nest.InfeasibleError:
            continue
    both = nest.plan(model, where, batch, SPACE.replace(offload=ways), threads=1, top=3,
                     beyond_stack=beyond)
    assert both.optimal and both.alternatives_proved and len(both.alternatives) == 2
    assert both.step_time_s == min(plan.step_time_s for plan in alone)
    least = sorted(other.step_time_s for plan in alone
                   for other in (plan, *plan.alternatives))
    assert all(other.step_time_s in least for other in both.alternatives)
    assert both.parallelism.offload == "optimizer"
    assert both.configuration.offload == "optimizer"
    assert nest.load_plan(both.model_dump(mode="json", by_alias=True)) == both
    assert nest.simulate(both).step_time_s == pytest.approx(both.step_time_s, rel=0.02)
    assert "Hosts        offload optimizer: at most" in both.report()


@pytest.mark.kernels(uncompiled=True)
def test_a_plan_that_uses_hosts_is_explained() -> None:
    model, where, batch = load_model(TIED), cluster("28 MiB"), job("megatron-core")
    plan = nest.plan(model, where, batch, SPACE.replace(offload="none,optimizer"), threads=1)
    found = nest.explain(plan, threads=1)
    assert plan.parallelism.offload == "optimizer"
    prices = [price for price in found.prices if price.resource != "devices"]
    assert prices and all(-0.02 < price.share <= 0.0 for price in prices)
    without = nest.plan(model, where, batch, SPACE, threads=1)
    assert without.step_time_s > plan.step_time_s


@pytest.mark.kernels(uncompiled=True)
def test_a_host_that_would_be_full_is_spared() -> None:
    model, batch = load_model(TIED), job("megatron-core")
    space = SPACE.replace(offload="optimizer", pp=1, tp=1, micro_batch=1, outer_dp="1,2")
    free = nest.plan(model, cluster("32 MiB"), batch, space, threads=1)
    where = cluster("32 MiB", host_memory=f"{int(0.9 * free.stages[0].host_bytes)} B")
    plan = nest.plan(model, where, batch, SPACE.replace(offload="optimizer"), threads=1)
    assert plan.feasible and plan.stages[0].host_bytes <= where.device.host_memory
    assert plan.lower_bound_s <= plan.step_time_s
    with pytest.raises(nest.LimitError, match="does not prove that there is none"):
        nest.plan(model, cluster("32 MiB", host_memory="1 MiB"), batch, space, threads=1)


def test_what_the_stack_cannot_keep_there_is_no_plan() -> None:
    with pytest.raises(nest.InputError, match="offload_optimizer 100: CPU offload moves"):
        nest.plan(load_model(MODEL), cluster("4 GiB"), job("torchtitan"),
                  SPACE.replace(offload="optimizer"), beyond_stack=False)


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("text", "pp"), [
    ("optimizer", 2), ("core_attn+attn_proj", 2), ("qkv_linear", 3), ("layers:2", 1)])
def test_the_simulation_agrees(text: str, pp: int) -> None:
    model, where, batch = load_model(MODEL), cluster("4 GiB", host_link="0.1 GB/s"), job(
        "megatron-core")
    plan = nest.evaluate(model, where, batch, even_configuration(
        model, where, batch, pp=pp, outer_dp=1, zero=1, offload=text))
    assert plan.runnable and plan.stages[0].host_bytes > 0.0
    assert (plan.breakdown_s.offload > 0.0) == (text != "optimizer")
    assert nest.simulate(plan).step_time_s == pytest.approx(plan.step_time_s, rel=2e-3)
