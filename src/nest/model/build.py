"""From a model or a profile to its chain; the layers around the transformer layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nest.inputs.layers import LayerKind, Vision
from nest.inputs.model import Model, tower_model
from nest.inputs.profile import Profile
from nest.model.chain import Chain, Tensor
from nest.model.operators import Layer, Measured, Operator, Traffic, gemm, norm
from nest.model.trained import TABLES, with_trainable
from nest.model.transformer import block


class _Draft:
    """A graph under construction; each layer names its inputs."""

    def __init__(self) -> None:
        self.kinds: list[Layer] = []
        self.order: list[int] = []
        self._numbers: dict[int, int] = {}
        self._consumers: dict[int, list[int]] = {}
        self._unkept: set[int] = set()
        self._copies: dict[int, int] = {}

    def add(self, layer: Layer, *inputs: int, copies: int = 1) -> int:
        """Append a layer and give its number; the same object twice is one kind.

        Parameters
        ----------
        inputs : numbers of the layers whose output it takes.
        copies : hidden states that it passes on.
        """
        kind = self._numbers.setdefault(id(layer), len(self.kinds))
        if kind == len(self.kinds):
            self.kinds.append(layer)
        number = len(self.order)
        self.order.append(kind)
        for producer in inputs:
            self._consumers.setdefault(producer, []).append(number)
        self._copies[number] = copies
        return number

    def unkept(self, *numbers: int) -> None:
        """Record that consumers of these layers' output do not save it."""
        self._unkept.update(numbers)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(producer, tuple(consumers), producer not in self._unkept,
                   self._copies[producer])
            for producer, consumers in sorted(self._consumers.items()))


def build_chain(model: Model) -> Chain:
    """Layers of a transformer: embedding, its layers, vocabulary head with the loss.

    Layers of multi-token prediction precede the head, and pass on their hidden state with the
    earlier ones. An encoder precedes its decoder, whose layers all take its output. A tower for
    images precedes the text embedding; a merge joins both. All layers are trained, unless the model
    says what is.

    Parameters per operator follow the model description; see :meth:`Model.parameters`.
    """
    draft = _Draft()
    if model.kind == "encoder-decoder":
        last = _encoder_decoder(draft, model)
    else:
        images = None if model.vision is None else _tower(draft, model)
        last = draft.add(embedding(model), copies=model.carried(-1))
        if images is not None:
            draft.unkept(images, last)
            last = draft.add(merge(model), images, last)
        kinds = [model.layer(n) for n in range(model.layers)]
        blocks = {kind: block(model, kind.name, model.kind == "decoder", kind,
                              tokens=image_tokens(model)) for kind in {*kinds}}
        for number, kind in enumerate(kinds):
            last = draft.add(blocks[kind], last, copies=model.carried(number))
        if model.mtp_layers:
            predicting, copies = prediction(model), model.carried(model.layers - 1)
            for depth in range(1, model.mtp_layers + 1):
                last = draft.add(predicting, last, copies=copies + depth * model.streams)
    draft.add(head(model), last)
    shared = _shared(draft)
    chain = Chain(model.name, tuple(draft.kinds), tuple(draft.order), draft.tensors, shared,
                  model=model)
    return with_trainable(chain, model)


def profile_chain(profile: Profile) -> Chain:
    """Measured layers, in the order of the profile, each fed by its inputs."""
    draft = _Draft()
    last: dict[str, int] = {}  # number of the last repetition of a layer
    for entry, inputs in zip(profile.layers, profile.inputs, strict=True):
        measured = {
            degree: Measured(m.forward, m.backward, m.parameter_bytes / profile.bytes_per_parameter,
                             m.activation_bytes, m.work_bytes)
            for degree, m in entry.tp.items()
        }
        layer = Layer(entry.name, repeated=True, checkpointed=True,
                      output_bytes=entry.output_bytes, measured=measured)
        number = draft.add(layer, *(last[name] for name in inputs))
        for _ in range(entry.repeat - 1):
            number = draft.add(layer, number)
        last[entry.name] = number
    return Chain(profile.name, tuple(draft.kinds), tuple(draft.order), draft.tensors,
                 profile=profile)


