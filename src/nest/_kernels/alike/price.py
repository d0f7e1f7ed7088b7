"""The step seconds of one pipeline, whose cuts are known: by its passes, or in closed form."""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.alike.chunks import fill_figures, fill_parts, position_of
from nest._kernels.alike.trips import count_pairs, of_pairs
from nest._kernels.alike.work import CANDIDATE, FIRST, LEAST, OPTION, PIPELINE
from nest._kernels.orders import (
    COMBINED,
    DUALPIPE,
    DUALPIPEV,
    GPIPE,
    INTERLEAVED,
    INTERLEAVED_ZB,
    ZB1P,
    ZB_V,
    copies_of,
    split_of,
    together_of,
)
from nest._kernels.pipeline import SLACK
from nest.forms import gpipe, one_f_one_b, orders, passes
from nest.forms.chunk import CHUNK

few_of = form(orders.few)
add_stage, stage_of = form(one_f_one_b.add_stage), form(one_f_one_b.stage_of)
add_gpipe_stage, gpipe_stage_of = form(gpipe.add_stage), form(gpipe.stage_of)


@leaf
def few_in(a, k, m):
    """Micro-batches of the first groups and the last ones of pipeline k; m where all count."""
    schedule, p, size = a.schedule[k], a.pp[k], a.group[k]
    if p > 1 and schedule in (INTERLEAVED, COMBINED, ZB1P, INTERLEAVED_ZB):
        return few_of(p, m, size)
    return m


@leaf
def passes_of(a, w, k, m, few):
    """Passes of the first and the last ``few`` of m micro-batches in pipeline k."""
    order = w.few if few < m else w.order
    x = 3 if few < m else 2
    if w.tally[x] != k + 1:
        w.tally[x] = k + 1
        w.write_order(a.schedule[k], a.pp[k], a.vpp[k], few, a.group[k],
                      (m - few) // a.group[k], order)
    return order


@leaf
def price(t, q, a, w, top):
    """Price ``w.cuts`` and keep them if they take less than ``top`` seconds: those or ``top``."""
    if w.question[FIRST] == LEAST:
        return 0.0
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    p, v, x = a.pp[k], a.vpp[k], q.size[c]
    apart = split_of(a.schedule[k]) or together_of(a.schedule[k])
    folded = a.schedule[k] == ZB_V or a.schedule[k] == DUALPIPEV
    crossed, copies = a.schedule[k] == DUALPIPE, copies_of(a.schedule[k])
    for s in range(p):
        y = q.place[a.row[k], x, s]
        for d in range(v):
            n = position_of(a, k, s, d)
            i, j = w.cuts[n], w.cuts[n + 1]
            per_byte, latency = q.wrap[0, x, p], q.wrap[1, x, p]
            if (d and folded) or (crossed and n != s):  # back along a V, or from the other end
                per_byte, latency = q.hop[0, x, s], q.hop[1, x, s]
            elif s < p - 1:
                per_byte, latency = q.hop[0, x, s + 1], q.hop[1, x, s + 1]
            elif folded or crossed:
                per_byte = latency = 0.0  # its own second chunk, or nothing
            g = fill_figures(t, q, a, w, y, i, j)
            if apart:
                fill_parts(t, q, a, w, y, i, j, g)
            for f in range(CHUNK):
                w.costs[s, d, f] = w.figures[y, g, f]
            gap = q.handed[j] / t.shards[c] * per_byte
            w.hops[s, d, 0], w.hops[s, d, 1] = q.both * (gap + latency), gap
            w.alone[s, d] = j - i <= 1
    if a.schedule[k] > GPIPE:
        m, depth = t.micro_batches // copies, p * v // copies
        few = few_in(a, k, m)
        order = passes_of(a, w, k, m, few)
        if a.schedule[k] == COMBINED and p > 1:
            if w.tally[5] != k + 1:
                w.tally[5] = k + 1
                count_pairs(p, v, order, w.pairs)
            if of_pairs(w, p, v) >= top * SLACK:
                return top
        w.tally[1] += 1
        time = w.longest_path(w.costs, w.alone, w.hops, p, v, few, depth, order, w.room, top)
        if few < m and time < top and w.room.unsure[0] > passes.SURE * time:
            time = w.longest_path(w.costs, w.alone, w.hops, p, v, m, depth,
                                  passes_of(a, w, k, m, m), w.room, top)
    else:
        w.tally[1] += 1
        time = _in_closed_form(w, p, t.micro_batches, a.schedule[k] == GPIPE)
    if time >= top * SLACK:
        return top
    w.best[k], w.option[k] = time, w.question[OPTION]
    for n in range(p * v // copies + 1):
        w.found[k, n] = w.cuts[n]
    return time


@leaf
def _in_closed_form(w, p, m, all_forward):
    """Step seconds of stages of one chunk, under 1F1B or GPipe."""
    for x in range(one_f_one_b.FIGURES):
        w.label[1, x] = 0.0
    if all_forward:
        for x in range(gpipe.FIGURES):
            w.label[1, x] = gpipe.NOTHING[x]
    else:
        for x in range(one_f_one_b.FIGURES):
            w.label[1, x] = one_f_one_b.NOTHING[x]
    for n in range(p):
        s, old, new = p - 1 - n, w.label[(n + 1) % 2], w.label[n % 2]
        both = w.hops[s, 0, 0] if n else 0.0
        gap = w.hops[s, 0, 1] if n else 0.0
        if all_forward:
            add_gpipe_stage(old, gpipe_stage_of(w.costs[s, 0]), both, gap, n, m, new)
        else:
            add_stage(old, stage_of(w.costs[s, 0]), both, gap, n, m, m // 2, new)
    return w.label[(p - 1) % 2, one_f_one_b.END]
