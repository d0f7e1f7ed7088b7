"""Costs of a stage, or of one chunk of an interleaved stage, from those of its layers.

The order of the layers determines how much data-parallel traffic is hidden: a gather or scatter
overlaps the compute of a neighbouring layer, the gradients of a layer are reduced during the
backwards after its own, and parameters are gathered during the forwards before its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.costs.layer import LayerCosts
from nest.inputs.job import Stack


class LayerSeconds(NamedTuple):
    """Seconds of one layer that depend on the order of layers; per micro-batch unless noted."""

    free_forward: float
    """Forward compute that may hide traffic."""
    forward: float
    """Forward, without ZeRO traffic."""
    free_backward: float
    backward: float
    gathered: float
    """ZeRO traffic, see :class:`nest.costs.zero.StateCosts`."""
    regathered: float
    scattered: float
    sync: float
    """Per step: gradient reduction."""
    gather: float
    """Per step: parameter gather after the optimizer."""


class ChunkCosts(NamedTuple):
    """Figures of consecutive layers on a device that determine the step time; seconds.

    Notes
    -----
    ZeRO-2 and ZeRO-3 traffic of a layer runs while its neighbour computes (PyTorch FSDP, arXiv:
    2304.11277, section 3.3), reductions during the backward of lower layers (arXiv:2006.15704,
    section 3.2.3), each at the share of the compute that the stack names.
    """

    forward: float
    """A forward after the device has waited for its input, exposed traffic included."""
    backward: float
    """A backward that another pass follows, likewise."""
    late: float
    """Part of ``backward``: wait for the gather of the forward that follows (ZeRO-3)."""
    late_back: float
    """The same if a backward follows; nothing follows the last backward of a step."""
    turn: float
    """Extra time of a backward right after a forward of these layers (ZeRO-3)."""
    chase: float
    """Extra time of a forward right after a backward."""
    queue_forward: float
    """Extra time of a forward right after a forward."""
    queue_backward: float
    """Extra time of a backward right after a backward."""
    trailing: float
    """ZeRO-2: scatter of the first layer's gradients, done before the next backward."""
    trails_forward: float
    """Part of that which a forward in between hides."""
    trails_backward: float
    """Part of that which the first layer of the next backward hides."""
    left: float
    """Gradient traffic after the last backward that these layers alone do not hide."""
    wait: float
    """Parameters that the first forward waits for at the start of a step."""
    update: float
    """Seconds of the optimizer."""
    tied: float
    """Exchange of gradients with other copies of a tied embedding; 0: holds no copy."""
    sync: float
    """Gradient reduction of a step, before overlap."""
    gather: float
    """Parameter all-gather of a step, before overlap."""
    scattered: float
    """Part of ``left``: gradients of the first layer (ZeRO-2 and 3)."""
    hides_sync: float
    """Gradient reduction that a backward hides if another pass precedes it."""
    hides_gather: float
    """Parameter all-gather that a forward hides."""
    largest: float
    """Longest gather of a layer's parameters for a pass (ZeRO-3)."""
    gathered: float
    """Forward gather of the first layer, during the last layer of the pass before."""
    regathered: float
    """Backward gather of the last layer, likewise."""
    below: float
    """Backward gather of the second to last layer, during the last one."""
    above: float
    """Scatter of the second layer's gradients, during the backward of the first."""
    under_first: float
    """Traffic that the backward of the first layer hides."""
    under_last: float
    """Traffic that the forward of the last layer hides."""
    begun: float
    """Gather of the second layer's parameters that the first forward does not hide."""
    third: float
    """Gather of the third layer's parameters that the second forward does not hide."""
    room: float
    """Overlap of the first two forwards, minus the gathers during them; may be negative."""
    inputs: float
    """A backward for inputs, the first part of one in two."""
    weights: float
    """The second part, for weights; exposed scatters of gradients included (ZeRO-2)."""
    trails_inputs: float
    """Part of ``trailing`` that a backward for inputs in between hides."""
    trails_weights: float
    """Part of ``trailing`` that the first layer of the next backward for weights hides."""
    hides_inputs: float
    """Gradient reduction that a backward for inputs hides."""
    hides_weights: float
    """The same of a backward for weights."""
    left_weights: float
    """As ``left``, after the last backward for weights."""
    exchanged_forward: float
    """All-to-alls of experts that another pass may hide, part of ``forward``."""
    exchanged_backward: float
    """The same, part of ``backward``."""
    busy_forward: float
    """Compute of layers with experts that may hide those of a pass beside."""
    busy_backward: float
    """The same backward."""
    alone: bool
    """There is only one layer."""
    zero: float
    """Exposed ZeRO traffic, part of ``forward``, ``backward`` and their extra times."""

    @property
    def pace(self) -> float:
        """Extra time of a micro-batch if forwards and backwards alternate."""
        trailing = max(0.0, self.trailing - self.trails_forward - self.trails_backward)
        return self.turn + self.chase + trailing

    @property
    def queue(self) -> float:
        """Extra time of a backward after a backward, including its wait for the next gather."""
        trailing = max(0.0, self.trailing - self.trails_backward)
        return self.queue_backward + self.late_back - self.late + trailing


