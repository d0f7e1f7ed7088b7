"""Even cuts and the defaults of the degrees."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import MODEL
from hypothesis import given
from hypothesis import strategies as st

from nest.errors import InputError
from nest.evaluation.divisions import even_sizes
from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.inputs import Configuration, Job, Model, Profile, load_cluster, load_model
from nest.inputs.loading import load_stack
from nest.model import build_chain, profile_chain

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


def test_selective_recompute_is_what_the_stack_has() -> None:
    """Modules that a stack has only together need not be named; names are taken as they are."""
    model, cluster = load_model("llama3-8b"), load_cluster("dgx-h100", devices=8)
    for stack, wanted in (("torchtitan", ("norm", "mlp_act")), ("maxtext", ("norm", "mlp_act")),
                          ("megatron-core", ("core_attn",)), ("fsdp", ("core_attn",))):
        job = Job(global_batch=8, seq_len=512, stack=stack)
        for named in (None, ("core_attn",)):
            way = even_configuration(model, cluster, job, recompute="selective",
                                     recompute_modules=named)
            assert way.stages[0].recompute_modules == (named or wanted), stack


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


@pytest.mark.parametrize(("etp", "reason"), [
    (None, r"\(dp_in 8: room for ep 8 x etp 16, by default tp\)"),
    (8, r"\(dp_in 4: room for ep 8 x etp 8\)")])
def test_a_block_says_what_it_has_room_for(etp: int | None, reason: str) -> None:
    cluster = load_cluster("dgx-h100", devices=32)
    with pytest.raises(InputError, match=reason):
        even_configuration(load_model("mixtral-8x7b"), cluster, JOB, tp=16, ep=8, etp=etp)


@pytest.mark.parametrize(("degrees", "reason"), [
    ({"pp": 33}, "pp: got 33; allowed: 1 to 32"),
    ({"pp": 0}, "pp: got 0"),
    ({"tp": -8}, "tp: got -8"),
    ({"pp": 3, "tp": 8}, "pp 3 x tp 8 x dp_in 1 = 24 does not divide the 64 devices"),
    ({"tp": 3}, "tp 3 does not divide heads 32"),
    ({"tp": 128}, "= 128 devices are more than the cluster's 64"),
    ({"tp": 8, "ep": 16}, "the cluster's 64 (dp_in 16: room for ep 16 x etp 8, by default tp)"),
    ({"tp": 8, "ep": 24}, "= 192 devices are more than the cluster's 64 (dp_in 24: room for ep 24"),
    ({"ep": 128, "etp": 1}, "the cluster's 64 (dp_in 128: room for ep 128 x etp 1)"),
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


# ---------------------------------------------------------------- other divisions


def counts(found: Configuration) -> list[list[int]]:
    """Layers of each chunk of each stage, embedding and head included."""
    return [[stop - start for start, stop in stage.chunks] for stage in found.stages]


def divided(name: str, devices: int, stack: str = "megatron-core", **given: Any) -> Configuration:
    model, cluster = load_model(name), load_cluster("dgx-h100", devices=devices)
    job = Job(global_batch=96, seq_len=512, stack=load_stack(stack))
    found = even_configuration(model, cluster, job, **given)
    evaluate(model, cluster, job, found)
    return found


def test_a_layout_gives_cuts_and_chunks() -> None:
    found = divided("llama3.1-405b", 64, pp=8, tp=8, layout="Et*3|(t*4|)*30t*3L")
    assert (found.vpp, found.schedule) == (4, "interleaved")
    assert counts(found) == [[4] * 4] * 8
    assert found.stages[1].chunks == ((4, 8), (36, 40), (68, 72), (100, 104))
    assert divided("llama3.1-405b", 64, pp=8, tp=8, vpp=4, layout="Et*3|(t*4|)*30t*3L") == found
    alone = divided("llama2-7b", 32, pp=4, tp=8, layout="Et*7|(t*9|)*2t*7L")
    assert (alone.vpp, alone.schedule) == (1, "1f1b")
    assert counts(alone) == [[8], [9], [9], [8]]
    empty = divided("llama2-7b", 32, pp=4, tp=8, layout="Et*32|||L")
    assert counts(empty) == [[33], [0], [0], [1]]


def test_ends_count_as_layers_where_that_is_even() -> None:
    both = divided("llama3.1-405b", 64, pp=8, tp=8, vpp=16)
    assert counts(both) == [[1] * 16] * 8
    # 31 + the head = 32
    assert counts(divided("llama2-7b", 32, pp=4, tp=8, vpp=8)) == [
        [2, *[1] * 7], *[[1] * 8] * 2, [*[1] * 7, 2]]
    small = Model.parse({**MODEL, "layers": 11})
    job, cluster = Job(global_batch=8, seq_len=128), load_cluster("dgx-h100", devices=8)
    head = even_configuration(small, cluster, job, pp=2, vpp=3)
    assert counts(head) == [[3, 2, 2], [2, 2, 2]]


def test_torchtitan_gives_the_remainder_to_the_first_chunks() -> None:
    # 32 layers and both ends are 34 = 4 x 9 - 2: 8 chunks of 4, the first two of 5.
    assert counts(divided("llama2-7b", 32, "torchtitan", pp=4, tp=8, vpp=2)) == [
        [5, 4], [4, 4], [4, 4], [4, 5]]  # 32 = 8 x 4: even
    assert counts(divided("llama2-7b", 24, "torchtitan", pp=3, tp=8, vpp=2)) == [
        [6, 6], [6, 5], [6, 5]]


def test_the_first_and_the_last_stage_have_layers_of_their_own() -> None:
    found = divided("llama2-7b", 32, pp=4, tp=8, vpp=2, first_stage_layers=6, last_stage_layers=6)
    assert counts(found) == [[4, 3], [5, 5], [5, 5], [3, 4]]
    found = divided("llama2-7b", 32, pp=4, tp=8, last_stage_layers=5)
    assert counts(found) == [[10], [9], [9], [6]]
    found = divided("llama2-7b", 16, pp=2, tp=8, first_stage_layers=12, last_stage_layers=20)
    assert counts(found) == [[13], [21]]


@pytest.mark.parametrize(("given", "said"), [
    ({"pp": 4, "vpp": 5}, "vpp: got 5; allowed: pp 4 x vpp must divide the 32 repeated layers of "
     "llama2-7b, with the head or with both ends counted as layers too; other chunks with layout "
     "(--layout 'Et|(tt|)*13(t|)*5L'), or"),
    ({"pp": 4, "vpp": 2, "layout": "Et*8|(t*8|)*2t*8L"},
     "vpp: got 2; allowed: 1, the chunks of a stage in layout Et*8|(t*8|)*2t*8L"),
    ({"pp": 4, "layout": "Et*8|(t*8|)*2t*8L", "first_stage_layers": 8},
     "layout: got Et*8|(t*8|)*2t*8L and first_stage_layers; allowed: one of them"),
    ({"pp": 4, "vpp": 2, "first_stage_layers": 7},
     "first_stage_layers: got 7 with pp 4, vpp 2; allowed: a multiple of vpp, with pp above 1"),
    ({"pp": 1, "last_stage_layers": 32}, "last_stage_layers: got 32 with pp 1, vpp 1; allowed"),
    ({"pp": 4, "first_stage_layers": 7},
     "first_stage_layers: got 7, which leaves 25 of the 32 repeated layers of llama2-7b to 3 "
     "other stages; allowed: a multiple of 3, and more than none"),
    ({"pp": 2, "first_stage_layers": 7, "last_stage_layers": 7},
     "first_stage_layers and last_stage_layers: got 7 and 7, which leaves 18 of the 32 repeated "
     "layers of llama2-7b to 0 other stages; allowed: none left"),
    ({"pp": 4, "first_stage_layers": 32}, "first_stage_layers: got 32, which leaves 0 of the 32"),
    ({"pp": 4, "vpp": 2, "schedule": "1f1b"}, "vpp: got 2 with schedule 1f1b; allowed: 1"),
    ({"pp": 4, "vpp": 3, "schedule": "zb-v"}, "vpp: got 3 with schedule zb-v; allowed: 2"),
    ({"pp": 4, "layout": "Et*8"}, "layout: got 1 chunks; allowed: a multiple of pp 4"),
])
def test_divisions_that_do_not_go(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        divided("llama2-7b", 8 * given["pp"], tp=8, **given)
    assert str(error.value).startswith(said)


def test_a_layout_is_proposed_that_goes() -> None:
    with pytest.raises(InputError) as error:
        divided("deepseek-v3", 64, pp=8, vpp=3, tp=8)
    text = str(error.value).split("--layout '")[1].split("'")[0]
    assert text == "Ett|(t*3|)*14(tt|)*8tmL"
    assert len(divided("deepseek-v3", 64, pp=8, tp=8, layout=text).stages[0].chunks) == 3
