"""The step seconds of one pipeline, whose cuts are known: by its passes, or in closed form."""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.orders import (
    CLOSED,
    CROSSED,
    FOLDED,
    GROUPED,
    copies_of,
    is_all_forward,
    is_in,
    is_looped,
    split_of,
    together_of,
)
from nest._kernels.pipeline import SLACK
from nest._kernels.uniform.chunks import LEAST, figures_in_parts, figures_of, position_of
from nest._kernels.uniform.trips import count_pairs, of_pairs
from nest.schedules import gpipe, one_f_one_b, orders, passes

few_of = form(orders.few)
add_stage, stage_of = form(one_f_one_b.add_stage), form(one_f_one_b.stage_of)
add_gpipe_stage, gpipe_stage_of = form(gpipe.add_stage), form(gpipe.stage_of)


@leaf
def few_in(pipe, m):
    """Micro-batches of the first groups and the last ones of a pipeline; m where all count."""
    if pipe.pp > 1 and is_in(pipe.schedule, GROUPED):
        return few_of(pipe.pp, m, pipe.group)
    return m


@leaf
def passes_of(a, w, k, m, few):
    """Passes of the first and the last ``few`` of m micro-batches in pipeline k."""
    pipe, now, all_count = a.pipe[k], w.now[0], few >= m
    order = w.order if all_count else w.few
    if (now.order_of if all_count else now.few_of) != k + 1:
        if all_count:
            now.order_of = k + 1
        else:
            now.few_of = k + 1
        w.write_order(pipe.schedule, pipe.pp, pipe.vpp, few, pipe.group, (m - few) // pipe.group,
                      order)
    return order


@leaf
def price(t, q, a, w, top):
    """Price ``w.cuts`` and keep them if they take less than ``top`` seconds: those or ``top``."""
    now, answer = w.now[0], w.answer[w.now[0].pipeline]
    if now.first == LEAST:
        return 0.0
    pipe = a.pipe[now.pipeline]
    _fill_costs(t, q, a, w, pipe)
    if not is_in(pipe.schedule, CLOSED):
        time = _by_passes(t, a, w, now.pipeline, top)
    else:
        now.priced += 1
        time = _in_closed_form(w, pipe.pp, t.micro_batches, is_all_forward(pipe.schedule))
    if time >= top * SLACK:
        return top
    answer.best, answer.option = time, now.option
    for n in range(pipe.pp * pipe.vpp // copies_of(pipe.schedule) + 1):
        w.found[now.pipeline, n] = w.cuts[n]
    return time


@leaf
def _fill_costs(t, q, a, w, pipe):
    """Fill in the figures of each chunk, and of what it hands over."""
    c, x = w.now[0].candidate, q.size[w.now[0].candidate]
    apart = split_of(pipe.schedule) or together_of(pipe.schedule)
    folded, crossed = is_in(pipe.schedule, FOLDED), is_in(pipe.schedule, CROSSED)
    for s in range(pipe.pp):
        y = q.place[pipe.row, x, s]
        for d in range(pipe.vpp):
            n = position_of(pipe, s, d)
            i, j, link, none = w.cuts[n], w.cuts[n + 1], q.wrap[x, pipe.pp], False
            if (d and folded) or (crossed and n != s):  # back along a V, or from the other end
                link = q.hop[x, s]
            elif s < pipe.pp - 1:
                link = q.hop[x, s + 1]
            else:
                none = folded or crossed  # its own second chunk, or nothing
            if apart:
                w.costs[s, d] = figures_in_parts(t, q, a, w, y, i, j)
            else:
                w.costs[s, d] = figures_of(t, q, a, w, y, i, j)
            gap = 0.0 if none else q.handed[j] / t.candidate[c].shards * link.per_byte
            w.hops[s, d, 0] = 0.0 if none else q.both * (gap + link.latency)
            w.hops[s, d, 1] = gap


@leaf
def _by_passes(t, a, w, k, top):
    """Step seconds by the passes of pipeline k; where these are ``top`` or more, no less."""
    pipe, now, copies = a.pipe[k], w.now[0], copies_of(a.pipe[k].schedule)
    p, v, m = pipe.pp, pipe.vpp, t.micro_batches // copies
    few, depth = few_in(pipe, m), p * v // copies
    order = passes_of(a, w, k, m, few)
    if together_of(pipe.schedule) and is_looped(pipe.schedule) and p > 1:
        if now.pairs_of != k + 1:
            now.pairs_of = k + 1
            count_pairs(p, v, order, w.pairs)
        if of_pairs(w, p, v) >= top * SLACK:
            return top
    now.priced += 1
    time = w.longest_path(w.costs, w.hops, p, v, few, depth, order, w.room, top)
    if few < m and time < top and w.room.unsure[0] > passes.SURE * time:
        time = w.longest_path(
            w.costs, w.hops, p, v, m, depth, passes_of(a, w, k, m, m), w.room, top)
    return time


@leaf
def _in_closed_form(w, p, m, all_forward):
    """Step seconds of stages of one chunk, under 1F1B or GPipe."""
    begin(w.label[1], all_forward)
    for n in range(p):
        s, old, new = p - 1 - n, w.label[(n + 1) % 2], w.label[n % 2]
        both = w.hops[s, 0, 0] if n else 0.0
        gap = w.hops[s, 0, 1] if n else 0.0
        if all_forward:
            add_gpipe_stage(old, gpipe_stage_of(w.costs[s, 0]), both, gap, n, m, new)
        else:
            add_stage(old, stage_of(w.costs[s, 0]), both, gap, n, m, m // 2, new)
    return w.label[(p - 1) % 2, one_f_one_b.END]


@leaf
def begin(label, all_forward):
    """Fill in what is behind the last stage."""
    for x in range(one_f_one_b.FIGURES):
        label[x] = 0.0
    if all_forward:
        for x in range(gpipe.FIGURES):
            label[x] = gpipe.NOTHING[x]
    else:
        for x in range(one_f_one_b.FIGURES):
            label[x] = one_f_one_b.NOTHING[x]
