"""Free cuts of stages of one chunk, each way that may stay below the best."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.labels import SLACK
from nest._kernels.orders import CROSSED, is_in
from nest._kernels.uniform.labels import best_cuts
from nest._kernels.uniform.price import price
from nest._kernels.uniform.stages import behind_stage, in_flight_behind, least_of_stage, waits
from nest._kernels.uniform.work import UniformWork
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees


@leaf
def hand_over(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, k: int,
) -> None:
    """Fill in the least seconds of the hand-overs between the stages of pipeline k."""
    c, pipe = work.now[0].candidate, pipelines.pipe[k]
    work.now[0].pipeline = k
    for s in range(pipe.pp):
        work.rank[s].near = 0.0
        if s > 0 and not is_in(pipe.schedule, CROSSED):  # whose micro-batches come from both ends
            link = places.hop[places.size[c], s]
            gap = pipelines.least_handed / degrees.candidate[c].shards * link.per_byte
            work.rank[s].near = work.rank[s - 1].near + places.both * (gap + link.latency)


@leaf
def try_cuts(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, top: float,
    first: int,
) -> float:
    """``_look`` of ``search`` at free cuts."""
    k, now = work.now[0].pipeline, work.now[0]
    p, N = pipelines.pipe[k].pp, len(pipelines.order)
    if not _reach_the_end(degrees, places, pipelines, work, k, now.guess if first else top):
        return top
    _bound_stages(degrees, places, pipelines, work, now.guess if first else top)
    bound = work.bound[0, 0]
    if bound >= (now.guess if first else top) * SLACK:
        return top
    work.cuts[0], work.cuts[p] = 0, N
    for behind in range(1, p):
        work.cuts[behind] = work.via[behind - 1, work.cuts[behind - 1]]
    top = price(degrees, places, pipelines, work, top)
    if first:
        now.guess = bound
        return top
    # Each way to stay below.
    left: int = pipelines.most
    s = work.at[0] = 0
    if p == 1 or bound >= top * SLACK:
        return top
    if left == 0:
        now.unproved = min(now.unproved, bound)
        return top
    while s >= 0:
        if s == p - 1:
            top = price(degrees, places, pipelines, work, top)
            s, left = s - 1, left - 1
            if left == 0:
                return best_cuts(degrees, places, pipelines, work, top)
            continue
        work.at[s] = _next_cut(degrees, places, pipelines, work, s, work.at[s] + 1, top)
        if work.at[s] < 0:
            s -= 1
            continue
        s += 1
        work.cuts[s] = work.at[s] = work.at[s - 1]
    return top


@leaf
def _reach_the_end(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, k: int, top: float,
) -> bool:
    """Whether stages of one chunk, each with as many layers as it may have at the most, have all.

    That is with the least that layers take and hold, whose bounds grow with a stage at either end.
    """
    p, N, i = pipelines.pipe[k].pp, len(pipelines.order), 0
    for s in range(p):
        j = i
        while j < N and _least_of_stage(degrees, places, pipelines, work, k, s, i,
                j + 1) < top * SLACK:
            j += 1
        i = j
    return i == N


@leaf
def _least_of_stage(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, k: int, s: int,
    i: int, j: int,
) -> float:
    """``least_of_stage`` with the least that its layers take and hold."""
    pipe, some, front, end, body = pipelines.pipe[k], work.now[0].first, work.before[
        i], work.before[j], work.body[0]
    n = in_flight_behind(pipe, degrees.micro_batches, s)
    kept = end.activations - front.activations
    f, b = end.forward - front.forward, end.backward - front.backward
    if some > 0:  # only so many layers have recompute, at first those in front of the body
        layers = max(0, min(j, pipelines.body[1]) - max(i, pipelines.body[0]))
        b += body.recompute * min(layers, max(0, some - places.marked_before[pipelines.body[0]]))
        kept += body.freed * max(0, places.marked_before[j] - places.marked_before[i] - some)
    if end.resident - front.resident + (n + 1) * kept > degrees.limit_bytes / SLACK:
        return np.inf
    behind = behind_stage(work, pipe, s, j, len(pipelines.order))
    return front.forward + front.backward + work.rank[s].near + waits(
        pipe, degrees.micro_batches, n, f, b, behind)


@leaf
def _bound_stages(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, top: float,
) -> None:
    """Fill ``work.bound`` and ``work.via``: the least that all stages from one on take."""
    k, before = work.now[0].pipeline, work.before
    p, m, N = pipelines.pipe[k].pp, degrees.micro_batches, len(pipelines.order)
    total, low, high = before[N].forward + before[N].backward, N, N
    work.bound[p, :], work.bound[p, N] = np.inf, 0.0
    for s in range(p - 1, -1, -1):
        work.bound[s, :] = np.inf
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
            if not pipelines.cut[k, i]:
                continue
            for j in range(max(i + 1, low), high + 1):
                if m * (before[j].forward + before[j].backward - done) >= top:
                    break
                behind = work.bound[s + 1, j]
                if behind < min(top, work.bound[s, i]):
                    least = least_of_stage(degrees, places, pipelines, work, s, i, j)
                    if least == np.inf and pipelines.grows:
                        break
                    if max(least, behind) < work.bound[s, i]:
                        work.bound[s, i], work.via[s, i] = max(least, behind), j
        low, high = first, last


@leaf
def _next_cut(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, s: int, j: int,
    top: float,
) -> int:
    """First cut from j on behind stage s with which a step may take less than ``top``; -1: none."""
    p, m, i, before = pipelines.pipe[work.now[0].pipeline].pp, degrees.micro_batches, work.cuts[
        s], work.before
    done = before[i].forward + before[i].backward
    for behind in range(j, len(pipelines.order) - (p - 2 - s)):
        if m * (before[behind].forward + before[behind].backward - done) >= top:
            break
        if work.bound[s + 1, behind] < top * SLACK and least_of_stage(
                degrees, places, pipelines, work, s, i, behind) < top * SLACK:
            return behind
    return -1
