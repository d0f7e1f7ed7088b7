"""Bytes per parameter against Megatron-LM's published table, and the limit of a device."""

from __future__ import annotations

from typing import Any

import pytest
from plain import device, stack

from nest.costs.memory import limit_bytes, recipe
from nest.describe import Job


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
    # 80 GB, 5 % lost to fragments, 1 GB to the driver, 2 GB of workspace.
    limit = limit_bytes(device(memory_reserved=1e9), job(fragmentation=0.05, workspace=2e9))
    assert limit == pytest.approx(80e9 * 0.95 - 3e9)
