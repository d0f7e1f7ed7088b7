"""Operators of a transformer layer: attention, MLP, experts, norms.

A norm saves its input; a separate ``..._input`` operator saves its output, because selective
recompute of norms drops the output and keeps the input. Modules are those of Megatron-Core
(``--recompute-modules``): ``core_attn`` runs the attention core again, ``norm`` the norms in front
of attention and MLP, ``mlp_act`` activation functions, ``moe`` router, experts and shared experts,
``shared_experts`` the latter alone, ``mlp`` the MLP of a layer without experts and the norm in
front, which is fused with its first product, ``mla_up_proj`` what latent attention makes of its
latents: queries, keys and values.
torchtitan's selective recompute runs norms, activation functions and ``products`` again: every
second product in the order query, key, value, output, gate, up, down, that is key, output and up
(_apply_ac_to_transformer_block in torchtitan/parallelisms/parallelize_llama.py, December 2024).
"""

from __future__ import annotations

from dataclasses import replace

from nest.describe.model import Model
from nest.graph.operators import Experts, Layer, Operator, Split, Traffic

_MOE = ("moe",)
_MLP = ("mlp",)
_UP = ("mla_up_proj",)
_SHARED = (*_MOE, "shared_experts")


def norm(model: Model, name: str, width: int) -> Operator:
    """A norm that reads and writes ``width`` elements per token."""
    parameters = width * (2 if model.norm == "layernorm" else 1)
    return Operator(name, "memory", "sequence", forward_elements=2 * width,
                    backward_elements=3 * width, parameters=parameters, saved_elements=width)


def gemm(
    name: str, split: Split, width: int, depth: int, bias: bool, saved: float,
    again: tuple[str, ...] = (), dropped: tuple[str, ...] = (), fp8_bytes: float | None = None,
) -> Operator:
    """A linear layer; ``saved``: elements of its input that no other operator saves."""
    return Operator(name, "gemm", split, width=width, depth=depth,
                    parameters=width * depth + (width if bias else 0), saved_elements=saved,
                    product_input=saved == depth, again=again, dropped=dropped,
                    fp8_bytes=fp8_bytes)


def kept_input(model: Model, name: str) -> Operator:
    """The normed input of linear layers, saved once for all that read it."""
    return Operator(name, "memory", "sequence", saved_elements=model.hidden, dropped=("norm",),
                    product_input=True, fp8_bytes=model.hidden)


def _output(model: Model, name: str, width: int) -> Operator:
    """The projection of an attention core's output.

    The core keeps its output in 16 bit for its own backward; in fp8 the projection keeps another
    copy.
    """
    return replace(gemm(name, "row", model.hidden, width, model.bias, width, ("products",),
                        fp8_bytes=3 * width), offloaded="attn_proj")


def residual(model: Model, name: str) -> Operator:
    """Residual addition; its gradient is added once in the backward."""
    return Operator(name, "memory", "sequence", forward_elements=3 * model.hidden,
                    backward_elements=model.hidden)


def attention(model: Model, causal: bool, window: int | None = None) -> list[Operator]:
    """Self-attention after its norm; ``window``: keys that a position sees at most."""
    if model.mla is not None:
        return _latent_attention(model, causal, window)
    h, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    bias = model.bias or model.qkv_bias
    # The projections read the normed input, saved once.
    ops = [
        gemm("query", "column", q, h, bias, 0),
        replace(gemm("key_value", "column", 2 * kv, h, bias, 2 * kv), groups=model.kv_heads,
                halves=True, product_input=False, offloaded="core_attn"),
        replace(kept_input(model, "projection_input"), offloaded="qkv_linear"),
    ]
    if model.rotary:
        ops.append(Operator("rope", "memory", "heads", forward_elements=2 * (q + kv),
                            backward_elements=2 * (q + kv)))
    if model.qk_norm:
        ops += [_head_norm(model, "query_norm", q), _head_norm(model, "key_norm", kv)]
    return [*ops, _core(model, q, q, saved=q, causal=causal, window=window),
            _output(model, "attention_output", q)]


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
    """A norm of every head of queries or keys, ``width`` over all heads."""
    return Operator(name, "memory", "heads", forward_elements=2 * width,
                    backward_elements=3 * width,
                    parameters=norm(model, name, model.head_dim).parameters, saved_elements=width)


