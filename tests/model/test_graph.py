"""Graphs of models and profiles: parameters, modules, branches, cuts and what crosses them."""

from __future__ import annotations

import random
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from descriptions import MODEL, message

from nest.errors import LimitError
from nest.inputs import Job, Model, Profile, catalog, load_model, load_profile
from nest.model import (
    MOST_CUTS,
    Chain,
    Layer,
    boundary_bytes,
    build_chain,
    model_flop,
    profile_chain,
    relay_bytes,
)

JOB = Job.parse({"global_batch": 8, "seq_len": 128})
MOE = {"experts": 4, "top_k": 2, "ffn": 32, "shared_ffn": 16}
T5 = {**MODEL, "kind": "encoder-decoder", "encoder_layers": 3, "encoder_seq_len": 96}
TOWER = {"layers": 3, "hidden": 32, "heads": 2, "ffn": 48, "tokens": 16, "patch_width": 12,
         "merge": 4, "class_token": True, "projector_layers": 2}
SEEING = {**MODEL, "vision": TOWER}


def chain_of(data: dict[str, Any]) -> Chain:
    return build_chain(Model.parse(data))


def names(chain: Chain) -> list[str]:
    return [chain.kinds[kind].name for kind in chain.order]


def saved(layer: Layer, module: str) -> float:
    """Elements per token that a module drops."""
    return sum(op.saved_elements for op in layer.operators if module in op.dropped)


def again(layer: Layer, module: str) -> set[str]:
    return {op.name for op in layer.operators if module in op.again}


def bits(*layers: int) -> int:
    return sum(1 << layer for layer in layers)


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("name", catalog.names("models"))
def test_operators_hold_the_parameters_of_the_description(name: str) -> None:
    model = load_model(name)
    chain = build_chain(model)
    everything = range(len(chain))
    whole = sum(chain.kinds[k].parameters for k in chain.stage(everything))
    assert whole == model.parameters() + model.mtp_parameters()
    assert all(op.parameters >= 0 for layer in chain.kinds for op in layer.operators)
    # Apart, every copy of a tied table is held.
    parts = [chain.kinds[k] for part in (everything[:1], everything[1:])
             for k in chain.stage(part)]
    copies = sum(layer.tied_parameters > 0 for layer in parts)
    table = model.vocab * model.hidden
    assert sum(layer.parameters for layer in parts) == whole + max(0, copies - 1) * table
    assert all(chain.kinds[k].tied_parameters == 0 for k in chain.stage(everything))


def test_embedding_first_head_last_and_dense_layers_before_experts() -> None:
    chain = build_chain(load_model("deepseek-v3"))
    assert names(chain) == [
        "embedding", *["layer"] * 3, *["moe_layer"] * 58, "mtp_layer", "head"]
    assert chain.is_chain
    assert chain.body == (1, 62)
    marked = {layer.name for layer in chain.kinds if layer.checkpointed}
    assert marked == {"layer", "moe_layer", "mtp_layer"}


def test_model_flop_is_six_per_parameter_and_token_plus_attention() -> None:
    """arXiv:2001.08361, table 1: 6 FLOP per parameter and token; attention apart."""
    model = load_model("gpt3-175b")
    matrices = 96 * 12 * model.hidden**2 + model.vocab * model.hidden
    attention = 96 * 4 * 2048 * model.hidden * 0.5 * 3
    assert model_flop(build_chain(model), 2048) == pytest.approx(
        2048 * (6 * matrices + attention), rel=1e-12)


def test_experts_count_what_a_token_uses() -> None:
    """Mixtral uses 12.9 of 46.7 billion parameters a token (arXiv:2401.04088, section 2)."""
    model = load_model("mixtral-8x7b")
    flop = model_flop(build_chain(model), 1)
    assert flop / 6 == pytest.approx(model.active_parameters(), rel=0.02)


def test_what_legality_asks() -> None:
    chain = build_chain(load_model("deepseek-v3"))
    assert chain.tensor_widths == (("heads", 128), ("ffn", 18432), ("shared_ffn", 2048))
    assert chain.kv_heads == (128,)
    assert chain.lengths(4096) == (4096,)
    assert chain.experts is not None and chain.experts.experts == 256
    grouped = build_chain(load_model("qwen3-30b-a3b"))
    assert grouped.tensor_widths == (("heads", 32),)
    assert grouped.kv_heads == (4,)
    core = next(op for op in grouped.kinds[1].operators if op.type == "attention")
    assert core.kv_width == 2 * 4 * 128
    assert chain_of(MODEL).experts is None
    assert chain_of(T5).lengths(128) == (96, 128)
    seeing = chain_of(SEEING)
    assert seeing.lengths(128) == (16, 4, 128)
    assert seeing.kv_heads == (2, 4)
    assert seeing.tensor_widths == (
        ("heads", 4), ("ffn", 128), ("vision.heads", 2), ("vision.ffn", 48))


