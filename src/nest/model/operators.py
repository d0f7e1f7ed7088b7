"""The parts of a model's graph: operators, and the layers that contain them.

An operator has widths *per token*; the number of tokens and the share of a width on a device follow
from the parallelism, in :mod:`nest.costs.operators`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from nest.inputs.model import Model

Split = Literal["column", "row", "heads", "sequence", "dispatch", "expert_column", "expert_row"]
EXPERT = ("expert_column", "expert_row")
MODULES = ("core_attn", "norm", "mlp_act", "moe")
"""Parts of a layer that selective recompute may run again."""
FURTHER_MODULES = ("mlp", "mla_up_proj", "shared_experts", "gdn_norm_out")
"""Further parts; ``Chain.module_groups`` has the sets of parts that a search tries."""
OUTPUT_MODULES = ("qkv_linear", "attn_proj")
"""Parts under stacks with ``saves_outputs`` alone: they run again where an output is not named."""
LATENT_MODULES = ("norm", "mlp_act", *FURTHER_MODULES)
"""The second group where layers have latent attention: published runs of such models run some of
these again (docs/recipes.md)."""


@dataclass(frozen=True)
class Operator:
    """One operator of a layer.

    ``split`` is what tensor parallelism divides: ``column`` the output width of a matrix
    product, ``row`` its reduction width, ``heads`` the attention heads, ``sequence`` the tokens
    (with sequence parallelism only). ``dispatch`` counts the token copies sent to experts;
    ``expert_column`` and ``expert_row`` divide an expert's widths by the expert-tensor degree.
    """

    name: str
    type: Literal["gemm", "attention", "scan", "memory"]
    split: Split
    width: int = 0
    """gemm: output elements per token."""
    depth: int = 0
    """gemm: reduction length."""
    groups: int = 0
    """Key-value heads: more tensor-parallel ranks than these hold copies (0: no such limit)."""
    padded: bool = False
    """gemm: the output width is a vocabulary, padded to a multiple of 128 x tp."""
    bf16: bool = False
    """gemm: in 16 bit where operands of others are cast to fewer."""
    attention_width: float = 0.0
    """attention: query-key plus value elements per token and position, over all heads; scan: half
    of the FLOP per token, whatever the number of positions."""
    speed: float = 1.0
    """scan: rate of the recurrence over that of the gated delta rule."""
    swapped: tuple[int, ...] = ()
    """scan: elements per token of each all-to-all in front of it, where cp changes a share of the
    tokens for a share of the heads."""
    swapped_keys: tuple[int, ...] = ()
    """Those of keys and queries, of which ranks beyond ``kv_groups`` get copies."""
    returned: int = 0
    """Those of the one behind it."""
    keyed: float = 0.0
    """scan, memory: share of its elements that are such keys and queries."""
    forward_elements: float = 0.0
    """memory: elements read and written per token in the forward."""
    backward_elements: float = 0.0
    parameters: int = 0
    saved_elements: float = 0.0
    """Elements per token that the backward pass needs."""
    masked_elements: float = 0.0
    """Elements per token that dropout may drop: where the stack has it, a mask of 1 byte each is
    kept."""
    product_input: bool = False
    """What it saves is the input of matrix products, which their weights need."""
    cast_elements: float | None = None
    """Those of them that are kept as operands of products, where these are cast and the stack keeps
    them; ``None``: none, all stay as they are."""
    wide_elements: float = 0.0
    """Those that are kept in 16 bit all the same."""
    logits: bool = False
    """gemm: the loss reads its output alone."""
    elementary: Literal["", "norm", "mlp_act"] = ""
    """Kind of kernel that software without fused ones makes of elementary operations."""
    between_elements: float = 0.0
    """Elements per token that these keep besides."""
    loss: bool = False
    """memory: the loss over ``width`` logits per token; the stack determines the part that is kept,
    and ``saved_elements`` are at most those of Megatron-Core."""
    heads: int = 0
    """attention: query heads, whose softmax statistics or scores are kept."""
    kv_width: int = 0
    """attention: elements of keys and values per token, over all heads."""
    kv_groups: int = 0
    """attention: heads of keys and values; scan and its convolution: of keys and queries."""
    causal: bool = True
    """attention: a position sees only earlier ones."""
    window: int | None = None
    """attention: of these, at most so many, itself included; ``None``: all."""
    chunked: bool = False
    """attention: the window is a chunk of the sequence, which a position does not look beyond."""
    positions: int | None = None
    """attention: keys per sample; others: tokens per sample; ``None``: those of the layer."""
    again: tuple[str, ...] = ()
    """Modules of selective recompute that run the forward again; ``products``: if the stack runs
    every second product again."""
    long: bool = False
    """memory: one long fused kernel, at the rate of the optimizer's."""
    fusable: bool = False
    """memory: part of the grouped products where the stack has ``fused_experts``."""
    unread: bool = False
    """The backward pass of the layer does not read its output."""
    dropped: tuple[str, ...] = ()
    """Modules under which ``saved_elements`` are not kept."""
    offloaded: str = ""
    """Module of Megatron-Core's ``--offload-modules`` that moves ``saved_elements`` to the host."""
    fixed: bool = False
    """gemm: its matrix is frozen: it has no gradient, and its input is not kept for one."""
    trained: int | None = None
    """Those of the parameters that are trained; ``None``: all."""
    stored: float | None = None
    """gemm: bytes of a frozen parameter, converted in front of each product; ``None``: it is kept
    as products take it."""
    halves: bool = False
    """Two products side by side, or their outputs: if every second product runs again (module
    ``products``), it is the second of them."""

    def seen(self, positions: float) -> float:
        """Share of all pairs of a query and one of ``positions`` keys that the attention needs.

        Query i of s sees min(i, w) keys with a window of w, w s - w^2 / 2 pairs in all, and s^2 / 2
        without one. (Both leave out half of the diagonal.) A chunk of w holds w^2 / 2 pairs, and
        there are s / w of them.
        """
        width = min(1.0, (self.window or positions) / positions)
        if not self.causal:
            return width if self.chunked else 1.0
        return width / 2.0 if self.chunked else width * (1.0 - width / 2.0)


