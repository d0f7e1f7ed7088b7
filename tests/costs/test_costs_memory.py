"""Bytes per parameter against Megatron-LM's published table, and the limit of a device."""

from __future__ import annotations

from typing import Any

import pytest
from plain import SBH, A, B, H, S, V, block, cost, device, mixture, model, stack

from nest.costs.choices import FULL, MLP_ACT, NORM
from nest.costs.memory import limit_bytes, recipe
from nest.errors import InputError
from nest.inputs import Job, Stack
from nest.model import build_chain


def job(precision: str = "bf16", optimizer: str = "adam", **changes: Any) -> Job:
    return Job(global_batch=1, seq_len=1, precision=precision, optimizer=optimizer,
               stack=stack(**changes))


@pytest.mark.parametrize(("precision", "gradients", "whole", "kept", "shared"), [
    ("bf16", "fp32", 18, 6, 12),
    ("bf16", "bf16", 16, 4, 12),
    ("fp16", "fp32", 20, 4, 16),
    ("fp32", "fp32", 16, 8, 8),
    ("fp8", "fp32", 18, 6, 12),
])
def test_bytes_per_parameter(
    precision: str, gradients: str, whole: int, kept: int, shared: int
) -> None:
    # Megatron-LM, distributed-optimizer guide: bf16 18, sharded 6 + 12/d; fp16 20, 4 + 16/d;
    # fp32 16, 8 + 8/d.
    r = recipe(job(precision, gradient_dtype=gradients))
    assert r.parameter + r.gradient + r.optimizer == whole
    assert r.parameter + r.gradient == kept
    assert r.optimizer == shared


def test_optimizers() -> None:
    # A master copy of 4 bytes and 4 for each moment; fp32 needs no copy.
    assert recipe(job("bf16", "sgd")).optimizer == 4
    assert recipe(job("bf16", "sgd-momentum")).optimizer == 8
    assert recipe(job("fp32", "sgd")).optimizer == 0
    # Step of bf16 Adam: gradient 4, master and two moments read and written 24, parameter 2.
    assert recipe(job()).update == 4 + 24 + 2
    # fp32 Adam: gradient 4, parameter and two moments read and written 24.
    assert recipe(job("fp32")).update == 4 + 24


def test_what_travels() -> None:
    assert recipe(job()).traveling_gradient == 4
    assert recipe(job(gradient_dtype="bf16")).traveling_gradient == 2
    assert recipe(job("fp32", gradient_dtype="bf16")).traveling_gradient == 4
    assert (recipe(job()).gathered, recipe(job("fp32")).gathered) == (2, 4)


def test_limit() -> None:
    # 80 GB, 5 % lost to fragments, 20 % kept free with a stack that was never measured, 1 GB to the
    # driver, 2 GB of workspace.
    asked = job(fragmentation=0.05, workspace=2e9)
    assert asked.memory_margin == 0.2 and job(runs="megatron-core").memory_margin == 0.1
    given = device(memory_reserved=1e9)
    assert limit_bytes(given, asked) == pytest.approx(80e9 * 0.75 - 3e9)
    assert limit_bytes(given, asked.replace(memory_margin=0.0)) == pytest.approx(80e9 * 0.95 - 3e9)


def test_gradients_of_fp8_training() -> None:
    # As in bf16 unless the stack says otherwise; it says nothing of other formats.
    assert recipe(job("fp8", gradient_dtype="bf16")).gradient == 2
    mixed = {"gradient_dtype": "fp32", "fp8_gradient_dtype": "bf16"}
    both = [recipe(job(precision, **mixed)) for precision in ("fp8", "bf16")]
    assert [(r.gradient, r.traveling_gradient) for r in both] == [(2, 2), (4, 4)]


def test_master_copies_as_remainders() -> None:
    # 16 bits of the master copy and two moments; fp8 and fp16 parameters are no half of it.
    def shared(precision: str) -> tuple[float, float]:
        r = recipe(job(precision, master_remainders=True))
        return r.optimizer, r.sharded_optimizer

    assert [shared(name) for name in ("bf16", "fp8", "fp16", "fp32")] == [
        (12, 10), (12, 12), (16, 16), (8, 8)]
    # ZeRO 0 keeps all of it: 12 bytes; ZeRO 1 on one device 10.
    held = [cost(block(), zero=zero, master_remainders=True) for zero in (0, 1, 3)]
    assert [float(c.optimizer[0] / c.parameters[0]) for c in held] == [6, 5, 5]


def test_shards_in_fp32() -> None:
    # 16/d with ZeRO-3: parameter, gradient and two moments in fp32, nothing in 16 bit beside them.
    # ZeRO-2 keeps 2 bytes of each parameter whole. fp32 training is the same.
    def held(zero: int, precision: str = "bf16", **changes: bool) -> float:
        found = cost(block(), zero=zero, precision=precision, **changes)
        both = found.parameters + found.gradients + found.optimizer
        return float(both[0] / cost(block()).parameters[0] * 2)

    assert [held(zero, fp32_shards=True) for zero in (0, 1, 2, 3)] == [18, 18, 18, 16]
    assert held(3) == 18
    assert held(3, "fp8", fp32_shards=True) == 16
    assert held(3, "fp32", fp32_shards=True) == held(3, "fp32") == 16


