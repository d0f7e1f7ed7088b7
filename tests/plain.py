"""Devices, stacks and clusters with round figures, for tests worked out by hand."""

from __future__ import annotations

from typing import Any

from nest.describe import Device, Stack


def stack(**changes: Any) -> Stack:
    """Nothing overlaps, nothing is lost; flash attention."""
    plain: dict[str, Any] = {
        "name": "plain", "overlap_grad_reduce": 0.0, "overlap_param_gather": 0.0,
        "overlap_zero3": 0.0, "overlap_tp": 0.0, "overlap_p2p": 0.0, "flash_attention": True,
        "gemm_derate": 1.0, "memory_derate": 1.0, "workspace": 0.0, "fragmentation": 0.0,
    }
    return Stack(**(plain | changes))


def device(**changes: Any) -> Device:
    """80 GB, 1 TB/s, 100 TFLOP/s of which any product reaches all; no launch overhead."""
    plain: dict[str, Any] = {
        "name": "plain", "memory": 80e9, "memory_bandwidth": 1e12, "memory_efficiency": 1.0,
        "peak_flops": {"bf16": 100e12, "fp8": 200e12, "tf32": 50e12}, "launch_overhead": 0.0,
        "attention_fraction": 1.0,
        "gemm": {"default": {"peak_fraction": 1.0, "m_half": 0, "n_half": 0, "k_half": 0}},
    }
    return Device(**(plain | changes))
