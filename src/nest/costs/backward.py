"""A backward in two parts: for inputs, and later for weights (arXiv:2401.10241, section 1).

Of a matrix product one of two equal products is for weights; attention and element-wise operators
have none, or next to none. Between the parts a device keeps what the second one needs: inputs of
matrix products, which recompute has made by then, and the gradients of their outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest.costs.activations import gathered_inputs
from nest.costs.choices import Body, StageSetting
from nest.costs.compute import Array
from nest.costs.operators import (
    product_shape,
    rows_of,
    share_of,
    tokens_of,
    weight_seconds,
)
from nest.model import Layer


class BackwardParts(NamedTuple):
    """Of a layer and micro-batch, beside :class:`nest.costs.layer.BodyCosts`; (C,), or (C, R)."""

    weights: Array
    """Seconds of ``backward`` that are for weights."""
    kept: Array
    """Bytes that the backward for inputs leaves to the one for weights."""


def parts(layer: Layer, c: Body, s: StageSetting, backward: Array,
          activations: Array) -> BackwardParts:
    """Price the second part of a backward, given all of it, under each configuration.

    Of a measured layer half of the backward is assumed to be for weights, as of matrix products,
    and all activations to be kept.
    """
    if layer.measured:
        return BackwardParts(backward / 2.0, activations)
    seconds, kept = np.zeros(len(c.tp)), np.zeros(len(c.tp))
    tokens, rest = tokens_of(layer, c, s)
    machine = s.machine
    element, narrow = machine.element, machine.format.narrow and machine.stack.fp8_inputs
    kept = kept + gathered_inputs(layer, c, s)
    for op in layer.operators:
        rows = rows_of(op, layer, c, s, tokens, rest)
        ranks, padding = share_of(op, c.tp, c.etp)
        if op.product_input:
            size = machine.operand if narrow and op.cast_elements is not None else element
            kept = kept + rows / ranks * padding * op.saved_elements * size
        if op.type == "gemm":
            count, each, width, _ = product_shape(op, layer, c, rows, ranks, padding)
            seconds = seconds + weight_seconds(op, layer, c, s, rows, ranks, padding)
            kept = kept + count * each * width * element
    if backward.ndim == 2:  # no recompute policy changes them
        return BackwardParts(seconds[:, None], kept[:, None])
    return BackwardParts(seconds, kept)