# ---------------------------------------------------------------- modules of recompute


def test_modules_of_a_dense_layer() -> None:
    # h 64, ffn 128 gated. Two normed inputs of h; the input of the down projection.
    layer = chain_of(MODEL).kinds[1]
    assert layer.modules == ("core_attn", "norm", "mlp_act")
    assert (again(layer, "norm"), saved(layer, "norm")) == ({"norm_0", "norm_1"}, 2 * 64)
    assert (again(layer, "mlp_act"), saved(layer, "mlp_act")) == ({"mlp_activation"}, 128)
    # Its statistics are no elements: nest.costs.layer takes them from the heads.
    assert (again(layer, "core_attn"), saved(layer, "core_attn")) == ({"attention_core"}, 0)
    # In all: inputs of norms, normed inputs, Q and K and V, core output, up (2 x 128), down.
    total = sum(op.saved_elements for op in layer.operators)
    assert total == 2 * 64 + 2 * 64 + 3 * 64 + 64 + 2 * 128 + 128
    # Norms behind attention and MLP (Gemma 2) have no output that is kept.
    four = chain_of({**MODEL, "layer_norms": 4}).kinds[1]
    assert again(four, "norm") == {"norm_0", "norm_1"}


def test_modules_of_a_layer_with_experts() -> None:
    layer = chain_of({**MODEL, "moe": {**MOE, "shared_gate": True}}).kinds[1]
    assert layer.modules == ("core_attn", "norm", "mlp_act", "moe")
    experts = {"permute", "expert_up", "expert_activation", "expert_down"}
    shared = {"shared_up", "shared_activation", "shared_down", "shared_gate"}
    assert again(layer, "moe") == {"router", *experts, *shared}
    assert again(layer, "mlp_act") == {"expert_activation", "shared_activation"}
    # Router: probabilities and their gradient, 2 x 4. Per copy: input 64, up 2 x 32, down 32.
    # Shared: up 2 x 16, down 16, gate 1.
    assert saved(layer, "moe") == 2 * 4 + (64 + 64 + 32) + (32 + 16) + 1
    assert saved(layer, "mlp_act") == 32 + 16
    # The normed input of all of them is saved once.
    assert saved(layer, "norm") == 2 * 64
    kept = {op.name: op.saved_elements for op in layer.operators if op.dropped == ("norm",)}
    assert kept == {"projection_input": 64, "moe_input": 64}
    assert chain_of({**MODEL, "moe": MOE}).modules == layer.modules
    assert profile_chain(profile(row("a"))).modules == ()


# ---------------------------------------------------------------- multi-token prediction


def test_multi_token_prediction() -> None:
    # h 64, vocabulary 100; a layer holds 2 norms, 4 h^2 of attention, 3 x 64 x 128 of the MLP.
    plain, chain = chain_of(MODEL), chain_of({**MODEL, "mtp_layers": 2})
    assert names(chain) == ["embedding", "layer", "layer", "mtp_layer", "mtp_layer", "head"]
    table, layer = 100 * 64, 2 * 64 + 4 * 64**2 + 3 * 64 * 128
    own = 3 * 64 + 2 * 64**2 + layer
    predicting = chain.kinds[chain.order[3]]
    assert predicting.parameters == own + table
    assert (predicting.tied_parameters, chain.kinds[0].tied_parameters) == (table, table)
    assert (predicting.repeated, predicting.checkpointed) == (False, True)
    whole = sum(chain.kinds[k].parameters for k in chain.stage(range(6)))
    assert chain.model is not None and chain.model.mtp_parameters() == 2 * own
    assert whole == chain.model.parameters() + 2 * own
    assert chain.model.parameters() == plain.model.parameters()  # type: ignore[union-attr]
    # Handed on: h of one depth, of two, of all three.
    sizes = [boundary_bytes(chain, JOB, (1 << n) - 1) for n in range(7)]
    assert sizes == [n * 128 * 64 * 2 for n in (0, 1, 1, 1, 2, 3, 0)]
    assert chain.is_chain and chain.body == (1, 3)
    # Forward products per token: two more layers with their projections, two more logits.
    more = model_flop(chain, 1) - model_flop(plain, 1)
    matrices = 4 * 64**2 + 3 * 64 * 128 + 2 * 64**2 + 100 * 64
    assert more == pytest.approx(2 * (6 * matrices + 3 * 2 * 2 * 64 / 2))
    head, one = chain.kinds[chain.order[-1]], plain.kinds[plain.order[-1]]
    assert head.parameters == one.parameters
    assert head.traffic.forward_gathers == 3 * one.traffic.forward_gathers
    logits = sum(op.saved_elements for op in head.operators if "loss" in op.name)
    assert logits == 3 * 3 * 100


