"""V-Min and V-Half: orders of passes that hold a third and a half of what 1F1B holds.

"Pipeline Parallelism with Controllable Memory" (arXiv:2405.15362): a *building
block* says when a micro-batch passes each chunk, a micro-batch follows the other every six slots,
for the two chunks of a rank have six passes, and its lifespan is what a rank holds. Backwards for
weights take slots that are free. Then slots that are left empty are squeezed out, and in front of
the stable phase and behind it passes are moved ahead where that takes no more memory.

The blocks and these steps are those of the authors' program, sail-sg/zero-bubble-pipeline-
parallelism@39f2c18 megatron/core/pipeline_parallel/zerobubble/scheduler/zbv_greedy.py, whose lines
are named here. Every pass takes one slot there, whatever it takes on a device
(zerobubble/runtime.py, line 1513), so that an order follows from ranks and micro-batches alone.

p ranks, m micro-batches. A *kind* of pass: 0 and 1 are the forwards of chunks 0 and 1, 2 and 3 the
backwards for inputs of chunks 1 and 0, which is how a micro-batch goes; 4 and 5 are the backwards
for weights of chunks 1 and 0.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from functools import cache

from nest.schedules.orders import folded
from nest.schedules.passes import FORWARD, INPUTS, PASSES, WEIGHTS, Order

Block = Callable[[int, int], tuple[int, int, int, int]]
"""Slots of the passes of the first micro-batch on rank s of p, by kind."""
Slots = list[list[list[int]]]
"""Slot of each pass, by rank, kind and micro-batch."""
EVERY = 6
"""Slots from a micro-batch to the next one."""
STEADY = 4
"""Behind p micro-batches and so many, each one more adds the same passes to a rank."""
CODES = (FORWARD, PASSES + FORWARD, PASSES + INPUTS, INPUTS, PASSES + WEIGHTS, WEIGHTS)


def least(s: int, p: int) -> tuple[int, int, int, int]:
    """The building block of V-Min (stable_pattern_v_min, line 22)."""
    more = 0 if p % 3 else 2
    return s, 2 * p - s - 1, 2 * p + more + s, 4 * p + more - s - 1


def half(s: int, p: int) -> tuple[int, int, int, int]:
    """The building block of V-Half (stable_pattern_v_half, line 33)."""
    more = 0 if p % 2 else 3
    return 2 * s, 3 * p - s - 2, 3 * p + more + 2 * s - 1, 6 * p + more - s - 2


def write_v_min(p: int, v: int, m: int, group: int, order: Order) -> None:
    """V-Min."""
    _write(least, p, m, order)


def write_v_half(p: int, v: int, m: int, group: int, order: Order) -> None:
    """V-Half."""
    _write(half, p, m, order)


def _write(block: Block, p: int, m: int, order: Order) -> None:
    folded(p, order)
    i = 0
    for s, (front, each, behind) in enumerate(_parts(block, p, min(m, p + STEADY))):
        order.rows[s] = i
        for code in (*front, *(each * max(0, m - p - STEADY)), *behind):
            order.codes[i] = code
            i += 1
    order.rows[p] = i


@cache
def _parts(block: Block, p: int, m: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Of each rank, passes in front of the stable phase, of a micro-batch of it, and behind."""
    found = []
    for few, more in zip(rows(block, p, m), rows(block, p, m + 1), strict=True):
        cut = next((i for i, (one, other) in enumerate(zip(few, more, strict=False))
                    if one != other), len(few))
        found.append((few[:cut], more[cut:cut + EVERY], few[cut:]))
    return found


def rows(block: Block, p: int, m: int) -> list[list[int]]:
    """Codes of the passes of each rank (schedule_from_pattern, line 192)."""
    at = [[list(range(first, first + EVERY * m, EVERY)) for first in block(s, p)]
          for s in range(p)]
    at = _squeezed(_moved([[*rank, _weights(rank)[0]] for rank in at]))
    at = _moved([rank[:4] for rank in at])
    at = _squeezed([[*rank, _weights(rank)[0]] for rank in at])
    found = []
    for rank in at:
        kinds = [*rank[:4], *_weights(rank[:4], apart=True)]
        found.append([CODES[kind] for _, kind in sorted(
            (slot, kind) for kind, slots in enumerate(kinds) for slot in slots)])
    return found


