"""Times of single operators worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain import device, stack

from nest.costs.compute import (
    Machine,
    attention_seconds,
    gemm_seconds,
    grouped_seconds,
    memory_seconds,
    peak_flops,
    scores_seconds,
)
from nest.costs.operators import keys_of
from nest.errors import InputError
from nest.model import Operator

# 80 % of the peak, products of 100 reach half of it a side; 1 us a kernel.
USUAL: dict[str, Any] = {
    "memory_efficiency": 0.8, "attention_fraction": 0.4, "launch_overhead": 1e-6,
    "gemm": {"default": {"peak_fraction": 0.8, "m_half": 100, "n_half": 100, "k_half": 100}},
}


def machine(precision: str = "bf16", flash: bool = True, **changes: Any) -> Machine:
    """The usual device; software reaches half of its rates."""
    software = stack(gemm_derate=0.5, memory_derate=0.5, flash_attention=flash)
    return Machine(device(**(USUAL | changes)), software, precision)


def sides(m: float, n: float, k: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array([m]), np.array([n]), np.array([k])


def test_peaks() -> None:
    assert peak_flops(device(), "bf16") == 100e12
    assert peak_flops(device(), "fp16") == 100e12  # the same units
    assert peak_flops(device(), "fp32") == 50e12
    with pytest.raises(InputError, match="fp8"):
        peak_flops(device(peak_flops={"bf16": 1e12}), "fp8")


def test_gemm_limited_by_arithmetic() -> None:
    # 100 x 100 x 100 at 100 TFLOP/s x 0.8 x 0.5 (derate) x 1/8 = 5 TFLOP/s: 2e6 / 5e12 = 0.4 us.
    # 2 bytes x 3 x 1e4 at 1 TB/s x 0.8 x 0.5 = 400 GB/s: 0.15 us. The larger, and 1 us of launch.
    assert gemm_seconds(machine(), *sides(100, 100, 100)) == pytest.approx([0.4e-6 + 1e-6])
    # Three of them, launched as one.
    assert gemm_seconds(machine(), *sides(100, 100, 100), 3) == pytest.approx([1.2e-6 + 1e-6])


def products(**more: float) -> Machine:
    """A device whose large products reach 80 % of the peak, with more figures."""
    usual = {"peak_fraction": 0.8, "m_half": 0, "n_half": 0, "k_half": 0}
    return machine(launch_overhead=0.0, gemm={"default": usual | more})


def test_grouped_products() -> None:
    # Three groups of 1000 x 100 x 100: 2e7 FLOP at 100 TFLOP/s x 0.8 x 0.5 of a single one's rate,
    # 0.5 us; 2 bytes x 1.1e5 in and 4 x 1e5 out at 1 TB/s x 0.5: 1.24 us. 2 us a group besides.
    usual = {"rate": 0.5, "memory_share": 0.5, "group_time": 2e-6}
    grouped = machine(grouped={"default": usual}, **{
        "gemm": {"default": {"peak_fraction": 0.8, "m_half": 0, "n_half": 0, "k_half": 0}}})
    found = grouped_seconds(grouped, *sides(1000, 100, 100), 3, 4.0, 100.0)
    assert found == pytest.approx([3 * (1.24e-6 + 2e-6) + 1e-6])
    found = grouped_seconds(grouped, *sides(1000, 1000, 100), 3, 0.0, 1000.0)
    assert found == pytest.approx([3 * (5e-6 + 2e-6) + 1e-6])
    assert grouped_seconds(grouped, *sides(0, 100, 100), 3, 4.0, 100.0) == 0.0
    # Experts as wide as HALF_WIDTH are half way to the wide rate, narrow ones stay; by default all.
    wide = machine(grouped={"default": usual | {"wide_rate": 1.0}}, gemm=grouped.device.gemm)
    for width, seconds in ((26_600.0, 5e-6 / 1.5), (266.0, 5e-6 / 1.0001)):
        found = grouped_seconds(wide, *sides(1000, 1000, 100), 3, 0.0, width)
        assert found == pytest.approx([3 * (seconds + 2e-6) + 1e-6])
    nearer = machine(grouped={"default": usual | {"wide_rate": 1.0, "half_width": 60.0}},
                     gemm=grouped.device.gemm)
    found = grouped_seconds(nearer, *sides(1000, 1000, 100), 3, 0.0, 60.0)
    assert found == pytest.approx([3 * (5e-6 / 1.5 + 2e-6) + 1e-6])
    # Fused experts: 4/5 of a single product's rate, 1e8 x 2 FLOP at 64 TFLOP/s; without a figure of
    # their own the same.
    for more, seconds in (({"fused_rate": 0.8}, 3.125e-6), ({}, 5e-6)):
        device = grouped.device.replace(grouped={"default": {**usual, **more}})
        fused = Machine(device, grouped.stack.replace(fused_experts=True), "bf16")
        found = grouped_seconds(fused, *sides(1000, 1000, 100), 3, 0.0, 1e5)
        assert found == pytest.approx([3 * (seconds + 2e-6) + 1e-6])


def test_large_products_decline() -> None:
    # 5e3 x 1e4 x 1e4: 1e12 FLOP at 100 TFLOP/s x 0.8 x 0.5 take 25 ms; log2(1 + 1) = 1 time 5 %
    # more. Three times as many FLOP: log2(1 + 3) = 2 times 5 % more than 75 ms.
    falling = products(decline=0.05)
    assert gemm_seconds(falling, *sides(5e3, 1e4, 1e4)) == pytest.approx([25e-3 * 1.05])
    assert gemm_seconds(falling, *sides(15e3, 1e4, 1e4)) == pytest.approx([75e-3 * 1.10])
    assert falling.gemm.fraction(15e3, 1e4, 1e4) == pytest.approx(0.8 / 1.10)
    # Two products of 1e12 FLOP launched as one decline as one of them does.
    assert gemm_seconds(falling, *sides(5e3, 1e4, 1e4), 2) == pytest.approx([50e-3 * 1.05])


def test_casting_the_first_operand() -> None:
    # 1000 x 500 elements, 8 bytes each at the nominal 1 TB/s: 4 us more a product.
    shape = sides(1000, 2000, 500)
    cast = gemm_seconds(products(cast_bytes=8), *shape) - gemm_seconds(products(), *shape)
    assert cast == pytest.approx([4e-6])
    twice = gemm_seconds(products(cast_bytes=8), *shape, 2) - gemm_seconds(products(), *shape, 2)
    assert twice == pytest.approx([8e-6])
    # In training the cast is no part of the product.
    assert gemm_seconds(products(cast_bytes=8), *shape, alone=False) == pytest.approx(
        gemm_seconds(products(), *shape))


def test_more_work_never_takes_less_time() -> None:
    falling = products(decline=0.05, cast_bytes=8, m_half=100)
    size = np.geomspace(1, 1e6, 200)
    for shape in ((size, 100, 100), (100, size, 100), (100, 100, size), (size, size, size)):
        assert (np.diff(gemm_seconds(falling, *map(np.asarray, shape))) >= 0).all()


def test_gemm_limited_by_memory() -> None:
    # One row: 2 bytes x (1e3 in + 1e6 weights + 1e3 out) at 100 GB/s x 0.8 = 80 GB/s: 25 us
    # (element-wise kernels are half as fast, products are not);
    # 2e6 FLOP at 40 TFLOP/s x 1/101 x 1000/1100 x 1000/1100 take 6.1 us.
    slow = machine(memory_bandwidth=1e11)
    assert gemm_seconds(slow, *sides(1, 1000, 1000)) == pytest.approx([2.004e6 / 80e9 + 1e-6])
    # fp8: what goes in takes one byte, what comes out two.
    eight = machine("fp8", memory_bandwidth=1e11)
    assert gemm_seconds(eight, *sides(1, 1000, 1000)) == pytest.approx([1.003e6 / 80e9 + 1e-6])


def test_precisions() -> None:
    # fp8 doubles the rate; fp32 runs at the TF32 rate.
    bf16, fp8, fp32 = (
        gemm_seconds(machine(p, launch_overhead=0.0), *sides(1e5, 1e5, 1e5))
        for p in ("bf16", "fp8", "fp32"))
    assert bf16 / fp8 == pytest.approx([2.0])
    assert fp32 / bf16 == pytest.approx([2.0])
    eight = machine("fp8")
    assert (eight.element, eight.operand, eight.core_peak) == (2, 1, 100e12)
    assert (machine("fp32").element, machine("fp32").operand) == (4, 4)


def test_empty_product_is_free() -> None:
    assert gemm_seconds(machine(), *sides(100, 0, 100)) == [0.0]
    with np.errstate(all="raise"):
        assert gemm_seconds(products(cast_bytes=8), *sides(100, 100, 0)) == [0.0]
    assert memory_seconds(machine(), np.array([0.0])) == [0.0]


def test_memory_bound_operator() -> None:
    assert memory_seconds(machine(), np.array([4e9])) == pytest.approx([0.01 + 1e-6])


def test_attention() -> None:
    # 1000 queries, 500 keys, width 200: 2e8 FLOP; 100 TFLOP/s x 0.4 x 0.5 = 20.
    flash = machine(launch_overhead=0.0)
    case = (np.array([1000.0]), np.array([200.0]), 500.0)
    assert attention_seconds(flash, *case, 100.0, False) == pytest.approx([2e8 / 20e12])
    assert attention_seconds(flash, *case, 100.0, True) == pytest.approx([2.5 * 2e8 / 20e12])
    plain = machine(launch_overhead=0.0, flash=False)
    assert attention_seconds(plain, *case, 100.0, True) == pytest.approx([2 * 2e8 / 20e12])


def test_narrow_heads() -> None:
    # Heads of 64 reach half of the rate, heads of 32 a quarter; wider ones than 128 all of it.
    case = (np.array([1000.0]), np.array([200.0]), 500.0)
    half = machine(launch_overhead=0.0, attention_narrow=0.5)
    for head, factor in ((160.0, 1.0), (128.0, 1.0), (64.0, 2.0), (32.0, 4.0)):
        found = attention_seconds(half, *case, head, False)
        assert found == pytest.approx([factor * 2e8 / 20e12])


def test_keys_at_the_edge() -> None:
    # Of 100 keys a causal mask leaves half, a window of w those below it; 4 more are computed at
    # the edge, and all at the most. Going backward in fp8, nothing of a window is skipped.
    def keys(window: int | None, back: bool = False, fp8: bool = False,
             causal: bool = True) -> float:
        rates = {"bf16": 1e14, "fp8": 2e14}
        found = Machine(device(attention_edge=4.0, peak_flops=rates), stack(fp8_attention=fp8),
                        "fp8")
        return keys_of(Operator("core", "attention", "heads", causal=causal, window=window), found,
                       100.0, back)

    assert keys(None) == 54.0
    assert keys(10) == keys(10, back=True) == keys(10, fp8=True) == pytest.approx(13.5)
    assert keys(99) == pytest.approx(99 * (1 - 0.495) + 4)
    assert keys(None, causal=False) == 100.0
    assert keys(10, back=True, fp8=True) == 54.0


def test_attention_in_fp8() -> None:
    # Of a peak of 100 TFLOP/s in 16 bit: 40 % usually; 60 % in fp8, 80 % in mxfp8.
    formats = {"default": 0.5, "fp8": 0.6, "mxfp8": 0.8}
    wide = device(**(USUAL | {"attention_formats": formats, "peak_flops": {
        "bf16": 1e14, "fp8": 2e14, "mxfp8": 2e14}}))
    for precision, flagged, share in (
        ("bf16", True, 0.4), ("fp8", False, 0.4), ("fp8", True, 0.6), ("fp8-delayed", True, 0.6),
        ("mxfp8", True, 0.8),
    ):
        software = stack(fp8_attention=flagged)
        found = Machine(wide, software, precision)
        assert (found.core_peak, found.core_fraction) == (1e14, share)


def test_scores_without_flash() -> None:
    # 1e9 scores: 11 bytes each forward, 9 backward, at 400 GB/s.
    plain = machine(launch_overhead=0.0, flash=False)
    assert scores_seconds(plain, np.array([1e9]), False) == pytest.approx([11 / 400])
    assert scores_seconds(plain, np.array([1e9]), True) == pytest.approx([9 / 400])
