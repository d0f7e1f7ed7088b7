"""Rule out stages by their layers and their block, and by how many lie behind them, before anything
is listed for them.

Shapes: L cuts, K positions, B block sizes, P prices, G signatures, C candidates, Z ways of ZeRO, T
layer kinds, as in :class:`nest.records.problems.Spans` and ``nest.records.tables.Tables``; N stages
to look at (a signature under a price), D numbers of stages, cells are the cuts that may lie at a
position. Proofs: docs/proofs.md, Lemma 27 (stages that no plan has) and Lemma 28 (micro-batches
behind).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from nest._kernels import entry, leaf
from nest.records import FAST, Floats, Floats2, Int32s2, Ints2, Ints3, Rows
from nest.records.problems import Spans
from nest.records.tables import Tables

DEEPEST = 64
"""Numbers of stages that are told apart, at most; the last stands for all above too."""
SLACK = 1.0 + 1e-9
"""Sums here are rounded in another order than those of a plan."""
# What is found of a stage.
LEAST_HELD, MOST_HELD, SLOWEST = range(3)


def held(
    spans: Spans, degrees: Tables, limit: float, cuts: Ints2, ends: Ints3, row: Ints2,
) -> Floats2:
    """Micro-batches that the stages of a plan below ``limit`` seconds a step may hold.

    Parameters
    ----------
    s, t : ``nest.records.problems.Spans`` and ``nest.records.tables.Tables`` of 1F1B.
    limit : seconds, with a margin.
    cuts : int64 (3, K+1), the first and the last cut that may lie at each position, and its first
        cell.
    ends : int64 (2, P, L+1), where stages may end.
    row : int64 (P, G), numbers of the stages to look at, -1: none.

    Returns
    -------
    float64 (3, N), the least, the most (-1: no such plan has the stage), and the seconds that a
    micro-batch takes less than.
    """
    deepest = min(int(degrees.cap.max()), DEEPEST)
    seconds = np.full((int(row.max()) + 1, deepest), np.inf)
    least_seconds(degrees, row, np.empty(len(degrees.part), FAST),
        np.empty(degrees.ahead.shape[1], FAST), seconds)
    cells = int(cuts[2, -1] + max(cuts[1, -1] - cuts[0, -1] + 1, 0))
    found = np.zeros((3, len(seconds)))
    found[LEAST_HELD], found[MOST_HELD] = degrees.micro_batches, -1.0
    look(spans, limit, cuts, ends, row, seconds, np.full((cells, deepest + 1), np.inf),
         np.full(cells, np.inf), found)
    return found


@entry
def least_seconds(
    degrees: Tables, row: Ints2, sums: Annotated[Rows, 1, FAST], own: Annotated[Rows, 1, FAST],
    seconds: Floats2,
) -> None:
    """Fill the least seconds of a micro-batch of each stage that holds 1, 2, ... of them.

    Each layer takes those of its fastest policy, and each byte that it has to keep less the least
    that any layer pays for one under any policy.
    """
    R, G, D, room = degrees.back.shape[1], len(degrees.part), seconds.shape[
        1], degrees.limit_bytes * SLACK
    for c in range(len(degrees.price)):
        body, state, price = degrees.body[c], degrees.held[c], degrees.price[c]
        toll = np.inf
        for kind in range(degrees.ahead.shape[1]):
            alone, least = degrees.back[body, 0, kind], np.inf
            fast, kept = alone.seconds, alone.activations
            for r in range(R):
                again = degrees.back[body, r, kind]
                if again.seconds < fast or (again.seconds == fast and again.activations < kept):
                    fast, kept = again.seconds, again.activations
                least = min(least, again.activations)
            for r in range(R):
                again = degrees.back[body, r, kind]
                if again.activations < kept:
                    toll = min(toll, (again.seconds - fast) / (kept - again.activations))
            layer = own[kind]
            layer.time, layer.kept = degrees.ahead[body, kind].seconds + fast, kept
            layer.least, layer.work = least, alone.work
        for z in range(len(degrees.shard)):
            if degrees.shard[z] and not degrees.hybrid[c]:
                continue
            for kind in range(degrees.ahead.shape[1]):
                own[kind].resident = degrees.state[state, z, kind].resident
                own[kind].buffers = degrees.state[state, z, kind].buffers
            for g in range(G):
                part, total = degrees.part[g], sums[g]
                sums[g] = own[degrees.last[g]]
                if part >= 0:
                    before = sums[part]
                    total.time += before.time
                    total.resident += before.resident
                    total.kept += before.kept
                    total.least += before.least
                    total.buffers = max(total.buffers, before.buffers)
                    total.work = max(total.work, before.work)
                n = row[price, g]
                if n < 0 or (degrees.forbidden[z] and g != degrees.whole):
                    continue
                free = room - total.resident - total.buffers - total.work
                for d in range(1, D + 1):
                    if d * total.least > free:
                        break
                    short = total.kept - free / d
                    time = total.time + (toll * short if short > 0.0 else 0.0)
                    seconds[n, d - 1] = min(seconds[n, d - 1], time)


@entry
def look(
    spans: Spans, limit: float, cuts: Ints2, ends: Ints3, row: Ints2, seconds: Floats2,
    behind: Floats2, ahead: Floats, found: Floats2,
) -> None:
    """Fill ``found`` of ``held``; ``behind`` (cells, D+1), ``ahead`` (cells,) hold infinities."""
    _behind(spans, limit, cuts, ends, row, seconds, behind)
    _ahead(spans, limit, cuts, ends, row, seconds, behind, ahead, found)


@leaf
def slowest(spans: Spans, room: float, behind: float, j: int, stop: int) -> float:
    """Seconds that a stage up to cut ``j`` and position ``stop`` takes less than in ``room``."""
    most, left = min(room / spans.micro_batches, room - behind), spans.work[-1] - spans.work[j]
    if left > 0.0:
        most = min(most, room - left / (1.0 - spans.share[stop]))
    return most


@leaf
def _behind(
    spans: Spans, limit: float, cuts: Ints2, ends: Ints3, row: Ints2, seconds: Floats2,
    behind: Floats2,
) -> None:
    """Fill the least that 0, 1, ... stages behind a cell take from its first micro-batch on."""
    L, K, m, D = len(spans.signature) - 1, cuts.shape[1] - 1, spans.micro_batches, seconds.shape[1]
    for k in range(K, -1, -1):
        if cuts[0, k] <= L <= cuts[1, k]:
            behind[cuts[2, k] + L - cuts[0, k], 0] = 0.0
        for i in range(cuts[0, k], min(cuts[1, k] + 1, L)):
            here = cuts[2, k] + i - cuts[0, k]
            for x in range(len(spans.sizes)):
                kind, stop = spans.price[x, k], k + spans.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(max(ends[0, kind, i], cuts[0, stop]),
                               min(ends[1, kind, i], cuts[1, stop] + 1)):
                    n, there = row[kind, spans.signature[i, j]], cuts[2, stop] + j - cuts[0, stop]
                    for d in range(D + 1 if n >= 0 else 0):
                        if behind[there, d] == np.inf:
                            continue
                        # Holding more takes longer.
                        t = seconds[n, min(d, D - 1)]
                        if m * t >= limit:
                            break
                        step = max(m * t, t + behind[there, d])
                        behind[here, min(d + 1, D)] = min(behind[here, min(d + 1, D)], step)


@leaf
def _ahead(
    spans: Spans, limit: float, cuts: Ints2, ends: Ints3, row: Ints2, seconds: Floats2,
    behind: Floats2, ahead: Floats, found: Floats2,
) -> None:
    """Fill the least seconds of a micro-batch in front of a cell, and ``found``."""
    L, K, m, D = len(spans.signature) - 1, cuts.shape[1] - 1, spans.micro_batches, seconds.shape[1]
    if cuts[0, 0] == 0:
        ahead[cuts[2, 0]] = 0.0
    for k in range(K):
        for i in range(cuts[0, k], min(cuts[1, k] + 1, L)):
            before = ahead[cuts[2, k] + i - cuts[0, k]]
            if before == np.inf:
                continue
            for x in range(len(spans.sizes)):
                kind, stop = spans.price[x, k], k + spans.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(max(ends[0, kind, i], cuts[0, stop]),
                               min(ends[1, kind, i], cuts[1, stop] + 1)):
                    n, there = row[kind, spans.signature[i, j]], cuts[2, stop] + j - cuts[0, stop]
                    for d in range(D + 1 if n >= 0 else 0):
                        t = seconds[n, min(d, D - 1)]
                        if before + m * t >= limit:
                            break
                        if behind[there, d] == np.inf:
                            continue
                        most = slowest(spans, limit - before, behind[there, d], j, stop)
                        if t >= most:
                            continue
                        ahead[there] = min(ahead[there], before + t)
                        found[LEAST_HELD, n] = min(found[LEAST_HELD, n], min(d + 1, m))
                        found[MOST_HELD, n] = max(found[MOST_HELD, n],
                                                  m if d == D else min(d + 1, m))
                        found[SLOWEST, n] = max(found[SLOWEST, n], most)


NO, PART = -1, 0
"""No plan has a stage of a signature; only one of which it is the first part."""
MANY = 4000
"""Stages that are worth a look at how many lie behind them (chosen: models have fewer)."""


class Wanted(NamedTuple):
    """What a plan may want of the stages of a signature under a price."""

    most: Int32s2
    """(P, G) micro-batches that one has to hold at the most, or ``NO`` or ``PART``."""
    least: Int32s2
    """(P, G) those that each has to hold."""
    slowest: Floats2
    """(P, G) seconds that a micro-batch takes less than."""


def everything(prices: int, signatures: int, most: int) -> Wanted:
    """Ask for all stages."""
    return Wanted(most=np.full((prices, signatures), most, np.int32),
                  least=np.ones((prices, signatures), np.int32),
                  slowest=np.full((prices, signatures), np.inf))


def useful(
    spans: Spans, limit: float, degrees: Tables | None = None, many: int = MANY,
) -> tuple[Ints3, Wanted]:
    """Stages that a plan below ``limit`` seconds a step may have.

    Parameters
    ----------
    t : ``nest.records.tables.Tables``; None: whatever they hold.
    many : how many stages are worth a look at what they hold.

    Returns
    -------
    ends : int64 (2, P, L+1), the first cut at which a stage from each cut may end under each price,
        and the last one + 1.
    wanted : Wanted.
    """
    P, L = len(spans.seconds), len(spans.signature) - 1
    ends = np.zeros((2, P, L + 1), np.int64)
    wanted = everything(P, len(spans.part), spans.micro_batches)
    if spans.chain and limit < np.inf:
        limit *= SLACK
        wanted.most[:], wanted.slowest[:] = NO, 0.0
        # The cuts that may lie at a position: the devices behind it hold the layers behind, and
        # those in front of it the layers in front.
        first = np.searchsorted(spans.work, spans.work[L] - limit * (1.0 - spans.share))
        last = np.searchsorted(spans.work, limit * spans.share, side="right") - 1
        each = np.maximum(last - first + 1, 0)
        cells = np.cumsum(each)
        cuts = np.stack((first, last, cells - each))
        fill(spans, limit, cuts, np.full(cells[-1], np.inf), np.full(cells[-1], np.inf), ends,
            wanted)
        stages = wanted.slowest > 0.0
        if degrees is not None and not degrees.gpipe and np.count_nonzero(stages) >= many:
            row = np.full(stages.shape, -1)
            row[stages] = np.arange(np.count_nonzero(stages))
            least, most, wanted.slowest[stages] = held(spans, degrees, limit, cuts, ends, row)
            wanted.most[:] = NO
            wanted.most[stages], wanted.least[stages] = most, least
            add_parts(spans, wanted)
    else:
        ends[0], ends[1] = np.arange(1, L + 2), L + 1
    return ends, wanted


@entry
def fill(
    spans: Spans, limit: float, cuts: Ints2, behind: Floats, ahead: Floats, ends: Ints3,
    wanted: Wanted,
) -> None:
    """Fill ``ends`` and ``wanted``; ``behind`` and ``ahead`` hold an infinity for each cell.

    ``cuts`` int64 (3, K+1) are the first and the last cut that may lie at each position, and its
    first cell.
    """
    _look_behind(spans, limit, cuts, behind)
    _look_ahead(spans, limit, cuts, behind, ahead, ends, wanted.slowest)
    P, L = spans.seconds.shape[0], spans.seconds.shape[1] - 1
    for x in range(P):
        for g in range(len(spans.part)):
            if wanted.slowest[x, g] > 0.0:
                wanted.most[x, g] = spans.micro_batches
        # All layers together are asked for whatever they take: their kinds may be others.
        ends[0, x, 0] = min(ends[0, x, 0], L) if ends[1, x, 0] else L
        ends[1, x, 0] = L + 1
    _add_parts(spans, wanted)


@entry
def add_parts(spans: Spans, wanted: Wanted) -> None:
    """Fill in all layers together, and the first parts of what is asked for."""
    _add_parts(spans, wanted)


@leaf
def _add_parts(spans: Spans, wanted: Wanted) -> None:
    """The same for kernels."""
    for x in range(wanted.most.shape[0]):
        wanted.most[x, spans.whole], wanted.least[x, spans.whole] = spans.micro_batches, 1
        wanted.slowest[x, spans.whole] = np.inf
        for g in range(wanted.most.shape[1] - 1, -1, -1):
            if wanted.most[x, g] > NO and spans.part[g] >= 0:
                wanted.most[x, spans.part[g]] = max(wanted.most[x, spans.part[g]], PART)


@leaf
def _look_behind(spans: Spans, limit: float, cuts: Ints2, behind: Floats) -> None:
    """Fill the least that the stages behind a cell take, from when its first micro-batch comes."""
    L, K = spans.seconds.shape[1] - 1, spans.price.shape[1] - 1
    for k in range(K + 1):
        if cuts[0, k] <= L == cuts[1, k]:
            behind[cuts[2, k] + L - cuts[0, k]] = 0.0
    for k in range(K - 1, -1, -1):
        for i in range(cuts[0, k], min(cuts[1, k] + 1, L)):
            cell = cuts[2, k] + i - cuts[0, k]
            for x in range(len(spans.sizes)):
                kind, stop = spans.price[x, k], k + spans.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(max(i + 1, cuts[0, stop]),
                               min(spans.fits[kind, i], cuts[1, stop]) + 1):
                    t = spans.seconds[kind, j] - spans.seconds[kind, i]
                    if spans.micro_batches * t >= limit:
                        break
                    rest = behind[cuts[2, stop] + j - cuts[0, stop]]
                    behind[cell] = min(behind[cell], max(spans.micro_batches * t, t + rest))


@leaf
def _look_ahead(
    spans: Spans, limit: float, cuts: Ints2, behind: Floats, ahead: Floats, ends: Ints3,
    most: Floats2,
) -> None:
    """Fill the least seconds of a micro-batch in front of a cell, where stages may end, and the
    seconds that those of each signature take less than, ``most``."""
    L, K = spans.seconds.shape[1] - 1, spans.price.shape[1] - 1
    if cuts[0, 0] == 0:
        ahead[0] = 0.0
    for k in range(K):
        for i in range(cuts[0, k], min(cuts[1, k] + 1, L)):
            cell = cuts[2, k] + i - cuts[0, k]
            before = ahead[cell]
            if before + behind[cell] >= limit:
                continue
            for x in range(len(spans.sizes)):
                kind, stop = spans.price[x, k], k + spans.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(max(i + 1, cuts[0, stop]),
                               min(spans.fits[kind, i], cuts[1, stop]) + 1):
                    t = spans.seconds[kind, j] - spans.seconds[kind, i]
                    if before + spans.micro_batches * t >= limit:
                        break
                    there = cuts[2, stop] + j - cuts[0, stop]
                    below = slowest(spans, limit - before, behind[there], j, stop)
                    if t >= below:
                        continue
                    ahead[there] = min(ahead[there], before + t)
                    g = spans.signature[i, j]
                    most[kind, g] = max(most[kind, g], below)
                    if ends[1, kind, i] == 0:
                        ends[0, kind, i], ends[1, kind, i] = j, j + 1
                    ends[0, kind, i] = min(ends[0, kind, i], j)
                    ends[1, kind, i] = max(ends[1, kind, i], j + 1)