def _core(
    model: Model, key_width: int, value_width: int, saved: float, causal: bool,
    window: int | None = None,
) -> Operator:
    """Attention core; ``saved`` are the elements of its inputs that no projection keeps."""
    shared = model.heads // model.kv_heads
    return Operator("attention_core", "attention", "heads",
                    attention_width=key_width + value_width, saved_elements=saved,
                    heads=model.heads, kv_width=(key_width + value_width) // shared,
                    kv_groups=model.kv_heads, causal=causal, window=window,
                    again=("core_attn",), offloaded="core_attn")


def _latent_attention(model: Model, causal: bool, window: int | None) -> list[Operator]:
    """Multi-head latent attention (DeepSeek-V3, arXiv:2412.19437, section 2.1.1)."""
    mla = model.mla
    assert mla is not None
    h, a = model.hidden, model.heads
    query, value = a * (mla.nope_dim + mla.rope_dim), a * mla.value_dim
    ops: list[Operator] = []
    if mla.q_rank:
        ops += [
            gemm("query_down", "sequence", mla.q_rank, h, False, 0),
            replace(norm(model, "query_norm", mla.q_rank), again=_UP),
            gemm("query_up", "column", query, mla.q_rank, False, mla.q_rank, _UP, _UP,
                 fp8_bytes=mla.q_rank),
        ]
    else:
        ops.append(gemm("query", "column", query, h, False, 0, _UP))
    ops += [
        kept_input(model, "projection_input"),
        gemm("key_value_down", "sequence", mla.kv_rank + mla.rope_dim, h, False, 0),
        replace(norm(model, "key_value_norm", mla.kv_rank), again=_UP),
        gemm("key_value_up", "column", a * (mla.nope_dim + mla.value_dim), mla.kv_rank, False,
             mla.kv_rank, _UP, _UP, fp8_bytes=mla.kv_rank),
    ]
    ops = [replace(op, offloaded="qkv_linear") for op in ops]
    core = _core(model, query, value, saved=2 * query + value, causal=causal, window=window)
    ops += [
        Operator("rope", "memory", "heads", forward_elements=2 * query,
                 backward_elements=2 * query, again=_UP),
        replace(core, dropped=_UP),
        _output(model, "attention_output", value),
    ]
    return ops


def mlp(
    model: Model, width: int, name: str = "mlp", modules: tuple[str, ...] = ()
) -> list[Operator]:
    """An MLP without its saved input; ``modules`` run all of it again."""
    h, up = model.hidden, (2 if model.gated else 1) * width
    activation = ("mlp_act", *modules)
    return [
        replace(gemm(f"{name}_up", "column", up, h, model.bias, 0, modules), halves=model.gated),
        Operator(f"{name}_activation", "memory", "column", width=width,
                 forward_elements=up + width, backward_elements=2 * up + width,
                 saved_elements=up, again=activation, dropped=modules, halves=model.gated),
        gemm(f"{name}_down", "row", h, width, model.bias, width, modules, activation,
             fp8_bytes=width),
    ]


def experts(model: Model) -> list[Operator]:
    """Router, routed experts (widths per token copy) and shared experts."""
    moe = model.moe
    assert moe is not None
    h, up = model.hidden, (2 if model.gated else 1) * moe.ffn
    bias = 1 if model.bias else 0
    activation = ("mlp_act", *_MOE)
    ops = [
        gemm("router", "sequence", moe.experts, h, False, 2 * moe.experts, _MOE, _MOE),
        # The router reads it in 16 bit.
        replace(kept_input(model, "moe_input"), fp8_bytes=None),
        Operator("permute", "memory", "dispatch", forward_elements=4 * h,
                 backward_elements=4 * h, saved_elements=h, again=_MOE, dropped=_MOE,
                 product_input=True, fp8_bytes=h, long=True, offloaded="expert_fc1"),
        Operator("expert_up", "gemm", "expert_column", width=up, depth=h,
                 parameters=moe.experts * up * (h + bias), again=_MOE),
        Operator("expert_activation", "memory", "expert_column", forward_elements=up + moe.ffn,
                 backward_elements=2 * up + moe.ffn, saved_elements=up, again=activation,
                 dropped=_MOE, fusable=True, offloaded="moe_act"),
        Operator("expert_down", "gemm", "expert_row", width=h, depth=moe.ffn,
                 parameters=moe.experts * h * (moe.ffn + bias), saved_elements=moe.ffn,
                 product_input=True, again=_MOE, dropped=activation, fp8_bytes=moe.ffn),
    ]
    if model.bias or moe.clamped:
        ops.append(_unfused(model, up))
    if moe.shared_ffn:
        ops += mlp(model, moe.shared_ffn, "shared", _SHARED)
        if moe.shared_gate:
            ops.append(gemm("shared_gate", "sequence", 1, h, False, 1, _SHARED, _SHARED))
    return ops


