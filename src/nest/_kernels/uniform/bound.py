"""What no step is shorter than: by what is known of one stage of a layout, and by the trips of
micro-batches."""

from __future__ import annotations

from typing import NamedTuple

from nest._kernels import form, inlined, leaf
from nest._kernels.orders import (
    GATHERS,
    copies_of,
    is_all_forward,
    is_in,
    is_looped,
    split_of,
    together_of,
)
from nest._kernels.uniform.work import UniformWork
from nest.records import BodyRow, Ints3, LinkRow, Pipe, RankRow, Row
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules import passes
from nest.schedules.passes import BESIDE, FORWARD, PASSES, Order


class PassWay(NamedTuple):
    """How a pipeline runs its passes."""

    micro_batches: int
    """Of each copy of the model."""
    copies: int
    split: bool
    """Backwards are in two parts."""
    together: bool
    """Forwards run beside backwards."""
    loops: bool
    """Chunks lie in rounds, and the first micro-batch passes all of them before a backward."""
    looped: bool
    """Chunks lie in rounds."""
    group: int
    """Micro-batches that pass a chunk in a row; those of the last of these groups."""
    rest: int
    uneven: bool
    """The last of the groups is smaller, so that other chunks have the last backwards."""
    in_a_row: bool
    """Passes are priced behind each other, each with what it gathers (ZeRO-3)."""


@inlined
def way_of(pipe: Pipe, micro_batches: int) -> PassWay:
    """How a pipeline runs so many micro-batches."""
    schedule, copies = pipe.schedule, copies_of(pipe.schedule)
    m, loops = micro_batches // copies, pipe.pp > 1 and is_looped(schedule) and not (
        split_of(schedule) or is_all_forward(schedule))
    return PassWay(m, copies, split_of(schedule), together_of(schedule), loops, is_looped(schedule),
               group_of(schedule, m, pipe.group), last_group(schedule, m, pipe.group),
               loops and m % pipe.group > 0, gathers(schedule))


class StageSums(NamedTuple):
    """Layers of a stage and around it at the least; seconds of a micro-batch unless noted."""

    front: float
    """Forward, in front of it; backward, in front of it; backward, or its part for inputs, behind.
    """
    after: float
    behind: float
    own: float
    """Its own passes."""
    left: float
    """Of a step: what it leaves behind its last pass."""
    ran: float
    """Of a step: its forwards in front of its first backward, with what these may have waited."""
    spared: float
    """What its first pass may not have waited for."""
    away: float
    """Of a step: all-to-alls of its passes that run beside others, and what hides these."""
    back_away: float
    busy: float
    back_busy: float


class StageBound(NamedTuple):
    """No step is shorter than ``max(first, trip_bound()) + own + last``; seconds."""

    first: float
    """Before its first pass."""
    own: float
    """All its passes."""
    last: float
    """Behind its last pass."""


@inlined
def stage_bound(
    work: UniformWork, way: PassWay, s: int, sums: StageSums, begin: float, end: float,
) -> StageBound:
    """Bound a step by stage s; ``begin`` is in front of the first pass of all and ``end`` behind
    the last one of any stage."""
    near, own, last = work.rank[s].near, way.micro_batches * sums.own, sums.left
    if way.together:
        own -= hidden_of(sums.away, sums.back_away, sums.busy, sums.back_busy)
    if not way.split:
        last = max(sums.after + near / 2 + end - begin, last)
    return StageBound(begin + sums.front + near / 2 - sums.spared, own, last)


@inlined
def trip_bound(
    work: UniformWork, pipe: Pipe, way: PassWay, s: int, sums: StageSums, layers: int, begin: float,
) -> float:
    """Least seconds before the first pass of stage s, had it run all that it may in front of its
    first backward, which the first micro-batch has to come back for; ``layers``: of the model."""
    if way.loops:
        near, all_near = work.rank[s].near, work.rank[pipe.pp - 1].near
        return (begin + work.before[layers].forward + pipe.vpp * all_near / 2 + sums.behind
                + (all_near - near) / 2 - sums.ran)
    if way.split:  # the first backward for inputs waits for those of all stages behind
        return begin + work.before[layers].forward + sums.behind - sums.ran
    return 0.0


@leaf
def hidden_of(away: float, back_away: float, busy: float, back_busy: float) -> float:
    """Most seconds that passes beside each other hide, forwards beside backwards.

    Given the sums over all of them of their all-to-alls, and of what hides those of the others.
    """
    return min(away, back_busy) + min(back_away, busy)


@leaf
def waits_of(two: float, three: float, chunks: int, most_two: float, most_three: float) -> float:
    """Least seconds that passes wait for ZeRO traffic between layers of the body.

    Given the sums over layers, of which those that begin a chunk have none below, and the next
    ones only one.
    """
    return max(0.0, two - chunks * most_two) + max(0.0, three - 2.0 * chunks * most_three)


@leaf
def gathers(schedule: int) -> bool:
    """Whether passes are priced behind each other, each with what it gathers (ZeRO-3)."""
    return is_in(schedule, GATHERS)


@leaf
def ends_of(schedule: int, body: BodyRow) -> float:
    """Least seconds before the first pass of all and behind the last one of any rank."""
    if not is_looped(schedule):
        return 0.0
    return body.begin + (0.0 if split_of(schedule) else body.end)


@leaf
def group_of(schedule: int, m: int, size: int) -> int:
    """Micro-batches that pass a chunk of a looped layout in a row."""
    return m if is_all_forward(schedule) else min(size, m)


@leaf
def last_group(schedule: int, m: int, size: int) -> int:
    """Micro-batches of the last of these groups."""
    group = group_of(schedule, m, size)
    return m - (m - 1) // group * group


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
