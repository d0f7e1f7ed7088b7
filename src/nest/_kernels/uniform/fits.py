"""Whether a layout fits, and may take less than the best: it then has to be priced."""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.labels import SLACK
from nest._kernels.orders import CLOSED, is_all_forward, is_in
from nest._kernels.uniform.bound import (
    PassWay,
    StageSums,
    note_end,
    note_traffic,
    of_trips,
    stage_bound,
    trip_bound,
    way_of,
)
from nest._kernels.uniform.decided import note_bytes
from nest._kernels.uniform.price import few_in, passes_of
from nest._kernels.uniform.stages import figures_in_parts, figures_of, position_of
from nest._kernels.uniform.work import UniformWork
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules import orders, passes

held, gathering = form(orders.held), form(passes.gathering)


@leaf
def fits(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, number: int,
    top: float,
) -> bool:
    """Whether a layout fits and may take less than ``top``; ``work.cuts`` gets its cuts."""
    c, k = work.now[0].candidate, work.now[0].pipeline
    pipe = pipelines.pipe[k]
    way = way_of(pipe, degrees.micro_batches)
    for n in range(pipe.pp * pipe.vpp // way.copies + 1):
        work.cuts[n] = pipelines.layouts[pipelines.begin[number] + n]
    for s in range(pipe.pp):
        if not _stage_fits(degrees, places, pipelines, work, way, s, top):
            return False
    if way.looped and of_trips(degrees, places, pipelines, work, c, k) >= top * SLACK:
        return False
    if not is_in(pipe.schedule, CLOSED) and not is_all_forward(pipe.schedule):
        # Between the first groups and the last ones a rank holds the same in turn.
        order = passes_of(pipelines, work, k, way.micro_batches, few_in(pipe, way.micro_batches))
        for s in range(pipe.pp):
            if way.looped and work.rank[s].held <= work.rank[s].room:
                continue
            kept_back, most = work.kept_back[s] if way.split else work.activations[s], work.rank[
                s].room
            if held(work.activations[s], kept_back, s, order, most) > most:
                note_bytes(work)
                return False
    return True


@leaf
def _stage_fits(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, way: PassWay, s: int,
    top: float,
) -> bool:
    """The same of stage s by itself; ``work.rank`` gets what is known of it."""
    c, k = work.now[0].candidate, work.now[0].pipeline
    pipe, rank, m, v = pipelines.pipe[k], work.rank[s], way.micro_batches, pipelines.pipe[k].vpp
    y = places.place[pipe.row, places.size[c], s]
    resident = workspace = buffers = received = 0.0
    own = left = update = forward = sent = 0.0
    ran = kept = largest = hides = gathered = count = most = 0.0
    away = back_away = busy = back_busy = 0.0
    for d in range(v):
        n = position_of(pipe, s, d)
        i, j, times = work.cuts[n], work.cuts[n + 1], work.forwards[k, s, d]
        if way.split or way.together:
            chunk = figures_in_parts(degrees, places, pipelines, work, y, i, j)
            work.kept_back[s, d] = chunk.kept_back
            most, largest = max(most, chunk.kept_back), max(largest, chunk.layer)
            # Of both chunks as many run beside others as of the one with the fewest.
            pairs = max(0, m - (work.forwards[k, s, 1] if way.copies > 1 else times))
            backs = m if way.uneven else pairs
            away += pairs * chunk.exchanged_forward
            busy += pairs * chunk.busy_forward
            back_away += backs * chunk.exchanged_backward
            back_busy += backs * chunk.busy_backward
        else:
            chunk = figures_of(degrees, places, pipelines, work, y, i, j)
        resident += chunk.resident
        workspace, buffers = max(workspace, chunk.work), max(buffers, chunk.buffers)
        received += places.received[i] + places.received[j]
        kept += times * chunk.activations
        ran += times * chunk.forward
        work.activations[s, d] = chunk.activations
        count, most = count + times, max(most, chunk.activations)
        own += chunk.forward + chunk.backward
        own -= chunk.late
        update += chunk.update + chunk.tied
        forward += chunk.forward
        sent += places.handed[j]
        if way.looped:
            note_traffic(rank, chunk, d == 0, way.group, way.rest)
            if d == 0 or d == v - 1:
                note_end(rank, chunk, d == 0, places.handed[j], way.split)
        if d == 0 and not way.split:
            left = chunk.left
        elif d == 0 and way.looped:  # the last pass is for weights of the first chunk
            left = chunk.left_weights
        hides = max(hides, chunk.under_first, chunk.under_last)
        gathered = max(gathered, chunk.largest)
    spared = 0.0
    if gathered > 0.0 and way.in_a_row:
        waits, ran_waiting, spared = _waits_of_gathers(pipelines, work, k, s, y, hides)
        own, ran = own + waits, ran + ran_waiting
    front, end = work.cuts[position_of(pipe, s, 0)], work.cuts[position_of(pipe, s, v - 1) + 1]
    model, before, behind = work.before[len(pipelines.order)], work.before[front], work.before[end]
    back = model.inputs - behind.inputs if way.split else model.backward - behind.backward
    sums = StageSums(before.forward, before.backward, back, own, left + update, ran, spared, away,
                     back_away, busy, back_busy)
    bound = stage_bound(work, way, s, sums, 0.0, 0.0)
    first = max(bound.first, trip_bound(work, pipe, way, s, sums, len(pipelines.order), 0.0))
    rank.room = degrees.limit_bytes - resident - workspace - buffers
    rank.room -= received / way.copies / degrees.candidate[c].shards
    if way.together and (way.copies > 1 or work.forwards[k, s, v - 1] < m):
        rank.room -= largest
    if first + bound.own + bound.last >= top * SLACK:
        return False
    if kept > rank.room:
        note_bytes(work)
        return False
    rank.own, rank.ran, rank.spared, rank.left = bound.own, ran, spared, left + update
    rank.forward, rank.sent = forward, sent
    if way.split or gathered > 0.0:
        rank.reduced = 0.0
    rank.reduced += update
    # A backward frees what a forward took; that for weights comes s backwards later.
    rank.held = (count + (s if way.split else 0)) * most
    return True


@leaf
def _waits_of_gathers(
    pipelines: Pipelines, work: UniformWork, k: int, s: int, y: int, hides: float,
) -> tuple[float, float, float]:
    """What passes of stage s wait at least for what is gathered of its chunks (ZeRO-3): those of a
    micro-batch, those in front of the first backward, the first one; seconds.

    It is partly hidden at the most, but for the first pass and for the first backward through
    layers, which may have waited.
    """
    own = ran = spared = late = 0.0
    some = False
    for d in range(pipelines.pipe[k].vpp):
        n = position_of(pipelines.pipe[k], s, d)
        if work.cuts[n] == work.cuts[n + 1]:
            continue
        chunk = work.figures[y, pipelines.signature[work.cuts[n], work.cuts[n + 1]]]
        wait, late = gathering(chunk, 0, hides), gathering(chunk, 1, hides)
        own += wait + late
        ran += work.forwards[k, s, d] * wait
        if not some:
            spared, some = wait, True
    return own, ran + late, spared