def test_parameters_without_a_master_copy() -> None:
    # bf16 parameters, gradients and two moments, as torch.optim.Adam of bf16 shards has them; the
    # gradient is still reduced in fp32. Step: gradient 2, parameter 4, two moments 8. fp16 needs
    # its copy.
    r = recipe(job(master_copy=False, moment_dtype="bf16"))
    assert (r.parameter, r.gradient, r.optimizer, r.sharded_optimizer) == (2, 2, 4, 4)
    assert (r.traveling_gradient, r.gathered, r.update, r.merged) == (4, 2, 14, 0)
    assert recipe(job("fp8", "sgd", master_copy=False)).optimizer == 0
    assert recipe(job("fp16", master_copy=False)) == recipe(job("fp16"))
    assert recipe(job("fp32", master_copy=False)) == recipe(job("fp32"))
    with pytest.raises(InputError, match="fp32_shards: got true; allowed: false where master_copy"):
        Stack.parse(dict(stack(fp32_shards=True, master_copy=False)), "stack")


def test_dropout_masks() -> None:
    # arXiv:2205.05198, equation 1: 34 s b h, of which two masks are 2 s b h; sequence parallelism
    # divides them. Full recompute keeps none but the embedding's.
    usual, masked = cost(block()), cost(block(), dropout=True)
    assert masked.activations - usual.activations == pytest.approx([2 * SBH])
    divided = [cost(block(), tp=2, sp=True, dropout=flag).activations for flag in (True, False)]
    assert divided[0] - divided[1] == pytest.approx([SBH])
    again = [cost(block(), recompute=FULL, dropout=flag).activations for flag in (True, False)]
    assert again[0] == again[1]
    table = build_chain(model()).kinds[0]
    assert cost(table, dropout=True).activations - cost(table).activations == pytest.approx([SBH])


def test_what_the_loss_takes() -> None:
    # 1,000 words padded to 1,024; norm and logits keep their inputs of 2 bytes.
    head = build_chain(model()).kinds[-1]
    tokens, words = S * B, 1024
    assert V == 1000
    found = cost(head, loss_kept=4, loss_peak=12)
    assert found.activations == pytest.approx([tokens * (4 * words + 4 * H)])
    assert found.work == pytest.approx([tokens * 8 * words])
    found = cost(head, tp=2, loss_kept=4, loss_peak=12)
    assert (found.activations, found.work) == (
        pytest.approx([tokens * (4 * words + 4 * H) / 2]), pytest.approx([tokens * 8 * words / 2]))
    # A loss over divided logits may hold more of each.
    parallel = {"loss_kept": 4, "loss_peak": 12, "loss_peak_split": 16}
    assert cost(head, **parallel).work == pytest.approx([tokens * 8 * words])
    assert cost(head, tp=2, **parallel).work == pytest.approx([tokens * 12 * words / 2])
    # In place: nothing beside the logits in 16 bit. Twice as much in fp32 training.
    assert cost(head, loss_kept=2, loss_peak=2).work == 0
    wide = cost(head, precision="fp32", loss_kept=4, loss_peak=6)
    assert wide.activations == pytest.approx([tokens * (8 * words + 8 * H)])
    assert wide.work == pytest.approx([tokens * 4 * words])
    # Losses of multi-token prediction are kept together, and run one after the other.
    more = build_chain(model(mtp_layers=2))
    found = cost(more.kinds[more.order[-1]], loss_kept=4, loss_peak=6)
    assert found.activations == pytest.approx([tokens * (3 * (4 * words + 2 * H) + 2 * H)])
    assert found.work == pytest.approx([tokens * 2 * words])


def test_the_loss_holds_no_less_at_its_peak() -> None:
    with pytest.raises(InputError, match=r"loss_peak: got 2; allowed: at least loss_kept = 4"):
        Stack.parse({**stack().model_dump(), "loss_kept": 4, "loss_peak": 2}, "stack")
    with pytest.raises(InputError, match=r"loss_peak_split: got 3; allowed: at least loss_kept"):
        Stack.parse({**stack().model_dump(), "loss_kept": 4, "loss_peak": 6, "loss_peak_split": 3},
                    "stack")


