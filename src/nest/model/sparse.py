"""Operators of attention that reads selected or compressed keys, and of mixed residuals.

Selection of the highest scores is not priced; of compressed attention and mixtures of residuals no
run has been measured.
"""

from __future__ import annotations

from dataclasses import replace

from nest.inputs.layers import Indexer, LayerKind
from nest.inputs.model import Model
from nest.model.operators import Operator, between_norm, gemm, kept_input, norm


def indexer(model: Model, index: Indexer, depth: int, causal: bool) -> list[Operator]:
    """Scores of all earlier tokens by small heads with one key (arXiv:2512.02556, section 2.1).

    Its inputs are detached, so the projections pass no gradient on; their product backward is
    priced nevertheless. Every tensor-parallel rank runs all of it.

    Parameters
    ----------
    depth : inputs of its queries.
    """
    wide, key, h = index.heads * index.head_dim, index.head_dim, model.hidden
    normed = key if index.weighted else wide + key
    ops = [
        gemm("index_query", "sequence", wide, depth, False, wide),
        gemm("index_key", "sequence", key, h, False, key),
        Operator("index_norm", "memory", "sequence", forward_elements=2 * normed,
                 backward_elements=3 * normed, parameters=2 * key, saved_elements=normed),
    ]
    if index.weighted:
        ops.append(gemm("index_weights", "sequence", index.heads, h, False, index.heads))
    return [*ops, Operator("index_scores", "attention", "sequence", attention_width=wide,
                           causal=causal)]


def compressed_attention(model: Model, causal: bool, kind: LayerKind) -> list[Operator]:
    """Attention to a window and to compressed entries (DeepseekV4Attention of transformers).

    One key, which is the value too, serves all heads. An entry of r tokens is a mean of their
    projections, weighted by others; where entries are selected, also of the r tokens before. A
    token sees the entries in front of it: 1 / r of the pairs, and no more than those selected.
    """
    c, h, d = model.compression, model.hidden, model.head_dim
    assert c is not None
    q, r = model.heads * d, kind.compress
    index = c.indexer if kind.indexer == "own" else None
    mixed = c.groups * c.o_rank
    core = Operator("attention_core", "attention", "heads", attention_width=2 * q,
                    saved_elements=q, heads=model.heads, kv_width=d, kv_groups=1, causal=causal,
                    window=kind.window, again=("core_attn",), offloaded="core_attn",
                    parameters=model.heads if model.sinks else 0)
    ops = [
        gemm("query_down", "sequence", c.q_rank, h, False, 0),
        norm(model, "query_norm", c.q_rank),
        gemm("query_up", "column", q, c.q_rank, False, c.q_rank, cast_elements=c.q_rank),
        Operator("query_head_norm", "memory", "heads", forward_elements=2 * q,
                 backward_elements=3 * q, saved_elements=q, **between_norm(model, q)),
        kept_input(model, "projection_input"),
        replace(gemm("key_value", "column", d, h, False, d), groups=1, product_input=False),
        norm(model, "key_norm", d),
        # Behind the core, the values' rotation is undone.
        Operator("rope", "memory", "heads", forward_elements=4 * q, backward_elements=4 * q),
    ]
    if r:
        ops += _compressor(model, "key", (2 if index else 1) * d, d, r)
        if index is not None:
            wide, one = index.heads * index.head_dim, index.head_dim
            ops += [*_compressor(model, "index", 2 * one, one, r),
                    gemm("index_query", "sequence", wide, c.q_rank, False, wide),
                    gemm("index_weights", "sequence", index.heads, h, False, index.heads),
                    Operator("index_scores", "attention", "sequence", attention_width=wide / r,
                             causal=causal)]
        ops.append(replace(core, name="compressed_core", attention_width=2.0 * q / r, heads=0,
                           saved_elements=0.0, kv_width=max(1, d // r), parameters=0,
                           window=index.top_k * r if index else None))
    return [
        *ops, core,
        replace(gemm("attention_groups", "column", mixed, q // c.groups, False, q,
                     cast_elements=q), wide_elements=q, product_input=True),
        gemm("attention_output", "row", h, mixed, False, mixed, ("products",),
             cast_elements=mixed),
    ]


def _compressor(model: Model, name: str, width: int, entry: int, r: int) -> list[Operator]:
    """What makes an entry of each ``r`` tokens: two projections, a weighted mean, a norm."""
    return [
        gemm(f"{name}_compression", "sequence", 2 * width, model.hidden, False, 2 * width),
        Operator(f"{name}_entries", "memory", "sequence",
                 forward_elements=2 * width + 3 * entry / r,
                 backward_elements=4 * width + 4 * entry / r,
                 parameters=r * width + entry * (1 + model.norm_bias)),
    ]


def mixing(model: Model, name: str) -> list[Operator]:
    """What takes the place of a residual addition, for one part of a layer.

    Streams (DeepseekV4HyperConnection of transformers): weights by a product with all n streams, a
    mixture of them to read, and afterwards streams of the mixed ones and of what the part made.
    Residuals of blocks (KimiK3TransformerBlock of torchtitan): a mean of all earlier blocks' and
    the current one, weighted by scores; here of the average layer. Kernels that read and write
    each once are assumed. A block's first layer keeps all of them, here an equal share of it.
    """
    n, h, block = model.streams, model.hidden, model.residual_block
    added = 3 * h
    if block:
        blocks = -(-model.layers // block)
        read = (blocks + 3) / 2.0  # with the current one
        return [Operator(name, "memory", "sequence", forward_elements=(read + 1) * h + added,
                         backward_elements=(2 * read + 1) * h + h, masked_elements=h,
                         saved_elements=h + blocks * (blocks + 1) / 2.0 / (2 * model.layers) * h,
                         parameters=2 * h)]
    weights = (2 + n) * n
    return [
        replace(gemm(f"{name}_weights", "sequence", weights, n * h, False, (n + 1) * h),
                product_input=False, bf16=True, parameters=weights * (n * h + 1) + 3),
        Operator(name, "memory", "sequence", forward_elements=(4 * n + 2) * h,
                 backward_elements=(7 * n + 3) * h, masked_elements=h),
    ]
