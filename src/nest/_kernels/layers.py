"""Figures of layers, and of consecutive layers on a device; twins of :mod:`nest.costs.stage`.

Shapes: T layer kinds, R recompute policies.
"""

from __future__ import annotations

from nest._kernels import leaf
from nest.forms import chunk
from nest.forms.chunk import (
    C_ABOVE,
    C_BACKWARD,
    C_BEGUN,
    C_BELOW,
    C_BUSY_BACKWARD,
    C_BUSY_FORWARD,
    C_CHASE,
    C_EXCHANGED_BACKWARD,
    C_EXCHANGED_FORWARD,
    C_FORWARD,
    C_GATHER,
    C_GATHERED,
    C_HIDES_GATHER,
    C_HIDES_INPUTS,
    C_HIDES_SYNC,
    C_HIDES_WEIGHTS,
    C_INPUTS,
    C_LARGEST,
    C_LATE,
    C_LATE_BACK,
    C_LEFT,
    C_LEFT_WEIGHTS,
    C_QUEUE_BACKWARD,
    C_QUEUE_FORWARD,
    C_REGATHERED,
    C_ROOM,
    C_SCATTERED,
    C_SYNC,
    C_THIRD,
    C_TIED,
    C_TRAILING,
    C_TRAILS_BACKWARD,
    C_TRAILS_FORWARD,
    C_TRAILS_INPUTS,
    C_TRAILS_WEIGHTS,
    C_TURN,
    C_UNDER_FIRST,
    C_UNDER_LAST,
    C_UPDATE,
    C_WAIT,
    C_WEIGHTS,
    CHUNK,
    STATE_SLOWED,
)

# Figures of a layer: the fields of ``nest.costs.stage.LayerSeconds`` in its order (a test
# compares), and the bytes and seconds that a stage adds up besides or takes the largest of. Those
# of ``ahead``, of the first half of ``back``, of ``state`` and of the second half of ``back``
# (``nest.search.tables.Tables``) come in their order.
(FREE_FORWARD, FORWARD, FREE_BACKWARD, BACKWARD, GATHERED, REGATHERED, SCATTERED, SYNC, GATHER,
 BUFFERS, UPDATE, TIED, RESIDENT, ACTIVATIONS, WORK) = range(15)
FIELDS = 15
# Figures of ``nest.search.problems.Pipelines.apart``.
EXCHANGED_FORWARD, EXCHANGED_BACKWARD, WEIGHTS, KEPT_BACK = range(4)


@leaf
def layer_sums(t, c, z, r, layers):
    """Fill ``layers[r]`` of (R, T, FIELDS) with the figures of each kind under policy r."""
    u, v = t.body[c], t.held[c]
    for kind in range(t.ahead.shape[1]):
        for x in range(2):
            layers[r, kind, x] = t.ahead[u, kind, x]
            layers[r, kind, FREE_BACKWARD + x] = t.back[u, r, kind, x]
            layers[r, kind, ACTIVATIONS + x] = t.back[u, r, kind, 2 + x]
        for x in range(STATE_SLOWED):
            layers[r, kind, GATHERED + x] = t.state[v, z, kind, x]
        layers[r, kind, FORWARD] += t.state[v, z, kind, STATE_SLOWED]
        layers[r, kind, BACKWARD] += t.state[v, z, kind, STATE_SLOWED + 1]


@leaf
def _remains(free, beside, overlap):
    """Of computing what hides no ``beside`` seconds of ZeRO traffic."""
    if overlap > 0.0:
        return max(0.0, free - beside / overlap)
    return 0.0 if beside > 0.0 else free


@leaf
def spare(layers, r, kind, beside, overlap):
    """Computing backward that hides no ZeRO traffic; ``_spare`` of ``nest.costs.stage``."""
    return _remains(layers[r, kind, FREE_BACKWARD], beside, overlap)


delayed, longer = leaf(chunk.delayed), leaf(chunk.longer)


