"""A stage in front of others under 1F1B; ``nest.costs.schedules.one_f_one_b.add_stage`` in a label.

The figures of a label are described in :mod:`nest._kernels.pipeline`; docs/algorithm.md has the
recursion.
"""

from __future__ import annotations

from numba import njit

from nest._kernels import CACHE

# Figures of a label, and the least that a plan with it takes.
T, Q, W, V, Y, Z, N, SHARDS, P, M, A, B, R, U, X, LOW = range(16)
LABEL = 15
UNTIED = 12
"""Figures of a label where no stage holds a copy."""
FAR = -1e300


@njit(cache=CACHE, nogil=True)
def add_stage(old, f, b, end, turn, chase, queue, queue_back, hop, n, m, new):
    """Fill T, Q, N, M, A, P and B of ``new`` with a stage in front of the ``n`` of label ``old``.

    ``end`` is the last backward of the stage, ``b`` any other; what passes take longer in a row is
    as in ``_kernels.pipeline.Problem``. Returns the end of the last forward at the least.
    """
    t, half = f + b, m // 2
    swap = t + turn + chase
    new[N] = t + turn
    if n == 0:
        first = f + turn
        ends = first + (m - 1) * swap
        new[T], new[Q], new[M], new[A] = ends + end, t + turn, 0.0, first + end
        new[P], new[B] = ends - swap + b, ends - half * swap + b
        if m == 1:
            new[P] = new[B] = FAR
        return ends - turn
    rest, after, behind, two = old[T], old[Q], old[N], old[M]
    trip, queued, row = after + hop, b + queue_back, f + queue
    pair, three = t + hop + behind, t + hop + two
    most, fewer = min(m, n) - 1, min(m - 1, n - 2)
    away = max(trip, most * row + hop + behind, fewer * row + hop + two)
    first = f + max(min(m - 1, n) * row + turn, away)
    drain = hop + max(old[A], _drain(0, most, fewer, queued, behind, two))
    if m < n + 2:
        sent = m * f + (m - 1) * queue
        home = first + (m - 1) * queued
    else:
        sent = first + b + chase + f + _between(
            m - n - 2, n, swap, behind, pair + chase, three + chase, t + trip + chase)
        home = sent + turn + n * queued
    leaves = sent
    if m > n:
        leaves = max(sent, f + away - hop + (m - n - 1) * behind)
    ends = max(home, sent + trip, leaves + drain, f + hop + rest)
    new[Q], new[M] = t + trip, pair
    new[A] = f + max(drain, turn + min(m - 1, n) * queued) + end
    if m == 1:
        new[T], new[P], new[B] = ends + end, FAR, FAR
        return sent
    last, middle = f + hop + old[P], f + hop + old[B]
    ends = max(ends, last + queued)
    early = max(home - queued, last, leaves + hop + _drain(1, most, fewer, queued, behind, two))
    mid = max(middle, leaves + hop + _drain(half, most, fewer, queued, behind, two))
    if half <= n:
        ends = max(ends, middle + half * queued)
        early = max(early, middle + (half - 1) * queued)
        mid = max(mid, home - half * queued)
    else:
        mid = max(mid, first + _between(
            m - 1 - half, n, swap, behind, pair + chase, three + chase, t + trip + chase))
    new[T], new[P], new[B] = ends + end, early + b, mid + b
    return sent


@njit(cache=CACHE, nogil=True)
def _drain(j, most, fewer, queued, behind, two):
    """From the last forward of the next stage, or the one behind it, until j backwards are left.

    They have as many backwards in a row, ``most`` and ``fewer``; ``FAR`` where less than j, or one.
    """
    if most < max(j, 1):
        return FAR
    there = (most - j) * queued + behind
    return max(there, (fewer - j) * queued + two) if fewer >= max(j, 1) else there


@njit(cache=CACHE, nogil=True)
def _between(count, n, swap, other, pair, three, full):
    """Seconds in which ``count`` micro-batches pass; the twin of the one in the schedule."""
    trips = count // (n + 1)
    left = count - trips * (n + 1)
    return max(_short(count, swap, other, pair, three),
               trips * full + _short(left, swap, other, pair, three))


@njit(cache=CACHE, nogil=True)
def _short(count, swap, other, pair, three):
    """The same without round trips through all."""
    one, left = max(swap, other), count % 3
    return max(count * swap, count // 2 * pair + count % 2 * one,
               count // 3 * three + left // 2 * pair + left % 2 * one)
