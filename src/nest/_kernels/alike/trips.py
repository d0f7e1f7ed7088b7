"""What a looped layout takes at least, by the trips of its first micro-batch and of its last one.

The figures of its chunks are known; its passes are not put in order.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.orders import LOOPED_BFS, split_of
from nest.forms import passes
from nest.forms.chunk import (
    C_BACKWARD,
    C_FORWARD,
    C_GATHER,
    C_HIDES_GATHER,
    C_HIDES_SYNC,
    C_INPUTS,
    C_LATE,
    C_LEFT,
    C_SCATTERED,
    C_SYNC,
    C_WAIT,
    C_WEIGHTS,
)
from nest.forms.passes import BESIDE, FORWARD, PASSES

beside = form(passes.beside)

# Of a rank, seconds: all its passes; those in front of its first backward; what its first pass may
# not have waited for; what it leaves behind its last pass; a backward for weights of its first
# chunk; what its first pass waits for; a forward through all chunks, the first, the last; a
# backward through the first, the last; bytes, then seconds, of a micro-batch handed over behind all
# chunks, the first, the last; the start of the first pass; from the end of the last pass to that of
# the step; in all those in which it runs nothing. Then what its forwards wait for the parameters of
# any chunk; what its gradients take behind its last pass, if it runs its last ones in a row; the
# same of the chunks that were looked at: GATHER and SYNC. Then most bytes of activations.
(R_OWN, R_RAN, R_SPARED, R_LEFT, R_WEIGHTS, R_WAIT, R_FORWARD, R_FIRST, R_LAST, R_BACK_FIRST,
 R_BACK_LAST, R_SENT, R_SENT_FIRST, R_SENT_LAST, R_BEGIN, R_END, R_IDLE, R_FRESH, R_REDUCED,
 R_GATHER, R_SYNC, R_HELD) = range(22)
RANK = 22


@leaf
def group_of(schedule, m, size):
    """Micro-batches that pass a chunk of a looped layout in a row."""
    return m if schedule == LOOPED_BFS else min(size, m)


@leaf
def last_group(schedule, m, size):
    """Micro-batches of the last of these groups."""
    group = group_of(schedule, m, size)
    return m - (m - 1) // group * group


@leaf
def note_traffic(w, s, d, group, rest, y, g):
    """Note what chunk d of a rank gathers and reduces, behind those in front of it.

    The first group passes these before it, and hides gathers; the ``rest``, the last one, behind
    it, and hides reductions (``_first`` and ``_reduced`` of :mod:`nest.forms.passes`).
    """
    c, ranks = w.figures[y, g], w.ranks[s]
    if d == 0:
        ranks[R_FRESH] = ranks[R_REDUCED] = ranks[R_GATHER] = ranks[R_SYNC] = 0.0
    if d == 0 or c[C_GATHER] > 0.0:
        ranks[R_FRESH] = max(ranks[R_FRESH], ranks[R_GATHER] + c[C_WAIT])
    ranks[R_REDUCED] = max(ranks[R_REDUCED], ranks[R_SYNC] + c[C_LEFT] - c[C_SCATTERED])
    ranks[R_GATHER] += c[C_GATHER] - group * c[C_HIDES_GATHER]
    ranks[R_SYNC] += c[C_SYNC] - rest * c[C_HIDES_SYNC]


@leaf
def note_end(q, w, s, d, cut, y, g, split):
    """Note the first chunk of a rank (d = 0), or the last, in front of a cut."""
    forward, back = w.figures[y, g, C_FORWARD], w.figures[y, g, C_BACKWARD]
    back = w.figures[y, g, C_INPUTS] if split else back - w.figures[y, g, C_LATE]
    w.ranks[s, R_LAST], w.ranks[s, R_BACK_LAST] = forward, back
    w.ranks[s, R_SENT_LAST] = q.handed[cut]
    if d == 0:
        w.ranks[s, R_FIRST], w.ranks[s, R_BACK_FIRST] = forward, back
        w.ranks[s, R_SENT_FIRST], w.ranks[s, R_WAIT] = q.handed[cut], w.figures[y, g, C_WAIT]
        w.ranks[s, R_WEIGHTS] = w.figures[y, g, C_WEIGHTS] if split else 0.0


@leaf
def of_trips(t, q, a, w, c, k):
    """No step of candidate c in pipeline k is shorter, given ``w.ranks``.

    The first micro-batch passes all positions and comes back to a rank in front of its first
    backward. The last backward of a rank is followed by those of the ranks in front, and by what
    these leave.
    """
    schedule, p, v, m, x = a.schedule[k], a.pp[k], a.vpp[k], t.micro_batches, q.size[c]
    split, begin, rest, home, step = split_of(schedule), 0.0, 0.0, 0.0, 0.0
    for s in range(p):
        per_byte, latency = q.wrap[0, x, p], q.wrap[1, x, p]
        if s < p - 1:
            per_byte, latency = q.hop[0, x, s + 1], q.hop[1, x, s + 1]
        for n in range(R_SENT, R_SENT_LAST + 1):  # from bytes to seconds
            w.ranks[s, n] = q.both / 2 * (w.ranks[s, n] / t.shards[c] * per_byte
                                          + (v if n == R_SENT else 1) * latency)
        if s == p - 1:  # the loss hands over nothing
            w.ranks[s, R_SENT] -= w.ranks[s, R_SENT_LAST]
            w.ranks[s, R_SENT_LAST] = 0.0
            if v == 1:
                w.ranks[s, R_SENT_FIRST] = 0.0
        begin = max(begin, w.ranks[s, R_WAIT])
        w.ranks[s, R_BEGIN] = begin
        begin += w.ranks[s, R_FIRST] + w.ranks[s, R_SENT_FIRST]
        rest += w.ranks[s, R_FORWARD] - w.ranks[s, R_FIRST]
        rest += w.ranks[s, R_SENT] - w.ranks[s, R_SENT_FIRST]
        # Of backwards in two parts rank s keeps s parts for weights until the end.
        kept = (s + 1) * w.ranks[s, R_WEIGHTS] if m >= p else 0.0
        home = max(w.ranks[s, R_LEFT] + kept, home + step if m >= p or not split else 0.0)
        w.ranks[s, R_END] = home - kept
        step = w.ranks[s, R_BACK_FIRST] + w.ranks[s, R_SENT_FIRST]
    # The first group passes all other chunks of a rank in front of its last one.
    there, group = begin + rest, group_of(schedule, m, a.group[k])
    last = behind = least = 0.0
    for s in range(p - 1, -1, -1):
        last += w.ranks[s, R_LAST] + w.ranks[s, R_SENT_LAST]
        front = w.ranks[s, R_FORWARD] - w.ranks[s, R_LAST]
        begin = max(w.ranks[s, R_BEGIN], w.ranks[s, R_FRESH])
        there = max(there, begin + group * front + last)
    for s in range(p - 1, -1, -1):
        behind += w.ranks[s, R_SENT_LAST]
        first = max(w.ranks[s, R_BEGIN], w.ranks[s, R_FRESH]) - w.ranks[s, R_SPARED]
        if p > 1:
            first = max(first, there + behind - w.ranks[s, R_RAN])
        w.ranks[s, R_IDLE] = first + max(w.ranks[s, R_END], w.ranks[s, R_REDUCED])
        least = max(least, w.ranks[s, R_IDLE] + w.ranks[s, R_OWN])
        behind += w.ranks[s, R_BACK_LAST]
    return least


@leaf
def count_pairs(p, v, order, pairs):
    """Count the passes that each rank runs beside each other: a forward of one chunk, a backward of
    another; those that it runs alone are beside chunk v. Groups that are left out of the order
    count."""
    pairs[:p] = 0
    for s in range(p):
        i, stop = order.rows[s], order.rows[s + 1]
        while i < stop:
            times, n, which = 1, order.codes[i] // PASSES, order.codes[i] % PASSES
            if order.more[0] > 0 and order.stops[s] <= i < order.stops[p + s]:
                times += order.more[0]
            if which == BESIDE:
                i += 1
                pairs[s, n, order.codes[i] // PASSES] += times
            elif which == FORWARD:
                pairs[s, n, v] += times
            else:
                pairs[s, v, n] += times
            i += 1


@leaf
def of_pairs(w, p, v):
    """No step is shorter, given what :func:`of_trips` has found, and what pairs of passes take by
    ``w.costs``."""
    least = 0.0
    for s in range(p):
        own = 0.0
        for n in range(v):
            c = w.costs[s, n]
            own += w.pairs[s, n, v] * c[C_FORWARD]
            own += w.pairs[s, v, n] * (c[C_BACKWARD] - c[C_LATE])
            for other in range(v):
                if w.pairs[s, n, other] > 0:
                    own += w.pairs[s, n, other] * beside(c, w.costs[s, other])
        least = max(least, w.ranks[s, R_IDLE] + own)
    return least
