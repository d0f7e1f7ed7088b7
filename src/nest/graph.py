"""Operator graph of a model, folded into the chain of layers that the search may cut.

An operator carries widths *per token*; how many tokens and which share of a width a device sees
is decided by its tensor-parallel split, in :mod:`nest.costs.layer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile

Split = Literal["column", "row", "heads", "sequence", "dispatch", "expert_column", "expert_row"]
EXPERT = ("expert_column", "expert_row")


@dataclass(frozen=True)
class Operator:
    """One operator of a layer.

    ``split`` says what tensor parallelism divides: ``column`` the output width of a matrix
    product, ``row`` its reduction width, ``heads`` the attention heads, ``sequence`` the tokens
    (with sequence parallelism only). ``dispatch`` counts the token copies sent to experts;
    ``expert_column`` and ``expert_row`` divide an expert's widths by the expert-tensor degree.
    """

    name: str
    kind: Literal["gemm", "attention", "memory"]
    split: Split
    width: int = 0
    """gemm: output elements per token."""
    depth: int = 0
    """gemm: reduction length."""
    groups: int = 0
    """Key-value heads: more tensor-parallel ranks than these hold copies (0: no such limit)."""
    padded: bool = False
    """gemm: the output width is a vocabulary, padded to a multiple of 128 x tp."""
    attention_width: float = 0.0
    """attention: query-key plus value elements per token and position, over all heads."""
    forward_elements: float = 0.0
    """memory: elements read and written per token going forward."""
    backward_elements: float = 0.0
    parameters: int = 0
    saved_elements: float = 0.0
    """Elements per token that the backward pass needs."""
    heads: int = 0
    """attention: query heads, whose softmax statistics or scores are kept."""
    causal: bool = True
    """attention: a position sees only those before it."""


@dataclass(frozen=True)
class Traffic:
    """Tensor-parallel collectives of a layer, each of tokens x hidden elements.

    With sequence parallelism gathers and scatters, without it all-reduces
    (arXiv:2205.05198, section 4.2.2).
    """

    forward_gathers: int = 0
    forward_scatters: int = 0
    backward_gathers: int = 0
    backward_scatters: int = 0
    forward_reduces: int = 0
    backward_reduces: int = 0


@dataclass(frozen=True)
class Experts:
    """Routed experts of a layer."""

    count: int
    top_k: int
    ffn: int
    matrices: int
    """Weight matrices per expert: 3 gated, 2 plain."""


@dataclass(frozen=True)
class Measured:
    """Measured figures of a layer at one tensor-parallel degree; times and bytes per sample."""

    forward: float
    backward: float
    parameters: float
    activation_bytes: float
    work_bytes: float


@dataclass(frozen=True)
class Layer:
    """A unit that the search may cut between."""

    name: str
    operators: tuple[Operator, ...] = ()
    traffic: Traffic = Traffic()
    experts: Experts | None = None
    repeated: bool = False
    """A transformer layer: recompute applies to it."""
    tied_parameters: int = 0
    """Parameters whose gradient is summed with the copy on another stage."""
    output_bytes: float | None = None
    """Measured bytes per sample handed on; ``None``: tokens x hidden elements."""
    measured: dict[int, Measured] = field(default_factory=dict, hash=False)

    @property
    def parameters(self) -> int:
        return sum(op.parameters for op in self.operators)


@dataclass(frozen=True)
class Chain:
    """Layers in topological order; layers that repeat share one *kind*."""

    name: str
    hidden: int
    kinds: tuple[Layer, ...]
    order: tuple[int, ...]
    """Kind of the layer at each position."""
    shared: dict[int, int] = field(default_factory=dict, hash=False)
    """Kind to use instead when one stage holds the whole chain (tied embeddings held once)."""
    model: Model | None = None
    profile: Profile | None = None

    def __len__(self) -> int:
        return len(self.order)

    def stage(self, start: int, stop: int) -> tuple[int, ...]:
        """Kinds of the layers ``start..stop`` when they form one stage."""
        kinds = self.order[start:stop]
        if start == 0 and stop == len(self.order):
            return tuple(self.shared.get(kind, kind) for kind in kinds)
        return kinds

    @cached_property
    def repeated(self) -> tuple[bool, ...]:
        return tuple(self.kinds[kind].repeated for kind in self.order)


def build_chain(model: Model) -> Chain:
    """Chain of a transformer: embedding, its layers, vocabulary head with the loss.

    Parameters per operator follow the model description; see :meth:`Model.parameters`.
    """
    dense = _block(model, moe=False)
    kinds: list[Layer] = [_embedding(model)]
    order = [0]
    index: dict[bool, int] = {}
    for position in range(model.layers):
        moe = model.is_moe_layer(position)
        if moe not in index:
            index[moe] = len(kinds)
            kinds.append(_block(model, moe=True) if moe else dense)
        order.append(index[moe])
    order.append(len(kinds))
    kinds.append(_head(model))
    shared: dict[int, int] = {}
    if model.tied_embeddings:
        for kind in (0, order[-1]):
            shared[kind] = len(kinds)
            kinds.append(_held_once(kinds[kind], drop_copy=kind != 0))
    return Chain(model.name, model.hidden, tuple(kinds), tuple(order), shared, model=model)


def profile_chain(profile: Profile) -> Chain:
    """Chain of measured layers, in the order of the profile."""
    kinds: list[Layer] = []
    order: list[int] = []
    for entry in profile.layers:
        measured = {
            degree: Measured(m.forward, m.backward, m.parameter_bytes / profile.bytes_per_parameter,
                             m.activation_bytes, m.work_bytes)
            for degree, m in entry.tp.items()
        }
        order.extend([len(kinds)] * entry.repeat)
        kinds.append(Layer(entry.name, repeated=True, output_bytes=entry.output_bytes,
                           measured=measured))
    return Chain(profile.name, 0, tuple(kinds), tuple(order), profile=profile)


def boundary_bytes(chain: Chain, job: Job, position: int) -> float:
    """Bytes per sample that layer ``position - 1`` hands to layer ``position``."""
    measured = chain.kinds[chain.order[position - 1]].output_bytes
    if measured is not None:
        return measured
    return float(job.seq_len * chain.hidden * (4 if job.precision == "fp32" else 2))


def model_flop(chain: Chain, seq_len: int) -> float:
    """FLOP of the model for one sample, forward and backward, without recompute.

    Three times the forward matrix products; attention counts the positions it needs, half of them
    where it is causal. Experts count those a token uses. 0 for a profile, which says nothing of it.
    """
    total = 0.0
    for kind in chain.order:
        layer = chain.kinds[kind]
        for op in layer.operators:
            copies = layer.experts.top_k if layer.experts and op.split in EXPERT else 1
            total += 2.0 * op.width * op.depth * copies * (op.kind == "gemm")
            total += 2.0 * seq_len * op.attention_width * (0.5 if op.causal else 1.0)
    return 3.0 * total * seq_len


def _held_once(layer: Layer, drop_copy: bool) -> Layer:
    """The same layer where one stage holds both ends: one copy, no gradient exchange."""
    operators = layer.operators
    if drop_copy:
        operators = tuple(
            replace(op, parameters=op.parameters - layer.tied_parameters)
            if op.name == "logits" else op
            for op in operators
        )
    return replace(layer, operators=operators, tied_parameters=0)


def _norm(model: Model, name: str, width: int) -> Operator:
    parameters = width * (2 if model.norm == "layernorm" else 1)
    return Operator(name, "memory", "sequence", forward_elements=2 * width,
                    backward_elements=3 * width, parameters=parameters, saved_elements=width)


def _gemm(name: str, split: Split, width: int, depth: int, bias: bool, saved: float) -> Operator:
    return Operator(name, "gemm", split, width=width, depth=depth,
                    parameters=width * depth + (width if bias else 0), saved_elements=saved)


def _residual(model: Model, name: str) -> Operator:
    """Residual addition; its gradient is added once going backward."""
    return Operator(name, "memory", "sequence", forward_elements=3 * model.hidden,
                    backward_elements=model.hidden)


def _attention(model: Model) -> list[Operator]:
    if model.mla is not None:
        return _latent_attention(model)
    h, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    bias = model.bias or model.qkv_bias
    # The projections read the normed input, saved once.
    ops = [
        _gemm("query", "column", q, h, bias, 0),
        replace(_gemm("key_value", "column", 2 * kv, h, bias, 2 * kv), groups=model.kv_heads),
        Operator("projection_input", "memory", "sequence", saved_elements=h),
    ]
    if model.positions == 0:
        ops.append(Operator("rope", "memory", "heads", forward_elements=2 * (q + kv),
                            backward_elements=2 * (q + kv)))
    if model.qk_norm:
        ops.append(Operator("qk_norm", "memory", "heads", forward_elements=2 * (q + kv),
                            backward_elements=3 * (q + kv),
                            parameters=2 * _norm(model, "head", model.head_dim).parameters,
                            saved_elements=q + kv))
    ops.append(_core(model, q, q, saved=q))
    ops.append(_gemm("attention_output", "row", h, q, model.bias, q))
    return ops


def _core(model: Model, key_width: float, value_width: float, saved: float) -> Operator:
    """Attention core; ``saved`` are the elements of its inputs that no projection keeps."""
    return Operator("attention_core", "attention", "heads",
                    attention_width=key_width + value_width, saved_elements=saved,
                    heads=model.heads, causal=model.kind == "decoder")


def _latent_attention(model: Model) -> list[Operator]:
    """Multi-head latent attention (DeepSeek-V3, arXiv:2412.19437, section 2.1.1)."""
    mla = model.mla
    assert mla is not None
    h, a = model.hidden, model.heads
    query, value = a * (mla.nope_dim + mla.rope_dim), a * mla.value_dim
    ops: list[Operator] = []
    if mla.q_rank:
        ops += [
            _gemm("query_down", "sequence", mla.q_rank, h, False, 0),
            _norm(model, "query_norm", mla.q_rank),
            _gemm("query_up", "column", query, mla.q_rank, False, mla.q_rank),
        ]
    else:
        ops.append(_gemm("query", "column", query, h, False, 0))
    ops += [
        Operator("projection_input", "memory", "sequence", saved_elements=h),
        _gemm("key_value_down", "sequence", mla.kv_rank + mla.rope_dim, h, False, 0),
        _norm(model, "key_value_norm", mla.kv_rank),
        _gemm("key_value_up", "column", a * (mla.nope_dim + mla.value_dim), mla.kv_rank, False,
              mla.kv_rank),
        Operator("rope", "memory", "heads", forward_elements=2 * query,
                 backward_elements=2 * query),
        _core(model, query, value, saved=2 * query + value),
        _gemm("attention_output", "row", h, value, False, value),
    ]
    return ops


def _mlp(model: Model, width: int, name: str = "mlp") -> list[Operator]:
    h, up = model.hidden, (2 if model.gated else 1) * width
    return [
        _gemm(f"{name}_up", "column", up, h, model.bias, 0),
        Operator(f"{name}_input", "memory", "sequence", saved_elements=h),
        Operator(f"{name}_activation", "memory", "column", width=width,
                 forward_elements=up + width, backward_elements=2 * up + width,
                 saved_elements=up),
        _gemm(f"{name}_down", "row", h, width, model.bias, width),
    ]


def _experts(model: Model) -> list[Operator]:
    """Routed experts; widths are per token copy."""
    moe = model.moe
    assert moe is not None
    h, up = model.hidden, (2 if model.gated else 1) * moe.ffn
    bias = 1 if model.bias else 0
    return [
        Operator("router", "gemm", "sequence", width=moe.experts, depth=h,
                 parameters=moe.experts * h, saved_elements=h + 2 * moe.experts),
        Operator("permute", "memory", "dispatch", forward_elements=4 * h,
                 backward_elements=4 * h, saved_elements=h),
        Operator("expert_up", "gemm", "expert_column", width=up, depth=h,
                 parameters=moe.experts * up * (h + bias)),
        Operator("expert_activation", "memory", "expert_column", forward_elements=up + moe.ffn,
                 backward_elements=2 * up + moe.ffn, saved_elements=up),
        Operator("expert_down", "gemm", "expert_row", width=h, depth=moe.ffn,
                 parameters=moe.experts * h * (moe.ffn + bias), saved_elements=moe.ffn),
    ]


def _block(model: Model, moe: bool) -> Layer:
    norms = [_norm(model, f"norm_{i}", model.hidden) for i in range(model.layer_norms)]
    ops = [*norms, *_attention(model), _residual(model, "attention_residual")]
    experts = None
    dense = 2
    if moe:
        assert model.moe is not None
        ops += _experts(model)
        dense = 1
        if model.moe.shared_ffn:
            ops += _mlp(model, model.moe.shared_ffn, "shared")
            if model.moe.shared_gate:
                ops.append(_gemm("shared_gate", "sequence", 1, model.hidden, False, 1))
            dense = 2
        experts = Experts(model.moe.experts, model.moe.top_k, model.moe.ffn,
                          3 if model.gated else 2)
    else:
        ops += _mlp(model, model.ffn)
    ops.append(_residual(model, "mlp_residual"))
    # Backward gathers the saved input of each column-split product once more.
    traffic = Traffic(dense, dense, 2 * dense, dense, dense, dense)
    return Layer("moe_layer" if moe else "layer", tuple(ops), traffic, experts, repeated=True)


def _embedding(model: Model) -> Layer:
    h = model.hidden
    table = model.vocab * h
    ops = [Operator("embedding", "memory", "sequence", forward_elements=2 * h,
                    backward_elements=3 * h, parameters=0),
           Operator("embedding_table", "gemm", "column", padded=True, width=model.vocab,
                    depth=0, parameters=table)]
    rows = model.positions + model.token_types
    if rows:
        ops.append(Operator("position_embedding", "memory", "sequence", forward_elements=2 * h,
                            backward_elements=2 * h, parameters=rows * h))
    if model.embedding_norm:
        ops.append(_norm(model, "embedding_norm", h))
    return Layer("embedding", tuple(ops),
                 Traffic(forward_scatters=1, backward_gathers=1, forward_reduces=1),
                 tied_parameters=table if model.tied_embeddings else 0)


def _head(model: Model) -> Layer:
    h, vocab = model.hidden, model.vocab
    ops: list[Operator] = []
    if model.pooler:
        ops.append(Operator("pooler", "memory", "sequence", parameters=h * h + h))
    if model.head_transform:
        ops.append(_gemm("head_transform", "sequence", h, h, True, h))
        ops.append(_norm(model, "transform_norm", h))
    if model.final_norm:
        ops.append(_norm(model, "head_norm", h))
    # Logits in 16 bit, softmax and its gradient in 32 bit: 6 bytes an element are kept.
    ops += [
        Operator("logits", "gemm", "column", width=vocab, depth=h, padded=True,
                 parameters=vocab * h + (vocab if model.head_bias else 0), saved_elements=0),
        Operator("head_input", "memory", "sequence", saved_elements=h),
        Operator("loss", "memory", "column", width=vocab, padded=True, forward_elements=5 * vocab,
                 backward_elements=3 * vocab, saved_elements=3 * vocab),
    ]
    return Layer("head", tuple(ops),
                 Traffic(forward_gathers=1, backward_gathers=1, backward_scatters=1,
                         backward_reduces=1),
                 tied_parameters=vocab * h if model.tied_embeddings else 0)
