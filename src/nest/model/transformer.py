"""Operators of a transformer layer: attention, MLP, experts, norms.

A norm saves its input; a separate ``..._input`` operator saves its output, because selective
recompute of norms drops the output and keeps the input. Modules are those of Megatron-Core
(``--recompute-modules``): ``core_attn`` runs the attention core again, ``norm`` the norms in front
of attention and MLP, ``mlp_act`` activation functions, ``moe`` router, experts and shared experts,
``shared_experts`` the latter alone, ``mlp`` the MLP of a layer without experts and the norm in
front, which is fused with its first product, ``mla_up_proj`` what latent attention makes of its
latents: queries, keys and values. Under stacks that name outputs (``saves_outputs``) there are
also ``qkv_linear``, projections of queries, keys and values, and ``attn_proj``, attention's output
projection, where these outputs are not named.
torchtitan's selective recompute runs norms, activation functions and ``products`` again: every
second product in the order query, key, value, output, gate, up, down, that is key, output and up
(_apply_ac_to_transformer_block in torchtitan/parallelisms/parallelize_llama.py, December 2024).
"""

from __future__ import annotations

from dataclasses import replace

from nest.inputs.layers import LayerKind
from nest.inputs.model import Model
from nest.model.operators import (
    Experts,
    Layer,
    Operator,
    Traffic,
    between_norm,
    gemm,
    kept_input,
    norm,
    recurrence,
    residual,
)
from nest.model.sparse import compressed_attention, indexer, mixing

_MOE = ("moe",)
_MLP = ("mlp",)
_QKV, _PROJ = ("qkv_linear",), ("attn_proj",)
_UP = ("mla_up_proj", *_QKV)
_SHARED = (*_MOE, "shared_experts")


def _output(model: Model, name: str, width: int, again: tuple[str, ...] = ()) -> Operator:
    """The projection of an attention core's output.

    The core keeps its output in 16 bit for its own backward; in fp8 the projection keeps another
    copy.
    """
    bias = model.bias or model.output_bias
    return replace(gemm(name, "row", model.hidden, width, bias, width, ("products", *again),
                        cast_elements=width), wide_elements=width, offloaded="attn_proj")


def attention(model: Model, causal: bool, kind: LayerKind) -> list[Operator]:
    """Self-attention after its norm, with the windows of a kind of layer."""
    if model.compression is not None:
        return compressed_attention(model, causal, kind)
    if model.mla is not None:
        return _latent_attention(model, causal, kind)
    h, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    out, both = model.heads * model.value_width, kv + model.kv_heads * model.value_width
    bias = model.bias or model.qkv_bias
    gated = model.attention_gate
    # The projections read the normed input, saved once.
    ops = [
        gemm("query", "column", 2 * q if gated else q, h, bias, 0, _QKV),
        replace(gemm("key_value", "column", kv if kind.one_key else both, h, bias, both,
                     _QKV, _QKV), groups=model.kv_heads, halves=True, product_input=False,
                offloaded="core_attn"),
        replace(kept_input(model, "projection_input"), offloaded="qkv_linear"),
    ]
    if kind.shared_keys:  # they are kept where they are made
        ops, kv = [op for op in ops if op.name != "key_value"], 0
    if model.rotary:
        ops.append(Operator("rope", "memory", "heads", forward_elements=2 * (q + kv),
                            backward_elements=2 * (q + kv)))
    if model.qk_norm:
        ops.append(_head_norm(model, "query_norm", q))
    if model.qk_norm and kv:
        ops.append(_head_norm(model, "key_norm", kv))
    if model.value_norm and kv:
        ops.append(replace(_head_norm(model, "value_norm", kv), parameters=0))
    ops = [op if op.type == "gemm" or op.product_input else replace(op, again=_QKV, dropped=_QKV)
           for op in ops]
    core = replace(_core(model, q, out, saved=q, causal=causal, kind=kind), dropped=_QKV)
    if model.indexer is not None and kind.indexer != "none":
        if kind.indexer == "own":
            ops += indexer(model, model.indexer, h, causal)
        core = replace(core, window=model.indexer.top_k)
    ops.append(core)
    if gated:  # it keeps the core's output and the gate, the projection what they make
        ops.append(Operator("attention_gate", "memory", "heads", forward_elements=3 * q,
                            backward_elements=5 * q, saved_elements=2 * q))
    if model.head_gate:  # it keeps the core's output, the projection what it makes
        ops += [gemm("head_gate", "column", model.heads, h, False, model.heads),
                Operator("attention_gate", "memory", "heads", forward_elements=2 * out,
                         backward_elements=4 * out, saved_elements=out)]
    return [*ops, _output(model, "attention_output", out, _PROJ)]