@leaf
def borders(layers, first, second, third, below, last, x, under, y, ahead, back, out):
    """Fill what passes through a chunk take longer in a row, and what that follows from.

    Kinds of its first three and last two layers, -1 where there are fewer. What hides traffic:
    ``x`` beside the first layer forward, ``under`` beside the second, ``ahead`` beside the last;
    ``y`` beside the first backward, ``back`` beside the last.
    """
    out[C_GATHERED], out[C_REGATHERED] = layers[0, first, GATHERED], layers[0, last, REGATHERED]
    out[C_SCATTERED] = layers[0, first, SCATTERED]
    out[C_UNDER_FIRST], out[C_UNDER_LAST], out[C_TRAILS_BACKWARD] = y, ahead, back
    for field in range(C_BEGUN, C_ROOM + 1):
        out[field] = 0.0
    out[C_BELOW] = out[C_ABOVE] = 0.0
    if second >= 0:
        out[C_BELOW], out[C_ABOVE] = layers[0, below, REGATHERED], layers[0, second, SCATTERED]
        out[C_ROOM] = x - layers[0, second, GATHERED]
        out[C_BEGUN] = max(0.0, -out[C_ROOM])
    if third >= 0:
        out[C_THIRD] = max(0.0, layers[0, third, GATHERED] - under)
        out[C_ROOM] += under - layers[0, third, GATHERED]
    for field in range(C_LATE, C_TRAILING):
        out[field] = 0.0
    if out[C_LARGEST] == 0.0:
        return
    alone = second < 0
    out[C_LATE] = delayed(out, alone, out[C_GATHERED])
    out[C_LATE_BACK] = delayed(out, alone, out[C_REGATHERED])
    out[C_TURN] = longer(out, alone, 0, out, alone, 1)
    out[C_CHASE] = longer(out, alone, 1, out, alone, 0)
    out[C_QUEUE_FORWARD] = longer(out, alone, 0, out, alone, 0)
    out[C_QUEUE_BACKWARD] = longer(out, alone, 1, out, alone, 1)
    if alone:
        traffic = out[C_REGATHERED] + out[C_SCATTERED] - y
        out[C_QUEUE_BACKWARD] = max(out[C_QUEUE_BACKWARD], traffic)
        out[C_CHASE] = max(out[C_CHASE], traffic + out[C_GATHERED] - ahead - out[C_TURN])


