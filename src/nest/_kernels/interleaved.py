"""Try every interleaved pipeline of one outer choice: equal blocks, degrees and chunks.

Shapes: C candidates, B block sizes, S most stages, V most chunks a stage, L layers, T kinds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import entry, kernel, leaf
from nest._kernels.layers import (
    ACTIVATIONS,
    BACKWARD,
    BUFFERS,
    C_ALONE,
    C_BACKWARD,
    C_FORWARD,
    C_GATHER,
    C_GATHERED,
    C_GATHERS,
    C_HIDES_GATHER,
    C_HIDES_SYNC,
    C_LATE,
    C_LATE_BACK,
    C_LEFT,
    C_QUEUE_BACKWARD,
    C_REGATHERED,
    C_SCATTERED,
    C_SYNC,
    C_TIED,
    C_TRAILING,
    C_TRAILS_BACKWARD,
    C_TRAILS_FORWARD,
    C_UNDER_FIRST,
    C_UNDER_LAST,
    C_UPDATE,
    C_WAIT,
    CHUNK,
    FIELDS,
    FORWARD,
    RESIDENT,
    WORK,
    chunk_costs,
    delayed,
    layer_sums,
    longer,
)
from nest._kernels.pipeline import SLACK


class Rings(NamedTuple):
    """What interleaved pipelines of one outer choice need besides its candidates."""

    size: np.ndarray  # int64 (C,) number of each candidate's block size
    alike: np.ndarray  # int64 (C, classes) the same degrees at a class of places, or -1
    place: np.ndarray  # int64 (B, S) class of the place of stage s, -1 = no block may start there
    hop_per_byte: np.ndarray  # float64 (B, S+1) between stages s-1 and s; seconds per byte and lane
    hop_latency: np.ndarray  # float64 (B, S+1)
    wrap_per_byte: np.ndarray  # float64 (B, S+1) from the last of s stages to the first
    wrap_latency: np.ndarray  # float64 (B, S+1)
    both: float  # ways of a hand-over that compute does not hide
    handed: np.ndarray  # float64 (L+1,) bytes handed over before each layer, one way
    depths: np.ndarray  # bool (S+1,) numbers of stages allowed
    chunks: np.ndarray  # bool (V+1,) numbers of chunks allowed
    order: np.ndarray  # int64 (L,) kind of each layer
    counts: np.ndarray  # int64 (T,) layers of each kind
    marked_before: np.ndarray  # int64 (L+1,) layers in front of each cut that recompute applies to
    first: int  # first of the layers that chunks share out
    last: int  # end of them


@leaf
def _chunk(q, p, v, s, c):
    """Layers of chunk c of stage s: first, end."""
    size = (q.last - q.first) // (p * v)
    n = c * p + s
    start = 0 if n == 0 else q.first + n * size
    stop = len(q.order) if n == p * v - 1 else q.first + (n + 1) * size
    return start, stop


@leaf
def warm_up(s, p, m, v):
    """Forwards before the first backward; :func:`nest.costs.schedules.interleaved.warm_up`."""
    return min(m * v, 2 * (p - s - 1) + (v - 1) * p)


@leaf
def held_bytes(activations, s, p, m, v):
    """Most activations held at once; :func:`nest.costs.schedules.interleaved.held`."""
    m = min(m, 4 * p)
    warm = warm_up(s, p, m, v)
    now = most = 0.0
    for k in range(m * v):
        now += activations[k // p % v]
        most = max(most, now)
        if k >= warm:
            now -= activations[v - 1 - (k - warm) // p % v]
    return most


@leaf
def _free(costs, s, c, way, clock, scattered, front):
    """When a ZeRO-3 pass may begin; ``_Stage.free`` of ``nest.costs.schedules.interleaved``.

    ``front`` int64 (p, 2): chunk, -1 for none, and way of the last pass of each stage.
    """
    if front[s, 0] < 0:
        return clock[s]
    own, before, way_before = costs[s, c], costs[s, front[s, 0]], front[s, 1]
    start = clock[s] + longer(before, way_before, own, way)
    if not before[C_ALONE]:
        scattered[s] = clock[s] + before[C_SCATTERED] if way_before else -np.inf
        return start
    scattered[s] += (own[C_REGATHERED] if way else own[C_GATHERED]) + (
        before[C_BACKWARD] - before[C_UNDER_FIRST] if way_before
        else before[C_FORWARD] - before[C_UNDER_LAST])
    start = max(start, scattered[s])
    if way_before:
        scattered[s] = start + before[C_SCATTERED]
    return start


@leaf
def _behind(costs, s, p, m, v, warm, ahead, back):
    """What the next pass of a stage gathers first, where ``ahead`` and ``back`` are run."""
    total = m * v
    if ahead < total and (ahead < warm or ahead - warm == back):
        return costs[s, ahead // p % v, C_GATHERED]
    return costs[s, v - 1 - back // p % v, C_REGATHERED] if back < total else 0.0


@kernel
def step_seconds(p, m, v, costs, both, gap):
    """Seconds of a step; :func:`nest.costs.schedules.interleaved.step_time`.

    ``costs`` float64 (p, v, CHUNK), hand-overs ``both`` and ``gap`` float64 (p, v), all of which
    may be larger.
    """
    total = m * v
    forward, backward = np.empty((p, total)), np.empty((p, total))
    ahead, back = np.zeros(p, np.int64), np.zeros(p, np.int64)
    clock, scattered = np.zeros(p), np.full(p, -np.inf)
    front, gathers = np.full((p, 2), -1), np.zeros(p, np.bool_)
    sent, returned = np.full(p, -np.inf), np.full(p, -np.inf)
    ends, starts = np.zeros((p, v)), np.zeros((p, v))
    for s in range(p):
        before = 0.0
        for c in range(v):
            gathers[s] |= costs[s, c, C_GATHERS] > 0.0
            if costs[s, c, C_GATHER] > 0.0 or c == 0:
                starts[s, c] = before + costs[s, c, C_WAIT]
            before += costs[s, c, C_GATHER] + p * (
                costs[s, c, C_FORWARD] - costs[s, c, C_HIDES_GATHER])
    left = 2 * p * total
    while left:
        for s in range(p):
            warm = warm_up(s, p, m, v)
            while back[s] < total:
                if ahead[s] < total and (ahead[s] < warm or ahead[s] - warm == back[s]):
                    k = ahead[s]
                    c = k // p % v
                    arrives = 0.0
                    if s > 0:
                        if ahead[s - 1] <= k:
                            break
                        arrives = forward[s, k]
                    elif c > 0:
                        if ahead[p - 1] <= k - p:
                            break
                        arrives = forward[s, k]
                    start = clock[s]
                    if gathers[s]:
                        start = _free(costs, s, c, 0, clock, scattered, front)
                        front[s, 0], front[s, 1] = c, 0
                    start = max(start, arrives)
                    if k == c * p:
                        start = max(start, starts[s, c])
                    clock[s] = start + costs[s, c, C_FORWARD]
                    if not gathers[s]:
                        scattered[s] += costs[s, c, C_FORWARD] - costs[s, c, C_TRAILS_FORWARD]
                    ahead[s] += 1
                    if s < p - 1 or c < v - 1:
                        sent[s] = max(clock[s] + both[s, c] / 2, sent[s] + gap[s, c])
                        if s < p - 1:
                            forward[s + 1, k] = sent[s]
                        else:
                            forward[0, k + p] = sent[s]
                    else:
                        backward[s, k - (v - 1) * p] = clock[s]
                else:
                    k = back[s]
                    c = v - 1 - k // p % v
                    if s < p - 1:
                        if back[s + 1] <= k:
                            break
                    elif c == v - 1:
                        if ahead[s] <= k + (v - 1) * p:
                            break
                    elif back[0] <= k - p:
                        break
                    if gathers[s]:
                        start = _free(costs, s, c, 1, clock, scattered, front)
                        front[s, 0], front[s, 1] = c, 1
                    else:
                        start = max(clock[s], scattered[s] - costs[s, c, C_TRAILS_BACKWARD])
                    back[s] += 1
                    clock[s] = max(start, backward[s, k]) + costs[s, c, C_BACKWARD]
                    if gathers[s]:
                        behind = _behind(costs, s, p, m, v, warm, ahead[s], back[s])
                        clock[s] += delayed(costs[s, c], behind) - costs[s, c, C_LATE]
                    else:
                        scattered[s] = clock[s] + costs[s, c, C_TRAILING]
                    ends[s, c] = clock[s]
                    if s > 0:
                        returned[s - 1] = max(
                            clock[s] + both[s - 1, c] / 2, returned[s - 1] + gap[s - 1, c])
                        backward[s - 1, k] = returned[s - 1]
                    elif c > 0:
                        returned[p - 1] = max(
                            clock[s] + both[p - 1, c - 1] / 2, returned[p - 1] + gap[p - 1, c - 1])
                        backward[p - 1, k + p] = returned[p - 1]
                left -= 1
    return _finish(p, v, costs, ends)


@leaf
def _finish(p, v, costs, ends):
    """End of the step from those of the last backward of each chunk."""
    done = together = exchange = 0.0
    copies = False
    for s in range(p):
        ready, below, tied, update = ends[s, 0], 0.0, 0.0, 0.0
        for c in range(v):
            ready = max(ready, ends[s, c] + below + costs[s, c, C_LEFT]
                        - (costs[s, c, C_SCATTERED] if c else 0.0))
            below += costs[s, c, C_SYNC] + p * (
                costs[s, c, C_BACKWARD] + costs[s, c, C_QUEUE_BACKWARD] + costs[s, c, C_LATE_BACK]
                - costs[s, c, C_LATE] - costs[s, c, C_HIDES_SYNC])
            tied += costs[s, c, C_TIED]
            update += costs[s, c, C_UPDATE]
        if tied > 0.0:
            copies = True
            together, exchange = max(together, ready), max(exchange, tied + update)
        else:
            done = max(done, ready + update)
    return max(done, together + exchange) if copies else done


@leaf
def _recomputed(q, p, v, r, some, again):
    """Fill ``again`` (L,) with the policy of each layer; ``some`` first layers of a chunk, -1: all.
    """
    for n in range(len(again)):
        again[n] = r
    if some < 0:
        return
    for s in range(p):
        for c in range(v):
            start, stop = _chunk(q, p, v, s, c)
            for n in range(start, stop):
                if q.marked_before[n + 1] - q.marked_before[start] > some:
                    again[n] = 0


@leaf
def _fits(t, q, x, p, v, layers, again, activations):
    """Whether all stages hold their layers."""
    for s in range(p):
        place = q.place[x, s]
        resident = work = buffers = 0.0
        for c in range(v):
            start, stop = _chunk(q, p, v, s, c)
            activations[c] = 0.0
            for n in range(start, stop):
                kind, r = q.order[n], again[n]
                activations[c] += layers[place, r, kind, ACTIVATIONS]
                resident += layers[place, r, kind, RESIDENT]
                work = max(work, layers[place, r, kind, WORK])
                buffers = max(buffers, layers[place, r, kind, BUFFERS])
        held = held_bytes(activations, s, p, t.micro_batches, v)
        if resident + work + buffers + held > t.limit_bytes:
            return False
    return True


@leaf
def _price(t, q, x, p, v, layers, again, costs):
    """Fill ``costs`` of all chunks."""
    for s in range(p):
        for c in range(v):
            start, stop = _chunk(q, p, v, s, c)
            chunk_costs(layers[q.place[x, s]], t.overlaps, q.order, again, start, stop,
                        costs[s, c])


@leaf
def _hand_over(q, x, p, v, shards, both, gap):
    """Fill the hand-overs behind all chunks."""
    for s in range(p):
        per_byte, latency = q.wrap_per_byte[x, p], q.wrap_latency[x, p]
        if s < p - 1:
            per_byte, latency = q.hop_per_byte[x, s + 1], q.hop_latency[x, s + 1]
        for c in range(v):
            gap[s, c] = q.handed[_chunk(q, p, v, s, c)[1]] / shards * per_byte
            both[s, c] = q.both * (gap[s, c] + latency)


@leaf
def _quick(p, m, all_layers, first_chunk, place, x, layers):
    """``_least`` from computing alone: layers of each kind of a stage, and of its first chunk."""
    least = there = back = 0.0
    for s in range(p):
        own = ahead = behind = 0.0
        y = place[x, s]
        for kind in range(all_layers.shape[1]):
            forward, backward = layers[y, 0, kind, FORWARD], layers[y, 0, kind, BACKWARD]
            own += all_layers[s, kind] * (forward + backward)
            ahead += first_chunk[s, kind] * forward
            behind += first_chunk[s, kind] * backward
        least = max(least, there + m * own + back)
        there += ahead
        back += behind
    return least


@leaf
def _least(p, m, v, costs, both):
    """No less than this is a step: the way to a stage, its own work, and the way back."""
    least = there = back = 0.0
    for s in range(p):
        own = update = 0.0
        for c in range(v):
            own += costs[s, c, C_FORWARD] + costs[s, c, C_BACKWARD] - costs[s, c, C_LATE]
            update += costs[s, c, C_UPDATE]
        least = max(least, there + m * own + max(back, costs[s, 0, C_LEFT] + update))
        there += costs[s, 0, C_FORWARD] + both[s, 0] / 2
        back += costs[s, 0, C_BACKWARD] - costs[s, 0, C_LATE] + both[s, 0] / 2
    return least


@kernel
def _ways(q, S, V, T, m):
    """Ways to cut into p of at most S stages and v of at most V chunks each.

    Returns
    -------
    ways : int64 (S+1, V+1), number of the way, -1 where there is none.
    every, firsts : int64 (ways, S, T), layers of each kind of each stage, and of its first chunk.
    longest : int64 (S+1, V+1), most layers of a chunk that may be recomputed.
    most : chunks of a stage at the most; 0: there is no way.
    """
    body = q.last - q.first
    ways, longest = np.full((S + 1, V + 1), -1), np.zeros((S + 1, V + 1), np.int64)
    most = count = 0
    for p in range(2, S + 1):
        for v in range(2, V + 1):
            if q.depths[p] and q.chunks[v] and m % p == 0 and body % (p * v) == 0:
                ways[p, v] = count
                count += 1
                most = max(most, v)
    every, firsts = np.zeros((2, count, S, T), np.int64)
    for p in range(2, S + 1):
        for v in range(2, V + 1):
            for n in range(p * v if ways[p, v] >= 0 else 0):
                start, stop = _chunk(q, p, v, n % p, n // p)
                longest[p, v] = max(longest[p, v],
                                    q.marked_before[stop] - q.marked_before[start])
                for x in range(start, stop):
                    every[ways[p, v], n % p, q.order[x]] += 1
                    if n < p:
                        firsts[ways[p, v], n, q.order[x]] += 1
    return ways, every, firsts, longest, most


@entry
def interleave(t, q, limit, spread):
    """Best interleaved pipeline for each number of stages and of chunks, below ``limit`` seconds.

    Every candidate that may lie at all blocks is tried with every way of ZeRO. Recompute is chosen
    as memory asks for it: none where that fits; else each policy that fits, and of "the first r
    layers of a chunk" the least r. Without ``spread`` only the best of all is looked for.

    Returns
    -------
    best : float64 (S+1, V+1), step seconds; inf where nothing was found.
    option : int64 (S+1, V+1), see ``nest.tensors.Builder.degrees``.
    tried : number of pipelines priced.
    """
    C, Z, R, T = len(t.price), len(t.shard), t.back.shape[1], t.ahead.shape[1]
    S, V, radix, m = len(q.depths) - 1, len(q.chunks) - 1, len(t.first_layers), t.micro_batches
    best = np.full((S + 1, V + 1), np.inf)
    option = np.full((S + 1, V + 1), -1)
    below = limit
    tried = 0
    places = q.alike.shape[1]
    layers = np.empty((places, R, T, FIELDS))
    again, activations = np.zeros(len(q.order), np.int64), np.empty(V + 1)
    ways, every, firsts, longest, most = _ways(q, S, V, T, m)
    costs = np.empty((S + 1, most, CHUNK))
    both, gap = np.empty((S + 1, most)), np.empty((S + 1, most))
    for c in range(C if most else 0):
        x = q.size[c]
        if q.place[x, 0] < 0 or q.alike[c, q.place[x, 0]] != c:
            continue
        for z in range(Z):
            if t.forbidden[z] or (t.shard[z] and not t.hybrid[c]):
                continue
            total, priced = np.inf, False
            for y in range(places):
                alike = q.alike[c, y]
                if alike >= 0:
                    layer_sums(t, alike, z, 0, layers[y])
                    now = 0.0
                    for kind in range(T):
                        now += q.counts[kind] * (
                            layers[y, 0, kind, FORWARD] + layers[y, 0, kind, BACKWARD])
                    total = min(total, now)
            code = (c * Z + z) * R
            for p in range(2, S + 1):
                if q.place[x, p - 1] < 0:
                    break
                for v in range(2, V + 1):
                    top = min(below, best[p, v])
                    # The slowest stage takes no less than an even share.
                    if ways[p, v] < 0 or m * total / p >= top or _quick(
                            p, m, every[ways[p, v]], firsts[ways[p, v]], q.place, x,
                            layers) >= top:
                        continue
                    if not priced:
                        priced = True
                        for y in range(places):
                            for r in range(1, R if q.alike[c, y] >= 0 else 0):
                                layer_sums(t, q.alike[c, y], z, r, layers[y])
                    _hand_over(q, x, p, v, t.shards[c], both, gap)
                    # Recompute takes longer: what is too slow without is so with it.
                    again[:] = 0
                    _price(t, q, x, p, v, layers, again, costs)
                    if _least(p, m, v, costs, both) >= top * SLACK:
                        continue
                    for r in range(R):
                        if r == 0 and not t.keep_none:
                            continue
                        chunk_layers = longest[p, v]
                        fewest = 1 if r == t.full and chunk_layers else chunk_layers
                        fits = False
                        for first_layers in range(fewest, chunk_layers + 1):
                            if r == t.full and not (
                                    t.first_layers[first_layers] if first_layers < chunk_layers
                                    else chunk_layers <= t.most_layers):
                                continue
                            some = first_layers if first_layers < chunk_layers else -1
                            _recomputed(q, p, v, r, some, again)
                            fits = _fits(t, q, x, p, v, layers, again, activations)
                            if not fits:
                                continue
                            if r > 0:  # else it is priced
                                _price(t, q, x, p, v, layers, again, costs)
                                if _least(p, m, v, costs, both) >= top * SLACK:
                                    break
                            tried += 1
                            time = step_seconds(p, m, v, costs, both, gap)
                            if time < top * SLACK:
                                top = best[p, v] = time
                                taken = 0 if first_layers == chunk_layers else first_layers
                                option[p, v] = (code + r) * radix + taken
                                if not spread:
                                    below = time
                            break
                        if r == 0 and fits:
                            break
    if not spread:
        for p in range(S + 1):
            for v in range(V + 1):
                if best[p, v] > below:
                    best[p, v] = np.inf
    return best, option, tried
