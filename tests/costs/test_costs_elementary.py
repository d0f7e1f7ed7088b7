"""What software without fused kernels holds, by hand: norms and activation functions of elementary
operations, logits of all ranks, gradients in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plain import FF, B, H, S, block, cost, mixture, model, stack

from nest.costs.choices import FULL
from nest.costs.memory import recipe
from nest.inputs import Job, Model
from nest.measured import validation
from nest.model import Layer, build_chain

GATED = {"norm": "rmsnorm", "gated": True}


def head(described: Model) -> Layer:
    chain = build_chain(described)
    return chain.kinds[chain.order[-1]]


def kept(*elementary: str, tp: int = 1, **sizes: Any) -> float:
    """Bytes that elementary operations keep besides, of a block."""
    layer = block(model(**sizes))
    plain, found = (cost(layer, tp=tp, elementary=names) for names in ((), elementary))
    assert found.forward == plain.forward
    return float((found.activations - plain.activations)[0])


def test_a_norm_keeps_its_input_in_fp32() -> None:
    # Two norms a block, 4 bytes an element of s b h; with sp a rank has its share of the tokens.
    assert kept("norm", **GATED) == pytest.approx(2 * 4 * S * B * H)
    assert kept("norm", tp=2, **GATED) == pytest.approx(4 * S * B * H)
    # LayerNorm is one kernel of PyTorch's own.
    assert kept("norm", norm="layernorm") == 0


def test_a_gated_activation_keeps_the_activated_half() -> None:
    assert kept("mlp_act", **GATED) == pytest.approx(2 * S * B * FF)
    assert kept("mlp_act", tp=2, **GATED) == pytest.approx(S * B * FF)
    assert kept("mlp_act", norm="rmsnorm") == 0
    assert kept("norm", "mlp_act", **GATED) == pytest.approx(S * B * (2 * FF + 8 * H))


def test_so_does_that_of_experts() -> None:
    # Two experts of width 24 a token.
    layer = block(mixture())
    plain, found = (cost(layer, elementary=names) for names in ((), ("mlp_act",)))
    assert found.activations - plain.activations == pytest.approx([2 * S * B * 2 * 24])


def test_full_recompute_makes_it_again_for_a_layer() -> None:
    layer = block(model(**GATED))
    plain, found = (cost(layer, recompute=FULL, elementary=names)
                    for names in ((), ("norm", "mlp_act")))
    assert found.activations == plain.activations
    assert found.work - plain.work == pytest.approx([S * B * (2 * FF + 8 * H)])


def test_gathered_logits_are_those_of_all_ranks() -> None:
    # A vocabulary of 1,024 needs no padding: 8 bytes a logit are kept, 8 more while the loss runs.
    layer = head(model(vocab=1024))
    whole = {"gathers_logits": True, "loss_kept": 8, "loss_peak": 16, "loss_peak_split": 12}
    found = {tp: cost(layer, tp=tp, sp=False, **whole) for tp in (1, 2, 4)}
    halves = cost(layer, tp=2, sp=False, **{**whole, "gathers_logits": False})
    for one in found.values():
        assert one.activations == found[1].activations
        assert one.work == found[1].work == pytest.approx([8 * S * B * 1024])
    assert found[2].activations - halves.activations == pytest.approx([8 * S * B * 512])
    assert halves.work == pytest.approx([4 * S * B * 512])
    # The loss, 8 elements a logit of 2 bytes, takes as long on each rank as on one.
    assert found[2].forward - halves.forward == pytest.approx([2 * 5 * S * B * 512 / 1e12])


@pytest.mark.parametrize(("precision", "held", "travels"), [
    ("bf16", 2, 4), ("fp8", 2, 4), ("fp16", 2, 4), ("fp32", 4, 4)])
def test_gradients_are_kept_in_16_bits_and_reduced_in_fp32(
    precision: str, held: int, travels: int
) -> None:
    found = recipe(Job(global_batch=1, seq_len=1, precision=precision, stack=stack(
        narrow_gradients=True, gradient_dtype="fp32", fp8_gradient_dtype="fp32")))
    assert (found.gradient, found.traveling_gradient) == (held, travels)


def test_a_run_whose_notes_name_a_kernel_for_norms() -> None:
    run = next(iter(validation.read()))
    found = {notes: validation.question(replace(
        run, framework="some code", group="", notes=notes)).job.stack
        for notes in ("", "kernel: flash_attention2 + RMS kernel", "with RMSNorm kernel")}
    assert [one.name for one in found.values()] == ["unknown"] * 3
    assert [one.elementary for one in found.values()] == [
        ("norm", "mlp_act"), ("mlp_act",), ("mlp_act",)]