def _encoder_decoder(draft: _Draft, model: Model) -> int:
    """Encoder and decoder (T5, arXiv:1910.10683, section 2.1); the number of the last layer."""
    length = model.encoder_seq_len
    last = draft.add(embedding(model, "encoder_embedding", length))
    layer = block(model, "encoder_layer", False, tokens=length)
    for _ in range(model.encoder_layers or 0):
        last = draft.add(layer, last)
    encoded = draft.add(encoder_end(model), last)
    draft.unkept(encoded)
    last = draft.add(embedding(model, "decoder_embedding"))
    layer = block(model, "decoder_layer", True, cross=True)
    for _ in range(model.layers):
        last = draft.add(layer, last, encoded)
    return last


def _tower(draft: _Draft, model: Model) -> int:
    """Layers of the tower for images; the number of the last one."""
    tower = model.vision
    assert tower is not None
    inner = tower_model(tower)
    last = draft.add(patches(tower, inner))
    layers = {window: block(inner, "vision_layer", False, _windowed(window), tokens=tower.tokens,
                            repeated=False) for window in {tower.chunk, None}}
    for number in range(tower.layers):
        last = draft.add(layers[tower.window_of(number)], last)
    return draft.add(projector(model, tower, inner), last)


def _windowed(window: int | None) -> LayerKind:
    """A layer of a tower whose attention stays in windows of so many patches."""
    return LayerKind(name="vision_layer", window=window, chunked=window is not None)


def _shared(draft: _Draft) -> dict[int, int]:
    """Kinds to use if one stage holds all copies of a table: the first layer holds it."""
    tied = [kind for kind, layer in enumerate(draft.kinds) if layer.tied_parameters]
    shared = {}
    for number, kind in enumerate(tied):
        shared[kind] = len(draft.kinds)
        draft.kinds.append(held_once(draft.kinds[kind], drop_copy=number > 0))
    return shared


# Token ids are looked up in a table divided by rows of the vocabulary.
_LOOKUP = Traffic(forward_scatters=1, backward_gathers=1, forward_reduces=1)


def _lookup(model: Model) -> list[Operator]:
    h = model.hidden
    return [
        Operator("embedding", "memory", "sequence", forward_elements=2 * h,
                 backward_elements=3 * h, masked_elements=h),
        Operator("embedding_table", "gemm", "column", padded=True, width=model.vocab, depth=0,
                 parameters=model.vocab * h),
    ]


def embedding(model: Model, name: str = "embedding", tokens: int | None = None) -> Layer:
    """Token, position and further embeddings.

    ``tokens``: see :func:`nest.model.transformer.block`.
    """
    h = model.hidden
    if model.patch_width:
        return _images(model)
    ops = _lookup(model)
    rows = model.positions + model.token_types
    if rows:
        ops.append(Operator("position_embedding", "memory", "sequence", forward_elements=2 * h,
                            backward_elements=2 * h, parameters=rows * h))
    if model.relative_positions:
        # One table for all layers of the stack (T5 keeps it in the first one).
        ops.append(Operator("relative_positions", "memory", "heads",
                            parameters=model.relative_positions * model.heads))
    if model.embedding_norm:
        ops.append(norm(model, "embedding_norm", h))
    if wide := model.layers * model.layer_inputs:  # of all layers; tensor parallelism divides none
        ops += [Operator("layer_table", "memory", "sequence", forward_elements=5 * wide,
                         backward_elements=4 * wide, parameters=model.vocab * wide),
                gemm("layer_inputs", "sequence", wide, h, False, h),
                replace(norm(model, "layer_inputs_norm", wide), parameters=model.layer_inputs)]
    shared = model.tied_embeddings or model.mtp_layers or model.kind == "encoder-decoder"
    return Layer(name, tuple(ops), _LOOKUP, hidden=h, tokens=tokens,
                 tied_parameters=model.vocab * h if shared else 0)


