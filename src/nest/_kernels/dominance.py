"""Drop candidates that another one of the same block is no worse than in anything.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, N
blocks (a size under an outer choice).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nest._kernels import entry, leaf
from nest.records import Bools, Ints, Rows
from nest.records.tables import Blocks

PARTS = 8
"""Calls among which blocks are shared, so that threads have about as much to do."""


@leaf
def _no_slower(
    ahead: Rows, back: Rows, a: int, b: int, under_forward: float, under_backward: float,
) -> bool:
    """Body ``a`` is no worse than ``b``: in time, in time less all that may hide, in bytes."""
    if a == b:
        return True
    for kind in range(ahead.shape[1]):
        one, other = ahead[a, kind], ahead[b, kind]
        if one.seconds > other.seconds or (one.seconds - under_forward * one.free
                                           > other.seconds - under_forward * other.free):
            return False
    for r in range(back.shape[1]):
        for kind in range(back.shape[2]):
            one, other = back[a, r, kind], back[b, r, kind]
            if (one.seconds > other.seconds or one.activations > other.activations
                    or one.work > other.work or one.seconds - under_backward * one.free
                    > other.seconds - under_backward * other.free):
                return False
    return True


@leaf
def _no_larger(state: Rows, a: int, b: int) -> bool:
    """State ``a`` takes no longer and holds no more than ``b`` under any way of ZeRO."""
    if a == b:
        return True
    for z in range(state.shape[1]):
        for kind in range(state.shape[2]):
            one, other = state[a, z, kind], state[b, z, kind]
            if (one.gathered > other.gathered or one.regathered > other.regathered
                    or one.scattered > other.scattered or one.sync > other.sync
                    or one.gather > other.gather or one.buffers > other.buffers
                    or one.update > other.update or one.tied > other.tied
                    or one.resident > other.resident
                    or one.slowed_forward > other.slowed_forward
                    or one.slowed_backward > other.slowed_backward
                    or one.maxima > other.maxima):
                return False
    return True


@leaf
def _drop(t: Blocks, order: Ints, staying: Ints, kept: Bools, low: int, high: int, at: int) -> None:
    """Fill ``kept`` (C,) where it is True, in blocks ``low`` to ``high`` - 1; ``order`` lists the
    first class of each block, from ``at`` on those of the first."""
    ahead, back, state, body, held = t.ahead, t.back, t.state, t.body, t.held
    under_forward = max(t.overlaps[0], t.overlaps[2])
    under_backward = max(t.overlaps[0], t.overlaps[1])
    for n in range(low, high):
        size, step = t.begin[n + 1] - t.begin[n], t.choices[n]
        count = 0
        for x in range(at, at + step):
            b, beaten = order[x], False
            for y in range(count):
                a = staying[y]
                # The states of most pairs differ either way, those of bodies do not.
                if (t.shards[a] < t.shards[b] or t.relayed[a] > t.relayed[b]
                        or t.hybrid[a] < t.hybrid[b]
                        or not _no_larger(state, held[a], held[b])
                        or not _no_slower(ahead, back, body[a], body[b], under_forward,
                                          under_backward)):
                    continue
                beaten = True
                for away in range(step, size, step):
                    beaten &= _no_larger(state, held[a + away], held[b + away])
                    if body[a + away] != body[a] or body[b + away] != body[b]:  # on links
                        beaten &= _no_slower(ahead, back, body[a + away], body[b + away],
                                             under_forward, under_backward)
                if beaten:
                    break
            if not beaten:
                staying[count] = b
                count += 1
                for away in range(0, size, step):
                    kept[b + away] = True
        at += step


@entry
def _mark(t: Blocks, order: Ints, staying: Ints, kept: Bools, low: int, high: int, at: int) -> None:
    """``_drop`` for Python, see ``fill`` of ``nest._kernels.options``."""
    _drop(t, order, staying, kept, low, high, at)


def undominated(t: Blocks, each_of: Any = map) -> Bools:
    """Candidates worth listing; of equal ones the first.

    Whatever layers, recompute and ZeRO a stage takes, one that stays is no worse in forward,
    backward, forward + backward + finish, bytes and shards than one that is dropped. What computing
    hides enters the last of these by way of two straight lines, compute hiding nothing or all that
    it can, so that those two are compared.

    Parameters
    ----------
    t : ``nest.records.tables.Blocks``.
    each_of : calls a function with each of some arguments, in threads or not.

    Returns
    -------
    bool (C,); the same degrees stay or go at all classes of places.
    """
    total = np.zeros(len(t.ahead))
    for kind in range(t.ahead.shape[1]):
        total += t.ahead["seconds"][:, kind] + t.back["seconds"][:, 0, kind]
    block = np.repeat(np.arange(len(t.choices)), t.choices)
    before = np.cumsum(t.choices) - t.choices
    nth = np.arange(len(block)) - np.repeat(before, t.choices)
    first = t.begin[block] + nth
    # None is beaten by a slower one: the order in which to look at them.
    order = first[np.lexsort((total[t.body[first]], block))]
    kept = np.zeros(len(t.body), np.bool_)
    most = int(t.choices.max())

    def mark(part: Any) -> None:
        low, high = part
        _mark(t, order, np.empty(most, np.int64), kept, low, high, int(before[low]))

    edges = np.unique(np.searchsorted(before, np.linspace(0, len(block), PARTS + 1)))
    list(each_of(mark, np.stack([edges[:-1], edges[1:]], axis=1).tolist()))
    return kept
