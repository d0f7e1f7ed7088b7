"""Layers before and after the transformer layers: embeddings, towers' ends, head."""

from __future__ import annotations

from dataclasses import replace

from nest.inputs.layers import Vision
from nest.inputs.model import Model
from nest.model.norm_linear import gemm, norm
from nest.model.operators import Layer, Operator, Traffic
from nest.model.transformer import block

TABLES = ("embedding_table", "logits")
"""Operators that hold a matrix of the vocabulary, which copies of it may share."""
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
    inner = block(model, "mtp_layer", True, model.layer(model.layers - 1), repeated=False)
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
    bias = vocab if model.head_bias else 0
    # The product is not a layer of Transformer Engine: it stays in 16 bit.
    first = [
        Operator("logits", "gemm", "column", width=vocab, depth=h, padded=True, bf16=True,
                 parameters=vocab * h + bias),
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
                            backward_elements=3 * wide, parameters=tower.hidden,
                            saved_elements=wide))
    products = _projector(model, tower, "projector")
    for number in range(tower.deepstack):
        further = _projector(model, tower, f"projector_{number + 1}")
        products += [norm(inner, f"projector_norm_{number + 1}", tower.wide), *further]
    return Layer("projector", (*ops, *products), hidden=model.hidden, tokens=tower.merged_tokens)


def _projector(model: Model, tower: Vision, name: str) -> list[Operator]:
    """Linear layers with activations between them."""
    ops: list[Operator] = []
    for depth, width in tower.projector(model.hidden):
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
