"""Forms of the loss, worked out by hand (sizes: tests/oracle/plain.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from plain import FAST_MEMORY, B, H, S, V, cost, model, stack

import nest
from nest.costs.loss import parts
from nest.model import Layer, build_chain

WIDTH = math.ceil(V / 128) * 128
"""The vocabulary, padded."""
LOGITS = S * B * WIDTH


def head() -> Layer:
    chain = build_chain(model())
    return chain.kinds[chain.order[-1]]


def priced(loss: str, **given: Any) -> Any:
    return cost(head(), loss=loss, loss_kept=4.0, loss_peak=12.0, **given)


def test_logits_are_held_as_far_as_they_are_there() -> None:
    norm, entered = 2 * S * B * H, 2 * S * B * H  # inputs of the last norm and of the head
    whole = priced("whole")
    assert whole.activations[0] == norm + entered + 4 * LOGITS
    assert whole.work[0] == 8 * LOGITS
    chunks = priced("chunks", loss_chunks=4)
    assert chunks.activations[0] == norm + entered
    assert chunks.work[0] == 12 * LOGITS / 4 + 4 * S * B * H  # and the gradient in fp32
    # As many tokens as take the bytes of the head's input, a power of two: 128 / 36 = 3.6, 4.
    liger = priced("liger")
    assert liger.work[0] == 12 * LOGITS / 32 + 2 * S * B * H
    cut = priced("cut")
    assert cut.activations[0] == norm + entered and cut.work[0] == 0.0


def test_cut_cross_entropy_computes_logits_twice() -> None:
    product = 2.0 * LOGITS * H / 100e12
    whole, cut = (priced(loss, machine=FAST_MEMORY) for loss in ("whole", "cut"))
    assert cut.forward[0] == pytest.approx(whole.forward[0], rel=1e-4)
    assert cut.backward[0] - whole.backward[0] == pytest.approx(product, rel=1e-4)


def test_kernels_of_each_form_move_their_bytes() -> None:
    fast = {"peak_flops": {"bf16": 1e21}}
    moved = {loss: priced(loss, machine=fast, loss_chunks=1) for loss in (
        "whole", "chunks", "cut")}
    each = 2 * LOGITS / 1e12
    forward = {loss: float(one.forward[0]) for loss, one in moved.items()}
    backward = {loss: float(one.backward[0]) for loss, one in moved.items()}
    assert forward["whole"] == forward["chunks"] and backward["whole"] == backward["chunks"]
    assert forward["whole"] - forward["cut"] == pytest.approx(5 * each, rel=1e-4)


def test_more_parts_are_smaller_products() -> None:
    machine = {"gemm": {"default": {"peak_fraction": 1.0, "m_half": 32, "n_half": 0, "k_half": 0}}}
    few, many = (priced("chunks", loss_chunks=n, machine=machine | FAST_MEMORY) for n in (1, 8))
    assert many.forward[0] / few.forward[0] == pytest.approx(
        (16 + 32) / 16 / ((128 + 32) / 128), rel=1e-4)
    assert many.backward[0] > few.backward[0]


@pytest.mark.parametrize(("loss", "rows", "found"), [
    ("whole", 8192, 1), ("cut", 8192, 1), ("chunks", 8192, 8), ("chunks", 2, 2),
    ("liger", 8192, 32),  # ceil(128256 / 4096) = 32 parts of 256 tokens
    ("liger", 5000, 20),  # of ceil(5000 / 32) = 157 tokens, 256
])
def test_number_of_parts(loss: str, rows: int, found: int) -> None:
    assert parts(stack(loss=loss), np.array([float(rows)]), np.array([128256.0]), 4096.0) == found


@pytest.mark.kernels
def test_a_search_names_a_form() -> None:
    """A long sample on few devices fits with a loss that holds no logits."""
    llama, job = nest.load_model("llama3-8b"), nest.Job(global_batch=8, seq_len=65536, stack="fsdp")
    cluster = nest.load_cluster("dgx-h100", devices=8)
    bounds = {"zero": [3], "recompute": ["full"], "cp": [1], "tp": [1], "pp": [1]}
    with pytest.raises(nest.InfeasibleError):
        nest.plan(llama, cluster, job, nest.SearchSpace(**bounds))
    found = nest.plan(llama, cluster, job, nest.SearchSpace(**bounds, loss=["whole", "liger",
                                                                          "cut"]))
    assert found.configuration.choices["loss"] in ("liger", "cut")
    assert found.inputs.job.stack.loss == found.configuration.choices["loss"]
