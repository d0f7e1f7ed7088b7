"""What frozen weights and adapters cost, worked out by hand (sizes: tests/oracle/plain.py)."""

from __future__ import annotations

import pytest
from plain import FAST_MEMORY, FF, LINK, SBH, A, B, H, S, V, block, cost, model

from nest.costs.choices import NORM
from nest.inputs import Model
from nest.model import Layer, build_chain, model_flop

FLOP = 100e12
QKV, OUT, MLP = 3 * H * H, H * H, 2 * H * FF
"""Parameters of the products of a layer."""


def lora(**changes: object) -> Layer:
    return block(model(trainable={"lora": {"rank": 8, **changes}}))


def test_a_frozen_product_has_the_gradient_of_its_input_alone() -> None:
    frozen = {"parts": ["norms"]}
    own, all_ = (cost(block(model(trainable=one)), machine=FAST_MEMORY) for one in (frozen, None))
    product = 2.0 * S * B * (QKV + OUT + MLP) / FLOP
    assert own.forward[0] == pytest.approx(all_.forward[0])
    assert all_.backward[0] - own.backward[0] == pytest.approx(product)


def test_a_frozen_layer_keeps_what_its_norms_activation_and_attention_need() -> None:
    own = cost(block(model(trainable={"parts": ["norms"]})))
    # Inputs of two norms; queries, keys, values and the core's output; the input of the activation
    # function; softmax statistics of 4 bytes. Not: inputs of products.
    kept = 2 * (2 * SBH + 4 * SBH + S * B * FF) + 4 * S * B * A
    assert own.activations[0] == kept
    every = kept + 2 * (2 * SBH + S * B * FF)
    assert cost(block()).activations[0] == every


def test_an_adapter_keeps_its_input_and_what_it_makes_of_it() -> None:
    frozen = cost(block(model(trainable={"parts": ["norms"]}))).activations[0]
    own = cost(lora(targets="linear_qkv")).activations[0]
    assert own == frozen + 2 * (SBH + 8 * S * B)  # the normed input, and A x
    down = cost(lora(targets="linear_fc2")).activations[0]
    assert down == frozen + 2 * (FF + 8) * S * B
    # With dropout an input and a mask of its own.
    dropped = cost(lora(targets="linear_fc2", dropout=0.1)).activations[0]
    assert dropped == frozen + 2 * (FF + 8) * S * B + FF * S * B


def test_adapters_alone_have_gradients_states_and_a_reduction() -> None:
    added = 8 * (H + 3 * H)
    own = cost(lora(targets="linear_qkv"), dp=2)
    assert own.gradients[0] == pytest.approx(4 * added)
    assert own.optimizer[0] == pytest.approx(12 * added)
    assert own.sync[0] == pytest.approx(4 * added / LINK)  # 2 (n - 1) / n of the bytes, n = 2
    norms = 4 * H
    assert own.parameters[0] == pytest.approx(2 * (QKV + OUT + MLP + norms + added))


def test_separate_adapters_of_queries_keys_and_values() -> None:
    names = "q_proj,k_proj,v_proj"
    assert lora(targets=names).trained == 3 * 8 * (H + H)
    assert lora(targets="linear_qkv").trained == 8 * (H + 3 * H)
    every = 4 * 8 * 2 * H + 2 * 8 * (H + FF)  # queries, keys, values, output; up and down
    assert lora().trained == every


def test_a_gated_mlp_has_an_adapter_for_each_half() -> None:
    halves = {"rank": 8, "targets": "gate_proj,up_proj"}
    gated = block(model(gated=True, trainable={"lora": halves}))
    assert gated.trained == 2 * 8 * (H + FF)
    fused = block(model(gated=True, trainable={"lora": {"rank": 8, "targets": "linear_fc1"}}))
    assert fused.trained == 8 * (H + 2 * FF)


def test_zero_3_gathers_frozen_weights_and_scatters_no_gradient_of_them() -> None:
    added, held = 8 * (H + 3 * H), QKV + OUT + MLP + 4 * H
    own = cost(lora(targets="linear_qkv"), dp=2, zero=3)
    assert own.gathered[0] == pytest.approx(2 * (held + added) / 2 / LINK)
    assert own.regathered[0] == own.gathered[0]
    assert own.scattered[0] == pytest.approx(4 * added / 2 / LINK)
    assert own.parameters[0] == pytest.approx(2 * (held + added) / 2)
    ones = cost(lora(targets="linear_qkv"), dp=2, zero=1)
    assert ones.gather[0] == pytest.approx(2 * added / 2 / LINK)
    assert ones.gathered[0] == 0.0


