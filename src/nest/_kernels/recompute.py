"""What recompute changes of the stages of a signature.

Shapes: T layer kinds, R recompute policies, G signatures.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import kernel, leaf
from nest._kernels.layers import (
    ACTIVATIONS,
    BACKWARD,
    FREE_BACKWARD,
    SYNC,
    WORK,
    layer_sums,
)

# What a policy changes of a layer without recompute, and of a stage.
D_BACK, D_HELD, D_WORK = range(3)


@leaf
def policy_changes(t, c, z, busy, layers, changes):
    """Fill ``layers[1:]``, and ``changes`` (R, T, 3): backward at the least, activations, work.

    Backward and activations are those above the ones of ``layers[0]``. Longer computing hides more
    ZeRO traffic, at the share that the stack overlaps.
    """
    for r in range(1, t.back.shape[1]):
        layer_sums(t, c, z, r, layers)
        for x in range(len(t.kinds)):
            kind = t.kinds[x]
            changes[r, kind, D_BACK] = layers[r, kind, BACKWARD] - layers[0, kind, BACKWARD]
            if busy:
                changes[r, kind, D_BACK] -= t.overlaps[0] * (
                    layers[r, kind, FREE_BACKWARD] - layers[0, kind, FREE_BACKWARD])
            changes[r, kind, D_HELD] = layers[r, kind, ACTIVATIONS] - layers[0, kind, ACTIVATIONS]
            changes[r, kind, D_WORK] = layers[r, kind, WORK]


@leaf
def changed(counts, kinds, q, changes, r, sums):
    """Fill ``sums`` (3,) with what policy r changes of all layers of signature q."""
    sums[D_BACK] = sums[D_HELD] = sums[D_WORK] = 0.0
    for x in range(len(kinds)):
        kind = kinds[x]
        layers = counts[q, kind]
        if layers:
            sums[D_BACK] += layers * changes[r, kind, D_BACK]
            sums[D_HELD] += layers * changes[r, kind, D_HELD]
            sums[D_WORK] = max(sums[D_WORK], changes[r, kind, D_WORK])


@leaf
def left_seconds(layers, reduce, before, depth, last, marked, g, r, most):
    """What is left to reduce of signature g, policy r for the first ``most`` layers; no ZeRO-2, 3.

    ``before`` and ``depth`` are those of :func:`runs_of`.
    As in ``chunk_costs``, run by run of layers of one kind and policy, from the last to the first:
    after n of them what is left is the largest of n + 1 sums, which is the first or the last.
    """
    left = 0.0
    while g >= 0:
        kind, q = last[g], before[g]
        count, done = depth[g], 0
        if q >= 0:
            count, done = depth[g] - depth[q], marked[q]
        again = min(max(most - done, 0), count) if marked[g] > done else 0
        for policy in (0, r):
            n = again if policy else count - again
            if n:
                sync = layers[0, kind, SYNC]
                slope = sync - reduce * layers[policy, kind, FREE_BACKWARD]
                left = max(left + n * slope, sync + max(0.0, (n - 1) * slope))
        g = q
    return left


@leaf
def first_that_may_hold(ancestor, counts, kinds, g, changes, full, room, least, most):
    """Least number of first layers, from ``least`` on, whose change of activations is ``room``.

    Each layer more keeps no more, so that halving finds it; most + 1 where none does.
    """
    low, high = least, most + 1
    while low < high:
        middle = (low + high) // 2
        held = 0.0
        q = ancestor[g, middle]
        for x in range(len(kinds)):
            held += counts[q, kinds[x]] * changes[full, kinds[x], D_HELD]
        if held <= room:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def runs_of(part, last):
    """Signature before the last layers of one kind, and number of layers, of each signature."""
    before, depth = np.full(len(part), -1), np.ones(len(part), np.int64)
    for g in range(len(part)):
        q = part[g]
        if q >= 0:
            depth[g] = depth[q] + 1
            before[g] = before[q] if last[q] == last[g] else q
    return before, depth
