"""What fp8 training takes to turn the operands of its products into 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain import B, cost, device, stack
from plain import S as SEQ

from nest.costs.compute import Machine, cast_seconds
from nest.costs.layer import LayerCosts
from nest.graph import Layer, Operator
from nest.graph.operators import Experts, Split

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


@pytest.mark.parametrize(("precision", "moved"), [("fp8", 4.0), ("bf16", 0.0), ("fp32", 0.0)])
def test_an_element_is_read_once_and_written_twice(precision: Any, moved: float) -> None:
    # 2 bytes read, 1 written and 1 written transposed: 4 x 500 at 1 TB/s; no derate slows it.
    peaks = {"bf16": 1e14, "fp8": 1e14, "tf32": 1e14}
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
