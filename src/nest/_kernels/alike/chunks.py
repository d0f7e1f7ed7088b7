"""Figures of the chunks that are asked for, and where each lies in the model."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.alike.work import (
    CANDIDATE,
    F_ACTIVATIONS,
    F_BUFFERS,
    F_KEPT,
    F_LARGEST,
    F_RESIDENT,
    F_WORK,
    FIRST,
    LEAST,
    PIPELINE,
    POLICY,
)
from nest._kernels.layers import (
    ACTIVATIONS,
    BUFFERS,
    KEPT_BACK,
    RESIDENT,
    WORK,
    add_parts,
    chunk_costs,
)
from nest._kernels.orders import DUALPIPE, DUALPIPEV, ZB_V


@leaf
def fill_figures(t, q, a, w, y, i, j):
    """Number of the signature of layers i..j, whose figures are filled in; of none they are 0."""
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    r, some = w.question[POLICY], w.question[FIRST]
    g = a.signature[i, j]
    if i == j or w.stamp[0, y, g] == w.tally[0]:
        return g
    w.stamp[0, y, g] = w.tally[0]
    kinds = a.whole if has_all(a, k) else a.order
    resident = kept = work = buffers = 0.0
    for n in range(i, j):
        marked = q.marked_before[n + 1] - q.marked_before[i]
        again = 0 if 0 < some < marked else r
        kind, w.again[n] = kinds[n], 0 if some == LEAST else again
        kept += w.layers[y, again, kind, ACTIVATIONS]
        resident += w.layers[y, again, kind, RESIDENT]
        work = max(work, w.layers[y, again, kind, WORK])
        buffers = max(buffers, w.layers[y, again, kind, BUFFERS])
    out = w.figures[y, g]
    chunk_costs(w.layers[y], t.overlaps, kinds, w.again, i, j, out)
    out[F_RESIDENT], out[F_BUFFERS] = resident, buffers
    out[F_WORK] = 0.0 if some == LEAST else work
    out[F_ACTIVATIONS] = kept + t.relay[g] * t.relayed[c]
    if some == 0 and r == t.full and (
            q.marked_before[j] - q.marked_before[i] > t.most_layers):
        out[F_RESIDENT] = np.inf
    return g


@leaf
def fill_parts(t, q, a, w, y, i, j, g):
    """Add to the figures of layers i..j, signature g, those of passes in parts or side by side."""
    if i == j or w.stamp[1, y, g] == w.tally[0]:
        return
    w.stamp[1, y, g] = w.tally[0]
    kinds = a.whole if has_all(a, w.question[PIPELINE]) else a.order
    apart = a.apart[t.body[q.alike[w.question[CANDIDATE], y]]]
    out, kept, largest = w.figures[y, g], 0.0, 0.0
    marked, some = 0, w.question[FIRST]
    for n in range(i, j):
        # As in ``fill_figures``, whose answer may be that of equal layers elsewhere.
        marked = q.marked_before[n + 1] - q.marked_before[i]
        kind, r = kinds[n], w.question[POLICY]
        if some == LEAST or 0 < some < marked:
            r = 0
        w.again[n] = r
        kept += apart[r, kind, KEPT_BACK]
        if a.repeated[kind]:
            largest = max(largest, w.layers[y, r, kind, ACTIVATIONS])
    add_parts(w.layers[y], apart, t.overlaps, kinds, w.again, i, j, out)
    out[F_KEPT], out[F_LARGEST] = kept, largest


@leaf
def has_all(a, k):
    """Whether all layers that share a table of the vocabulary are on one stage."""
    return a.pp[k] == 1 or a.schedule[k] == DUALPIPE


@leaf
def position_of(a, k, s, d):
    """Place in the model of chunk d of stage s."""
    if a.schedule[k] == DUALPIPE:
        return max(s, a.pp[k] - 1 - s) if d else min(s, a.pp[k] - 1 - s)
    if d == 1 and (a.schedule[k] == ZB_V or a.schedule[k] == DUALPIPEV):
        return 2 * a.pp[k] - 1 - s
    return d * a.pp[k] + s