def cross_attention(model: Model, positions: int | None) -> list[Operator]:
    """Attention to the encoder's output of ``positions`` tokens, after its norm.

    That output is one tensor for all layers of a stage: no layer saves it.
    """
    h, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    bias = model.bias or model.qkv_bias
    keys = gemm("cross_key_value", "column", 2 * kv, h, bias, 2 * kv)
    norms = []
    if model.qk_norm:
        norms = [_head_norm(model, "cross_query_norm", q),
                 replace(_head_norm(model, "cross_key_norm", kv), positions=positions)]
    return [
        gemm("cross_query", "column", q, h, bias, 0),
        replace(keys, groups=model.kv_heads, positions=positions, product_input=False),
        *norms,
        kept_input(model, "cross_input"),
        replace(_core(model, q, q, saved=q, causal=False), name="cross_core", positions=positions),
        _output(model, "cross_output", q),
    ]


def _head_norm(model: Model, name: str, width: int) -> Operator:
    """A norm of every head of queries or keys, or of all heads at once, of ``width`` elements."""
    weights = {"head": model.head_dim, "all": width, "plain": 0}[model.qk_norm_form]
    return Operator(name, "memory", "heads", forward_elements=2 * width,
                    backward_elements=3 * width,
                    parameters=norm(model, name, weights).parameters, saved_elements=width,
                    **between_norm(model, width))


def _core(
    model: Model, key_width: int, value_width: int, saved: float, causal: bool,
    kind: LayerKind | None = None,
) -> Operator:
    """Attention core; ``saved`` are the elements of its inputs that no projection keeps."""
    shared = model.heads // model.kv_heads
    window, chunked = (kind.window, kind.chunked) if kind else (None, False)
    return Operator("attention_core", "attention", "heads",
                    attention_width=key_width + value_width, saved_elements=saved,
                    heads=model.heads, kv_width=(key_width + value_width) // shared,
                    kv_groups=model.kv_heads, causal=causal, window=window, chunked=chunked,
                    parameters=model.heads if model.sinks else 0,
                    again=("core_attn",), offloaded="core_attn")


