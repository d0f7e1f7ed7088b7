"""Rule out stages by their layers and their block alone, before anything is listed for them.

Shapes: L cuts, K positions, B block sizes, P prices, G signatures, as in
:class:`nest.search.problems.Spans`; the proof is in docs/proofs.md#stages-that-no-plan-has.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, leaf

SLACK = 1.0 + 1e-9
"""Sums here are rounded in another order than those of a plan."""
NO, PART, STAGE = range(3)
"""No plan has a stage of a signature; only one of which it is the first part; some plan may."""


def useful(s, limit):
    """Stages that a plan below ``limit`` seconds a step may have.

    Returns
    -------
    ends : int64 (2, P, L+1), the first cut at which a stage from each cut may end under each price,
        and the last one + 1.
    wanted : int8 (P, G), see ``NO``.
    """
    P, L = len(s.seconds), len(s.signature) - 1
    ends = np.zeros((2, P, L + 1), np.int64)
    wanted = np.full((P, len(s.part)), NO, np.int8)
    if s.chain and limit < np.inf:
        K, limit = s.price.shape[1] - 1, limit * SLACK
        # The cuts that may lie at a position: the devices behind it hold the layers behind, and
        # those in front of it the layers in front.
        first = np.searchsorted(s.work, s.work[L] - limit * (1.0 - s.share))
        last = np.searchsorted(s.work, limit * s.share, side="right") - 1
        fill(s, limit, np.stack((first, last)), np.full((L + 1, K + 1), np.inf),
             np.full((L + 1, K + 1), np.inf), ends, wanted)
    else:
        ends[0], ends[1] = np.arange(1, L + 2), L + 1
        wanted[:] = STAGE
    return ends, wanted


@entry
def fill(s, limit, cuts, behind, ahead, ends, wanted):
    """Fill ``ends`` and ``wanted``; ``behind`` and ``ahead`` (L+1, K+1) hold infinities.

    ``cuts`` int64 (2, K+1) are the first and the last cut that may lie at each position.
    """
    _look_behind(s, limit, cuts, behind)
    _look_ahead(s, limit, cuts, behind, ahead, ends)
    P, L = s.seconds.shape[0], s.seconds.shape[1] - 1
    for x in range(P):
        for i in range(L):
            for j in range(i + 1, ends[1, x, i]):
                g = s.signature[i, j]
                wanted[x, g] = max(wanted[x, g], STAGE if j >= ends[0, x, i] else PART)
        # All layers together are asked for whatever they take: their kinds may be others.
        ends[0, x, 0] = min(ends[0, x, 0], L) if ends[1, x, 0] else L
        ends[1, x, 0] = L + 1
        g = s.whole
        wanted[x, g] = STAGE
        while s.part[g] >= 0:
            g = s.part[g]
            wanted[x, g] = max(wanted[x, g], PART)


@leaf
def _look_behind(s, limit, cuts, behind):
    """Fill the least that the stages behind a cell take, from when its first micro-batch comes."""
    L, K = behind.shape[0] - 1, behind.shape[1] - 1
    for k in range(K + 1):
        if cuts[1, k] == L:
            behind[L, k] = 0.0
    for k in range(K - 1, -1, -1):
        for i in range(cuts[0, k], min(cuts[1, k] + 1, L)):
            for x in range(len(s.sizes)):
                kind, stop = s.price[x, k], k + s.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(max(i + 1, cuts[0, stop]),
                               min(s.fits[kind, i], cuts[1, stop]) + 1):
                    t = s.seconds[kind, j] - s.seconds[kind, i]
                    if s.micro_batches * t >= limit:
                        break
                    step = max(s.micro_batches * t, t + behind[j, stop])
                    behind[i, k] = min(behind[i, k], step)


@leaf
def _look_ahead(s, limit, cuts, behind, ahead, ends):
    """Fill the least seconds of a micro-batch in front of a cell, and where stages may end."""
    L, K = behind.shape[0] - 1, behind.shape[1] - 1
    ahead[0, 0] = 0.0
    for k in range(K):
        for i in range(cuts[0, k], min(cuts[1, k] + 1, L)):
            before = ahead[i, k]
            if before + behind[i, k] >= limit:
                continue
            for x in range(len(s.sizes)):
                kind, stop = s.price[x, k], k + s.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(max(i + 1, cuts[0, stop]),
                               min(s.fits[kind, i], cuts[1, stop]) + 1):
                    t = s.seconds[kind, j] - s.seconds[kind, i]
                    if before + s.micro_batches * t >= limit:
                        break
                    room = (limit - before - t) * (1.0 - s.share[stop])
                    if (before + t + behind[j, stop] >= limit
                            or s.work[L] - s.work[j] > room):
                        continue
                    ahead[j, stop] = min(ahead[j, stop], before + t)
                    if ends[1, kind, i] == 0:
                        ends[0, kind, i], ends[1, kind, i] = j, j + 1
                    ends[0, kind, i] = min(ends[0, kind, i], j)
                    ends[1, kind, i] = max(ends[1, kind, i], j + 1)