def test_prediction_layers_of_deepseek_v3() -> None:
    """11.5B of its own (README_WEIGHTS.md of deepseek-ai/DeepSeek-V3)."""
    model = load_model("deepseek-v3")
    assert model.mtp_parameters() == pytest.approx(11.5e9, rel=0.01)
    chain = build_chain(model)
    assert chain.kinds[chain.order[-2]].experts == chain.kinds[chain.order[-3]].experts


def test_layers_with_and_without_a_window_are_two_kinds() -> None:
    data = {**MODEL, "layers": 5, "window": 32, "full_layers": [1, 3], "mtp_layers": 1}
    chain = chain_of(data)
    window, full = "window_layer", "layer"
    assert names(chain) == ["embedding", window, full, window, full, window, "mtp_layer", "head"]
    windows = {kind.name: op.window for kind in chain.kinds for op in kind.operators
               if op.type == "attention"}
    assert windows == {window: 32, full: None, "mtp_layer": 32}  # this one is like the last layer
    # 128 tokens: 32 x 128 - 32^2 / 2 of 128^2 / 2 pairs, in four of six layers.
    whole = chain_of({**MODEL, "layers": 5, "mtp_layers": 1})
    pairs = 128 * 128 / 2 - (32 * 128 - 32 * 32 / 2)
    assert model_flop(whole, 128) - model_flop(chain, 128) == pytest.approx(
        3 * 4 * 2 * pairs * 2 * 64)
    experts = {"experts": 4, "top_k": 2, "ffn": 32}
    assert "window_moe_layer" in names(chain_of({**MODEL, "window": 32, "moe": experts}))


# ---------------------------------------------------------------- encoder and decoder


def test_encoder_decoder() -> None:
    chain = chain_of(T5)
    assert names(chain) == ["encoder_embedding", *["encoder_layer"] * 3, "encoder_end",
                            "decoder_embedding", *["decoder_layer"] * 2, "head"]
    assert not chain.is_chain
    tensors = {t.producer: (t.consumers, t.kept) for t in chain.tensors}
    assert tensors == {0: ((1,), True), 1: ((2,), True), 2: ((3,), True), 3: ((4,), True),
                       4: ((6, 7), False), 5: ((6,), True), 6: ((7,), True), 7: ((8,), True)}
    encoder, decoder = chain.kinds[chain.order[1]], chain.kinds[chain.order[6]]
    assert (encoder.tokens, decoder.tokens) == (96, None)
    causal = {op.name: (op.causal, op.positions) for op in decoder.operators
              if op.type == "attention"}
    assert causal == {"attention_core": (True, None), "cross_core": (False, 96)}
    assert not next(op for op in encoder.operators if op.type == "attention").causal
    # A decoder layer: one more norm and 4 h^2 more; with it 3 gathers and scatters forward.
    assert decoder.parameters == encoder.parameters + 64 + 4 * 64**2
    assert (decoder.traffic.forward_gathers, decoder.traffic.backward_gathers) == (3, 6)
    assert decoder.cross_traffic is not None and decoder.cross_traffic.tokens == 96
    assert again(decoder, "core_attn") == {"attention_core", "cross_core"}
    assert saved(decoder, "norm") == 3 * 64
    # Its own rows are 128 tokens, but keys and values are made of 96.
    keys = next(op for op in decoder.operators if op.name == "cross_key_value")
    assert (keys.positions, keys.saved_elements) == (96, 2 * 64)


def test_flop_of_encoder_and_decoder() -> None:
    # Forward: 96 tokens through 3 layers, 128 through 2; cross keys and values of 96 tokens.
    mlp, h = 3 * 64 * 128, 64
    encoder = 3 * (2 * 96 * (4 * h * h + mlp) + 2 * 96 * 96 * 2 * h)
    own = 2 * 128 * (4 * h * h + mlp) + 2 * 128 * 128 * 2 * h / 2
    across = 2 * 128 * 2 * h * h + 2 * 96 * 2 * h * h + 2 * 128 * 96 * 2 * h
    logits = 2 * 128 * 100 * h
    assert model_flop(chain_of(T5), 128) == pytest.approx(
        3 * (encoder + 2 * (own + across) + logits))


