"""A model: the sizes of a transformer, which determine all operators and parameters."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nest.describe import parameters
from nest.describe.base import Description, Flag, Name, Number, Problems, Whole, at_most
from nest.describe.layers import Indexer, LayerKind, Recurrence, Size, SizeOrZero
from nest.units import shorten

Count = Annotated[Whole, Field(ge=0, le=10**4)]


class MLA(Description):
    """Multi-head latent attention (arXiv:2412.19437, section 2.1.1)."""

    q_rank: SizeOrZero = Field(description="rank of the query compression; 0 = not compressed")
    kv_rank: Size = Field(description="rank of the key-value compression")
    nope_dim: Size = Field(description="query/key dimensions of a head without rotary embedding")
    rope_dim: Size = Field(description="query/key dimensions of a head with rotary embedding")
    value_dim: Size = Field(description="value dimensions of a head")
    indexer: Indexer | None = Field(None, description="sparse attention: what selects the keys")


class MoE(Description):
    """A mixture of experts that replaces the dense MLP."""

    experts: Annotated[Whole, Field(ge=1, le=10**5)] = Field(description="routed experts a layer")
    top_k: Size = Field(description="routed experts that a token uses")
    ffn: Size = Field(description="width of one routed expert")
    shared_ffn: SizeOrZero = Field(0, description="total width of the shared experts; 0 = none")
    shared_gate: Flag = Field(False, description="a gate (hidden -> 1) scales the shared experts")
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
    gated: Flag = Field(False, description="gated MLP: three matrices instead of two")
    norm: Literal["rmsnorm", "layernorm"] = Field("layernorm", description="type of all norms")
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
    deepstack: Count = Field(
        0, description="further projectors, each with a norm of its whole input, of features of "
        "earlier layers (Qwen3-VL: 3)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[str, str]] = []
        if self.hidden % self.heads:
            allowed = f"a divisor of hidden = {self.hidden}"
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
        return self.hidden * (1 if self.pooled else self.merge)

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

    def transformer(self) -> Model:
        """The tower's layers as a model without vocabulary."""
        positions = self.tokens + self.class_token if self.positions is None else self.positions
        return Model(
            name="vision", kind="encoder", layers=self.layers, hidden=self.hidden,
            heads=self.heads, ffn=self.ffn, gated=self.gated, vocab=1, tied_embeddings=True,
            positions=positions, norm=self.norm, bias=self.bias,
        )


