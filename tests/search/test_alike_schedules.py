"""Every schedule that stacks have is chosen by some best plan of them, and rules hold."""

from __future__ import annotations

from typing import Any

import pytest
from test_alike import EXPERTS, MODEL, cluster

import nest
from nest.inputs import Job, load_model, load_stack
from nest.inputs.space import SearchSpace
from nest.model import build_chain
from nest.search.alike import pipelines

DEEPER = {**MODEL, "layers": 8}
ALONE: dict[str, Any] = {"tp": 1, "cp": 1, "mbs": 1, "outer_dp": 1, "dp_in": 1}


@pytest.mark.kernels
@pytest.mark.parametrize(("schedule", "group", "stack", "pp", "memory", "batch", "length"), [
    ("interleaved-zb", None, "torchtitan-eager", 2, "150 MiB", 2, 256),
    ("interleaved-zb", 2, "torchtitan-eager", 3, "110 MiB", 2, 256),
    ("interleaved", 3, "torchtitan", 2, "150 MiB", 3, 256),
    ("interleaved", 4, "megatron-core", 2, "150 MiB", 8, 256),
    ("interleaved", 3, "megatron-core", 2, "90 MiB", 9, 64),
    ("looped-bfs", None, "torchtitan", 2, "150 MiB", 5, 256),
    ("zb-v", None, "torchtitan-eager", 3, "90 MiB", 4, 256),
    ("dualpipev", None, "torchtitan-eager", 3, "400 MiB", 7, 1024),
    ("dualpipev", None, "deepspeed", 2, "150 MiB", 4, 256),
    ("zb1p", None, "megatron-deepspeed", 2, "400 MiB", 2, 256),
])
def test_a_best_plan_has_the_schedule(schedule, group, stack, pp, memory, batch, length):
    # What divides a backward pass, with the rates of a stack that compiles.
    job = Job(global_batch=batch, seq_len=length, memory_margin=0.1,
              stack=load_stack(stack.removesuffix("-eager")).replace(
                  workspace=0, capabilities=load_stack(stack).capabilities))
    model, where = load_model(DEEPER), cluster(memory)
    plan = nest.plan(model, where, job, SearchSpace(pp=pp, **ALONE), threads=1)
    assert (plan.configuration.schedule, plan.configuration.group) == (schedule, group)
    assert plan.runnable and plan.optimal
    text = " ".join(plan.report(details=True).split())
    assert (f"in groups of {group} micro-batches" in text) == (group is not None)
    everything = nest.plan(model, where, job, SearchSpace(pp=pp, **ALONE), threads=1,
                           beyond_stack=True)
    assert everything.step_time_s <= plan.step_time_s * (1.0 + 1e-9)


def test_schedules_of_a_stack_are_those_of_its_rules():
    def named(stack: str, model: dict[str, Any], **space: Any) -> set[str]:
        rules, chain = load_stack(stack).capabilities, build_chain(load_model(model))
        return {one.schedule for one in pipelines(chain, SearchSpace(**space), 4, True, rules)}

    plain = {"1f1b", "gpipe"}
    assert named("torchtitan", MODEL) - plain == {"interleaved", "looped-bfs"}
    assert named("torchtitan-eager", MODEL) - plain == {
        "interleaved", "zb1p", "interleaved-zb", "zb-v", "dualpipev", "looped-bfs"}
    assert named("deepspeed", MODEL) - plain == {"dualpipev"}
    assert named("deepspeed", {**MODEL, "tied_embeddings": True}) == plain  # a V has both ends
    assert named("megatron-core", EXPERTS) - plain == {"interleaved", "combined"}
    wanted = ("interleaved", "combined")
    assert named("megatron-core", EXPERTS, schedule=wanted) == {*wanted}
    assert named("megatron-core", MODEL, schedule=wanted) == {"interleaved"}  # it has no experts
    assert named("megatron-fsdp", EXPERTS, schedule=wanted) == set()


def test_chunks_of_schedules():
    chain = build_chain(load_model(DEEPER))
    rules = load_stack("torchtitan-eager").capabilities
    listed = pipelines(chain, SearchSpace(pp=2), 4, True, rules)
    found = {name: {one.vpp for one in listed if one.schedule == name}
             for name in ("zb1p", "zb-v", "dualpipev", "interleaved-zb")}
    assert found == {"zb1p": {1}, "zb-v": {2}, "dualpipev": {2}, "interleaved-zb": {2, 3, 4, 5}}


@pytest.mark.kernels
def test_a_best_plan_is_dualpipe():
    """Without naming it: four stages whose bubble is what two copies of the model save."""
    job = Job(global_batch=16, seq_len=256,
              stack=load_stack("megatron-core").replace(workspace=0))
    alone = SearchSpace(pp=4, tp=1, cp=1, mbs=1, outer_dp=1, dp_in=1)
    model, where = load_model(DEEPER), cluster("400 MiB")
    plan = nest.plan(model, where, job, alone, threads=1, beyond_stack=True)
    assert plan.configuration.schedule == "dualpipe"
    assert plan.optimal and not plan.runnable
    own = nest.plan(model, where, job, alone, threads=1)
    assert own.step_time_s > plan.step_time_s * (1.0 + 1e-3)
    assert nest.simulate(plan).step_time_s == pytest.approx(plan.step_time_s, rel=0.02)
