"""A stage in front of others under 1F1B; ``nest.costs.schedules.one_f_one_b.add_stage`` in a label.

The figures of a label are described in :mod:`nest._kernels.pipeline`; docs/proofs.md has the
recursion.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import kernel, leaf

# Figures of a label, and the least that a plan with it takes.
T, Q, W, V, Y, Z, N, SHARDS, P, M, A, B, R, U, X, LOW = range(16)
LABEL = 15
UNTIED = 12
"""Figures of a label where no stage holds a copy."""
FAR = -1e300


@kernel
def shares(count, n):
    """How often each trip counts while ``count`` micro-batches pass, ``n`` stages behind; (13,).

    One by one; trips to the next stage and what is left over; trips to the one behind it and what
    is left over; trips through all, and the first six again for what is left over.
    """
    found, left = np.zeros(13), max(count, 0)
    found[6] = left // (n + 1)
    for x in (0, 7):
        found[x], found[x + 1], found[x + 2] = left, left // 2, left % 2
        found[x + 3], found[x + 4], found[x + 5] = left // 3, left % 3 // 2, left % 3 % 2
        left %= n + 1
    return found


@leaf
def add_stage(old, f, b, end, turn, chase, queue, queue_back, hop, gap, n, m, half, steady, others,
              new):
    """Fill T, Q, N, M, A, P and B of ``new`` with a stage in front of the ``n`` of label ``old``.

    ``end`` is the last backward of the stage, ``b`` any other; what passes take longer in a row is
    as in ``_kernels.fold``. ``half`` is m // 2, or 0 where no stage has as many behind it, so that
    B is never asked for. ``steady`` and ``others`` are the ``shares`` of m - n - 2 and
    m - 1 - half. Returns the end of the last forward at the least.
    """
    t = f + b
    swap = t + turn + chase
    new[N], middle = t + turn, FAR
    if n == 0:
        first = f + turn
        ends = first + (m - 1) * swap
        sent, early = ends - turn, ends - swap
        new[Q], new[M], new[A] = t + turn, 0.0, first + end
        if half:
            middle = ends - half * swap
    else:
        rest, after, behind, two = old[T], old[Q], old[N], old[M]
        trip, queued, row = after + hop, b + queue_back, f + queue
        pair, three, full = t + hop + behind + chase, t + hop + two + chase, t + trip + chase
        most, fewer = min(m, n) - 1, min(m - 1, n - 2)
        away = max(trip, most * row + hop + behind, fewer * row + hop + two)
        first = f + max(min(m - 1, n) * row + turn, away)
        drain = hop + max(old[A], _drain(0, most, fewer, queued, behind, two))
        if m < n + 2:
            sent = m * f + (m - 1) * queue
            home = first + (m - 1) * queued
        else:
            sent = first + b + chase + f + _pass(steady, swap, behind, pair, three, full)
            home = sent + turn + n * queued
        leaves = sent
        if m > n:
            leaves = max(sent, f + away - hop + (m - n - 1) * behind)
        last = f + hop + old[P]
        ends = max(home, sent + trip, leaves + drain, f + hop + rest, last + queued)
        early = max(home - queued, last, leaves + hop + _drain(1, most, fewer, queued, behind, two))
        new[Q], new[M] = t + trip, t + hop + behind
        new[A] = f + max(drain, turn + min(m - 1, n) * queued) + end
        if half:
            back = f + hop + old[B]
            middle = max(back, leaves + hop + _drain(half, most, fewer, queued, behind, two))
            if half <= n:
                ends = max(ends, back + half * queued)
                early = max(early, back + (half - 1) * queued)
                middle = max(middle, home - half * queued)
            else:
                middle = max(middle, first + _pass(others, swap, behind, pair, three, full))
    new[T] = max(ends + end, new[Q] - (b - end) + (m - 1) * gap)
    new[P] = new[B] = FAR
    if m > 1:
        pace = (new[T] - new[Q]) / (m - 1)
        new[P] = max(early + b, new[T] - pace)
        if half:
            new[B] = max(middle + b, new[T] - half * pace)
    return max(sent, f + (m - 1) * gap)


@leaf
def _drain(j, most, fewer, queued, behind, two):
    """From the last forward of the next stage, or the one behind it, until j backwards are left.

    They have as many backwards in a row, ``most`` and ``fewer``; ``FAR`` where less than j, or one.
    """
    if most < max(j, 1):
        return FAR
    there = (most - j) * queued + behind
    return max(there, (fewer - j) * queued + two) if fewer >= max(j, 1) else there


@leaf
def _pass(count, swap, other, pair, three, full):
    """Seconds in which micro-batches pass; ``_between`` of the schedule, from their ``shares``."""
    one = max(swap, other)
    left = max(count[7] * swap, count[8] * pair + count[9] * one,
               count[10] * three + count[11] * pair + count[12] * one)
    return max(count[0] * swap, count[1] * pair + count[2] * one,
               count[3] * three + count[4] * pair + count[5] * one, count[6] * full + left)
