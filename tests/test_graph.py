"""The chain of a model: its parameters are those of the description, its layers in order."""

from __future__ import annotations

import pytest

from nest.describe import catalog, load_model
from nest.graph import build_chain, model_flop


@pytest.mark.parametrize("name", catalog.names("models"))
def test_operators_hold_the_parameters_of_the_description(name: str) -> None:
    model = load_model(name)
    chain = build_chain(model)
    whole = [chain.kinds[k] for k in chain.stage(0, len(chain))]
    assert sum(layer.parameters for layer in whole) == model.parameters()
    assert all(op.parameters >= 0 for layer in chain.kinds for op in layer.operators)
    # Cut in two, a tied embedding is held twice.
    parts = [chain.kinds[k] for part in ((0, 1), (1, len(chain))) for k in chain.stage(*part)]
    copy = model.vocab * model.hidden if model.tied_embeddings else 0
    assert sum(layer.parameters for layer in parts) == model.parameters() + copy


def test_embedding_first_head_last_and_dense_layers_before_experts() -> None:
    chain = build_chain(load_model("deepseek-v3"))
    names = [chain.kinds[k].name for k in chain.order]
    assert names == ["embedding", *["layer"] * 3, *["moe_layer"] * 58, "head"]


def test_model_flop_is_six_per_parameter_and_token_plus_attention() -> None:
    """arXiv:2001.08361, table 1: 6 FLOP per parameter and token; attention apart."""
    model = load_model("gpt3-175b")
    matrices = 96 * 12 * model.hidden**2 + model.vocab * model.hidden
    attention = 96 * 4 * 2048 * model.hidden * 0.5 * 3
    assert model_flop(build_chain(model), 2048) == pytest.approx(
        2048 * (6 * matrices + attention), rel=1e-12)


def test_experts_count_what_a_token_uses() -> None:
    """Mixtral uses 12.9 of 46.7 billion parameters a token (arXiv:2401.04088, section 2)."""
    model = load_model("mixtral-8x7b")
    flop = model_flop(build_chain(model), 1)
    assert flop / 6 == pytest.approx(model.active_parameters(), rel=0.02)
