"""What the stages in front of a cell add to a step at the least.

Shapes as in :mod:`nest._kernels.pipeline`, whose ``Problem`` they bound; the proofs are in
docs/proofs.md#bounds.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import fold, kernel

# Least figures of (price, signature), indices into ``_least``.
(TIME, TIME_FINISH, STEP, STEP_FINISH, BACK, BACK_FINISH, BACK_READY, FRONT, SENT, ROUND,
 ROUND_FINISH) = range(11)
FIGURES = 11


@kernel
def _least(p, need, behind):
    """Least t, t + finish, ... of the options of (price, signature) with ``need`` in flight."""
    P, G, m = p.first.shape[0], p.first.shape[1] - 1, p.micro_batches
    least = np.full((P, G, FIGURES), np.inf)
    now = np.empty(FIGURES)
    for x in range(P):
        for g in range(G):
            for o in range(p.first[x, g], p.first[x, g + 1]):
                option = p.option[o]
                if -option[fold.HELD] < need:
                    continue
                # What every backward takes, the last one of a step too.
                f, b = option[fold.AHEAD], option[fold.ENDS]
                left, later = option[fold.REMAINS], option[fold.LATER]
                finish = left + later
                t = f + b
                now[TIME] = t
                now[TIME_FINISH] = t + finish
                now[STEP] = m * t
                now[STEP_FINISH] = m * t + finish
                now[BACK] = b
                now[BACK_FINISH] = b + finish
                now[BACK_READY] = b + left if later > 0.0 else -np.inf
                now[FRONT] = f
                now[SENT] = m * f + max(0, m - behind - 1) * b
                now[ROUND] = (m - behind) * t
                now[ROUND_FINISH] = (m - behind) * t + finish
                for n in range(FIGURES):
                    least[x, g, n] = min(least[x, g, n], now[n])
    return least


# Bounds per cell, indices into the result of ``reach``.
ADDED, FORCED, HIDDEN, READY, FRONTS, ARRIVES, TRIPS, STAGES = range(8)
BOUNDS = 8


@kernel
def reach(p, need, behind, limit, place):
    """What the stages in front of (i, k) do to the step at the least; float64 (cells, 8).

    For a label with ``behind`` stages, the step is no shorter than REST + ADDED, FORCED, DONE +
    FRONTS, IDLE + ARRIVES and, where the micro-batches outnumber all stages, 2 AFTER + TRIPS. Under
    GPipe REST is counted as the seconds there and back. What DONE has over REST, and IDLE over
    AFTER, makes no difference up to HIDDEN; what READY has over REST, and IDLE_READY over AFTER, up
    to READY
    (-inf where the first stage may hold no copy of an embedding). STAGES is how many stages are in
    front at the most. inf where nothing below ``limit`` leads. Every stage in front is priced with
    ``need`` micro-batches in flight, no more than it will hold.

    ``place`` int32 (L+1, K+1) numbers the cells that can be reached and holds -1 for the others; it
    is filled where it holds -1 alone. Later calls reach no others: more is asked of each.

    ARRIVES and TRIPS hold (m - n - 1) b and (m - n) t of a stage with n behind it: every further
    stage in between takes one b or t, at most limit / m, away.
    """
    L, K, m = len(p.depths) - 1, p.price.shape[1] - 1, p.micro_batches
    least = _least(p, need, behind)
    count = int(place.max()) + 1
    # Room for all; what is not reached is never touched, so that it takes no memory.
    cells = np.empty((count if count else place.size, BOUNDS))
    cells[:count, :] = np.inf
    cells[:count, STAGES] = 0.0
    if count == 0:
        place[0, 0], count = 0, 1
    cells[0, :] = 0.0
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
                for j in range(i + 1, L + 1):
                    g = p.signature[i, j]
                    t = np.inf
                    if g >= 0:
                        t = least[kind, g, TIME]
                    if t == np.inf:
                        # Longer stages take longer and need more memory: none fits after this.
                        if p.chain:
                            break
                        continue
                    hop = 0.0
                    if j < L:
                        hop = p.hop_bytes[j] * p.hop_per_byte[stop] / p.lanes[x]
                        hop = p.both * (hop + p.hop_latency[stop])
                    # A stage's own finish follows the forward passes in front of it.
                    total = max(added + t, fronts + least[kind, g, TIME_FINISH]) + hop
                    low = max(forced, added + least[kind, g, STEP],
                              fronts + least[kind, g, STEP_FINISH])
                    if max(total, low) >= limit:
                        continue
                    front = least[kind, g, FRONT] + hop / 2
                    back = least[kind, g, BACK_FINISH if i == 0 else BACK]
                    arrives = max(cells[here, ARRIVES] + front - slowest,
                                  fronts + least[kind, g, SENT] + hop / 2)
                    trips = max(cells[here, TRIPS] + 2.0 * (t + hop) - slowest,
                                added + least[kind, g, ROUND] + 2.0 * hop,
                                fronts + least[kind, g, ROUND_FINISH] + 2.0 * hop)
                    to = place[j, stop]
                    if to < 0:
                        to, count = count, count + 1
                        place[j, stop] = to
                        cells[to, :] = np.inf
                        cells[to, STAGES] = 0.0
                    cells[to, ADDED] = min(cells[to, ADDED], total)
                    cells[to, FORCED] = min(cells[to, FORCED], low)
                    cells[to, HIDDEN] = min(cells[to, HIDDEN], cells[here, HIDDEN] + back)
                    ready = least[kind, g, BACK_READY if i == 0 else BACK]
                    cells[to, READY] = min(cells[to, READY], cells[here, READY] + ready)
                    cells[to, FRONTS] = min(cells[to, FRONTS], fronts + front)
                    cells[to, ARRIVES] = min(cells[to, ARRIVES], arrives)
                    cells[to, TRIPS] = min(cells[to, TRIPS], trips)
                    cells[to, STAGES] = max(cells[to, STAGES], cells[here, STAGES] + 1)
    found = cells[:count].copy()
    found[0, READY] = -np.inf  # in front of a whole plan is nothing: it may begin without a copy
    return found
