"""A stage, or one of its chunks where they interleave, from the costs of its layers.

What of the data-parallel traffic computing hides follows from the order of the layers: a gather or
scatter runs beside the computing of a neighbour, the gradients of a layer are reduced beside those
that go backward after it, and parameters are gathered beside those that go forward before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.costs.layer import LayerCosts
from nest.describe.job import Stack


class LayerSeconds(NamedTuple):
    """What the order of layers makes a difference to: seconds of one layer, per micro-batch."""

    free_forward: float
    """Computing forward that may hide traffic."""
    forward: float
    """All of the forward but ZeRO traffic."""
    free_backward: float
    backward: float
    gathered: float
    """ZeRO traffic, see :class:`nest.costs.layer.StateCosts`."""
    regathered: float
    scattered: float
    sync: float
    """Per step: gradient reduction."""
    gather: float
    """Per step: parameters after the optimizer."""


class ChunkCosts(NamedTuple):
    """What the step time sees of consecutive layers on a device; seconds.

    Notes
    -----
    ZeRO-2 and ZeRO-3 traffic of a layer runs while its neighbour computes (PyTorch FSDP, arXiv:
    2304.11277, section 3.3), reductions while lower layers go backward (arXiv:2006.15704, section
    3.2.3), each at the share of the computing that the stack names.
    """

    forward: float
    """A micro-batch going forward after the device has waited for it, exposed traffic included."""
    backward: float
    """The same going backward."""
    turn: float
    """What the backward takes longer where it follows the forward at once: on the last stage."""
    chase_forward: float
    """What a forward takes longer where passes follow each other at once (ZeRO-3)."""
    chase_backward: float
    """The same of a backward; both hold ``turn``."""
    trailing: float
    """ZeRO-2: gradients of the first layer, scattered until the next backward needs the room."""
    trails_forward: float
    """How much of that a forward in between hides."""
    trails_backward: float
    """And how much the first layer of the next backward."""
    left: float
    """Gradient traffic after the last backward, with nothing but these layers to hide under."""
    wait: float
    """Parameters that the first forward waits for at the start of a step."""
    update: float
    """Optimizer."""
    tied: float
    """Exchange of gradients with other copies of a tied embedding; 0: holds no copy."""
    sync: float
    """Gradient reduction of a step, before anything hides it."""
    gather: float
    """Parameter all-gather of a step, before anything hides it."""
    scattered: float
    """Part of ``left``: gradients of the first layer (ZeRO-2 and 3)."""
    hides_sync: float
    """Gradient reduction that a micro-batch going backward hides."""
    hides_gather: float
    """Parameter all-gather that a micro-batch going forward hides."""
    zero: float
    """Part of ``forward``, ``backward`` and what they take longer: exposed ZeRO traffic."""

    @property
    def pace(self) -> float:
        """What a micro-batch takes longer where a forward and a backward run in turn."""
        trailing = max(0.0, self.trailing - self.trails_forward - self.trails_backward)
        return self.chase_forward + self.chase_backward + trailing


def layer_seconds(c: LayerCosts) -> LayerSeconds:
    """The same figures of a layer that is priced under one configuration."""
    return LayerSeconds(*(float(column[0]) for column in (
        c.free_forward, c.forward + c.tp_forward + c.cp_forward + c.ep_forward,
        c.free_backward,
        c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward,
        c.gathered, c.regathered, c.scattered, c.sync, c.gather,
    )))


def chunk_costs(
    layers: Sequence[LayerSeconds], update: float, tied: float, stack: Stack
) -> ChunkCosts:
    """Put layers together, first to last; at least one.

    Beside the forward of a layer the next one's parameters are gathered; beside its backward the
    gradients of the layer above are scattered and the parameters of the one below gathered. After
    the last layer forward comes its backward, and after the first one backward the next
    micro-batch, unless the device waits in between: then the parameters of two layers are there.
    With ZeRO-2 the gradients of the first layer have all of the next forward.

    What is hidden is counted once: computing that hides ZeRO traffic hides no reduction.
    """
    o, reduce, refresh = stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather
    gathers = any(layer.gathered for layer in layers)
    first, last, end = layers[0], layers[-1], len(layers) - 1
    zero_forward = zero_backward = chase_forward = chase_backward = turn = free = spare = 0.0
    sync = gather = left = wait = 0.0
    for n, layer in enumerate(layers):
        above, inside = layers[n + 1] if n < end else None, 0 < n < end
        x, y = layer.free_forward, layer.free_backward
        beside = above.gathered if above else layer.regathered
        waited = max(0.0, beside - o * x) if inside else 0.0
        turn += 0.0 if above else max(0.0, beside - o * x)
        beside += layer.scattered if gathers and n == 0 else 0.0
        zero_forward += waited
        chase_forward += max(0.0, beside - o * x) - waited
        scattered = above.scattered if above else 0.0
        beside = scattered + (layers[n - 1].regathered if n else layer.gathered)
        waited = max(0.0, (beside if inside else scattered) - o * y)
        turn += max(0.0, beside - o * y) if n and not above else 0.0
        zero_backward += waited
        chase_backward += max(0.0, beside - o * y) - waited
        # All that is reduced from this layer's gradients on, and what hides it: those below.
        sync += layer.sync
        left = max(left, sync - reduce * spare)
        spare += _spare(layer, beside, o)
        gather += layer.gather
        wait = max(wait, gather - refresh * free)
        free += x
    wait += first.gathered
    if end:
        wait += max(0.0, layers[1].gathered - o * first.free_forward)
    trailing = 0.0 if gathers else first.scattered
    return ChunkCosts(
        forward=sum(layer.forward for layer in layers) + zero_forward,
        backward=sum(layer.backward for layer in layers) + zero_backward,
        turn=turn, chase_forward=chase_forward, chase_backward=chase_backward,
        trailing=trailing, trails_forward=o * free,
        trails_backward=o * last.free_backward,
        left=first.scattered + left, wait=wait,
        update=update, tied=tied, sync=sync, gather=gather,
        scattered=first.scattered,
        hides_sync=reduce * (spare - _spare(last, 0.0, o) + _spare(last, trailing, o)),
        hides_gather=refresh * free,
        zero=zero_forward + zero_backward + chase_forward + chase_backward,
    )


def _spare(layer: LayerSeconds, beside: float, overlap: float) -> float:
    """Computing backward that hides no ZeRO traffic, of which ``beside`` seconds run meanwhile."""
    return max(0.0, layer.free_backward - beside / overlap) if overlap else layer.free_backward


class Hop(NamedTuple):
    """Handing a micro-batch to the next stage, and its gradient back; seconds."""

    both: float
    """There and back, less what compute hides."""
    gap: float
    """How long a message fills its lanes, one way: no two arrive closer to each other."""


def hop(
    total_bytes: float, lanes: float, per_byte: float, latency: float, stack: Stack
) -> Hop:
    """Hand-over of ``total_bytes`` a direction of the whole super-pipeline.

    It travels over as many lanes as the side with fewer shards has: with sequence parallelism, or
    where the stack scatters and gathers (arXiv:2104.04473, section 4.1), tp of them. The stack
    says which share compute hides.
    """
    gap = total_bytes / lanes * per_byte
    return Hop(2.0 * (1.0 - stack.overlap_p2p) * (gap + latency), gap)
