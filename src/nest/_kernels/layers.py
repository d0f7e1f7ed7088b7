"""Figures of layers, and of consecutive layers on a device; twins of :mod:`nest.costs.stage`.

Shapes: T layer kinds, R recompute policies.
"""

from __future__ import annotations

from numba import njit

from nest._kernels import CACHE

# Figures of a layer: the fields of ``nest.costs.stage.LayerSeconds`` in its order (a test
# compares), what a stage adds up besides, and two of which it takes the largest.
(FREE_FORWARD, FORWARD, FREE_BACKWARD, BACKWARD, GATHERED, REGATHERED, SCATTERED, SYNC, GATHER,
 UPDATE, TIED, RESIDENT, ACTIVATIONS, WORK, BUFFERS) = range(15)
FIELDS = 15


@njit(cache=CACHE, nogil=True)
def layer_sums(t, c, z, r, layers):
    """Fill ``layers[r]`` of (R, T, FIELDS) with the figures of each kind under policy r."""
    u, v = t.body[c], t.held[c]
    for kind in range(t.ahead.shape[1]):
        layers[r, kind, FREE_FORWARD] = t.ahead[u, kind, 0]
        layers[r, kind, FORWARD] = t.ahead[u, kind, 1]
        layers[r, kind, FREE_BACKWARD] = t.back[u, r, kind, 0]
        layers[r, kind, BACKWARD] = t.back[u, r, kind, 1]
        layers[r, kind, GATHERED] = t.state[v, z, kind, 0]
        layers[r, kind, REGATHERED] = t.again * t.state[v, z, kind, 0]
        layers[r, kind, SCATTERED] = t.state[v, z, kind, 1]
        layers[r, kind, SYNC] = t.state[v, z, kind, 2]
        layers[r, kind, GATHER] = t.state[v, z, kind, 3]
        layers[r, kind, UPDATE] = t.state[v, z, kind, 4]
        layers[r, kind, TIED] = t.state[v, z, kind, 5]
        layers[r, kind, RESIDENT] = t.state[v, z, kind, 6]
        layers[r, kind, ACTIVATIONS] = t.back[u, r, kind, 2]
        layers[r, kind, WORK] = t.back[u, r, kind, 3]
        layers[r, kind, BUFFERS] = t.state[v, z, kind, 7]


@njit(cache=CACHE, nogil=True)
def spare(layers, r, kind, beside, overlap):
    """Computing backward that hides no ZeRO traffic; ``_spare`` of ``nest.costs.stage``."""
    free = layers[r, kind, FREE_BACKWARD]
    return max(0.0, free - beside / overlap) if overlap > 0.0 else free


# Figures of consecutive layers; the fields of ``nest.costs.stage.ChunkCosts`` in its order (a test
# compares), of which ``zero`` is no part.
(C_FORWARD, C_BACKWARD, C_TURN, C_CHASE_FORWARD, C_CHASE_BACKWARD, C_TRAILING, C_TRAILS_FORWARD,
 C_TRAILS_BACKWARD, C_LEFT, C_WAIT, C_UPDATE, C_TIED, C_SYNC, C_GATHER, C_SCATTERED, C_HIDES_SYNC,
 C_HIDES_GATHER) = range(17)
CHUNK = 17


@njit(cache=CACHE, nogil=True)
def chunk_costs(layers, overlaps, kinds, again, start, stop, out):
    """Fill ``out`` (CHUNK,) with :func:`nest.costs.stage.chunk_costs` of layers start..stop.

    ``kinds`` and ``again`` (int64) hold the kind and the recompute policy of each layer. From the
    last to the first: what a layer's computing leaves of those above, and its own on top.
    """
    o, reduce, refresh = overlaps[0], overlaps[1], overlaps[2]
    first, last, end = kinds[start], kinds[stop - 1], stop - 1
    gathers = layers[0, first, GATHERED] > 0.0
    for x in range(CHUNK):
        out[x] = 0.0
    for n in range(end, start - 1, -1):
        kind, r = kinds[n], again[n]
        x, y = o * layers[r, kind, FREE_FORWARD], o * layers[r, kind, FREE_BACKWARD]
        inside = start < n < end
        beside, scattered = layers[0, kind, REGATHERED], 0.0
        if n < end:
            beside = layers[0, kinds[n + 1], GATHERED]
            scattered = layers[0, kinds[n + 1], SCATTERED]
        else:
            out[C_TURN] += max(0.0, beside - x)
        waited = max(0.0, beside - x) if inside else 0.0
        if n == start and gathers:
            beside += layers[0, kind, SCATTERED]
        out[C_FORWARD] += layers[r, kind, FORWARD] + waited
        out[C_CHASE_FORWARD] += max(0.0, beside - x) - waited
        beside = scattered + (
            layers[0, kinds[n - 1], REGATHERED] if n > start else layers[0, kind, GATHERED])
        waited = max(0.0, (beside if inside else scattered) - y)
        if n == end and n > start:
            out[C_TURN] += max(0.0, beside - y)
        out[C_BACKWARD] += layers[r, kind, BACKWARD] + waited
        out[C_CHASE_BACKWARD] += max(0.0, beside - y) - waited
        hides = reduce * spare(layers, r, kind, beside, o)
        out[C_LEFT] = max(0.0, out[C_LEFT] - hides) + layers[r, kind, SYNC]
        out[C_HIDES_SYNC] += hides
        hides = refresh * layers[r, kind, FREE_FORWARD]
        out[C_WAIT] = max(0.0, out[C_WAIT] - hides) + layers[r, kind, GATHER]
        out[C_HIDES_GATHER] += hides
        out[C_TRAILS_FORWARD] += x
        out[C_SYNC] += layers[r, kind, SYNC]
        out[C_GATHER] += layers[r, kind, GATHER]
        out[C_UPDATE] += layers[r, kind, UPDATE]
        out[C_TIED] += layers[r, kind, TIED]
    out[C_SCATTERED] = layers[0, first, SCATTERED]
    out[C_LEFT] += out[C_SCATTERED]
    out[C_WAIT] += layers[0, first, GATHERED]
    if end > start:
        out[C_WAIT] += max(0.0, layers[0, kinds[start + 1], GATHERED]
                           - o * layers[again[start], first, FREE_FORWARD])
    r = again[end]
    out[C_TRAILS_BACKWARD] = o * layers[r, last, FREE_BACKWARD]
    if not gathers:
        out[C_TRAILING] = out[C_SCATTERED]
        out[C_HIDES_SYNC] += reduce * (
            spare(layers, r, last, out[C_TRAILING], o) - spare(layers, r, last, 0.0, o))
