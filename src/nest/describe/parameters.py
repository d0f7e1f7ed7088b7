"""Parameters of a model, counted part by part.

Linear layers as in the reference implementations (Hugging Face transformers, modeling files of the
model types that :mod:`nest.describe.huggingface` reads): a matrix `in x out`, a bias of `out` where
the model has biases, norms of one vector, or of two with a bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nest.describe.layers import LayerKind

if TYPE_CHECKING:
    from nest.describe.model import Model


def _norm(model: Model, width: int | None = None) -> int:
    """Parameters of one norm of the given width (default: hidden)."""
    return (1 + model.norm_bias) * (model.hidden if width is None else width)


def _attention(model: Model) -> int:
    """Parameters of one attention without the norm before it.

    Latent attention: arXiv:2412.19437, equations 1 to 11; a norm follows each compression.
    """
    h, a = model.hidden, model.heads
    if model.mla is not None:
        mla = model.mla
        query = a * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            total = h * mla.q_rank + _norm(model, mla.q_rank) + mla.q_rank * query
        else:
            total = h * query
        total += h * (mla.kv_rank + mla.rope_dim) + _norm(model, mla.kv_rank)
        total += mla.kv_rank * a * (mla.nope_dim + mla.value_dim)
        if (index := mla.indexer) is not None:  # queries, one key, its norm, weights of the heads
            total += mla.q_rank * index.heads * index.head_dim
            total += (h + 2) * index.head_dim + h * index.heads
        return total + a * mla.value_dim * h
    query, key = a * model.head_dim, model.kv_heads * model.head_dim
    asked = query * (2 if model.attention_gate else 1)
    total = h * asked + 2 * h * key + query * h
    if model.bias or model.qkv_bias:
        total += asked + 2 * key
    if model.bias or model.output_bias:
        total += h
    if model.qk_norm and model.qk_norm_form == "head":
        total += 2 * _norm(model, model.head_dim)
    if model.qk_norm and model.qk_norm_form == "all":
        total += _norm(model, query) + _norm(model, key)
    return total + (a if model.sinks else 0)


def _mlp(model: Model, width: int) -> int:
    """Parameters of one MLP (or expert) of the given width."""
    if width == 0:
        return 0
    inner = 2 if model.gated else 1
    biases = inner * width + model.hidden if model.bias or model.mlp_bias else 0
    return (inner + 1) * model.hidden * width + biases


def _experts(model: Model, active: bool = False) -> int:
    """Parameters of one mixture of experts: router, routed and shared experts, gate."""
    moe = model.moe
    if moe is None:
        return 0
    routed = moe.top_k if active else moe.experts
    total = model.hidden * moe.experts + routed * _mlp(model, moe.ffn) + _mlp(model, moe.shared_ffn)
    return total + (model.hidden if moe.shared_gate else 0) + (
        moe.experts if moe.router_bias else 0)


def layer(model: Model, kind: LayerKind, active: bool = False) -> int:
    """Parameters of a layer of a kind, norms included; ``active``: those that a token uses."""
    own = model.sized(kind)
    total = model.norms(kind) * _norm(model)
    if kind.mixer == "attention":
        total += _attention(own)
    elif kind.mixer == "recurrence":
        assert model.recurrence is not None
        total += model.recurrence.parameters(model.hidden)
    if kind.mlp != "none":
        total += _experts(model, active) if kind.mlp == "experts" else _mlp(own, own.ffn)
    return total


def _places(model: Model) -> int:
    """Parameters of position and token-type embeddings, the norm after them, distance biases."""
    total = (model.positions + model.token_types) * model.hidden
    total += model.relative_positions * model.heads
    return total + (_norm(model) if model.embedding_norm else 0)


def _embedding(model: Model) -> int:
    """Parameters of token, position and token-type embeddings and the norm after them."""
    if model.patch_width:  # with a bias, and a class token
        return (model.patch_width + 2) * model.hidden + _places(model)
    return model.vocab * model.hidden + _places(model)


def _encoder(model: Model) -> int:
    """Parameters of the encoder of an encoder-decoder; its token embedding is the decoder's."""
    each = _attention(model) + _mlp(model, model.ffn) + model.layer_norms * _norm(model)
    last = _norm(model) if model.final_norm else 0
    return (model.encoder_layers or 0) * each + last + _places(model)


def _vision(model: Model) -> int:
    """Parameters of the tower for images and of the projector to the language model."""
    tower = model.vision
    if tower is None:
        return 0
    inner = tower.transformer()
    total = (tower.patch_width + tower.patch_bias) * tower.hidden
    total += (inner.positions + tower.class_token) * tower.hidden
    total += tower.layers * layer(inner, inner.layer(0))
    total += (tower.embedding_norm + tower.final_norm) * _norm(inner)
    projector = sum((depth + tower.projector_bias) * width
                    for depth, width in tower.projector(model.hidden))
    projector += tower.projector_norm * tower.hidden
    further = tower.deepstack * (projector + _norm(inner, tower.wide))
    return total + projector + further


def prediction(model: Model) -> int:
    """Parameters of the multi-token prediction layers (arXiv:2412.19437, section 2.2).

    Each has norms of the hidden state and of the embedding, a projection of both, a transformer
    layer like the last one, and a norm; embedding and vocabulary matrix are the model's.
    """
    last = model.layer(model.layers - 1)
    each = 3 * _norm(model) + 2 * model.hidden**2 + layer(model, last)
    return model.mtp_layers * each


def _head(model: Model) -> int:
    """Parameters after the layers; a tied vocabulary matrix is not counted again."""
    h = model.hidden
    total = _norm(model) if model.final_norm else 0
    if model.head_transform:
        total += h * h + h + _norm(model)
    if model.pooler:
        total += h * h + h
    if not model.tied_embeddings or model.patch_width:
        total += model.vocab * h
    return total + (model.vocab if model.head_bias else 0)


def count(model: Model, active: bool = False) -> int:
    """All parameters except those of `prediction`; ``active``: only those of one token."""
    total = _embedding(model) + _head(model) + _vision(model)
    if model.kind == "encoder-decoder":
        # attention to the encoder's output, and the norm before it
        total += _encoder(model) + model.layers * (_attention(model) + _norm(model))
    return total + sum(
        times * layer(model, kind, active) for kind, times in model.kinds.items())
