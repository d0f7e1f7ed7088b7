"""Each switch of bench/gains.py takes away one thing, and what is left is never better."""

from __future__ import annotations

from functools import cache

import gains
import plain
import pytest
from gains import Answer, Asked
from planner_instances import small_instance

import nest
from nest.inputs import Cluster, Job
from nest.model.legality import tensor_degrees

pytestmark = pytest.mark.kernels
SEEDS = range(16)
SELDOM = ("stages: one ep", "stages: one recompute", "places: tp-cp-dp-pp")
"""Switches that no plan of these small models and clusters need feel."""


@cache
def asked(seed: int) -> Asked | None:
    """A small model on a small cluster, its dimensions free; None: nothing fits."""
    x = small_instance(seed, devices=8, cuts=8, batch=6)
    found = Asked(x.model, x.cluster, x.job)
    return found if found.whole is not None else None


@cache
def answered(seed: int, name: str) -> Answer:
    """One switch."""
    one = asked(seed)
    assert one is not None
    return gains.SWITCHES[name](one)


@cache
def seen(name: str) -> tuple[int, int]:
    """How often a switch had something to switch off, and took longer then; it is never better."""
    off = slower = 0
    for seed in SEEDS:
        one = asked(seed)
        if one is None:
            continue
        answer = answered(seed, name)
        if answer.ratio is None:
            continue
        assert answer.ratio >= 1.0 - 1e-9 and answer.proven, (seed, answer)
        off += 1
        slower += answer.ratio > 1.0 + 1e-6
        if answer.plan is not None:
            one.price(answer.plan)  # legal on the true cluster
    return off, slower


@pytest.mark.parametrize("name", gains.SWITCHES)
def test_nothing_switched_off_is_better(name: str) -> None:
    """And the instances mean something."""
    off, slower = seen(name)
    assert off and slower or name in SELDOM


def test_the_network_keeps_its_groups_and_loses_its_figures() -> None:
    cluster = nest.load_cluster("h100-spine-leaf", devices=64)
    for given, bandwidth, latency in (
            (gains.figures(cluster, False), 900e9, 3.4), (gains.figures(cluster, True), 12.5e9, 16),
            (gains.worst(cluster), 12.5e9, 16)):
        same = gains.alike(cluster, given)
        assert same.group_sizes == cluster.group_sizes and same.device == cluster.device
        assert set(same.resolved_bandwidth) == {bandwidth}
        assert [1e6 * level.latency for level in same.levels] == pytest.approx([latency] * 3)
    dgx = nest.load_cluster("dgx-h100", devices=64)
    assert gains.worst(dgx) == {
        "bandwidth": dgx.resolved_bandwidth[-1], "latency": dgx.levels[-1].latency,
        "base_time": dgx.levels[0].base_time, "ramp": dgx.levels[0].ramp,
        "in_network_reduction": False}


def test_plans_are_the_best_of_what_they_were_planned_for() -> None:
    """For the network of one figure nothing is better than the plan found for it, and so on."""
    for seed in SEEDS:
        one = asked(seed)
        if one is None:
            continue
        for outermost in (False, True):
            blind = gains.alike(one.cluster, gains.figures(one.cluster, outermost))
            found = answered(seed, f"network: {'outer' if outermost else 'inner'}most figures").plan
            there = one.price(one.whole, blind).step_time_s
            assert one.price(found, blind).step_time_s <= there * (1.0 + 1e-9), seed
        same = answered(seed, "places: scattered")
        again = answered(seed, "places: scattered, replanned")
        assert again.ratio <= same.ratio * (1.0 + 1e-9) and same.plan == one.whole
        roomy = one.price(one.blind)
        assert roomy.step_time_s <= one.step * (1.0 + 1e-9), seed
        if roomy.feasible:
            assert roomy.step_time_s == pytest.approx(one.step, rel=1e-9)
            for name in ("then all recomputed", "then more ZeRO", "then more stages"):
                assert answered(seed, name) == Answer(None)


def test_repairs_keep_what_was_planned_without_memory() -> None:
    repaired = 0
    for seed in SEEDS:
        one = asked(seed)
        if one is None or one.price(blind := one.blind).feasible:
            continue
        plan = answered(seed, "then all recomputed").plan
        sharded = answered(seed, "then more ZeRO").plan
        assert {stage.recompute for stage in plan.stages} == {"full"}
        assert sharded is None or len({(s.zero, s.recompute) for s in sharded.stages}) == 1
        assert [stage.zero for stage in plan.stages] == [stage.zero for stage in blind.stages]
        for way in filter(None, (plan, sharded)):
            assert blind.micro_batch % way.micro_batch == 0
            assert [(s.layers, s.devices, s.tp, s.dp_in, s.ep) for s in way.stages] == [
                (s.layers, s.devices, s.tp, s.dp_in, s.ep) for s in blind.stages]
        more = answered(seed, "then more stages").plan
        if more is not None:
            repaired += 1
            assert more.pp >= blind.pp
            for name in ("tp", "cp", "ep", "zero", "shard"):
                assert {getattr(s, name) for s in more.stages} <= {
                    getattr(s, name) for s in blind.stages}, (seed, name)
    assert repaired


