"""Even cuts and the defaults of the degrees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.describe import Job, Profile, load_cluster, load_model
from nest.errors import InputError
from nest.graph import build_chain, profile_chain
from nest.pricing.evaluation import evaluate
from nest.pricing.even import even_configuration, even_sizes

JOB = Job(global_batch=64, seq_len=512)


@pytest.mark.parametrize(("layers", "stages", "sizes"), [
    (80, 1, (80,)), (80, 4, (20, 20, 20, 20)), (80, 3, (26, 27, 27)), (79, 3, (26, 27, 26)),
    (81, 4, (20, 20, 21, 20)), (82, 4, (20, 21, 21, 20)), (83, 4, (20, 21, 21, 21)),
    (9, 2, (4, 5)), (12, 5, (2, 2, 3, 3, 2)), (3, 3, (1, 1, 1)),
])
def test_left_over_layers_go_to_the_middle(layers, stages, sizes):
    assert even_sizes(layers, stages) == sizes


@given(st.integers(1, 200), st.integers(1, 200))
def test_sizes_are_even_and_complete(layers, stages):
    if stages > layers:
        return
    sizes = even_sizes(layers, stages)
    assert len(sizes) == stages
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1


def test_embedding_and_head_join_the_ends():
    cluster = load_cluster("dgx-a100", devices=32)
    found = even_configuration(load_model("llama2-7b"), cluster, JOB, pp=4, tp=8)
    assert [s.layers for s in found.stages] == [(0, 9), (9, 17), (17, 25), (25, 34)]
    assert [s.devices for s in found.stages] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert (found.outer_dp, found.stride, found.micro_batch) == (1, 32, 1)
    assert all(s.sp and s.etp == 8 and s.dp_in == 1 for s in found.stages)


def test_defaults_follow_from_devices_and_experts():
    cluster = load_cluster("dgx-h100", devices=64)
    found = even_configuration(load_model("mixtral-8x7b"), cluster, JOB, pp=2, tp=4, ep=8, etp=1,
                               mbs=2)
    assert (found.stages[0].dp_in, found.outer_dp, found.micro_batch) == (2, 4, 4)
    assert found.stride == 16
    wide = even_configuration(load_model("mixtral-8x7b"), cluster, JOB, tp=4, ep=2)
    assert wide.stages[0].dp_in == 2  # ep x etp = 2 x 4 on dp_in x tp
    some = even_configuration(load_model("llama2-7b"), cluster, JOB, pp=3, tp=8, outer_dp=2)
    assert some.stride == 32
    evaluate(load_model("llama2-7b"), cluster, JOB, some)


def test_body_of_a_profile():
    tp = {1: {"forward": 1, "backward": 2, "parameter_bytes": 3, "activation_bytes": 4}}

    def chain(*repeats: int):
        return profile_chain(Profile.parse({"name": "p", "layers": [
            {"name": f"l{n}", "output_bytes": 1, "repeat": r, "tp": tp}
            for n, r in enumerate(repeats)]}))

    assert chain(1, 24, 1).body == (1, 25)
    assert chain(1, 2, 1, 2, 1).body == (1, 6)
    assert chain(1, 1, 1).body == (0, 3)
    # Layers of multi-token prediction are left out.
    for model in ("deepseek-v3", load_model("deepseek-v3").replace(mtp_layers=2)):
        assert build_chain(load_model(model)).body == (1, 62)


def test_context_parallelism_fills_the_block():
    cluster = load_cluster("dgx-h100", devices=64)
    model = load_model("llama3-8b")
    found = even_configuration(model, cluster, JOB, pp=2, tp=2, cp=4, cp_comm="a2a", dp_in=2)
    assert [s.devices for s in found.stages] == [(0, 16), (16, 32)]
    assert {(s.cp, s.cp_comm, s.dp_in) for s in found.stages} == {(4, "a2a", 2)}
    assert (found.outer_dp, found.micro_batch, found.schedule) == (2, 2, "1f1b")
    evaluate(model, cluster, JOB, found)
    # ep x etp = 8 on cp x tp = 4: two ranks of data parallelism make room for them.
    experts = even_configuration(load_model("mixtral-8x7b"), cluster, JOB, tp=2, cp=2, ep=4)
    assert experts.stages[0].dp_in == 2


def test_chunks_are_even():
    # 32 layers on 2 x 4 chunks; the embedding joins the first chunk, the head the last.
    cluster = load_cluster("dgx-h100", devices=16)
    model = load_model("llama2-7b")
    found = even_configuration(model, cluster, JOB, pp=2, tp=8, vpp=4, zero=1)
    assert [s.chunks for s in found.stages] == [
        ((0, 5), (9, 13), (17, 21), (25, 29)), ((5, 9), (13, 17), (21, 25), (29, 34))]
    assert [s.layers for s in found.stages] == [(0, 29), (5, 34)]
    assert (found.vpp, found.schedule) == (4, "interleaved")
    plan = evaluate(model, cluster, JOB, found)
    # Megatron-Core's order: 2 (p - s - 1) + (v - 1) p + 1 chunks of a micro-batch are held.
    assert [s.in_flight for s in plan.stages] == [9, 7]


def test_what_else_is_handed_on():
    cluster = load_cluster("dgx-h100", devices=16)
    found = even_configuration(
        load_model("mixtral-8x7b"), cluster, JOB, tp=2, dp_in=2, outer_dp=4, zero=2, ep=2,
        shard="dp_in", recompute="selective", recompute_modules=("norm", "moe"))
    stage = found.stages[0]
    assert (stage.shard, stage.recompute_modules) == ("dp_in", ("norm", "moe"))
    evaluate(load_model("mixtral-8x7b"), cluster, JOB, found)
    some = even_configuration(load_model("llama2-7b"), cluster, JOB, pp=2, tp=8, schedule="gpipe",
                              recompute="full", recompute_layers=3)
    assert (some.schedule, some.stages[1].recompute_layers) == ("gpipe", 3)
    plan = evaluate(load_model("llama2-7b"), cluster, JOB, some)
    assert [s.in_flight for s in plan.stages] == [64, 64]


@pytest.mark.parametrize(("degrees", "reason"), [
    ({"pp": 33}, "pp: got 33; allowed: 1 to 32"),
    ({"pp": 0}, "pp: got 0"),
    ({"tp": -8}, "tp: got -8"),
    ({"pp": 3, "tp": 8}, "pp 3 x tp 8 x dp_in 1 = 24 does not divide the 64 devices"),
    ({"tp": 128}, "= 128 devices are more than the cluster's 64"),
    ({"tp": 8, "outer_dp": 9}, "times outer_dp 9 = 72 devices"),
    ({"mbs": 1, "micro_batch": 1}, "allowed: one of them"),
    ({"zero": 4}, "configuration: zero: got 4; allowed: at most 3"),
    ({"recompute": "most"}, "recompute: got 'most'"),
    ({"cp": 0}, "cp: got 0"),
    ({"tp": 8, "cp": 3}, "pp 1 x tp 8 x cp 3 x dp_in 1 = 24 does not divide the 64 devices"),
    ({"cp_comm": "ring"}, "cp_comm: got 'ring'"),
    ({"pp": 4, "vpp": 3}, "vpp: got 3; allowed: pp 4 x vpp must divide the 32 repeated layers"),
    ({"schedule": "zb"}, "schedule: got 'zb'"),
    ({"shard": "all"}, "shard: got 'all'"),
    ({"recompute_modules": ("norm",)}, "with recompute selective only"),
    ({"recompute": "none", "recompute_layers": 2}, "with recompute full only"),
])
def test_refusals(degrees, reason):
    with pytest.raises(InputError) as caught:
        even_configuration(load_model("llama2-7b"), load_cluster("dgx-a100", devices=64), JOB,
                           **degrees)
    assert reason in str(caught.value)
