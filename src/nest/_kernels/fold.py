"""A stage from its layers, and an option from a stage.

Shapes: T layer kinds, R recompute policies, G signatures. ``t`` is a ``nest.search.tables.Tables``,
``w`` a ``nest._kernels.options.Work``.
"""

from __future__ import annotations

from nest._kernels import leaf
from nest._kernels.layers import (
    BACKWARD,
    BUFFERS,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    GATHER,
    GATHERED,
    REGATHERED,
    SCATTERED,
    SYNC,
    UPDATE,
    WORK,
    borders,
    chunk_costs,
    spare,
)
from nest._kernels.spans import NO, PART
from nest.forms.chunk import (
    C_BACKWARD,
    C_CHASE,
    C_FORWARD,
    C_LARGEST,
    C_LATE,
    C_LATE_BACK,
    C_LEFT,
    C_QUEUE_BACKWARD,
    C_QUEUE_FORWARD,
    C_TIED,
    C_TRAILING,
    C_TRAILS_BACKWARD,
    C_TRAILS_FORWARD,
    C_TURN,
    C_UPDATE,
    C_WAIT,
)

# Figures of a signature without recompute, but for the traffic beside its last layer. LEFT and WAIT
# are what is left to reduce and to gather, BALANCE and START the same with the next layer's still
# to come (see ``walk``); LARGEST is the longest gather of all. The next four are sums over the
# layers, in the order of a layer's figures; BUFFERS and WORK are the largest of all.
(S_FORWARD, S_BACKWARD, S_FREE_FORWARD, BALANCE, LEFT, START, WAIT, LARGEST, S_UPDATE, S_TIED,
 S_RESIDENT, S_ACTIVATIONS, S_BUFFERS, S_WORK) = range(14)
TOTALS = 14
# Fields of an option, those first that decide between two. AHEAD is a forward, BACK a backward,
# ENDS the last one and LATE by how much it is shorter; TURN, CHASE_AHEAD, QUEUE and QUEUE_BACK what
# a pass takes longer right behind another: backward behind forward, the other way round, forward
# behind forward, backward behind backward. WAITS is for parameters, REMAINS what follows the last
# backward, LATER what follows then where a stage holds a copy of an embedding, else 0. The rest are
# sums, see ``set_ends``.
(AHEAD, READY, BACK, WAITED, ENDS, TURN, PACED, CHASED, QUEUED, QUEUED_BACK, LATER, REMAINS, WAITS,
 CHASE_AHEAD, QUEUE, QUEUE_BACK, LATE) = range(17)
DECIDE, OPTION = 11, 17
# Whole numbers of an option: its degrees (``nest.search.tensors.Builder.degrees``); micro-batches
# in flight that fit, and shards, of which more are better.
DEGREES, HELD, SHARDS = range(3)
NUMBERS = 3


@leaf
def walk(t, w, c, busy, limit, slack):
    """Fold the layers along the tree of signatures; the number of those reached.

    ``totals`` and ``order`` of ``w`` are filled, parents first; the formulas are those of
    :func:`nest.costs.stage.chunk_costs`, from the first layer to the last, but for the traffic
    beside the last layer, which depends on the next (``close``). ``busy``: layers have ZeRO
    traffic. Nothing follows a signature that takes ``limit`` alone, or more above the least that
    its layers need than a plan below ``limit`` can spare (see ``Builder.bounds``): more layers take
    more of both.
    """
    layers, totals, stack = w.layers, w.totals, w.stack
    o, reduce, refresh = t.overlaps[0], t.overlaps[1], t.overlaps[2]
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
        part, kind = t.part[g], t.last[g]
        forward, backward = totals[part, S_FORWARD], totals[part, S_BACKWARD]
        hides = covers = 0.0
        if part >= 0:
            below = t.last[part]
            covers, hides = layers[0, below, FREE_FORWARD], layers[0, below, FREE_BACKWARD]
            if busy:
                above = t.part[part]
                y, beside = o * hides, layers[0, kind, SCATTERED]
                if above < 0:
                    backward += max(0.0, beside - y)
                    beside += layers[0, below, GATHERED]
                else:
                    forward += max(0.0, layers[0, kind, GATHERED] - o * covers)
                    beside += layers[0, t.last[above], REGATHERED]
                    backward += max(0.0, beside - y)
                hides = spare(layers, 0, below, beside, o)
        forward += layers[0, kind, FORWARD]
        backward += layers[0, kind, BACKWARD]
        balance = totals[part, BALANCE] - reduce * hides + layers[0, kind, SYNC]
        start = totals[part, START] - refresh * covers + layers[0, kind, GATHER]
        totals[g, S_FORWARD], totals[g, S_BACKWARD] = forward, backward
        totals[g, BALANCE], totals[g, LEFT] = balance, max(totals[part, LEFT], balance)
        totals[g, START], totals[g, WAIT] = start, max(totals[part, WAIT], start)
        totals[g, S_FREE_FORWARD] = totals[part, S_FREE_FORWARD] + layers[0, kind, FREE_FORWARD]
        totals[g, LARGEST] = max(totals[part, LARGEST], layers[0, kind, GATHERED])
        for x in range(4):
            totals[g, S_UPDATE + x] = totals[part, S_UPDATE + x] + layers[0, kind, UPDATE + x]
        totals[g, S_BUFFERS] = max(totals[part, S_BUFFERS], layers[0, kind, BUFFERS])
        totals[g, S_WORK] = max(totals[part, S_WORK], layers[0, kind, WORK])
        time = forward + backward
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
def close(t, w, g):
    """Fill the seconds of an option with what signature g takes without recompute."""
    layers, totals, chunk, overlap = w.layers, w.totals, w.chunk, t.overlaps[0]
    part, first, last = t.part[g], t.root[g], t.last[g]
    second, third, below = t.second[g], t.third[g], -1
    x, back = overlap * layers[0, first, FREE_FORWARD], overlap * layers[0, last, FREE_BACKWARD]
    for field in range(C_LATE, C_TRAILING):
        chunk[field] = 0.0
    chunk[C_WAIT] = totals[g, WAIT] + layers[0, first, GATHERED]
    if part >= 0:
        below = t.last[part]
        chunk[C_WAIT] += max(0.0, layers[0, second, GATHERED] - x)
    chunk[C_LARGEST] = totals[g, LARGEST]
    chunk[C_TRAILING] = layers[0, first, SCATTERED]
    if chunk[C_LARGEST] > 0.0:
        chunk[C_TRAILING] = 0.0
        under = overlap * layers[0, second, FREE_FORWARD] if third >= 0 else 0.0
        borders(layers, first, second, third, below, last, x, under,
                overlap * layers[0, first, FREE_BACKWARD],
                overlap * layers[0, last, FREE_FORWARD], back, chunk)
    chunk[C_FORWARD] = totals[g, S_FORWARD]
    chunk[C_BACKWARD] = totals[g, S_BACKWARD] + chunk[C_LATE]
    chunk[C_LEFT] = totals[g, LEFT] + layers[0, first, SCATTERED]
    chunk[C_TRAILS_FORWARD], chunk[C_TRAILS_BACKWARD] = overlap * totals[g, S_FREE_FORWARD], back
    chunk[C_TIED], chunk[C_UPDATE] = totals[g, S_TIED], totals[g, S_UPDATE]
    _fill(t.gpipe, chunk, w.new)


