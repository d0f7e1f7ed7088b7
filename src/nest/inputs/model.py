"""A model: the sizes of a transformer, which determine all operators and parameters."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nest.inputs.base import Description, Flag, Name, Number, Problems, Whole, at_most
from nest.inputs.layers import (
    MLA,
    Compression,
    Count,
    Indexer,
    LayerKind,
    MoE,
    Recurrence,
    Size,
    SizeOrZero,
    Vision,
)
from nest.inputs.trainable import Trainable
from nest.units import shorten


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
    compression: Compression | None = Field(
        None, description="attention to compressed entries in place of plain attention"
    )
    indexer: Indexer | None = Field(
        None, description="sparse attention without latents: what selects the keys"
    )
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
    value_dim: Annotated[Whole, Field(ge=1, le=10**5)] | None = Field(
        None, description="width of a head of values and of its output (MiMo-V2); default: head_dim"
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
    value_norm: Flag = Field(False, description="a norm without weights on values (Gemma 4)")
    attention_gate: Flag = Field(
        False, description="a gate, as wide as the queries, scales attention's output (Qwen3-Next)"
    )
    head_gate: Flag = Field(
        False, description="a gate for each head scales attention's output (Step-3.7)")
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
    mtp_kind: Name | None = Field(
        None, description="kind of layer_kinds that these have; default: that of the last layer"
    )
    streams: Annotated[Whole, Field(ge=1, le=64)] = Field(
        1, description="residual streams that attention and MLP read a mixture of (DeepSeek-V4: 4)"
    )
    residual_block: Count = Field(
        0, description="layers of a block, whose residual all later ones attend to (Kimi-K3: 12); "
        "0 = a plain residual",
    )
    layer_inputs: SizeOrZero = Field(
        0, description="width of an input that each layer has of its own: an embedding of the "
        "token and a projection of the first embedding (Gemma 4 E2B: 256); 0 = none",
    )
    vision: Vision | None = Field(None, description="a tower for images")
    trainable: Trainable | None = Field(
        None, description="what is trained: parts, adapters or biases; null: all of it")
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
        problems += self._sparse_problems()
        problems += self._trainable_problems()
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
        if self.mtp_kind is not None and (self.mtp_kind not in names or not self.mtp_layers):
            allowed = ", ".join(names) if self.mtp_layers and names else (
                "nothing without mtp_layers and layer_kinds")
            problems.append(("mtp_kind", f"got {shorten(self.mtp_kind)}; allowed: {allowed}"))
        used = [kind for kind in self.layer_kinds
                if kind.name in {*self.layer_types, self.mtp_kind}]
        recurs = any(kind.recurs for kind in used)
        if (self.recurrence is None) == recurs:
            problems.append(("recurrence", "missing; needed: with layers of that kind"
                             if recurs else
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

    def _sparse_problems(self) -> list[tuple[str, str]]:
        """Problems of attention that reads selected or compressed keys, and of residuals."""
        problems: list[tuple[str, str]] = []
        unlike = [name for name, other in (
            ("mla", self.mla), ("indexer", self.indexer)) if other is not None]
        unlike += [name for name in (
            "bias", "qkv_bias", "output_bias", "qk_norm", "value_norm", "attention_gate",
            "head_gate", "value_dim") if getattr(self, name)]
        c = self.compression
        if c is not None:
            problems += [(name, "given; allowed: nothing with compression") for name in unlike]
            if self.kv_heads != 1:
                problems.append(("kv_heads", f"got {self.kv_heads}; allowed: 1 with compression"))
            if self.heads % c.groups:
                text = f"got {c.groups}; allowed: a divisor of heads = {self.heads}"
                problems.append(("compression.groups", text))
        elif any(kind.compress for kind in self.layer_kinds):
            problems.append(("compression", "missing; needed: with layers that compress"))
        if self.indexer is not None and self.mla is not None:
            problems.append(("indexer", "given; allowed: mla.indexer with mla"))
        for name, given in (("compression", c), ("indexer", self.indexer)):
            if given is not None and self.kind != "decoder":
                problems.append((name, f"given; allowed: nothing with kind {self.kind}"))
        if self.residual_block and self.streams > 1:
            text = f"got {self.residual_block}; allowed: 0 with streams {self.streams}"
            problems.append(("residual_block", text))
        if self.keys_shared and self.layer_types:
            first = self.first_sharing
            own = {kind.window for kind in map(self.layer, range(first)) if kind.attends}
            if {self.layer(n).window for n in range(first, self.layers)} - own or any(
                    not self.layer(n).shared_keys for n in range(first, self.layers)):
                problems.append(("layer_types", "layers with shared_keys; allowed: the last ones, "
                                 "behind one with keys of its own for each window"))
            if self.mla is not None or self.compression is not None or self.mtp_layers:
                problems.append(("layer_kinds", "shared_keys; allowed: without mla, compression "
                                 "and mtp_layers"))
        for name, plain in (("streams", 1), ("residual_block", 0), ("layer_inputs", 0)):
            value = getattr(self, name)
            if value != plain and (self.kind != "decoder" or self.parallel):
                problems.append((name, f"got {value}; allowed: {plain} unless kind is decoder, "
                                 "without parallel"))
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

    def _trainable_problems(self) -> list[tuple[str, str]]:
        trained = self.trainable
        if trained is None:
            return []
        problems = []
        lacking = {"mtp": not self.mtp_layers, "vision": self.vision is None,
                   "projector": self.vision is None, "experts": self.moe is None,
                   "router": self.moe is None}
        problems += [("trainable.parts", f"got {part}, which the model lacks; allowed: its parts")
                     for part in trained.parts if lacking.get(part)]
        tables = {"embedding", "head"} & {*trained.parts}
        if self.tied_embeddings and len(tables) == 1:
            problems.append(("trainable.parts", f"got {tables.pop()} alone; allowed: embedding and "
                             "head, or neither, as both share a table"))
        if trained.layers is not None and (
                self.kind == "encoder-decoder" or trained.layers.largest >= self.layers):
            allowed = "null with an encoder-decoder" if self.kind == "encoder-decoder" else (
                f"0 to {self.layers - 1}, the layers of the model")
            problems.append(("trainable.layers", f"got {trained.layers}; allowed: {allowed}"))
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
        for name in ("bias", "qkv_bias", "output_bias", "qk_norm", "attention_gate", "head_gate",
                     "sinks", "value_dim"):
            if value := getattr(self, name):
                problems.append((name, f"got {str(value).lower()}; allowed: false with mla"
                                 if value is True else f"got {value}; allowed: null with mla"))
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
            return Counter({named[name]: times
                            for name, times in Counter(self.layer_types).items()})
        return Counter(self.layer(number) for number in range(self.layers))

    @property
    def selects(self) -> Indexer | None:
        """What selects the keys of sparse attention, or its compressed entries."""
        for part in (self.mla, self.compression):
            if part is not None:
                return part.indexer
        return self.indexer

    @property
    def prediction_kind(self) -> LayerKind:
        """Kind of the multi-token prediction layers."""
        if self.mtp_kind is None:
            return self.layer(self.layers - 1)
        return self._kinds[self.mtp_kind]

    def carried(self, layer: int) -> int:
        """Hidden states that a layer (0-based; -1: the embedding) passes on, whole ones.

        With them travel inputs of the layers behind, and keys and values that these share.
        """
        own = layer // self.residual_block + 2 if self.residual_block else self.streams
        more = self.layer_inputs * (self.layers - 1 - layer)
        if self.keys_shared and self.first_sharing - 1 <= layer < self.layers - 1:
            more += sum(2 * one.kv_heads * one.head_dim for one in map(
                self.sized, {kind for kind in self.kinds if kind.shared_keys}))
        return own + -(-more // self.hidden)

    @property
    def keys_shared(self) -> bool:
        """Whether some layers take keys and values of earlier ones."""
        return any(kind.shared_keys for kind in self.layer_kinds)

    @property
    def first_sharing(self) -> int:
        """The first layer (0-based) that does."""
        return next((n for n in range(self.layers) if self.layer(n).shared_keys), self.layers)

    def sized(self, kind: LayerKind) -> Model:
        """The model with the sizes of one kind of layer."""
        names = ("heads", "kv_heads", "head_dim", "ffn", "sinks")
        own = {name: value for name in names if (value := getattr(kind, name)) is not None}
        return self.unchecked(**own) if own else self

    @property
    def value_width(self) -> int:
        """Width of a head of values."""
        return self.value_dim or self.head_dim

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
        return _count(self)

    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction layers, without the embedding they share."""
        return _prediction(self)

    def active_parameters(self) -> int:
        """Parameters that one token uses: only the top_k of the routed experts."""
        return _count(self, active=True)


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


