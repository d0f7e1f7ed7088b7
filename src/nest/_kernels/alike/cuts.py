"""Free cuts of stages of one chunk, each way that may stay below the best."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.alike.labels import best_cuts
from nest._kernels.alike.price import price
from nest._kernels.alike.stages import least_of_stage, waits
from nest._kernels.alike.work import CANDIDATE, FIRST, PIPELINE
from nest._kernels.orders import DUALPIPE, GPIPE
from nest._kernels.pipeline import SLACK


@leaf
def hand_over(t, q, a, w, k):
    """Fill in the least seconds of the hand-overs between the stages of pipeline k."""
    c, p = w.question[CANDIDATE], a.pp[k]
    x = q.size[c]
    w.question[PIPELINE] = k
    for s in range(1, p):
        gap = a.least_handed / t.shards[c] * q.hop[0, x, s]
        w.near[s] = w.near[s - 1] + q.both * (gap + q.hop[1, x, s])
    if a.schedule[k] == DUALPIPE:  # whose micro-batches come from both ends
        w.near[:] = 0.0


@leaf
def try_cuts(t, q, a, w, top, first):
    """``_look`` of ``search`` at free cuts."""
    k = w.question[PIPELINE]
    p, N = a.pp[k], len(a.order)
    if not _reach_the_end(t, q, a, w, k, w.guess[0] if first else top):
        return top
    _bound_stages(t, q, a, w, w.guess[0] if first else top)
    bound = w.bound[0, 0]
    if bound >= (w.guess[0] if first else top) * SLACK:
        return top
    w.cuts[0], w.cuts[p] = 0, N
    for s in range(p - 1):
        w.cuts[s + 1] = w.via[s, w.cuts[s]]
    top = price(t, q, a, w, top)
    if first:
        w.guess[0] = bound
        return top
    # Each way to stay below.
    s, left = np.int64(0), a.most
    w.at[0] = 0
    if p == 1 or bound >= top * SLACK:
        return top
    if left == 0:
        w.unproved[0] = min(w.unproved[0], bound)
        return top
    while s >= 0:
        if s == p - 1:
            top = price(t, q, a, w, top)
            s, left = s - 1, left - 1
            if left == 0:
                return best_cuts(t, q, a, w, top)
            continue
        w.at[s] = _next_cut(t, q, a, w, s, w.at[s] + 1, top)
        if w.at[s] < 0:
            s -= 1
            continue
        s += 1
        w.cuts[s] = w.at[s] = w.at[s - 1]
    return top


@leaf
def _reach_the_end(t, q, a, w, k, top):
    """Whether stages of one chunk, each with as many layers as it may have at the most, have all.

    That is with the least that layers take and hold, whose bounds grow with a stage at either end.
    """
    p, N, i = a.pp[k], len(a.order), 0
    for s in range(p):
        j = i
        while j < N and _least_of_stage(t, q, a, w, k, s, i, j + 1) < top * SLACK:
            j += 1
        i = j
    return i == N


@leaf
def _least_of_stage(t, q, a, w, k, s, i, j):
    """``least_of_stage`` with the least that its layers take and hold."""
    p, m, N, some = a.pp[k], t.micro_batches, len(a.order), w.question[FIRST]
    n = m - 1 if a.schedule[k] == GPIPE else min(p - 1 - s, m - 1)
    kept, f, b = w.kept[j] - w.kept[i], w.ahead[j] - w.ahead[i], w.back[j] - w.back[i]
    if some > 0:  # only so many layers have recompute, at first those in front of the body
        layers = max(0, min(j, a.body[1]) - max(i, a.body[0]))
        b += w.layer[1] * min(layers, max(0, some - q.marked_before[a.body[0]]))
        kept += w.layer[3] * max(0, q.marked_before[j] - q.marked_before[i] - some)
    if w.resident[j] - w.resident[i] + (n + 1) * kept > t.limit_bytes / SLACK:
        return np.inf
    behind = w.ahead[N] - w.ahead[j] + w.back[N] - w.back[j] + w.near[p - 1] - w.near[s]
    return w.ahead[i] + w.back[i] + w.near[s] + waits(t, a, k, n, f, b, behind)


@leaf
def _bound_stages(t, q, a, w, top):
    """Fill ``w.bound`` and ``w.via``: the least that all stages from one on take."""
    k = w.question[PIPELINE]
    p, m, N = a.pp[k], t.micro_batches, len(a.order)
    total, low, high = w.ahead[N] + w.back[N], N, N
    w.bound[p, :], w.bound[p, N] = np.inf, 0.0
    for s in range(p - 1, -1, -1):
        w.bound[s, :] = np.inf
        # No stage takes as long as top / m a micro-batch.
        first, last = s, high - 1 if s > 0 else 0
        while s > 0 and last >= s and m * (w.ahead[last] + w.back[last]) > s * top:
            last -= 1
        while first <= last and m * (total - w.ahead[first] - w.back[first]) > (p - s) * top:
            first += 1
        for i in range(first, last + 1):
            done = w.ahead[i] + w.back[i]
            if not a.cut[k, i]:
                continue
            for j in range(max(i + 1, low), high + 1):
                if m * (w.ahead[j] + w.back[j] - done) >= top:
                    break
                behind = w.bound[s + 1, j]
                if behind < min(top, w.bound[s, i]):
                    least = least_of_stage(t, q, a, w, s, i, j)
                    if least == np.inf and a.grows:
                        break
                    if max(least, behind) < w.bound[s, i]:
                        w.bound[s, i], w.via[s, i] = max(least, behind), j
        low, high = first, last


@leaf
def _next_cut(t, q, a, w, s, j, top):
    """First cut from j on behind stage s with which a step may take less than ``top``; -1: none."""
    p, m, i = a.pp[w.question[PIPELINE]], t.micro_batches, w.cuts[s]
    for behind in range(j, len(a.order) - (p - 2 - s)):
        if m * (w.ahead[behind] + w.back[behind] - w.ahead[i] - w.back[i]) >= top:
            break
        if w.bound[s + 1, behind] < top * SLACK and least_of_stage(
                t, q, a, w, s, i, behind) < top * SLACK:
            return behind
    return -1