def _images(model: Model) -> Layer:
    """Patches of an image instead of tokens, and the class token; positions are learned."""
    h = model.hidden
    ops = [
        gemm("patch_embedding", "sequence", h, model.patch_width, True, model.patch_width),
        Operator("position_embedding", "memory", "sequence", forward_elements=2 * h,
                 backward_elements=2 * h, parameters=(model.positions + 1) * h),
    ]
    return Layer("embedding", tuple(ops), hidden=h, tokens=model.positions)


def prediction(model: Model) -> Layer:
    """One multi-token prediction layer (arXiv:2412.19437, section 2.2).

    Norms of the hidden state and of the embedding of the shifted tokens, a projection of both
    (2 hidden -> hidden), a transformer layer like the last one, a norm. The gradient of its copy of
    the embedding table is summed with that of the first one. Sequence parallelism divides the
    projection.
    """
    h = model.hidden
    inner = block(model, "mtp_layer", True, model.prediction_kind, repeated=False)
    ops = (
        *_lookup(model), norm(model, "mtp_hidden_norm", h), norm(model, "mtp_embedding_norm", h),
        gemm("mtp_projection", "sequence", h, 2 * h, False, 2 * h),
        *(replace(op, unread=False) for op in inner.operators),
        norm(model, "mtp_norm", h),
    )
    t = inner.traffic
    traffic = replace(t, forward_scatters=t.forward_scatters + 1,
                      backward_gathers=t.backward_gathers + 1,
                      forward_reduces=t.forward_reduces + 1)
    return replace(inner, operators=ops, traffic=traffic, tied_parameters=model.vocab * h)


def head(model: Model) -> Layer:
    """Vocabulary projection and loss, once more for each layer of multi-token prediction."""
    h, vocab = model.hidden, model.vocab
    ops: list[Operator] = []
    if model.pooler:
        ops.append(Operator("pooler", "memory", "sequence", parameters=h * h + h))
    if model.head_transform:
        ops.append(gemm("head_transform", "sequence", h, h, True, h))
        ops.append(norm(model, "transform_norm", h))
    if model.final_norm:
        ops.append(norm(model, "head_norm", h))
    n = model.streams
    if n > 1 or model.residual_block:  # one state of all that come in
        own = n * (n * h + 1) + 1 if n > 1 else 2 * h
        states = n if n > 1 else model.carried(model.layers - 1)
        ops.append(Operator("head_mixture", "memory", "sequence", parameters=own,
                            forward_elements=(2 * states + 1) * h, saved_elements=states * h,
                            backward_elements=(3 * states + 1) * h))
    bias = vocab if model.head_bias else 0
    # The product is not a layer of Transformer Engine: it stays in 16 bit.
    first = [
        Operator("logits", "gemm", "column", width=vocab, depth=h, padded=True, bf16=True,
                 logits=True, parameters=vocab * h + bias),
        Operator("head_input", "memory", "sequence", saved_elements=h, product_input=True),
        Operator("loss", "memory", "column", width=vocab, padded=True, forward_elements=5 * vocab,
                 backward_elements=3 * vocab, saved_elements=3 * vocab, loss=True),
    ]
    if model.patch_width:  # classes, of one token of a sample; they are few, and not padded
        first = [replace(op, positions=1, padded=False) for op in first]
    further = [replace(op, name=f"mtp_{op.name}", parameters=0) for op in first]
    times = 1 + model.mtp_layers
    return Layer("head", (*ops, *first, *further * model.mtp_layers),
                 Traffic(forward_gathers=times, backward_gathers=times, backward_scatters=times,
                         backward_reduces=times),
                 hidden=h, tokens=image_tokens(model),
                 tied_parameters=vocab * h if _ties(model) else 0)