@pytest.mark.parametrize(("switch", "names"), [
    ("one tp", ("tp",)), ("one ZeRO", ("zero", "shard")),
    ("one recompute", ("recompute", "recompute_modules", "recompute_layers"))])
def test_stages_alike_are_alike_and_the_best_of_them(switch, names) -> None:
    differing = 0
    for seed in SEEDS:
        one = asked(seed)
        if one is None:
            continue
        answer, values = answered(seed, f"stages: {switch}"), one.chosen(*names)
        assert (answer.ratio is None) == (len(values) == 1), seed
        if answer.plan is None:
            continue
        differing += 1
        assert len({tuple(getattr(s, name) for name in names) for s in answer.plan.stages}) == 1
        if names == ("tp",):
            each = (one.best(tp=tp) for tp in tensor_degrees(one.chain, one.cluster.size))
            least = min(found.step_time for found in each)
            assert answer.ratio == pytest.approx(least / one.step, rel=1e-9), seed
    assert differing or switch == "one recompute"


def test_rank_orders_are_those_of_their_names() -> None:
    for seed in SEEDS:
        one = asked(seed)
        if one is None:
            continue
        order = answered(seed, "places: tp-cp-dp-pp")
        assert (order.ratio is None) == (one.whole.outer_dp == 1)
        assert order.plan is None or order.plan.outer_dp == 1
        order = answered(seed, "places: tp-cp-pp-dp")
        assert order.plan is None or {stage.dp_in for stage in order.plan.stages} == {1}


def test_llama3_70b_on_64_devices() -> None:
    """Without a limit on memory nobody needs tp: repairs keep tp 1, and pay for it."""
    cluster = nest.load_cluster("h100-spine-leaf", devices=64)
    one = Asked(nest.load_model("llama3-70b"), cluster, Job(global_batch=256, seq_len=4096))
    assert {stage.tp for stage in one.whole.stages} == {4} and one.whole.outer_dp == 1
    assert {stage.tp for stage in one.blind.stages} == {1} and len(one.blind.stages) == 1
    assert str(gains.SWITCHES["memory: no limit"](one)) == "does not fit"
    for name, zero in (("then more ZeRO", 3), ("then more stages", 1)):
        answer = gains.SWITCHES[name](one)
        assert 1.1 < answer.ratio < 2.0
        assert {(stage.tp, stage.zero) for stage in answer.plan.stages} == {(1, zero)}
    assert str(gains.SWITCHES["places: tp-cp-dp-pp"](one)) == "."  # the best plan has this order
    assert 1.0 < gains.anywhere(one, True).ratio < gains.anywhere(one, False).ratio
    ignored = gains.network(one, outermost=False)
    assert ignored.ratio > 1.5  # ZeRO-3 over leaves of 12.5 GB/s


def test_where_nothing_differs_nothing_is_gained() -> None:
    """Two devices with room for everything: one level, one block, one stage or two alike."""
    cluster = Cluster(name="c", device=plain.device(memory="1 TB"), levels=[
        {"name": "l", "size": 2, "bandwidth": 100e9, "latency": 1e-6}])
    one = Asked(plain.model(layers=2), cluster, Job(global_batch=4, seq_len=64))
    found = {name: str(switch(one)) for name, switch in gains.SWITCHES.items()}
    for name in ("network: innermost figures", "network: outermost figures", "memory: no limit",
                 "places: scattered", "places: scattered, replanned"):
        assert found[name] == "1.000", name
    assert [found[name] for name in found if name.startswith("then")] == ["."] * 3


def test_answers_as_text() -> None:
    assert [str(Answer(ratio)) for ratio in (None, 1.0, 1.2346, float("inf"))] == [
        ".", "1.000", "1.235", "does not fit"]
    assert str(Answer(1.5, proven=False)) == "1.500*"
    tables = gains.clusters()
    assert len(tables) == 4
    slow = next(cluster for title, cluster in tables.items() if title.startswith("Slow"))
    usual = nest.load_cluster("dgx-h100", devices=256)
    assert slow.resolved_bandwidth[0] == usual.resolved_bandwidth[0]
    assert slow.nominal_bandwidth[1:] == tuple(b / 16 for b in usual.nominal_bandwidth[1:])
