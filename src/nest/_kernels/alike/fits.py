"""Whether a layout fits, and may take less than the best: it then has to be priced."""

from __future__ import annotations

from nest._kernels import form, piece
from nest._kernels.alike.chunks import fill_figures, fill_parts, position_of
from nest._kernels.alike.decided import note_bytes
from nest._kernels.alike.layouts import gathers, hidden_of
from nest._kernels.alike.price import few_in, passes_of
from nest._kernels.alike.trips import (
    R_FORWARD,
    R_HELD,
    R_LEFT,
    R_OWN,
    R_RAN,
    R_REDUCED,
    R_SENT,
    R_SPARED,
    group_of,
    last_group,
    note_end,
    note_traffic,
    of_trips,
)
from nest._kernels.alike.work import (
    CANDIDATE,
    F_ACTIVATIONS,
    F_BUFFERS,
    F_KEPT,
    F_LARGEST,
    F_RESIDENT,
    F_WORK,
    PIPELINE,
)
from nest._kernels.orders import (
    COMBINED,
    GPIPE,
    INTERLEAVED,
    LOOPED_BFS,
    copies_of,
    is_looped,
    split_of,
    together_of,
)
from nest._kernels.pipeline import SLACK
from nest.forms import orders, passes
from nest.forms.chunk import (
    C_BACKWARD,
    C_BUSY_BACKWARD,
    C_BUSY_FORWARD,
    C_EXCHANGED_BACKWARD,
    C_EXCHANGED_FORWARD,
    C_FORWARD,
    C_LARGEST,
    C_LATE,
    C_LEFT,
    C_LEFT_WEIGHTS,
    C_TIED,
    C_UNDER_FIRST,
    C_UNDER_LAST,
    C_UPDATE,
)

held, gathering = form(orders.held), form(passes.gathering)


