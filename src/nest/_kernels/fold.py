"""Figures of layers, a stage from its layers, an option from a stage, by
:mod:`nest.schedules.chunk`.

Shapes: T layer kinds, R recompute policies, G signatures.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.option_work import OptionWork
from nest._kernels.spans import NO, PART
from nest.records import Row, Rows
from nest.records.tables import Degrees, Tables
from nest.schedules import chunk, gpipe, one_f_one_b

stage_of, gpipe_stage_of = form(one_f_one_b.stage_of), form(gpipe.stage_of)
append, close = form(chunk.append), form(chunk.close)
remains = form(chunk.remains)
chunk_costs, add_parts = form(chunk.chunk_costs, leaf), form(chunk.add_parts, leaf)


@leaf
def layer_sums(tables: Tables | Degrees, u: int, v: int, z: int, r: int, layers: Rows) -> None:
    """Fill ``layers[r]`` of (R, T) with the figures of each kind: of body ``u`` under policy ``r``,
    and of state ``v`` with way of ZeRO ``z``."""
    for kind in range(tables.ahead.shape[1]):
        ahead, back, state = tables.ahead[u, kind], tables.back[u, r, kind], tables.state[v, z,
            kind]
        layer = layers[r, kind]
        layer.free_forward, layer.forward = ahead.free, ahead.seconds + state.slowed_forward
        layer.free_backward, layer.backward = back.free, back.seconds + state.slowed_backward
        layer.activations, layer.work = back.activations, back.work
        layer.gathered, layer.regathered = state.gathered, state.regathered
        layer.scattered, layer.sync, layer.gather = state.scattered, state.sync, state.gather
        layer.buffers, layer.update, layer.tied = state.buffers, state.update, state.tied
        layer.resident, layer.maxima = state.resident, state.maxima


@leaf
def walk(tables: Tables, work: OptionWork, c: int, limit: float, slack: float) -> int:
    """Fold the layers along the tree of signatures; the number of those reached.

    ``totals`` and ``order`` of ``work`` are filled, parents first. Nothing follows a signature that
    takes ``limit`` alone, or more above the least that its layers need than a plan below ``limit``
    can spare (see ``Formulation.bounds``): more layers take more of both.
    """
    totals, stack, alone = work.totals, work.stack, work.layers[0]
    reached = 0
    waiting = tables.begin[1]
    for x in range(waiting):
        stack[x] = tables.children[x]
    while waiting:
        waiting -= 1
        g = stack[waiting]
        wanted = work.wanted.most[tables.price[c], g]
        if wanted == NO:
            continue
        # That of one layer extends number -1: the last row, all zeros.
        part, layer = tables.part[g], alone[tables.last[g]]
        before, now = totals[part], totals[g]
        lower = below = layer
        if part >= 0:
            lower = below = alone[tables.last[part]]
            if tables.part[part] >= 0:
                lower = alone[tables.last[tables.part[part]]]
        append(before, layer, below, lower, tables.depth[g] - 1, tables.overlaps, now)
        now.update, now.tied = before.update + layer.update, before.tied + layer.tied
        now.resident = before.resident + layer.resident
        now.activations = before.activations + layer.activations
        now.buffers, now.work = max(before.buffers, layer.buffers), max(before.work, layer.work)
        time = now.forward + now.backward
        if tables.micro_batches * time >= limit or tables.weight[c] * time - work.base[g] > slack:
            continue
        if wanted > PART:
            work.order[reached] = g
            reached += 1
        for x in range(tables.begin[g + 1], tables.begin[g + 2]):
            stack[waiting] = tables.children[x]
            waiting += 1
    return reached


@leaf
def fill_whole(tables: Tables, work: OptionWork, g: int) -> None:
    """Fill the seconds of an option with what signature g takes without recompute."""
    alone, chunk, total = work.layers[0], work.chunk[0], work.totals[g]
    chunk.forward, chunk.backward, chunk.left = total.forward, total.backward, total.left
    chunk.wait, chunk.largest, chunk.free_forward = total.wait, total.largest, total.free_forward
    chunk.update, chunk.tied = total.update, total.tied
    first = second = third = below = alone[tables.root[g]]
    if tables.part[g] >= 0:
        second, below = alone[tables.second[g]], alone[tables.last[tables.part[g]]]
    if tables.third[g] >= 0:
        third = alone[tables.third[g]]
    close(first, second, third, below, alone[tables.last[g]], tables.depth[g], tables.overlaps,
        chunk)
    _fill(tables.gpipe, chunk, work.new[0])


@leaf
def _fill(gpipe: bool, chunk: Row, new: Row) -> None:
    """Fill an option with the figures of its stage."""
    stage = gpipe_stage_of(chunk) if gpipe else stage_of(chunk)
    new.forward, new.backward, new.last = stage.forward, stage.backward, stage.last
    new.turn, new.chase = stage.turn, stage.chase
    new.queue_forward, new.queue_backward = stage.queue_forward, stage.queue_backward
    new.late = stage.backward - stage.last
    set_ends(new, chunk.left, chunk.wait, chunk.tied, chunk.update)


@leaf
def set_alone(new: Row, left: float, wait: float, tied: float, update: float) -> None:
    """``set_ends`` of passes that take no longer in a row: no ZeRO traffic, or to be no worse."""
    new.late = new.turn = new.chase = new.queue_forward = new.queue_backward = 0.0
    set_ends(new, left, wait, tied, update)


@leaf
def set_ends(new: Row, left: float, wait: float, tied: float, update: float) -> None:
    """Fill in the rest of an option whose passes are known, alone and in a row.

    A stage with a copy of a tied embedding is ready before the copies are exchanged.
    """
    new.last = new.backward - new.late
    new.chased = new.forward + new.backward + new.chase
    new.paced = new.chased + new.turn
    new.queued, new.queued_back = (
        new.forward + new.queue_forward, new.backward + new.queue_backward)
    new.wait = wait
    new.left, new.later = left + update, 0.0
    if tied > 0.0:
        new.left, new.later = left, tied + update
    new.waited = new.forward + wait
    new.ready = new.last + new.left


@leaf
def recomputed(tables: Tables, work: OptionWork, g: int, r: int, most: int) -> None:
    """Fill the seconds of an option: signature g, policy r for the first ``most`` layers."""
    kinds, again, chunk = work.kinds, work.again, work.chunk[0]
    at, q = len(kinds), g
    while q >= 0:
        at -= 1
        kinds[at] = tables.last[q]
        again[at] = r if tables.marked[q] <= most else 0
        q = tables.part[q]
    overlaps = tables.overlaps_alone if g == tables.whole else tables.overlaps
    chunk_costs(work.layers, kinds, again, at, len(kinds), overlaps, chunk)
    chunk.update, chunk.tied = work.totals[g].update, work.totals[g].tied
    _fill(tables.gpipe, chunk, work.new[0])
