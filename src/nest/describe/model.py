"""A model: the sizes of a transformer, which determine all operators and parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nest.describe.base import Description, Flag, Name, Number, Problems, Whole, at_most
from nest.units import shorten

Size = Annotated[Whole, Field(ge=1, le=10**7)]
SizeOrZero = Annotated[Whole, Field(ge=0, le=10**7)]
Count = Annotated[Whole, Field(ge=0, le=10**4)]


class MLA(Description):
    """Multi-head latent attention (arXiv:2412.19437, section 2.1.1)."""

    q_rank: SizeOrZero = Field(description="rank of the query compression; 0 = not compressed")
    kv_rank: Size = Field(description="rank of the key-value compression")
    nope_dim: Size = Field(description="query/key dimensions of a head without rotary embedding")
    rope_dim: Size = Field(description="query/key dimensions of a head with rotary embedding")
    value_dim: Size = Field(description="value dimensions of a head")


class MoE(Description):
    """A mixture of experts that replaces the dense MLP."""

    experts: Annotated[Whole, Field(ge=1, le=10**5)] = Field(description="routed experts a layer")
    top_k: Size = Field(description="routed experts that a token uses")
    ffn: Size = Field(description="width of one routed expert")
    shared_ffn: SizeOrZero = Field(0, description="total width of the shared experts; 0 = none")
    shared_gate: Flag = Field(False, description="a gate (hidden -> 1) scales the shared experts")
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
    embedding_norm: Flag = Field(False, description="a norm after the embeddings (CLIP)")
    final_norm: Flag = Field(True, description="a norm after the last layer")
    merge: Size = Field(1, description="patches that the projector joins to one token")
    projector_layers: Annotated[Whole, Field(ge=1, le=2)] = Field(
        1, description="linear layers (with bias) from the tower to the language model's hidden"
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
        if problems:
            raise Problems(problems)
        return self

    @property
    def merged_tokens(self) -> int:
        """Positions of a sample's images in the sequence of the language model."""
        return self.tokens // self.merge

    def transformer(self) -> Model:
        """The tower's layers as a model without vocabulary."""
        return Model(
            name="vision", kind="encoder", layers=self.layers, hidden=self.hidden,
            heads=self.heads, ffn=self.ffn, gated=self.gated, vocab=1, tied_embeddings=True,
            positions=self.tokens + self.class_token, norm=self.norm, bias=self.bias,
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
    relative_positions: Count = Field(
        0, description="buckets of a learned bias of the scores by distance (T5: 32); 0 = none"
    )
    token_types: Count = Field(0, description="token-type embeddings (BERT: 2); 0 = none")
    norm: Literal["rmsnorm", "layernorm"] = Field(description="type of all norms")
    layer_norms: Annotated[Whole, Field(ge=1, le=8)] = Field(
        2, description="norms of width hidden in a layer (Gemma 2: 4), that of attention to the "
        "encoder not counted",
    )
    final_norm: Flag = Field(
        default_factory=lambda data: data["kind"] != "encoder",
        description="a norm after the last layer; default: false for an encoder",
    )
    bias: Flag = Field(description="biases of all linear layers of attention and MLP")
    qkv_bias: Flag = Field(False, description="biases of the query, key and value projections only")
    qk_norm: Flag = Field(False, description="a norm of width head_dim on queries and on keys")
    embedding_norm: Flag = Field(False, description="a norm after the embeddings (BERT)")
    head_transform: Flag = Field(
        False,
        description="dense layer (with bias) and norm before the vocabulary projection (BERT)",
    )
    head_bias: Flag = Field(False, description="a bias of the vocabulary projection")
    pooler: Flag = Field(False, description="a dense layer (with bias) on the first token (BERT)")
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
        if self.bias and self.qkv_bias:
            problems.append(("qkv_bias", "got true; allowed: false where bias is true"))
        problems += self._window_problems() + self._kind_problems()
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

    def _kind_problems(self) -> list[tuple[str, str]]:
        problems = []
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
        if self.head_dim != mla.nope_dim + mla.rope_dim:
            allowed = f"{mla.nope_dim + mla.rope_dim} (nope_dim + rope_dim), or leave it out"
            problems.append(("head_dim", f"got {self.head_dim}; allowed: {allowed}"))
        for name in ("bias", "qkv_bias", "qk_norm"):
            if getattr(self, name):
                problems.append((name, "got true; allowed: false with mla"))
        return problems

    def is_moe_layer(self, layer: int) -> bool:
        """Whether a layer (0-based) has experts."""
        moe = self.moe
        if moe is None or layer < moe.first_dense:
            return False
        return (layer - moe.first_dense) % moe.every == moe.every - 1

    def window_of(self, layer: int) -> int | None:
        """Tokens that a layer (0-based) attends to at most; None: all earlier ones."""
        return None if layer in self.full_layers else self.window

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return sum(self.is_moe_layer(layer) for layer in range(self.layers))

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are rotated by their position."""
        return not (self.positions or self.relative_positions)

    def parameters(self) -> int:
        """All parameters without multi-token prediction layers, as published counts have them."""
        return _count(self)

    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction layers, without the embedding they share."""
        return _prediction(self)

    def active_parameters(self) -> int:
        """Parameters that one token uses: only the top_k of the routed experts."""
        return _count(self, active=True)


def _head_dim(data: dict[str, Any]) -> int:
    """Default width of a head; `_consistent` refuses sizes that do not divide."""
    if data["mla"] is not None:
        return int(data["mla"].nope_dim + data["mla"].rope_dim)
    return max(1, int(data["hidden"] // data["heads"]))


# ---------------------------------------------------------------- parameters

# Part by part, linear layers as in the reference implementations (Hugging Face transformers,
# modeling files of BERT, GPT-2, OPT, Llama, Mixtral, Qwen and DeepSeek-V3): a matrix `in x out`, a
# bias of `out` where the model has biases, norms of one (RMSNorm) or two (LayerNorm) vectors.


def _norm(model: Model, width: int | None = None) -> int:
    """Parameters of one norm of the given width (default: hidden)."""
    vectors = 2 if model.norm == "layernorm" else 1
    return vectors * (model.hidden if width is None else width)


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
        return total + a * mla.value_dim * h
    query, key = a * model.head_dim, model.kv_heads * model.head_dim
    total = h * query + 2 * h * key + query * h
    if model.bias or model.qkv_bias:
        total += query + 2 * key
    if model.bias:
        total += h
    if model.qk_norm:
        total += 2 * _norm(model, model.head_dim)
    return total


def _mlp(model: Model, width: int) -> int:
    """Parameters of one MLP (or expert) of the given width."""
    if width == 0:
        return 0
    inner = 2 if model.gated else 1
    biases = inner * width + model.hidden if model.bias else 0
    return (inner + 1) * model.hidden * width + biases


def _experts(model: Model, active: bool = False) -> int:
    """Parameters of one mixture of experts: router, routed and shared experts, gate."""
    moe = model.moe
    if moe is None:
        return 0
    routed = moe.top_k if active else moe.experts
    total = model.hidden * moe.experts + routed * _mlp(model, moe.ffn) + _mlp(model, moe.shared_ffn)
    return total + (model.hidden if moe.shared_gate else 0)


def _layer(model: Model, index: int, active: bool = False) -> int:
    """Parameters of transformer layer `index` (0-based), norms included."""
    wide = _experts(model, active) if model.is_moe_layer(index) else _mlp(model, model.ffn)
    return _attention(model) + wide + model.layer_norms * _norm(model)


def _places(model: Model) -> int:
    """Parameters of position and token-type embeddings, the norm after them, distance biases."""
    total = (model.positions + model.token_types) * model.hidden
    total += model.relative_positions * model.heads
    return total + (_norm(model) if model.embedding_norm else 0)


def _embedding(model: Model) -> int:
    """Parameters of token, position and token-type embeddings and the norm after them."""
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
    total += tower.layers * _layer(inner, 0)
    total += (tower.embedding_norm + tower.final_norm) * _norm(inner)
    wide = tower.merge * tower.hidden
    return total + (wide + 1 + (tower.projector_layers - 1) * (model.hidden + 1)) * model.hidden


def _prediction(model: Model) -> int:
    """Parameters of the multi-token prediction layers (arXiv:2412.19437, section 2.2).

    Each has norms of the hidden state and of the embedding, a projection of both, a transformer
    layer like the last one, and a norm; embedding and vocabulary matrix are the model's.
    """
    each = 3 * _norm(model) + 2 * model.hidden**2 + _layer(model, model.layers - 1)
    return model.mtp_layers * each


def _head(model: Model) -> int:
    """Parameters after the layers; a tied vocabulary matrix is not counted again."""
    h = model.hidden
    total = _norm(model) if model.final_norm else 0
    if model.head_transform:
        total += h * h + h + _norm(model)
    if model.pooler:
        total += h * h + h
    if not model.tied_embeddings:
        total += model.vocab * h
    return total + (model.vocab if model.head_bias else 0)


def _count(model: Model, active: bool = False) -> int:
    """All parameters except those of `_prediction`; `active`: only those of one token."""
    sparse = model.moe_layers
    dense = model.layers - sparse
    same = _attention(model) + model.layer_norms * _norm(model)
    total = _embedding(model) + _head(model) + _vision(model) + model.layers * same
    if model.kind == "encoder-decoder":
        # attention to the encoder's output, and the norm before it
        total += _encoder(model) + model.layers * (_attention(model) + _norm(model))
    return total + sparse * _experts(model, active) + dense * _mlp(model, model.ffn)
