"""Free cuts of stages of one chunk, each way that may stay below the best."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.orders import CROSSED, is_in
from nest._kernels.pipeline import SLACK
from nest._kernels.uniform.labels import best_cuts
from nest._kernels.uniform.price import price
from nest._kernels.uniform.stages import behind_stage, in_flight_behind, least_of_stage, waits


@leaf
def hand_over(t, q, a, w, k):
    """Fill in the least seconds of the hand-overs between the stages of pipeline k."""
    c, pipe = w.now[0].candidate, a.pipe[k]
    w.now[0].pipeline = k
    for s in range(pipe.pp):
        w.rank[s].near = 0.0
        if s > 0 and not is_in(pipe.schedule, CROSSED):  # whose micro-batches come from both ends
            link = q.hop[q.size[c], s]
            gap = a.least_handed / t.candidate[c].shards * link.per_byte
            w.rank[s].near = w.rank[s - 1].near + q.both * (gap + link.latency)


@leaf
def try_cuts(t, q, a, w, top, first):
    """``_look`` of ``search`` at free cuts."""
    k, now = w.now[0].pipeline, w.now[0]
    p, N = a.pipe[k].pp, len(a.order)
    if not _reach_the_end(t, q, a, w, k, now.guess if first else top):
        return top
    _bound_stages(t, q, a, w, now.guess if first else top)
    bound = w.bound[0, 0]
    if bound >= (now.guess if first else top) * SLACK:
        return top
    w.cuts[0], w.cuts[p] = 0, N
    for s in range(p - 1):
        w.cuts[s + 1] = w.via[s, w.cuts[s]]
    top = price(t, q, a, w, top)
    if first:
        now.guess = bound
        return top
    # Each way to stay below.
    s, left = np.int64(0), a.most
    w.at[0] = 0
    if p == 1 or bound >= top * SLACK:
        return top
    if left == 0:
        now.unproved = min(now.unproved, bound)
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
    p, N, i = a.pipe[k].pp, len(a.order), 0
    for s in range(p):
        j = i
        while j < N and _least_of_stage(t, q, a, w, k, s, i, j + 1) < top * SLACK:
            j += 1
        i = j
    return i == N


@leaf
def _least_of_stage(t, q, a, w, k, s, i, j):
    """``least_of_stage`` with the least that its layers take and hold."""
    pipe, some, front, end, body = a.pipe[k], w.now[0].first, w.before[i], w.before[j], w.body[0]
    n = in_flight_behind(pipe, t.micro_batches, s)
    kept = end.activations - front.activations
    f, b = end.forward - front.forward, end.backward - front.backward
    if some > 0:  # only so many layers have recompute, at first those in front of the body
        layers = max(0, min(j, a.body[1]) - max(i, a.body[0]))
        b += body.recompute * min(layers, max(0, some - q.marked_before[a.body[0]]))
        kept += body.freed * max(0, q.marked_before[j] - q.marked_before[i] - some)
    if end.resident - front.resident + (n + 1) * kept > t.limit_bytes / SLACK:
        return np.inf
    behind = behind_stage(w, pipe, s, j, len(a.order))
    return front.forward + front.backward + w.rank[s].near + waits(
        pipe, t.micro_batches, n, f, b, behind)


@leaf
def _bound_stages(t, q, a, w, top):
    """Fill ``w.bound`` and ``w.via``: the least that all stages from one on take."""
    k, before = w.now[0].pipeline, w.before
    p, m, N = a.pipe[k].pp, t.micro_batches, len(a.order)
    total, low, high = before[N].forward + before[N].backward, N, N
    w.bound[p, :], w.bound[p, N] = np.inf, 0.0
    for s in range(p - 1, -1, -1):
        w.bound[s, :] = np.inf
        # No stage takes as long as top / m a micro-batch.
        first, last = s, high - 1 if s > 0 else 0
        while s > 0 and last >= s and (
                m * (before[last].forward + before[last].backward) > s * top):
            last -= 1
        while first <= last and (
                m * (total - before[first].forward - before[first].backward) > (p - s) * top):
            first += 1
        for i in range(first, last + 1):
            done = before[i].forward + before[i].backward
            if not a.cut[k, i]:
                continue
            for j in range(max(i + 1, low), high + 1):
                if m * (before[j].forward + before[j].backward - done) >= top:
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
    p, m, i, before = a.pipe[w.now[0].pipeline].pp, t.micro_batches, w.cuts[s], w.before
    done = before[i].forward + before[i].backward
    for behind in range(j, len(a.order) - (p - 2 - s)):
        if m * (before[behind].forward + before[behind].backward - done) >= top:
            break
        if w.bound[s + 1, behind] < top * SLACK and least_of_stage(
                t, q, a, w, s, i, behind) < top * SLACK:
            return behind
    return -1
