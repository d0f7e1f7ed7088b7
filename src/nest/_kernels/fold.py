"""A stage from its layers, and an option from a stage.

Shapes: T layer kinds, R recompute policies, G signatures.
"""

from __future__ import annotations

from nest._kernels import leaf
from nest._kernels.layers import (
    BACKWARD,
    C_BACKWARD,
    C_CHASE,
    C_FORWARD,
    C_GATHERS,
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
    FIELDS,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    GATHER,
    GATHERED,
    REGATHERED,
    SCATTERED,
    SYNC,
    TIED,
    UPDATE,
    WORK,
    borders,
    chunk_costs,
    spare,
)

# Of a stage, in place of what no stage needs: what is left to reduce and to gather, and what that
# is with the next layer's still to come; see ``walk``.
LEFT, BALANCE, WAIT, START = SYNC, FREE_BACKWARD, GATHER, GATHERED
# Kind of the third layer, -1: none; the longest gather of all.
THIRD, LARGEST = REGATHERED, SCATTERED
# Fields of an option, those first that decide between two. AHEAD is a forward, BACK a backward,
# ENDS the last one and LATE by how much it is shorter; TURN, CHASE_AHEAD, QUEUE and QUEUE_BACK what
# a pass takes longer right behind another: backward behind forward, the other way round, forward
# behind forward, backward behind backward. WAITS is for parameters, REMAINS what follows the last
# backward, LATER what follows then where a stage holds a copy of an embedding, else 0. HELD
# (micro-batches that fit) and SHARDS are below zero, so that less is better. The rest are sums, see
# ``set_ends``.
(AHEAD, READY, BACK, HELD, WAITED, SHARDS, ENDS, TURN, PACED, CHASED, QUEUED, QUEUED_BACK, LATER,
 REMAINS, WAITS, CHASE_AHEAD, QUEUE, QUEUE_BACK, LATE) = range(19)
DECIDE, OPTION = 13, 19


@leaf
def walk(t, w, c, busy, limit, slack):
    """Fold the layers along the tree of signatures; the number of those reached.

    ``none`` and ``order`` of ``w`` are filled, parents first; the formulas are those of
    :func:`nest.costs.stage.chunk_costs`, from the first layer to the last, but for the traffic
    beside the last layer, which depends on the next (``close``). ``busy``: layers have ZeRO
    traffic. Nothing follows a signature that takes ``limit`` alone, or more above the least that
    its layers need than a plan below ``limit`` can spare (see ``Builder.bounds``): more layers take
    more of both.
    """
    children, begin, base, stack = w.children, w.begin, w.base, w.stack
    layers, totals, order = w.layers, w.none, w.order
    o, reduce, refresh = t.overlaps[0], t.overlaps[1], t.overlaps[2]
    waiting = begin[1]
    for x in range(waiting):
        stack[x] = children[x]
    reached = 0
    while waiting:
        waiting -= 1
        g = stack[waiting]
        part, kind = t.part[g], t.last[g]
        sync, gather = layers[0, kind, SYNC], layers[0, kind, GATHER]
        if part >= 0:
            below = t.last[part]
            forward, backward = totals[part, FORWARD], totals[part, BACKWARD]
            hides = layers[0, below, FREE_BACKWARD]
            if busy:
                root = t.part[part] < 0
                x, y = o * layers[0, below, FREE_FORWARD], o * hides
                if not root:
                    forward += max(0.0, layers[0, kind, GATHERED] - x)
                totals[g, LARGEST] = max(totals[part, LARGEST], layers[0, kind, GATHERED])
                totals[g, THIRD] = totals[part, THIRD]
                if not root and t.part[t.part[part]] < 0:
                    totals[g, THIRD] = kind
                scattered = layers[0, kind, SCATTERED]
                beside = scattered + (layers[0, below, GATHERED] if root
                                      else layers[0, t.last[t.part[part]], REGATHERED])
                backward += max(0.0, (scattered if root else beside) - y)
                hides = spare(layers, 0, below, beside, o)
            totals[g, FORWARD] = forward + layers[0, kind, FORWARD]
            totals[g, BACKWARD] = backward + layers[0, kind, BACKWARD]
            totals[g, BALANCE] = totals[part, BALANCE] - reduce * hides + sync
            totals[g, LEFT] = max(totals[part, LEFT], totals[g, BALANCE])
            totals[g, START] = (
                totals[part, START] - refresh * layers[0, below, FREE_FORWARD] + gather)
            totals[g, WAIT] = max(totals[part, WAIT], totals[g, START])
            totals[g, FREE_FORWARD] = totals[part, FREE_FORWARD] + layers[0, kind, FREE_FORWARD]
            for f in range(UPDATE, WORK):
                totals[g, f] = totals[part, f] + layers[0, kind, f]
            for f in range(WORK, FIELDS):
                totals[g, f] = max(totals[part, f], layers[0, kind, f])
        else:
            for f in range(FIELDS):
                totals[g, f] = layers[0, kind, f]
            totals[g, BALANCE] = totals[g, LEFT] = sync
            totals[g, START] = totals[g, WAIT] = gather
            totals[g, THIRD], totals[g, LARGEST] = -1.0, layers[0, kind, GATHERED]
        time = totals[g, FORWARD] + totals[g, BACKWARD]
        if t.micro_batches * time >= limit or t.weight[c] * time - base[g] > slack:
            continue
        order[reached] = g
        reached += 1
        for x in range(begin[g + 1], begin[g + 2]):
            stack[waiting] = children[x]
            waiting += 1
    return reached


