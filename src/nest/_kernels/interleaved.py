"""Try every interleaved pipeline of one outer choice: equal blocks, degrees and chunks.

Shapes: C candidates, B block sizes, S most stages, V most chunks a stage, L layers, T kinds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import entry, form, kernel, leaf
from nest._kernels.layers import (
    ACTIVATIONS,
    BACKWARD,
    BUFFERS,
    FIELDS,
    FORWARD,
    RESIDENT,
    WORK,
    chunk_costs,
    layer_sums,
)
from nest._kernels.pipeline import SLACK
from nest.forms import interleaved
from nest.forms.chunk import C_BACKWARD, C_FORWARD, C_LATE, C_LEFT, C_UPDATE, CHUNK
from nest.forms.interleaved import Room

held, step_seconds = form(interleaved.held), form(interleaved.step_seconds)


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


@kernel
def room_of(p, v, passes):
    """Room for ``step_seconds`` of p stages, v chunks and so many passes of a way."""
    return Room(
        arrives=np.empty((2, passes)), links=np.empty((2, p)), run=np.empty((2, p), np.int64),
        front=np.empty((2, p), np.int64), gathers=np.empty(p, np.int64), clock=np.empty(p),
        scattered=np.empty(p), starts=np.empty((p, v)), ends=np.empty((p, v)))


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
        most = held(activations, s, p, t.micro_batches, v)
        if resident + work + buffers + most > t.limit_bytes:
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
def _hand_over(q, x, p, v, shards, hops):
    """Fill the hand-overs (p, v, 2) behind all chunks: there and back, and of a message."""
    for s in range(p):
        per_byte, latency = q.wrap_per_byte[x, p], q.wrap_latency[x, p]
        if s < p - 1:
            per_byte, latency = q.hop_per_byte[x, s + 1], q.hop_latency[x, s + 1]
        for c in range(v):
            gap = q.handed[_chunk(q, p, v, s, c)[1]] / shards * per_byte
            hops[s, c, 0], hops[s, c, 1] = q.both * (gap + latency), gap


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
def _least(p, m, v, costs, hops):
    """No less than this is a step: the way to a stage, its own work, and the way back."""
    least = there = back = 0.0
    for s in range(p):
        own = update = 0.0
        for c in range(v):
            own += costs[s, c, C_FORWARD] + costs[s, c, C_BACKWARD] - costs[s, c, C_LATE]
            update += costs[s, c, C_UPDATE]
        least = max(least, there + m * own + max(back, costs[s, 0, C_LEFT] + update))
        there += costs[s, 0, C_FORWARD] + hops[s, 0, 0] / 2
        back += costs[s, 0, C_BACKWARD] - costs[s, 0, C_LATE] + hops[s, 0, 0] / 2
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
    chunks : chunks of a pipeline at the most.
    """
    body = q.last - q.first
    ways, longest = np.full((S + 1, V + 1), -1), np.zeros((S + 1, V + 1), np.int64)
    most = chunks = count = 0
    for p in range(2, S + 1):
        for v in range(2, V + 1):
            if q.depths[p] and q.chunks[v] and m % p == 0 and body % (p * v) == 0:
                ways[p, v] = count
                count += 1
                most, chunks = max(most, v), max(chunks, p * v)
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
    return ways, every, firsts, longest, most, chunks


@entry
def interleave(t, q, limit, spread):
    """Best interleaved pipeline for each number of stages and of chunks, below ``limit`` seconds.

    Every candidate that may lie at all blocks is tried with every way of ZeRO. Recompute is chosen
    as memory asks for it: none where that fits; else each policy that fits, and of "the first r
    layers of a chunk" the least r. Without ``spread`` only the best of all is looked for.

    Returns
    -------
    best : float64 (S+1, V+1), step seconds; inf where nothing was found.
    option : int64 (S+1, V+1), see ``nest.search.tensors.Builder.degrees``.
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
    ways, every, firsts, longest, most, chunks = _ways(q, S, V, T, m)
    costs = np.empty((S + 1, most, CHUNK))
    hops = np.empty((S + 1, most, 2))
    room = room_of(S, most, chunks * m)
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
                    _hand_over(q, x, p, v, t.shards[c], hops)
                    # Recompute takes longer: what is too slow without is so with it.
                    again[:] = 0
                    _price(t, q, x, p, v, layers, again, costs)
                    if _least(p, m, v, costs, hops) >= top * SLACK:
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
                                if _least(p, m, v, costs, hops) >= top * SLACK:
                                    break
                            tried += 1
                            time = step_seconds(costs, hops, p, m, v, room)
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
