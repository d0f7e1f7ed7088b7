"""Try every interleaved pipeline of one outer choice: equal blocks, degrees and chunks.

Shapes: C candidates, B block sizes, S most stages, V most chunks a stage, L layers, T kinds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nest._kernels import CACHE
from nest._kernels.options import (
    ACTIVATIONS,
    BACKWARD,
    BUFFERS,
    D_BACK,
    D_HELD,
    D_SYNC,
    D_WORK,
    EXPOSED,
    FIELDS,
    FORWARD,
    GATHER,
    RESIDENT,
    SYNC,
    TRAFFIC,
    WORK,
    finish_seconds,
    layer_sums,
    policy_changes,
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
    handed: np.ndarray  # float64 (L+1,) bytes handed over before each layer, both ways
    depths: np.ndarray  # bool (S+1,) numbers of stages allowed
    chunks: np.ndarray  # bool (V+1,) numbers of chunks allowed
    kinds: np.ndarray  # int64 (L+1, T) layers of each kind in front of each cut
    marked: np.ndarray  # int64, layers that recompute applies to
    marked_before: np.ndarray  # int64 (L+1,) how many of them are in front of each cut
    first: int  # first of the layers that chunks share out
    last: int  # end of them


@njit(cache=CACHE, nogil=True)
def _chunk(q, p, v, s, c):
    """Layers of chunk c of stage s: first, end."""
    size = (q.last - q.first) // (p * v)
    n = c * p + s
    start = 0 if n == 0 else q.first + n * size
    stop = len(q.kinds) - 1 if n == p * v - 1 else q.first + (n + 1) * size
    return start, stop


@njit(cache=CACHE, nogil=True)
def in_flight(s, p, m, v):
    """Chunks in flight on stage s; :func:`nest.costs.schedules.interleaved.in_flight`."""
    return min(m * v, 2 * (p - s - 1) + (v - 1) * p + 1)


@njit(cache=CACHE, nogil=True)
def step_seconds(p, f, b, finish, hops, m, v, traffic, overlap):
    """Seconds of a step of p stages; :func:`nest.costs.schedules.interleaved.step_time`."""
    waits = (v - 1) * hops[p - 1]
    behind = reach = done = 0.0
    for s in range(p - 1, -1, -1):
        n = p - 1 - s
        own = m * (f[s] + b[s]) + max(0.0, behind - 2 * n * f[s] / v)
        own += max(0.0, behind - 2 * n * b[s] / v)
        reach = max(own, (f[s] + b[s]) / v + reach)
        late = 0.0
        if n:
            late = f[s] / v - hops[s] / 2 + done
            waits += v * hops[s]
        left = max(finish[s], traffic[s] - overlap * p / m * reach)
        done = max(reach + left, late)
        behind += (f[s] + b[s]) / v
    return waits + done


@njit(cache=CACHE, nogil=True)
def _layers(q, p, v, s, first_layers, counts):
    """Fill ``counts`` (T,) with the layers of stage s, of each chunk those up to the last of its
    first so many that recompute applies to; -1: all."""
    for kind in range(q.kinds.shape[1]):
        counts[kind] = 0
    for c in range(v):
        start, stop = _chunk(q, p, v, s, c)
        if 0 <= first_layers < q.marked_before[stop] - q.marked_before[start]:
            stop = q.marked[q.marked_before[start] + first_layers - 1] + 1
        for kind in range(q.kinds.shape[1]):
            counts[kind] += q.kinds[stop, kind] - q.kinds[start, kind]


@njit(cache=CACHE, nogil=True)
def _stage_sums(held, s, layers, sums):
    """Fill ``sums`` (10,) with what the layers of stage s add up to without recompute."""
    for x in range(FIELDS):
        sums[s, x] = 0.0
    for kind in range(layers.shape[0]):
        count = held[s, kind]
        if count:
            for x in range(WORK):
                sums[s, x] += count * layers[kind, x]
            for x in range(WORK, FIELDS):
                sums[s, x] = max(sums[s, x], layers[kind, x])


@njit(cache=CACHE, nogil=True)
def _with_policy(t, q, x, p, v, held, sums, changes, r, first_layers, f, b, finish, traffic):
    """Fill the seconds of all stages under a policy; False where one does not fit."""
    m = t.micro_batches
    counts = np.empty(held.shape[1], np.int64)
    for s in range(p):
        back, sync, activations, work = 0.0, 0.0, 0.0, sums[s, WORK]
        if r:
            if first_layers >= 0:
                _layers(q, p, v, s, first_layers, counts)
            else:
                counts[:] = held[s]
            place = q.place[x, s]
            for y in range(len(t.kinds)):
                kind = t.kinds[y]
                if counts[kind]:
                    back += counts[kind] * changes[place, r, kind, D_BACK]
                    sync += counts[kind] * changes[place, r, kind, D_SYNC]
                    activations += counts[kind] * changes[place, r, kind, D_HELD]
                    work = max(work, changes[place, r, kind, D_WORK])
        flight = in_flight(s, p, m, v) / v
        resident = sums[s, RESIDENT] + work + sums[s, BUFFERS]
        if resident + flight * (sums[s, ACTIVATIONS] + activations) > t.limit_bytes:
            return False
        f[s], b[s] = sums[s, FORWARD], sums[s, BACKWARD] + back
        finish[s] = finish_seconds(sums[s, SYNC] + sync, sums[s, EXPOSED], sums[s, GATHER], v)
        traffic[s] = sums[s, EXPOSED] + sums[s, TRAFFIC]
    return True


@njit(cache=CACHE, nogil=True)
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
    body, L = q.last - q.first, len(q.kinds) - 1
    places = q.alike.shape[1]
    layers = np.empty((places, T, FIELDS))
    changes = np.zeros((places, R, T, 4))
    sums = np.empty((S + 1, FIELDS))
    f, b, finish, hops = np.empty(S + 1), np.empty(S + 1), np.empty(S + 1), np.empty(S + 1)
    traffic, overlap = np.empty(S + 1), t.overlaps[1] / 2 + t.overlaps[2] / 4
    # The layers of every stage, for each way to cut; and the most that a chunk may recompute.
    ways = np.full((S + 1, V + 1), -1)
    longest = np.zeros((S + 1, V + 1), np.int64)
    count = 0
    for p in range(2, S + 1):
        for v in range(2, V + 1):
            if q.depths[p] and q.chunks[v] and m % p == 0 and body % (p * v) == 0:
                ways[p, v] = count
                count += 1
    held = np.zeros((count, S, T), np.int64)
    for p in range(2, S + 1):
        for v in range(2, V + 1):
            for s in range(p if ways[p, v] >= 0 else 0):
                _layers(q, p, v, s, -1, held[ways[p, v], s])
                for chunk in range(v):
                    start, stop = _chunk(q, p, v, s, chunk)
                    longest[p, v] = max(longest[p, v],
                                        q.marked_before[stop] - q.marked_before[start])
    for c in range(C):
        x = q.size[c]
        if q.alike[c, q.place[x, 0]] != c:
            continue
        for z in range(Z):
            if t.forbidden[z] or (t.shard[z] and not t.hybrid[c]):
                continue
            total = np.inf
            for y in range(places):
                alike = q.alike[c, y]
                if alike >= 0:
                    layer_sums(t, alike, z, 0, layers[y])
                    policy_changes(t, alike, z, layers[y], changes[y])
                    now = 0.0
                    for kind in range(T):
                        now += q.kinds[L, kind] * (
                            layers[y, kind, FORWARD] + layers[y, kind, BACKWARD])
                    total = min(total, now)
            code = (c * Z + z) * R
            for p in range(2, S + 1):
                if q.place[x, p - 1] < 0:
                    break
                for v in range(2, V + 1):
                    way = ways[p, v]
                    top = min(below, best[p, v])
                    # The slowest stage takes no less than an even share.
                    if way < 0 or m * total / p >= top:
                        continue
                    for s in range(p):
                        _stage_sums(held[way], s, layers[q.place[x, s]], sums)
                        hops[s] = 0.0
                        for chunk in range(v):  # nothing is handed over behind the last layer
                            hops[s] = max(hops[s], q.handed[_chunk(q, p, v, s, chunk)[1]])
                        hops[s] /= t.shards[c]
                        per_byte, latency = q.wrap_per_byte[x, p], q.wrap_latency[x, p]
                        if s < p - 1:
                            per_byte, latency = q.hop_per_byte[x, s + 1], q.hop_latency[x, s + 1]
                        hops[s] = hops[s] * per_byte + latency
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
                            tried += 1
                            some = first_layers if first_layers < chunk_layers else -1
                            fits = _with_policy(t, q, x, p, v, held[way], sums, changes, r, some,
                                                f, b, finish, traffic)
                            if not fits:
                                continue
                            time = step_seconds(p, f, b, finish, hops, m, v, traffic, overlap)
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