def _latent_attention(model: Model, causal: bool, kind: LayerKind) -> list[Operator]:
    """Multi-head latent attention (DeepSeek-V3, arXiv:2412.19437, section 2.1.1).

    Sparse attention needs the keys that its indexer selects: as many pairs as a window of them has.
    """
    mla = model.mla
    assert mla is not None
    h, a = model.hidden, model.heads
    query, value = a * (mla.nope_dim + mla.rope_dim), a * mla.value_dim
    ops: list[Operator] = []
    if mla.q_rank:
        ops += [
            gemm("query_down", "sequence", mla.q_rank, h, False, 0, _QKV),
            replace(norm(model, "query_norm", mla.q_rank), again=_UP, dropped=_QKV),
            gemm("query_up", "column", query, mla.q_rank, False, mla.q_rank, _UP, _UP,
                 cast_elements=mla.q_rank),
        ]
    else:
        ops.append(gemm("query", "column", query, h, False, 0, _UP))
    ops += [
        kept_input(model, "projection_input"),
        gemm("key_value_down", "sequence", mla.kv_rank + mla.rope_dim, h, False, 0, _QKV),
        replace(norm(model, "key_value_norm", mla.kv_rank), again=_UP, dropped=_QKV),
        gemm("key_value_up", "column", a * (mla.nope_dim + mla.value_dim), mla.kv_rank, False,
             mla.kv_rank, _UP, _UP, cast_elements=mla.kv_rank),
    ]
    ops = [replace(op, offloaded="qkv_linear") for op in ops]
    core = _core(model, query, value, saved=2 * query + value, causal=causal, kind=kind)
    if mla.indexer is not None and kind.indexer != "none":
        if kind.indexer == "own":
            ops += indexer(model, mla.indexer, mla.q_rank, causal)
        core = replace(core, window=mla.indexer.top_k)
    if model.rotary:
        ops.append(Operator("rope", "memory", "heads", forward_elements=2 * query,
                            backward_elements=2 * query, again=_UP))
    ops.append(replace(core, dropped=_UP))
    if mla.gate:  # it keeps the core's output and the gate, the projection what they make
        ops += [gemm("gate", "column", value, h, False, 0),
                Operator("attention_gate", "memory", "heads", forward_elements=3 * value,
                         backward_elements=5 * value, saved_elements=2 * value)]
    return [*ops, _output(model, "attention_output", value, _PROJ)]


def mlp(
    model: Model, width: int, name: str = "mlp", modules: tuple[str, ...] = ()
) -> list[Operator]:
    """An MLP without its saved input; ``modules`` run all of it again."""
    h, up = model.hidden, (2 if model.gated else 1) * width
    activation = ("mlp_act", *modules)
    bias = model.bias or model.mlp_bias
    return [
        replace(gemm(f"{name}_up", "column", up, h, bias, 0, modules), halves=model.gated),
        Operator(f"{name}_activation", "memory", "column", width=width,
                 forward_elements=up + width, backward_elements=2 * up + width,
                 saved_elements=up, again=activation, dropped=modules, halves=model.gated,
                 elementary="mlp_act", between_elements=up - width),
        gemm(f"{name}_down", "row", h, width, bias, width, modules, activation,
             cast_elements=width),
    ]


def experts(model: Model) -> list[Operator]:
    """Router, routed experts (widths per token copy) and shared experts."""
    moe = model.moe
    assert moe is not None
    h, up = moe.latent or model.hidden, (2 if model.gated else 1) * moe.ffn
    bias = 1 if model.bias or model.mlp_bias else 0
    activation = ("mlp_act", *_MOE)
    ops = [
        gemm("router", "sequence", moe.experts, model.hidden, moe.router_bias, 2 * moe.experts,
             _MOE, _MOE),
        # The router reads it in 16 bit.
        replace(kept_input(model, "moe_input"), cast_elements=None),
        Operator("permute", "memory", "dispatch", forward_elements=4 * h,
                 backward_elements=4 * h, saved_elements=h, again=_MOE, dropped=_MOE,
                 product_input=True, cast_elements=h, long=True, offloaded="expert_fc1"),
        Operator("expert_up", "gemm", "expert_column", width=up, depth=h,
                 parameters=moe.experts * up * (h + bias), again=_MOE),
        Operator("expert_activation", "memory", "expert_column", forward_elements=up + moe.ffn,
                 backward_elements=2 * up + moe.ffn, saved_elements=up, again=activation,
                 dropped=_MOE, fusable=True, offloaded="moe_act", elementary="mlp_act",
                 between_elements=up - moe.ffn),
        Operator("expert_down", "gemm", "expert_row", width=h, depth=moe.ffn,
                 parameters=moe.experts * h * (moe.ffn + bias), saved_elements=moe.ffn,
                 product_input=True, again=_MOE, dropped=activation, cast_elements=moe.ffn),
    ]
    if moe.latent:  # every rank has both matrices (fc1_latent_proj of Megatron-Core: duplicated)
        ops += [gemm("latent_down", "sequence", h, model.hidden, bias > 0, 0, _MOE),
                gemm("latent_up", "sequence", model.hidden, h, bias > 0, h, _MOE, _MOE,
                     cast_elements=h)]
    if moe.norms:
        ops.append(replace(norm(model, "expert_norms", moe.norms * h), again=_MOE, dropped=_MOE))
    if moe.router_scale:
        ops.append(Operator("router_norm", "memory", "sequence", forward_elements=2 * h,
                            backward_elements=3 * h, parameters=h + moe.experts, again=_MOE))
    if model.bias:
        ops.append(_bias(h, up))
    if moe.clamped:
        ops.append(_clamp(up))
    if moe.shared_ffn:
        ops += mlp(model, moe.shared_ffn, "shared", _SHARED)
        if moe.shared_gate:
            ops.append(gemm("shared_gate", "sequence", 1, model.hidden, False, 1, _SHARED,
                            _SHARED))
    return ops


