"""The arrays of a search of pipelines of alike stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from nest._kernels.labels import DECIDE, STATE, Labels
from nest._kernels.orders import longest_path, order_of, room_of, write_order
from nest.records import (
    ANSWER,
    BEFORE,
    BODY,
    FIGURES,
    KIND,
    LAYER,
    NOW,
    RANK,
    Floats2,
    Floats3,
    Ints,
    Ints2,
    Ints3,
    Rows,
)
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules import one_f_one_b
from nest.schedules.passes import Order, Room

LABELS = 1 << 14
"""Room for labels at first; a cell has that of an eighth of them."""


class UniformWork(NamedTuple):
    """Arrays that ``search.alike`` makes and its helpers fill; records of :mod:`nest.records`."""

    now: Annotated[Rows, 1, NOW]
    """(1,)"""
    answer: Annotated[Rows, 1, ANSWER]
    """(Q,)"""
    found: Ints2
    """(Q, S V + 1) cuts of the best plans."""
    layers: Annotated[Rows, 3, LAYER]
    """(Y, R, T)"""
    kind: Annotated[Rows, 1, KIND]
    """(T + 1,); the last is what there is before the first look."""
    body: Annotated[Rows, 1, BODY]
    """(2,); the last likewise."""
    before: Annotated[Rows, 1, BEFORE]
    """(N+1,) by cut."""
    again: Ints
    """(N,) recompute policy of each layer."""
    figures: Annotated[Rows, 2, FIGURES]
    """(Y, G) of the stages and chunks that were asked for; the last of G is that of chunks
    without layers."""
    bound: Floats2
    """(S+1, N+1) no step is shorter whose stages from s on begin at a cut."""
    via: Ints2
    """(S+1, N+1) cut behind stage s where that is least."""
    cuts: Ints
    """(S V + 1,) those that are looked at."""
    at: Ints
    """(S+1,) next cut to try behind each stage."""
    rank: Annotated[Rows, 1, RANK]
    """(S,)"""
    activations: Floats2
    """(S, V) bytes of a micro-batch in each chunk."""
    kept_back: Floats2
    """(S, V) bytes of them that a backward for inputs leaves to that for weights."""
    pairs: Ints3
    """(S, V+1, V+1) see ``trips.count_pairs``."""
    costs: Annotated[Rows, 2, FIGURES]
    """(S, V)"""
    hops: Floats3
    """(S, V, 2)"""
    label: Floats2
    """(2, FIGURES) of :mod:`nest.schedules.one_f_one_b`, or ``nest.schedules.gpipe``."""
    policies: Ints2
    """(2, R + 2) recompute policies that are looked at together: by seconds, by bytes."""
    forwards: Ints3
    """(Q, S, V) micro-batches of each chunk of each stage whose forwards it runs before its
    first backward; 0 until it was asked for."""
    decided: Ints
    """int64 of each pipeline, then of its runs (``Pipelines.run``), then of its layouts: the
    policies, each a bit, with which bytes alone ruled out nothing, given the degrees and the way of
    ZeRO that are looked at."""
    labels: Labels
    order: Order
    few: Order
    """The same of the first groups and the last ones alone."""
    room: Room
    write_order: Annotated[Callable[..., None], write_order]
    longest_path: Annotated[Callable[..., float], longest_path]
    """Those of :mod:`nest._kernels.orders`."""


def work_of(
    degrees: Degrees, places: Rings, pipelines: Pipelines, labels: int = LABELS,
) -> UniformWork:
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


def _answers(pipelines: Pipelines) -> tuple[Rows, int]:
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


def _labels_of(count: int, S: int, N: int) -> Labels:
    """Room for so many labels."""
    figures = one_f_one_b.FIGURES
    state = np.zeros(STATE, np.int64)
    state[DECIDE] = figures
    return Labels(
        state=state, values=np.empty((count, figures)), links=np.empty((count, 3), np.int64),
        cell=np.empty((count // 8, figures + 1)),
        cell_links=np.empty((count // 8, 3), np.int64), new=np.zeros(figures + 1),
        spans=np.zeros((2, 2, N + 1), np.int64), fronts=np.empty((S + 1, N + 1)))
