"""Muon: its states, its iterations, and what travels, by hand and matrix by matrix."""

from __future__ import annotations

from typing import Any

import pytest
from plain import LINK, H, block, cost, mixture, model

from nest.costs.layer import LayerCosts
from nest.model import Layer, Operator, build_chain
from nest.model.operators import Experts

PEAK = 1e10
FAST = {"memory_bandwidth": 1e18, "peak_flops": {"bf16": PEAK}}
"""Products take time; what moves in memory takes next to none."""


def one(width: int, depth: int, split: Any = "column") -> Layer:
    op = Operator("one", "gemm", split, width=width, depth=depth, parameters=width * depth)
    return Layer("one", (op,), hidden=depth)


def muon(layer: Layer, **given: Any) -> LayerCosts:
    return cost(layer, optimizer="muon", machine=FAST, **given)


def iterations(n: int, m: int) -> float:
    """FLOP of five Newton-Schulz iterations, product by product."""
    n, m = max(n, m), min(n, m)
    flop = 0.0
    for _ in range(5):
        flop += 2.0 * m * n * m  # X^T X
        flop += 2.0 * m * m * m  # A A
        flop += 2.0 * n * m * m  # X B
    return flop


@pytest.mark.parametrize(("width", "depth"), [(64, 32), (32, 64), (64, 64)])
def test_a_matrix_is_orthogonalised(width: int, depth: int) -> None:
    found = muon(one(width, depth))
    assert found.update == pytest.approx([iterations(width, depth) / PEAK])
    # Master copy and one state of 4 bytes, where Adam has two.
    assert found.optimizer == [8.0 * width * depth]
    assert cost(one(width, depth)).optimizer == [12.0 * width * depth]


def test_ranks_orthogonalise_their_parts() -> None:
    assert muon(one(64, 32), tp=2).update == pytest.approx([iterations(32, 32) / PEAK])
    assert muon(one(64, 32, "row"), tp=2).update == pytest.approx([iterations(64, 16) / PEAK])


def test_a_matrix_of_one_state_moves_less() -> None:
    # Adam: gradient, master copy and two states read, these and the parameter written: 30 bytes.
    slow = {"memory_bandwidth": 1e6, "launch_overhead": 0.0, "memory_efficiency": 1.0,
            "peak_flops": {"bf16": 1e21}}
    found = cost(one(64, 32), optimizer="muon", machine=slow)
    adam = cost(one(64, 32), machine=slow)
    # A product reads and writes 2 bytes an element: twice X and A, thrice A, X, A and the result.
    moved = 5 * 2 * ((2 * 64 * 32 + 32 * 32) + 3 * 32 * 32 + (2 * 64 * 32 + 32 * 32))
    assert (found.update - adam.update) * 1e6 == pytest.approx([moved - 8 * 64 * 32])


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("hybrid", [False, True])
def test_zero_divides_matrices(zero: int, hybrid: bool) -> None:
    if hybrid and not zero:
        return
    given: dict[str, Any] = {"zero": zero, "dp": 4, "outer": 2, "hybrid": hybrid}
    found, adam = muon(one(64, 32), **given), cost(one(64, 32), machine=FAST, **given)
    n, d = 64 * 32, 1 if not zero else 4 if hybrid else 8
    assert found.optimizer == [8.0 * n / d]
    # Shards that are parts of matrices: momentum to its rank, update back, to d - 1 others.
    travel = 2 * 4 * n / d * (d - 1) / d / LINK if zero >= 2 else 0.0
    assert found.update == pytest.approx([iterations(64, 32) / d / PEAK + travel])
    assert (found.gather, found.gathered, found.scattered) == (
        adam.gather, adam.gathered, adam.scattered)
    # ZeRO-1 all-reduces gradients of 4 bytes: as much as scattering and gathering them.
    more = 4 * n * (d - 1) / d / LINK if zero == 1 else 0.0
    assert found.sync - adam.sync == pytest.approx([more], abs=1e-15)


def test_all_else_is_adam_s() -> None:
    described = model()
    for layer in build_chain(described).kinds:
        found, adam = muon(layer), cost(layer, machine=FAST)
        matrices = [op for op in layer.operators if op.type == "gemm" and op.depth
                    and op.name not in ("embedding_table", "logits")]
        elements = sum(op.width * op.depth for op in matrices)
        assert adam.optimizer - found.optimizer == [4.0 * elements]
        assert found.update == pytest.approx(
            [sum(iterations(op.width, op.depth) for op in matrices) / PEAK], abs=1e-9)
    norms = Layer("one", (Operator("norm", "memory", "sequence", parameters=H),), hidden=H)
    assert muon(norms).optimizer == cost(norms).optimizer and muon(norms).update < 1e-9


def test_each_expert_has_its_matrices() -> None:
    op = Operator("up", "gemm", "expert_column", width=64, depth=32, parameters=8 * 64 * 32)
    layer = Layer("one", (op,), experts=Experts(8, 2, 64, 2), hidden=32)
    found = muon(layer, dp=4, ep=4)
    assert found.update == pytest.approx([2 * iterations(64, 32) / PEAK])
    assert found.optimizer == [8.0 * 2 * 64 * 32]
    # What etp divides counts as fewer whole ones.
    assert muon(layer, dp=2, tp=2, ep=2, etp=2).update == pytest.approx(found.update)
    whole = block(mixture())
    assert muon(whole).optimizer < cost(whole).optimizer
