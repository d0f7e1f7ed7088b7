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
    """The same going backward, with another pass behind it."""
    late: float
    """Part of ``backward``: its end waits for what the forward behind it gathers (ZeRO-3)."""
    late_back: float
    """The same where a backward is behind it; behind the last backward of a step nothing is."""
    turn: float
    """What a backward takes longer right behind a forward of these layers (ZeRO-3)."""
    chase: float
    """What a forward takes longer right behind a backward."""
    queue_forward: float
    """What a forward takes longer right behind a forward."""
    queue_backward: float
    """What a backward takes longer right behind a backward."""
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
    """Gradient reduction that a micro-batch going backward hides, another one in front of it."""
    hides_gather: float
    """Parameter all-gather that a micro-batch going forward hides."""
    gathers: bool
    """Layers gather parameters for every pass (ZeRO-3)."""
    alone: bool
    """There is but one layer."""
    gathered: float
    """What the first layer gathers forward, beside the last layer of the pass in front."""
    regathered: float
    """What the last layer gathers backward, likewise."""
    below: float
    """What the last layer but one gathers backward, beside the last one."""
    above: float
    """Gradients of the second layer, scattered beside the backward of the first."""
    under_first: float
    """How much traffic the backward of the first layer hides."""
    under_last: float
    """How much the forward of the last one hides."""
    begun: float
    """What the second layer's parameters take longer than the first forward hides."""
    third: float
    """What those of the third take longer than the second forward hides, part of ``forward``."""
    room: float
    """What the first two layers hide forward, less what is gathered there; may be below 0."""
    zero: float
    """Part of ``forward``, ``backward`` and what they take longer: exposed ZeRO traffic."""

    @property
    def pace(self) -> float:
        """What a micro-batch takes longer where a forward and a backward run in turn."""
        trailing = max(0.0, self.trailing - self.trails_forward - self.trails_backward)
        return self.turn + self.chase + trailing

    @property
    def queue(self) -> float:
        """What a backward behind a backward takes longer; it ends with what that gathers."""
        trailing = max(0.0, self.trailing - self.trails_backward)
        return self.queue_backward + self.late_back - self.late + trailing


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
    gradients of the layer above are scattered and the parameters of the one below gathered. Where
    the device has waited, the parameters of two layers are there; what passes take longer where
    they follow each other is apart. With ZeRO-2 the gradients of the first layer have all of the
    next forward.

    What is hidden is counted once: computing that hides ZeRO traffic hides no reduction.
    """
    o, reduce, refresh = stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather
    gathers = any(layer.gathered for layer in layers)
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
        # All that is reduced from this layer's gradients on, and what hides it: those below.
        sync += layer.sync
        left = max(left, sync - reduce * spare)
        spare += _spare(layer, scattered + (below if n else layer.gathered), o)
        beside = scattered + (below if n else max(layer.gathered, last.regathered))
        # Beside the last layer the backward in front scatters its last gradients.
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
        trailing=0.0 if gathers else first.scattered, trails_forward=o * free,
        trails_backward=o * last.free_backward,
        left=first.scattered + left, wait=wait,
        update=update, tied=tied, sync=sync, gather=gather,
        scattered=first.scattered, hides_sync=reduce * spare_in_a_row,
        hides_gather=refresh * free, gathers=gathers, alone=not end,
        gathered=first.gathered, regathered=last.regathered,
        below=layers[-2].regathered if end else 0.0, above=layers[1].scattered if end else 0.0,
        under_first=o * first.free_backward, under_last=o * last.free_forward,
        begun=begun, third=third, room=room, zero=zero_forward + zero_backward,
    )
    return _in_a_row(found) if gathers else found


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
    """The same with what passes through these layers take longer where they follow each other.

    All traffic of a single layer runs beside two passes, or beside one where backwards follow.
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
    """What the end of a backward waits for the first ``gathered`` seconds of the next pass.

    A backward of two layers or more ends when the second layer's gradients are scattered, and in
    front of them the network gathers what the next pass begins with.
    """
    if c.alone:
        return 0.0
    return max(0.0, c.above + gathered - c.under_first) - max(0.0, c.above - c.under_first)


def longer(before: ChunkCosts, way_before: int, c: ChunkCosts, way: int) -> float:
    """What a pass through ``c`` takes longer right behind one through ``before`` (ZeRO-3); seconds.

    Ways are 0 forward, 1 backward. Had the device waited, parameters of two layers would be there.
    Beside the last layer of the pass in front the first one's are gathered, beside that one the
    second's. The last gradients of a backward are scattered behind that; a single layer leaves
    them to the passes that follow. Computing hides traffic beside the pass that it is part of, so
    that none that grows shortens a row of passes.
    """
    first = c.regathered if way else c.gathered
    if not way_before:
        own = max(0.0, c.below - c.trails_backward) if way else c.begun
        return max(0.0, first - before.under_last) + own
    # The end of a backward of two layers or more has waited for the first ones: ``delayed``.
    shown = max(0.0, first - before.under_first) if before.alone else 0.0
    if c.alone:
        return shown
    if way:
        return shown + max(0.0, c.below + before.scattered - c.trails_backward)
    return shown + max(c.begun, before.scattered - c.room - c.third)


def _spare(layer: LayerSeconds, beside: float, overlap: float) -> float:
    """Computing backward that hides no ZeRO traffic, of which ``beside`` seconds run meanwhile."""
    if overlap:
        return max(0.0, layer.free_backward - beside / overlap)
    return 0.0 if beside else layer.free_backward


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
