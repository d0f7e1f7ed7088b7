"""Questions that dominate others: every plan of theirs is legal, fits and is no slower."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from instances import Instance, instance
from random_plans import random_plan

import nest
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of, priced
from nest.evaluation.even import even_configuration
from nest.inputs.job import Factors
from nest.inputs.loading import load_stack
from nest.questions import Question
from nest.schedules.registry import SCHEDULES
from nest.search.question_bound import least_seconds
from nest.studies.standing import rates_count, standing, wider

ROUNDING = 1.0 + 1e-12
PLAIN = nest.SearchSpace(schedule="1f1b,gpipe,interleaved")


def better(rng: Random, cluster: nest.Cluster, job: nest.Job) -> tuple[nest.Cluster, nest.Job]:
    """One figure of a question, made better by up to four times."""
    times, device, levels = rng.uniform(1.0, 4.0), cluster.device, [*cluster.levels]
    what = rng.choice((
        "memory", "memory_reserved", "memory_bandwidth", "launch_overhead", "peak", "margin",
        "bandwidth", "efficiency", "latency", "base_time", "ramp"))
    if what == "margin":
        return cluster, job.replace(memory_margin=job.memory_margin / times)
    if what == "peak":
        name = rng.choice([*device.peak_flops])
        peaks = {**device.peak_flops, name: times * device.peak_flops[name]}
        return cluster.replace(device=device.replace(peak_flops=peaks)), job
    if hasattr(device, what):
        more = getattr(device, what) * (
            times if what in ("memory", "memory_bandwidth") else 1.0 / times)
        return cluster.replace(device=device.replace(**{what: more})), job
    n = rng.randrange(len(levels))
    level = levels[n]
    if what == "bandwidth":
        changed = (level.replace(bandwidth=level.bandwidth * times) if level.bandwidth else
                   level.replace(oversubscription=max(1.0, (level.oversubscription or 1) / times)))
    elif what == "efficiency":
        changed = level.replace(efficiency=min(1.0, level.efficiency * times))
    else:
        changed = level.replace(**{what: getattr(level, what) / times})
    levels[n] = changed
    return cluster.replace(levels=tuple(levels)), job


def asked(x: Instance, cluster: nest.Cluster, job: nest.Job) -> Question:
    return Question.model_construct(model=x.model, profile=None, cluster=cluster, job=job,
                                    space=PLAIN, search=Question.model_fields[
                                        "search"].get_default(call_default_factory=True))


def test_no_plan_is_slower_where_a_question_dominates() -> None:
    compared = 0
    for seed in range(100):
        x, rng = instance(seed), Random(seed)
        if x.chain.model is None or x.cluster.links is not None:
            continue
        cluster, job = better(rng, x.cluster, x.job)
        one, other = (standing(asked(x, *each)) for each in ((cluster, job), (x.cluster, x.job)))
        if not rates_count(x.chain.model, x.job, PLAIN) and one.same != other.same:
            continue
        assert one.same == other.same
        assert all(a >= b for a, b in zip(one.figures, other.figures, strict=True))
        for _ in range(6):
            way = random_plan(rng, x)
            try:
                before = priced(x.chain, x.cluster, x.job, way)
            except InputError:
                continue
            after = priced(x.chain, cluster, job, way)
            assert after.step_time_s <= before.step_time_s * ROUNDING, seed
            assert after.feasible or not before.feasible, seed
            compared += 1
    assert compared > 100


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_is_slower_where_a_question_dominates(schedule: str) -> None:
    model = nest.load_model("mixtral-8x7b")
    cluster = nest.load_cluster("dgx-h100", devices=64)
    stack = load_stack("megatron-core").replace(expert_overhead=0.0)
    job = nest.Job(global_batch=128, seq_len=1024, stack=stack)
    space = nest.SearchSpace(schedule=schedule)
    assert rates_count(model, job, space)
    vpp = 1 if schedule in ("1f1b", "gpipe", "zb1p") else 2
    for tp in (1, 2):
        way = even_configuration(
            model, cluster, job, pp=4, tp=tp, ep=2, micro_batch=8, outer_dp=2, vpp=vpp,
            schedule=schedule, sp=tp > 1)
        before = nest.evaluate(model, cluster, job, way)
        for seed in range(25):
            after = nest.evaluate(model, *better(Random(seed), cluster, job), way)
            assert after.step_time_s <= before.step_time_s * ROUNDING, seed


def wrong(model: nest.Model, fast: nest.Cluster, job: nest.Job, **given: Any) -> float:
    """How much longer a step takes with better figures, where it is known that one may."""
    slow = nest.load_cluster("dgx-h100", devices=64)
    assert not rates_count(model, job, nest.SearchSpace(schedule=given.get("schedule", "1f1b")))
    way = even_configuration(model, slow, job, **given)
    return (nest.evaluate(model, fast, job, way).step_time_s
            / nest.evaluate(model, slow, job, way).step_time_s)


def test_a_late_host_and_divided_backwards_make_faster_devices_slower() -> None:
    cluster = nest.load_cluster("dgx-h100", devices=64)
    peaks = {name: 2.0 * peak for name, peak in cluster.device.peak_flops.items()}
    stack = load_stack("megatron-core").replace(layer_overhead=0.02)
    assert wrong(
        nest.load_model("mixtral-8x7b"),
        cluster.replace(device=cluster.device.replace(peak_flops=peaks)),
        nest.Job(global_batch=64, seq_len=4096, stack=stack),
        schedule="zb1p", pp=4, ep=8, micro_batch=8, outer_dp=2) > 1.05


def test_learned_factors_make_a_faster_network_slower() -> None:
    cluster = nest.load_cluster("dgx-h100", devices=64)
    stack = load_stack("megatron-core").replace(
        learned=Factors(compute=1.0, tp=0.1), layer_overhead=0.02)
    assert wrong(
        nest.load_model("llama3-8b"),
        cluster.replace(levels=tuple(
            level.replace(bandwidth=8.0 * level.bandwidth) for level in cluster.levels)),
        nest.Job(global_batch=64, seq_len=4096, stack=stack), tp=8) > 1.0 + 1e-4


def test_what_is_not_proved_has_to_be_the_same() -> None:
    model = nest.load_model("mixtral-8x7b")
    slow = nest.load_cluster("dgx-h100", devices=64)
    fast = slow.replace(levels=tuple(
        level.replace(bandwidth=2.0 * level.bandwidth) for level in slow.levels))
    stack = load_stack("megatron-core").replace(layer_overhead=1e-3)
    job = nest.Job(global_batch=64, seq_len=4096, stack=stack)

    def stands(cluster: nest.Cluster, job: nest.Job, space: nest.SearchSpace) -> Any:
        return standing(Question(model=model, cluster=cluster, job=job, space=space))

    every, plain = nest.SearchSpace(), PLAIN
    assert stands(slow, job, every).same != stands(fast, job, every).same
    assert stands(slow, job, plain).same == stands(fast, job, plain).same
    for changed in (job.replace(seq_len=2048), job.replace(optimizer="sgd"),
                    job.replace(expert_imbalance=1.5)):
        assert stands(slow, job, plain).same != stands(slow, changed, plain).same
    other = slow.with_devices(32)
    assert stands(slow, job, plain).same != stands(other, job, plain).same
    tighter = job.replace(memory_margin=0.3)
    one, less = stands(slow, job, every), stands(slow, tighter, every)
    assert one.same == less.same and one.figures[0] > less.figures[0]


@pytest.mark.parametrize(("one", "other", "holds"), [
    ({}, {"tp": 8}, True), ({"tp": 8}, {}, False), ({"tp": "1..8"}, {"tp": "2,4"}, True),
    ({"tp": "1,2"}, {"tp": "2,4"}, False), ({}, {"group": 4}, False),
    ({"group": "2..8"}, {"group": 4}, True), ({}, {"cuda_graphs": "none"}, False),
    ({"recompute": "none,full"}, {"recompute": "full"}, True),
    ({"schedule": "1f1b,gpipe"}, {"schedule": "gpipe"}, True),
    ({"schedule": "1f1b"}, {}, False), ({}, {"schedule": "1f1b"}, False),
    ({"offload": "none,optimizer"}, {}, True), ({}, {"offload": "optimizer"}, False),
])
def test_a_space_that_holds_another(one: dict, other: dict, holds: bool) -> None:
    assert wider(nest.SearchSpace(**one), nest.SearchSpace(**other)) is holds


def test_no_plan_takes_less_than_the_totals_of_its_question() -> None:
    compared, nearest = 0, 0.0
    for seed in range(200):
        x, rng = instance(seed), Random(seed)
        if x.chain.model is None:
            continue
        least = least_seconds(x.chain, x.cluster, x.job)
        for _ in range(6):
            try:
                plan = priced(x.chain, x.cluster, x.job, random_plan(rng, x))
            except InputError:
                continue
            if plan.feasible:
                assert least <= plan.step_time_s * ROUNDING, seed
                nearest = max(nearest, least / plan.step_time_s)
                compared += 1
    assert compared > 100 and nearest > 0.3


@pytest.mark.parametrize(("name", "devices", "tp", "precision"), [
    ("llama3-8b", 8, 1, "bf16"), ("llama3-8b", 8, 2, "fp8"), ("gpt2-xl", 8, 1, "bf16")])
def test_totals_are_near_real_plans(name: str, devices: int, tp: int, precision: Any) -> None:
    model, cluster = nest.load_model(name), nest.load_cluster("dgx-h100", devices=devices)
    job = nest.Job(global_batch=256, seq_len=1024, precision=precision)
    plan = nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=tp, mbs=2, zero=1, sp=tp > 1))
    assert 0.3 < least_seconds(chain_of(model), cluster, job) / plan.step_time_s < 1.0


def test_nothing_holds_a_model_that_is_too_large() -> None:
    model, cluster = nest.load_model("llama3.1-405b"), nest.load_cluster("dgx-h100", devices=8)
    assert least_seconds(chain_of(model), cluster, nest.Job(global_batch=8, seq_len=128)) > 1e300
