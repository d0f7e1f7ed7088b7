"""Rule out stages by their layers and their block alone, before anything is listed for them.

Shapes: L cuts, K positions, B block sizes, P prices, G signatures, as in
:class:`nest.records.problems.Spans`. Proof: docs/proofs.md, Lemma 27 (stages that no plan has).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest._kernels import entry, leaf
from nest._kernels.flights import held, slowest
from nest.records import Floats, Floats2, Int32s2, Ints2, Ints3
from nest.records.problems import Spans
from nest.records.tables import Tables

SLACK = 1.0 + 1e-9
"""Sums here are rounded in another order than those of a plan."""
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