def image_tokens(model: Model) -> int | None:
    """Tokens of a sample where they are patches of an image; ``None``: those of the job."""
    return model.positions if model.patch_width else None


def _ties(model: Model) -> bool:
    return model.tied_embeddings and not model.patch_width


def held_once(layer: Layer, drop_copy: bool) -> Layer:
    """The same layer where one stage holds all copies: one of them, no gradient exchange."""
    operators = layer.operators
    if drop_copy:
        operators = tuple(
            replace(op, parameters=op.parameters - layer.tied_parameters)
            if op.name in TABLES else op
            for op in operators
        )
    return replace(layer, operators=operators, tied_parameters=0)


def encoder_end(model: Model) -> Layer:
    """The encoder's output, which all decoder layers read and none saves: saved here, once."""
    h = model.hidden
    ops = [norm(model, "encoder_norm", h)] if model.final_norm else []
    ops.append(Operator("encoder_output", "memory", "sequence", saved_elements=h))
    return Layer("encoder_end", tuple(ops), hidden=h, tokens=model.encoder_seq_len)


def patches(tower: Vision, inner: Model) -> Layer:
    """Patch embedding of a tower for images, its class token and positions."""
    h = tower.hidden
    ops = [
        gemm("patch_embedding", "sequence", h, tower.patch_width, tower.patch_bias,
             tower.patch_width),
        Operator("position_embedding", "memory", "sequence", forward_elements=2 * h,
                 backward_elements=2 * h, parameters=(inner.positions + tower.class_token) * h),
    ]
    if tower.embedding_norm:
        ops.append(norm(inner, "embedding_norm", h))
    return Layer("patch_embedding", tuple(ops), hidden=h, tokens=tower.tokens)


def projector(model: Model, tower: Vision, inner: Model) -> Layer:
    """From the tower's last layer to the width of the language model, merged patches at once.

    Further projectors (Qwen3-VL) are a part of it: they read what earlier layers keep anyway.
    """
    ops: list[Operator] = []
    if tower.final_norm:
        last = norm(inner, "vision_norm", tower.merge * tower.hidden)
        ops.append(replace(last, parameters=last.parameters // tower.merge))
    if tower.projector_norm:
        wide = tower.merge * tower.hidden if not tower.pooled else tower.hidden
        ops.append(Operator("projector_norm", "memory", "sequence", forward_elements=2 * wide,
                            backward_elements=3 * wide, saved_elements=wide,
                            parameters=tower.hidden * (1 + tower.projector_norm_bias)))
    ops += [replace(op, positions=tower.tokens)
            for op in _linear(tower, tower.before, "patch_projector")]
    products = _linear(tower, tower.projector(model.hidden), "projector")
    for number in range(tower.deepstack):
        further = _linear(tower, tower.projector(model.hidden), f"projector_{number + 1}")
        products += [norm(inner, f"projector_norm_{number + 1}", tower.wide), *further]
    return Layer("projector", (*ops, *products), hidden=model.hidden, tokens=tower.merged_tokens)


def _linear(tower: Vision, sizes: Iterable[tuple[int, int]], name: str) -> list[Operator]:
    """Linear layers of given depths and widths with activations between them."""
    ops: list[Operator] = []
    for depth, width in sizes:
        if ops:
            ops.append(Operator(f"{name}_activation", "memory", "sequence",
                                forward_elements=2 * depth, backward_elements=3 * depth,
                                saved_elements=depth))
        ops.append(gemm(f"{name}_output" if ops else name, "sequence", width, depth,
                        tower.projector_bias, depth))
    return ops


def merge(model: Model) -> Layer:
    """The text embedding with the images' tokens inserted: a copy, which saves nothing."""
    h = model.hidden
    copy = Operator("merge", "memory", "sequence", forward_elements=2 * h, backward_elements=2 * h)
    return Layer("merge", (copy,), hidden=h)
