"""Which layouts of a pipeline are worth a look, from layers by kind of three of its stages.

Each bound is one of ``_fits`` in ``_kernels.alike``, with the least that a layer of a kind takes.
Proofs: ``docs/proofs.md``, "Alike stages".

Shapes: as of ``_kernels.alike``.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.orders import COMBINED, DUALPIPEV, GPIPE, INTERLEAVED, LOOPED_BFS, ZB1P, ZB_V
from nest._kernels.pipeline import SLACK
from nest.forms import orders

begun, warm_up = form(orders.begun), form(orders.warm_up)

BLOCK = 16
"""Layouts that are looked at together first; as in ``nest.search.layouts``."""
FIRST = 3
"""Field of a question: the first layers of each chunk that it holds for."""
# Of a layer of a kind, the least: seconds forward, backward, backward for inputs, of the optimizer;
# bytes of its state, its activations, what these are more without recompute, and of work and
# buffers; seconds of ZeRO's gathers, of those backward, and of scatters.
(AHEAD, BACK, INPUTS, LEFT, HELD, KEPT, MORE, ROOM, GATHER, REGATHER, SCATTER) = range(11)
LEASTS = 11
# Layers by kind of ``Pipelines.seen``.
S_REST, S_FIRST, S_LAST, S_FRONT, S_BEHIND = range(5)


@leaf
def split_of(schedule):
    """Whether backwards are in two parts."""
    return ZB1P <= schedule <= DUALPIPEV


@leaf
def waits_of(two, three, chunks, most_two, most_three):
    """Least seconds that passes wait for ZeRO traffic between layers of the body.

    Given the sums over layers, of which those that begin a chunk have none below, and the next
    ones only one.
    """
    return max(0.0, two - chunks * most_two) + max(0.0, three - 2.0 * chunks * most_three)


@leaf
def gathers(schedule):
    """Whether passes are priced behind each other, each with what it gathers (ZeRO-3)."""
    return schedule in (INTERLEAVED, LOOPED_BFS)


@leaf
def forwards(schedule, p, v, m, group, s, d):
    """Micro-batches of chunk d whose forwards stage s runs before its first backward."""
    if schedule in (LOOPED_BFS, GPIPE):
        return m
    if schedule in (ZB_V, DUALPIPEV):
        return min(m, s + 1 if d else 2 * p - 1 - s)
    slope = 1 if split_of(schedule) else min(v, 2)
    return begun(d, min(m * v, warm_up(s, p, v, m, group, slope, 0) + 1), v, group)


@leaf
def next_layout(t, a, w, k, number, top):
    """First layout of pipeline k from one on that may fit and take less than ``top``, or its last.

    Three stages say so, those of ``Pipelines.seen``; at first of blocks of layouts, from the least
    of each sum. The heaviest stage of a block may be any: the last one runs the fewest forwards of
    each chunk before its first backward, on a V the first one of the second chunk.
    """
    p, v, m, N, kinds = a.pp[k], a.vpp[k], t.micro_batches, len(a.order), w.least.shape[1]
    schedule, group, some = a.schedule[k], a.group[k], w.question[FIRST]
    together, split, near = schedule == COMBINED, split_of(schedule), w.near[p - 1]
    loops, behind_each_other = schedule == INTERLEAVED or (together and p > 1), gathers(schedule)
    each = w.layer[0] - (w.layer[2] if together else 0.0)
    block, x, seen, row = True, 0, a.least_seen, number // BLOCK
    w.tally[4] = 0
    while number < a.last[k]:
        load, extra = a.load[number], 0.0
        if x == 0:
            if some > 0:  # fewest of them are first layers of chunks as long as any
                most = a.longest[k]
                extra = w.layer[1] * (
                    load // most * min(some, most) + min(some, load % most))
            if m * (load * each + extra) >= top:
                return a.last[k]
            if seen.shape[1] == 0:
                w.tally[4] = 1
                return number
            if block:
                extra = 0.0
        s = 0 if x == 1 else p - 1
        if x == 0 and not block:
            s = a.heaviest[number]
        first = inner = forwards(schedule, p, v, m, group, s, 0)
        if v > 2:
            inner = forwards(schedule, p, v, m, group, s, 1)
        last = forwards(schedule, p, v, m, group, 0 if x == 0 and block and (
            schedule in (ZB_V, DUALPIPEV)) else s, v - 1)
        own = front = after = behind = left = ran = held = room = 0.0
        marked = saved = two = three = late = queue = 0.0
        for kind in range(kinds):
            end = seen[row, x, S_LAST, kind]
            all_in = seen[row, x, S_REST, kind] + end
            ahead, back = w.least[AHEAD, kind], w.least[BACK, kind]
            kept = (inner * (all_in - end) + (first - inner) * seen[row, x, S_FIRST, kind]
                    + last * end)
            own += all_in * (ahead + back)
            front += seen[row, x, S_FRONT, kind] * ahead
            after += seen[row, x, S_FRONT, kind] * back
            behind += seen[row, x, S_BEHIND, kind] * (w.least[INPUTS, kind] if split else back)
            left += all_in * w.least[LEFT, kind]
            ran += kept * ahead
            held += all_in * w.least[HELD, kind] + kept * w.least[KEPT, kind]
            if all_in > 0.0:
                room = max(room, w.least[ROOM, kind])
            if w.marked[kind]:
                marked += kept
            two += all_in * w.waits[0, kind]
            three += all_in * w.waits[1, kind]
            late += kept * max(w.waits[1, kind], w.waits[2, kind])
            if behind_each_other:
                queue += all_in * (w.waits[2, kind] + w.waits[3, kind])
            if together:
                saved += w.saved[kind] * (m * all_in - kept)
        if some > 0:  # the other layers keep all
            count = first + last + (v - 2) * inner if v > 1 else first
            held += max(0.0, marked - some * count) * w.layer[3]
        if some >= 0:
            held += room
        before = 0.0 if block else w.near[s]
        front += before / 2 - (w.layer[6] if behind_each_other else 0.0)
        if loops and not block:
            front = max(front, w.ahead[N] + v * near / 2 + behind + (near - before) / 2
                        - (w.saved[-1] if together else 0.0) - ran - late - w.layer[7])
        elif split and not block:
            front = max(front, w.ahead[N] + behind - ran)
        if not split:
            left = max(after + before / 2, left)
        own += extra + max(waits_of(two, three, v, w.layer[4], w.layer[5]), queue)
        if held > t.limit_bytes / SLACK or front + m * own - saved + left >= top * SLACK:
            number = (row + 1) * BLOCK if block else number + 1
        else:
            x += 1
            if x < seen.shape[1]:
                continue
            if not block:
                return number
            block, x, seen, row, w.tally[4] = False, 0, a.seen, number, 1
            continue
        block, x = number % BLOCK == 0, 0
        seen, row = a.seen, number
        if block:
            seen, row = a.least_seen, number // BLOCK
    return a.last[k]