@leaf
def close(gpipe, overlap, part, last, first, second, layers, totals, g, chunk, new):
    """Fill the seconds of an option with what signature g takes without recompute.

    It ends with kind ``last``, behind kind ``part`` (-1: alone), and begins with ``first``, in
    front of ``second``. ``chunk`` (CHUNK,) is room.
    """
    x, back = overlap * layers[0, first, FREE_FORWARD], overlap * layers[0, last, FREE_BACKWARD]
    for field in range(C_LATE, C_TRAILING):
        chunk[field] = 0.0
    chunk[C_GATHERS] = 1.0 if totals[g, LARGEST] > 0.0 else 0.0
    if chunk[C_GATHERS]:
        third, under = int(totals[g, THIRD]), 0.0
        if third >= 0:
            under = overlap * layers[0, second, FREE_FORWARD]
        borders(layers, first, second if part >= 0 else -1, third, part, last, x, under,
                overlap * layers[0, first, FREE_BACKWARD],
                overlap * layers[0, last, FREE_FORWARD], back, chunk)
    chunk[C_FORWARD] = totals[g, FORWARD]
    chunk[C_BACKWARD] = totals[g, BACKWARD] + chunk[C_LATE]
    chunk[C_WAIT] = totals[g, WAIT] + layers[0, first, GATHERED]
    if part >= 0:
        chunk[C_WAIT] += max(0.0, layers[0, second, GATHERED] - x)
    chunk[C_LEFT] = totals[g, LEFT] + layers[0, first, SCATTERED]
    chunk[C_TRAILING] = 0.0 if chunk[C_GATHERS] else layers[0, first, SCATTERED]
    chunk[C_TRAILS_FORWARD], chunk[C_TRAILS_BACKWARD] = overlap * totals[g, FREE_FORWARD], back
    chunk[C_TIED], chunk[C_UPDATE] = totals[g, TIED], totals[g, UPDATE]
    _fill(gpipe, chunk, new)


@leaf
def _fill(gpipe, chunk, new):
    """Fill an option with the figures of its stage."""
    trails = chunk[C_TRAILING] - chunk[C_TRAILS_BACKWARD]
    late, end = chunk[C_LATE], chunk[C_BACKWARD] - chunk[C_LATE]
    new[AHEAD], new[BACK] = chunk[C_FORWARD], chunk[C_BACKWARD]
    if gpipe:
        # Other backwards are behind all but the last one.
        late, new[BACK] = chunk[C_LATE_BACK], end + chunk[C_LATE_BACK]
    queue = chunk[C_QUEUE_BACKWARD] + chunk[C_LATE_BACK] - late + max(0.0, trails)
    chase = chunk[C_CHASE] + max(0.0, trails - chunk[C_TRAILS_FORWARD])
    set_ends(gpipe, new, chunk[C_LEFT], chunk[C_WAIT], chunk[C_TIED],
             chunk[C_UPDATE], late, chunk[C_TURN], chase, chunk[C_QUEUE_FORWARD], queue)


@leaf
def set_ends(gpipe, new, left, wait, tied, update, late=0.0, turn=0.0, chase=0.0,
             queue=0.0, queue_back=0.0):
    """Fill in the rest of an option whose forward and backward are known.

    What passes take longer in a row is left out where there is no ZeRO traffic, or to be no worse.
    A stage with a copy of a tied embedding is ready before the copies are exchanged. Under GPipe
    forwards follow each other, and backwards do: no forward is behind a backward.
    """
    if gpipe:
        chase = 0.0
    new[LATE], new[TURN] = late, turn
    new[CHASE_AHEAD], new[QUEUE], new[QUEUE_BACK] = chase, queue, queue_back
    new[ENDS] = new[BACK] - late
    new[CHASED] = new[AHEAD] + new[BACK] + chase
    new[PACED] = new[CHASED] + turn
    new[QUEUED], new[QUEUED_BACK] = new[AHEAD] + queue, new[BACK] + queue_back
    new[WAITS] = wait
    new[REMAINS], new[LATER] = left + update, 0.0
    if tied > 0.0:
        new[REMAINS], new[LATER] = left, tied + update
    new[WAITED] = new[AHEAD] + wait
    new[READY] = new[ENDS] + new[REMAINS]


@leaf
def recomputed(gpipe, overlaps, part, last, marked, g, r, most, layers, kinds, again, chunk, new):
    """Fill the seconds of an option: signature g, policy r for the first ``most`` layers.

    ``kinds`` and ``again`` are room for the layers of the longest signature, ``chunk`` for what
    they add up to.
    """
    at, q = len(kinds), g
    while q >= 0:
        at -= 1
        kinds[at] = last[q]
        again[at] = r if marked[q] <= most else 0
        q = part[q]
    chunk_costs(layers, overlaps, kinds, again, at, len(kinds), chunk)
    _fill(gpipe, chunk, new)
