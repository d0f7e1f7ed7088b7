"""Parts of a model: latent and sparse attention, experts, image towers, layers with a state."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from nest.inputs.base import Description, Flag, Name, Problems, Whole, at_most
from nest.units import shorten

Size = Annotated[Whole, Field(ge=1, le=10**7)]
SizeOrZero = Annotated[Whole, Field(ge=0, le=10**7)]
Count = Annotated[Whole, Field(ge=0, le=10**4)]
Heads = Annotated[Whole, Field(ge=1, le=10**5)]
Window = Annotated[Whole, Field(ge=1, le=10**9)]


class Indexer(Description):
    """What selects the keys of sparse attention (DSA of DeepSeek-V3.2, arXiv:2512.02556,
    section 2.1).

    It scores all earlier tokens; attention reads only the keys with the highest scores.
    """

    heads: Heads = Field(description="query heads of the indexer; they share one key")
    head_dim: Size = Field(description="width of a head")
    top_k: Window = Field(description="keys (DeepSeek-V4: compressed entries) that a token attends "
                          "to at most")
    weighted: Flag = Field(
        True, description="each head's scores have a weight of the token; false: the highest head "
        "counts, with a norm on queries and on keys (MiniMax-M3)",
    )


class Compression(Description):
    """Attention to a window of earlier tokens and to compressed ones (DeepSeek-V4).

    One key of width head_dim serves all heads, and is the value too. In layers with `compress` a
    further entry stands for that many tokens (DeepseekV4Attention of transformers 5.23.0).
    """

    q_rank: Size = Field(description="rank of the query compression")
    groups: Heads = Field(description="groups of heads, each with an output projection of its own")
    o_rank: Size = Field(description="width that a group is projected to, before all are to hidden")
    indexer: Indexer | None = Field(
        None, description="what selects compressed entries, in layers with indexer 'own'"
    )


class MLA(Description):
    """Multi-head latent attention (arXiv:2412.19437, section 2.1.1)."""

    q_rank: SizeOrZero = Field(description="rank of the query compression; 0 = not compressed")
    kv_rank: Size = Field(description="rank of the key-value compression")
    nope_dim: Size = Field(description="query/key dimensions of a head without rotary embedding")
    rope_dim: Size = Field(description="query/key dimensions of a head with rotary embedding")
    value_dim: Size = Field(description="value dimensions of a head")
    indexer: Indexer | None = Field(None, description="sparse attention: what selects the keys")
    gate: Flag = Field(
        False, description="a gate, as wide as the values of all heads, scales the output (Kimi-K3)"
    )


class MoE(Description):
    """A mixture of experts that replaces the dense MLP."""

    experts: Annotated[Whole, Field(ge=1, le=10**5)] = Field(description="routed experts a layer")
    top_k: Size = Field(description="routed experts that a token uses")
    ffn: Size = Field(description="width of one routed expert")
    shared_ffn: SizeOrZero = Field(0, description="total width of the shared experts; 0 = none")
    shared_gate: Flag = Field(False, description="a gate (hidden -> 1) scales the shared experts")
    latent: SizeOrZero = Field(
        0, description="width that tokens are projected to before they are sent to the routed "
        "experts, and back from afterwards (Nemotron-3 Super, Kimi-K3); 0 = hidden",
    )
    norms: Count = Field(
        0, description="further norms of the experts' inputs and outputs (Gemma 4: 3 of width "
        "hidden; with latent, of that width before the projection back)",
    )
    router_scale: Flag = Field(
        False, description="the router's input has a norm of its own, and each expert a scale "
        "(Gemma 4)"
    )
    router_bias: Flag = Field(False, description="a trained bias of the router (GPT-OSS)")
    groups: Annotated[Whole, Field(ge=1, le=10**5)] = Field(
        1, description="groups of experts that routing chooses among"
    )
    group_limit: Annotated[Whole, Field(ge=1, le=10**5)] = Field(
        default_factory=lambda data: data["groups"],
        description="groups that the experts of a token are in at most; default: all",
    )
    clamped: Flag = Field(
        False, description="inputs of the experts' activation function are clamped (GPT-OSS)"
    )
    first_dense: Count = Field(0, description="the first layers that stay dense")
    every: Annotated[Whole, Field(ge=1, le=10**4)] = Field(
        1, description="of this many layers after the first dense ones, the last has experts"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_k > self.experts:
            raise Problems([("top_k", f"got {self.top_k}; allowed: 1 to {self.experts} (experts)")])
        if self.experts % self.groups:
            text = f"got {self.groups}; allowed: a divisor of experts = {self.experts}"
            raise Problems([("groups", text)])
        if self.group_limit > self.groups:
            text = f"got {self.group_limit}; allowed: 1 to {self.groups} (groups)"
            raise Problems([("group_limit", text)])
        return self


class Vision(Description):
    """A tower of transformer layers for images, whose output joins the text embedding."""

    layers: Annotated[Whole, Field(ge=1, le=10**4)] = Field(description="transformer layers")
    hidden: Annotated[Whole, Field(ge=1, le=10**6)] = Field(description="width of the residual")
    heads: Annotated[Whole, Field(ge=1, le=10**5)] = Field(description="attention heads")
    ffn: Size = Field(description="width of the MLP (of one MLP matrix when gated)")
    tokens: Size = Field(description="patches of all images of a sample, without class token")
    patch_width: Size = Field(description="values of a patch (3 x 14 x 14: 588)")
    head_dim: Size | None = Field(None, description="width of a head; default: hidden / heads")
    gated: Flag = Field(False, description="gated MLP: three matrices instead of two")
    norm: Literal["rmsnorm", "layernorm"] = Field("layernorm", description="type of all norms")
    layer_norms: Annotated[Whole, Field(ge=1, le=8)] = Field(
        2, description="norms of width hidden in a layer (Gemma 4: 4)"
    )
    qk_norm: Flag = Field(False, description="a norm of width head_dim on queries and on keys")
    bias: Flag = Field(True, description="biases of all linear layers of attention and MLP")
    patch_bias: Flag = Field(True, description="a bias of the patch embedding (CLIP: false)")
    class_token: Flag = Field(
        False,
        description="a learned token before the patches (CLIP); counted in the parameters only",
    )
    positions: SizeOrZero | None = Field(
        None, description="learned position embeddings, interpolated to the patches (Qwen3-VL: "
        "2,304); 0 = rotary (Qwen2-VL); default: one a patch, and of the class token",
    )
    chunk: Size | None = Field(
        None, description="patches of a window that attention stays in (Qwen2.5-VL: 64); null: all"
    )
    full_layers: Annotated[tuple[Count, ...], at_most(10**4)] = Field(
        (), description="layers, from 0, whose attention has no windows"
    )
    embedding_norm: Flag = Field(False, description="a norm after the embeddings (CLIP)")
    final_norm: Flag = Field(True, description="a norm after the last layer")
    merge: Size = Field(1, description="patches that the projector joins to one token")
    pooled: Flag = Field(
        False, description="joined patches are averaged (Gemma 3), not put side by side"
    )
    projector_layers: Annotated[Whole, Field(ge=1, le=2)] = Field(
        1, description="linear layers (with bias) from the tower to the language model's hidden"
    )
    projector_widths: Annotated[tuple[Size, ...], at_most(8)] | None = Field(
        None, description="widths between the projector's linear layers; default: hidden of the "
        "language model with 2 projector_layers, else none",
    )
    projector_bias: Flag = Field(True, description="biases of the projector's linear layers")
    projector_norm: Flag = Field(
        False, description="a norm (RMSNorm, width of the tower) before the projector (Gemma 3)"
    )
    projector_norm_bias: Flag = Field(False, description="that norm has a bias (Kimi-K2.5)")
    patch_widths: Annotated[tuple[Size, ...], at_most(8)] = Field(
        (), description="widths of linear layers that patches pass before they are joined "
        "(MiniMax-M3)",
    )
    deepstack: Count = Field(
        0, description="further projectors, each with a norm of its whole input, of features of "
        "earlier layers (Qwen3-VL: 3)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[str, str]] = []
        if self.hidden % self.heads and self.head_dim is None:
            allowed = f"a divisor of hidden = {self.hidden}, or give head_dim"
            problems.append(("heads", f"got {self.heads}; allowed: {allowed}"))
        if self.tokens % self.merge:
            allowed = f"a divisor of tokens = {self.tokens}"
            problems.append(("merge", f"got {self.merge}; allowed: {allowed}"))
        if self.full_layers and self.chunk is None:
            text = f"got {shorten(self.full_layers)}; allowed: nothing without chunk"
            problems.append(("full_layers", text))
        if self.projector_widths is not None and self.projector_layers != 1:
            text = f"got {self.projector_layers}; allowed: nothing with projector_widths"
            problems.append(("projector_layers", text))
        if problems:
            raise Problems(problems)
        return self

    @property
    def merged_tokens(self) -> int:
        """Positions of a sample's images in the sequence of the language model."""
        return self.tokens // self.merge

    @property
    def wide(self) -> int:
        """Elements that the projector makes one token of."""
        width = (self.hidden, *self.patch_widths)[-1]
        return width * (1 if self.pooled else self.merge)

    @property
    def before(self) -> tuple[tuple[int, int], ...]:
        """Depth and width of the linear layers before patches are joined."""
        widths = (self.hidden, *self.patch_widths)
        return tuple(zip(widths, widths[1:], strict=False))

    def projector(self, hidden: int) -> tuple[tuple[int, int], ...]:
        """Depth and width of the projector's linear layers; ``hidden`` is the model's."""
        inner = self.projector_widths
        if inner is None:
            inner = (hidden,) * (self.projector_layers - 1)
        widths = (self.wide, *inner, hidden)
        return tuple(zip(widths, widths[1:], strict=False))

    def window_of(self, layer: int) -> int | None:
        """Patches of the windows that a layer (0-based) attends in; None: all patches."""
        return None if layer in self.full_layers else self.chunk