@dataclass(frozen=True)
class Traffic:
    """Tensor-parallel collectives of a layer, each of tokens x hidden elements.

    Gathers and scatters with sequence parallelism, all-reduces without
    (arXiv:2205.05198, section 4.2.2).
    """

    forward_gathers: int = 0
    forward_scatters: int = 0
    backward_gathers: float = 0
    backward_scatters: int = 0
    forward_reduces: int = 0
    backward_reduces: int = 0
    tokens: int | None = None
    """Tokens per sample; ``None``: those of the layer."""
    experts: float = 0.0
    """Share of the forward ones that belongs to (shared) experts and is repeated with them."""
    mlp: float = 0.0
    """The same of the MLP."""
    attention: float = 0.0
    """The same of attention."""
    kept: float = 1.0
    """Share of the forward gathers whose output products keep for gradients of their weights."""


@dataclass(frozen=True)
class Experts:
    """Routed experts of a layer."""

    count: int
    top_k: int
    ffn: int
    matrices: int
    """Weight matrices per expert: 3 gated, 2 plain."""
    groups: int = 1
    group_limit: int = 1
    """Groups of experts that those of a token are in, of ``groups``."""
    latent: int = 0
    """Elements of a token that is sent to them; 0: those of the layer."""


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
    cross_traffic: Traffic | None = None
    """Collectives over the encoder's output, of a decoder layer that attends to it."""
    experts: Experts | None = None
    hidden: int = 0
    """Elements per token of the layer's input and output; 0: a measured layer."""
    streams: int = 1
    """So many times as many are kept as its input."""
    tokens: int | None = None
    """Tokens of a sample; ``None``: the job's sequence length."""
    repeated: bool = False
    """A transformer layer of the model: even cuts divide these."""
    checkpointed: bool = False
    """Recompute applies to it."""
    passes: bool = True
    """A gradient passes it: something of it, or in front of it, is trained."""
    tied_parameters: int = 0
    """Parameters whose gradient is summed with the copies on other stages."""
    output_bytes: float | None = None
    """Measured bytes per sample of the output; ``None``: tokens x hidden elements."""
    measured: dict[int, Measured] = field(default_factory=dict, hash=False)

    @property
    def sent(self) -> int:
        """Elements of a token that is sent to experts."""
        return (self.experts.latent if self.experts else 0) or self.hidden

    @property
    def parameters(self) -> int:
        return sum(op.parameters for op in self.operators)

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return sum(op.parameters if op.trained is None else op.trained for op in self.operators)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Modules of selective recompute that the layer has."""
        return self._named(MODULES)

    @cached_property
    def further_modules(self) -> tuple[str, ...]:
        """The same of the further ones."""
        return self._named(FURTHER_MODULES)

    @cached_property
    def output_modules(self) -> tuple[str, ...]:
        """The same of those under stacks that name outputs."""
        return self._named(OUTPUT_MODULES)

    def _named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        tags = {name for op in self.operators for name in (*op.again, *op.dropped)}
        return tuple(name for name in names if name in tags)


def norm(model: Model, name: str, width: int) -> Operator:
    """A norm that reads and writes ``width`` elements per token."""
    parameters = width * (1 + model.norm_bias)
    return Operator(name, "memory", "sequence", forward_elements=2 * width,
                    backward_elements=3 * width, parameters=parameters, saved_elements=width,
                    **between_norm(model, width))


def between_norm(model: Model, width: int) -> dict[str, Any]:
    """What an RMSNorm of elementary operations keeps; PyTorch's LayerNorm is one kernel."""
    return {"elementary": "norm", "between_elements": width} if model.norm == "rmsnorm" else {}


