"""From a model or a profile to its chain."""

from __future__ import annotations

from nest.inputs.layers import LayerKind
from nest.inputs.model import Model, tower_model
from nest.inputs.profile import Profile
from nest.model import embedding_head
from nest.model.chain import Chain, Tensor
from nest.model.operators import Layer, Measured
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
    images precedes the text embedding; a merge joins both. All layers are trained.

    Parameters per operator follow the model description; see :meth:`Model.parameters`.
    """
    draft = _Draft()
    if model.kind == "encoder-decoder":
        last = _encoder_decoder(draft, model)
    else:
        images = None if model.vision is None else _tower(draft, model)
        last = draft.add(embedding_head.embedding(model))
        if images is not None:
            draft.unkept(images, last)
            last = draft.add(embedding_head.merge(model), images, last)
        kinds = [model.layer(n) for n in range(model.layers)]
        blocks = {kind: block(model, kind.name, model.kind == "decoder", kind,
                              tokens=embedding_head.image_tokens(model)) for kind in {*kinds}}
        for kind in kinds:
            last = draft.add(blocks[kind], last)
        if model.mtp_layers:
            predicting = embedding_head.prediction(model)
            for depth in range(1, model.mtp_layers + 1):
                last = draft.add(predicting, last, copies=1 + depth)
    draft.add(embedding_head.head(model), last)
    shared = _shared(draft)
    return Chain(model.name, tuple(draft.kinds), tuple(draft.order), draft.tensors, shared,
                 model=model)


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
    last = draft.add(embedding_head.embedding(model, "encoder_embedding", length))
    layer = block(model, "encoder_layer", False, tokens=length)
    for _ in range(model.encoder_layers or 0):
        last = draft.add(layer, last)
    encoded = draft.add(embedding_head.encoder_end(model), last)
    draft.unkept(encoded)
    last = draft.add(embedding_head.embedding(model, "decoder_embedding"))
    layer = block(model, "decoder_layer", True, cross=True)
    for _ in range(model.layers):
        last = draft.add(layer, last, encoded)
    return last


def _tower(draft: _Draft, model: Model) -> int:
    """Layers of the tower for images; the number of the last one."""
    tower = model.vision
    assert tower is not None
    inner = tower_model(tower)
    last = draft.add(embedding_head.patches(tower, inner))
    layers = {window: block(inner, "vision_layer", False, _windowed(window), tokens=tower.tokens,
                            repeated=False) for window in {tower.chunk, None}}
    for number in range(tower.layers):
        last = draft.add(layers[tower.window_of(number)], last)
    return draft.add(embedding_head.projector(model, tower, inner), last)


def _windowed(window: int | None) -> LayerKind:
    """A layer of a tower whose attention stays in windows of so many patches."""
    return LayerKind(name="vision_layer", window=window, chunked=window is not None)


def _shared(draft: _Draft) -> dict[int, int]:
    """Kinds to use if one stage holds all copies of a table: the first layer holds it."""
    tied = [kind for kind, layer in enumerate(draft.kinds) if layer.tied_parameters]
    shared = {}
    for number, kind in enumerate(tied):
        shared[kind] = len(draft.kinds)
        draft.kinds.append(embedding_head.held_once(draft.kinds[kind], drop_copy=number > 0))
    return shared
