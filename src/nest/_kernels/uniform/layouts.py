"""Which layouts of a pipeline are worth a look, from layers by kind of three of its stages.

Each bound is one of ``fits``, with the least that a layer of a kind takes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest._kernels import entry, inlined, leaf
from nest._kernels.labels import SLACK
from nest._kernels.orders import LISTED, ahead_of, copies_of, is_in, together_of
from nest._kernels.uniform.bound import (
    PassWay,
    StageSums,
    ends_of,
    stage_bound,
    trip_bound,
    waits_of,
    way_of,
)
from nest._kernels.uniform.decided import is_decided, look_at, note_bytes
from nest._kernels.uniform.work import UniformWork
from nest.records import Int16s2, Int16s4, Ints, Ints2, Pipe
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules.passes import FORWARD, PASSES

# Layers by kind of ``Pipelines.seen``: of all chunks but the last, of the first chunk, of the last,
# in front of the stage, behind it.
REST, FIRST, LAST, FRONT, BEHIND = range(5)


@leaf
def _counted(pipelines: Pipelines, k: int, m: int, s: int, d: int) -> int:
    """:func:`nest._kernels.orders.ahead_of` of an order that pipeline k is given."""
    i, count = pipelines.given_from[k] + s * 3 * pipelines.pipe[k].vpp * m, 0
    while pipelines.given[i] % PASSES == FORWARD:
        if pipelines.given[i] // PASSES == d:
            count += 1
        i += 1
    return count


@leaf
def has_room(degrees: Degrees, pipelines: Pipelines, work: UniformWork, k: int, top: float) -> bool:
    """Whether the stages of pipeline k, each with as many layers of the body as stay below ``top``
    and fit, have all of them.

    Each layer takes and holds the least that any does, and lies in the chunks that hold the fewest
    micro-batches.
    """
    pipe, body, times = pipelines.pipe[k], work.body[0], work.forwards[k]
    p, v, copies = pipe.pp, pipe.vpp, copies_of(pipe.schedule)
    m = degrees.micro_batches // copies
    if times[0, 0] == 0:
        for s in range(p):
            for d in range(v):
                times[s, d] = _counted(pipelines, k, m, s, d) if is_in(pipe.schedule, LISTED) else (
                    ahead_of(pipe.schedule, p, v, m, pipe.group, s, d))
    left, bytes_each = copies * (pipelines.body[1] - pipelines.body[0]), degrees.limit_bytes / SLACK
    top -= ends_of(pipe.schedule, body)
    each = body.seconds - (body.hidden if together_of(pipe.schedule) else 0.0)
    most = left if m * each * left < top else int(top / (m * each))
    for s in range(p - 1, -1, -1):
        room, taken = bytes_each, 0
        for x in range(2, -1, -1):
            chunks = v - 2 if x == 1 else 1
            if chunks > 0 and (x == 2 or v > 1):
                own = body.resident + times[s, v - 1 if x == 2 else x] * body.activations
                fit = min(chunks * pipe.widest, left)
                if own * fit > room:
                    fit = int(room / own)
                room, taken = room - own * fit, taken + fit
        left -= min(taken, most)
        if left <= 0:
            return True
    return False


class Seen(NamedTuple):
    """What layers of a stage by kind say."""

    sums: StageSums
    held: float
    """Bytes."""
    fresh: float
    """What its forwards wait for the parameters of any chunk; seconds."""
    reduced: float
    """What its gradients take behind its last pass, if it runs its last ones in a row."""


@inlined
def _see(
    degrees: Degrees, work: UniformWork, way: PassWay, pipe: Pipe, k: int, s: int, seen: Any,
    row: int, x: int, some: int,
) -> Seen:
    """Sum up stage s of pipeline k: its layers are ``seen[row, x]`` (5, T) by kind, ``some`` as
    :class:`nest.records.NowRow`. A view of either array for each look would take longer."""
    m, p, v, body, times = way.micro_batches, pipe.pp, pipe.vpp, work.body[0], work.forwards
    # Of each chunk in front of its first backward.
    first, inner, last = times[k, s, 0], times[k, s, 1 if v > 2 else 0], times[k, s, v - 1]
    own = front = after = behind = left = ran = held = room = fresh = reduced = 0.0
    marked = two = three = late = queue = away = back_away = busy = back_busy = 0.0
    for n in range(len(work.kind) - 1):
        kind, end = work.kind[n], seen[row, x, LAST, n]
        all_in = seen[row, x, REST, n] + end
        front += seen[row, x, FRONT, n] * kind.forward
        after += seen[row, x, FRONT, n] * kind.backward
        behind += seen[row, x, BEHIND, n] * (kind.inputs if way.split else kind.backward)
        if all_in == 0:
            continue
        kept = inner * (all_in - end) + (first - inner) * seen[row, x, FIRST, n] + last * end
        own += all_in * (kind.forward + kind.backward)
        left += all_in * kind.left
        hides = degrees.overlaps[2] * kind.free_forward
        fresh += all_in * kind.gather - (way.group * (all_in - end) + end) * hides
        hides = (degrees.overlaps[1] if p > 1 else degrees.overlaps_alone[1]) * kind.free_backward
        reduced += all_in * kind.sync - (way.rest * (all_in - end) + end) * hides
        ran += kept * kind.forward
        held += all_in * kind.resident + kept * kind.activations
        room = max(room, kind.room)
        if kind.marked:
            marked += kept
        two += all_in * kind.two
        three += all_in * kind.three
        late += kept * max(kind.three, kind.ahead)
        if way.in_a_row:
            queue += all_in * (kind.ahead + kind.back)
        if way.together:
            pairs = m * all_in - (kept if way.loops else min(first, last) * all_in)
            backs = m * all_in if way.uneven else pairs
            away, busy = away + pairs * kind.exchanged_forward, busy + pairs * kind.busy_forward
            back_away += backs * kind.exchanged_backward
            back_busy += backs * kind.busy_backward
    if some > 0:  # the other layers keep all
        count = first + last + (v - 2) * inner if v > 1 else first
        held += max(0.0, marked - some * count) * body.freed
    if some >= 0:
        held += room
    own += max(waits_of(two, three, v, body.two, body.three), queue)
    ran += late + body.back if way.loops else 0.0
    return Seen(StageSums(front, after, behind, own, left, ran, body.ahead if way.in_a_row else 0.0,
                     away, back_away, busy, back_busy), held, fresh, reduced + left)


@inlined
def _ruled_out(
    degrees: Degrees, pipelines: Pipelines, work: UniformWork, pipe: Pipe, way: PassWay, s: int,
    seen: Any, row: int, x: int, begin: float, ends: float, extra: float, final: float, top: float,
) -> bool:
    """Whether stage s needs too much, or takes ``top`` with the seconds ``extra`` a micro-batch;
    ``final``: what the stage itself holds and has run is known."""
    stage = _see(degrees, work, way, pipe, work.now[0].pipeline, s, seen, row, x, work.now[0].first)
    bound = stage_bound(work, way, s, stage.sums, begin, ends)
    first, own, last = bound.first, bound.own + way.micro_batches * extra, bound.last
    if first + own + last >= top * SLACK:
        return True
    if stage.held > degrees.limit_bytes / SLACK:
        note_bytes(work)
        return True
    if final:
        if way.looped:
            first = max(first, stage.fresh)
            if not way.split and work.body[0].gathered == 0.0:
                last = max(last, stage.reduced)
        first = max(first, trip_bound(work, pipe, way, s, stage.sums, len(pipelines.order), begin))
        if first + own + last >= top * SLACK:
            work.now[0].further = 1  # larger groups may wait for less
            return True
    return False


@leaf
def next_layout(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, k: int, number: int,
    top: float,
) -> int:
    """First layout of pipeline k from one on that may fit and take less than ``top``, or its last.

    Three stages say so, those of ``Pipelines.seen``; at first of runs of layouts whose heaviest
    stage is the same, from the least of each sum.
    """
    pipe, body, now, last = pipelines.pipe[k], work.body[0], work.now[0], pipelines.pipe[k].last
    way, ends = way_of(pipe, degrees.micro_batches), ends_of(pipe.schedule, body)
    m, begin = way.micro_batches, body.begin if way.looped else 0.0  # before the first pass of all
    each = body.seconds - (body.hidden if together_of(pipe.schedule) else 0.0)
    before = work.answer[k].run + 1 - pipelines.run[pipe.first]
    x, seen, row, run = 0, pipelines.seen, number, pipelines.run[number] if number < last else -1
    block = before + run != now.run
    now.further = 0
    while number < last:
        extra = 0.0
        if x == 0:
            if now.first > 0:  # fewest of them are first layers of chunks as long as any
                most, load = pipe.longest, pipelines.load[number]
                again = load // most * min(now.first, most) + min(now.first, load % most)
                extra = body.recompute * max(0, again - places.marked_before[pipelines.body[0]])
            if m * (pipelines.load[number] * each + extra) + ends >= top:
                return last
            if pipelines.seen.shape[1] == 0:
                now.further = 1
                return number
            if block:
                run = pipelines.run[number]
                if is_decided(work, before + run):
                    number = pipelines.until[run]
                    continue
                look_at(work, before + run, True)
                seen, row = pipelines.least_seen, run
            else:
                at = work.answer[k].layout + number - pipe.first
                if is_decided(work, at):
                    number += 1
                    block = number == pipelines.until[run]
                    continue
                look_at(work, at, False)
                seen, row = pipelines.seen, number
        s = pipelines.heaviest[number] if x == 0 else 0 if x == 1 else pipe.pp - 1
        if _ruled_out(degrees, pipelines, work, pipe, way, s, seen, row, x, begin, ends, extra,
                x == 0 or not block,
                      top):
            number = pipelines.until[run] if block else number + 1
            block, x = number == pipelines.until[run], 0
        elif x + 1 < pipelines.seen.shape[1]:
            x += 1
        elif block:
            block, x, now.further = False, 0, 1
        else:
            return number
    return last


MIX, MOST = 1_000_003, 1 << 31
"""Numbers that hash the layers of a stage: two stages that share one are looked at as one run."""


@leaf
def _within(cut: int, body: Ints) -> int:
    """Layers of the body in front of a cut."""
    return min(max(cut, body[0]), body[1]) - body[0]


@leaf
def _count(
    cuts: Ints, places: Ints2, front: Int16s2, body: Ints, heaviest: int, seen: NDArray[np.int16],
) -> None:
    """Fill in ``seen`` of a layout; its heaviest stage is known."""
    p, v = places.shape
    for x in range(len(seen)):
        s = heaviest if x == 0 else 0 if x == 1 else p - 1
        begin, end = cuts[places[s, 0]], cuts[places[s, v - 1] + 1]
        for kind in range(len(front)):
            for d in range(v):
                at = places[s, d]
                layers = front[kind, cuts[at + 1]] - front[kind, cuts[at]]
                if d == 0:
                    seen[x, FIRST, kind] = layers
                if d == v - 1 and v > 1:
                    seen[x, LAST, kind] = layers
                else:
                    seen[x, REST, kind] += layers
            seen[x, FRONT, kind] = front[kind, begin]
            seen[x, BEHIND, kind] = front[kind, -1] - front[kind, end]


@entry
def see(
    cuts: Ints2, places: Ints2, front: Int16s2, body: Ints, load: Ints, heaviest: Ints,
    seconds: Ints, stage: Ints, seen: Int16s4,
) -> None:
    """Fill in what is known of each layout from its cuts, int64 (W, chunks + 1).

    Parameters
    ----------
    places : int64 (p, v) places in the model of the chunks of each stage.
    front : int16 (T, N+1) layers of each kind in front of each cut.
    body : int64 (2,) layers [i, j) that layouts divide.
    load : int64 (W,) layers of the body in the heaviest stage.
    heaviest : int64 (W,) the stage with most of them, about.
    seconds : int64 (W,) about how long the layout takes, in parts of a layer of the body.
    stage : int64 (W,) number of the heaviest stage: equal where its layers and its place are.
    seen : int16 (W, stages, 5, T) see ``Pipelines.seen``; zeros before.
    """
    p, v = places.shape
    for n in range(len(cuts)):
        most = -1
        for s in range(p):
            own = 0
            for d in range(v):
                at = places[s, d]
                own += _within(cuts[n, at + 1], body) - _within(cuts[n, at], body)
            # A forward takes 1, a backward 2, for many micro-batches.
            takes = 12 * p * own + 3 * _within(cuts[n, s], body)
            load[n], seconds[n] = max(load[n], own), max(seconds[n], takes)
            if own * 12 * p * front.shape[1] + takes > most:
                most, heaviest[n] = own * 12 * p * front.shape[1] + takes, s
        _count(cuts[n], places, front, body, heaviest[n], seen[n])
        mixed = 0
        for x in range(min(1, seen.shape[1])):
            for field in (REST, FIRST, LAST):
                for kind in range(len(front)):
                    mixed = (mixed * MIX + int(seen[n, x, field, kind])) % MOST
        stage[n] = mixed * p + heaviest[n]
