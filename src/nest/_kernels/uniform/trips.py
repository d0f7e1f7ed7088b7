"""What a looped layout takes at least, by the trips of its first micro-batch and of its last one.

The figures of its chunks are known; its passes are not put in order.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.orders import split_of
from nest._kernels.uniform.bound import group_of
from nest._kernels.uniform.work import UniformWork
from nest.records import Ints3, LinkRow, RankRow, Row
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules import passes
from nest.schedules.passes import BESIDE, FORWARD, PASSES, Order

beside = form(passes.beside)


@leaf
def note_traffic(rank: RankRow, chunk: Row, first: bool, group: int, rest: int) -> None:
    """Note what a chunk of a rank gathers and reduces, behind those in front of it.

    The first group passes these before it, and hides gathers; the ``rest``, the last one, behind
    it, and hides reductions (``_first`` and ``_reduced`` of :mod:`nest.schedules.passes`).
    """
    if first:
        rank.fresh = rank.reduced = rank.gather = rank.sync = 0.0
    if first or chunk.gather > 0.0:
        rank.fresh = max(rank.fresh, rank.gather + chunk.wait)
    rank.reduced = max(rank.reduced, rank.sync + chunk.left - chunk.scattered)
    rank.gather += chunk.gather - group * chunk.hides_gather
    rank.sync += chunk.sync - rest * chunk.hides_sync


@leaf
def note_end(rank: RankRow, chunk: Row, first: bool, handed: float, split: bool) -> None:
    """Note the first chunk of a rank, or the last, which hands over so many bytes."""
    back = chunk.inputs if split else chunk.backward - chunk.late
    rank.last, rank.back_last, rank.sent_last = chunk.forward, back, handed
    if first:
        rank.first, rank.back_first = chunk.forward, back
        rank.sent_first, rank.wait = handed, chunk.wait
        rank.weights = chunk.weights if split else 0.0


@leaf
def _sent_seconds(q: Rings, shards: int, link: LinkRow, handed: float, chunks: int) -> float:
    """Seconds one way of so many bytes behind ``chunks`` chunks."""
    return q.both / 2 * (handed / shards * link.per_byte + chunks * link.latency)


@leaf
def of_trips(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, c: int, k: int,
) -> float:
    """No step of candidate c in pipeline k is shorter, given ``work.rank``.

    The first micro-batch passes all positions and comes back to a rank in front of its first
    backward. The last backward of a rank is followed by those of the ranks in front, and by what
    these leave.
    """
    pipe, m, x, shards = pipelines.pipe[k], degrees.micro_batches, places.size[
        c], degrees.candidate[c].shards
    p, v, split = pipe.pp, pipe.vpp, split_of(pipe.schedule)
    begin = rest = home = step = 0.0
    for s in range(p):
        rank, link = work.rank[s], places.wrap[x, p]
        if s < p - 1:
            link = places.hop[x, s + 1]
        rank.sent = _sent_seconds(places, shards, link, rank.sent, v)
        rank.sent_first = _sent_seconds(places, shards, link, rank.sent_first, 1)
        rank.sent_last = _sent_seconds(places, shards, link, rank.sent_last, 1)
        if s == p - 1:  # the loss hands over nothing
            rank.sent -= rank.sent_last
            rank.sent_last = 0.0
            if v == 1:
                rank.sent_first = 0.0
        begin = max(begin, rank.wait)
        rank.begin = begin
        begin += rank.first + rank.sent_first
        rest += rank.forward - rank.first
        rest += rank.sent - rank.sent_first
        # Of backwards in two parts rank s keeps s parts for weights until the end.
        kept = (s + 1) * rank.weights if m >= p else 0.0
        home = max(rank.left + kept, home + step if m >= p or not split else 0.0)
        rank.end = home - kept
        step = rank.back_first + rank.sent_first
    # The first group passes all other chunks of a rank in front of its last one.
    there, group = begin + rest, group_of(pipe.schedule, m, pipe.group)
    last = behind = least = 0.0
    for s in range(p - 1, -1, -1):
        rank = work.rank[s]
        last += rank.last + rank.sent_last
        begin = max(rank.begin, rank.fresh)
        there = max(there, begin + group * (rank.forward - rank.last) + last)
    for s in range(p - 1, -1, -1):
        rank = work.rank[s]
        behind += rank.sent_last
        first = max(rank.begin, rank.fresh) - rank.spared
        if p > 1:
            first = max(first, there + behind - rank.ran)
        rank.idle = first + max(rank.end, rank.reduced)
        least = max(least, rank.idle + rank.own)
        behind += rank.back_last
    return least


@leaf
def count_pairs(p: int, v: int, order: Order, pairs: Ints3) -> None:
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
def of_pairs(work: UniformWork, p: int, v: int) -> float:
    """No step is shorter, given what :func:`of_trips` has found, and what pairs of passes take by
    ``work.costs``."""
    least = 0.0
    for s in range(p):
        own = 0.0
        for n in range(v):
            c = work.costs[s, n]
            own += work.pairs[s, n, v] * c.forward
            own += work.pairs[s, v, n] * (c.backward - c.late)
            for other in range(v):
                if work.pairs[s, n, other] > 0:
                    own += work.pairs[s, n, other] * beside(c, work.costs[s, other])
        least = max(least, work.rank[s].idle + own)
    return least
