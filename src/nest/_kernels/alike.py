"""Search the pipelines of one outer choice whose stages have one block size and one set of degrees.

A pipeline is an order of passes, p stages and v chunks a stage. Its cuts are free, or one of the
layouts that are listed. The step is the longest path through its passes; what a bound rules out is
not priced. Proofs: ``docs/proofs.md``.

Shapes: C candidates, Z ways of ZeRO, R recompute policies, T kinds, Q pipelines, N layers, G
signatures, Y classes of places, S most stages, V most chunks a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nest._kernels import entry, form, known, leaf, piece
from nest._kernels.layers import (
    ACTIVATIONS,
    BUFFERS,
    FIELDS,
    KEPT_BACK,
    RESIDENT,
    WORK,
    add_parts,
    chunk_costs,
)
from nest._kernels.layouts import (
    FIRST,
    LEASTS,
    copies_of,
    gathers,
    has_room,
    hidden_of,
    is_looped,
    next_layout,
    split_of,
    together_of,
)
from nest._kernels.orders import (
    COMBINED,
    DUALPIPE,
    DUALPIPEV,
    GPIPE,
    INTERLEAVED,
    INTERLEAVED_ZB,
    LOOPED_BFS,
    ZB1P,
    ZB_V,
    longest_path,
    order_of,
    room_of,
    write_order,
)
from nest._kernels.pipeline import SLACK
from nest._kernels.sums import fill_layers, may_be_below, sum_up
from nest._kernels.trips import (
    R_FORWARD,
    R_HELD,
    R_LEFT,
    R_OWN,
    R_RAN,
    R_SENT,
    R_SPARED,
    RANK,
    count_pairs,
    note_end,
    of_pairs,
    of_trips,
)
from nest.forms import gpipe, one_f_one_b, orders, passes
from nest.forms.chunk import (
    C_BACKWARD,
    C_BUSY_BACKWARD,
    C_BUSY_FORWARD,
    C_EXCHANGED_BACKWARD,
    C_EXCHANGED_FORWARD,
    C_FORWARD,
    C_LARGEST,
    C_LATE,
    C_LEFT,
    C_LEFT_WEIGHTS,
    C_TIED,
    C_UNDER_FIRST,
    C_UNDER_LAST,
    C_UPDATE,
    CHUNK,
)
from nest.forms.passes import Order, Room

held, gathering, few_of = form(orders.held), form(passes.gathering), form(orders.few)
add_stage, stage_of = form(one_f_one_b.add_stage), form(one_f_one_b.stage_of)
add_gpipe_stage, gpipe_stage_of = form(gpipe.add_stage), form(gpipe.stage_of)

# Bytes of a chunk, behind its figures of time.
# The last two are of activations: what a backward for inputs leaves, and those of the largest of
# the transformer layers.
F_RESIDENT, F_ACTIVATIONS, F_WORK, F_BUFFERS, F_KEPT, F_LARGEST = range(CHUNK, CHUNK + 6)
FIGURES = CHUNK + 6
# Fields of a question, but for that of the layouts.
CANDIDATE, PIPELINE, POLICY, _, OPTION = range(5)
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
    least: np.ndarray
    """float64 (11, T) of a layer of a kind, at the least; see ``_kernels.layouts``."""
    again: np.ndarray
    """int64 (N,) recompute policy of each layer."""
    ahead: np.ndarray
    """float64 (N+1,) least seconds forward of the layers in front of each cut."""
    back: np.ndarray
    """float64 (N+1,) the same backward."""
    inputs: np.ndarray
    """float64 (N+1,) the same backward for inputs alone."""
    resident: np.ndarray
    """float64 (N+1,) least bytes of them."""
    kept: np.ndarray
    """float64 (N+1,) least bytes of activations of a micro-batch in them."""
    figures: np.ndarray
    """float64 (Y, G, FIGURES) of the stages and chunks that were asked for."""
    stamp: np.ndarray
    """int64 (2, Y, G) for which question; those of a backward in two parts, and beside a forward,
    apart."""
    bound: np.ndarray
    """float64 (S+1, N+1) no step is shorter whose stages from s on begin at a cut."""
    via: np.ndarray
    """int64 (S+1, N+1) cut behind stage s where that is least."""
    near: np.ndarray
    """float64 (S+1,) least seconds of the hand-overs in front of each stage, there and back."""
    question: np.ndarray
    """int64 (5,) candidate, pipeline, policy, first layers that it holds for (0: all), option."""
    cuts: np.ndarray
    """int64 (S V + 1,) those that are looked at."""
    at: np.ndarray
    """int64 (S+1,) next cut to try behind each stage."""
    activations: np.ndarray
    """float64 (S, V) bytes of a micro-batch in each chunk."""
    kept_back: np.ndarray
    """float64 (S, V) bytes of them that a backward for inputs leaves to that for weights."""
    room_left: np.ndarray
    """float64 (S,) bytes for all activations of a stage."""
    ranks: np.ndarray
    """float64 (S, RANK) see ``_kernels.trips``."""
    pairs: np.ndarray
    """int64 (S, V+1, V+1) see ``_kernels.trips.count_pairs``."""
    costs: np.ndarray
    """float64 (S, V, CHUNK)"""
    hops: np.ndarray
    """float64 (S, V, 2)"""
    alone: np.ndarray
    """bool (S, V) a chunk is a single layer."""
    label: np.ndarray
    """float64 (2, FIGURES) of :mod:`nest.forms.one_f_one_b`, or of :mod:`nest.forms.gpipe`."""
    tally: np.ndarray
    """int64 (6,) number of the last question, pipelines priced, the pipelines whose passes
    ``order`` and ``few`` have, plus 1, whether the last :func:`next_layout` came past the first
    look at a block of layouts, and the pipeline whose pairs were counted, plus 1."""
    barren: np.ndarray
    """int64 (Q,) the last option, plus 1, with which it came past none."""
    under: np.ndarray
    """float64 (Q,) and below so many seconds."""
    guess: np.ndarray
    """float64 (1,) least bound of cuts that were priced."""
    layer: np.ndarray
    """float64 (12,) least seconds of a layer of the body, and what recompute of it adds; most
    seconds that passes beside each other save of it; least bytes that recompute frees of a layer
    that it applies to; the largest of ``waits``; least bytes of a layer of the body, and of its
    activations; least seconds that the first layer is waited for, and that it leaves."""
    policies: np.ndarray
    """int64 (2, R + 2) recompute policies that are looked at together: by seconds, by bytes."""
    open: np.ndarray
    """bool (Q,) pipelines that may have one of them."""
    forwards: np.ndarray
    """int64 (Q, S, V) micro-batches of each chunk of each stage whose forwards it runs before its
    first backward; 0 until it was asked for."""
    waits: np.ndarray
    """float64 (4, T) see ``_kernels.sums``."""
    waited: np.ndarray
    """float64 (4,) sums of them over all layers, the first two of the body alone."""
    free: np.ndarray
    """float64 (2, T) most seconds of a layer, forward and backward, that hide this traffic."""
    marked: np.ndarray
    """bool (T,) kinds of such layers."""
    saved: np.ndarray
    """float64 (4, T + 1) most all-to-alls of a layer of each kind that passes beside each other may
    hide, forward and backward; most computing that hides them, forward and backward; last the sums
    over all layers."""
    weights: np.ndarray
    """float64 (T,) most seconds of its backward that are for weights."""
    unproved: np.ndarray
    """float64 (1,) see :func:`alike`."""
    order: Order
    few: Order
    """The same of the first groups and the last ones alone."""
    room: Room
    write_order: Callable[..., None]
    longest_path: Callable[..., float]
    """Those of :mod:`nest._kernels.orders`."""


def work_of(t, q, a):
    """Room for :func:`alike`."""
    Q, N = len(a.pp), len(a.order)
    S, V = int(a.pp.max(initial=1)), int(a.vpp.max(initial=1))
    chunks = int((a.pp * a.vpp).max(initial=1))
    Y, G = q.alike.shape[1], int(a.signature.max()) + 1
    return Work(
        best=np.full(Q, np.inf), option=np.full(Q, -1),
        found=np.zeros((Q, chunks + 1), np.int64),
        layers=np.empty((Y, t.back.shape[1], t.ahead.shape[1], FIELDS)),
        least=np.empty((LEASTS, t.ahead.shape[1])),
        again=np.zeros(N, np.int64), ahead=np.zeros(N + 1), back=np.zeros(N + 1),
        inputs=np.zeros(N + 1),
        resident=np.zeros(N + 1), kept=np.zeros(N + 1),
        figures=np.empty((Y, G, FIGURES)), stamp=np.zeros((2, Y, G), np.int64),
        bound=np.empty((S + 1, N + 1)), via=np.zeros((S + 1, N + 1), np.int64),
        near=np.zeros(S + 1), question=np.zeros(5, np.int64),
        cuts=np.zeros(chunks + 1, np.int64), at=np.zeros(S + 1, np.int64),
        activations=np.empty((S, V)), kept_back=np.empty((S, V)), room_left=np.empty(S),
        ranks=np.empty((S, RANK)), pairs=np.empty((S, V + 1, V + 1), np.int64),
        costs=np.empty((S, V, CHUNK)), hops=np.zeros((S, V, 2)),
        alone=np.zeros((S, V), np.bool_), label=np.zeros((2, one_f_one_b.FIGURES)),
        tally=np.zeros(6, np.int64), unproved=np.full(1, np.inf), guess=np.full(1, np.inf),
        layer=np.zeros(12), policies=np.zeros((2, t.back.shape[1] + 2), np.int64),
        open=np.zeros(Q, np.bool_), forwards=np.zeros((Q, S, V), np.int64),
        free=np.zeros((2, t.ahead.shape[1])),
        waits=np.zeros((4, t.ahead.shape[1])), waited=np.zeros(4),
        marked=np.zeros(t.ahead.shape[1], np.bool_),
        saved=np.zeros((4, t.ahead.shape[1] + 1)), weights=np.zeros(t.ahead.shape[1]),
        barren=np.zeros(Q, np.int64), under=np.zeros(Q),
        order=order_of(S, chunks, 3 * t.micro_batches * chunks),
        few=order_of(S, chunks, 3 * t.micro_batches * chunks),
        room=room_of(S, chunks, t.micro_batches * chunks),
        write_order=write_order, longest_path=longest_path)


def alike(t, q, a, legal, limit, spread):
    """Best plan of each pipeline below ``limit`` seconds; without ``spread`` only the best of all.

    Returns
    -------
    best : float64 (Q,) step seconds; inf where nothing was found.
    option : int64 (Q,), see ``nest.search.tensors.Builder.degrees``.
    cuts : int64 (Q, most chunks + 1) first layer of each chunk, in the order of the layers, and
        their number.
    priced : number of plans that were priced.
    unproved : no cuts that were left out take less; inf: none was.
    """
    w = work_of(t, q, a)
    if len(a.pp):
        quick_try_all(t, q, a, legal, w, limit, spread)
    if not spread:
        w.best[w.best > w.best.min(initial=np.inf)] = np.inf
    return w.best, w.option, w.found, w.tally[1], w.unproved[0]


@entry
def try_all(t, q, a, legal, w, limit, spread):
    """Fill ``w.best``, ``w.option`` and ``w.found``.

    A first round prices the free cuts with the least bound alone, so that the second has a good
    limit.
    """
    below, choices = limit, _choices(t)
    for first in range(0 if spread or not a.free.any() else 1, -1, -1):
        w.guess[0], stop = below, 0
        while stop < len(a.asked):
            begin, row = stop, a.asked[stop] // choices
            while stop < len(a.asked) and a.asked[stop] // choices == row:
                stop += 1
            c = row // len(t.shard)
            place = q.place[0, q.size[c], 0]
            if place >= 0 and q.alike[c, place] == c and _may_gain(
                    t, q, a, legal, w, begin, stop, below, first):
                for n in range(begin, stop):
                    below = _answer(t, q, a, legal, w, n, below, spread, first)


@leaf
def _choices(t):
    """Choices of recompute of a question: the policies, then full recompute of the first layers of
    each chunk alone. With more of them a step takes longer and needs less memory."""
    return t.back.shape[1] + (t.full >= 0 and t.first_layers.any())


@leaf
def _may_gain(t, q, a, legal, w, begin, stop, below, first):
    """Whether any of the questions from ``begin`` to ``stop``, of one candidate and way of ZeRO,
    may have a plan below the best, as far as the least that layers take under any of their policies
    says; ``w.open`` gets the pipelines. Their layers are filled in."""
    choices, count = _choices(t), 0
    c, z = divmod(a.asked[begin] // choices, len(t.shard))
    for n in range(begin, stop):
        if a.floor[n] < below:
            x = a.asked[n] % choices
            part = x == t.back.shape[1]
            w.policies[0, count], w.policies[1, count] = (0, t.full) if part else (x, x)
            count += 1
    if count == 0:
        return False
    w.policies[0, count] = 0  # that of layers without recompute
    fill_layers(t, q, w, c, z, w.policies[0, :count + 1])
    fill_layers(t, q, w, c, z, w.policies[1, :count])
    if count > 1:
        sum_up(t, q, a, w, c, w.policies[0, :count], w.policies[1, :count])
        _ask(w, c, w.policies[1, 0], np.int64(LEAST), -2 - c * len(t.shard) - z)
    found = False
    for k in range(len(a.pp)):
        top = min(below, w.best[k])
        w.open[k] = (a.free[k] or not first) and (
            _placed(t, q, a, legal, c, z, k) and (count == 1 or (
                may_be_below(t, a, w, k, top) and (
                    a.free[k] or _first_layout(t, q, a, w, k, top) < a.last[k]))))
        found = found or w.open[k]
    return found


@leaf
def _answer(t, q, a, legal, w, n, below, spread, first):
    """Look for plans of question n in the pipelines that are open: the seconds of the best, or
    ``below``, which stays with ``spread``."""
    R, F = t.back.shape[1], len(t.first_layers)
    none = np.int64(0)  # no constant, for which numba would compile what gets it once more
    row, x = divmod(a.asked[n], _choices(t))
    c, part = row // len(t.shard), x == R
    if a.floor[n] >= below or (part and first):
        return below
    r = t.full if part else x
    w.policies[0, 0], w.policies[1, 0] = none if part else r, r
    sum_up(t, q, a, w, c, w.policies[0, :1], w.policies[1, :1])
    asked = False
    for k in range(len(a.pp)):
        top, most = min(below, w.best[k] if spread else below), none + 1
        if part:
            most = min(F, a.longest[k])
            while most > 0 and not (
                    t.first_layers[most - 1] and legal.first_pipeline[most - 1, k]):
                most -= 1
        if not (w.open[k] and most > part and may_be_below(t, a, w, k, top)
                and legal.policy_pipeline[r, k] and (part or legal.first_pipeline[0, k])):
            continue
        for some in range(LEAST if part else none, most):
            if part and (some == 0 or (some > 0 and not (
                    t.first_layers[some] and legal.first_pipeline[some, k]))):
                continue
            if part or not asked:
                _ask(w, c, r, some, (row * R + r) * F + some)
                asked = True
            time = _look(t, q, a, w, k, top, first)
            if some >= 0:
                top = time
            elif time > 0.0:
                break
        below = below if spread else min(below, top)
    return below


quick_try_all = known(try_all)


@leaf
def _ask(w, c, r, some, option):
    """Note what is asked for: what was found out about other questions holds no more."""
    w.question[CANDIDATE], w.question[POLICY] = c, r
    w.question[FIRST], w.question[OPTION] = some, option
    w.tally[0] += 1


@leaf
def _placed(t, q, a, legal, c, z, k):
    """Whether a pipeline may have these degrees and this way of ZeRO."""
    return (legal.row_pipeline[c, k] and legal.way_pipeline[z, k]
            and q.place[a.row[k], q.size[c], a.pp[k] - 1] >= 0
            and not (t.forbidden[z] and a.pp[k] > 1))


@leaf
def _hand_over(t, q, a, w, k):
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
def _look(t, q, a, w, k, top, first):
    """Look for plans of pipeline k below ``top`` seconds: those of the best, or ``top``.

    With ``first`` only the cuts with the least bound are priced, if no bound was less so far.
    Where the question is whether some cuts may take less (``LEAST``): 0 seconds.
    """
    if a.free[k]:  # asked first: its parts are compiled while another process compiles `fits`
        _hand_over(t, q, a, w, k)
        return _try_cuts(t, q, a, w, top, first)
    number = _first_layout(t, q, a, w, k, top)
    while number < a.last[k]:
        if fits(t, q, a, w, number, top):
            top = _price(t, q, a, w, top)
        number = next_layout(t, a, w, k, number + 1, top)
    return top


@leaf
def _first_layout(t, q, a, w, k, top):
    """First layout of pipeline k that may fit and take less than ``top``, or its last."""
    # The first look knows nothing of groups but that larger ones hold more.
    base, whole = a.base[k], w.question[FIRST] <= 0
    if whole and w.barren[base] == w.question[OPTION] + 1 and top <= w.under[base]:
        return a.last[k]
    _hand_over(t, q, a, w, k)
    if not has_room(t, a, w, k, top):
        return a.last[k]
    number = next_layout(t, a, w, k, a.first[k], top)
    if whole and not w.tally[4]:
        w.barren[k], w.under[k] = w.question[OPTION] + 1, top
    return number


@leaf
def _try_cuts(t, q, a, w, top, first):
    """:func:`_look` at free cuts."""
    k = w.question[PIPELINE]
    p, N = a.pp[k], len(a.order)
    if not _reach_the_end(t, a, w, k, w.guess[0] if first else top):
        return top
    _bound_stages(t, q, a, w, w.guess[0] if first else top)
    bound = w.bound[0, 0]
    if bound >= (w.guess[0] if first else top) * SLACK:
        return top
    w.cuts[0], w.cuts[p] = 0, N
    for s in range(p - 1):
        w.cuts[s + 1] = w.via[s, w.cuts[s]]
    top = _price(t, q, a, w, top)
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
            top = _price(t, q, a, w, top)
            s, left = s - 1, left - 1
            if left == 0:
                w.unproved[0] = min(w.unproved[0], bound)
                break
            continue
        w.at[s] = _next_cut(t, q, a, w, s, w.at[s] + 1, top)
        if w.at[s] < 0:
            s -= 1
            continue
        s += 1
        w.cuts[s] = w.at[s] = w.at[s - 1]
    return top


@leaf
def _reach_the_end(t, a, w, k, top):
    """Whether stages of one chunk, each with as many layers as it may have at the most, have all.

    That is with the least that layers take and hold, whose bounds grow with a stage at either end.
    """
    p, N, i = a.pp[k], len(a.order), 0
    for s in range(p):
        j = i
        while j < N and _least_of_stage(t, a, w, k, s, i, j + 1) < top * SLACK:
            j += 1
        i = j
    return i == N


@leaf
def _least_of_stage(t, a, w, k, s, i, j):
    """:func:`_stage` with the least that its layers take and hold."""
    p, m, N = a.pp[k], t.micro_batches, len(a.order)
    n = m - 1 if a.schedule[k] == GPIPE else min(p - 1 - s, m - 1)
    if w.resident[j] - w.resident[i] + (n + 1) * (w.kept[j] - w.kept[i]) > t.limit_bytes / SLACK:
        return np.inf
    f, b = w.ahead[j] - w.ahead[i], w.back[j] - w.back[i]
    behind = w.ahead[N] - w.ahead[j] + w.back[N] - w.back[j] + w.near[p - 1] - w.near[s]
    return w.ahead[i] + w.back[i] + w.near[s] + _waits(t, a, k, n, f, b, behind)


@leaf
def _waits(t, a, k, n, f, b, behind):
    """Seconds of a stage of one chunk from its first pass to its last one, at the least."""
    m = t.micro_batches
    if a.schedule[k] == GPIPE:
        return m * (f + b) + behind
    time = m * (f + b) + max(0.0, behind - n * min(f, b))
    return max(time, ((m - 1) // (n + 1) + 1) * (f + b + behind))


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
                    least = _stage(t, q, a, w, s, i, j)
                    if least == np.inf and a.chain:
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
        if w.bound[s + 1, behind] < top * SLACK and _stage(
                t, q, a, w, s, i, behind) < top * SLACK:
            return behind
    return -1


@leaf
def _stage(t, q, a, w, s, i, j):
    """No step is shorter with layers i..j on stage s of one chunk; inf: they do not fit.

    What is in front of the stage, what it runs itself, and what it waits for: 1F1B runs n + 1
    forwards before the first backward, and as many backwards behind the last forward.
    """
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    p, m, y = a.pp[k], t.micro_batches, q.place[a.row[k], q.size[c], s]
    g = _figures(t, q, a, w, y, i, j)
    n = m - 1 if a.schedule[k] == GPIPE else min(p - 1 - s, m - 1)
    if (w.figures[y, g, F_RESIDENT] + w.figures[y, g, F_WORK] + w.figures[y, g, F_BUFFERS]
            + (n + 1) * w.figures[y, g, F_ACTIVATIONS] > t.limit_bytes):
        return np.inf
    N, f = len(a.order), w.figures[y, g, C_FORWARD]
    b = w.figures[y, g, C_BACKWARD] - w.figures[y, g, C_LATE]
    behind = w.ahead[N] - w.ahead[j] + w.back[N] - w.back[j] + w.near[p - 1] - w.near[s]
    time = _waits(t, a, k, n, f, b, behind)
    left = w.figures[y, g, C_LEFT] + w.figures[y, g, C_TIED] + w.figures[y, g, C_UPDATE]
    return w.ahead[i] + w.near[s] / 2 + time + max(w.back[i] + w.near[s] / 2, left)


@piece
def fits(t, q, a, w, number, top):
    """Whether a layout fits and may take less than ``top``; ``w.cuts`` gets its cuts."""
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    p, v, x, N, size = a.pp[k], a.vpp[k], q.size[c], len(a.order), a.group[k]
    together, split = together_of(a.schedule[k]), split_of(a.schedule[k])
    loops = a.schedule[k] == INTERLEAVED or (a.schedule[k] == COMBINED and p > 1)
    copies, looped = copies_of(a.schedule[k]), is_looped(a.schedule[k])
    m = t.micro_batches // copies
    for n in range(p * v // copies + 1):
        w.cuts[n] = a.layouts[a.begin[number] + n]
    for s in range(p):
        y, resident, work, buffers, own, left = q.place[a.row[k], x, s], 0.0, 0.0, 0.0, 0.0, 0.0
        ran = kept = largest = hides = gathered = 0.0
        count = most = forward = sent = 0.0
        away = back_away = busy = back_busy = 0.0
        for d in range(v):
            n = _position(a, k, s, d)
            g = _figures(t, q, a, w, y, w.cuts[n], w.cuts[n + 1])
            chunk = w.figures[y, g]
            resident += chunk[F_RESIDENT]
            work = max(work, chunk[F_WORK])
            buffers = max(buffers, chunk[F_BUFFERS])
            times = w.forwards[k, s, d]
            kept += times * chunk[F_ACTIVATIONS]
            ran += times * chunk[C_FORWARD]
            w.activations[s, d] = chunk[F_ACTIVATIONS]
            count, most = count + times, max(most, w.activations[s, d])
            own += chunk[C_FORWARD] + chunk[C_BACKWARD]
            own -= chunk[C_LATE]
            if split or together:
                _parts(t, q, a, w, y, w.cuts[n], w.cuts[n + 1], g)
                w.kept_back[s, d] = chunk[F_KEPT]
                most = max(most, w.kept_back[s, d])
                largest = max(largest, chunk[F_LARGEST])
                if copies > 1:  # of both chunks as many as of the one with the fewest
                    times = w.forwards[k, s, 1]
                pairs = max(0, m - times)
                backs = m if loops and m % size else pairs  # as in ``next_layout``
                away += pairs * chunk[C_EXCHANGED_FORWARD]
                busy += pairs * chunk[C_BUSY_FORWARD]
                back_away += backs * chunk[C_EXCHANGED_BACKWARD]
                back_busy += backs * chunk[C_BUSY_BACKWARD]
            left += chunk[C_UPDATE] + chunk[C_TIED]
            forward += chunk[C_FORWARD]
            sent += q.handed[w.cuts[n + 1]]
            if looped and (d == 0 or d == v - 1):
                note_end(q, w, s, d, w.cuts[n + 1], y, g, split)
            if d == 0 and not split:
                left += chunk[C_LEFT]
            elif d == 0 and looped:  # the last pass is for weights of the first chunk
                left += chunk[C_LEFT_WEIGHTS]
            hides = max(hides, chunk[C_UNDER_FIRST], chunk[C_UNDER_LAST])
            gathered = max(gathered, chunk[C_LARGEST])
        i, j = w.cuts[_position(a, k, s, 0)], w.cuts[_position(a, k, s, v - 1) + 1]
        spared = 0.0
        for d in range(v if gathered > 0.0 and gathers(a.schedule[k]) else 0):
            # What is gathered of a chunk is partly hidden at the most, but for the first pass and
            # for the first backward, which may have waited.
            n = _position(a, k, s, d)
            chunk = w.figures[y, a.signature[w.cuts[n], w.cuts[n + 1]]]
            wait, back = gathering(chunk, 0, hides), gathering(chunk, 1, hides)
            own += wait + back
            ran += w.forwards[k, s, d] * wait
            if d == 0:
                spared = wait
            if d == v - 1:
                ran += back
        first = w.ahead[i] + w.near[s] / 2 - spared
        after = left if split else max(w.back[i] + w.near[s] / 2, left)
        w.room_left[s] = t.limit_bytes - resident - work - buffers
        if loops:
            there = w.ahead[N] + v * w.near[p - 1] / 2
            back = w.back[N] - w.back[j] + (w.near[p - 1] - w.near[s]) / 2
            first = max(first, there + back - ran)
        elif split:  # the first backward for inputs waits for those of all stages behind
            first = max(first, w.ahead[N] + w.inputs[N] - w.inputs[j] - ran)
        if together:
            own -= hidden_of(away, back_away, busy, back_busy) / m
            if copies > 1 or w.forwards[k, s, v - 1] < m:
                w.room_left[s] -= largest
        if first + m * own + after >= top * SLACK or kept > w.room_left[s]:
            return False
        w.ranks[s, R_OWN], w.ranks[s, R_RAN], w.ranks[s, R_SPARED] = m * own, ran, spared
        w.ranks[s, R_LEFT], w.ranks[s, R_FORWARD], w.ranks[s, R_SENT] = left, forward, sent
        # A backward frees what a forward took; that for weights comes s backwards later.
        w.ranks[s, R_HELD] = (count + (s if split else 0)) * most
    if looped and of_trips(t, q, a, w, c, k) >= top * SLACK:
        return False
    if GPIPE < a.schedule[k] < LOOPED_BFS:
        # Between the first groups and the last ones a rank holds the same in turn.
        order = _written(a, w, k, m, _few(a, k, m))
        for s in range(p):
            if looped and w.ranks[s, R_HELD] <= w.room_left[s]:
                continue
            kept_back, most = w.kept_back[s] if split else w.activations[s], w.room_left[s]
            if held(w.activations[s], kept_back, s, order, most) > most:
                return False
    return True


@leaf
def _figures(t, q, a, w, y, i, j):
    """Number of the signature of layers i..j, whose figures are filled in."""
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    r, some = w.question[POLICY], w.question[FIRST]
    g = a.signature[i, j]
    if w.stamp[0, y, g] == w.tally[0]:
        return g
    w.stamp[0, y, g] = w.tally[0]
    kinds = a.whole if _has_all(a, k) else a.order
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
def _parts(t, q, a, w, y, i, j, g):
    """Add to the figures of layers i..j, signature g, those of passes in parts or side by side."""
    if w.stamp[1, y, g] == w.tally[0]:
        return
    w.stamp[1, y, g] = w.tally[0]
    kinds = a.whole if _has_all(a, w.question[PIPELINE]) else a.order
    apart = a.apart[t.body[q.alike[w.question[CANDIDATE], y]]]
    out, kept, largest = w.figures[y, g], 0.0, 0.0
    marked, some = 0, w.question[FIRST]
    for n in range(i, j):
        # As in ``_figures``, whose answer may be that of equal layers elsewhere.
        marked = q.marked_before[n + 1] - q.marked_before[i]
        kind, r = kinds[n], w.question[POLICY]
        if some == LEAST or 0 < some < marked:
            r = 0
        w.again[n] = r
        kept += apart[r, kind, KEPT_BACK]
        if a.repeated[kind]:
            largest = max(largest, w.layers[y, r, kind, ACTIVATIONS])
    add_parts(w.layers[y], apart, t.overlaps, kinds, w.again, i, j, out)
    out[F_KEPT], out[F_LARGEST] = kept, largest


@leaf
def _has_all(a, k):
    """Whether all layers that share a table of the vocabulary are on one stage."""
    return a.pp[k] == 1 or a.schedule[k] == DUALPIPE


@leaf
def _position(a, k, s, d):
    """Place in the model of chunk d of stage s."""
    if a.schedule[k] == DUALPIPE:
        return max(s, a.pp[k] - 1 - s) if d else min(s, a.pp[k] - 1 - s)
    if d == 1 and (a.schedule[k] == ZB_V or a.schedule[k] == DUALPIPEV):
        return 2 * a.pp[k] - 1 - s
    return d * a.pp[k] + s


@leaf
def _few(a, k, m):
    """Micro-batches of the first groups and the last ones of pipeline k; m where all count."""
    schedule, p, size = a.schedule[k], a.pp[k], a.group[k]
    if p > 1 and schedule in (INTERLEAVED, COMBINED, ZB1P, INTERLEAVED_ZB):
        return few_of(p, m, size)
    return m


@leaf
def _written(a, w, k, m, few):
    """Passes of the first and the last ``few`` of m micro-batches in pipeline k."""
    order = w.few if few < m else w.order
    x = 3 if few < m else 2
    if w.tally[x] != k + 1:
        w.tally[x] = k + 1
        w.write_order(a.schedule[k], a.pp[k], a.vpp[k], few, a.group[k],
                      (m - few) // a.group[k], order)
    return order


@leaf
def _price(t, q, a, w, top):
    """Price ``w.cuts`` and keep them if they take less than ``top`` seconds: those or ``top``."""
    if w.question[FIRST] == LEAST:
        return 0.0
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    p, v, x = a.pp[k], a.vpp[k], q.size[c]
    apart = split_of(a.schedule[k]) or together_of(a.schedule[k])
    folded = a.schedule[k] == ZB_V or a.schedule[k] == DUALPIPEV
    crossed, copies = a.schedule[k] == DUALPIPE, copies_of(a.schedule[k])
    for s in range(p):
        y = q.place[a.row[k], x, s]
        for d in range(v):
            n = _position(a, k, s, d)
            i, j = w.cuts[n], w.cuts[n + 1]
            per_byte, latency = q.wrap[0, x, p], q.wrap[1, x, p]
            if (d and folded) or (crossed and n != s):  # back along a V, or from the other end
                per_byte, latency = q.hop[0, x, s], q.hop[1, x, s]
            elif s < p - 1:
                per_byte, latency = q.hop[0, x, s + 1], q.hop[1, x, s + 1]
            elif folded or crossed:
                per_byte = latency = 0.0  # its own second chunk, or nothing
            g = _figures(t, q, a, w, y, i, j)
            if apart:
                _parts(t, q, a, w, y, i, j, g)
            for f in range(CHUNK):
                w.costs[s, d, f] = w.figures[y, g, f]
            gap = q.handed[j] / t.shards[c] * per_byte
            w.hops[s, d, 0], w.hops[s, d, 1] = q.both * (gap + latency), gap
            w.alone[s, d] = j - i == 1
    if a.schedule[k] > GPIPE:
        m, depth = t.micro_batches // copies, p * v // copies
        few = _few(a, k, m)
        order = _written(a, w, k, m, few)
        if a.schedule[k] == COMBINED and p > 1:
            if w.tally[5] != k + 1:
                w.tally[5] = k + 1
                count_pairs(p, v, order, w.pairs)
            if of_pairs(w, p, v) >= top * SLACK:
                return top
        w.tally[1] += 1
        time = w.longest_path(w.costs, w.alone, w.hops, p, v, few, depth, order, w.room, top)
        if few < m and time < top and w.room.unsure[0] > passes.SURE * time:
            time = w.longest_path(w.costs, w.alone, w.hops, p, v, m, depth,
                                  _written(a, w, k, m, m), w.room, top)
    else:
        w.tally[1] += 1
        time = _in_closed_form(w, p, t.micro_batches, a.schedule[k] == GPIPE)
    if time >= top * SLACK:
        return top
    w.best[k], w.option[k] = time, w.question[OPTION]
    for n in range(p * v // copies + 1):
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