def _bias(h: int, up: int) -> Operator:
    """Bias of the experts' output, as Megatron-Core runs it (the apply_bias of its grouped MLP).

    Product with the probability, sum and concatenation; backward two products, their sums and a
    concatenation; the first product's bias gradient is a sum. Fused experts have kernels of their
    own for it too (compute_grouped_dbias_dscales and the dequantised gradient in the fused grouped
    MLP of NVIDIA/TransformerEngine@d0067d0), priced alike, assumed.
    """
    return Operator("expert_bias", "memory", "dispatch", again=_MOE, forward_elements=6 * h,
                    backward_elements=8 * h + up)


def _clamp(up: int) -> Operator:
    """Clamps before the gate, as Megatron-Core runs them (its fused bias and quick GeGLU).

    Two clamps and a concatenation; backward their masks and a concatenation.
    """
    return Operator("expert_clamp", "memory", "dispatch", again=_MOE, fusable=True,
                    forward_elements=4 * up, backward_elements=5 * up)


def block(
    model: Model, name: str, causal: bool, kind: LayerKind | None = None, *,
    tokens: int | None = None, cross: bool = False, repeated: bool = True,
) -> Layer:
    """A transformer layer.

    Parameters
    ----------
    kind : what it consists of; ``None``: attention and the dense MLP.
    tokens : tokens of a sample; ``None``: the job's sequence length.
    cross : attends to the output of the model's encoder.
    repeated : even cuts divide it.
    """
    kind = kind or LayerKind(name=name)
    model, mixes, moe = model.sized(kind), kind.mixer != "none", kind.mlp == "experts"
    ops = _norms(model, kind)
    if kind.attends:
        ops += attention(model, causal, kind)
    if kind.recurs:
        # Side by side, both read one input.
        ops += [op for op in recurrence(model)
                if not (kind.attends and op.name == "projection_input")]
    if mixes and not model.parallel:
        joined = _joined(model, "attention_residual", kind.mixer == "both")
        ops += [replace(op, again=_PROJ) if kind.attends else op for op in joined]
    dense, routed, across, shared = mixes + (kind.mlp == "dense"), None, None, False
    if cross:
        length = model.encoder_seq_len
        ops += [replace(norm(model, "cross_norm", model.hidden), again=("norm",)),
                *cross_attention(model, length), residual(model, "cross_residual")]
        dense += 1
        # One column-split product reads the encoder's output; backward gathers it once more.
        across = Traffic(forward_gathers=1, backward_gathers=1, backward_scatters=1,
                         backward_reduces=1, tokens=length)
    if moe:
        assert model.moe is not None
        ops += experts(model)
        shared = model.moe.shared_ffn > 0
        dense += shared
        routed = Experts(model.moe.experts, model.moe.top_k, model.moe.ffn,
                         3 if model.gated else 2, model.moe.groups, model.moe.group_limit,
                         model.moe.latent)
    elif kind.mlp == "dense":
        inside = kept_input(model, "mlp_input")
        dense_mlp = mlp(model, model.ffn, modules=_MLP)
        if model.parallel and model.layer_norms == 1:
            ops += dense_mlp  # attention keeps its input
        else:
            ops += [*dense_mlp, replace(inside, dropped=(*inside.dropped, *_MLP))]
        before = "norm_1" if mixes else "norm_0"
        ops = [replace(op, again=(*op.again, *_MLP)) if op.name == before else op for op in ops]
    if kind.mlp != "none":
        ops += _joined(model, "mlp_residual", model.parallel)
    if model.layer_inputs:
        ops += _layer_input(model)
    elif kind.mlp == "dense" and model.norms(kind) <= kind.parts:  # no norm reads the output
        unread = ("mlp_down", "mlp_residual", *("attention_output",) * model.parallel)
        ops = [replace(op, unread=True) if op.name in unread else op for op in ops]
    # Backward gathers the saved input of each column-split product once more.
    gathers = scatters = dense
    if model.parallel and kind.mlp == "dense":
        # One sum of both outputs; one input if they share the norm (ParallelTransformerLayer
        # of EleutherAI/gpt-neox with gpt_j_residual).
        gathers, scatters = min(2, model.layer_norms), 1
    traffic = Traffic(gathers, scatters, gathers + scatters, gathers, scatters, gathers,
                      experts=1.0 / dense if shared else 0.0,
                      mlp=0.0 if moe or kind.mlp == "none" else 1.0 / dense,
                      attention=1.0 / dense if kind.attends else 0.0)
    return Layer(name, tuple(ops), traffic, across, routed, hidden=model.hidden, tokens=tokens,
                 repeated=repeated, checkpointed=True, streams=model.streams)