def tower_model(tower: Vision) -> Model:
    """The layers of a tower as a model without vocabulary."""
    positions = tower.tokens + tower.class_token if tower.positions is None else tower.positions
    own = {} if tower.head_dim is None else {"head_dim": tower.head_dim}
    return Model(
        name="vision", kind="encoder", layers=tower.layers, hidden=tower.hidden,
        heads=tower.heads, ffn=tower.ffn, gated=tower.gated, vocab=1, tied_embeddings=True,
        positions=positions, norm=tower.norm, bias=tower.bias, layer_norms=tower.layer_norms,
        qk_norm=tower.qk_norm, **own,
    )


# ---------------------------------------------------------------- parameters

# Part by part, linear layers as in the reference implementations (Hugging Face transformers,
# modeling files of the model types that are read): a matrix `in x out`, a bias of `out` where the
# model has biases, norms of one vector, or of two with a bias.


def _norm(model: Model, width: int | None = None) -> int:
    """Parameters of one norm of the given width (default: hidden)."""
    return (1 + model.norm_bias) * (model.hidden if width is None else width)


def _indexer(model: Model, depth: int) -> int:
    """Parameters of an indexer: queries of ``depth`` inputs, one key, weights or norms."""
    index = model.selects
    if index is None:
        return 0
    last = model.hidden * index.heads if index.weighted else 0
    return (depth * index.heads + model.hidden + 2) * index.head_dim + last


