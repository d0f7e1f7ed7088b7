"""Context parallelism of layers with a recurrence: heads exchanged by all-to-all, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from plain import LINK, B, H, S, block, cost, model

from nest.costs.choices import CORE_ATTN, FULL, GDN_NORM_OUT
from nest.model import Layer

DELTA = {"form": "gated_delta", "heads": 8, "head_dim": 8, "groups": 4, "state": 4, "conv": 4}
MAMBA = {**DELTA, "form": "mamba2", "groups": 2}
COPY = 1e12
"""Bytes/s at which a tensor is read or written."""
IDEAL = {"peak_flops": {"bf16": 1e18}}


def mixer(recurrence: dict[str, Any]) -> Layer:
    return block(model(recurrence=recurrence, layer_types=["r", "r"], layer_kinds=[
        {"name": "r", "mixer": "recurrence", "mlp": "none"}]))


def test_heads_of_the_delta_rule_are_exchanged() -> None:
    # 16 + 16 elements of queries and keys, 64 of values, 64 of the gate, 2 a head in front, three
    # times read and written; 64 behind, twice. Half of a rank's bytes leave it.
    tokens = 2 * S * B / 2
    ahead, behind = tokens * (32 + 64 + 64 + 16), tokens * 64
    front, back = ahead / 2 / LINK + 6 * ahead / COPY, behind / 2 / LINK + 4 * behind / COPY
    for way in ({}, {"inner": 2}, {"gather": True}):
        found = cost(mixer(DELTA), cp=2, **way)
        assert found.cp_forward == pytest.approx([front + back])
        assert found.cp_backward == found.cp_forward
    assert cost(mixer(DELTA), cp=2, tp=2).cp_forward == pytest.approx([(front + back) / 2])
    for code, more in ((FULL, front + back), (GDN_NORM_OUT, back), (CORE_ATTN, 0.0)):
        again = cost(mixer(DELTA), cp=2, recompute=code).cp_backward
        assert again == pytest.approx([front + back + more])
    # Among two neighbours and across two such pairs, each of which takes half away.
    assert cost(mixer(DELTA), cp=4, inner=2).cp_forward == pytest.approx(
        [ahead / 2 / LINK + 3 * ahead / COPY + behind / 2 / LINK + 2 * behind / COPY])
    assert cost(mixer(DELTA)).cp_forward == [0.0]


def test_groups_of_mamba_are_repeated() -> None:
    # B and C of 2 groups x 4; of 4 ranks two hold each group, so they travel and are kept twice.
    tokens = 2 * S * B / 4
    for cp, copies in ((2, 1), (4, 2), (8, 4)):
        size = tokens * 4 / cp * (64 + 64 + 8 + copies * 16)
        behind = tokens * 4 / cp * 64
        found = cost(mixer(MAMBA), cp=cp)
        assert found.cp_forward == pytest.approx(
            [(size + behind) * (cp - 1) / cp / LINK + (6 * size + 4 * behind) / COPY])
        # Convolution 80 elements, recurrence these and 64 x 4 / 256 states.
        share = found.activations * cp / cost(mixer(MAMBA)).activations
        plain = 2 * H + 2 * 80 + 1 + 3 * 64
        more = (copies - 1) * 16 * (1 + (80 + 1) / (80 + 64 + 1))
        assert share == pytest.approx([(plain + more) / plain])


def test_the_gated_norm_runs_again() -> None:
    kept, again = (cost(mixer(DELTA), recompute=code, machine=IDEAL)
                   for code in (0, GDN_NORM_OUT))
    assert kept.activations - again.activations == pytest.approx([2 * S * B * 64])
    assert again.recompute == pytest.approx([2 * S * B * 3 * 64 / COPY])
    assert cost(mixer(MAMBA), recompute=GDN_NORM_OUT).recompute == [0.0]
