"""Plans that are the same under different names, and `top`, which lists only those that differ."""

from __future__ import annotations

from random import Random

import pytest
from instances import instance
from random_plans import random_plan
from what_devices_do import what_devices_do

import nest
from nest.errors import InputError, NestError
from nest.inputs import Configuration, Job
from nest.model.legality import divisors
from nest.search.solution import distinct


def key(way: Configuration, job: Job) -> tuple[object, ...]:
    return distinct(way.outer_dp, way.micro_batch, way.pp, way.vpp, way.schedule,
                    job.global_batch // (way.outer_dp * way.micro_batch))


def names(way: Configuration, job: Job) -> list[Configuration]:
    """A plan with each number of replicas that its data parallelism may be divided into."""
    found = []
    if way.pp == 1:
        stage, width = way.stages[0], way.stages[0].tp * way.stages[0].cp
        dp = stage.dp_in * way.outer_dp
        for count in divisors(dp):
            block = dp // count * width
            if block % (stage.ep * stage.etp) == 0:
                at_once = way.micro_batch * way.outer_dp
                found.append(way.replace(
                    outer_dp=count, stride=block, micro_batch=at_once // count,
                    stages=(stage.replace(devices=(0, block), dp_in=dp // count),)))
    if job.global_batch == way.outer_dp * way.micro_batch and way.vpp == 1:
        found += [way.replace(schedule=name) for name in ("1f1b", "gpipe")]
    return found


def test_names_of_one_plan_count_once():
    """Devices do the same, so prices are equal, and `distinct` says so; and not the reverse."""
    renamed = 0
    for seed in range(24):
        x, rng = instance(seed), Random(f"names {seed}")
        for _ in range(12):
            way = random_plan(rng, x)
            if way.outer_dp > 1 and (way.stride != way.stages[-1].devices[1]
                                     or way.stages[0].shard == "dp_in"):
                continue
            try:
                plan = nest.evaluate(x.model, x.cluster, x.job, way)
                others = [nest.evaluate(x.model, x.cluster, x.job, other)
                          for other in names(way, x.job)]
            except InputError:
                continue
            for other in others:
                renamed += other.configuration != way
                assert what_devices_do(other.configuration, x.job) == what_devices_do(way, x.job)
                assert key(other.configuration, x.job) == key(way, x.job)
                assert other.step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)
    assert renamed > 50


@pytest.mark.kernels
def test_top_lists_plans_that_differ():
    several = 0
    for seed in range(0, 60, 2):
        x = instance(seed)
        try:
            plan = nest.plan(x.model, x.cluster, x.job, x.space, top=6, beyond_stack=True)
        except NestError:
            continue
        ways = [plan.configuration, *(other.configuration for other in plan.alternatives)]
        several += len(ways) > 2
        forms = [what_devices_do(way, x.job) for way in ways]
        assert all(a != b for n, a in enumerate(forms) for b in forms[:n]), seed
        assert len({key(way, x.job) for way in ways}) == len(ways)
        assert plan.alternatives_proved
    assert several > 5


@pytest.mark.kernels
def test_what_the_time_did_not_prove_is_said(monkeypatch):
    """A clock that ends in the search for the others: the plan is proved, they are not."""
    x, ticks = instance(2), []
    full = nest.plan(x.model, x.cluster, x.job, x.space, top=6, beyond_stack=True)
    assert full.optimal
    assert full.alternatives_proved

    class Clock:
        def perf_counter(self):
            ticks.append(0)
            return float(len(ticks))

    said = set()
    monkeypatch.setattr("nest.search.progress.time", Clock())
    for limit in range(1, 80):
        try:
            plan = nest.plan(x.model, x.cluster, x.job, x.space, top=6, time_limit=limit + 0.5,
                             beyond_stack=True)
        except NestError:
            continue
        said.add((plan.optimal, plan.alternatives_proved))
        if plan.alternatives_proved:
            assert plan.alternatives == full.alternatives
    assert (True, False) in said
    assert (True, True) in said