@leaf
def chunk_costs(layers, overlaps, kinds, again, start, stop, out):
    """Fill ``out`` (CHUNK,) with :func:`nest.costs.stage.chunk_costs` of layers start..stop.

    ``kinds`` and ``again`` (int64) hold the kind and the recompute policy of each layer. From the
    last to the first: what a layer's computing leaves of those above, and its own on top.
    """
    o, reduce, refresh = overlaps[0], overlaps[1], overlaps[2]
    first, last, end = kinds[start], kinds[stop - 1], stop - 1
    for x in range(CHUNK):
        out[x] = 0.0
    for n in range(end, start - 1, -1):
        kind, r = kinds[n], again[n]
        out[C_LARGEST] = max(out[C_LARGEST], layers[0, kind, GATHERED])
        x, y = o * layers[r, kind, FREE_FORWARD], o * layers[r, kind, FREE_BACKWARD]
        scattered, waited = 0.0, 0.0
        if n < end:
            scattered = layers[0, kinds[n + 1], SCATTERED]
            if n > start:
                waited = max(0.0, layers[0, kinds[n + 1], GATHERED] - x)
        out[C_FORWARD] += layers[r, kind, FORWARD] + waited
        below = layers[0, kinds[n - 1], REGATHERED] if n > start else 0.0
        waited = max(0.0, scattered + below - y) if n < end else 0.0
        out[C_BACKWARD] += layers[r, kind, BACKWARD] + waited
        beside = scattered + (below if n > start else layers[0, kind, GATHERED])
        hides = reduce * spare(layers, r, kind, beside, o)
        out[C_LEFT] = max(0.0, out[C_LEFT] - hides) + layers[r, kind, SYNC]
        if n == start:
            beside = scattered + max(layers[0, kind, GATHERED], layers[0, last, REGATHERED])
        if n == end:
            beside += layers[0, first, SCATTERED]
        out[C_HIDES_SYNC] += reduce * spare(layers, r, kind, beside, o)
        hides = refresh * layers[r, kind, FREE_FORWARD]
        out[C_WAIT] = max(0.0, out[C_WAIT] - hides) + layers[r, kind, GATHER]
        out[C_HIDES_GATHER] += hides
        out[C_TRAILS_FORWARD] += x
        out[C_SYNC] += layers[r, kind, SYNC]
        out[C_GATHER] += layers[r, kind, GATHER]
        out[C_UPDATE] += layers[r, kind, UPDATE]
        out[C_TIED] += layers[r, kind, TIED]
    x, under = o * layers[again[start], first, FREE_FORWARD], 0.0
    out[C_LEFT] += layers[0, first, SCATTERED]
    out[C_WAIT] += layers[0, first, GATHERED]
    second = third = below = -1
    if end > start:
        second, below = kinds[start + 1], kinds[end - 1]
        out[C_WAIT] += max(0.0, layers[0, second, GATHERED] - x)
    if end > start + 1:
        third, under = kinds[start + 2], o * layers[again[start + 1], second, FREE_FORWARD]
    borders(layers, first, second, third, below, last, x, under,
            o * layers[again[start], first, FREE_BACKWARD],
            o * layers[again[end], last, FREE_FORWARD],
            o * layers[again[end], last, FREE_BACKWARD], out)
    out[C_BACKWARD] += out[C_LATE]
    if out[C_LARGEST] == 0.0:
        out[C_TRAILING] = out[C_SCATTERED]


@leaf
def add_parts(layers, apart, overlaps, kinds, again, start, stop, out):
    """Add to ``out`` what :func:`nest.costs.stage.with_parts` does, given :func:`chunk_costs`.

    ``apart`` (R, T, 4) as in ``nest.search.problems.Pipelines``, of a body.
    """
    o, reduce, end, left = overlaps[0], overlaps[1], stop - 1, 0.0
    first = layers[0, kinds[start], SCATTERED]
    for field in range(C_INPUTS, CHUNK):
        out[field] = 0.0
    for n in range(end, start - 1, -1):
        kind, r = kinds[n], again[n]
        own = apart[r, kind, WEIGHTS]
        scattered = layers[0, kinds[n + 1], SCATTERED] if n < end else 0.0
        free = max(0.0, layers[r, kind, FREE_BACKWARD] - own)
        out[C_INPUTS] += layers[r, kind, BACKWARD] - own
        out[C_WEIGHTS] += own + (max(0.0, scattered - o * own) if n < end else 0.0)
        out[C_TRAILS_INPUTS] += o * free
        out[C_HIDES_INPUTS] += reduce * free
        left = max(0.0, left - reduce * _remains(own, scattered, o)) + layers[r, kind, SYNC]
        beside = scattered if n < end else first
        out[C_HIDES_WEIGHTS] += reduce * _remains(own, beside, o)
        if apart[r, kind, EXCHANGED_FORWARD] > 0.0:
            out[C_EXCHANGED_FORWARD] += apart[r, kind, EXCHANGED_FORWARD]
            out[C_EXCHANGED_BACKWARD] += apart[r, kind, EXCHANGED_BACKWARD]
            out[C_BUSY_FORWARD] += layers[r, kind, FREE_FORWARD]
            out[C_BUSY_BACKWARD] += _remains(layers[r, kind, FREE_BACKWARD], scattered, o)
    out[C_TRAILS_WEIGHTS] = o * apart[again[end], kinds[end], WEIGHTS]
    out[C_LEFT_WEIGHTS] = first + left