def gemm(
    name: str, split: Split, width: int, depth: int, bias: bool, saved: float,
    again: tuple[str, ...] = (), dropped: tuple[str, ...] = (), cast_elements: float | None = None,
) -> Operator:
    """A linear layer; ``saved``: elements of its input that no other operator saves."""
    return Operator(name, "gemm", split, width=width, depth=depth,
                    parameters=width * depth + (width if bias else 0), saved_elements=saved,
                    product_input=saved == depth, again=again, dropped=dropped,
                    cast_elements=cast_elements)


def kept_input(model: Model, name: str) -> Operator:
    """The normed input of linear layers, saved once for all that read it."""
    return Operator(name, "memory", "sequence", saved_elements=model.hidden, dropped=("norm",),
                    product_input=True, cast_elements=model.hidden)


def residual(model: Model, name: str) -> Operator:
    """Residual addition, behind dropout; its gradient is added once in the backward."""
    return Operator(name, "memory", "sequence", forward_elements=3 * model.hidden,
                    backward_elements=model.hidden, masked_elements=model.hidden)


SPEED = MappingProxyType({"gated_delta": 1.0, "kimi_delta": 0.6, "lightning": 1.65, "mamba2": 0.82,
                          "mamba": 1.0})
"""Rate of a recurrence's kernels, in FLOP of `Recurrence.flop`, over that of the gated delta rule.

Of Triton kernels, heads of 128 x 128, bf16, forward: kimi_delta 0.54 on H200 and 0.66 on GB200,
lightning 1.67 on GB200 (inclusionAI/cuLA BENCHMARK_H200.md and BENCHMARK_GB200.md against
QwenLM/FlashQLA, below). mamba2: half of lightning, as mamba-ssm 2.2.2 takes twice as long as
chunk_simple_gla (fla-org/flash-linear-attention pull request 50, device not stated). mamba: its
bytes are what takes long.
"""


def recurrence(model: Model) -> list[Operator]:
    """A layer's mixer that passes on a state, after its norm.

    Tensor parallelism divides its heads. Unfused kernels are assumed: the convolution keeps its
    input and the recurrence its own, the gated norm its input and the gate. All of it runs again
    with full recompute only, but for the gated norm of Gated DeltaNet. The kernel keeps the state
    before each chunk (arXiv:2405.21060, section 6); Mamba computes states again (arXiv:2312.00752,
    section 3.3.2).
    """
    r = model.recurrence
    assert r is not None
    inner, mixed = r.inner, r.mixed
    ops = [
        gemm(p.name, p.split, p.width, p.depth, p.bias, 0 if p.from_input else p.depth)
        for p in r.products(model.hidden)
    ]
    ops.append(kept_input(model, "projection_input"))
    parameters = r.own_parameters
    if r.conv:
        own = mixed * (r.conv + r.conv_bias)
        parameters -= own
        ops.append(Operator("convolution", "memory", "heads", forward_elements=2 * mixed,
                            backward_elements=3 * mixed, parameters=own, saved_elements=mixed,
                            kv_groups=r.groups, keyed=r.copied / mixed))
    states = 0.0 if r.form == "mamba" else r.inner * r.state / r.chunk
    normed = ("gdn_norm_out",) if r.form == "gated_delta" else ()
    swapped, keys = r.swaps
    ops += [
        Operator("recurrence", "scan", "heads", attention_width=r.flop / 2.0, speed=SPEED[r.form],
                 forward_elements=mixed + inner + states,
                 backward_elements=2 * (mixed + inner) + 2 * states, parameters=parameters,
                 saved_elements=mixed + states, swapped=swapped, swapped_keys=keys,
                 returned=inner, kv_groups=r.groups,
                 keyed=r.copied / (mixed + inner + states)),
        Operator("gated_norm", "memory", "heads", forward_elements=3 * inner,
                 backward_elements=5 * inner, saved_elements=2 * inner, again=normed),
        gemm("mixer_output", "row", model.hidden, inner, r.bias, inner, dropped=normed),
    ]
    return ops