@leaf
def _fill(gpipe, chunk, new):
    """Fill an option with the figures of its stage.

    Under GPipe forwards follow each other, and backwards do: no forward is behind a backward, and
    other backwards are behind all but the last one.
    """
    trails = chunk[C_TRAILING] - chunk[C_TRAILS_BACKWARD]
    late, end = chunk[C_LATE], chunk[C_BACKWARD] - chunk[C_LATE]
    chase = chunk[C_CHASE] + max(0.0, trails - chunk[C_TRAILS_FORWARD])
    new[AHEAD], new[BACK] = chunk[C_FORWARD], chunk[C_BACKWARD]
    if gpipe:
        late, chase = chunk[C_LATE_BACK], 0.0
        new[BACK] = end + late
    new[LATE], new[TURN], new[CHASE_AHEAD] = late, chunk[C_TURN], chase
    new[QUEUE] = chunk[C_QUEUE_FORWARD]
    new[QUEUE_BACK] = chunk[C_QUEUE_BACKWARD] + chunk[C_LATE_BACK] - late + max(0.0, trails)
    set_ends(new, chunk[C_LEFT], chunk[C_WAIT], chunk[C_TIED], chunk[C_UPDATE])


@leaf
def set_alone(new, left, wait, tied, update):
    """``set_ends`` of passes that take no longer in a row: no ZeRO traffic, or to be no worse."""
    new[LATE] = new[TURN] = new[CHASE_AHEAD] = new[QUEUE] = new[QUEUE_BACK] = 0.0
    set_ends(new, left, wait, tied, update)


@leaf
def set_ends(new, left, wait, tied, update):
    """Fill in the rest of an option whose passes are known, alone and in a row.

    A stage with a copy of a tied embedding is ready before the copies are exchanged.
    """
    new[ENDS] = new[BACK] - new[LATE]
    new[CHASED] = new[AHEAD] + new[BACK] + new[CHASE_AHEAD]
    new[PACED] = new[CHASED] + new[TURN]
    new[QUEUED], new[QUEUED_BACK] = new[AHEAD] + new[QUEUE], new[BACK] + new[QUEUE_BACK]
    new[WAITS] = wait
    new[REMAINS], new[LATER] = left + update, 0.0
    if tied > 0.0:
        new[REMAINS], new[LATER] = left, tied + update
    new[WAITED] = new[AHEAD] + wait
    new[READY] = new[ENDS] + new[REMAINS]


@leaf
def recomputed(t, w, g, r, most):
    """Fill the seconds of an option: signature g, policy r for the first ``most`` layers."""
    kinds, again = w.kinds, w.again
    at, q = len(kinds), g
    while q >= 0:
        at -= 1
        kinds[at] = t.last[q]
        again[at] = r if t.marked[q] <= most else 0
        q = t.part[q]
    chunk_costs(w.layers, t.overlaps, kinds, again, at, len(kinds), w.chunk)
    _fill(t.gpipe, w.chunk, w.new)