def _weights(rank: Sequence[Sequence[int]], apart: bool = False) -> tuple[list[int], list[int]]:
    """Slots of the backwards for weights: the first ones that are free (put_w, line 44).

    ``apart``: of chunk 1, which goes first, and of chunk 0; else of both in one.
    """
    bound = max(slots[-1] for slots in rank)
    taken = [-1] * (bound + 1)
    for kind, slots in enumerate(rank):
        for slot in slots:
            taken[slot] = kind
    found: tuple[list[int], list[int]] = [], []
    left = [0, 0]
    for slot, kind in enumerate(taken):
        if kind >= 2:
            left[kind - 2 if apart else 0] += 1
        elif kind < 0 and (left[0] or left[1]):
            which = 0 if left[0] else 1
            found[which].append(slot)
            left[which] -= 1
    for which in range(2):
        found[which].extend(range(bound + 1, bound + 1 + left[which]))
        bound += left[which]
    return found


def _in_order(at: Slots) -> list[tuple[int, int, int, int]]:
    """Slot, rank, kind and number of all passes, as they are."""
    return sorted((slot, s, kind, k) for s, rank in enumerate(at)
                  for kind, slots in enumerate(rank) for k, slot in enumerate(slots))


def _needed(at: Slots, s: int, kind: int, k: int) -> int:
    """Latest slot of a pass that another one waits for, but for those of its rank between."""
    found = -1
    if kind in (0, 2) and s > 0:
        found = at[s - 1][kind][k]
    elif kind in (1, 3) and s + 1 < len(at):
        found = at[s + 1][kind][k]
    if 0 < kind < 4:
        found = max(found, at[s][kind - 1][k])
    if k:
        found = max(found, at[s][kind][k - 1])
    return found


def _squeezed(at: Slots) -> Slots:
    """Passes in the same order, each as soon as it may (eager_execution_time, line 96)."""
    last = [-1] * len(at)
    found: Slots = [[[0] * len(slots) for slots in rank] for rank in at]
    for _, s, kind, k in _in_order(at):
        last[s] = max(_needed(found, s, kind, k), last[s]) + 1
        found[s][kind][k] = last[s]
    return found


class RankSlots:
    """What a rank holds in each slot: forwards that wait for their backward for weights.

    Where these have no slots of their own, one runs in each slot that is free.
    """

    def __init__(self, rank: Sequence[Sequence[int]]) -> None:
        self.own = len(rank) > 4
        self.taken = [-1] * (max(slots[-1] for slots in rank) + 1)
        for kind, slots in enumerate(rank):
            for slot in slots:
                self.taken[slot] = kind
        self.held = [0] * len(self.taken)
        self.left = [0] * len(self.taken)
        """Backwards for inputs whose weights are still to come."""
        self._count(0)

    def _count(self, first: int, known: int = -1) -> int:
        """Count from a slot on; the most. Behind slot ``known`` nothing changes once it is as it
        was."""
        now = self.held[first - 1] if first else 0
        left = self.left[first - 1] if first else 0
        most = 0
        for slot in range(first, len(self.taken)):
            kind = self.taken[slot]
            if kind in (0, 1):
                now += 1
            elif kind in (2, 3):
                left += 1
            elif kind == 4 or (left and not self.own):
                now -= 1
                left -= 1
            if -1 < known < slot and self.held[slot] == now and self.left[slot] == left:
                break
            self.held[slot], self.left[slot] = now, left
            most = max(most, now)
        return most

    def move(self, old: int, new: int, limit: int) -> bool:
        """Move a pass ahead, if the rank then holds no more than ``limit``."""
        self.taken[new], self.taken[old] = self.taken[old], -1
        if self._count(new, old) <= limit:
            return True
        self.taken[old], self.taken[new] = self.taken[new], -1
        self._count(new, old)
        return False


def _moved(at: Slots) -> Slots:
    """Passes of the warm-up and the drain moved ahead where memory allows it (reorder, line 145).

    The warm-up ends with the first backward of chunk 0 on rank 0, the stable phase with the last
    forward of that chunk. Passes of the warm-up stay where they are if backwards for weights have
    no slots.
    """
    own, last = len(at[0]) > 4, len(at[0][0]) - 1
    ranks = [RankSlots(rank) for rank in at]
    limit = max(max(rank.held) for rank in ranks)
    backwards: list[list[int]] = [[] for _ in at]
    stable, drains = False, False
    for slot, s, kind, k in _in_order(at):
        stable = stable or (kind == 3 and s == 0)
        if drains or (own and not stable):
            first = _needed(at, s, kind, k)
            if kind == 4:
                first = max(first, backwards[s][k])
            for free in range(first + 1, slot):
                if ranks[s].taken[free] < 0 and ranks[s].move(slot, free, limit):
                    at[s][kind][k] = free
                    break
        else:
            drains = stable and kind == 0 and k == last
        if own and kind in (2, 3):
            insort(backwards[s], at[s][kind][k])
    return at
