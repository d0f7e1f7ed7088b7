"""Bytes of activations that a layer keeps for its backward pass, per micro-batch; and a backward in
two parts: for inputs, and later for weights (arXiv:2401.10241, section 1).

Of a matrix product one of two equal products is for weights; attention and element-wise operators
have none, or next to none. Between the parts a device keeps what the second one needs: inputs of
matrix products, which recompute has made by then, and the gradients of their outputs.

Arrays have the shape (C,): one value for each configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from nest.costs.choices import CORE_ATTN, NORM, Body, StageSetting
from nest.costs.compute import Array
from nest.costs.loss import FORMS, parts
from nest.costs.operators import (
    OperatorShare,
    keys_bytes,
    parts_of,
    positions_of,
    product_shape,
    shares,
    tokens_of,
    traffic_tokens,
    weight_seconds,
)
from nest.model import Layer, Operator

Bytes = dict[int, Array]
"""By the modules of recompute that drop them."""
FP32 = 4.0
"""Bytes of an element of a norm's input, which is squared in fp32."""


def saved_bytes(
    layer: Layer, c: Body, s: StageSetting, every: Iterable[OperatorShare],
) -> tuple[Bytes, Array, Array, Bytes]:
    """Bytes kept for the backward pass; bytes of the layer's input; extra bytes of the loss while
    it runs; and what of the kept bytes belongs to modules that move to the host.

    The attention core keeps softmax statistics with flash kernels, else the scores, 5 bytes
    per head, query and key, and each dropout outside of it a mask of 1 byte an element
    (arXiv:2205.05198, section 4.1). An RMSNorm of elementary operations keeps its input in fp32
    and, to weigh it, the normed one; a gated activation function the activated half (LlamaRMSNorm
    and LlamaMLP of transformers). Where cp gathers keys and values, these and their gradients
    take bytes of all positions while a layer goes backward
    (:func:`nest.costs.traffic.gathered_seconds`).
    """
    tokens, rest = tokens_of(layer, c, s)
    element, stack = s.machine.element, s.machine.stack
    saved: Bytes = {}
    moved: Bytes = {}
    live = np.zeros(len(c.tp))
    for op, seen, ranks, padding in every:
        rows = seen / ranks
        each = op.saved_elements * element
        if s.machine.format.narrow and stack.fp8_inputs and op.cast_elements is not None:
            each = op.cast_elements * s.machine.operand + op.wide_elements * element
        if op.elementary in stack.elementary:
            each += op.between_elements * (FP32 if op.elementary == "norm" else element)
        if op.loss:
            # The stack's figures are those of 16-bit training.
            logits = rows * padding * op.width * element / 2.0
            form = FORMS[stack.loss]
            each = form.keeps * stack.loss_kept * op.width * element / 2.0
            peak = np.where(ranks > 1, stack.loss_peak_split, stack.loss_peak)
            at_once = parts(stack, seen, op.width * padding / ranks, float(layer.hidden))
            running = (peak - form.keeps * stack.loss_kept) * logits / at_once * (not form.again)
            live = np.maximum(live, running + form.gradient * seen * layer.hidden)
        again = op.offloaded == "attn_proj" and stack.saves_outputs
        held = {bits: share * rows * padding * each
                for bits, share in parts_of(op, (*op.dropped, *["core_attn"] * again), s)}
        for bits, size in held.items() if op.offloaded in s.away.modules else ():
            moved[bits] = moved.get(bits, 0.0) + size
        if stack.dropout and op.masked_elements:
            held[0] = held.get(0, 0.0) + rows * op.masked_elements
        if op.type == "attention":
            scores = 4.0 if stack.flash_attention else (
                5.0 * (op.positions or positions_of(layer, s)))
            held[CORE_ATTN] = held.get(CORE_ATTN, 0.0) + rows * scores * op.heads
            if c.gather.any():
                held[CORE_ATTN | NORM], running = gathered_bytes(op, layer, c, s)
                live = np.maximum(live, running)
        for bits, size in held.items():
            saved[bits] = saved.get(bits, 0.0) + size
    saved[NORM] = saved.get(NORM, 0.0) + gathered_inputs(layer, c, s)
    held_input = tokens / c.tp if stack.split_inputs else rest
    return saved, held_input * layer.hidden * layer.streams * element, live, moved