def test_inputs_of_fp8_products() -> None:
    # 16 bit: 32 s b h, see test_costs_layer. In fp8 the normed inputs of both halves and that of
    # the second MLP product take one byte, 2 and 4 s b h less; the core's output stays and has a
    # copy of one byte for the projection behind it.
    usual, fp8 = cost(block()).activations, {"precision": "fp8"}
    statistics = S * B * 4 * A
    assert usual == pytest.approx([32 * SBH + statistics])
    assert cost(block(), **fp8).activations == pytest.approx(usual)
    assert cost(block(), fp8_inputs=True).activations == pytest.approx(usual)
    found = cost(block(), fp8_inputs=True, **fp8)
    assert found.activations == pytest.approx([(32 - 2 - 4 + 1) * SBH + statistics])
    # Recompute drops fp8 inputs as it drops others; a layer's own input stays in 16 bit.
    dropped = cost(block(), recompute=NORM, fp8_inputs=True, **fp8)
    assert dropped.activations == pytest.approx(found.activations - 2 * SBH)
    assert cost(block(), recompute=FULL, fp8_inputs=True, **fp8).activations == 2 * SBH


def test_fp8_inputs_of_experts() -> None:
    # Two copies a token: the expert's input and that of its second product (24 wide) in one byte.
    # The router reads its input in 16 bit; the attention's input as in a dense layer.
    expert, fp8 = block(mixture()), {"precision": "fp8"}
    saved = cost(expert, **fp8).activations - cost(expert, fp8_inputs=True, **fp8).activations
    assert saved == pytest.approx([S * B * (2 * (H + 24) + H - H)])


def test_every_second_product_again() -> None:
    gated = block(model(gated=True))
    both, again = NORM | MLP_ACT, {"selective_products": True}
    usual, found = cost(gated, recompute=both), cost(gated, recompute=both, **again)
    # Not kept: what the second norm reads, keys, and the second half of the gated product.
    assert usual.activations - found.activations == pytest.approx([S * B * 2 * (H + H + 128)])
    # Run again besides: half of keys and values, the output projection, half of gate and up.
    # Products of 100 TFLOP/s.
    flop = 2 * S * B * H * (H + H + 128)
    fast = {"machine": {"memory_bandwidth": 1e18}}
    usual, found = (cost(gated, recompute=both, **changes, **fast) for changes in ({}, again))
    assert found.recompute - usual.recompute == pytest.approx([flop / 100e12], rel=1e-3)
    assert found.forward == pytest.approx(usual.forward)
    # A plain MLP has one product in front of its activation: that one is kept.
    plain = cost(block(), recompute=both).activations
    assert plain - cost(block(), recompute=both, **again).activations == pytest.approx(
        [S * B * 2 * (H + H)])
    # It takes both modules.
    for policy in (0, NORM, MLP_ACT, FULL):
        same = cost(gated, recompute=policy), cost(gated, recompute=policy, **again)
        assert same[0].activations == pytest.approx(same[1].activations)
        assert same[0].recompute == pytest.approx(same[1].recompute)


def test_the_gradient_of_a_vocabulary_matrix_is_whole_for_a_while() -> None:
    # 2 bytes for each parameter of the table, half of it with tp 2; the largest counts, so that
    # gradients and gathered parameters of ZeRO-3, 2 x 2 + 4 bytes of half of the layer, cover it.
    head = build_chain(model()).kinds[-1]
    assert head.name == "head"
    for tp, rows in ((1, 1024), (2, 1024)):  # padded to a multiple of 128 x tp
        assert cost(head, tp=tp).buffers == pytest.approx([2 * rows * H / tp])
    assert cost(block()).buffers == [0.0]
    sharded = cost(head, dp=2, zero=3)
    held = sharded.parameters[0]  # 2 bytes of half of the layer
    assert sharded.buffers == pytest.approx([4 * held])


def test_a_margin_in_percent() -> None:
    assert Job(global_batch=1, seq_len=1, memory_margin="5%").memory_margin == 0.05
    with pytest.raises(InputError, match="memory_margin: got 1.0; allowed: below 1|memory_margin"):
        Job(global_batch=1, seq_len=1, memory_margin="100%")


@pytest.mark.parametrize(("optimizer", "stack", "states"), [
    ("adam", {}, 12.0), ("adam-8bit", {}, 4.0 + 2.0 * (1.0 + 4.0 / 256.0)), ("adafactor", {}, 4.0),
    ("adam-8bit", {"master_copy": False}, 2.0 * (1.0 + 4.0 / 256.0)),
    ("adafactor", {"master_copy": False}, 0.0),
    ("adam-8bit", {"moment_dtype": "bf16"}, 4.0 + 2.0 * (1.0 + 4.0 / 256.0))])
def test_optimizers_of_few_bits(optimizer: str, stack: dict[str, Any], states: float) -> None:
    found = recipe(Job(global_batch=1, seq_len=8, optimizer=optimizer, stack={
        "base": "fsdp", "fp32_shards": False, **stack}))
    assert found.optimizer == states
    more = 8.0 if optimizer == "adafactor" else 0.0
    held = 4.0 if stack.get("master_copy", True) else 0.0
    # Gradient, copy or parameter read and written, states twice, parameter written.
    own = 4.0 + 8.0 + 2.0 if held else 2.0 + 4.0
    assert found.update == own + 2.0 * (states - held) + more