class Model(Description):
    """A transformer as its publisher describes it; a layer is one attention and one MLP."""

    name: Name = Field(description="name of the model")
    kind: Literal["decoder", "encoder", "encoder-decoder"] = Field(
        "decoder",
        description="decoder: causal attention; encoder: full attention (BERT); encoder-decoder: "
        "both, decoder layers also attend to the encoder's output (T5)",
    )
    layers: Annotated[Whole, Field(ge=1, le=10**4)] = Field(
        description="transformer layers; of an encoder-decoder, those of the decoder"
    )
    encoder_layers: Annotated[Whole, Field(ge=1, le=10**4)] | None = Field(
        None, description="layers of the encoder of an encoder-decoder"
    )
    encoder_seq_len: Annotated[Whole, Field(ge=1, le=10**9)] | None = Field(
        None, description="tokens of the encoder's sequence; default: the job's seq_len"
    )
    hidden: Annotated[Whole, Field(ge=1, le=10**6)] = Field(description="width of the residual")
    heads: Annotated[Whole, Field(ge=1, le=10**5)] = Field(description="attention (query) heads")
    kv_heads: Annotated[Whole, Field(ge=1, le=10**5)] = Field(
        default_factory=lambda data: data["heads"],
        description="key-value heads; default: as many as heads",
    )
    mla: MLA | None = Field(None, description="latent attention in place of plain attention")
    window: Annotated[Whole, Field(ge=1, le=10**9)] | None = Field(
        None, description="earlier tokens that a token attends to, itself included (sliding-window "
        "attention); null: all",
    )
    full_layers: Annotated[tuple[Count, ...], at_most(10**4)] = Field(
        (), description="layers, from 0, that have no window and attend to all earlier tokens"
    )
    chunked: Flag = Field(
        False, description="tokens attend within chunks of `window` tokens (Llama 4), not to the "
        "last so many",
    )
    recurrence: Recurrence | None = Field(
        None, description="linear attention or a state-space model, in layers of that kind"
    )
    layer_kinds: Annotated[tuple[LayerKind, ...], at_most(100)] = Field(
        (), description="kinds of layers, where they differ by more than windows and experts"
    )
    layer_types: Annotated[tuple[Name, ...], at_most(10**4)] = Field(
        (), description="name of the kind of each layer; default: all alike, apart from windows "
        "and experts",
    )
    head_dim: Annotated[Whole, Field(ge=1, le=10**5)] = Field(
        default_factory=lambda data: _head_dim(data),
        description="width of a head; default: hidden / heads (with mla: nope_dim + rope_dim)",
    )
    ffn: Size = Field(description="width of the dense MLP (of one MLP matrix when gated)")
    gated: Flag = Field(description="gated MLP: three matrices (SwiGLU, GeGLU) instead of two")
    vocab: Size = Field(description="tokens in the vocabulary, without padding")
    tied_embeddings: Flag = Field(
        description="the vocabulary projection shares the input embedding's matrix"
    )
    positions: SizeOrZero = Field(0, description="learned position embeddings; 0 = rotary or none")
    unrotated: Flag = Field(
        False, description="no rotation of queries and keys either (ALiBi in BLOOM, none in Jamba)"
    )
    relative_positions: Count = Field(
        0, description="buckets of a learned bias of the scores by distance (T5: 32); 0 = none"
    )
    token_types: Count = Field(0, description="token-type embeddings (BERT: 2); 0 = none")
    norm: Literal["rmsnorm", "layernorm"] = Field(description="type of all norms")
    layer_norms: Annotated[Whole, Field(ge=1, le=8)] = Field(
        2, description="norms of width hidden in a layer (Gemma 2: 4), that of attention to the "
        "encoder not counted",
    )
    norm_bias: Flag = Field(
        default_factory=lambda data: data["norm"] == "layernorm",
        description="norms have a bias; default: those of LayerNorm (Command-R: false)",
    )
    parallel: Flag = Field(
        False, description="attention and MLP read the same input, and one addition joins both to "
        "it (GPT-J, Falcon, Command-R); with layer_norms 1 they share the norm",
    )
    final_norm: Flag = Field(
        default_factory=lambda data: data["kind"] != "encoder",
        description="a norm after the last layer; default: false for an encoder",
    )
    bias: Flag = Field(description="biases of all linear layers of attention and MLP")
    qkv_bias: Flag = Field(False, description="biases of the query, key and value projections only")
    output_bias: Flag = Field(False, description="a bias of attention's output projection")
    mlp_bias: Flag = Field(False, description="biases of the MLP only (GPT-J)")
    qk_norm: Flag = Field(False, description="a norm of width head_dim on queries and on keys")
    qk_norm_form: Literal["head", "all", "plain"] = Field(
        "head", description="the weights of qk_norm: head: head_dim, for all heads the same; all: "
        "one for each element of all heads (OLMo-2, MiniMax-M2); plain: none (Llama 4)",
    )
    attention_gate: Flag = Field(
        False, description="a gate, as wide as the queries, scales attention's output (Qwen3-Next)"
    )
    sinks: Flag = Field(False, description="a trained score for each head (GPT-OSS)")
    embedding_norm: Flag = Field(False, description="a norm after the embeddings (BERT)")
    head_transform: Flag = Field(
        False,
        description="dense layer (with bias) and norm before the vocabulary projection (BERT)",
    )
    head_bias: Flag = Field(False, description="a bias of the vocabulary projection")
    pooler: Flag = Field(False, description="a dense layer (with bias) on the first token (BERT)")
    patch_width: SizeOrZero = Field(
        0, description="an encoder of images (ViT): values of a patch, which a linear layer with "
        "bias embeds; positions - 1 patches and a class token, whose output the head classifies "
        "into vocab classes; 0 = tokens",
    )
    moe: MoE | None = Field(None, description="experts in place of the dense MLP")
    mtp_layers: Annotated[Whole, Field(ge=0, le=100)] = Field(
        0, description="multi-token prediction layers, trained behind the last layer; 0 leaves "
        "them out",
    )
    vision: Vision | None = Field(None, description="a tower for images")
    max_seq_len: Annotated[Whole, Field(ge=1, le=10**9)] | None = Field(
        None, description="longest sequence the model was published for; a note"
    )
    published_parameters: Annotated[Number, Field(gt=0, le=1e18)] | None = Field(
        None, description="parameters as published, to compare the description with"
    )
    source: Annotated[str, Field(max_length=4000)] = Field(
        "", description="where the sizes and the published count come from"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[str, str]] = []
        if self.heads % self.kv_heads:
            problems.append(
                ("kv_heads", f"got {self.kv_heads}; allowed: a divisor of heads = {self.heads}")
            )
        if (
            "head_dim" not in self.model_fields_set
            and self.mla is None
            and self.hidden % self.heads
        ):
            allowed = f"a divisor of hidden = {self.hidden}, or give head_dim"
            problems.append(("heads", f"got {self.heads}; allowed: {allowed}"))
        if self.mla is not None:
            problems += self._mla_problems(self.mla)
        if self.moe is not None and self.moe.first_dense + self.moe.every > self.layers:
            given = f"first_dense {self.moe.first_dense}, every {self.moe.every}"
            allowed = f"together at most layers = {self.layers}, so that one layer has experts"
            problems.append(("moe", f"got {given}; allowed: {allowed}"))
        for name in ("qkv_bias", "output_bias", "mlp_bias"):
            if self.bias and getattr(self, name):
                problems.append((name, "got true; allowed: false where bias is true"))
        problems += self._window_problems() + self._kind_problems() + self._layer_problems()
        if problems:
            raise Problems(problems)
        return self

    def _window_problems(self) -> list[tuple[str, str]]:
        problems = []
        if self.window is not None and self.kind != "decoder":
            text = f"got {self.window}; allowed: nothing with kind {self.kind}"
            problems.append(("window", text))
        if self.full_layers and self.window is None:
            text = f"got {shorten(self.full_layers)}; allowed: nothing without a window"
            problems.append(("full_layers", text))
        wrong = [layer for layer in self.full_layers if layer >= self.layers]
        if wrong:
            text = f"got {wrong[0]}; allowed: 0 to {self.layers - 1}, the layers of the model"
            problems.append(("full_layers", text))
        return problems

    def _layer_problems(self) -> list[tuple[str, str]]:
        """Problems of `layer_types`, of its kinds, and of what goes with some layers only."""
        problems: list[tuple[str, str]] = []
        names = [kind.name for kind in self.layer_kinds]
        if len({*names}) < len(names):
            text = f"got {shorten(names)}; allowed: a name for each kind"
            problems.append(("layer_kinds", text))
        if self.layer_types and len(self.layer_types) != self.layers:
            text = f"got {len(self.layer_types)} entries; allowed: layers = {self.layers} of them"
            problems.append(("layer_types", text))
        if unknown := sorted({*self.layer_types} - {*names}):
            allowed = ", ".join(names) or "none without layer_kinds"
            problems.append(("layer_types", f"got {shorten(unknown[0])}; allowed: {allowed}"))
        if self.layer_kinds and not self.layer_types:
            problems.append(("layer_types", "missing; needed: the kind of each layer"))
        if self.layer_types:
            given = {"window": self.window, "full_layers": self.full_layers,
                     "chunked": self.chunked}
            given |= {} if self.moe is None else {
                "moe.first_dense": self.moe.first_dense, "moe.every": self.moe.every - 1}
            problems += [(name, "given; allowed: nothing with layer_types, whose kinds say it")
                         for name, value in given.items() if value]
            if self.kind != "decoder":
                text = f"got {shorten(self.layer_types[0])}; allowed: nothing with kind {self.kind}"
                problems.append(("layer_types", text))
        used = [kind for kind in self.layer_kinds if kind.name in {*self.layer_types}]
        mixers = {kind.mixer for kind in used}
        if (self.recurrence is None) == ("recurrence" in mixers):
            problems.append(("recurrence", "missing; needed: with layers of that kind"
                             if "recurrence" in mixers else
                             "given; allowed: with layers of that kind in layer_types"))
        if self.moe is None and any(kind.mlp == "experts" for kind in used):
            problems.append(("moe", "missing; needed: with layers that have experts"))
        if self.moe is not None and used and all(kind.mlp != "experts" for kind in used):
            problems.append(("moe", "given; allowed: with layers that have experts"))
        for kind in used:
            heads, groups = kind.heads or self.heads, kind.kv_heads or self.kv_heads
            if heads % groups:
                where = f"layer_kinds.{names.index(kind.name)}.kv_heads"
                problems.append((where, f"got {groups}; allowed: a divisor of heads = {heads}"))
            if self.mla is not None and (kind.heads or kind.kv_heads or kind.head_dim):
                where = f"layer_kinds.{names.index(kind.name)}"
                problems.append((where, "heads of its own; allowed: those of the model with mla"))
            if self.parallel and kind.parts < 2:
                where = f"layer_kinds.{names.index(kind.name)}"
                problems.append((where, "one part; allowed: mixer and mlp with parallel"))
        return problems

    def _kind_problems(self) -> list[tuple[str, str]]:
        problems = []
        if self.chunked and self.window is None:
            problems.append(("chunked", "got true; allowed: false without a window"))
        if self.patch_width and (self.kind != "encoder" or self.positions < 2):
            text = f"got {self.patch_width}; allowed: 0 unless kind is encoder, with positions"
            problems.append(("patch_width", text))
        if self.parallel and self.kind != "decoder":
            problems.append(("parallel", f"got true; allowed: false with kind {self.kind}"))
        if self.qk_norm_form != "head" and not self.qk_norm:
            text = f"got {self.qk_norm_form!r}; allowed: head without qk_norm"
            problems.append(("qk_norm_form", text))
        both = self.kind == "encoder-decoder"
        if both and self.encoder_layers is None:
            problems.append(("encoder_layers", "missing; needed: layers of the encoder"))
        for name in ("encoder_layers", "encoder_seq_len"):
            if not both and getattr(self, name) is not None:
                text = f"got {getattr(self, name)}; allowed: nothing with kind {self.kind}"
                problems.append((name, text))
        if self.encoder_seq_len is not None and 0 < self.positions < self.encoder_seq_len:
            allowed = f"at most positions = {self.positions}"
            problems.append(("encoder_seq_len", f"got {self.encoder_seq_len}; allowed: {allowed}"))
        for name in ("mla", "moe"):
            if both and getattr(self, name) is not None:
                problems.append((name, "got a mapping; allowed: nothing with an encoder-decoder"))
        if self.kind != "decoder":
            if self.mtp_layers:
                text = f"got {self.mtp_layers}; allowed: 0 with kind {self.kind}"
                problems.append(("mtp_layers", text))
            if self.vision is not None:
                text = f"got a mapping; allowed: nothing with kind {self.kind}"
                problems.append(("vision", text))
        if self.relative_positions and self.positions:
            text = f"got {self.relative_positions}; allowed: 0 with learned positions"
            problems.append(("relative_positions", text))
        return problems

    def _mla_problems(self, mla: MLA) -> list[tuple[str, str]]:
        problems = []
        if self.kv_heads != self.heads:
            allowed = f"heads = {self.heads}, because mla has no key-value groups"
            problems.append(("kv_heads", f"got {self.kv_heads}; allowed: {allowed}"))
        if mla.indexer is not None and not mla.q_rank:
            problems.append(("mla.q_rank", "got 0; allowed: at least 1 with an indexer"))
        if self.head_dim != mla.nope_dim + mla.rope_dim:
            allowed = f"{mla.nope_dim + mla.rope_dim} (nope_dim + rope_dim), or leave it out"
            problems.append(("head_dim", f"got {self.head_dim}; allowed: {allowed}"))
        for name in ("bias", "qkv_bias", "output_bias", "qk_norm", "attention_gate", "sinks"):
            if getattr(self, name):
                problems.append((name, "got true; allowed: false with mla"))
        return problems

    def layer(self, number: int) -> LayerKind:
        """Kind of a layer (0-based)."""
        if self.layer_types:
            return self._kinds[self.layer_types[number]]
        moe = self.moe
        sparse = moe is not None and number >= moe.first_dense and (
            (number - moe.first_dense) % moe.every == moe.every - 1)
        return _plain_kind(sparse, None if number in self.full_layers else self.window,
                           self.chunked)

    @property
    def _kinds(self) -> dict[str, LayerKind]:
        return {kind.name: kind for kind in self.layer_kinds}

    @property
    def kinds(self) -> Counter[LayerKind]:
        """Kinds of layers, each with their number, in the order of their first layers."""
        if self.layer_types:
            named = self._kinds
            return Counter({named[name]: count for name, count in Counter(self.layer_types).items()})
        return Counter(self.layer(number) for number in range(self.layers))

    def sized(self, kind: LayerKind) -> Model:
        """The model with the sizes of one kind of layer."""
        names = ("heads", "kv_heads", "head_dim", "ffn")
        own = {name: value for name in names if (value := getattr(kind, name)) is not None}
        return self.unchecked(**own) if own else self

    def norms(self, kind: LayerKind) -> int:
        """Norms of width hidden in a layer of a kind."""
        return self.layer_norms if kind.parts == 2 else max(1, self.layer_norms // 2)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether a layer (0-based) has experts."""
        return self.layer(layer).mlp == "experts"

    def window_of(self, layer: int) -> int | None:
        """Tokens that a layer (0-based) attends to at most; None: all earlier ones."""
        return self.layer(layer).window

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return sum(count for kind, count in self.kinds.items() if kind.mlp == "experts")

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are rotated by their position."""
        return not (self.positions or self.relative_positions or self.unrotated)

    def parameters(self) -> int:
        """All parameters without multi-token prediction layers, as published counts have them."""
        return parameters.count(self)

    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction layers, without the embedding they share."""
        return parameters.prediction(self)

    def active_parameters(self) -> int:
        """Parameters that one token uses: only the top_k of the routed experts."""
        return parameters.count(self, active=True)


@lru_cache(maxsize=1024)
def _plain_kind(sparse: bool, window: int | None, chunked: bool) -> LayerKind:
    """The kind of a layer of a model that has no list of kinds."""
    name = f"{'window_' if window else ''}{'moe_' if sparse else ''}layer"
    return LayerKind(name=name, mlp="experts" if sparse else "dense", window=window,
                     chunked=chunked and window is not None)


def _head_dim(data: dict[str, Any]) -> int:
    """Default width of a head; `_consistent` refuses sizes that do not divide."""
    if data["mla"] is not None:
        return int(data["mla"].nope_dim + data["mla"].rope_dim)
    return max(1, int(data["hidden"] // data["heads"]))