def test_cuts_of_encoder_and_decoder() -> None:
    chain = chain_of(T5)
    # The decoder's embedding goes with any part of the encoder; then there is one order.
    assert len(chain.downsets()) == 2 * 6 + 3
    h2 = 64 * 2
    encoded, first = bits(0, 1, 2, 3, 4, 5), bits(0, 1, 2, 3, 4, 5, 6)
    assert boundary_bytes(chain, JOB, encoded) == (96 + 128) * h2
    assert boundary_bytes(chain, JOB, first) == (96 + 128) * h2
    assert boundary_bytes(chain, JOB, first | bits(7)) == 128 * h2
    # Decoder layers read the encoder's output and do not save it: the stage holds it.
    assert relay_bytes(chain, JOB, encoded, first) == 96 * h2
    assert relay_bytes(chain, JOB, encoded, first | bits(7, 8)) == 96 * h2
    assert relay_bytes(chain, JOB, first | bits(7), first | bits(7, 8)) == 0
    # The decoder's embedding in front: the encoder's stages pass it on.
    assert relay_bytes(chain, JOB, bits(5), bits(5, 0, 1)) == 128 * h2
    assert relay_bytes(chain, JOB, bits(0), bits(0, 1)) == 0


# ---------------------------------------------------------------- vision


def test_vision_tower() -> None:
    chain = chain_of(SEEING)
    assert names(chain) == ["patch_embedding", *["vision_layer"] * 3, "projector", "embedding",
                            "merge", "layer", "layer", "head"]
    assert [chain.kinds[k].tokens for k in chain.order[:5]] == [16, 16, 16, 16, 4]
    assert chain.body == (7, 9)
    assert [(t.producer, t.consumers, t.kept) for t in chain.tensors[4:7]] == [
        (4, (6,), False), (5, (6,), False), (6, (7,), True)]
    assert len(chain.downsets()) == 2 * 6 + 4
    # 16 patches of 32 in front of the projector, behind it 4 of 64; text 128 of 64.
    assert boundary_bytes(chain, JOB, bits(0, 1)) == 16 * 32 * 2
    assert boundary_bytes(chain, JOB, bits(0, 1, 5)) == (16 * 32 + 128 * 64) * 2
    assert boundary_bytes(chain, JOB, bits(0, 1, 2, 3, 4, 5)) == (4 + 128) * 64 * 2
    tower = next(k for k in chain.kinds if k.name == "vision_layer")
    # 4 matrices and an MLP of 2, with biases; 2 norms of 2 vectors.
    assert tower.parameters == 4 * (32 + 1) * 32 + 2 * 32 * 48 + 48 + 32 + 4 * 32
    assert "rope" not in {op.name for op in tower.operators}
    # Forward: patches, 3 layers, the projector on 4 joined tokens; the rest as without.
    inside = 2 * 16 * 12 * 32 + 3 * (2 * 16 * (4 * 32**2 + 2 * 32 * 48) + 2 * 16 * 16 * 2 * 32)
    ahead = inside + 2 * 4 * (4 * 32 * 64 + 64 * 64)
    assert model_flop(chain, 128) - model_flop(chain_of(MODEL), 128) == pytest.approx(3 * ahead)


# ---------------------------------------------------------------- profiles


def row(name: str, inputs: list[str] | None = None, **more: Any) -> dict[str, Any]:
    measured = {"forward": 1, "backward": 2, "parameter_bytes": 4, "activation_bytes": 8}
    given = {} if inputs is None else {"inputs": inputs}
    return {"name": name, "output_bytes": 10, "tp": {1: measured}, **given, **more}


def profile(*rows: dict[str, Any]) -> Profile:
    return Profile.parse({"name": "p", "layers": list(rows)})


def test_profile_without_inputs_is_a_chain() -> None:
    chain = profile_chain(profile(row("a"), row("b", repeat=3), row("c")))
    assert chain.is_chain
    assert chain.body == (1, 4)
    assert chain.downsets() == tuple((1 << n) - 1 for n in range(6))
    assert [boundary_bytes(chain, JOB, mask) for mask in chain.downsets()] == [
        0, 10, 10, 10, 10, 0]
    assert relay_bytes(chain, JOB, 1, 7) == 0
    assert profile_chain(profile(row("a"), row("b", ["a"]))).is_chain
    # Two layers that do not know each other are none.
    assert not profile_chain(profile(row("a"), row("b", []))).is_chain
    assert profile_chain(profile(row("a"))).downsets() == (0, 1)


