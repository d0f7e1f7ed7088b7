"""A stage from its layers, and an option from a stage.

Shapes: T layer kinds, R recompute policies, G signatures. ``t`` is a ``nest.search.tables.Tables``,
``w`` a ``nest._kernels.options.OptionWork``.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.layers import append, chunk_costs, close
from nest._kernels.spans import NO, PART
from nest.schedules import gpipe, one_f_one_b

stage_of, gpipe_stage_of = form(one_f_one_b.stage_of), form(gpipe.stage_of)


@leaf
def walk(t, w, c, limit, slack):
    """Fold the layers along the tree of signatures; the number of those reached.

    ``totals`` and ``order`` of ``w`` are filled, parents first. Nothing follows a signature that
    takes ``limit`` alone, or more above the least that its layers need than a plan below ``limit``
    can spare (see ``Formulation.bounds``): more layers take more of both.
    """
    totals, stack, alone = w.totals, w.stack, w.layers[0]
    reached = 0
    waiting = t.begin[1]
    for x in range(waiting):
        stack[x] = t.children[x]
    while waiting:
        waiting -= 1
        g = stack[waiting]
        wanted = w.wanted.most[t.price[c], g]
        if wanted == NO:
            continue
        # That of one layer extends number -1: the last row, all zeros.
        part, layer = t.part[g], alone[t.last[g]]
        before, now = totals[part], totals[g]
        lower = below = layer
        if part >= 0:
            lower = below = alone[t.last[part]]
            if t.part[part] >= 0:
                lower = alone[t.last[t.part[part]]]
        append(before, layer, below, lower, t.depth[g] - 1, t.overlaps, now)
        now.update, now.tied = before.update + layer.update, before.tied + layer.tied
        now.resident = before.resident + layer.resident
        now.activations = before.activations + layer.activations
        now.buffers, now.work = max(before.buffers, layer.buffers), max(before.work, layer.work)
        time = now.forward + now.backward
        if t.micro_batches * time >= limit or t.weight[c] * time - w.base[g] > slack:
            continue
        if wanted > PART:
            w.order[reached] = g
            reached += 1
        for x in range(t.begin[g + 1], t.begin[g + 2]):
            stack[waiting] = t.children[x]
            waiting += 1
    return reached


@leaf
def fill_whole(t, w, g):
    """Fill the seconds of an option with what signature g takes without recompute."""
    alone, chunk, total = w.layers[0], w.chunk[0], w.totals[g]
    chunk.forward, chunk.backward, chunk.left = total.forward, total.backward, total.left
    chunk.wait, chunk.largest, chunk.free_forward = total.wait, total.largest, total.free_forward
    chunk.update, chunk.tied = total.update, total.tied
    first = second = third = below = alone[t.root[g]]
    if t.part[g] >= 0:
        second, below = alone[t.second[g]], alone[t.last[t.part[g]]]
    if t.third[g] >= 0:
        third = alone[t.third[g]]
    close(first, second, third, below, alone[t.last[g]], t.depth[g], t.overlaps, chunk)
    _fill(t.gpipe, chunk, w.new[0])


@leaf
def _fill(gpipe, chunk, new):
    """Fill an option with the figures of its stage."""
    stage = gpipe_stage_of(chunk) if gpipe else stage_of(chunk)
    new.forward, new.backward, new.last = stage.forward, stage.backward, stage.last
    new.turn, new.chase = stage.turn, stage.chase
    new.queue_forward, new.queue_backward = stage.queue_forward, stage.queue_backward
    new.late = stage.backward - stage.last
    set_ends(new, chunk.left, chunk.wait, chunk.tied, chunk.update)


@leaf
def set_alone(new, left, wait, tied, update):
    """``set_ends`` of passes that take no longer in a row: no ZeRO traffic, or to be no worse."""
    new.late = new.turn = new.chase = new.queue_forward = new.queue_backward = 0.0
    set_ends(new, left, wait, tied, update)


@leaf
def set_ends(new, left, wait, tied, update):
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
def recomputed(t, w, g, r, most):
    """Fill the seconds of an option: signature g, policy r for the first ``most`` layers."""
    kinds, again, chunk = w.kinds, w.again, w.chunk[0]
    at, q = len(kinds), g
    while q >= 0:
        at -= 1
        kinds[at] = t.last[q]
        again[at] = r if t.marked[q] <= most else 0
        q = t.part[q]
    overlaps = t.overlaps_alone if g == t.whole else t.overlaps
    chunk_costs(w.layers, kinds, again, at, len(kinds), overlaps, chunk)
    chunk.update, chunk.tied = w.totals[g].update, w.totals[g].tied
    _fill(t.gpipe, chunk, w.new[0])
