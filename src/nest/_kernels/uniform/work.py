"""The arrays of a search of pipelines of alike stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nest._kernels.orders import longest_path, order_of, room_of, write_order
from nest._kernels.pipeline import DECIDE, STATE
from nest.records import ANSWER, BEFORE, BODY, FIGURES, KIND, LAYER, NOW, RANK
from nest.schedules import one_f_one_b
from nest.schedules.passes import Order, Room

LABELS = 1 << 14
"""Room for labels at first; a cell has that of an eighth of them."""


class Labels(NamedTuple):
    """Arrays for ``labels``; names as in ``nest._kernels.pipeline.LabelWork``."""

    state: np.ndarray
    """int64 (STATE,)"""
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


class UniformWork(NamedTuple):
    """Arrays that ``search.alike`` makes and its helpers fill; records of :mod:`nest.records`."""

    now: np.ndarray
    """NOW (1,)"""
    answer: np.ndarray
    """ANSWER (Q,)"""
    found: np.ndarray
    """int64 (Q, S V + 1) cuts of the best plans."""
    layers: np.ndarray
    """LAYER (Y, R, T)"""
    kind: np.ndarray
    """KIND (T + 1,); the last is what there is before the first look."""
    body: np.ndarray
    """BODY (2,); the last likewise."""
    before: np.ndarray
    """BEFORE (N+1,) by cut."""
    again: np.ndarray
    """int64 (N,) recompute policy of each layer."""
    figures: np.ndarray
    """FIGURES (Y, G) of the stages and chunks that were asked for; the last of G is that of chunks
    without layers."""
    bound: np.ndarray
    """float64 (S+1, N+1) no step is shorter whose stages from s on begin at a cut."""
    via: np.ndarray
    """int64 (S+1, N+1) cut behind stage s where that is least."""
    cuts: np.ndarray
    """int64 (S V + 1,) those that are looked at."""
    at: np.ndarray
    """int64 (S+1,) next cut to try behind each stage."""
    rank: np.ndarray
    """RANK (S,)"""
    activations: np.ndarray
    """float64 (S, V) bytes of a micro-batch in each chunk."""
    kept_back: np.ndarray
    """float64 (S, V) bytes of them that a backward for inputs leaves to that for weights."""
    pairs: np.ndarray
    """int64 (S, V+1, V+1) see ``trips.count_pairs``."""
    costs: np.ndarray
    """FIGURES (S, V)"""
    hops: np.ndarray
    """float64 (S, V, 2)"""
    label: np.ndarray
    """float64 (2, FIGURES) of :mod:`nest.schedules.one_f_one_b`, or ``nest.schedules.gpipe``."""
    policies: np.ndarray
    """int64 (2, R + 2) recompute policies that are looked at together: by seconds, by bytes."""
    forwards: np.ndarray
    """int64 (Q, S, V) micro-batches of each chunk of each stage whose forwards it runs before its
    first backward; 0 until it was asked for."""
    decided: np.ndarray
    """int64 of each pipeline, then of its runs (``Pipelines.run``), then of its layouts: the
    policies, each a bit, with which bytes alone ruled out nothing, given the degrees and the way of
    ZeRO that are looked at."""
    labels: Labels
    order: Order
    few: Order
    """The same of the first groups and the last ones alone."""
    room: Room
    write_order: Callable[..., None]
    longest_path: Callable[..., float]
    """Those of :mod:`nest._kernels.orders`."""


def work_of(degrees, places, pipelines, labels=LABELS):
    """Room for ``search.alike``; ``labels``: for so many."""
    Q, N, R, T = len(pipelines.pipe), len(pipelines.order), degrees.back.shape[
        1], degrees.ahead.shape[1]
    pp, vpp = pipelines.pipe["pp"], pipelines.pipe["vpp"]
    S, V, chunks = (int(each.max(initial=1)) for each in (pp, vpp, pp * vpp))
    Y, G = places.alike.shape[1], int(pipelines.signature.max()) + 1
    answer, parts = _answers(pipelines)
    figures = np.zeros((Y, G), FIGURES)
    figures["alone"][:, -1] = True
    kind, body = np.zeros(T + 1, KIND), np.zeros(2, BODY)
    for name in ("forward", "backward", "left", "gathered", "regathered", "scattered", "sync",
                 "gather", "resident", "activations", "freed", "room"):
        kind[name][-1] = np.inf
    for name in ("seconds", "recompute", "freed", "resident", "activations", "begin", "end"):
        body[name][-1] = np.inf
    now = np.zeros(1, NOW)
    now["guess"] = now["unproved"] = np.inf
    return UniformWork(
        now=now, answer=answer, found=np.zeros((Q, chunks + 1), np.int64),
        layers=np.empty((Y, R, T), LAYER), kind=kind, body=body, before=np.zeros(N + 1, BEFORE),
        again=np.zeros(N, np.int64), figures=figures,
        bound=np.empty((S + 1, N + 1)), via=np.zeros((S + 1, N + 1), np.int64),
        cuts=np.zeros(chunks + 1, np.int64), at=np.zeros(S + 1, np.int64), rank=np.zeros(S, RANK),
        activations=np.empty((S, V)), kept_back=np.empty((S, V)),
        pairs=np.empty((S, V + 1, V + 1), np.int64),
        costs=np.zeros((S, V), FIGURES), hops=np.zeros((S, V, 2)),
        label=np.zeros((2, one_f_one_b.FIGURES)), policies=np.zeros((2, R + 2), np.int64),
        forwards=np.zeros((Q, S, V), np.int64), decided=np.zeros(parts, np.int64),
        labels=_labels_of(labels if pipelines.most else 8, S, N),
        order=order_of(S, chunks, 3 * degrees.micro_batches * chunks),
        few=order_of(S, chunks, 3 * degrees.micro_batches * chunks),
        room=room_of(S, chunks, degrees.micro_batches * chunks),
        write_order=write_order, longest_path=longest_path)


def _answers(pipelines):
    """Nothing known of any pipeline yet, and the length of ``UniformWork.decided``."""
    first, last = pipelines.pipe["first"], pipelines.pipe["last"]
    listed, parts = np.flatnonzero(first < last), np.ones((len(first), 2), np.int64)
    parts[listed, 0] += pipelines.run[last[listed] - 1] - pipelines.run[first[listed]] + 1
    parts[listed, 1] = last[listed] - first[listed]
    begin = np.cumsum(parts).reshape(-1, 2) - parts
    found = np.zeros(len(first), ANSWER)
    found["best"], found["option"] = np.inf, -1
    found["run"], found["layout"] = begin.T
    return found, parts.sum()


def _labels_of(count, S, N):
    """Room for so many labels."""
    figures = one_f_one_b.FIGURES
    state = np.zeros(STATE, np.int64)
    state[DECIDE] = figures
    return Labels(
        state=state, values=np.empty((count, figures)), links=np.empty((count, 3), np.int64),
        cell=np.empty((count // 8, figures + 1)),
        cell_links=np.empty((count // 8, 3), np.int64), new=np.zeros(figures + 1),
        spans=np.zeros((2, 2, N + 1), np.int64), fronts=np.empty((S + 1, N + 1)))