def test_profile_with_branches() -> None:
    # a -> b b -> d, a -> c -> d, a -> d: layers 0, 1 2, 3, 4.
    chain = profile_chain(profile(
        row("a", output_bytes=1), row("b", repeat=2, output_bytes=2),
        row("c", ["a"], output_bytes=4), row("d", ["a", "b", "c"])))
    assert [(t.producer, t.consumers) for t in chain.tensors] == [
        (0, (1, 3, 4)), (1, (2,)), (2, (4,)), (3, (4,))]
    assert chain.downsets() == (0, 0b1, 0b11, 0b1001, 0b111, 0b1011, 0b1111, 0b11111)
    # a is handed on once, although three layers take it.
    assert [boundary_bytes(chain, JOB, mask) for mask in chain.downsets()] == [
        0, 1, 1 + 2, 1 + 4, 1 + 2, 1 + 2 + 4, 1 + 2 + 4, 0]
    # The stage of b alone keeps a by itself, and has c to pass on.
    assert relay_bytes(chain, JOB, 0b1001, 0b1111) == 4
    # The second b gets what it needs from the first, and has a and c to pass on.
    assert relay_bytes(chain, JOB, 0b1011, 0b1111) == 1 + 4
    assert relay_bytes(chain, JOB, 0b1111, 0b11111) == 0


def test_inputs_are_layers_in_front() -> None:
    data = {"name": "p", "layers": [
        row("a", ["b"]), row("b", ["b"]), row("c", ["a", "a"]), row("d", ["x"])]}
    lines = message(load_profile, data).splitlines()
    before = "allowed: the name of a layer that comes before it"
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"layers.0.inputs.0: got 'b'; {before}", f"layers.1.inputs.0: got 'b'; {before}",
        "layers.2.inputs.1: got 'a' again; allowed: each name once",
        f"layers.3.inputs.0: got 'x'; {before}"]
    assert "allowed: a list" in message(load_profile, {"name": "p", "layers": [row("a"),
                                                                              row("b", "a")]})


def test_inputs_in_a_table(tmp_path: Path) -> None:
    header = "layer,tp,forward_s,backward_s,parameter_bytes,activation_bytes,output_bytes,inputs"
    rows = ["a,1,1,2,4,8,10,", "b,1,1,2,4,8,10,;", "c,1,1,2,4,8,10,a; b", "d,1,1,2,4,8,10,"]
    table = tmp_path / "p.csv"
    table.write_text("\n".join([header, *rows]), encoding="utf-8")
    assert load_profile(table).inputs == ((), (), ("a", "b"), ("c",))
    table.write_text("\n".join([header, rows[0], rows[0].replace(",1,1", ",2,1") + ";"]))
    assert "inputs: got []; allowed: None as in the layer's first row" in message(
        load_profile, table)


def test_downsets_are_all_sets_that_hold_what_they_need() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        size = draw.randint(2, 7)
        rows = [row(str(n), [str(m) for m in range(n) if draw.random() < 0.4])
                for n in range(size)]
        needs = [set(map(int, entry["inputs"])) for entry in rows]
        found = profile_chain(profile(*rows)).downsets()
        expected = [
            bits(*part) for count in range(size + 1) for part in combinations(range(size), count)
            if all(needs[n] <= set(part) for n in part)]
        assert sorted(expected, key=lambda mask: (mask.bit_count(), mask)) == list(found)


@pytest.mark.parametrize("rows", [
    [row(str(n), []) for n in range(60)],
    [row("a", repeat=500), row("b", [], repeat=400)],
    [row("a", []), row("b", repeat=5000), row("c", ["a", "b"])],
])
def test_too_many_cuts_are_refused_at_once(rows: list[dict[str, Any]]) -> None:
    chain = profile_chain(profile(*rows))
    start = time.process_time()
    with pytest.raises(LimitError, match=f"{len(chain)} layers.*allowed: {MOST_CUTS}. Describe"):
        chain.downsets()
    assert time.process_time() - start < 1.0


def test_long_chains_are_no_matter() -> None:
    chain = profile_chain(profile(row("a", repeat=3000)))
    assert len(chain.downsets()) == 3001
