"""What the stages in front of a cell add to a step at the least.

Shapes as in :mod:`nest._kernels.pipeline`, whose ``Problem`` they bound; proofs:
docs/proofs.md, Lemma 25 (bounds of a cell).
"""

from __future__ import annotations

import numpy as np

from nest._kernels import fold, leaf

# Least figures of the options of (price, signature), in the row of the first of them.
(TIME, TIME_FINISH, STEP, STEP_FINISH, BACK, BACK_FINISH, BACK_READY, FRONT, SENT, ROUND,
 ROUND_FINISH) = range(11)
LEAST = 11


@leaf
def _fill_least(p, least, need, behind):
    """Least t, t + finish, ... of the options of (price, signature) with ``need`` in flight."""
    P, G, m = p.first.shape[0], p.first.shape[1] - 1, p.micro_batches
    now = len(p.option)  # the last row is that of the option at hand
    for x in range(P):
        for g in range(G):
            row = p.first[x, g]
            if row == p.first[x, g + 1]:
                continue
            for n in range(LEAST):
                least[row, n] = np.inf
            for o in range(p.first[x, g], p.first[x, g + 1]):
                if p.held[o] < need:
                    continue
                # What every backward takes, the last one of a step too.
                f, b = p.option[o, fold.AHEAD], p.option[o, fold.ENDS]
                left, later = p.option[o, fold.REMAINS], p.option[o, fold.LATER]
                t, finish = f + b, left + later
                least[now, TIME], least[now, TIME_FINISH] = t, t + finish
                least[now, STEP], least[now, STEP_FINISH] = m * t, m * t + finish
                least[now, BACK], least[now, BACK_FINISH] = b, b + finish
                least[now, BACK_READY] = b + left if later > 0.0 else -np.inf
                least[now, FRONT] = f
                least[now, SENT] = m * f + max(0, m - behind - 1) * b
                least[now, ROUND] = (m - behind) * t
                least[now, ROUND_FINISH] = (m - behind) * t + finish
                for n in range(LEAST):
                    least[row, n] = min(least[row, n], least[now, n])


# Bounds per cell, indices into the result of ``reach``.
ADDED, FORCED, HIDDEN, READY, FRONTS, ARRIVES, TRIPS = range(7)
BOUNDS = 7


@leaf
def _unknown(w, here):
    """A cell to which no way is known."""
    for n in range(BOUNDS):
        w.front[here, n] = np.inf
    w.stages[here] = 0


@leaf
def reach(p, w, need, behind, limit, count):
    """Fill ``w.front`` with what the stages in front of (i, k) add to a step; the cells reached.

    For a label with ``behind`` stages, the step is no shorter than REST + ADDED, FORCED, DONE +
    FRONTS, IDLE + ARRIVES and, where the micro-batches outnumber all stages, 2 AFTER + TRIPS. Under
    GPipe REST is counted as the seconds there and back. What DONE has over REST, and IDLE over
    AFTER, makes no difference up to HIDDEN; what a label's READY has over REST, and IDLE_READY over
    AFTER, up to READY (-inf where the first stage may hold no copy of an embedding). inf where
    nothing below ``limit`` leads. Every stage in front is priced with ``need`` micro-batches in
    flight, no more than it will hold. ``w.stages`` says how many are in front at the most.

    ``w.place`` numbers the cells that can be reached and holds -1 for the others. It is filled
    where ``count``, the cells reached before, is 0; later calls reach no others, for more is asked
    of each stage.

    ARRIVES and TRIPS hold (m - n - 1) b and (m - n) t of a stage with n behind it: every further
    stage in between takes one b or t, at most limit / m, away.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    place, cells, stages, least = w.place, w.front, w.stages, w.least
    _fill_least(p, least, need, behind)
    for here in range(count):
        _unknown(w, here)
    if count == 0:
        place[0, 0], count = 0, 1
    for n in range(BOUNDS):
        cells[0, n] = 0.0
    stages[0] = 0
    cells[0, TRIPS] = cells[0, ARRIVES] = -np.inf
    slowest = limit / m
    for i in range(L):
        for k in range(K):
            here = place[i, k]
            if here < 0 or cells[here, ADDED] == np.inf:
                continue
            added, forced, fronts = cells[here, ADDED], cells[here, FORCED], cells[here, FRONTS]
            for x in range(len(p.sizes)):
                kind, stop = p.price[x, k], k + p.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(p.ends[0, kind, i], p.ends[1, kind, i]):
                    g = p.signature[i, j]
                    row = p.first[kind, g]
                    if g < 0 or row == p.first[kind, g + 1]:
                        continue
                    t = least[row, TIME]
                    if t == np.inf:
                        continue
                    hop = 0.0
                    if j < L:
                        hop = p.hop_bytes[j] * p.hop_per_byte[stop] / p.lanes[x]
                        hop = p.both * (hop + p.hop_latency[stop])
                    # A stage's own finish follows the forward passes in front of it.
                    total = max(added + t, fronts + least[row, TIME_FINISH]) + hop
                    low = max(forced, added + least[row, STEP],
                              fronts + least[row, STEP_FINISH])
                    if max(total, low) >= limit:
                        continue
                    front = least[row, FRONT] + hop / 2
                    back = least[row, BACK_FINISH if i == 0 else BACK]
                    arrives = max(cells[here, ARRIVES] + front - slowest,
                                  fronts + least[row, SENT] + hop / 2)
                    trips = max(cells[here, TRIPS] + 2.0 * (t + hop) - slowest,
                                added + least[row, ROUND] + 2.0 * hop,
                                fronts + least[row, ROUND_FINISH] + 2.0 * hop)
                    to = place[j, stop]
                    if to < 0:
                        to, count = count, count + 1
                        place[j, stop] = to
                        _unknown(w, to)
                    cells[to, ADDED] = min(cells[to, ADDED], total)
                    cells[to, FORCED] = min(cells[to, FORCED], low)
                    cells[to, HIDDEN] = min(cells[to, HIDDEN], cells[here, HIDDEN] + back)
                    ready = least[row, BACK_READY if i == 0 else BACK]
                    cells[to, READY] = min(cells[to, READY], cells[here, READY] + ready)
                    cells[to, FRONTS] = min(cells[to, FRONTS], fronts + front)
                    cells[to, ARRIVES] = min(cells[to, ARRIVES], arrives)
                    cells[to, TRIPS] = min(cells[to, TRIPS], trips)
                    stages[to] = max(stages[to], stages[here] + 1)
    cells[0, READY] = -np.inf  # in front of a whole plan is nothing: it may begin without a copy
    return count