@piece
def fits(t, q, a, w, number, top):
    """Whether a layout fits and may take less than ``top``; ``w.cuts`` gets its cuts."""
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    p, v, x, N, size = a.pp[k], a.vpp[k], q.size[c], len(a.order), a.group[k]
    together, split = together_of(a.schedule[k]), split_of(a.schedule[k])
    loops = a.schedule[k] == INTERLEAVED or (a.schedule[k] == COMBINED and p > 1)
    copies, looped = copies_of(a.schedule[k]), is_looped(a.schedule[k])
    m = t.micro_batches // copies
    group, rest = group_of(a.schedule[k], m, size), last_group(a.schedule[k], m, size)
    for n in range(p * v // copies + 1):
        w.cuts[n] = a.layouts[a.begin[number] + n]
    for s in range(p):
        y, resident, work, buffers = q.place[a.row[k], x, s], 0.0, 0.0, 0.0
        own = left = update = 0.0
        ran = kept = largest = hides = gathered = 0.0
        count = most = forward = sent = received = 0.0
        away = back_away = busy = back_busy = 0.0
        for d in range(v):
            n = position_of(a, k, s, d)
            g = fill_figures(t, q, a, w, y, w.cuts[n], w.cuts[n + 1])
            chunk = w.figures[y, g]
            resident += chunk[F_RESIDENT]
            work = max(work, chunk[F_WORK])
            buffers = max(buffers, chunk[F_BUFFERS])
            times = w.forwards[k, s, d]
            kept += times * chunk[F_ACTIVATIONS]
            ran += times * chunk[C_FORWARD]
            w.activations[s, d] = chunk[F_ACTIVATIONS]
            count, most = count + times, max(most, w.activations[s, d])
            own += chunk[C_FORWARD] + chunk[C_BACKWARD]
            own -= chunk[C_LATE]
            if split or together:
                fill_parts(t, q, a, w, y, w.cuts[n], w.cuts[n + 1], g)
                w.kept_back[s, d] = chunk[F_KEPT]
                most = max(most, w.kept_back[s, d])
                largest = max(largest, chunk[F_LARGEST])
                if copies > 1:  # of both chunks as many as of the one with the fewest
                    times = w.forwards[k, s, 1]
                pairs = max(0, m - times)
                backs = m if loops and m % size else pairs  # as in ``next_layout``
                away += pairs * chunk[C_EXCHANGED_FORWARD]
                busy += pairs * chunk[C_BUSY_FORWARD]
                back_away += backs * chunk[C_EXCHANGED_BACKWARD]
                back_busy += backs * chunk[C_BUSY_BACKWARD]
            update += chunk[C_UPDATE] + chunk[C_TIED]
            forward += chunk[C_FORWARD]
            sent += q.handed[w.cuts[n + 1]]
            received += q.received[w.cuts[n]] + q.received[w.cuts[n + 1]]
            if looped:
                note_traffic(w, s, d, group, rest, y, g)
            if looped and (d == 0 or d == v - 1):
                note_end(q, w, s, d, w.cuts[n + 1], y, g, split)
            if d == 0 and not split:
                left = chunk[C_LEFT]
            elif d == 0 and looped:  # the last pass is for weights of the first chunk
                left = chunk[C_LEFT_WEIGHTS]
            hides = max(hides, chunk[C_UNDER_FIRST], chunk[C_UNDER_LAST])
            gathered = max(gathered, chunk[C_LARGEST])
        left += update
        i, j = w.cuts[position_of(a, k, s, 0)], w.cuts[position_of(a, k, s, v - 1) + 1]
        spared = late = 0.0
        some = False
        for d in range(v if gathered > 0.0 and gathers(a.schedule[k]) else 0):
            # What is gathered of a chunk is partly hidden at the most, but for the first pass and
            # for the first backward through layers, which may have waited.
            n = position_of(a, k, s, d)
            if w.cuts[n] == w.cuts[n + 1]:
                continue
            chunk = w.figures[y, a.signature[w.cuts[n], w.cuts[n + 1]]]
            wait, late = gathering(chunk, 0, hides), gathering(chunk, 1, hides)
            own += wait + late
            ran += w.forwards[k, s, d] * wait
            if not some:
                spared, some = wait, True
        ran += late
        first = w.ahead[i] + w.near[s] / 2 - spared
        after = left if split else max(w.back[i] + w.near[s] / 2, left)
        w.room_left[s] = t.limit_bytes - resident - work - buffers
        w.room_left[s] -= received / copies / t.shards[c]
        if loops:
            there = w.ahead[N] + v * w.near[p - 1] / 2
            back = w.back[N] - w.back[j] + (w.near[p - 1] - w.near[s]) / 2
            first = max(first, there + back - ran)
        elif split:  # the first backward for inputs waits for those of all stages behind
            first = max(first, w.ahead[N] + w.inputs[N] - w.inputs[j] - ran)
        if together:
            own -= hidden_of(away, back_away, busy, back_busy) / m
            if copies > 1 or w.forwards[k, s, v - 1] < m:
                w.room_left[s] -= largest
        if first + m * own + after >= top * SLACK:
            return False
        if kept > w.room_left[s]:
            note_bytes(w)
            return False
        w.ranks[s, R_OWN], w.ranks[s, R_RAN], w.ranks[s, R_SPARED] = m * own, ran, spared
        w.ranks[s, R_LEFT], w.ranks[s, R_FORWARD], w.ranks[s, R_SENT] = left, forward, sent
        if split or gathered > 0.0:
            w.ranks[s, R_REDUCED] = 0.0
        w.ranks[s, R_REDUCED] += update
        # A backward frees what a forward took; that for weights comes s backwards later.
        w.ranks[s, R_HELD] = (count + (s if split else 0)) * most
    if looped and of_trips(t, q, a, w, c, k) >= top * SLACK:
        return False
    if GPIPE < a.schedule[k] < LOOPED_BFS:
        # Between the first groups and the last ones a rank holds the same in turn.
        order = passes_of(a, w, k, m, few_in(a, k, m))
        for s in range(p):
            if looped and w.ranks[s, R_HELD] <= w.room_left[s]:
                continue
            kept_back, most = w.kept_back[s] if split else w.activations[s], w.room_left[s]
            if held(w.activations[s], kept_back, s, order, most) > most:
                note_bytes(w)
                return False
    return True
