"""What training takes to turn operands of its products into 8 bits or fewer, and their bytes."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from plain import B, H, block, cost, device, stack
from plain import S as SEQ

from nest.costs.compute import Machine, cast_seconds
from nest.costs.layer import LayerCosts
from nest.errors import InputError
from nest.inputs import catalog, load_device
from nest.inputs.formats import number_format
from nest.inputs.space import Precision
from nest.model import Layer, Operator
from nest.model.operators import Experts, Split

TOKENS = SEQ * B


def slow(cast_bytes: float) -> dict[str, Any]:
    """1 MB/s of memory and products that take no time; alone they cast ``cast_bytes`` an element.
    """
    rate = {"peak_fraction": 1.0, "m_half": 0, "n_half": 0, "k_half": 0}
    return {"memory_bandwidth": 1e6, "peak_flops": {"bf16": 1e21, "fp8": 1e21},
            "gemm": {"default": rate, "fp8": {**rate, "cast_bytes": cast_bytes}}}


def price(
    split: Split, tp: int = 1, depth: int = 32, precision: str = "fp8", cast_bytes: float = 8.0,
    **software: float,
) -> LayerCosts:
    layer = Layer("one", (Operator("one", "gemm", split, width=64, depth=depth),), hidden=32)
    return cost(layer, tp=tp, precision=precision, machine=slow(cast_bytes), **software)


@pytest.mark.parametrize(("precision", "moved"), [
    ("bf16", 0.0), ("fp32", 0.0),
    # 2 bytes read, 1 written and 1 written transposed.
    ("fp8", 4.0), ("fp8-delayed", 4.0),
    # Both written with a scale of 4 bytes for 128, of 1 byte for 32.
    ("fp8-blockwise", 2 + 2 * (1 + 4 / 128)), ("mxfp8", 2 + 2 * (1 + 1 / 32)),
    # Read for maxima, rows and columns; half a byte and 1 byte for 16, twice.
    ("nvfp4", 3 * 2 + 2 * (1 / 2 + 1 / 16)),
])
def test_bytes_of_a_cast(precision: Any, moved: float) -> None:
    # 500 elements at 1 TB/s; no derate slows them.
    peaks = dict.fromkeys(("bf16", "fp8", "fp8-blockwise", "mxfp8", "nvfp4", "tf32"), 1e14)
    machine = Machine(device(peak_flops=peaks), stack(memory_derate=0.5), precision)
    assert cast_seconds(machine, np.array([500.0])) == pytest.approx([moved * 500 / 1e12])
    assert cast_seconds(machine.half, np.array([500.0])) == [0.0]


@pytest.mark.parametrize(("split", "tp", "width", "depth"), [
    ("column", 1, 64, 32), ("column", 2, 32, 32), ("row", 2, 64, 16),
])
def test_the_input_and_its_gradient_are_cast_once(
    split: Split, tp: int, width: int, depth: int
) -> None:
    # All at 1 MB/s: a product moves 1 byte of what goes in and 2 of what comes out. Forward the
    # input is cast besides, backward the gradient of the output, 4 bytes an element.
    into, out, weights = TOKENS * depth, TOKENS * width, width * depth
    found = price(split, tp)
    assert found.forward == pytest.approx([(into + weights + 2 * out + 4 * into) / 1e6])
    data, weight = out + weights + 2 * into, out + into + 2 * weights
    assert found.backward == pytest.approx([(data + weight + 4 * out) / 1e6])


def test_what_a_product_casts_alone_does_not_count() -> None:
    assert price("column", cast_bytes=0.0).forward == price("column").forward
    assert price("column", cast_bytes=0.0).backward == price("column").backward
    # Nor does a slower rate of element-wise kernels touch the casts, or the product.
    assert price("column", memory_derate=0.5).forward == price("column").forward


def test_a_table_of_embeddings_casts_nothing() -> None:
    found = price("column", depth=0)
    assert (found.forward, found.backward) == ([0.0], [0.0])


def test_experts_cast_the_copies_that_they_take() -> None:
    # 4 experts, 2 a token: 2 x TOKENS rows of 32 in and 64 out, in 4 products. Weights are read
    # for each of them.
    op = Operator("one", "gemm", "expert_column", width=64, depth=32)
    layer = Layer("one", (op,), experts=Experts(4, 2, 64, 2), hidden=32)
    into, out, weights = 2 * TOKENS * 32, 2 * TOKENS * 64, 4 * 32 * 64
    found = cost(layer, precision="fp8", machine=slow(8.0))
    assert found.forward == pytest.approx([(5 * into + weights + 2 * out) / 1e6])
    # Gradients of weights are added to in 4 bytes: read and written.
    data, weight = out + weights + 2 * into, out + into + 8 * weights
    assert found.backward == pytest.approx([(data + weight + 4 * out) / 1e6])
    # Casts are part of fused products.
    fused = cost(layer, precision="fp8", machine=slow(8.0), fused_experts=True)
    assert fused.forward == pytest.approx([(into + weights + 2 * out) / 1e6])
    assert fused.backward == pytest.approx([(data + weight) / 1e6])


@pytest.mark.parametrize(("precision", "operand"), [
    ("fp8-blockwise", 1 + 4 / 128), ("mxfp8", 1 + 1 / 32), ("nvfp4", 1 / 2 + 1 / 16)])
def test_operands_have_scales(precision: Any, operand: float) -> None:
    # A product that takes no time but for its bytes: operands have scales, what comes out 16 bit.
    machine = slow(8.0)
    machine["peak_flops"] |= {precision: 1e21}
    layer = Layer("one", (Operator("one", "gemm", "column", width=64, depth=32),), hidden=32)
    found, cast = cost(layer, precision=precision, machine=machine), number_format(precision).cast
    into, out, weights = TOKENS * 32, TOKENS * 64, 32 * 64
    assert found.forward == pytest.approx([((into + weights) * operand + 2 * out + cast * into)
                                           / 1e6])
    # Half of tp's traffic is of operands, half of 16 bit; the gradient of weights keeps operands.
    wide = cost(block(), tp=2, precision=precision, machine=machine, fp8_inputs=True)
    single = cost(block(), tp=2, precision="fp8", machine=machine, fp8_inputs=True)
    assert (wide.tp_forward - single.tp_forward) * 2 == pytest.approx(
        wide.tp_backward - single.tp_backward)
    assert (wide.tp_forward - single.tp_forward) / single.tp_forward == pytest.approx(
        (operand - 1) / (1 + 2), rel=0.01)
    # The normed input of both halves, the core's output and that of the second MLP product.
    assert wide.activations - single.activations == pytest.approx(
        [(operand - 1) * TOKENS * (H + H + H + 4 * H) / 2])


@pytest.mark.parametrize(("device_name", "precision"), [
    ("h100-sxm", "mxfp8"), ("h100-sxm", "nvfp4"), ("b200-sxm", "fp8-blockwise"),
    ("mi355x", "nvfp4"), ("a100-sxm-80gb", "fp8-delayed")])
def test_devices_have_some_formats(device_name: str, precision: Any) -> None:
    with pytest.raises(InputError, match=f"{device_name}: peak_flops: got no {precision[:3]}"):
        Machine(load_device(device_name), stack(), precision)


def test_formats_without_figures_of_their_own_are_like_fp8() -> None:
    on = load_device("b200-sxm")
    assert on.gemm_for("mxfp8") == on.gemm_for("fp8") == on.gemm_for("nvfp4")
    assert load_device("h20").gemm_for("fp8-blockwise") == load_device("h20").gemm["default"]
    assert {*get_args(Precision)} == {*catalog.formats()} - {"tf32"}