def _unfused(model: Model, up: int) -> Operator:
    """Bias of the experts' output, and clamps before the gate, as Megatron-Core runs them.

    Bias (the apply_bias of its grouped MLP): product with the probability, sum and concatenation;
    backward two products, their sums and a concatenation; the first product's bias gradient is a
    sum. Clamps (its fused bias and quick GeGLU): two clamps and a concatenation, backward their
    masks and a concatenation.
    """
    assert model.moe is not None
    h, bias, clamps = model.hidden, model.bias, model.moe.clamped
    return Operator("expert_bias", "memory", "dispatch", again=_MOE, fusable=True,
                    forward_elements=6 * h * bias + 4 * up * clamps,
                    backward_elements=(8 * h + up) * bias + 5 * up * clamps)


def block(
    model: Model, name: str, causal: bool, *, moe: bool = False, tokens: int | None = None,
    cross: bool = False, repeated: bool = True, window: int | None = None,
) -> Layer:
    """A transformer layer.

    Parameters
    ----------
    moe : has experts instead of the MLP.
    tokens : tokens of a sample; ``None``: the job's sequence length.
    cross : attends to the output of the model's encoder.
    repeated : even cuts divide it.
    window : keys that a position sees at most; ``None``: no such limit.
    """
    # The first two norms precede attention and MLP, further ones follow them.
    ops = [norm(model, f"norm_{i}", model.hidden) for i in range(model.layer_norms)]
    ops = [replace(op, again=("norm",)) if i < 2 else op for i, op in enumerate(ops)]
    # The second one reads the result of the output projection.
    ops = [replace(op, dropped=("products",)) if i == 1 else op for i, op in enumerate(ops)]
    # A norm is a module of its own where it is not fused with the product behind it.
    modules = ("attn_norm" if model.mla else "qkv_linear", "mlp_norm" if moe else "")
    ops = [replace(op, offloaded=name) for op, name in zip(ops, modules, strict=False)] + ops[2:]
    ops += [*attention(model, causal, window), residual(model, "attention_residual")]
    dense, routed, across = 2, None, None
    if cross:
        length = model.encoder_seq_len
        ops += [replace(norm(model, "cross_norm", model.hidden), again=("norm",)),
                *cross_attention(model, length), residual(model, "cross_residual")]
        dense = 3
        # One column-split product reads the encoder's output; backward gathers it once more.
        across = Traffic(forward_gathers=1, backward_gathers=1, backward_scatters=1,
                         backward_reduces=1, tokens=length)
    if moe:
        assert model.moe is not None
        ops += experts(model)
        dense = 2 if model.moe.shared_ffn else 1
        routed = Experts(model.moe.experts, model.moe.top_k, model.moe.ffn,
                         3 if model.gated else 2, model.moe.groups, model.moe.group_limit)
    else:
        inside = kept_input(model, "mlp_input")
        ops += [*mlp(model, model.ffn, modules=_MLP),
                replace(inside, dropped=(*inside.dropped, *_MLP))]
        ops = [replace(op, again=(*op.again, *_MLP)) if op.name == "norm_1" else op for op in ops]
    ops.append(residual(model, "mlp_residual"))
    # Backward gathers the saved input of each column-split product once more.
    traffic = Traffic(dense, dense, 2 * dense, dense, dense, dense,
                      experts=0.5 if routed and dense == 2 else 0.0,
                      mlp=0.0 if moe else 1.0 / dense)
    return Layer(name, tuple(ops), traffic, across, routed, hidden=model.hidden, tokens=tokens,
                 repeated=repeated, checkpointed=True)
