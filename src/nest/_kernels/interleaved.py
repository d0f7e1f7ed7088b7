"""Try every interleaved pipeline of one outer choice: equal blocks, degrees and chunks.

Shapes: C candidates, R recompute policies, T kinds, S most stages, V most chunks a stage, N layers,
W ways to cut them into chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import entry, form, leaf
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
from nest.forms import orders, passes
from nest.forms.chunk import C_BACKWARD, C_FORWARD, C_LATE, C_LEFT, C_UPDATE, CHUNK
from nest.forms.passes import Order, Room

held, in_turn, looped = form(orders.held), form(orders.in_turn), form(orders.looped)
step_seconds = form(passes.step_seconds)


class Work(NamedTuple):
    """Arrays that :func:`interleave` makes and its helpers fill."""

    best: np.ndarray
    """float64 (S+1, V+1), see :func:`interleave`."""
    option: np.ndarray
    """int64 (S+1, V+1)"""
    layers: np.ndarray
    """float64 (classes, R, T, FIELDS)"""
    again: np.ndarray
    """int64 (N,) recompute policy of each layer."""
    activations: np.ndarray
    """float64 (V,) of each chunk of a stage."""
    costs: np.ndarray
    """float64 (S, V, CHUNK)"""
    hops: np.ndarray
    """float64 (S, V, 2) there and back, and of a message, behind each chunk."""
    order: Order
    room: Room


def order_of(p, positions, passes):
    """Room for the order of p ranks with so many positions and passes."""
    return Order(
        codes=np.empty(passes, np.int64), rows=np.empty(p + 1, np.int64),
        at=np.empty(positions, np.int64), ahead=np.empty(positions, np.int64),
        back=np.empty(positions, np.int64))


def room_of(p, positions, passes):
    """Room for ``step_seconds`` of p ranks with so many positions and passes of a way."""
    return Room(
        arrives=np.empty(2 * passes), came=np.empty(2 * positions, np.int64),
        run=np.empty(2 * positions, np.int64), hop=np.empty(positions), gap=np.empty(positions),
        took=np.empty(4 * positions), links=np.empty(2 * positions), ends=np.empty(positions),
        place=np.empty(p, np.int64), begun=np.empty(p, np.int64), traffic=np.empty(p, np.int64),
        clock=np.empty(p), scattered=np.empty(p), fresh=np.empty(p))


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
    shape, (stages, chunks) = q.ways.number.shape, np.nonzero(q.ways.number >= 0)
    best, option = np.full(shape, np.inf), np.full(shape, -1)
    if not len(stages):
        return best, option, 0
    S, V, positions = stages.max(), chunks.max(), (stages * chunks).max()
    w = Work(
        best=best, option=option,
        layers=np.empty((q.alike.shape[1], t.back.shape[1], t.ahead.shape[1], FIELDS)),
        again=np.zeros(len(q.order), np.int64), activations=np.empty(V),
        costs=np.empty((S, V, CHUNK)), hops=np.empty((S, V, 2)),
        order=order_of(S, positions, 2 * t.micro_batches * positions),
        room=room_of(S, positions, t.micro_batches * positions))
    tried = try_all(t, q, w, limit, spread)
    if not spread:
        best[best > best.min()] = np.inf
    return best, option, tried


@entry
def try_all(t, q, w, limit, spread):
    """Fill ``w.best`` and ``w.option``; how many pipelines were priced."""
    below, tried = limit, 0
    for c in range(len(t.price)):
        x = q.size[c]
        if q.place[x, 0] < 0 or q.alike[c, q.place[x, 0]] != c:
            continue
        for z in range(len(t.shard)):
            if t.forbidden[z] or (t.shard[z] and not t.hybrid[c]):
                continue
            least, priced = np.inf, False
            for r in range(1):  # with a literal 0 it would be compiled once more
                least = _sum_up(t, q, w, c, z, r)
            for p in range(2, len(q.ways.number)):
                if q.place[x, p - 1] < 0:
                    break
                for v in range(2, q.ways.number.shape[1]):
                    top = min(below, w.best[p, v])
                    # The slowest stage takes no less than an even share.
                    if q.ways.number[p, v] < 0 or t.micro_batches * least / p >= top or _quick(
                            t, q, w, x, p, v) >= top:
                        continue
                    if not priced:
                        priced = True
                        for r in range(1, t.back.shape[1]):
                            _sum_up(t, q, w, c, z, r)
                    _hand_over(q, w, x, p, v, t.shards[c])
                    tried += _choose(t, q, w, c, z, p, v, top)
                    if not spread:
                        below = min(below, w.best[p, v])
    return tried


@leaf
def _sum_up(t, q, w, c, z, r):
    """Fill in the layers under policy r; seconds of all of them where they are cheapest."""
    least = np.inf
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] >= 0:
            layer_sums(t, q.alike[c, y], z, r, w.layers[y])
            time = 0.0
            for kind in range(len(q.counts)):
                time += q.counts[kind] * (
                    w.layers[y, r, kind, FORWARD] + w.layers[y, r, kind, BACKWARD])
            least = min(least, time)
    return least


@leaf
def _quick(t, q, w, x, p, v):
    """``_least`` from computing alone: layers of each kind of a stage, and of its first chunk."""
    least = there = back = 0.0
    way = q.ways.number[p, v]
    for s in range(p):
        own = ahead = behind = 0.0
        y = q.place[x, s]
        for kind in range(len(q.counts)):
            forward, backward = w.layers[y, 0, kind, FORWARD], w.layers[y, 0, kind, BACKWARD]
            own += q.ways.stage_kinds[way, s, kind] * (forward + backward)
            ahead += q.ways.first_kinds[way, s, kind] * forward
            behind += q.ways.first_kinds[way, s, kind] * backward
        least = max(least, there + t.micro_batches * own + back)
        there += ahead
        back += behind
    return least


@leaf
def _hand_over(q, w, x, p, v, shards):
    """Fill the hand-overs behind all chunks."""
    way = q.ways.number[p, v]
    for s in range(p):
        per_byte, latency = q.wrap[0, x, p], q.wrap[1, x, p]
        if s < p - 1:
            per_byte, latency = q.hop[0, x, s + 1], q.hop[1, x, s + 1]
        for c in range(v):
            gap = q.handed[q.ways.cuts[way, c * p + s + 1]] / shards * per_byte
            w.hops[s, c, 0], w.hops[s, c, 1] = q.both * (gap + latency), gap


@leaf
def _choose(t, q, w, c, z, p, v, top):
    """Price the policies that may take less than ``top``; their number.

    Recompute takes longer: what is too slow without is so with it.
    """
    x, tried = q.size[c], 0
    code = (c * len(t.shard) + z) * t.back.shape[1]
    looped(p, v, w.order)
    in_turn(p, v, t.micro_batches, p, 2, 0, w.order)
    most = q.ways.longest[q.ways.number[p, v]]
    for n in range(len(w.again)):
        w.again[n] = 0
    if _price(t, q, w, x, p, v) >= top * SLACK:
        return 0
    for r in range(0 if t.keep_none else 1, t.back.shape[1]):
        # Of the first layers the fewest that fit; all of them is another option.
        for layers in range(1 if r == t.full and most else most, most + 1):
            if r == t.full and not (
                    t.first_layers[layers] if layers < most else most <= t.most_layers):
                continue
            if not _recompute(t, q, w, x, p, v, r, layers if layers < most else -1):
                continue
            if r > 0 and _price(t, q, w, x, p, v) >= top * SLACK:
                break
            tried += 1
            time = step_seconds(
                w.costs, w.hops, p, v, t.micro_batches, p * v, w.order, w.room)
            if time < top * SLACK:
                top = w.best[p, v] = time
                w.option[p, v] = (code + r) * len(t.first_layers) + (
                    layers if layers < most else 0)
            if r == 0:
                return tried
            break
    return tried


@leaf
def _recompute(t, q, w, x, p, v, r, some):
    """Put policy r on the first ``some`` layers of all chunks, -1: on all; whether that fits."""
    way = q.ways.number[p, v]
    for s in range(p):
        place = q.place[x, s]
        resident = work = buffers = 0.0
        for c in range(v):
            start = q.ways.cuts[way, c * p + s]
            w.activations[c] = 0.0
            for n in range(start, q.ways.cuts[way, c * p + s + 1]):
                marked = q.marked_before[n + 1] - q.marked_before[start]
                w.again[n] = 0 if 0 <= some < marked else r
                kind, again = q.order[n], w.again[n]
                w.activations[c] += w.layers[place, again, kind, ACTIVATIONS]
                resident += w.layers[place, again, kind, RESIDENT]
                work = max(work, w.layers[place, again, kind, WORK])
                buffers = max(buffers, w.layers[place, again, kind, BUFFERS])
        most = held(w.activations, w.activations, s, w.order, 8 * p * v)
        if resident + work + buffers + most > t.limit_bytes:
            return False
    return True


@leaf
def _price(t, q, w, x, p, v):
    """Fill the costs of all chunks; no less than this is a step.

    The way to a stage, its own work, and the way back.
    """
    least = there = back = 0.0
    way = q.ways.number[p, v]
    for s in range(p):
        own = update = 0.0
        for c in range(v):
            n = c * p + s
            costs = w.costs[s, c]
            chunk_costs(w.layers[q.place[x, s]], t.overlaps, q.order, w.again,
                        q.ways.cuts[way, n], q.ways.cuts[way, n + 1], costs)
            own += costs[C_FORWARD] + costs[C_BACKWARD] - costs[C_LATE]
            update += costs[C_UPDATE]
        first, hop = w.costs[s, 0], w.hops[s, 0, 0]
        last = first[C_BACKWARD] - first[C_LATE]
        least = max(least, there + t.micro_batches * own + max(back, first[C_LEFT] + update))
        there += first[C_FORWARD] + hop / 2
        back += last + hop / 2
    return least