EMPTY = ChunkCosts._make([0.0] * len(ChunkCosts._fields))._replace(alone=True)
"""A chunk without layers."""


def layer_seconds(c: LayerCosts) -> LayerSeconds:
    """Convert a layer that is priced under one configuration."""
    return LayerSeconds(*(float(column[0]) for column in (
        c.free_forward,
        c.forward + c.tp_forward + c.cp_forward + c.ep_forward + c.offload_forward
        + c.slowed_forward,
        c.free_backward,
        c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward
        + c.offload_backward + c.slowed_backward,
        c.gathered, c.regathered, c.scattered, c.sync, c.gather,
    )))


def chunk_costs(
    layers: Sequence[LayerSeconds], update: float, tied: float, stack: Stack
) -> ChunkCosts:
    """Combine layers, first to last; none take no time.

    During the forward of a layer the next layer's parameters are gathered. During its backward the
    gradients of the layer above are scattered and the parameters of the layer below are gathered.
    After a wait of the device the parameters of two layers are present; the extra time of
    back-to-back passes is separate. With ZeRO-2 the gradients of the first layer may be scattered
    during the whole next forward.

    Overlap is counted once: compute that hides ZeRO traffic hides no reduction.
    """
    if not layers:
        return EMPTY
    o, reduce, refresh = stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather
    largest = max(layer.gathered for layer in layers)
    first, last, end = layers[0], layers[-1], len(layers) - 1
    zero_forward = zero_backward = free = spare = spare_in_a_row = 0.0
    sync = gather = left = wait = 0.0
    for n, layer in enumerate(layers):
        above, inside = layers[n + 1] if n < end else None, 0 < n < end
        if above and inside:
            zero_forward += max(0.0, above.gathered - o * layer.free_forward)
        scattered = above.scattered if above else 0.0
        below = layers[n - 1].regathered if n else 0.0
        if above:
            zero_backward += max(0.0, scattered + below - o * layer.free_backward)
        # Reductions from this layer on, and the compute that hides them: the layers below.
        sync += layer.sync
        left = max(left, sync - reduce * spare)
        spare += _spare(layer, scattered + (below if n else layer.gathered), o)
        beside = scattered + (below if n else max(layer.gathered, last.regathered))
        # During the last layer the preceding backward scatters its last gradients.
        spare_in_a_row += _spare(layer, beside + (0.0 if above else first.scattered), o)
        gather += layer.gather
        wait = max(wait, gather - refresh * free)
        free += layer.free_forward
    wait += first.gathered
    if end:
        wait += max(0.0, layers[1].gathered - o * first.free_forward)
    begun, third, room = _beginning(layers, o)
    found = ChunkCosts(
        forward=sum(layer.forward for layer in layers) + zero_forward,
        backward=sum(layer.backward for layer in layers) + zero_backward,
        late=0.0, late_back=0.0, turn=0.0, chase=0.0, queue_forward=0.0, queue_backward=0.0,
        trailing=0.0 if largest else first.scattered, trails_forward=o * free,
        trails_backward=o * last.free_backward,
        left=first.scattered + left, wait=wait,
        update=update, tied=tied, sync=sync, gather=gather,
        scattered=first.scattered, hides_sync=reduce * spare_in_a_row,
        hides_gather=refresh * free, largest=largest,
        gathered=first.gathered, regathered=last.regathered,
        below=layers[-2].regathered if end else 0.0, above=layers[1].scattered if end else 0.0,
        under_first=o * first.free_backward, under_last=o * last.free_forward,
        begun=begun, third=third, room=room,
        inputs=0.0, weights=0.0, trails_inputs=0.0, trails_weights=0.0, hides_inputs=0.0,
        hides_weights=0.0, left_weights=0.0, exchanged_forward=0.0, exchanged_backward=0.0,
        busy_forward=0.0, busy_backward=0.0, alone=not end, zero=zero_forward + zero_backward,
    )
    return _in_a_row(found) if largest else found