def test_four_bit_weights_are_converted_in_front_of_each_product() -> None:
    def of(kept: str | None) -> Layer:
        return block(model(trainable={"parts": ["norms"], "frozen_precision": kept}))

    wide, four = cost(of(None), dp=2, zero=3), cost(of("nf4"), dp=2, zero=3)
    products = QKV + OUT + MLP
    bits = 4.127 / 8
    moved = products * (bits + 2.0) / 1e12
    assert four.forward[0] - wide.forward[0] == pytest.approx(moved)
    assert four.backward[0] - wide.backward[0] == pytest.approx(moved)
    assert wide.parameters[0] - four.parameters[0] == pytest.approx(products * (2 - bits) / 2)
    largest = max(2 * H * H, H * FF) * 2.0
    saved = 2 * products * (2 - bits) / 2
    assert four.buffers[0] == pytest.approx(wide.buffers[0] - saved + largest)


def test_biases_have_the_sum_of_the_gradients_rows() -> None:
    layer = block(model(bias=True, trainable={"parts": ["biases"]}))
    biases = 3 * H + H + FF + H + 2 * H  # of products, and of two norms
    assert layer.trained == biases
    frozen = cost(block(model(bias=True, trainable={"parts": ["norms"], "layers": "0"})))
    own = cost(layer)
    assert own.gradients[0] == 4 * biases
    # Layer 1 of the other model is frozen, and layer 0 in front of it trains its norms.
    rows = 2.0 * S * B * (3 * H + H + FF + H) / 1e12
    assert own.backward[0] - frozen.backward[0] == pytest.approx(rows)


def test_nothing_goes_backward_in_front_of_what_is_trained() -> None:
    chain = build_chain(model(layers=3, trainable={"parts": ["layers"], "layers": "1"}))
    embedding, first, middle, last, head = (chain.kinds[kind] for kind in chain.order)
    assert [one.passes for one in (embedding, first, middle, last, head)] == [
        False, False, True, True, True]
    whole = cost(block(model(layers=3)))
    low, high = cost(first, dp=2, tp=2, zero=3, recompute=NORM), cost(last)
    assert low.forward[0] > 0.0 and low.tp_forward[0] > 0.0 and low.gathered[0] > 0.0
    for name in ("backward", "recompute", "tp_backward", "activations", "work", "regathered",
                 "scattered", "sync", "update", "gradients", "optimizer", "slowed_backward"):
        assert getattr(low, name)[0] == 0.0, name
    assert high.backward[0] > 0.0 and high.optimizer[0] == 0.0
    assert cost(middle).backward[0] == whole.backward[0]


def test_a_frozen_tower_keeps_nothing_and_its_projector_is_trained() -> None:
    vision = {"layers": 2, "hidden": 64, "heads": 2, "ffn": 120, "tokens": 16, "patch_width": 588}
    chain = build_chain(model(vision=vision, trainable={"parts": ["projector"]}))
    found = {chain.kinds[kind].name: chain.kinds[kind] for kind in chain.order}
    assert not found["vision_layer"].passes and found["vision_layer"].trained == 0
    assert not found["embedding"].passes
    assert found["projector"].trained == found["projector"].parameters
    assert found["layer"].passes and found["layer"].trained == 0  # on the way to the loss


def test_frozen_experts_keep_no_copies_of_tokens() -> None:
    def kept(parts: list[str]) -> float:
        return float(cost(block(mixture(trainable={"parts": parts}))).activations[0])

    copies = 2 * S * B * 2
    # Their input, and the activation function's output, of each copy; 2 bytes an element.
    assert kept(["experts"]) - kept(["norms"]) == copies * (H + 24)
    adapted = block(mixture(trainable={"lora": {"rank": 4, "targets": "gate_proj,down_proj"}}))
    assert adapted.trained == 4 * (4 * (H + 24) + 4 * (24 + H))


def mixture(**changes: object) -> Model:
    """Four gated experts of width 24, two a token."""
    return model(gated=True, moe={"experts": 4, "top_k": 2, "ffn": 24}, **changes)


def test_adapters_gather_the_output_of_row_split_products() -> None:
    own, none = (cost(block(model(trainable={"lora": {"rank": 8, "targets": target}})), tp=2, etp=2)
                 for target in ("linear_fc2", "linear_fc1"))
    once = 2 * SBH / 2 / LINK  # a gather over two ranks
    assert own.tp_forward[0] - none.tp_forward[0] == pytest.approx(once)
    # The input of the first product is gathered again for the gradient of A; else it is not.
    assert own.tp_backward[0] == pytest.approx(none.tp_backward[0])


def test_model_flop_count_what_is_computed() -> None:
    def flop(trainable: dict[str, object] | None) -> float:
        return model_flop(build_chain(model(trainable=trainable)), S)

    whole, head = flop(None), 2.0 * S * V * H
    frozen = flop({"parts": ["norms"]})
    products = 2.0 * S * 2 * (QKV + OUT + MLP)
    assert whole - frozen == pytest.approx(products + head)
    last = flop({"parts": ["head"]})
    core = 2 * S * S * H  # of two layers; 4 S S H, half of it seen
    assert last == pytest.approx(products + core * 2 + 3 * head)