def _layer_input(model: Model) -> list[Operator]:
    """A gate of the hidden state times the layer's own input, projected back, normed and added
    (Gemma4TextDecoderLayer of transformers 5.23.0)."""
    h, width = model.hidden, model.layer_inputs
    return [gemm("layer_gate", "sequence", width, h, False, h),
            Operator("layer_gating", "memory", "sequence", forward_elements=3 * width,
                     backward_elements=5 * width, saved_elements=2 * width),
            gemm("layer_projection", "sequence", h, width, False, width),
            norm(model, "layer_norm", h), residual(model, "layer_residual")]


def _joined(model: Model, name: str, both: bool) -> list[Operator]:
    """What joins the output of a part of a layer to its input; ``both``: two outputs."""
    if model.streams > 1 or model.residual_block:
        return mixing(model, name)
    added = residual(model, name)
    return [replace(added, forward_elements=4 * model.hidden) if both else added]


def _norms(model: Model, kind: LayerKind) -> list[Operator]:
    """The first two precede the mixer and the MLP, further ones follow them."""
    ops = [norm(model, f"norm_{i}", model.hidden) for i in range(model.norms(kind))]
    ops = [replace(op, again=("norm",)) if i < kind.parts else op for i, op in enumerate(ops)]
    # The second one reads the result of the output projection, a third one its output.
    proj = _PROJ if kind.attends and kind.parts == 2 else ()
    ops = [replace(op, dropped=("products", *proj)) if i == 1 else
           replace(op, again=proj, dropped=proj) if i == 2 else op for i, op in enumerate(ops)]
    # A norm is a module of its own where it is not fused with the product behind it.
    behind = "mlp_norm" if kind.mlp == "experts" else ""
    modules: tuple[str, ...] = ("attn_norm" if model.mla else "qkv_linear", behind)
    if not kind.attends:
        modules = ("", behind) if kind.parts == 2 else (behind,)
    named = [replace(op, offloaded=name) for op, name in zip(ops, modules, strict=False)]
    return named + ops[len(named):]