def _compressed(model: Model, kind: LayerKind) -> int:
    """Parameters of attention with compressed entries (DeepseekV4Attention of transformers)."""
    c, h, q, d = model.compression, model.hidden, model.heads * model.head_dim, model.head_dim
    assert c is not None
    total = h * c.q_rank + _norm(model, c.q_rank) + c.q_rank * q + h * d + _norm(model, d)
    total += c.o_rank * (q + c.groups * h) + (model.heads if model.sinks else 0)
    if kind.compress:
        total += _compressor(model, kind, d)
        if (index := c.indexer) is not None and kind.indexer == "own":
            total += _compressor(model, kind, index.head_dim) + h * index.heads
            total += c.q_rank * index.heads * index.head_dim
    return total


def _compressor(model: Model, kind: LayerKind, width: int) -> int:
    """Parameters of what makes compressed entries: values and weights, positions, a norm.

    Where entries are selected, each is made of its own tokens and of those in front of it.
    """
    assert model.compression is not None
    twice = 2 if model.compression.indexer is not None and kind.indexer == "own" else 1
    return twice * width * (2 * model.hidden + kind.compress) + _norm(model, width)


def _attention(model: Model, kind: LayerKind | None = None) -> int:
    """Parameters of one attention without the norm before it.

    Latent attention: arXiv:2412.19437, equations 1 to 11; a norm follows each compression.
    """
    h, a = model.hidden, model.heads
    indexed = kind is None or kind.indexer == "own"
    if model.compression is not None and kind is not None:
        return _compressed(model, kind)
    if model.mla is not None:
        mla = model.mla
        query = a * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            total = h * mla.q_rank + _norm(model, mla.q_rank) + mla.q_rank * query
        else:
            total = h * query
        total += h * (mla.kv_rank + mla.rope_dim) + _norm(model, mla.kv_rank)
        total += mla.kv_rank * a * (mla.nope_dim + mla.value_dim)
        if indexed:
            total += _indexer(model, mla.q_rank)
        return total + a * mla.value_dim * h * (2 if mla.gate else 1)
    query, key = a * model.head_dim, model.kv_heads * model.head_dim
    asked = query * (2 if model.attention_gate else 1)
    keys = key + (0 if kind is not None and kind.one_key else model.kv_heads * model.value_width)
    shared = kind is not None and kind.shared_keys
    keys = 0 if shared else keys
    total = h * asked + h * keys + a * model.value_width * h + a * h * model.head_gate
    total += _indexer(model, h) if indexed else 0
    if model.bias or model.qkv_bias:
        total += asked + keys
    if model.bias or model.output_bias:
        total += h
    if model.qk_norm and model.qk_norm_form == "head":
        total += (2 - shared) * _norm(model, model.head_dim)
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
    wide = moe.latent or model.hidden
    total = model.hidden * moe.experts + _mlp(model, moe.shared_ffn)
    total += routed * _mlp(model.unchecked(hidden=wide), moe.ffn) + moe.norms * _norm(model, wide)
    if moe.latent:
        total += 2 * model.hidden * wide
        total += model.hidden + wide if model.bias or model.mlp_bias else 0
    total += model.hidden + moe.experts if moe.router_scale else 0
    return total + (model.hidden if moe.shared_gate else 0) + (
        moe.experts if moe.router_bias else 0)