def with_parts(
    c: ChunkCosts, layers: Sequence[LayerSeconds], weights: Sequence[float],
    exchanged: Sequence[tuple[float, float]], stack: Stack,
) -> ChunkCosts:
    """Add the figures of a backward in two parts, and of all-to-alls beside another pass.

    ``weights`` are the seconds of each layer's backward that are for weights, ``exchanged`` its
    all-to-alls of experts forward and backward. Gradients are scattered and reduced beside the
    backward for weights. What hides ZeRO traffic hides no all-to-all. Without ZeRO-3.
    """
    if not layers:
        return c
    o, reduce, share = stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_ep
    first, end = layers[0], len(layers) - 1
    inputs = seconds = sync = left = spare = hides = free = 0.0
    ahead = back = busy_ahead = busy_back = 0.0
    for n, (layer, own, both) in enumerate(zip(layers, weights, exchanged, strict=True)):
        scattered = layers[n + 1].scattered if n < end else 0.0
        part = layer._replace(free_backward=own)
        inputs += layer.backward - own
        free += max(0.0, layer.free_backward - own)
        seconds += own + (max(0.0, scattered - o * own) if n < end else 0.0)
        sync += layer.sync
        left = max(left, sync - reduce * spare)
        spare += _spare(part, scattered, o)
        hides += _spare(part, scattered + (0.0 if n < end else first.scattered), o)
        if both[0] > 0.0:
            ahead, back = ahead + share * both[0], back + share * both[1]
            busy_ahead += layer.free_forward
            busy_back += _spare(layer, scattered, o)
    return c._replace(
        inputs=inputs, weights=seconds, trails_inputs=o * free, trails_weights=o * weights[-1],
        hides_inputs=reduce * free, hides_weights=reduce * hides,
        left_weights=first.scattered + left, exchanged_forward=ahead, exchanged_backward=back,
        busy_forward=busy_ahead, busy_backward=busy_back)


def _beginning(layers: Sequence[LayerSeconds], o: float) -> tuple[float, float, float]:
    """``begun``, ``third`` and ``room`` of :class:`ChunkCosts`."""
    if len(layers) == 1:
        return 0.0, 0.0, 0.0
    under = o * layers[0].free_forward
    begun, room = max(0.0, layers[1].gathered - under), under - layers[1].gathered
    if len(layers) == 2:
        return begun, 0.0, room
    under = o * layers[1].free_forward
    return begun, max(0.0, layers[2].gathered - under), room + under - layers[2].gathered


def _in_a_row(c: ChunkCosts) -> ChunkCosts:
    """Add the extra time of back-to-back passes through these layers.

    All traffic of a single layer overlaps two passes, or one if backwards follow each other.
    """
    late, turn, chase, queue = (
        delayed(c, c.gathered), longer(c, 0, c, 1), longer(c, 1, c, 0), longer(c, 1, c, 1))
    if c.alone:
        back = c.regathered + c.scattered - c.under_first
        queue, chase = max(queue, back), max(chase, back + c.gathered - c.under_last - turn)
    return c._replace(
        backward=c.backward + late, late=late, late_back=delayed(c, c.regathered), turn=turn,
        chase=chase, queue_forward=longer(c, 0, c, 0), queue_backward=queue,
        zero=c.zero + late + turn + chase)


def delayed(c: ChunkCosts, gathered: float) -> float:
    """Wait of a backward's end for the first ``gathered`` seconds of the next pass.

    A backward of two or more layers ends when the second layer's gradients are scattered, and
    before that the network gathers the first parameters of the next pass.
    """
    if c.alone:
        return 0.0
    return max(0.0, c.above + gathered - c.under_first) - max(0.0, c.above - c.under_first)


def longer(before: ChunkCosts, way_before: int, c: ChunkCosts, way: int) -> float:
    """Extra seconds of a pass through ``c`` right after one through ``before`` (ZeRO-3).

    Ways are 0 forward, 1 backward. After a wait the parameters of two layers would be present. Here
    the first layer's parameters are gathered during the last layer of the pass before, and the
    second layer's during the first. The last gradients of a backward are scattered after that; a
    single layer leaves them to the passes that follow. Compute hides traffic only in the pass that
    it belongs to, so that longer compute never shortens back-to-back passes.
    """
    first = c.regathered if way else c.gathered
    if not way_before:
        own = max(0.0, c.below - c.trails_backward) if way else c.begun
        return max(0.0, first - before.under_last) + own
    # A backward of two or more layers has waited for the first parameters: ``delayed``.
    shown = max(0.0, first - before.under_first) if before.alone else 0.0
    if c.alone:
        return shown
    if way:
        return shown + max(0.0, c.below + before.scattered - c.trails_backward)
    return shown + max(c.begun, before.scattered - c.room - c.third)


def _spare(layer: LayerSeconds, beside: float, overlap: float) -> float:
    """Backward compute left after hiding ``beside`` seconds of ZeRO traffic."""
    if overlap:
        return max(0.0, layer.free_backward - beside / overlap)
    return 0.0 if beside else layer.free_backward


class Hop(NamedTuple):
    """Handing a micro-batch to the next stage, and its gradient back; seconds."""

    both: float
    """Both directions, minus what compute hides."""
    gap: float
    """Seconds that a message occupies its lanes, one way: the least distance of two arrivals."""


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