class Product(NamedTuple):
    """A linear layer within a layer with a state."""

    name: str
    width: int
    depth: int
    split: Literal["column", "row", "sequence"]
    bias: bool = False
    from_input: bool = True
    """It reads the layer's normed input, which is saved once for all that do."""


class Recurrence(Description):
    """Linear attention or a state-space model: every head passes on a state of fixed size.

    ``gated_delta``: Gated DeltaNet, arXiv:2412.06464 (Qwen3-Next); ``kimi_delta``: with a decay for
    each channel, arXiv:2510.26692 (Kimi-Linear); ``lightning``: arXiv:2501.08313 (MiniMax-Text-01);
    ``mamba2``: arXiv:2405.21060; ``mamba``: arXiv:2312.00752 (Jamba).
    """

    form: Literal["gated_delta", "kimi_delta", "lightning", "mamba", "mamba2"] = Field(
        description="how the state changes from token to token"
    )
    heads: Heads = Field(description="heads, each with a state (mamba: 1)")
    head_dim: Size = Field(description="values of a head (mamba: the inner width)")
    groups: Heads = Field(
        default_factory=lambda data: data["heads"],
        description="heads of queries and keys (Mamba: groups of B and C); default: heads",
    )
    state: Size = Field(
        default_factory=lambda data: data["head_dim"],
        description="width of a query or key (Mamba: of the state); default: head_dim",
    )
    conv: SizeOrZero = Field(0, description="tokens of the convolution before it; 0 = none")
    conv_bias: Flag = Field(False, description="a bias of the convolution")
    bias: Flag = Field(False, description="biases of the first and of the last projection")
    dt_rank: SizeOrZero = Field(0, description="mamba: rank of the time step")
    inner_norms: Flag = Field(False, description="mamba: norms of time step, B and C (Jamba)")
    gated_norm: Flag = Field(
        True, description="a norm behind the recurrence (Falcon-H1: the gate alone)")
    full_gate: Flag = Field(
        False, description="kimi_delta: the output's gate is one matrix, not two of rank head_dim")
    chunk: Size = Field(
        default_factory=lambda data: 256 if data["form"] in ("lightning", "mamba2") else 64,
        description="tokens that the kernel takes at once; default: that of the reference kernels",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[str, str]] = []
        if self.heads % self.groups:
            text = f"got {self.groups}; allowed: a divisor of heads = {self.heads}"
            problems.append(("groups", text))
        if self.form == "mamba":
            if self.heads != 1:
                problems.append(("heads", f"got {self.heads}; allowed: 1 with form mamba"))
            if not self.dt_rank:
                problems.append(("dt_rank", "got 0; allowed: at least 1 with form mamba"))
        else:
            for name in ("dt_rank", "inner_norms"):
                if value := getattr(self, name):
                    text = f"got {value}; allowed: nothing with form {self.form}"
                    problems.append((name, text))
        if problems:
            raise Problems(problems)
        return self

    @property
    def inner(self) -> int:
        """Elements per token of the output, before the last projection."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements per token of all keys, and of all queries."""
        return self.groups * self.state

    @property
    def gate(self) -> int:
        """Elements per token of the gate that scales the output."""
        return self.inner

    @property
    def mixed(self) -> int:
        """Elements per token of the convolution: what the recurrence reads."""
        if self.form == "mamba":
            return self.inner
        return self.inner + 2 * self.keys

    @property
    def copied(self) -> int:
        """Elements per token of keys and queries that ranks of cp beyond ``groups`` hold copies of.
        """
        return 2 * self.keys if self.form == "mamba2" else 0

    @property
    def swaps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Elements per token of each all-to-all that gives a rank of cp all tokens of its heads,
        and of those of keys and queries that are copied.

        NVIDIA/Megatron-LM@d98e8a6: Mamba-2 one each for gate, values, B, C and time step
        (megatron/core/ssm/mamba_context_parallel.py:168-203), Gated DeltaNet one for queries, keys,
        values, gate and two figures a head (megatron/core/ssm/gated_delta_net/gdn.py:45-66).
        Others have none there: one is assumed, of all that their kernels read.
        """
        inner, heads = self.inner, self.heads
        if self.form == "mamba2":
            return (inner, inner, heads), (self.keys, self.keys)
        rest = {"gated_delta": self.gate + 2 * heads, "kimi_delta": self.keys + heads}
        return (self.mixed + rest.get(self.form, 0),), ()

    def products(self, hidden: int) -> tuple[Product, ...]:
        """Linear layers before the recurrence.

        huggingface/transformers 5.23.0, ``__init__`` of Qwen3NextGatedDeltaNet,
        KimiLinearDeltaAttention, MiniMaxLightningAttention, Mamba2Mixer and JambaMambaMixer.
        """
        inner, heads, dim = self.inner, self.heads, self.head_dim
        into = Product("mixer_input", self.mixed + self.gate, hidden, "column", self.bias)
        if self.form == "gated_delta":
            return into, Product("decay", 2 * heads, hidden, "column")
        if self.form == "mamba2":  # with a time step for each head
            return (into._replace(width=into.width + heads),)
        if self.form == "kimi_delta":
            return (
                into._replace(width=self.mixed),
                Product("decay_down", dim, hidden, "sequence"),
                Product("decay_up", inner, dim, "column", from_input=False),
                Product("beta", heads, hidden, "column"),
                *((Product("gate", inner, hidden, "column"),) if self.full_gate else (
                    Product("gate_down", dim, hidden, "sequence"),
                    Product("gate_up", inner, dim, "column", from_input=False))),
            )
        if self.form == "mamba":
            return (
                into,
                Product("parameters", self.dt_rank + 2 * self.state, inner, "row",
                        from_input=False),
                Product("time_step", inner, self.dt_rank, "column", True, from_input=False),
            )
        return (into,)

    @property
    def own_parameters(self) -> int:
        """Parameters besides the products: convolution, decays, time steps, norms."""
        convolution = self.mixed * (self.conv + self.conv_bias) if self.conv else 0
        norms = self.dt_rank + 2 * self.state if self.inner_norms else 0
        rest = {
            "gated_delta": 2 * self.heads + self.head_dim,
            "kimi_delta": self.heads + self.inner + self.head_dim,
            "lightning": self.inner,
            "mamba2": 3 * self.heads + self.inner * self.gated_norm,
            "mamba": self.inner * (self.state + 1) + norms,
        }
        return convolution + rest[self.form]

    def parameters(self, hidden: int) -> int:
        """All parameters of the layer without the norm before it."""
        products = sum(p.width * (p.depth + p.bias) for p in self.products(hidden))
        return products + self.own_parameters + hidden * (self.inner + self.bias)

    @property
    def flop(self) -> float:
        """FLOP per token forward of the recurrence alone.

        Chunks of C tokens, d_k = state, d_v = head_dim, products over the whole chunk. Delta rule
        (arXiv:2412.06464, section 3.3; torch_chunk_gated_delta_rule in transformers 5.23.0): three
        products C x C x d_k, two C x C x d_v, three C x d_k x d_v for each head, and the triangular
        inverse of C^3 / 3 multiply-adds. Mamba-2 (arXiv:2405.21060, section 6): C x C x d_k for
        each group; C x C x d_v and two C x d_k x d_v for each head; lightning attention the same.
        Mamba: 9 FLOP for each element of the state (arXiv:2312.00752, the selective scan
        of its appendix).
        """
        c, k, v = self.chunk, self.state, self.head_dim
        if self.form == "mamba":
            return 9.0 * k * v
        if self.form in ("gated_delta", "kimi_delta"):
            return self.heads * (2.0 * (3 * c * k + 2 * c * v + 3 * k * v) + 2.0 * c * c / 3.0)
        return 2.0 * (c * k * self.groups + self.heads * (c * v + 2 * k * v))


class LayerKind(Description):
    """What a layer consists of, where layers differ; sizes that it omits are the model's."""

    name: Name = Field(description="what layer_types calls it")
    mixer: Literal["attention", "recurrence", "both", "none"] = Field(
        "attention", description="what mixes tokens; both: attention and the state side by side, "
        "their outputs added (Falcon-H1)"
    )
    mlp: Literal["dense", "experts", "none"] = Field("dense", description="what follows")
    heads: Heads | None = Field(None, description="attention heads; default: the model's")
    kv_heads: Heads | None = Field(None, description="key-value heads; default: the model's")
    head_dim: Annotated[Whole, Field(ge=1, le=10**5)] | None = Field(
        None, description="width of a head; default: the model's"
    )
    ffn: Size | None = Field(None, description="width of the dense MLP; default: the model's")
    sinks: Flag | None = Field(
        None, description="a trained score for each head; default: the model's")
    window: Window | None = Field(
        None, description="earlier tokens that a token attends to, itself included; null: all"
    )
    chunked: Flag = Field(
        False, description="tokens attend within chunks of `window` tokens (Llama 4)"
    )
    one_key: Flag = Field(
        False, description="keys are the values too: no projection of values (Gemma 4)"
    )
    shared_keys: Flag = Field(
        False, description="keys and values are those of the last earlier layer with keys of its "
        "own and this window (Gemma 4 E2B)"
    )
    indexer: Literal["own", "shared", "none"] = Field(
        "own", description="of sparse attention: own: the layer has the model's indexer, if there "
        "is one; shared: it takes over what an earlier layer selected; none: it attends to all"
    )
    compress: SizeOrZero = Field(
        0, description="with `compression`: earlier tokens that a compressed entry stands for; "
        "0 = the window alone"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[str, str]] = []
        if self.mixer == self.mlp == "none":
            problems.append(("mlp", "got 'none'; allowed: dense or experts without a mixer"))
        if self.chunked and self.window is None:
            problems.append(("chunked", "got true; allowed: false without a window"))
        for name in ("heads", "kv_heads", "head_dim", "window"):
            if not self.attends and getattr(self, name) is not None:
                text = f"got {getattr(self, name)}; allowed: nothing with mixer {self.mixer}"
                problems.append((name, text))
        if self.shared_keys and not self.attends:
            problems.append(("shared_keys", "got true; allowed: false without attention"))
        if self.mlp != "dense" and self.ffn is not None:
            problems.append(("ffn", f"got {self.ffn}; allowed: nothing with mlp {self.mlp}"))
        if problems:
            raise Problems(problems)
        return self

    @property
    def attends(self) -> bool:
        """Whether it has attention."""
        return self.mixer in ("attention", "both")

    @property
    def recurs(self) -> bool:
        """Whether it passes on a state."""
        return self.mixer in ("recurrence", "both")

    @property
    def parts(self) -> int:
        """Mixer and MLP, or one of them; each has its own norm and residual addition."""
        return (self.mixer != "none") + (self.mlp != "none")
