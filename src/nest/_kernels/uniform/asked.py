"""Which questions have a chance, by sums over all layers, each at its least wherever it is.

Proofs: docs/proofs.md, Lemma 30 (floor of a question) and Lemma 31 (stages that memory needs).
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, known, leaf
from nest.records import Floats2, Ints, Ints2
from nest.records.problems import Sums

ROUNDED = 1.0 - 1e-9
"""For sums that are rounded."""

# Sums of ``Sums.own``, by the last four of which passes beside each other take less.
SECONDS, BYTES, AWAY, BACK_AWAY, BUSY, BACK_BUSY = range(6)


@leaf
def _stages(sums: Sums, b: int, v: int, z: int, lean: int) -> int:
    """Stages that have room for all layers, at the least.

    The n-th of them, in some order, keeps min(n, m) micro-batches at least; with R bytes of all
    layers, and A of a micro-batch in them, it has room for a part of limit / (R + n A).
    """
    each, rest, part = sums.own[BYTES, b, lean], sums.held[v, z], 0.0
    least = max(1.0, np.ceil((each + rest) * (sums.copies * ROUNDED / sums.limit_bytes)))
    least = int(min(least, sums.deepest + 1.0))
    if sums.copies > 1 or each <= 0.0 or rest <= 0.0:
        return least
    for n in range(len(sums.counts)):
        kept = min(sums.kept[b, lean, sums.first[n]], sums.kept[b, lean, sums.second[n]])
        resident = min(sums.resident[v, z, sums.first[n]], sums.resident[v, z, sums.second[n]])
        part += sums.counts[n] * min(kept / each, resident / rest)
    count, room = 0, 0.0
    while room < part * ROUNDED and count <= sums.deepest:
        count += 1
        room += sums.limit_bytes / (rest + min(count, sums.micro_batches) * each)
    return min(max(least, count), sums.deepest + 1)


@entry
def _ask(
    sums: Sums, limit: float, code: Ints, figures: Floats2, stages: Ints2,
) -> tuple[int, float]:
    """Fill in the questions that may take less than ``limit`` seconds: how many there are, and the
    least that one takes; arrays of none: only this.

    Parameters
    ----------
    s : ``nest.records.problems.Sums``.
    code, figures, stages : int64 (n,), float64 (n, 3), int64 (n, 2) fields of
        :class:`nest.search.totals.OpenChoices`: ``floor``, ``seconds`` and ``less``; ``least`` and
        ``most``.
    """
    count, lowest, ways, choices = 0, limit, sums.row_way.shape[1], len(sums.fast)
    for c in range(len(sums.body)):
        b, v, most = sums.body[c], sums.state[c], sums.most[c]
        for z in range(ways):
            for x in range(choices if sums.row_way[c, z] else 0):
                if not (sums.row_policy[c, x] and sums.way_policy[z, x]):
                    continue
                own = sums.own[:, b, sums.fast[x]]
                seconds = less = own[SECONDS] + sums.slower[v, z]
                if len(own) > BACK_BUSY:
                    less += max(own[AWAY], own[BACK_BUSY]) + max(own[BACK_AWAY], own[BUSY])
                # Most are left out whatever memory they need.
                if min(sums.warm[0, 1, most] * seconds, sums.warm[1, 1, most] * less) >= lowest:
                    continue
                least = _stages(sums, b, v, z, sums.lean[x])
                floor = min(sums.warm[0, least, most] * seconds, sums.warm[1, least, most] * less)
                if floor >= lowest:
                    continue
                if len(code):
                    code[count] = (c * ways + z) * choices + x
                    figures[count, 0], figures[count, 1], figures[count, 2] = floor, seconds, less
                    stages[count, 0], stages[count, 1] = least, most
                else:
                    lowest = floor
                count += 1
    return count, lowest


ask = known(_ask)
