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
# buffers.
AHEAD, BACK, INPUTS, LEFT, HELD, KEPT, MORE, ROOM = range(8)
LEASTS = 8
# Layers by kind of ``Pipelines.seen``.
S_REST, S_FIRST, S_LAST, S_FRONT, S_BEHIND = range(5)


@leaf
def split_of(schedule):
    """Whether backwards are in two parts."""
    return ZB1P <= schedule <= DUALPIPEV


@leaf
def of_body(a, w, k, layers):
    """Least seconds of a micro-batch of so many layers of the body in one stage of pipeline k."""
    some, most = w.question[FIRST], a.longest[k]
    if a.schedule[k] == COMBINED:
        return layers * (w.layer[0] - w.layer[2])
    if some < 1:
        return layers * w.layer[0]
    # Fewest of them are first layers of chunks as long as any.
    again = layers // most * min(some, most) + min(some, layers % most)
    return layers * w.layer[0] + again * w.layer[1]


@leaf
def forwards(t, a, k, s, d):
    """Micro-batches of chunk d whose forwards stage s runs before its first backward."""
    p, v, m, schedule = a.pp[k], a.vpp[k], t.micro_batches, a.schedule[k]
    if schedule in (LOOPED_BFS, GPIPE):
        return m
    if schedule in (ZB_V, DUALPIPEV):
        return min(m, s + 1 if d else 2 * p - 1 - s)
    slope = 1 if split_of(schedule) else min(v, 2)
    run = min(m * v, warm_up(s, p, v, m, a.group[k], slope, 0) + 1)
    return begun(d, run, v, m, a.group[k])


@leaf
def layout_may_be_below(t, a, w, k, number, top):
    """Whether the three stages of ``Pipelines.seen`` allow less than ``top``, and fit."""
    p = a.pp[k]
    for x in range(a.seen.shape[1]):
        s = a.heaviest[number] if x == 0 else (x - 1) * (p - 1)
        extra = 0.0
        if x == 0:
            extra = of_body(a, w, k, a.load[number]) - a.load[number] * w.layer[0]
        if not _stage_may_be_below(t, a, w, k, a.seen, number, x, s, s, extra, top, True):
            return False
    return True


@leaf
def some_may_be_below(t, a, w, k, number, top):
    """:func:`layout_may_be_below` for all layouts of a block at once, from the least of each sum.

    The heaviest stage may be any: the last runs the fewest forwards of each chunk before its first
    backward, on a V the first of the second chunk.
    """
    p = a.pp[k]
    for x in range(a.seen.shape[1]):
        s = 0 if x == 1 else p - 1
        last = 0 if x == 0 and a.schedule[k] in (ZB_V, DUALPIPEV) else s
        if not _stage_may_be_below(
                t, a, w, k, a.least_seen, number // BLOCK, x, s, last, 0.0, top, False):
            return False
    return True


@leaf
def _stage_may_be_below(t, a, w, k, seen, row, x, s, s_last, extra, top, waits):
    """Whether a stage with such sums of layers allows less than ``top`` seconds, and fits.

    It is stage s, of whose last chunk as many forwards come first as on stage ``s_last``. ``extra``
    seconds of a micro-batch come on top. Without ``waits`` the first backward waits for nothing,
    and any other stage may be meant that runs no fewer forwards.
    """
    p, v, m = a.pp[k], a.vpp[k], t.micro_batches
    together, split, some = a.schedule[k] == COMBINED, split_of(a.schedule[k]), w.question[FIRST]
    loops = a.schedule[k] == INTERLEAVED or (together and p > 1)
    first, last = forwards(t, a, k, s, 0), forwards(t, a, k, s_last, v - 1)
    inner = forwards(t, a, k, s, 1) if v > 2 else first
    own = front = after = behind = left = ran = held = room = marked = saved = 0.0
    more = w.layer[3]
    for kind in range(w.least.shape[1]):
        rest, end = seen[row, x, S_REST, kind], seen[row, x, S_LAST, kind]
        kept = inner * rest + (first - inner) * seen[row, x, S_FIRST, kind] + last * end
        ahead, back = w.least[AHEAD, kind], w.least[BACK, kind]
        own += (rest + end) * (ahead + back)
        front += seen[row, x, S_FRONT, kind] * ahead
        after += seen[row, x, S_FRONT, kind] * back
        behind += seen[row, x, S_BEHIND, kind] * (w.least[INPUTS, kind] if split else back)
        left += (rest + end) * w.least[LEFT, kind]
        ran += kept * ahead
        held += (rest + end) * w.least[HELD, kind] + kept * w.least[KEPT, kind]
        if rest + end > 0.0:
            room = max(room, w.least[ROOM, kind])
        if w.marked[kind]:
            marked += kept
        if together:
            saved += w.saved[kind] * (m * (rest + end) - kept)
    if some > 0:  # the other layers keep all
        count = first + last + (v - 2) * inner if v > 1 else first
        held += max(0.0, marked - some * count) * more
    if held + (room if some >= 0 else 0.0) > t.limit_bytes / SLACK:
        return False
    N, near = len(a.order), w.near[s] if waits else 0.0
    front += near / 2
    if waits and loops:
        front = max(front, w.ahead[N] + v * w.near[p - 1] / 2 + behind
                    + (w.near[p - 1] - near) / 2 - (w.saved[-1] if together else 0.0) - ran)
    elif waits and split:
        front = max(front, w.ahead[N] + behind - ran)
    after = left if split else max(after + near / 2, left)
    return front + m * (own + extra) - saved + after < top * SLACK
