"""How many parameters a described model has, part by part.

Linear layers as in the reference implementations (Hugging Face transformers, modeling files of
BERT, GPT-2, OPT, Llama, Mixtral, Qwen and DeepSeek-V3): a matrix `in x out`, a bias of `out` where
the model has biases, norms of one (RMSNorm) or two (LayerNorm) vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nest.describe.model import Model


def norm(model: Model, width: int | None = None) -> int:
    """Parameters of one norm of the given width (default: hidden)."""
    vectors = 2 if model.norm == "layernorm" else 1
    return vectors * (model.hidden if width is None else width)


def attention(model: Model) -> int:
    """Parameters of one attention without the norm before it.

    Latent attention: arXiv:2412.19437, equations 1 to 11; a norm follows each compression.
    """
    h, a = model.hidden, model.heads
    if model.mla is not None:
        mla = model.mla
        query = a * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            total = h * mla.q_rank + norm(model, mla.q_rank) + mla.q_rank * query
        else:
            total = h * query
        total += h * (mla.kv_rank + mla.rope_dim) + norm(model, mla.kv_rank)
        total += mla.kv_rank * a * (mla.nope_dim + mla.value_dim)
        return total + a * mla.value_dim * h
    query, key = a * model.head_dim, model.kv_heads * model.head_dim
    total = h * query + 2 * h * key + query * h
    if model.bias or model.qkv_bias:
        total += query + 2 * key
    if model.bias:
        total += h
    if model.qk_norm:
        total += 2 * norm(model, model.head_dim)
    return total


def mlp(model: Model, width: int) -> int:
    """Parameters of one MLP (or expert) of the given width."""
    if width == 0:
        return 0
    inner = 2 if model.gated else 1
    biases = inner * width + model.hidden if model.bias else 0
    return (inner + 1) * model.hidden * width + biases


def experts(model: Model, active: bool = False) -> int:
    """Parameters of one mixture of experts: router, routed and shared experts, gate."""
    moe = model.moe
    if moe is None:
        return 0
    routed = moe.top_k if active else moe.experts
    total = model.hidden * moe.experts + routed * mlp(model, moe.ffn) + mlp(model, moe.shared_ffn)
    return total + (model.hidden if moe.shared_gate else 0)


def layer(model: Model, index: int, active: bool = False) -> int:
    """Parameters of transformer layer `index` (0-based), norms included."""
    wide = experts(model, active) if model.is_moe_layer(index) else mlp(model, model.ffn)
    return attention(model) + wide + model.layer_norms * norm(model)


def places(model: Model) -> int:
    """Parameters of position and token-type embeddings, the norm after them, distance biases."""
    total = (model.positions + model.token_types) * model.hidden
    total += model.relative_positions * model.heads
    return total + (norm(model) if model.embedding_norm else 0)


def embedding(model: Model) -> int:
    """Parameters of token, position and token-type embeddings and the norm after them."""
    return model.vocab * model.hidden + places(model)


def encoder(model: Model) -> int:
    """Parameters of the encoder of an encoder-decoder; its token embedding is the decoder's."""
    each = attention(model) + mlp(model, model.ffn) + model.layer_norms * norm(model)
    last = norm(model) if model.final_norm else 0
    return (model.encoder_layers or 0) * each + last + places(model)


def vision(model: Model) -> int:
    """Parameters of the tower for images and of the projector to the language model."""
    tower = model.vision
    if tower is None:
        return 0
    inner = tower.transformer()
    total = (tower.patch_width + tower.patch_bias) * tower.hidden
    total += (inner.positions + tower.class_token) * tower.hidden
    total += tower.layers * layer(inner, 0)
    total += (tower.embedding_norm + tower.final_norm) * norm(inner)
    wide = tower.merge * tower.hidden
    return total + (wide + 1 + (tower.projector_layers - 1) * (model.hidden + 1)) * model.hidden


def prediction(model: Model) -> int:
    """Parameters of the multi-token prediction layers (arXiv:2412.19437, section 2.2).

    Each has norms of the hidden state and of the embedding, a projection of both, a transformer
    layer like the last one, and a norm; embedding and vocabulary matrix are the model's.
    """
    each = 3 * norm(model) + 2 * model.hidden**2 + layer(model, model.layers - 1)
    return model.mtp_layers * each


def head(model: Model) -> int:
    """Parameters of all that follows the layers; a tied vocabulary matrix is not counted again."""
    h = model.hidden
    total = norm(model) if model.final_norm else 0
    if model.head_transform:
        total += h * h + h + norm(model)
    if model.pooler:
        total += h * h + h
    if not model.tied_embeddings:
        total += model.vocab * h
    return total + (model.vocab if model.head_bias else 0)


def count(model: Model, active: bool = False) -> int:
    """All parameters but those of `prediction`; with `active` only those that one token uses."""
    sparse = model.moe_layers
    dense = model.layers - sparse
    same = attention(model) + model.layer_norms * norm(model)
    total = embedding(model) + head(model) + vision(model) + model.layers * same
    if model.kind == "encoder-decoder":
        # attention to the encoder's output, and the norm before it
        total += encoder(model) + model.layers * (attention(model) + norm(model))
    return total + sparse * experts(model, active) + dense * mlp(model, model.ffn)
