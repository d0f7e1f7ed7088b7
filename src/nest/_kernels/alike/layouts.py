"""Which layouts of a pipeline are worth a look, from layers by kind of three of its stages.

Each bound is one of ``fits``, with the least that a layer of a kind takes.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.alike.decided import is_decided, note_bytes
from nest._kernels.alike.trips import group_of, last_group
from nest._kernels.alike.work import (
    AHEAD,
    BACK,
    FIRST,
    HELD,
    INPUTS,
    KEPT,
    LAYOUT,
    LEFT,
    REDUCE,
    REFRESH,
    ROOM,
    RUN,
)
from nest._kernels.orders import (
    COMBINED,
    DUALPIPE,
    DUALPIPEV,
    GPIPE,
    INTERLEAVED,
    LOOPED_BFS,
    ZB_V,
    copies_of,
    is_looped,
    split_of,
    together_of,
)
from nest._kernels.pipeline import SLACK
from nest.forms import orders

begun, warm_up = form(orders.begun), form(orders.warm_up)

# Layers by kind of ``Pipelines.seen``.
S_REST, S_FIRST, S_LAST, S_FRONT, S_BEHIND = range(5)


@leaf
def hidden_of(away, back_away, busy, back_busy):
    """Most seconds that passes beside each other hide, forwards beside backwards.

    Given the sums over all of them of their all-to-alls, and of what hides those of the others.
    """
    return min(away, back_busy) + min(back_away, busy)


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
    if schedule == ZB_V:
        return min(m, s + 1 if d else 2 * p - 1 - s)
    if schedule in (DUALPIPEV, DUALPIPE):
        if schedule == DUALPIPE:  # its ranks count from the nearer end
            p, s = p // 2, min(s, p - 1 - s)
        return s + 1 if d else 2 * p - 1 - s + (s == p - 1)
    slope = 1 if split_of(schedule) else min(v, 2)
    return begun(d, min(m * v, warm_up(s, p, v, m, group, slope, 0) + 1), v, group)


@leaf
def ends_of(schedule, w):
    """Least seconds before the first pass of all and behind the last one of any rank."""
    if not is_looped(schedule):
        return 0.0
    return w.layer[10] + (0.0 if split_of(schedule) else w.layer[11])


@leaf
def has_room(t, a, w, k, top):
    """Whether the stages of pipeline k, each with as many layers of the body as stay below ``top``
    and fit, have all of them.

    Each layer takes and holds the least that any does, and lies in the chunks that hold the fewest
    micro-batches.
    """
    p, v, times, copies = a.pp[k], a.vpp[k], w.forwards[k], copies_of(a.schedule[k])
    m = t.micro_batches // copies
    if times[0, 0] == 0:
        for s in range(p):
            for d in range(v):
                times[s, d] = forwards(a.schedule[k], p, v, m, a.group[k], s, d)
    left, bytes_each = copies * (a.body[1] - a.body[0]), t.limit_bytes / SLACK
    top -= ends_of(a.schedule[k], w)
    each = w.layer[0] - (w.layer[2] if together_of(a.schedule[k]) else 0.0)
    most = left if m * each * left < top else int(top / (m * each))
    for s in range(p - 1, -1, -1):
        room, taken = bytes_each, 0
        for x in range(2, -1, -1):
            chunks = v - 2 if x == 1 else 1
            if chunks > 0 and (x == 2 or v > 1):
                own = w.layer[8] + times[s, v - 1 if x == 2 else x] * w.layer[9]
                fit = min(chunks * a.widest[k], left)
                if own * fit > room:
                    fit = int(room / own)
                room, taken = room - own * fit, taken + fit
        left -= min(taken, most)
        if left <= 0:
            return True
    return False


@leaf
def next_layout(t, q, a, w, k, number, top):
    """First layout of pipeline k from one on that may fit and take less than ``top``, or its last.

    Three stages say so, those of ``Pipelines.seen``; at first of runs of layouts whose heaviest
    stage is the same, from the least of each sum.
    """
    p, v, N, kinds = a.pp[k], a.vpp[k], len(a.order), w.least.shape[1]
    schedule, group, some, times = a.schedule[k], a.group[k], w.question[FIRST], w.forwards[k]
    m, together = t.micro_batches // copies_of(schedule), together_of(schedule)
    split, near, behind_each_other = split_of(schedule), w.near[p - 1], gathers(schedule)
    loops = schedule == INTERLEAVED or (schedule == COMBINED and p > 1)
    each = w.layer[0] - (w.layer[2] if together else 0.0)
    looped, reduces = is_looped(schedule), not split and w.layer[12] == 0.0
    begin = w.layer[10] if looped else 0.0  # before the first pass of all
    ends = ends_of(schedule, w)
    turn, rest = group_of(schedule, m, group), last_group(schedule, m, group)
    uneven, before = loops and m % group > 0, w.begin[0, k] + 1 - a.run[a.first[k]]
    x, seen, row, run = 0, a.seen, number, a.run[number] if number < a.last[k] else -1
    block = before + run != w.mark[RUN]
    w.tally[4] = 0
    while number < a.last[k]:
        load, extra = a.load[number], 0.0
        if x == 0:
            if some > 0:  # fewest of them are first layers of chunks as long as any
                most = a.longest[k]
                again = load // most * min(some, most) + min(some, load % most)
                extra = w.layer[1] * max(0, again - q.marked_before[a.body[0]])
            if m * (load * each + extra) + ends >= top:
                return a.last[k]
            if a.seen.shape[1] == 0:
                w.tally[4] = 1
                return number
            if block:
                run = a.run[number]
                seen, row = a.least_seen, run
                if is_decided(w, RUN, before + run):
                    number = a.until[run]
                    continue
            elif is_decided(w, LAYOUT, w.begin[1, k] + number - a.first[k]):
                number = row = number + 1
                block = number == a.until[run]
                continue
        s = a.heaviest[number] if x == 0 else 0 if x == 1 else p - 1
        first, inner, last = times[s, 0], times[s, 1 if v > 2 else 0], times[s, v - 1]
        own = front = after = behind = left = ran = held = room = fresh = reduced = 0.0
        marked = two = three = late = queue = away = back_away = busy = back_busy = 0.0
        for kind in range(kinds):
            end = seen[row, x, S_LAST, kind]
            all_in = seen[row, x, S_REST, kind] + end
            ahead, back = w.least[AHEAD, kind], w.least[BACK, kind]
            front += seen[row, x, S_FRONT, kind] * ahead
            after += seen[row, x, S_FRONT, kind] * back
            behind += seen[row, x, S_BEHIND, kind] * (w.least[INPUTS, kind] if split else back)
            if all_in == 0:
                continue
            kept = (inner * (all_in - end) + (first - inner) * seen[row, x, S_FIRST, kind]
                    + last * end)
            own += all_in * (ahead + back)
            left += all_in * w.least[LEFT, kind]
            hides = t.overlaps[2] * w.free[0, kind]
            fresh += all_in * w.least[REFRESH, kind] - (turn * (all_in - end) + end) * hides
            hides = t.overlaps[1] * w.free[1, kind]
            reduced += all_in * w.least[REDUCE, kind] - (rest * (all_in - end) + end) * hides
            ran += kept * ahead
            held += all_in * w.least[HELD, kind] + kept * w.least[KEPT, kind]
            room = max(room, w.least[ROOM, kind])
            if w.marked[kind]:
                marked += kept
            two += all_in * w.waits[0, kind]
            three += all_in * w.waits[1, kind]
            late += kept * max(w.waits[1, kind], w.waits[2, kind])
            if behind_each_other:
                queue += all_in * (w.waits[2, kind] + w.waits[3, kind])
            if together:
                pairs = m * all_in - (kept if loops else min(first, last) * all_in)
                # In front of a smaller last group other chunks have the last backwards.
                backs = m * all_in if uneven else pairs
                away, busy = away + pairs * w.saved[0, kind], busy + pairs * w.saved[2, kind]
                back_away += backs * w.saved[1, kind]
                back_busy += backs * w.saved[3, kind]
        if some > 0:  # the other layers keep all
            count = first + last + (v - 2) * inner if v > 1 else first
            held += max(0.0, marked - some * count) * w.layer[3]
        if some >= 0:
            held += room
        front += begin + w.near[s] / 2 - (w.layer[6] if behind_each_other else 0.0)
        reduced += left
        if not split:
            left = max(after + w.near[s] / 2 + ends - begin, left)
        own += extra + max(waits_of(two, three, v, w.layer[4], w.layer[5]), queue)
        busy = m * own - hidden_of(away, back_away, busy, back_busy)
        out = front + busy + left >= top * SLACK
        if held > t.limit_bytes / SLACK and not out:
            out = True
            note_bytes(w)
        if not out and (x == 0 or not block):  # what the stage itself holds and has run is known
            if looped:
                front, left = max(front, fresh), max(left, reduced) if reduces else left
            if loops:
                there = begin + w.ahead[N] + v * near / 2
                front = max(front, there + behind + (near - w.near[s]) / 2
                            - ran - late - w.layer[7])
            elif split:
                front = max(front, begin + w.ahead[N] + behind - ran)
            out = front + busy + left >= top * SLACK
            if out:  # larger groups may wait for less
                w.tally[4] = 1
        if out:
            number = a.until[run] if block else number + 1
            block, x, seen, row = number == a.until[run], 0, a.seen, number
        elif x + 1 < a.seen.shape[1]:
            x += 1
        elif block:
            block, x, seen, row, w.tally[4] = False, 0, a.seen, number, 1
        else:
            return number
    return a.last[k]
