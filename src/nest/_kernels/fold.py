"""A stage from its layers, and an option from a stage.

Shapes: T layer kinds, R recompute policies, G signatures.
"""

from __future__ import annotations

from numba import njit

from nest._kernels import CACHE
from nest._kernels.layers import (
    BACKWARD,
    C_BACKWARD,
    C_CHASE_BACKWARD,
    C_CHASE_FORWARD,
    C_FORWARD,
    C_LEFT,
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
    chunk_costs,
    spare,
)

# Of a stage, in place of what no stage needs: what is left to reduce and to gather, and what that
# is with the next layer's still to come; see ``walk``.
LEFT, BALANCE, WAIT, START = SYNC, FREE_BACKWARD, GATHER, GATHERED
CHASE_FORWARD, CHASE_BACKWARD = REGATHERED, SCATTERED
# Fields of an option: those that decide between two (micro-batches in flight and shards below
# zero, so that less is better), then others of its label.
(AHEAD, READY, BACK, HELD, WAITED, SHARDS, PACED, PACED_BACK, TURNED, LATER, READY_TURNED, REMAINS,
 WAITS, TURN, PACE, PACE_BACK) = range(16)
DECIDE, OPTION = 11, 16


@njit(cache=CACHE, nogil=True)
def walk(t, tree, c, busy, layers, totals, order, limit, slack):
    """Fold the layers along the tree of signatures; the number of those reached.

    ``totals`` (G, FIELDS) and ``order`` are filled, parents first; the formulas are those of
    :func:`nest.costs.stage.chunk_costs`, from the first layer to the last, but for the traffic
    beside the last layer, which depends on the next (``close``). ``busy``: layers have ZeRO
    traffic. Nothing follows a signature that takes ``limit`` alone, or more above the least that
    its layers need than a plan below ``limit`` can spare (see ``Builder.bounds``): more layers take
    more of both.
    """
    children, begin, base, stack = tree
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
                beside = layers[0, kind, GATHERED]
                waited = 0.0 if root else max(0.0, beside - x)
                if root and layers[0, below, GATHERED] > 0.0:
                    beside += layers[0, below, SCATTERED]
                forward += waited
                totals[g, CHASE_FORWARD] = (
                    totals[part, CHASE_FORWARD] + max(0.0, beside - x) - waited)
                scattered = layers[0, kind, SCATTERED]
                beside = scattered + (layers[0, below, GATHERED] if root
                                      else layers[0, t.last[t.part[part]], REGATHERED])
                waited = max(0.0, (scattered if root else beside) - y)
                backward += waited
                totals[g, CHASE_BACKWARD] = (
                    totals[part, CHASE_BACKWARD] + max(0.0, beside - y) - waited)
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
            totals[g, CHASE_FORWARD] = totals[g, CHASE_BACKWARD] = 0.0
        time = totals[g, FORWARD] + totals[g, BACKWARD]
        if t.micro_batches * time >= limit or t.weight[c] * time - base[g] > slack:
            continue
        order[reached] = g
        reached += 1
        for x in range(begin[g + 1], begin[g + 2]):
            stack[waiting] = children[x]
            waiting += 1
    return reached


@njit(cache=CACHE, nogil=True)
def close(gpipe, overlap, part, last, first, second, layers, totals, g, new):
    """Fill the seconds of an option with what signature g takes without recompute.

    It ends with kind ``last``, behind kind ``part`` (-1: alone), and begins with ``first``, in
    front of ``second``.
    """
    new[AHEAD], new[BACK] = totals[g, FORWARD], totals[g, BACKWARD]
    gathers = layers[0, first, GATHERED] > 0.0
    x, y = overlap * layers[0, last, FREE_FORWARD], overlap * layers[0, last, FREE_BACKWARD]
    beside = layers[0, last, REGATHERED]
    turn = max(0.0, beside - x)
    if part < 0 and gathers:
        beside += layers[0, first, SCATTERED]
    chase_forward = totals[g, CHASE_FORWARD] + max(0.0, beside - x)
    wait = totals[g, WAIT] + layers[0, first, GATHERED]
    beside = layers[0, last, GATHERED]
    if part >= 0:
        beside = layers[0, part, REGATHERED]
        turn += max(0.0, beside - y)
        wait += max(0.0, layers[0, second, GATHERED] - overlap * layers[0, first, FREE_FORWARD])
    chase_backward = totals[g, CHASE_BACKWARD] + max(0.0, beside - y)
    left = totals[g, LEFT] + layers[0, first, SCATTERED]
    trails = 0.0 if gathers else layers[0, first, SCATTERED] - y
    set_ends(gpipe, new, turn, chase_forward, chase_backward,
              max(0.0, trails - overlap * totals[g, FREE_FORWARD]), max(0.0, trails), left, wait,
              totals[g, TIED], totals[g, UPDATE])


@njit(cache=CACHE, nogil=True)
def set_ends(gpipe, new, turn, chase_forward, chase_backward, trails, trails_back, left, wait,
              tied, update):
    """Fill in the rest of an option whose forward and backward are known.

    A stage with a copy of a tied embedding is ready before the copies are exchanged. Where passes
    of a kind follow each other (GPipe), each way has a pace of its own.
    """
    new[PACE], new[PACE_BACK] = chase_forward + chase_backward + trails, 0.0
    new[PACED], new[PACED_BACK] = new[AHEAD] + new[BACK] + new[PACE], 0.0
    if gpipe:
        new[PACE], new[PACE_BACK] = chase_forward, chase_backward + trails_back
        new[PACED], new[PACED_BACK] = new[AHEAD] + new[PACE], new[BACK] + new[PACE_BACK]
    new[TURN], new[WAITS] = turn, wait
    new[REMAINS], new[LATER] = left + update, 0.0
    if tied > 0.0:
        new[REMAINS], new[LATER] = left, tied + update
    new[TURNED] = new[BACK] + turn
    new[WAITED] = new[AHEAD] + wait
    new[READY] = new[BACK] + new[REMAINS]
    new[READY_TURNED] = new[TURNED] + new[REMAINS]


@njit(cache=CACHE, nogil=True)
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
    new[AHEAD], new[BACK] = chunk[C_FORWARD], chunk[C_BACKWARD]
    trails_back = chunk[C_TRAILING] - chunk[C_TRAILS_BACKWARD]
    set_ends(gpipe, new, chunk[C_TURN], chunk[C_CHASE_FORWARD], chunk[C_CHASE_BACKWARD],
              max(0.0, trails_back - chunk[C_TRAILS_FORWARD]), max(0.0, trails_back),
              chunk[C_LEFT], chunk[C_WAIT], chunk[C_TIED], chunk[C_UPDATE])
