"""The oracle against figures worked out by hand.

More of them, of schedules alone, and a plainer search are in test_oracle_plain.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from oracle import apart, price, solve
from oracle_listing import Question
from oracle_rules import (
    FULL,
    Policy,
    Split,
    State,
    alike_blocks,
    cuts,
    outer_choices,
    policies,
    spreads,
    states,
)
from plain import device, stack

from nest.inputs import Cluster, Configuration, Device, Job, Model, Profile, SearchSpace
from nest.model import Chain, build_chain, profile_chain


def chain_of(
    *layers: tuple[float, float], parameters: float = 0.0, kept: float = 0.0, repeat: int = 1,
    inputs: dict[int, list[str]] | None = None,
) -> Chain:
    """Measured layers of (forward, backward) seconds at tp 1 that hand on 8 bytes a sample."""
    named = inputs or {}
    return profile_chain(Profile(name="chain", bytes_per_parameter=2, layers=[
        {"name": f"layer {n}", "output_bytes": 8.0, "repeat": repeat, "inputs": named.get(n),
         "tp": {1: {"forward": f, "backward": b, "parameter_bytes": parameters,
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
    # Plans: micro-batch 1, 2, 4; ZeRO 0..3; recompute none or full, 2 s a sample slower.
    answer = solve(chain_of((2.0, 4.0)), cluster_of(1), job_of(4))
    assert answer.seconds == pytest.approx(24.0)
    assert answer.plans == 3 * 4 * 2
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
    # Levels of 2, 4 and 8 devices, two replicas of a block of 4, tp 2: tp groups {0,1}, {2,3};
    # dp groups {0,2,4,6} and {1,3,5,7}: one in each pair, two in each four.
    found = spreads((2, 4, 8), 2, 4, 0, 4, 2, 1, 2, 1)
    assert found.tp == ((2, 2, 2), True)
    assert found.dp == ((1, 2, 4), True)
    # ep 2 without etp: {0,1} and {2,3}; expert dp {0,2,4,6} and {1,3,5,7}.
    assert (found.ep, found.etp, found.expert_dp) == (
        ((2, 2, 2), True), ((1, 1, 1), True), ((1, 2, 4), True))
    # Inside a block {0,2} and {1,3}; over the replicas {0,4}, {1,5} ..
    assert found.inner == found.inner_expert == ((1, 2, 2), True)
    assert found.outer == ((1, 1, 2), True)
    # Three replicas 2 apart on groups of 4: {0,2,4}, two members in one group, one in the other.
    assert spreads((4, 8), 3, 2, 0, 1, 1, 1, 1, 1).dp == ((1, 3), False)


def test_context_lies_between_tensor_and_data() -> None:
    # A block of 8 with tp 2, cp 2, dp_in 2: cp groups {0,2}, {1,3}, {4,6}, {5,7}. All four with
    # the same t hold the same parameters: {0,2,4,6}.
    found = spreads((2, 4, 8), 1, 8, 0, 8, 2, 2, 1, 1)
    assert found.cp == ((1, 2, 2), True)
    assert found.dp == found.inner == ((1, 2, 4), True)
    assert found.outer == ((1, 1, 1), True)


def test_cuts_of_a_diamond() -> None:
    # 0 feeds 1 and 2, both feed 3: {}, {0}, {0,1}, {0,2}, {0,1,2}, all.
    chain = chain_of(*[(1.0, 1.0)] * 4, inputs={2: ["layer 0"], 3: ["layer 1", "layer 2"]})
    assert cuts(chain) == [0b0, 0b1, 0b11, 0b101, 0b111, 0b1111]
    assert cuts(chain_of(*[(1.0, 1.0)] * 3)) == [0, 1, 3, 7]


def test_recompute_policies() -> None:
    chain = chain_of(*[(1.0, 1.0)] * 3)
    none, whole = Policy(0, None), Policy(FULL, None)
    assert policies(chain, SearchSpace(), 3) == [none, whole, Policy(FULL, 1), Policy(FULL, 2)]
    full = SearchSpace(recompute="full", recompute_layers="2,5")
    # A stage with fewer layers takes all of its own.
    assert policies(chain, full, 3) == [whole, Policy(FULL, 2)]
    assert policies(chain, full, 2) == policies(chain, full, 0) == [whole]
    assert policies(chain, SearchSpace(recompute="full", recompute_layers=1), 3) == [
        Policy(FULL, 1)]
    model = Model(name="m", layers=1, hidden=64, heads=2, ffn=64, gated=True, vocab=64,
                  tied_embeddings=False, norm="rmsnorm", bias=False)
    # core_attn, norm, mlp_act and mlp: fifteen combinations.
    assert len(policies(build_chain(model), SearchSpace(recompute="selective"), 1)) == 15
    named = SearchSpace(recompute="selective", recompute_modules=["norm+core_attn", "moe"])
    assert policies(build_chain(model), named, 1) == [Policy(3, None)]
    # With latent attention all sets of norm, mlp_act, mlp and mla_up_proj too: 15, of which three
    # are among those seven.
    latent = model.replace(mla={
        "q_rank": 16, "kv_rank": 24, "nope_dim": 8, "rope_dim": 4, "value_dim": 10}, head_dim=12)
    found = policies(build_chain(latent), SearchSpace(recompute="selective"), 1)
    assert len({*found}) == len(found) == 7 + 12
    assert Policy(2 + 128, None) in found and Policy(1 + 128, None) not in found


def test_shards_of_zero() -> None:
    split, alone = Split(2, 1, False, 1, 1, False, 1, 1), Split(1, 2, True, 1, 1, False, 1, 2)
    job = job_of(1, zero_with_pipeline=(0, 1))
    assert states(job, SearchSpace(), 2, split, piped=True) == [
        State(0, 0), State(1, 0), State(1, 1)]
    assert len(states(job, SearchSpace(), 2, split, piped=False)) == 7
    assert len(states(job, SearchSpace(), 2, alone, piped=False)) == 4
    assert len(states(job, SearchSpace(), 1, split, piped=False)) == 4
    within = SearchSpace(shard="dp_in")
    assert states(job, within, 2, split, piped=True) == [State(0, 0), State(1, 1)]


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
    {"zero": 3}, {"cp": 2}, {"zero": 1, "shard": "dp_in"}, {"recompute": "selective"},
])
def test_illegal_plans_are_refused(change: dict[str, Any]) -> None:
    plan = two_stages(2)
    first = plan.stages[0].model_dump() | change
    if "layers" in change:
        first["chunks"] = (change["layers"],)
    if "recompute" in change:
        first["recompute_modules"] = ("norm",)
    changed = Configuration(micro_batch=1, stride=2, stages=[first, plan.stages[1]])
    job = job_of(2, zero_with_pipeline=(0, 1))
    with pytest.raises(ValueError, match="stage"):
        price(chain_of((2.0, 4.0), (1.0, 2.0)), cluster_of(2), job, changed)


# ---------------------------------------------------------------- other schedules, other graphs


def test_gpipe() -> None:
    # F0 0-2, F1 2-4 | F0 2-3, F1 4-5; B1 .. : two forwards, two backwards, each stage in turn:
    # 2 + 1 + 2 + 4 for the first micro-batch, and 2 + 4 for the other one.
    chain, cluster, job = chain_of((2.0, 4.0), (1.0, 2.0), kept=100.0), cluster_of(2), job_of(
        2, overlap_p2p=1.0)
    plan = Configuration(micro_batch=1, stride=2, schedule="gpipe", stages=two_stages(2).stages)
    found = price(chain, cluster, job, plan)
    assert found.seconds == pytest.approx(15.0)
    assert found.memory == pytest.approx((200.0, 200.0))  # all micro-batches on both
    space = SearchSpace(pp=2, schedule="gpipe", recompute="none", zero=0)
    assert solve(chain, cluster, job, space).seconds == pytest.approx(15.0)


def interleaved(kept: float = 0.0, **changes: Any) -> tuple[Chain, Job, Configuration]:
    """Four layers of 1 + 2 s dealt out to two devices in turn."""
    chain = chain_of((1.0, 2.0), repeat=4, kept=kept)
    stage = {"recompute": "none", **changes}
    plan = Configuration(micro_batch=1, stride=2, vpp=2, stages=[
        {"layers": (0, 3), "chunks": ((0, 1), (2, 3)), "devices": (0, 1), **stage},
        {"layers": (1, 4), "chunks": ((1, 2), (3, 4)), "devices": (1, 2), **stage},
    ])
    return chain, job_of(2, overlap_p2p=1.0), plan


def test_interleaved() -> None:
    # 2 x 6 s of work on each device; the first chunk of the other one, 1 + 2 s, is the bubble.
    chain, job, plan = interleaved(kept=100.0)
    found = price(chain, cluster_of(2), job, plan)
    assert found.seconds == pytest.approx(15.0)
    # Chunks in flight: min(4, 2 + 2 + 1) and min(4, 0 + 2 + 1), of 100 bytes each.
    assert found.memory == pytest.approx((400.0, 300.0))
    space = SearchSpace(pp=2, vpp=2, outer_dp=1, recompute="none", zero=0)
    answer = solve(chain, cluster_of(2), job, space)
    assert (answer.plans, answer.configuration) == (1, plan)
    # The same with one range each: the bubble is 2 + 4 s.
    plain = solve(chain, cluster_of(2), job, SearchSpace(pp=2, vpp=1, outer_dp=1))
    assert plain.seconds == pytest.approx(18.0)


def test_interleaved_hands_over_round_the_ring() -> None:
    # 8 bytes over 8 bytes/s and 0.5 s: 3 s there and back. Each of two rounds passes to the second
    # device, and one leads back: 2 x 3 + 3 s.
    chain, _, plan = interleaved()
    assert price(chain, cluster_of(2), job_of(2), plan).seconds == pytest.approx(15.0 + 9.0)


def test_first_layers_of_every_chunk() -> None:
    # Two chunks of two layers, the first of each recomputed: half the layers take 1 s more.
    chain = chain_of((1.0, 2.0), repeat=8, kept=100.0)
    plan = Configuration(micro_batch=1, stride=2, vpp=2, stages=[
        {"layers": (0, 6), "chunks": ((0, 2), (4, 6)), "devices": (0, 1), "recompute": "full",
         "recompute_layers": 1},
        {"layers": (2, 8), "chunks": ((2, 4), (6, 8)), "devices": (1, 2), "recompute": "full",
         "recompute_layers": 1},
    ])
    found = price(chain, cluster_of(2), job_of(2, overlap_p2p=1.0), plan)
    assert found.seconds == pytest.approx(2 * (4 * 3 + 2) + 2 * 3 + 1)
    # Of a chunk 8 + 100 bytes are kept; 92 of a layer come back while it is run again.
    assert found.memory == pytest.approx((4 * 108.0 + 92.0, 3 * 108.0 + 92.0))
    assert price(chain, cluster_of(2), job_of(2), plan.replace(stages=[
        s.replace(recompute_layers=2) for s in plan.stages])).memory[0] == pytest.approx(
        4 * 16.0 + 92.0)


def test_shards_within_the_block_cross_the_slow_level_less() -> None:
    # Levels of 8 and 4 bytes/s; two replicas of a block of 2; 10 parameters of 4 bytes of
    # gradient and 2 bytes each. ZeRO-1 over all four: 40 bytes scattered and 20 gathered, the
    # better of a ring (3/4 of them at 4 bytes/s) and a hierarchy. HSDP: half of them at 8 bytes/s
    # inside, then 20 bytes of gradients summed over the replicas: twice half of them at 4 bytes/s.
    chain, cluster = chain_of((1.0, 2.0), parameters=20.0), cluster_of(2, 2, latency=0.0)
    plan = Configuration(outer_dp=2, micro_batch=2, stride=2, stages=[
        {"layers": (0, 1), "devices": (0, 2), "dp_in": 2, "zero": 1, "shard": "dp_in"}])
    found = price(chain, cluster, job_of(4), plan)
    update = 14 * 5 / 10  # the optimizer moves 14 bytes of 5 parameters at 10 bytes/s
    inside, across = 0.5 * 40 / 8 + 0.5 * 20 / 8, 2 * 0.5 * 20 / 4
    assert found.seconds == pytest.approx(3.0 + inside + across + update)
    # 2 + 4 bytes of 10 parameters, 4 bytes of optimizer states of 5.
    assert found.memory == pytest.approx((80.0,))


def skipping() -> tuple[Chain, Configuration]:
    """0 feeds 1 and 2, 1 feeds 2; a stage each."""
    chain = chain_of(*[(1.0, 2.0)] * 3, kept=100.0, inputs={2: ["layer 0", "layer 1"]})
    return chain, Configuration(micro_batch=1, stride=3, stages=[
        {"layers": (n, n + 1), "devices": (n, n + 1)} for n in range(3)])


def test_a_tensor_is_relayed() -> None:
    # Stage 1 keeps its own input, which is the tensor that it passes on. One sample passes three
    # stages of 3 s; 8 bytes (1.5 s a way) behind the first, 16 (2.5 s) behind the second.
    chain, plan = skipping()
    cluster = cluster_of(3, memory=1e3)
    found = price(chain, cluster, job_of(1), plan)
    assert found.seconds == pytest.approx(9.0 + 2 * 1.5 + 2 * 2.5)
    assert found.memory == pytest.approx((100.0, 100.0, 100.0))
    space = SearchSpace(pp=3, recompute="none", zero=0)
    answer = solve(chain, cluster, job_of(1), space)
    assert answer.seconds == pytest.approx(found.seconds)
    assert answer.configuration is not None
    assert answer.configuration.order == (0, 1, 2)


def test_a_tensor_is_held_while_it_is_relayed() -> None:
    # 0 feeds 1 and 3 alone, 1 feeds 2, 2 feeds 3: layer 2 passes the output of 0 on, 8 bytes more.
    chain = chain_of(*[(1.0, 2.0)] * 4, kept=100.0, inputs={3: ["layer 0", "layer 2"]})
    plan = Configuration(micro_batch=1, stride=4, stages=[
        {"layers": (n, n + 1), "devices": (n, n + 1)} for n in range(4)])
    found = price(chain, cluster_of(4), job_of(1), plan)
    assert found.memory == pytest.approx((100.0, 100.0, 108.0, 100.0))


def test_layers_in_another_order() -> None:
    # 0 and 1 take nothing, 2 takes 0, and 3 takes 1 and 2. In the order of the model one of two
    # stages has 12 s or more; 1 alone has 9 s, and so have the others together.
    layers = (1.0, 2.0), (3.0, 6.0), (1.0, 2.0), (1.0, 2.0)
    chain = chain_of(*layers, inputs={1: [], 2: ["layer 0"], 3: ["layer 1", "layer 2"]})
    space = SearchSpace(pp=2, outer_dp=1, micro_batch=1, recompute="none", zero=0)
    answer = solve(chain, cluster_of(2), job_of(8, overlap_p2p=1.0), space)
    assert answer.configuration is not None
    assert answer.configuration.order == (1, 0, 2, 3)
    assert answer.seconds == pytest.approx(8 * 9.0 + 9.0)


def test_top_keys() -> None:
    chain, cluster, job = chain_of((2.0, 4.0), (1.0, 2.0)), cluster_of(2), job_of(2)
    answer = solve(chain, cluster, job, top=9)
    keys = [x.key for x in answer.best]
    # One stage on one device with micro-batch 1 or 2, or on two with dp_in 2, which two replicas of
    # it are too; two stages with micro-batch 1 or 2.
    assert len(keys) == 4
    assert {apart(key, job) for key in keys} == {
        (1, 1, 1, "1f1b"), (2, 1, 1, "1f1b"), ((1, 1), 2, 1, "1f1b"), ((1, 2), 2, 1, "1f1b")}
    assert [x.seconds for x in answer.best] == sorted(x.seconds for x in answer.best)
    assert solve(chain, cluster, job, top=2).best == answer.best[:2]
    for x in answer.best:
        assert price(chain, cluster, job, x.configuration).seconds == pytest.approx(x.seconds)


# ---------------------------------------------------------------- start and end of a step


def side_by_side(zero: int, batch: int, *layers: tuple[float, float], **changes: Any) -> float:
    """Seconds on two devices with 8 bytes/s between them; 10 parameters a layer.

    Of a layer 20 bytes are gathered (1.25 s) and 40 bytes of gradients scattered (2.5 s) or summed
    (5 s); the optimizer moves 14 bytes of each parameter at 10 bytes/s: 7 s of half of them.
    """
    plan = Configuration(micro_batch=2, stride=2, stages=[
        {"layers": (0, len(layers)), "devices": (0, 2), "dp_in": 2, "zero": zero}])
    chain, cluster = chain_of(*layers, parameters=20.0), cluster_of(2, latency=0.0)
    return price(chain, cluster, job_of(batch, **changes), plan).seconds


def test_zero_three_gathers_the_next_layer_meanwhile() -> None:
    # 3 + 6 s. Under layer 1 (1 s) its own parameters are gathered again, 0.25 s longer; under its
    # backward (2 s) those of 0; under that of 0 the gradients of 1 are scattered (2.5 s of 4 s).
    # Under layer 0 of the second micro-batch (2 s) those of 1 are gathered and the gradients of 0
    # scattered, 1.75 s longer. The first gather in front hides that of 1 under layer 0; the last
    # scatter and the optimizer follow.
    layers = (2.0, 4.0), (1.0, 2.0)
    found = side_by_side(3, 4, *layers, overlap_zero3=1.0)
    assert found == pytest.approx(1.25 + 9.25 + 1.75 + 9.25 + 2.5 + 14.0)
    # Half hidden: 0.25 s of the gather of 1 in front; 9 + 0.75 + 0.25 + 0.5 s each time. Then
    # parameters of 0 for the second micro-batch, 1.25 s longer, and 2.75 s under its forward.
    found = side_by_side(3, 4, *layers, overlap_zero3=0.5)
    assert found == pytest.approx(1.5 + 10.5 + 4.0 + 10.5 + 2.5 + 14.0)
    # Not gathered again for the backward.
    found = side_by_side(3, 4, *layers, overlap_zero3=1.0, reshard_after_forward=False)
    assert found == pytest.approx(1.25 + 9.0 + 1.75 + 9.0 + 2.5 + 14.0)


def test_zero_three_gathers_inner_layers_every_time() -> None:
    # Under layers 1 and 2 (1 s each) those of 2 and 3 are gathered, 0.25 s longer each; under 3
    # (2 s) its own again. Under its backward (1 s) those of 2, 0.25 s longer; under 2 and 1 (2 s
    # each) a gather and a scatter, 1.75 s longer each; under 0 (4 s) a scatter and its own gather.
    # The second micro-batch starts 1.75 s longer: a gather and a scatter under layer 0 (2 s).
    found = side_by_side(
        3, 4, (2.0, 4.0), (1.0, 2.0), (1.0, 2.0), (2.0, 1.0), overlap_zero3=1.0)
    assert found == pytest.approx(1.25 + 2 * (6.5 + 0.25 + 12.5) + 1.75 + 2.5 + 28.0)


def test_zero_three_of_one_layer() -> None:
    # Gathered again under its forward (1 s), 0.25 s longer. Between two micro-batches it is
    # gathered under its backward, 0.25 s longer, and scattered under the next forward, 2.5 s.
    found = side_by_side(3, 4, (1.0, 1.0), overlap_zero3=1.0)
    assert found == pytest.approx(1.25 + 2.25 + 0.25 + 2.5 + 2.25 + 2.5 + 7.0)


def test_a_scatter_delays_the_next_backward() -> None:
    # ZeRO-2, one layer: of 2.5 s of scatter, 1.5 s hide until the next backward ends, 1 s delays
    # it. Two micro-batches; parameters are gathered in front.
    found = side_by_side(2, 4, (0.5, 1.0), overlap_zero3=1.0)
    assert found == pytest.approx(1.25 + 2 * 1.5 + 1.0 + 2.5 + 7.0)
    # Two layers (3 s and 6 s in all): that of 1 hides under 0, that of 0 under what follows.
    found = side_by_side(2, 4, (2.0, 4.0), (1.0, 2.0), overlap_zero3=1.0)
    assert found == pytest.approx(2.5 + 2 * 9.0 + 2.5 + 14.0)
    # Of the two gathers, that of layer 1 hides under the forward of 0.
    found = side_by_side(2, 4, (2.0, 4.0), (1.0, 2.0), overlap_zero3=1.0, overlap_param_gather=0.5)
    assert found == pytest.approx(1.25 + 0.25 + 2 * 9.0 + 2.5 + 14.0)


def test_gradients_hide_under_layers_in_front() -> None:
    # 5 s each; those of layer 1 hide under the 4 s of layer 0, those of 0 under nothing.
    layers = (2.0, 4.0), (1.0, 2.0)
    found = side_by_side(0, 2, *layers, overlap_grad_reduce=1.0)
    assert found == pytest.approx(9.0 + 1.0 + 5.0 + 28.0)
    # Layer 0 hides all of layer 1.
    found = side_by_side(0, 2, (2.0, 8.0), (1.0, 2.0), overlap_grad_reduce=1.0)
    assert found == pytest.approx(13.0 + 5.0 + 28.0)


@pytest.mark.parametrize(("schedule", "seconds"), [("1f1b", 16.0), ("gpipe", 28.0)])
def test_messages_come_one_by_one(schedule: str, seconds: float) -> None:
    # 8 bytes fill a link of 2 bytes/s for 4 s, hidden or not: of four micro-batches the last
    # arrives after 1 + 3 x 4 s. 1F1B: gradients go back at the same pace; F, B, B: 16 s. GPipe:
    # gradients leave from 15 s on, the last arrives at 27 s.
    chain, cluster = chain_of((1.0, 1.0), (1.0, 1.0)), cluster_of(1, 1, 2)
    plan = two_stages(4).replace(schedule=schedule)
    assert price(chain, cluster, job_of(4, overlap_p2p=1.0), plan).seconds == (
        pytest.approx(seconds))


def test_interleaved_plans_are_counted() -> None:
    chain, job, _ = interleaved()
    question = Question(chain, cluster_of(2), job, SearchSpace(pp=2, vpp=2, zero="0,1"))
    # One block size, micro-batch 1 (m has to be even), ZeRO 0 or 1, recompute none or full.
    assert question.counts() == (4.0, 4.0)
