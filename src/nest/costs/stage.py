"""Costs of a stage, or of one chunk of an interleaved stage, from those of its layers.

The order of the layers determines how much data-parallel traffic is hidden: a gather or scatter
overlaps the compute of a neighbouring layer, the gradients of a layer are reduced during the
backwards after its own, and parameters are gathered during the forwards before its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from nest.costs.layer import LayerCosts
from nest.inputs.job import Stack
from nest.schedules import chunk
from nest.schedules.chunk import EMPTY, ChunkCosts, LayerSeconds, Parts
from nest.schedules.traits import Hop


def layer_seconds(c: LayerCosts) -> LayerSeconds:
    """Convert a layer that is priced under one configuration."""
    return LayerSeconds(*(float(column[0]) for column in (
        c.free_forward,
        c.forward + c.tp_forward + c.cp_forward + c.ep_forward + c.offload_forward
        + c.slowed_forward,
        c.free_backward,
        c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward
        + c.offload_backward + c.slowed_backward,
        c.gathered, c.regathered, c.scattered, c.sync, c.gather, c.maxima,
    )))


def chunk_costs(
    layers: Sequence[LayerSeconds], update: float, tied: float, stack: Stack
) -> ChunkCosts:
    """Combine layers, first to last (:func:`nest.schedules.chunk.chunk_costs`); none take no time.

    ``update`` and ``tied`` are seconds of the optimizer, and of exchanges with other copies of a
    tied embedding.
    """
    if not layers:
        return EMPTY
    out = SimpleNamespace(**EMPTY._asdict())
    out.update, out.tied = update, tied
    count = len(layers)
    chunk.chunk_costs([layers], range(count), [0] * count, 0, count, _overlaps(stack), out)
    return _complete(out)


def with_parts(
    c: ChunkCosts, layers: Sequence[LayerSeconds], weights: Sequence[float],
    exchanged: Sequence[tuple[float, float]], stack: Stack,
) -> ChunkCosts:
    """Add :func:`nest.schedules.chunk.add_parts`.

    ``weights`` are the seconds of each layer's backward that are for weights, ``exchanged`` its
    all-to-alls of experts forward and backward, of which the stack hides a share.
    """
    if not layers:
        return c
    out, count, share = SimpleNamespace(**c._asdict()), len(layers), stack.overlap_ep
    apart = [Parts(share * both[0], share * both[1], own)
             for own, both in zip(weights, exchanged, strict=True)]
    chunk.add_parts([layers], [apart], range(count), [0] * count, 0, count, _overlaps(stack), out)
    return _complete(out)


def _overlaps(stack: Stack) -> tuple[float, float, float]:
    """Shares of computing that hide ZeRO traffic, reductions and gathers of a step."""
    return stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather


def _complete(out: SimpleNamespace) -> ChunkCosts:
    """Figures that a form has filled in."""
    return ChunkCosts._make(getattr(out, name) for name in ChunkCosts._fields)


def hop(
    total_bytes: float, lanes: float, per_byte: float, latency: float, stack: Stack
) -> Hop:
    """Hand-over of ``total_bytes`` per direction of the whole super-pipeline.

    The side with fewer shards sets the number of lanes: tp of them with sequence parallelism, or if
    the stack scatters and gathers (arXiv:2104.04473, section 4.1). The stack states the share that
    compute hides.
    """
    gap = total_bytes / lanes * per_byte
    return Hop(2.0 * (1.0 - stack.overlap_p2p) * (gap + latency), gap)
