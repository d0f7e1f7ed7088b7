"""The oracle against figures worked out by hand and against plain recursion over all plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from instances import Instance, instance
from oracle import options, outer_choices, price, solve
from oracle_rules import RECOMPUTE, Choice, Outer, alike_blocks, choices, spreads
from plain import device, stack

from nest.describe import (
    Cluster,
    Configuration,
    Device,
    Job,
    Profile,
    SearchSpace,
    StageConfiguration,
)
from nest.graph import Chain, profile_chain


def chain_of(*layers: tuple[float, float], parameters: float = 0.0, kept: float = 0.0) -> Chain:
    """Measured layers of (forward, backward) seconds at tp 1 that hand on 8 bytes a sample."""
    return profile_chain(Profile(name="chain", bytes_per_parameter=2, layers=[
        {"name": f"layer {n}", "output_bytes": 8.0, "tp": {1: {
            "forward": f, "backward": b, "parameter_bytes": parameters,
            "activation_bytes": kept}}}
        for n, (f, b) in enumerate(layers)
    ]))


def slow(memory: float) -> Device:
    """10 bytes/s of memory bandwidth."""
    return device(memory=memory, memory_bandwidth=10.0)


def cluster_of(*sizes: int, memory: float = 1000.0, latency: float = 0.5) -> Cluster:
    """Levels of 8, 4, 2 ... bytes/s."""
    return Cluster(name="cluster", device=slow(memory), levels=[
        {"name": f"level {n}", "size": size, "bandwidth": 8.0 / 2**n, "latency": latency}
        for n, size in enumerate(sizes)
    ])


def job_of(batch: int, **changes: Any) -> Job:
    return Job(global_batch=batch, seq_len=1, optimizer="sgd", stack=stack(**changes))


def test_one_device_one_stage() -> None:
    # 4 samples of 2 + 4 s, whatever the micro-batch; no parameters, so nothing follows.
    # Plans: micro-batch 1, 2, 4; ZeRO 0..3; three recompute policies, full one 2 s a sample slower.
    answer = solve(chain_of((2.0, 4.0)), cluster_of(1), job_of(4))
    assert answer.seconds == pytest.approx(24.0)
    assert answer.plans == 3 * 4 * 3
    assert answer.configuration is not None
    assert answer.configuration.stages[0].recompute != "full"


def test_optimizer_step_follows() -> None:
    # 20 bytes are 10 parameters; SGD on bf16 with fp32 gradients moves 4 + 8 + 2 bytes of each,
    # at 10 bytes/s: 14 s.
    answer = solve(chain_of((2.0, 4.0), parameters=20.0), cluster_of(1), job_of(1))
    assert answer.seconds == pytest.approx(6.0 + 14.0)


def two_stages(m: int, recompute: str = "none") -> Configuration:
    return Configuration(micro_batch=1, stride=2, stages=[
        {"layers": (0, 1), "devices": (0, 1), "recompute": recompute},
        {"layers": (1, 2), "devices": (1, 2)},
    ])


@pytest.mark.parametrize(("hidden", "seconds"), [(1.0, 13.0), (0.0, 16.0)])
def test_two_stages(hidden: float, seconds: float) -> None:
    # Without hand-over: F0 0-2, F1 2-4 | F0 2-3, B0 3-5, F1 5-6, B1 6-8 | B0 5-9, B1 9-13.
    # With 8 bytes over 8 bytes/s and 0.5 s each way: F0 0-2, F1 2-4 | F0 3.5-4.5, B0 4.5-6.5,
    # F1 6.5-7.5, B1 7.5-9.5 | B0 8-12, B1 12-16.
    chain, cluster = chain_of((2.0, 4.0), (1.0, 2.0)), cluster_of(2)
    job = job_of(2, overlap_p2p=hidden)
    assert price(chain, cluster, job, two_stages(2)).seconds == pytest.approx(seconds)
    # One device takes 2 x 9 s; two replicas of it 9 s, nothing to add up.
    assert solve(chain, cluster, job).seconds == pytest.approx(9.0)
    alone = SearchSpace(pp=2)
    assert solve(chain, cluster, job, alone).seconds == pytest.approx(seconds)


def test_memory_in_flight() -> None:
    # 1 parameter: 2 + 4 bytes, SGD keeps 4 more: 10 a layer. Activations 100 bytes a micro-batch,
    # the first stage holds two: 210, or recomputed in full 10 + 2 x 8 + 92 alive = 118.
    chain, job = chain_of((2.0, 4.0), (1.0, 2.0), parameters=2.0, kept=100.0), job_of(2)
    kept = price(chain, cluster_of(2), job, two_stages(2))
    assert kept.memory == pytest.approx((210.0, 110.0))
    again = price(chain, cluster_of(2), job, two_stages(2, "full"))
    assert again.memory == pytest.approx((118.0, 110.0))
    assert again.seconds > kept.seconds
    alone = SearchSpace(pp=2, zero=0)
    best = solve(chain, cluster_of(2, memory=150.0), job, alone)
    assert best.configuration is not None
    assert best.configuration.stages[0].recompute == "full"
    assert solve(chain, cluster_of(2, memory=117.0), job, alone).seconds is None


def test_finish_hides_under_the_stages_in_front() -> None:
    # The last stage's optimizer step (14 x 10 parameters / 10 bytes/s = 14 s) starts when its own
    # backward ends, 4 s before that of the first stage, whose step also takes 14 s: 14, not 10.
    chain, job = chain_of((2.0, 4.0), (1.0, 2.0), parameters=20.0), job_of(2, overlap_p2p=1.0)
    plan = two_stages(2)
    assert price(chain, cluster_of(2), job, plan).seconds == pytest.approx(13.0 + 14.0)


def test_blocks_of_every_level() -> None:
    # On levels 6 x 3 x 2, [1, 7) fills no group of 6 and lies in none.
    sizes = (6, 18, 36)
    assert alike_blocks(0, 1, sizes)
    assert not alike_blocks(1, 6, sizes)
    assert alike_blocks(6, 12, sizes)
    assert not alike_blocks(0, 9, sizes)
    assert not alike_blocks(12, 12, sizes)  # two groups of 6, but in two groups of 18
    assert alike_blocks(18, 18, sizes)


def test_spread_of_groups() -> None:
    # Levels of 2 and 4 devices, two replicas of a block of 4, tp 2: tp groups {0,1}, {2,3};
    # dp groups {0,2,4,6} and {1,3,5,7}: one in each pair, two in each four.
    tp, ep, etp, dp, expert = spreads((2, 4, 8), 2, 4, 0, 4, 2, 2, 1)
    assert tp == ((2, 2, 2), True)
    assert dp == ((1, 2, 4), True)
    # ep 2 without etp: {0,1} and {2,3}; expert dp {0,2,4,6} and {1,3,5,7}.
    assert (ep, etp, expert) == (((2, 2, 2), True), ((1, 1, 1), True), ((1, 2, 4), True))
    # Three replicas 2 apart on groups of 4: {0,2,4}, two members in one group, one in the other.
    assert spreads((4, 8), 3, 2, 0, 1, 1, 1, 1)[3] == ((1, 3), False)


def test_outer_choices() -> None:
    # 6 samples on 2 x 3 devices: outer_dp x micro_batch divides 6; strides of outer_dp 2 are
    # 3 and 2, of 3: 2; of 6: 1 and nothing else.
    found = outer_choices(cluster_of(2, 3), job_of(6), SearchSpace())
    assert {o.stride for o in found if o.outer_dp == 2} == {3, 2}
    assert {o.stride for o in found if o.outer_dp == 3} == {2}
    assert {o.stride for o in found if o.outer_dp == 6} == {1}
    assert {o.micro_batch for o in found if o.outer_dp == 2} == {1, 3}
    assert {o.outer_dp for o in found} == {1, 2, 3, 6}


@pytest.mark.parametrize("change", [
    {"devices": (0, 2)}, {"dp_in": 2}, {"tp": 2}, {"layers": (0, 2)}, {"etp": 2}, {"ep": 2},
    {"zero": 3},
])
def test_illegal_plans_are_refused(change: dict[str, Any]) -> None:
    plan = two_stages(2)
    changed = plan.replace(stages=(plan.stages[0].replace(**change), plan.stages[1]))
    job = job_of(2, zero_with_pipeline=(0, 1))
    with pytest.raises(ValueError, match="stage"):
        price(chain_of((2.0, 4.0), (1.0, 2.0)), cluster_of(2), job, changed)


def every_plan(
    chain: Chain, job: Job, outer: Outer, stages: list[Choice]
) -> Iterator[Configuration]:
    """Plain recursion: put any stage behind those chosen until no layer is left."""

    def grow(chosen: tuple[StageConfiguration, ...]) -> Iterator[Configuration]:
        layer, device = (chosen[-1].layers[1], chosen[-1].devices[1]) if chosen else (0, 0)
        if layer == len(chain):
            piped = len(chosen) == 1 or all(
                s.zero in job.stack.zero_with_pipeline for s in chosen)
            if piped:
                yield Configuration(outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                                    stride=outer.stride, stages=chosen)
            return
        for c in stages:
            if c.start == device:
                for stop in range(layer + 1, len(chain) + 1):
                    yield from grow((*chosen, StageConfiguration(
                        layers=(layer, stop), devices=(device, device + c.size), dp_in=c.dp_in,
                        tp=c.tp, sp=c.sp, ep=c.ep, etp=c.etp, zero=c.zero,
                        recompute=RECOMPUTE[c.recompute])))

    yield from grow(())


def prices_of_all(x: Instance) -> list[float] | None:
    """Seconds of every plan that fits; None where there are too many for plain recursion."""
    outers = outer_choices(x.cluster, x.job, x.space)
    stages = [list(choices(x.chain, x.cluster, x.job, x.space, outer)) for outer in outers]
    rows = [(n, c) for n, found in enumerate(stages) for c in found]
    if len(options(x.chain, x.job, outers, rows)) > 100:
        return None
    prices = []
    for outer, found in zip(outers, stages, strict=True):
        for plan in every_plan(x.chain, x.job, outer, found):
            if x.space.pp is None or plan.pp in x.space.pp:
                priced = price(x.chain, x.cluster, x.job, plan)
                prices += [priced.seconds] if priced.fits else []
    return prices


def test_solve_is_the_best_of_all_plans() -> None:
    checked = 0
    for seed in range(80):
        x = instance(seed)
        prices = prices_of_all(x)
        if prices is None:
            continue
        answer = solve(x.chain, x.cluster, x.job, x.space)
        checked += answer.plans > 1
        assert answer.plans == len(prices), seed
        if prices:
            assert answer.seconds == pytest.approx(min(prices), rel=1e-12), seed
        else:
            assert answer.seconds is None, seed
    assert checked >= 5
