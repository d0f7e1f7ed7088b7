"""Drop candidates that another one of the same block is no worse than in anything.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, N
blocks (a size under an outer choice).
"""

from __future__ import annotations

import numpy as np

from nest._kernels import kernel, leaf


@leaf
def _no_slower(ahead, back, a, b, under_forward, under_backward):
    """Body ``a`` is no worse than ``b``: in time, in time less all that may hide, in bytes."""
    if a == b:
        return True
    for kind in range(ahead.shape[1]):
        if ahead[a, kind, 1] > ahead[b, kind, 1]:
            return False
        if (ahead[a, kind, 1] - under_forward * ahead[a, kind, 0]
                > ahead[b, kind, 1] - under_forward * ahead[b, kind, 0]):
            return False
    for r in range(back.shape[1]):
        for kind in range(back.shape[2]):
            for field in range(1, 4):
                if back[a, r, kind, field] > back[b, r, kind, field]:
                    return False
            if (back[a, r, kind, 1] - under_backward * back[a, r, kind, 0]
                    > back[b, r, kind, 1] - under_backward * back[b, r, kind, 0]):
                return False
    return True


@leaf
def _no_larger(state, a, b):
    """State ``a`` takes no longer and holds no more than ``b`` under any way of ZeRO."""
    if a == b:
        return True
    for z in range(state.shape[1]):
        for kind in range(state.shape[2]):
            for field in range(state.shape[3]):
                if state[a, z, kind, field] > state[b, z, kind, field]:
                    return False
    return True


@kernel
def undominated(ahead, back, state, body, held, shards, relayed, hybrid, begin, choices, overlaps):
    """Candidates worth listing; of equal ones the first.

    Whatever layers, recompute and ZeRO a stage takes, one that stays is no worse in forward,
    backward, forward + backward + finish, bytes and shards than one that is dropped. What computing
    hides enters the last of these by way of two straight lines, compute hiding nothing or all that
    it can, so that those two are compared.

    Parameters
    ----------
    ahead, back, state, body, held, shards, relayed, hybrid, overlaps : see
        ``nest.search.tables.Tables``.
    begin : int64 (N+1,), first candidate of each block; those of a class of places stand
        together, each class with the same degrees in the same order.
    choices : int64 (N,), degrees of each block.

    Returns
    -------
    bool (C,); the same degrees stay or go at all classes of places.
    """
    kept = np.zeros(len(body), np.bool_)
    under_forward, under_backward = max(overlaps[0], overlaps[2]), max(overlaps[0], overlaps[1])
    # None is beaten by a slower one: the order in which to look at them.
    total = np.zeros(len(ahead))
    for u in range(len(ahead)):
        for kind in range(ahead.shape[1]):
            total[u] += ahead[u, kind, 1] + back[u, 0, kind, 1]
    staying = np.empty(choices.max(), np.int64)
    for n in range(len(choices)):
        lo, hi, step = begin[n], begin[n + 1], choices[n]
        count = 0
        for x in np.argsort(total[body[lo : lo + step]], kind="mergesort"):
            b, beaten = lo + x, False
            for y in range(count):
                a = staying[y]
                # The states of most pairs differ either way, those of bodies do not.
                if (shards[a] < shards[b] or relayed[a] > relayed[b] or hybrid[a] < hybrid[b]
                        or not _no_larger(state, held[a], held[b])
                        or not _no_slower(ahead, back, body[a], body[b], under_forward,
                                          under_backward)):
                    continue
                beaten = True
                for away in range(step, hi - lo, step):
                    beaten &= _no_larger(state, held[a + away], held[b + away])
                if beaten:
                    break
            if not beaten:
                staying[count] = b
                count += 1
                for away in range(0, hi - lo, step):
                    kept[b + away] = True
    return kept
