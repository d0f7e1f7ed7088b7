"""Search the pipelines of one outer choice whose stages have one block size and one set of degrees.

A pipeline is an order of passes, p stages and v chunks a stage. Its cuts are free, or one of the
layouts that are listed. The step is the longest path through its passes; what a bound rules out is
not priced. Proofs: ``docs/proofs.md``.

Shapes: C candidates, Z ways of ZeRO, R recompute policies, T kinds, Q pipelines, N layers, G
signatures, Y classes of places, S most stages, V most chunks a stage.
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
from nest.forms import gpipe, one_f_one_b, orders, passes
from nest.forms.chunk import C_BACKWARD, C_FORWARD, C_LATE, C_LEFT, C_TIED, C_UPDATE, CHUNK
from nest.forms.passes import Order, Room

held, in_turn, looped = form(orders.held), form(orders.in_turn), form(orders.looped)
step_seconds, warm_up = form(passes.step_seconds), form(orders.warm_up)
add_stage, stage_of = form(one_f_one_b.add_stage), form(one_f_one_b.stage_of)
add_gpipe_stage, gpipe_stage_of = form(gpipe.add_stage), form(gpipe.stage_of)

ONE_F_ONE_B, GPIPE, INTERLEAVED = range(3)
"""Numbers of schedules, as in ``nest.search.alike.SCHEDULES``."""

# Bytes of a chunk, behind its figures of time.
F_RESIDENT, F_ACTIVATIONS, F_WORK, F_BUFFERS = range(CHUNK, CHUNK + 4)
FIGURES = CHUNK + 4
LEAST = -1
"""In place of first layers: the seconds without recompute, the bytes with the policy."""


class Work(NamedTuple):
    """Arrays that :func:`alike` makes and its helpers fill."""

    best: np.ndarray
    """float64 (Q,), see :func:`alike`."""
    option: np.ndarray
    """int64 (Q,)"""
    found: np.ndarray
    """int64 (Q, S V + 1)"""
    layers: np.ndarray
    """float64 (Y, R, T, FIELDS)"""
    again: np.ndarray
    """int64 (N,) recompute policy of each layer."""
    ahead: np.ndarray
    """float64 (N+1,) least seconds forward of the layers in front of each cut."""
    back: np.ndarray
    """float64 (N+1,) the same backward."""
    figures: np.ndarray
    """float64 (Y, G, FIGURES) of the stages and chunks that were asked for."""
    stamp: np.ndarray
    """int64 (Y, G) for which question; the last question is number 0."""
    bound: np.ndarray
    """float64 (S+1, N+1) no step is shorter whose stages from s on begin at a cut."""
    via: np.ndarray
    """int64 (S+1, N+1) cut behind stage s where that is least."""
    near: np.ndarray
    """float64 (S+1,) least seconds of the hand-overs in front of each stage, there and back."""
    cuts: np.ndarray
    """int64 (S V + 1,) those that are looked at."""
    at: np.ndarray
    """int64 (S+1,) next cut to try behind each stage."""
    activations: np.ndarray
    """float64 (V,)"""
    costs: np.ndarray
    """float64 (S, V, CHUNK)"""
    hops: np.ndarray
    """float64 (S, V, 2)"""
    alone: np.ndarray
    """bool (S, V) a chunk is a single layer."""
    label: np.ndarray
    """float64 (2, FIGURES) of :mod:`nest.forms.one_f_one_b`, or of :mod:`nest.forms.gpipe`."""
    tally: np.ndarray
    """int64 (3,) question, pipelines priced, 1 + the pipeline whose passes ``order`` has."""
    guess: np.ndarray
    """float64 (1,) least bound of cuts that were priced."""
    held: np.ndarray
    """float64 (1,) bytes of all layers and of a micro-batch in them, at the least."""
    layer: np.ndarray
    """float64 (1,) least seconds of a layer of the body."""
    open: np.ndarray
    """float64 (1,) see :func:`alike`."""
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


def alike(t, q, a, limit, spread):
    """Best plan of each pipeline below ``limit`` seconds; without ``spread`` only the best of all.

    Returns
    -------
    best : float64 (Q,) step seconds; inf where nothing was found.
    option : int64 (Q,), see ``nest.search.tensors.Builder.degrees``.
    cuts : int64 (Q, most chunks + 1) first layer of each chunk, in the order of the layers, and
        their number.
    priced : number of plans that were priced.
    open : no cuts that were left out take less; inf: none was.
    """
    Q, N = len(a.pp), len(a.order)
    best, option = np.full(Q, np.inf), np.full(Q, -1)
    S, V = int(a.pp.max(initial=1)), int(a.vpp.max(initial=1))
    chunks = int((a.pp * a.vpp).max(initial=1))
    found = np.zeros((Q, chunks + 1), np.int64)
    Y, G = q.alike.shape[1], int(a.signature.max()) + 1
    w = Work(
        best=best, option=option, found=found,
        layers=np.empty((Y, t.back.shape[1], t.ahead.shape[1], FIELDS)),
        again=np.zeros(N, np.int64), ahead=np.zeros(N + 1), back=np.zeros(N + 1),
        figures=np.empty((Y, G, FIGURES)), stamp=np.zeros((Y, G), np.int64),
        bound=np.empty((S + 1, N + 1)), via=np.zeros((S + 1, N + 1), np.int64),
        near=np.zeros(S + 1), cuts=np.zeros(chunks + 1, np.int64), at=np.zeros(S + 1, np.int64),
        activations=np.empty(V), costs=np.empty((S, V, CHUNK)), hops=np.zeros((S, V, 2)),
        alone=np.zeros((S, V), np.bool_), label=np.zeros((2, one_f_one_b.FIGURES)),
        tally=np.zeros(3, np.int64), open=np.full(1, np.inf), guess=np.full(1, np.inf),
        layer=np.zeros(1), held=np.zeros(1),
        order=order_of(S, chunks, 2 * t.micro_batches * chunks),
        room=room_of(S, chunks, t.micro_batches * chunks))
    if Q:
        try_all(t, q, a, w, limit, spread)
    if not spread:
        best[best > best.min(initial=np.inf)] = np.inf
    return best, option, found, w.tally[1], w.open[0]


@entry
def try_all(t, q, a, w, limit, spread):
    """Fill ``w.best``, ``w.option`` and ``w.found``.

    A first round prices the free cuts with the least bound alone, so that the second has a good
    limit.
    """
    below = limit
    for first in range(0 if spread or not a.free.any() else 1, -1, -1):
        w.guess[0] = below
        for c in range(len(t.price)):
            x = q.size[c]
            if q.place[x, 0] < 0 or q.alike[c, q.place[x, 0]] != c:
                continue
            for z in range(len(t.shard)):
                if (not t.shard[z] or t.hybrid[c]) and a.row_way[c, z]:
                    below = _try(t, q, a, w, c, z, below, spread, first)


@leaf
def _try(t, q, a, w, c, z, below, spread, first):
    """Try every recompute of a candidate under a way of ZeRO; the limit afterwards."""
    R, F = t.back.shape[1], len(t.first_layers)
    for r in range(R):
        _sum_up(t, q, w, c, z, r)
        _prefix(q, a, w, c, r, r if r else -1)
        if r == 0:
            if not _any_open(t, q, a, w, c, z, below, spread):
                return below
            _prefix(q, a, w, c, r, r)
        if r == 0 and not t.keep_none or not (a.row_policy[c, r] and a.way_policy[z, r]):
            continue
        code = ((c * len(t.shard) + z) * R + r) * F
        w.tally[0] += 1
        for k in range(len(a.pp)):
            top = min(below, w.best[k] if spread else below)
            if _open(t, a, w, k, top) and _legal(t, q, a, c, z, r, 0, k):
                if first:
                    if a.free[k]:
                        below = _guess(t, q, a, w, (c, k, r, 0, code), below)
                    continue
                top = _pipeline(t, q, a, w, (c, k, r, 0, code), top)
                if not spread:
                    below = min(below, top)
        if r == t.full and not first and t.first_layers.any():
            _prefix(q, a, w, c, 0, r)
            for k in range(len(a.pp)):
                top = min(below, w.best[k] if spread else below)
                if _open(t, a, w, k, top) and _legal(t, q, a, c, z, r, 0, k):
                    top = _first_layers(t, q, a, w, (c, k, r, 0, code), top)
                    if not spread:
                        below = min(below, top)
    return below


@leaf
def _any_open(t, q, a, w, c, z, below, spread):
    """Whether some pipeline may take less than the limit without recompute."""
    for k in range(len(a.pp)):
        top = min(below, w.best[k] if spread else below)
        if _open(t, a, w, k, top) and _placed(t, q, a, c, z, k):
            return True
    return False


@leaf
def _open(t, a, w, k, top):
    """Whether pipeline k may take less than ``top`` somewhere, by its seconds and its bytes."""
    return (a.warm[k] * (w.ahead[len(a.order)] + w.back[len(a.order)]) < top * SLACK
            and w.held[0] <= a.pp[k] * t.limit_bytes)


@leaf
def _placed(t, q, a, c, z, k):
    """Whether a pipeline may have these degrees and this way of ZeRO."""
    return (a.row_pipeline[c, k] and a.way_pipeline[z, k]
            and q.place[q.size[c], a.pp[k] - 1] >= 0
            and not (t.forbidden[z] and a.pp[k] > 1))


@leaf
def _legal(t, q, a, c, z, r, some, k):
    """The same, and this recompute."""
    return (_placed(t, q, a, c, z, k) and a.policy_pipeline[r, k] and a.first_pipeline[some, k])


@leaf
def _guess(t, q, a, w, choice, below):
    """Price the cuts with the least bound if no bound was less so far: the limit afterwards."""
    _near(t, q, a, w, choice)
    _bound_stages(t, q, a, w, choice, w.guess[0])
    p = a.pp[choice[1]]
    if w.bound[0, 0] < w.guess[0] * SLACK:
        w.guess[0], w.cuts[0], w.cuts[p] = w.bound[0, 0], 0, len(a.order)
        for s in range(p - 1):
            w.cuts[s + 1] = w.via[s, w.cuts[s]]
        below = _price(t, q, a, w, choice, below)
    return below


@leaf
def _first_layers(t, q, a, w, choice, top):
    """Full recompute of the first layers of each chunk alone: the best of them, or ``top``.

    With more of them a step takes longer and needs less memory.
    """
    c, k, r, _, code = choice
    w.tally[0] += 1
    if not _may_be_below(t, q, a, w, (c, k, r, LEAST, code), top):
        return top
    for some in range(1, min(len(t.first_layers), a.longest[k])):
        if t.first_layers[some] and a.first_pipeline[some, k]:
            w.tally[0] += 1
            top = _pipeline(t, q, a, w, (c, k, r, some, code + some), top)
    return top


@leaf
def _may_be_below(t, q, a, w, choice, top):
    """Whether some cuts may take less than ``top``."""
    k = choice[1]
    _near(t, q, a, w, choice)
    if a.free[k]:
        _bound_stages(t, q, a, w, choice, top)
        return w.bound[0, 0] < top * SLACK
    for number in range(a.first[k], a.last[k]):
        if t.micro_batches * a.load[number] * w.layer[0] >= top:
            break
        if _fits(t, q, a, w, choice, top, a.begin[number]):
            return True
    return False


@leaf
def _sum_up(t, q, w, c, z, r):
    """Fill in the layers under policy r."""
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] >= 0:
            layer_sums(t, q.alike[c, y], z, r, w.layers[y])


@leaf
def _prefix(q, a, w, c, r, kept):
    """Sum up the layers in front of each cut under policy r, where each takes least.

    And the bytes of all; of activations under policy ``kept``, -1: without them.
    """
    w.held[0], w.layer[0] = 0.0, np.inf
    for n in range(len(a.order)):
        forward = backward = held = np.inf
        for y in range(len(w.layers)):
            if q.alike[c, y] >= 0:
                for kind in (a.order[n], a.whole[n]):
                    forward = min(forward, w.layers[y, r, kind, FORWARD])
                    backward = min(backward, w.layers[y, r, kind, BACKWARD])
                    own = w.layers[y, r, kind, RESIDENT]
                    if kept >= 0:
                        own += w.layers[y, kept, kind, ACTIVATIONS]
                    held = min(held, own)
        w.held[0] += held
        if a.body[0] <= n < a.body[1]:
            w.layer[0] = min(w.layer[0], forward + backward)
        w.ahead[n + 1] = w.ahead[n] + forward
        w.back[n + 1] = w.back[n] + backward


@leaf
def _figures(t, q, a, w, choice, y, i, j):
    """Number of the signature of layers i..j, whose figures are filled in."""
    c, k, r, some, _ = choice
    g = a.signature[i, j]
    if w.stamp[y, g] == w.tally[0]:
        return g
    w.stamp[y, g] = w.tally[0]
    kinds = a.whole if a.pp[k] == 1 else a.order
    resident = kept = work = buffers = 0.0
    for n in range(i, j):
        marked = q.marked_before[n + 1] - q.marked_before[i]
        again = 0 if 0 < some < marked else r
        kind, w.again[n] = kinds[n], 0 if some == LEAST else again
        kept += w.layers[y, again, kind, ACTIVATIONS]
        resident += w.layers[y, again, kind, RESIDENT]
        work = max(work, w.layers[y, again, kind, WORK])
        buffers = max(buffers, w.layers[y, again, kind, BUFFERS])
    out = w.figures[y, g]
    chunk_costs(w.layers[y], t.overlaps, kinds, w.again, i, j, out)
    out[F_RESIDENT], out[F_BUFFERS] = resident, buffers
    out[F_WORK] = 0.0 if some == LEAST else work
    out[F_ACTIVATIONS] = kept + t.relay[g] * t.relayed[c]
    if some == 0 and r == t.full and (
            q.marked_before[j] - q.marked_before[i] > t.most_layers):
        out[F_RESIDENT] = np.inf
    return g


@leaf
def _pipeline(t, q, a, w, choice, top):
    """Look for plans of a pipeline below ``top`` seconds; the best of them, or ``top``.

    ``choice``: candidate, pipeline, policy, first layers that it holds for (0: all), option.
    """
    k = choice[1]
    _near(t, q, a, w, choice)
    if a.free[k]:
        return _cut(t, q, a, w, choice, top)
    for number in range(a.first[k], a.last[k]):
        if t.micro_batches * a.load[number] * w.layer[0] >= top:
            break
        if _fits(t, q, a, w, choice, top, a.begin[number]):
            top = _price(t, q, a, w, choice, top)
    return top


@leaf
def _near(t, q, a, w, choice):
    """Fill ``w.near``."""
    c, k = choice[:2]
    x = q.size[c]
    for s in range(1, a.pp[k]):
        gap = a.least_handed / t.shards[c] * q.hop[0, x, s]
        w.near[s] = w.near[s - 1] + q.both * (gap + q.hop[1, x, s])


@leaf
def _stage(t, q, a, w, choice, s, i, j):
    """No step is shorter with layers i..j on stage s of one chunk; inf: they do not fit.

    What is in front of the stage, what it runs itself, and what it waits for: 1F1B runs n + 1
    forwards before the first backward, and as many backwards behind the last forward.
    """
    c, k = choice[:2]
    p, m, y = a.pp[k], t.micro_batches, q.place[q.size[c], s]
    g = _figures(t, q, a, w, choice, y, i, j)
    n = m - 1 if a.schedule[k] == GPIPE else min(p - 1 - s, m - 1)
    if (w.figures[y, g, F_RESIDENT] + w.figures[y, g, F_WORK] + w.figures[y, g, F_BUFFERS]
            + (n + 1) * w.figures[y, g, F_ACTIVATIONS] > t.limit_bytes):
        return np.inf
    N, f = len(a.order), w.figures[y, g, C_FORWARD]
    b = w.figures[y, g, C_BACKWARD] - w.figures[y, g, C_LATE]
    behind = w.ahead[N] - w.ahead[j] + w.back[N] - w.back[j] + w.near[p - 1] - w.near[s]
    if a.schedule[k] == GPIPE:
        time = m * (f + b) + behind
    else:
        time = m * (f + b) + max(0.0, behind - n * min(f, b))
        time = max(time, ((m - 1) // (n + 1) + 1) * (f + b + behind))
    left = w.figures[y, g, C_LEFT] + w.figures[y, g, C_TIED] + w.figures[y, g, C_UPDATE]
    return w.ahead[i] + w.near[s] / 2 + time + max(w.back[i] + w.near[s] / 2, left)


@leaf
def _cut(t, q, a, w, choice, top):
    """Free cuts: the least that all stages from one on take, then each way to stay below ``top``.
    """
    p, N = a.pp[choice[1]], len(a.order)
    _bound_stages(t, q, a, w, choice, top)
    if w.bound[0, 0] >= top * SLACK:
        return top
    w.cuts[0], w.cuts[p] = 0, N
    for s in range(p - 1):
        w.cuts[s + 1] = w.via[s, w.cuts[s]]
    top = _price(t, q, a, w, choice, top)
    s, w.at[0], left = 0, 0, a.most
    if p == 1 or w.bound[0, 0] >= top * SLACK:
        return top
    if left == 0:
        w.open[0] = min(w.open[0], w.bound[0, 0])
        return top
    while s >= 0:
        if s == p - 1:
            top = _price(t, q, a, w, choice, top)
            s, left = s - 1, left - 1
            if left == 0:
                w.open[0] = min(w.open[0], w.bound[0, 0])
                break
            continue
        w.at[s] = _next_cut(t, q, a, w, choice, s, w.at[s] + 1, top)
        if w.at[s] < 0:
            s -= 1
            continue
        s += 1
        w.cuts[s] = w.at[s] = w.at[s - 1]
    return top


@leaf
def _bound_stages(t, q, a, w, choice, top):
    """Fill ``w.bound`` and ``w.via``."""
    p, N = a.pp[choice[1]], len(a.order)
    for s in range(p + 1):
        for i in range(N + 1):
            w.bound[s, i] = np.inf
    w.bound[p, N] = 0.0
    for s in range(p - 1, -1, -1):
        _bound_stage(t, q, a, w, choice, s, top)


@leaf
def _bound_stage(t, q, a, w, choice, s, top):
    """Fill ``w.bound[s]`` and ``w.via[s]`` from those of the next stage."""
    p, m, N = a.pp[choice[1]], t.micro_batches, len(a.order)
    total = w.ahead[N] + w.back[N]
    for i in range(s if s else 0, N - (p - 1 - s) if s else 1):
        done = w.ahead[i] + w.back[i]
        # No stage takes as long as top / m a micro-batch.
        if not a.cut[choice[1], i] or m * (total - done) > (p - s) * top or (
                s > 0 and m * done > s * top):
            continue
        for j in range(N if s == p - 1 else i + 1, N - (p - 2 - s)):
            if m * (w.ahead[j] + w.back[j] - done) >= top:
                break
            behind = w.bound[s + 1, j]
            if behind < min(top, w.bound[s, i]):
                least = _stage(t, q, a, w, choice, s, i, j)
                if least == np.inf and a.chain:
                    break
                if max(least, behind) < w.bound[s, i]:
                    w.bound[s, i], w.via[s, i] = max(least, behind), j


@leaf
def _next_cut(t, q, a, w, choice, s, j, top):
    """First cut from j on behind stage s with which a step may take less than ``top``; -1: none."""
    p, m, i = a.pp[choice[1]], t.micro_batches, w.cuts[s]
    for behind in range(j, len(a.order) - (p - 2 - s)):
        if m * (w.ahead[behind] + w.back[behind] - w.ahead[i] - w.back[i]) >= top:
            break
        if w.bound[s + 1, behind] < top * SLACK and _stage(
                t, q, a, w, choice, s, i, behind) < top * SLACK:
            return behind
    return -1


@leaf
def _fits(t, q, a, w, choice, top, begin):
    """Whether a layout fits and may take less than ``top``; ``w.cuts`` gets its cuts.

    Its chunks begin as ``a.layouts`` says from ``begin`` on.
    """
    c, k = choice[:2]
    p, v, m, x = a.pp[k], a.vpp[k], t.micro_batches, q.size[c]
    for n in range(p * v + 1):
        w.cuts[n] = a.layouts[begin + n]
    for s in range(p):
        if _through(t, a, w, k, s) >= top * SLACK:
            return False
    for s in range(p):
        y, resident, work, buffers, own, left = q.place[x, s], 0.0, 0.0, 0.0, 0.0, 0.0
        for d in range(v):
            g = _figures(t, q, a, w, choice, y, w.cuts[d * p + s], w.cuts[d * p + s + 1])
            resident += w.figures[y, g, F_RESIDENT]
            work = max(work, w.figures[y, g, F_WORK])
            buffers = max(buffers, w.figures[y, g, F_BUFFERS])
            w.activations[d] = w.figures[y, g, F_ACTIVATIONS]
            own += w.figures[y, g, C_FORWARD] + w.figures[y, g, C_BACKWARD]
            own -= w.figures[y, g, C_LATE]
            left += w.figures[y, g, C_UPDATE] + w.figures[y, g, C_TIED]
            if d == 0:
                left += w.figures[y, g, C_LEFT]
        i = w.cuts[s]
        if w.ahead[i] + w.near[s] / 2 + m * own + max(
                w.back[i] + w.near[s] / 2, left) >= top * SLACK:
            return False
        if a.schedule[k] == INTERLEAVED:
            _write_order(t, a, w, k)
            most = held(w.activations, w.activations, s, w.order, 8 * p * v)
        else:
            most = (m if a.schedule[k] == GPIPE else min(p - s, m)) * w.activations[0]
        if resident + work + buffers + most > t.limit_bytes:
            return False
    return True


@leaf
def _write_order(t, a, w, k):
    """Fill ``w.order`` with the passes of interleaved pipeline k, unless it has them."""
    if w.tally[2] == k + 1:
        return
    w.tally[2] = k + 1
    looped(a.pp[k], a.vpp[k], w.order)
    in_turn(a.pp[k], a.vpp[k], t.micro_batches, a.pp[k], 2, 0, w.order)


@leaf
def _through(t, a, w, k, s):
    """No step is shorter with ``w.cuts``: what stage s runs, and what it waits for.

    Before its first backward an interleaved stage has run so many forwards of its chunks, in groups
    of p; that backward waits for the first micro-batch to pass all layers, and to come back.
    """
    p, v, m, N = a.pp[k], a.vpp[k], t.micro_batches, len(a.order)
    own = before = 0.0
    left = min(m * v, warm_up(s, p, v, m, p, min(v, 2), 0) + 1)
    cycles, rest = left // (p * v), left % (p * v)
    for d in range(v):
        i, j = w.cuts[d * p + s], w.cuts[d * p + s + 1]
        own += w.ahead[j] - w.ahead[i] + w.back[j] - w.back[i]
        before += (w.ahead[j] - w.ahead[i]) * (cycles * p + min(p, max(0, rest - d * p)))
    i, j = w.cuts[s], w.cuts[(v - 1) * p + s + 1]
    after, first = w.back[i] + w.near[s] / 2, w.ahead[i] + w.near[s] / 2
    if a.schedule[k] == INTERLEAVED:
        there = w.ahead[N] + v * w.near[p - 1] / 2
        back = w.back[N] - w.back[j] + (w.near[p - 1] - w.near[s]) / 2
        first = max(first, there + back - before)
    return first + m * own + after


@leaf
def _price(t, q, a, w, choice, top):
    """Price ``w.cuts`` and keep them if they take less than ``top`` seconds: those or ``top``."""
    c, k = choice[:2]
    p, v, x = a.pp[k], a.vpp[k], q.size[c]
    for s in range(p):
        y = q.place[x, s]
        per_byte, latency = q.wrap[0, x, p], q.wrap[1, x, p]
        if s < p - 1:
            per_byte, latency = q.hop[0, x, s + 1], q.hop[1, x, s + 1]
        for d in range(v):
            i, j = w.cuts[d * p + s], w.cuts[d * p + s + 1]
            g = _figures(t, q, a, w, choice, y, i, j)
            for f in range(CHUNK):
                w.costs[s, d, f] = w.figures[y, g, f]
            gap = q.handed[j] / t.shards[c] * per_byte
            w.hops[s, d, 0], w.hops[s, d, 1] = q.both * (gap + latency), gap
            w.alone[s, d] = j - i == 1
    w.tally[1] += 1
    if a.schedule[k] == INTERLEAVED:
        _write_order(t, a, w, k)
        time = step_seconds(
            w.costs, w.alone, w.hops, p, v, t.micro_batches, p * v, w.order, w.room)
    else:
        time = _in_closed_form(w, p, t.micro_batches, a.schedule[k] == GPIPE)
    if time >= top * SLACK:
        return top
    w.best[k], w.option[k] = time, choice[4]
    for n in range(p * v + 1):
        w.found[k, n] = w.cuts[n]
    return time


@leaf
def _in_closed_form(w, p, m, all_forward):
    """Step seconds of stages of one chunk, under 1F1B or GPipe."""
    for x in range(one_f_one_b.FIGURES):
        w.label[1, x] = 0.0
    if all_forward:
        for x in range(gpipe.FIGURES):
            w.label[1, x] = gpipe.NOTHING[x]
    else:
        for x in range(one_f_one_b.FIGURES):
            w.label[1, x] = one_f_one_b.NOTHING[x]
    for n in range(p):
        s, old, new = p - 1 - n, w.label[(n + 1) % 2], w.label[n % 2]
        both = w.hops[s, 0, 0] if n else 0.0
        gap = w.hops[s, 0, 1] if n else 0.0
        if all_forward:
            add_gpipe_stage(old, gpipe_stage_of(w.costs[s, 0]), both, gap, n, m, new)
        else:
            add_stage(old, stage_of(w.costs[s, 0]), both, gap, n, m, m // 2, new)
    return w.label[(p - 1) % 2, one_f_one_b.END]
