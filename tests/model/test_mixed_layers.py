"""Layers that differ: states, sparse and chunked attention, parallel blocks, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import MODEL, TOWER, message
from plain import B, cost
from plain import S as SEQ

from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.inputs import load_cluster, load_job, load_model
from nest.inputs.layers import Recurrence
from nest.model import Operator, build_chain, model_flop
from nest.model.legality import cp_problem, tensor_degrees, tp_problem
from nest.model.operators import Layer

JOB = load_job({"global_batch": 8, "seq_len": 128})
DELTA = {"form": "gated_delta", "heads": 4, "head_dim": 8, "groups": 2, "state": 8, "conv": 4}
MAMBA2 = {"form": "mamba2", "heads": 8, "head_dim": 16, "groups": 2, "state": 4, "conv": 4,
          "conv_bias": True}
MAMBA = {"form": "mamba", "heads": 1, "head_dim": 128, "groups": 1, "state": 4, "conv": 4,
         "conv_bias": True, "dt_rank": 5}
KINDS = [{"name": "a"}, {"name": "r", "mixer": "recurrence", "mlp": "none"}]


def mixed(recurrence: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**MODEL, "recurrence": recurrence, "layer_kinds": KINDS, "layer_types": ["a", "r"],
            **more}


def layer(data: dict[str, Any], number: int) -> Layer:
    chain = build_chain(load_model(data))
    return chain.kinds[chain.order[number]]


def op(data: dict[str, Any], number: int, name: str) -> Operator:
    return next(op for op in layer(data, number).operators if op.name == name)


# hidden is 64. Delta: keys 2 x 8, values 4 x 8; first product 16 + 16 + 32 and a gate of 32.
# Mamba-2: inner 128, B and C of 2 x 4 each, x, z and 8 time steps. Mamba: x and z of 128.
@pytest.mark.parametrize(("recurrence", "expected"), [
    (DELTA, 64 * 96 + 64 * 8 + 64 * 4 + 2 * 4 + 8 + 32 * 64),
    (MAMBA2, 64 * (128 + 16 + 128 + 8) + 144 * 5 + 3 * 8 + 128 + 128 * 64),
    (MAMBA, 64 * 256 + 128 * 5 + 128 * 13 + 5 * 128 + 128 + 128 * 4 + 128 + 128 * 64),
    ({"form": "lightning", "heads": 4, "head_dim": 16}, 64 * 256 + 64 + 64 * 64),
    ({"form": "kimi_delta", "heads": 4, "head_dim": 8, "conv": 4},
     64 * 96 + 96 * 4 + 2 * (64 * 8 + 8 * 32) + 64 * 4 + 4 + 32 + 8 + 32 * 64),
])
def test_parameters_of_a_layer_with_a_state_by_hand(
    recurrence: dict[str, Any], expected: int
) -> None:
    assert Recurrence.parse(recurrence).parameters(64) == expected
    model = load_model(mixed(recurrence))
    attention = 64 * 64 * 4 + 3 * 64 * 128 + 2 * 64
    assert model.parameters() == 2 * 6400 + 64 + attention + expected + 64
    assert layer(mixed(recurrence), 2).parameters == expected + 64  # the norm before it


def test_flop_of_a_recurrence_by_hand() -> None:
    # C = 64: three C x d_k, two C x d_v, three d_k x d_v products and the inverse, of 4 heads.
    each = 2 * (3 * 64 * 8 + 2 * 64 * 8 + 3 * 8 * 8) + 2 * 64 * 64 / 3
    assert Recurrence.parse(DELTA).flop == pytest.approx(4 * each, rel=1e-12)
    # C = 256: C x 4 of 2 groups; C x 16 and two 4 x 16 of 8 heads.
    assert Recurrence.parse(MAMBA2).flop == 2 * (2 * 256 * 4 + 8 * (256 * 16 + 2 * 4 * 16))
    assert Recurrence.parse(MAMBA).flop == 9 * 128 * 4
    # A model of one such layer: its products, its recurrence, the head; no term grows with s.
    data = {**mixed(DELTA), "layers": 1, "layer_types": ["r"], "layer_kinds": KINDS[1:]}
    token = 2 * (64 * 96 + 64 * 8 + 32 * 64 + 6400) + Recurrence.parse(DELTA).flop
    for length in (128, 4096):
        assert model_flop(build_chain(load_model(data)), length) == pytest.approx(
            3 * length * token, rel=1e-12)


def test_what_a_layer_with_a_state_keeps() -> None:
    kept = {op.name: op.saved_elements for op in layer(mixed(MAMBA2), 2).operators}
    assert kept == {
        "norm_0": 64, "mixer_input": 0, "projection_input": 64, "convolution": 144,
        "recurrence": 144 + 128 * 4 / 256, "gated_norm": 256, "mixer_output": 128,
        "attention_residual": 0}
    assert layer(mixed(MAMBA2), 2).modules == ("norm",)


def test_the_time_of_a_recurrence() -> None:
    work = Operator("recurrence", "scan", "heads", attention_width=1e5, forward_elements=10.0,
                    backward_elements=20.0, speed=2.0)
    free = {"memory_bandwidth": 1e18, "peak_flops": {"bf16": 1e15}, "recurrence_fraction": 0.5,
            "memory_efficiency": 1.0}
    one, two = (cost(Layer("one", (work,), hidden=32), tp=tp, machine=free) for tp in (1, 2))
    assert one.forward == pytest.approx(2 * two.forward)
    assert one.forward == pytest.approx([2 * SEQ * B * 1e5 / (2.0 * 0.5 * 1e15)])
    assert one.backward == pytest.approx(3.2 * one.forward)
    slow = cost(Layer("one", (work,), hidden=32), machine={**free, "memory_bandwidth": 1e6})
    assert slow.forward == pytest.approx([SEQ * B * 10 * 2 / 1e6])
    assert slow.backward == pytest.approx([SEQ * B * 20 * 2 / 1e6])


def test_degrees_of_layers_with_a_state() -> None:
    delta = build_chain(load_model(mixed(DELTA)))
    assert ("recurrence.groups", 2) in delta.tensor_widths
    assert tensor_degrees(delta, 8) == (1, 2)
    assert tp_problem(delta, JOB, 4, False) == "tp 4 does not divide recurrence.groups 2"
    # 4 heads that read 2 groups: of Mamba-2 ranks hold copies, of the delta rule none do.
    pairs = build_chain(load_model(mixed({**DELTA, "form": "mamba2", "heads": 8})))
    three = build_chain(load_model(mixed({**DELTA, "form": "mamba2", "heads": 12, "groups": 4})))
    for chain, tp, cp, expected in (
        (delta, 1, 2, None), (delta, 2, 2, "cp 2 needs tp 2 x cp 2 to divide recurrence.groups 2"),
        (delta, 1, 8, "cp 8 needs tp 1 x cp 8 to divide recurrence.heads 4"),
        (pairs, 2, 4, None), (pairs, 1, 4, None), (pairs, 4, 4, "recurrence.heads 8"),
        (three, 1, 6, "recurrence.groups 4, or to be a multiple of them"), (three, 3, 4, None),
    ):
        job = JOB.replace(seq_len=96)
        text = cp_problem(chain, job, cp, "p2p", tp)
        assert text == expected if expected is None else expected in str(text)
    mamba = build_chain(load_model(mixed(MAMBA)))
    text = str(cp_problem(mamba, JOB, 2, "p2p", 1))
    assert "cp 2: some layers have mamba" in text
    assert text.endswith("allowed: cp 1, with tp, pp or recompute where a device holds too many "
                         "tokens")
    assert tensor_degrees(mamba, 8) == (1,)
    assert "recurrence.form mamba" in str(tp_problem(mamba, JOB, 2, True))


def test_sparse_attention_by_hand() -> None:
    mla = {"q_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 8}
    sparse = {**mla, "indexer": {"heads": 2, "head_dim": 6, "top_k": 32}}
    plain, data = {**MODEL, "mla": mla}, {**MODEL, "mla": sparse}
    # queries of 2 x 6 from the latent, one key, its norm, and a weight for each head
    added = 24 * 12 + 64 * 6 + 2 * 6 + 64 * 2
    assert load_model(data).parameters() == load_model(plain).parameters() + 2 * added
    assert op(data, 1, "attention_core").window == 32
    assert op(data, 1, "attention_core").seen(128) == 0.25 * (1 - 0.125)
    index = op(data, 1, "index_scores")
    assert (index.attention_width, index.seen(128), index.kv_groups) == (12, 0.5, 0)
    chain = build_chain(load_model(data))
    assert "some layers have sparse attention" in str(cp_problem(chain, JOB, 2, "p2p", 1))
    assert tp_problem(chain, JOB, 4, False) is None
    assert "mla.q_rank: got 0; allowed: at least 1 with an indexer" in message(
        load_model, {**MODEL, "mla": {**sparse, "q_rank": 0}})


def test_chunked_attention_counts_pairs_within_chunks() -> None:
    data = {**MODEL, "window": 32, "chunked": True, "full_layers": [1]}
    core = op(data, 1, "attention_core")
    # 4 chunks of 32 in 128 tokens: 4 x 32^2 / 2 of 128^2 pairs; a chunk beyond the end is the end.
    assert (core.seen(128), core.seen(16)) == (4 * 32**2 / 2 / 128**2, 0.5)
    assert op(data, 2, "attention_core").seen(128) == 0.5
    tower = {**TOWER, "tokens": 16, "chunk": 4, "layers": 2, "full_layers": [1]}
    seeing = {**MODEL, "vision": tower}
    assert [op(seeing, n, "attention_core").seen(16) for n in (1, 2)] == [0.25, 1.0]


def test_a_parallel_block_has_one_input_and_one_sum() -> None:
    data = {**MODEL, "parallel": True, "layer_norms": 1}
    plain, block = layer(MODEL, 1), layer(data, 1)
    assert block.parameters == plain.parameters - 64
    t = block.traffic
    assert (t.forward_gathers, t.forward_scatters, t.backward_gathers, t.backward_scatters) == (
        1, 1, 2, 1)
    names = [op.name for op in block.operators]
    assert "mlp_input" not in names and "attention_residual" not in names
    two = layer({**data, "layer_norms": 2}, 1)
    assert (two.traffic.forward_gathers, two.traffic.forward_scatters) == (2, 1)
    assert two.parameters == plain.parameters


def test_parts_of_attention_and_mlp_by_hand() -> None:
    def more(**fields: Any) -> int:
        return load_model({**MODEL, **fields}).parameters() - load_model(MODEL).parameters()

    assert more(attention_gate=True) == 2 * 64 * 64
    assert more(sinks=True) == 2 * 4
    assert more(output_bias=True) == 2 * 64
    assert more(mlp_bias=True) == 2 * (2 * 128 + 64)
    assert more(qk_norm=True, kv_heads=4) == 2 * 2 * 16
    assert more(qk_norm=True, qk_norm_form="all") == 2 * 2 * 64
    assert more(qk_norm=True, qk_norm_form="plain") == 0
    assert more(norm="layernorm") == 2 * 2 * 64 + 64
    assert more(norm="layernorm", norm_bias=False) == 0
    # patches of 12 values with a bias and a class token instead of a table of 100
    images = {**MODEL, "kind": "encoder", "positions": 17, "patch_width": 12}
    tokens = load_model({**images, "patch_width": 0}).parameters()
    assert load_model(images).parameters() == tokens - 6400 + 12 * 64 + 64 + 64
    chain = build_chain(load_model(images))
    assert {kind.tokens for kind in chain.kinds} == {17}
    logits = next(op for op in chain.kinds[-1].operators if op.name == "logits")
    assert logits.positions == 1


@pytest.mark.parametrize(("changes", "expected"), [
    ({"layer_types": ["a"]}, "layer_types: got 1 entries; allowed: layers = 2 of them"),
    ({"layer_types": ["a", "b"]}, "layer_types: got 'b'; allowed: a, r"),
    ({"layer_types": ["a", "a"]}, "recurrence: given; allowed: with layers of that kind"),
    ({"recurrence": None}, "recurrence: missing; needed: with layers of that kind"),
    ({"layer_types": []}, "layer_types: missing; needed: the kind of each layer"),
    ({"layer_kinds": [*KINDS, {"name": "a"}]}, "layer_kinds: got ['a', 'r', 'a']; allowed: a name"),
    ({"window": 8}, "window: given; allowed: nothing with layer_types"),
    ({"recurrence": {**DELTA, "groups": 3}}, "recurrence.groups: got 3; allowed: a divisor of"),
    ({"recurrence": {**MAMBA, "dt_rank": 0}}, "recurrence.dt_rank: got 0; allowed: at least 1"),
    ({"layer_kinds": [{"name": "a", "mlp": "experts"}, KINDS[1]]}, "moe: missing; needed: with"),
    ({"layer_kinds": [{"name": "a", "mixer": "none", "mlp": "none"}, KINDS[1]]},
     "layer_kinds.0.mlp: got 'none'"),
    ({"parallel": True}, "layer_kinds.1: one part; allowed: mixer and mlp with parallel"),
    ({"layer_kinds": [{"name": "a", "kv_heads": 3}, KINDS[1]]}, "layer_kinds.0.kv_heads: got 3"),
])
def test_layers_that_do_not_go_together(changes: dict[str, Any], expected: str) -> None:
    assert expected in message(load_model, {**mixed(DELTA), **changes})


def test_stacks_are_not_said_to_run_what_their_tables_do_not_cover() -> None:
    assert build_chain(load_model(MODEL)).unlisted == ()
    assert build_chain(load_model(mixed(DELTA))).unlisted == ("gated_delta", "layers of one part")
    assert build_chain(load_model({**MODEL, "parallel": True})).unlisted == ("parallel blocks",)
    cluster = load_cluster("dgx-h100", devices=8)
    for data, runs in ((MODEL, True), (mixed(DELTA), None)):
        model = load_model(data)
        way = even_configuration(model, cluster, JOB)
        plan = evaluate(model, cluster, JOB, way)
        assert (plan.feasible, plan.runnable) == (True, runs)
        shown = plan.report(details=True)
        assert ("does not cover gated_delta, layers of one part" in " ".join(shown.split())) == (
            runs is None)
        assert "transformer layers" in shown
