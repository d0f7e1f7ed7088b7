"""Rule out stages by how many lie behind them: so many micro-batches they have to hold.

Shapes: L cuts, K positions, B block sizes, P prices, G signatures, C candidates, Z ways of ZeRO, T
layer kinds, as in :class:`nest.records.problems.Spans` and ``nest.records.tables.Tables``; N stages
to look at (a signature under a price), D numbers of stages, cells are the cuts that may lie at a
position. Proof: docs/proofs.md, Lemma 28 (micro-batches behind).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from nest._kernels import entry, leaf
from nest.records import FAST, Floats, Floats2, Ints2, Ints3, Rows
from nest.records.problems import Spans
from nest.records.tables import Tables

DEEPEST = 64
"""Numbers of stages that are told apart, at most; the last stands for all above too."""
SLACK = 1.0 + 1e-9
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