def gathered_inputs(layer: Layer, c: Body, s: StageSetting) -> Array:
    """Bytes that the inputs of products take besides each rank's share, where they are kept as
    tensor parallelism has gathered them.

    DTensor redistributes the input before the product, whose autograd node keeps it
    (torch==2.13.0 torch/distributed/tensor/parallel/style.py:116; measured: docs/accuracy.md, "One
    rank on one GPU").
    """
    if not s.machine.stack.keeps_gathered:
        return np.zeros(len(c.tp))
    gathered = sum(t.kept * t.forward_gathers * traffic_tokens(t, layer, c, s)
                   for t in (layer.traffic, layer.cross_traffic) if t is not None)
    narrow = s.machine.format.narrow and s.machine.stack.fp8_inputs and layer.checkpointed
    size = s.machine.operand if narrow else s.machine.element
    return gathered * c.sp * (1.0 - 1.0 / c.tp) * layer.hidden * size


def gathered_bytes(op: Operator, layer: Layer, c: Body, s: StageSetting) -> tuple[Array, Array]:
    """Bytes of gathered keys and values that are kept for the backward pass, and bytes of those
    and of their gradients that are there besides while attention goes backward.

    See :func:`nest.costs.traffic.gathered_seconds`.
    """
    every: Array = np.where(c.gather, keys_bytes(op, layer, c, s), 0.0)
    if s.machine.stack.keeps_gathered:
        return every * (1.0 - 1.0 / c.cp), every
    return 0.0 * every, 2.0 * every


def measured_bytes(layer: Layer, c: Body) -> tuple[Bytes, Array, Array, Bytes]:
    """Measured bytes as :func:`saved_bytes`; the last are temporary bytes within the layer."""
    assert layer.output_bytes is not None
    held = [(layer.measured[int(t)].activation_bytes, layer.measured[int(t)].work_bytes)
            for t in c.tp]
    saved, work = c.samples * np.array(held, dtype=np.float64).T
    return {0: saved}, np.minimum(c.samples * layer.output_bytes, saved), work, {}


class BackwardParts(NamedTuple):
    """Of a layer and micro-batch, beside :class:`nest.costs.layer.BodyCosts`; (C,), or (C, R)."""

    weights: Array
    """Seconds of ``backward`` that are for weights."""
    kept: Array
    """Bytes that the backward for inputs leaves to the one for weights."""


def backward_parts(layer: Layer, c: Body, s: StageSetting, backward: Array,
          activations: Array) -> BackwardParts:
    """Price the second part of a backward, given all of it, under each configuration.

    Of a measured layer half of the backward is assumed to be for weights, as of matrix products,
    and all activations to be kept.
    """
    if layer.measured:
        return BackwardParts(backward / 2.0, activations)
    if not layer.passes:
        return BackwardParts(0.0 * backward, 0.0 * activations)
    seconds, kept = np.zeros(len(c.tp)), np.zeros(len(c.tp))
    machine = s.machine
    element, narrow = machine.element, machine.format.narrow and machine.stack.fp8_inputs
    kept = kept + gathered_inputs(layer, c, s)
    for op, rows, ranks, padding in shares(layer, c, s):
        if op.product_input:
            size = machine.operand if narrow and op.cast_elements is not None else element
            kept = kept + rows / ranks * padding * op.saved_elements * size
        if op.type == "gemm" and not op.fixed:
            count, each, width, _ = product_shape(op, layer, c, rows, ranks, padding)
            seconds = seconds + weight_seconds(op, layer, c, s, rows, ranks, padding)
            kept = kept + count * each * width * element
    if backward.ndim == 2:  # no recompute policy changes them
        return BackwardParts(seconds[:, None], kept[:, None])
    return BackwardParts(seconds, kept)