def _mixing(model: Model) -> int:
    """Parameters of what mixes residual streams, or earlier residuals, for one part of a layer.

    Streams: DeepseekV4HyperConnection of transformers, three sets of weights with their scales.
    Residuals: a score and a norm (KimiK3TransformerBlock of torchtitan).
    """
    n = model.streams
    if model.residual_block:
        return 2 * model.hidden
    return (2 + n) * n * (n * model.hidden + 1) + 3 if n > 1 else 0


def _layer(model: Model, kind: LayerKind, active: bool = False) -> int:
    """Parameters of a layer of a kind, norms included; ``active``: those that a token uses."""
    own = model.sized(kind)
    total = model.norms(kind) * _norm(model) + kind.parts * _mixing(model)
    if kind.attends:
        total += _attention(own, kind)
    if kind.recurs:
        assert model.recurrence is not None
        total += model.recurrence.parameters(model.hidden)
    if kind.mlp != "none":
        total += _experts(model, active) if kind.mlp == "experts" else _mlp(own, own.ffn)
    if model.layer_inputs:  # a gate, a projection back, a norm
        total += 2 * model.hidden * model.layer_inputs + _norm(model)
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
    inputs = model.layers * model.layer_inputs
    total = model.vocab * model.hidden + _places(model) + inputs * (model.vocab + model.hidden)
    return total + (_norm(model, model.layer_inputs) if inputs else 0)


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
    inner = tower_model(tower)
    total = (tower.patch_width + tower.patch_bias) * tower.hidden
    total += (inner.positions + tower.class_token) * tower.hidden
    total += tower.layers * _layer(inner, inner.layer(0))
    total += (tower.embedding_norm + tower.final_norm) * _norm(inner)
    projector = sum((depth + tower.projector_bias) * width
                    for depth, width in tower.projector(model.hidden))
    projector += tower.projector_norm * tower.hidden * (1 + tower.projector_norm_bias)
    total += sum((depth + tower.projector_bias) * width for depth, width in tower.before)
    further = tower.deepstack * (projector + _norm(inner, tower.wide))
    return total + projector + further


def _prediction(model: Model) -> int:
    """Parameters of the multi-token prediction layers (arXiv:2412.19437, section 2.2).

    Each has norms of the hidden state and of the embedding, a projection of both, a transformer
    layer like the last one, and a norm; embedding and vocabulary matrix are the model's.
    """
    last = model.prediction_kind
    each = 3 * _norm(model) + 2 * model.hidden**2 + _layer(model, last)
    return model.mtp_layers * each


def _head(model: Model) -> int:
    """Parameters after the layers; a tied vocabulary matrix is not counted again."""
    h = model.hidden
    total = _norm(model) if model.final_norm else 0
    if model.head_transform:
        total += h * h + h + _norm(model)
    if model.pooler:
        total += h * h + h
    if model.residual_block:
        total += _mixing(model)
    if model.streams > 1:  # a weight of each
        total += model.streams * (model.streams * h + 1) + 1
    if not model.tied_embeddings or model.patch_width:
        total += model.vocab * h
    return total + (model.vocab if model.head_bias else 0)


def _count(model: Model, active: bool = False) -> int:
    """All parameters except those of `prediction`; ``active``: only those of one token."""
    total = _embedding(model) + _head(model) + _vision(model)
    if model.kind == "encoder-decoder":
        # attention to the encoder's output, and the norm before it
        total += _encoder(model) + model.layers * (_attention(model) + _norm(model))
    return total + sum(
        times * _layer(model, kind, active) for kind, times in model.kinds.items())
