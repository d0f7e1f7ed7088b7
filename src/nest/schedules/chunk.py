"""Consecutive layers on a device: their figures, and what passes take longer behind each other.

What is filled here (``out``) is a record with the fields of :class:`ChunkCosts`: Python gives an
object that has them as attributes, a kernel a row of an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# Columns of ``nest.records.tables.Tables.state``: bytes of buffers, bytes of the state, and behind
# them seconds that computing loses beside the traffic.
STATE_BUFFERS, STATE_RESIDENT, STATE_SLOWED = 5, 8, slice(9, 11)


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
    maxima: float = 0.0
    """Of each pass of the layers of a device that this one begins, see ``StateCosts``."""


class Parts(NamedTuple):
    """Of a layer, for a backward in two parts, and for passes beside each other."""

    exchanged_forward: float
    """All-to-alls of experts that a pass beside may hide; seconds."""
    exchanged_backward: float
    weights: float
    """Seconds of the backward that are for weights."""
    kept_back: float = 0.0
    """Bytes that are kept for it."""


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


def empty(c: ChunkCosts) -> bool:
    """Whether the chunk has no layers: it hands over what arrives, and uses no time or traffic."""
    return bool(c.forward == 0.0 and c.backward == 0.0 and not (
        c.gathered or c.regathered or c.scattered))


def remains(free: float, beside: float, overlap: float) -> float:
    """Of ``free`` seconds of computing what hides no ``beside`` seconds of ZeRO traffic."""
    if beside <= 0.0:
        return free
    return max(0.0, free - beside / overlap) if overlap > 0.0 else 0.0


def append(
    before: Any, layer: LayerSeconds, below: LayerSeconds, lower: LayerSeconds, count: int,
    overlaps: Sequence[float], out: Any,
) -> None:
    """Fill ``out`` with the figures of the ``count`` layers of ``before`` and one behind them.

    ``below`` is the last of these and ``lower`` the one in front of it, if there are so many;
    before the first layer all figures are 0. The traffic beside the last layer depends on the next
    one, or on what :func:`close` adds. ``balance`` and ``start`` are what this layer leaves of
    reductions and gathers, had it the longest way; ``left`` and ``wait`` the most of any layer.

    Overlap is counted once: computing that hides ZeRO traffic hides no reduction.
    """
    o, reduce, refresh = overlaps[0], overlaps[1], overlaps[2]
    forward = backward = hides = covers = 0.0
    hides_sync, once = before.hides_sync, layer.maxima
    if count > 0:
        once = 0.0
        covers, beside = below.free_forward, layer.scattered
        if count == 1:
            backward = max(0.0, beside - o * below.free_backward)
            hides = reduce * remains(below.free_backward, beside + below.gathered, o)
        else:
            forward = max(0.0, layer.gathered - o * covers)
            beside += lower.regathered
            backward = max(0.0, beside - o * below.free_backward)
            hides = reduce * remains(below.free_backward, beside, o)
            hides_sync += hides
    out.zero = before.zero + forward + backward
    out.balance = before.balance - hides + layer.sync
    out.start = before.start - refresh * covers + layer.gather
    out.left, out.wait = max(before.left, out.balance), max(before.wait, out.start)
    out.forward = before.forward + forward + layer.forward + once
    out.backward = before.backward + backward + layer.backward + once
    out.hides_sync, out.free_forward = hides_sync, before.free_forward + layer.free_forward
    out.largest = max(before.largest, layer.gathered)


def close(
    first: LayerSeconds, second: LayerSeconds, third: LayerSeconds, below: LayerSeconds,
    last: LayerSeconds, count: int, overlaps: Sequence[float], out: Any,
) -> None:
    """Complete the figures of ``count`` layers, given the first three and the last two.

    Where there are fewer, any layer stands for what is missing. After a wait of the device the
    parameters of two layers are present; what passes take longer in a row is separate. With ZeRO-2
    the gradients of the first layer may be scattered during the whole next forward, with ZeRO-3 all
    traffic of a single layer overlaps two passes, or one if backwards follow each other.
    """
    o, reduce, refresh = overlaps[0], overlaps[1], overlaps[2]
    under, y = o * first.free_forward, o * first.free_backward
    out.alone = count < 2
    out.gathered, out.regathered, out.scattered = first.gathered, last.regathered, first.scattered
    out.under_first, out.under_last = y, o * last.free_forward
    out.trails_forward, out.trails_backward = o * out.free_forward, o * last.free_backward
    out.hides_gather = refresh * out.free_forward
    out.left += first.scattered
    out.wait += first.gathered
    out.begun = out.third = out.room = out.below = out.above = 0.0
    beside = max(first.gathered, last.regathered)
    if count > 1:
        out.below, out.above, out.room = below.regathered, second.scattered, under - second.gathered
        out.begun = max(0.0, -out.room)
        out.wait += max(0.0, second.gathered - under)
        beside += second.scattered
        # During the last layer the preceding backward scatters its last gradients.
        out.hides_sync += reduce * remains(
            last.free_backward, below.regathered + first.scattered, o)
    else:
        beside += first.scattered
    out.hides_sync += reduce * remains(first.free_backward, beside, o)
    if count > 2:
        under = o * second.free_forward
        out.third = max(0.0, third.gathered - under)
        out.room += under - third.gathered
    out.late = out.late_back = out.turn = out.chase = 0.0
    out.queue_forward = out.queue_backward = out.trailing = 0.0
    if out.largest == 0.0:
        out.trailing = first.scattered
        return
    out.late, out.late_back = delayed(out, out.gathered), delayed(out, out.regathered)
    out.backward += out.late
    out.turn, out.chase = longer(out, 0, out, 1), longer(out, 1, out, 0)
    out.queue_forward, out.queue_backward = longer(out, 0, out, 0), longer(out, 1, out, 1)
    if out.alone:
        traffic = out.regathered + out.scattered - y
        out.queue_backward = max(out.queue_backward, traffic)
        out.chase = max(out.chase, traffic + out.gathered - out.under_last - out.turn)
    out.zero += out.late + out.turn + out.chase


def chunk_costs(
    layers: Sequence[Sequence[LayerSeconds]], kinds: Sequence[int], again: Sequence[int],
    start: int, stop: int, overlaps: Sequence[float], out: Any,
) -> None:
    """Fill ``out`` with layers ``start`` to ``stop`` - 1, one at the least.

    ``kinds`` and ``again`` have the kind and the recompute policy of each, ``layers`` the seconds
    of a kind under a policy. The optimizer, tied embeddings and :func:`add_parts` are left out.
    """
    out.forward = out.backward = out.zero = out.hides_sync = out.balance = out.start = 0.0
    out.left = out.wait = out.free_forward = out.largest = out.sync = out.gather = 0.0
    first = lower = below = layer = layers[again[start]][kinds[start]]
    for n in range(start, stop):
        lower, below, layer = below, layer, layers[again[n]][kinds[n]]
        append(out, layer, below, lower, n - start, overlaps, out)
        out.sync += layer.sync
        out.gather += layer.gather
    second = third = first
    if stop > start + 1:
        second = layers[again[start + 1]][kinds[start + 1]]
    if stop > start + 2:
        third = layers[again[start + 2]][kinds[start + 2]]
    close(first, second, third, below, layer, stop - start, overlaps, out)


def add_parts(
    layers: Sequence[Sequence[LayerSeconds]], apart: Sequence[Sequence[Parts]],
    kinds: Sequence[int], again: Sequence[int], start: int, stop: int, overlaps: Sequence[float],
    out: Any,
) -> None:
    """Add the figures of a backward in two parts, and of all-to-alls beside another pass.

    Gradients are scattered and reduced beside the backward for weights. What hides ZeRO traffic
    hides no all-to-all. Without ZeRO-3.
    """
    o, reduce, end, left = overlaps[0], overlaps[1], stop - 1, 0.0
    first, scattered = layers[again[start]][kinds[start]].scattered, 0.0
    out.inputs = layers[again[start]][kinds[start]].maxima
    out.weights = out.trails_inputs = out.hides_inputs = out.hides_weights = 0.0
    out.exchanged_forward = out.exchanged_backward = out.busy_forward = out.busy_backward = 0.0
    for n in range(end, start - 1, -1):
        layer, part = layers[again[n]][kinds[n]], apart[again[n]][kinds[n]]
        own = part.weights
        free = max(0.0, layer.free_backward - own)
        out.inputs += layer.backward - own
        out.weights += own + (max(0.0, scattered - o * own) if n < end else 0.0)
        out.trails_inputs += o * free
        out.hides_inputs += reduce * free
        left = max(0.0, left - reduce * remains(own, scattered, o)) + layer.sync
        out.hides_weights += reduce * remains(own, scattered if n < end else first, o)
        if part.exchanged_forward > 0.0:
            out.exchanged_forward += part.exchanged_forward
            out.exchanged_backward += part.exchanged_backward
            out.busy_forward += layer.free_forward
            out.busy_backward += remains(layer.free_backward, scattered, o)
        scattered = layer.scattered
    out.trails_weights = o * apart[again[end]][kinds[end]].weights
    out.left_weights = first + left


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
