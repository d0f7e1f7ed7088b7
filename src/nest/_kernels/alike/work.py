"""The arrays of a search of pipelines of alike stages, and the fields of a question."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nest._kernels.alike.trips import RANK
from nest._kernels.layers import FIELDS
from nest._kernels.orders import longest_path, order_of, room_of, write_order
from nest._kernels.pipeline import DECIDE, STATE
from nest.forms import one_f_one_b
from nest.forms.chunk import CHUNK
from nest.forms.passes import Order, Room

# Of a question: the first layers are those of each chunk that it holds for.
CANDIDATE, PIPELINE, POLICY, FIRST, OPTION, QUICKER = range(6)
LEAST = -1
"""In place of first layers: the seconds without recompute, the bytes with the policy."""
# Of ``Work.mark``.
RUN, LAYOUT, UNDECIDED, LOOKED = range(4)
# Bytes of a chunk, behind its figures of time. The last two are of activations: what a backward for
# inputs leaves, and those of the largest of the transformer layers.
F_RESIDENT, F_ACTIVATIONS, F_WORK, F_BUFFERS, F_KEPT, F_LARGEST = range(CHUNK, CHUNK + 6)
FIGURES = CHUNK + 6
# Of a layer of a kind, the least: seconds forward, backward, backward for inputs, of the optimizer;
# bytes of its state, its activations, what these are more without recompute, and of work and
# buffers; seconds of ZeRO's gathers, of those backward, and of scatters; of reducing its gradients
# and gathering its parameters once a step.
(AHEAD, BACK, INPUTS, LEFT, HELD, KEPT, MORE, ROOM, GATHER, REGATHER, SCATTER, REDUCE,
 REFRESH) = range(13)
LEASTS = 13


LABELS = 1 << 14
"""Room for labels at first; a cell has that of an eighth of them."""
FULL = STATE
"""Of ``Labels.state``: whether there was no room for more labels."""


class Labels(NamedTuple):
    """Arrays for ``labels``; names as in ``nest._kernels.pipeline.Work``."""

    state: np.ndarray
    """int64 (STATE + 1,)"""
    values: np.ndarray
    """float64 (labels, FIGURES)"""
    links: np.ndarray
    """int64 (labels, 3)"""
    cell: np.ndarray
    """float64 (labels, FIGURES + 1)"""
    cell_links: np.ndarray
    """int64 (labels, 3)"""
    new: np.ndarray
    """float64 (FIGURES + 1,)"""
    spans: np.ndarray
    """int64 (2, 2, N+1) first label and end of the cells of a stage, and of that behind, by cut."""
    fronts: np.ndarray
    """float64 (S+1, N+1) no step is shorter whose stages in front of one end at a cut."""


class Work(NamedTuple):
    """Arrays that ``search.alike`` makes and its helpers fill."""

    best: np.ndarray
    """float64 (Q,), see ``search.alike``."""
    option: np.ndarray
    """int64 (Q,)"""
    found: np.ndarray
    """int64 (Q, S V + 1)"""
    layers: np.ndarray
    """float64 (Y, R, T, FIELDS)"""
    least: np.ndarray
    """float64 (LEASTS, T) of a layer of a kind, at the least; see `AHEAD`."""
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
    """float64 (Y, G, FIGURES) of the stages and chunks that were asked for; the last of G is
    that of chunks without layers."""
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
    """int64 (6,) candidate, pipeline, policy, first layers that it holds for (0: all), option;
    those policies of ``decided`` with which no layer takes longer."""
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
    """float64 (S, RANK) see ``trips``."""
    pairs: np.ndarray
    """int64 (S, V+1, V+1) see ``trips.count_pairs``."""
    costs: np.ndarray
    """float64 (S, V, CHUNK)"""
    hops: np.ndarray
    """float64 (S, V, 2)"""
    alone: np.ndarray
    """bool (S, V) a chunk is a single layer, or none."""
    label: np.ndarray
    """float64 (2, FIGURES) of :mod:`nest.forms.one_f_one_b`, or of :mod:`nest.forms.gpipe`."""
    tally: np.ndarray
    """int64 (6,) number of the last question, pipelines priced, the pipelines whose passes
    ``order`` and ``few`` have, plus 1, whether the last ``next_layout`` came past the first
    look at a block of layouts, and the pipeline whose pairs were counted, plus 1."""
    barren: np.ndarray
    """int64 (Q,) the last option, plus 1, with which it came past none."""
    under: np.ndarray
    """float64 (Q,) and below so many seconds."""
    guess: np.ndarray
    """float64 (1,) least bound of cuts that were priced."""
    layer: np.ndarray
    """float64 (13,) least seconds of a layer of the body, and what recompute of it adds; most
    seconds that passes beside each other save of it; least bytes that recompute frees of a layer
    that it applies to; the largest of ``waits``; least bytes of a layer of the body, and of its
    activations; least seconds that the first layer is waited for, and that it leaves;
    the most that any layer is gathered with ZeRO-3, at the least."""
    policies: np.ndarray
    """int64 (2, R + 2) recompute policies that are looked at together: by seconds, by bytes."""
    open: np.ndarray
    """bool (Q,) pipelines that may have one of them."""
    forwards: np.ndarray
    """int64 (Q, S, V) micro-batches of each chunk of each stage whose forwards it runs before its
    first backward; 0 until it was asked for."""
    waits: np.ndarray
    """float64 (4, T) see ``sums``."""
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
    decided: np.ndarray
    """int64 of each pipeline, then of its runs (``Pipelines.run``), then of its layouts: the
    policies, each a bit, with which bytes alone ruled out nothing, given the degrees and the way of
    ZeRO that are looked at."""
    begin: np.ndarray
    """int64 (2, Q) where those of a pipeline begin, and those of its layouts."""
    mark: np.ndarray
    """int64 (4,) that of the run which is looked at, and of the layout; how often bytes alone
    ruled out layouts of the pipeline; the policies that were looked at, each a bit."""
    unproved: np.ndarray
    """float64 (1,) see ``search.alike``."""
    labels: Labels
    order: Order
    few: Order
    """The same of the first groups and the last ones alone."""
    room: Room
    write_order: Callable[..., None]
    longest_path: Callable[..., float]
    """Those of :mod:`nest._kernels.orders`."""


def work_of(t, q, a, labels=LABELS):
    """Room for ``search.alike``; ``labels``: for so many."""
    Q, N = len(a.pp), len(a.order)
    S, V = int(a.pp.max(initial=1)), int(a.vpp.max(initial=1))
    chunks = int((a.pp * a.vpp).max(initial=1))
    listed, parts = np.flatnonzero(a.first < a.last), np.ones((Q, 2), np.int64)
    parts[listed, 0] += a.run[a.last[listed] - 1] - a.run[a.first[listed]] + 1
    parts[listed, 1] = a.last[listed] - a.first[listed]
    begin = np.cumsum(parts).reshape(Q, 2)
    Y, G = q.alike.shape[1], int(a.signature.max()) + 1
    figures = np.empty((Y, G, FIGURES))
    figures[:, -1] = 0.0
    return Work(
        best=np.full(Q, np.inf), option=np.full(Q, -1),
        found=np.zeros((Q, chunks + 1), np.int64),
        layers=np.empty((Y, t.back.shape[1], t.ahead.shape[1], FIELDS)),
        least=np.empty((LEASTS, t.ahead.shape[1])),
        again=np.zeros(N, np.int64), ahead=np.zeros(N + 1), back=np.zeros(N + 1),
        inputs=np.zeros(N + 1),
        resident=np.zeros(N + 1), kept=np.zeros(N + 1),
        figures=figures, stamp=np.zeros((2, Y, G), np.int64),
        bound=np.empty((S + 1, N + 1)), via=np.zeros((S + 1, N + 1), np.int64),
        near=np.zeros(S + 1), question=np.zeros(6, np.int64),
        cuts=np.zeros(chunks + 1, np.int64), at=np.zeros(S + 1, np.int64),
        activations=np.empty((S, V)), kept_back=np.empty((S, V)), room_left=np.empty(S),
        ranks=np.empty((S, RANK)), pairs=np.empty((S, V + 1, V + 1), np.int64),
        costs=np.empty((S, V, CHUNK)), hops=np.zeros((S, V, 2)),
        alone=np.zeros((S, V), np.bool_), label=np.zeros((2, one_f_one_b.FIGURES)),
        decided=np.zeros(parts.sum(), np.int64),
        begin=np.ascontiguousarray((begin - parts).T),
        mark=np.zeros(4, np.int64), tally=np.zeros(6, np.int64), unproved=np.full(1, np.inf),
        guess=np.full(1, np.inf),
        layer=np.zeros(13), policies=np.zeros((2, t.back.shape[1] + 2), np.int64),
        open=np.zeros(Q, np.bool_), forwards=np.zeros((Q, S, V), np.int64),
        free=np.zeros((2, t.ahead.shape[1])),
        waits=np.zeros((4, t.ahead.shape[1])), waited=np.zeros(4),
        marked=np.zeros(t.ahead.shape[1], np.bool_),
        saved=np.zeros((4, t.ahead.shape[1] + 1)), weights=np.zeros(t.ahead.shape[1]),
        barren=np.zeros(Q, np.int64), under=np.zeros(Q),
        labels=_labels_of(labels if a.most else 8, S, N),
        order=order_of(S, chunks, 3 * t.micro_batches * chunks),
        few=order_of(S, chunks, 3 * t.micro_batches * chunks),
        room=room_of(S, chunks, t.micro_batches * chunks),
        write_order=write_order, longest_path=longest_path)


def _labels_of(count, S, N):
    """Room for so many labels."""
    figures = one_f_one_b.FIGURES
    state = np.zeros(STATE + 1, np.int64)
    state[DECIDE] = figures
    return Labels(
        state=state, values=np.empty((count, figures)), links=np.empty((count, 3), np.int64),
        cell=np.empty((count // 8, figures + 1)),
        cell_links=np.empty((count // 8, 3), np.int64), new=np.zeros(figures + 1),
        spans=np.zeros((2, 2, N + 1), np.int64), fronts=np.empty((S + 1, N + 1)))
