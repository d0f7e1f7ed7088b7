"""The step seconds of one pipeline, whose cuts are known: by its passes, or in closed form."""

from __future__ import annotations

from nest._kernels import form, leaf
from nest._kernels.labels import SLACK
from nest._kernels.orders import (
    CLOSED,
    CROSSED,
    FOLDED,
    GROUPED,
    LISTED,
    copies_of,
    is_all_forward,
    is_in,
    is_looped,
    split_of,
    together_of,
)
from nest._kernels.uniform.bound import count_pairs, of_pairs
from nest._kernels.uniform.stages import LEAST, figures_in_parts, figures_of, position_of
from nest._kernels.uniform.work import UniformWork
from nest.records import Floats2, Pipe
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules import gpipe, one_f_one_b, orders, passes
from nest.schedules.passes import Order

few_of = form(orders.few)
add_stage, stage_of = form(one_f_one_b.add_stage), form(one_f_one_b.stage_of)
add_gpipe_stage, gpipe_stage_of = form(gpipe.add_stage), form(gpipe.stage_of)


@leaf
def few_in(pipe: Pipe, m: int) -> int:
    """Micro-batches of the first groups and the last ones of a pipeline; m where all count."""
    if pipe.pp > 1 and is_in(pipe.schedule, GROUPED):
        return few_of(pipe.pp, m, pipe.group)
    return m


@leaf
def take_order(pipelines: Pipelines, k: int, p: int, count: int, order: Order) -> None:
    """The order that pipeline k is given, of ``count`` passes a rank."""
    for i in range(p * count):
        order.codes[i] = pipelines.given[pipelines.given_from[k] + i]
    for s in range(p + 1):
        order.rows[s] = s * count


@leaf
def passes_of(pipelines: Pipelines, work: UniformWork, k: int, m: int, few: int) -> Order:
    """Passes of the first and the last ``few`` of m micro-batches in pipeline k."""
    pipe, now, all_count = pipelines.pipe[k], work.now[0], few >= m
    order = work.order if all_count else work.few
    if (now.order_of if all_count else now.few_of) != k + 1:
        if all_count:
            now.order_of = k + 1
        else:
            now.few_of = k + 1
        work.write_order(pipe.schedule, pipe.pp, pipe.vpp, few, pipe.group, (m - few) // pipe.group,
                      order)
        if is_in(pipe.schedule, LISTED):
            take_order(pipelines, k, pipe.pp, 3 * pipe.vpp * m, order)
    return order


@leaf
def price(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, top: float,
) -> float:
    """Price ``work.cuts``; keep them if they take less than ``top`` seconds, which are returned."""
    now, answer = work.now[0], work.answer[work.now[0].pipeline]
    if now.first == LEAST:
        return 0.0
    pipe = pipelines.pipe[now.pipeline]
    _fill_costs(degrees, places, pipelines, work, pipe)
    if not is_in(pipe.schedule, CLOSED):
        time = _by_passes(degrees, pipelines, work, now.pipeline, top)
    else:
        now.priced += 1
        time = _in_closed_form(work, pipe.pp, degrees.micro_batches, is_all_forward(pipe.schedule))
    if time >= top * SLACK:
        return top
    answer.best, answer.option = time, now.option
    for n in range(pipe.pp * pipe.vpp // copies_of(pipe.schedule) + 1):
        work.found[now.pipeline, n] = work.cuts[n]
    return time


@leaf
def _fill_costs(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, pipe: Pipe,
) -> None:
    """Fill in the figures of each chunk, and of what it hands over."""
    c, x = work.now[0].candidate, places.size[work.now[0].candidate]
    apart = split_of(pipe.schedule) or together_of(pipe.schedule)
    folded, crossed = is_in(pipe.schedule, FOLDED), is_in(pipe.schedule, CROSSED)
    for s in range(pipe.pp):
        y = places.place[pipe.row, x, s]
        for d in range(pipe.vpp):
            n = position_of(pipe, s, d)
            i, j, link, none = work.cuts[n], work.cuts[n + 1], places.wrap[x, pipe.pp], False
            if (d and folded) or (crossed and n != s):  # back along a V, or from the other end
                link = places.hop[x, s]
            elif s < pipe.pp - 1:
                link = places.hop[x, s + 1]
            else:
                none = folded or crossed  # its own second chunk, or nothing
            if apart:
                work.costs[s, d] = figures_in_parts(degrees, places, pipelines, work, y, i, j)
            else:
                work.costs[s, d] = figures_of(degrees, places, pipelines, work, y, i, j)
            gap = 0.0 if none else places.handed[j] / degrees.candidate[c].shards * link.per_byte
            work.hops[s, d, 0] = 0.0 if none else places.both * (gap + link.latency)
            work.hops[s, d, 1] = gap


@leaf
def _by_passes(
    degrees: Degrees, pipelines: Pipelines, work: UniformWork, k: int, top: float,
) -> float:
    """Step seconds by the passes of pipeline k; where these are ``top`` or more, no less."""
    pipe, now, copies = pipelines.pipe[k], work.now[0], copies_of(pipelines.pipe[k].schedule)
    p, v, m = pipe.pp, pipe.vpp, degrees.micro_batches // copies
    few, depth = few_in(pipe, m), p * v // copies
    order = passes_of(pipelines, work, k, m, few)
    if together_of(pipe.schedule) and is_looped(pipe.schedule) and p > 1:
        if now.pairs_of != k + 1:
            now.pairs_of = k + 1
            count_pairs(p, v, order, work.pairs)
        if of_pairs(work, p, v) >= top * SLACK:
            return top
    now.priced += 1
    time = work.longest_path(work.costs, work.hops, p, v, few, depth, order, work.room, top)
    if few < m and time < top and work.room.unsure[0] > passes.SURE * time:
        time = work.longest_path(
            work.costs, work.hops, p, v, m, depth, passes_of(pipelines, work, k, m, m), work.room,
            top)
    return time


@leaf
def _in_closed_form(work: UniformWork, p: int, m: int, all_forward: bool) -> float:
    """Step seconds of stages of one chunk, under 1F1B or GPipe."""
    begin(work.label[1], all_forward)
    for n in range(p):
        s, old, new = p - 1 - n, work.label[(n + 1) % 2], work.label[n % 2]
        both = work.hops[s, 0, 0] if n else 0.0
        gap = work.hops[s, 0, 1] if n else 0.0
        if all_forward:
            add_gpipe_stage(old, gpipe_stage_of(work.costs[s, 0]), both, gap, n, m, new)
        else:
            add_stage(old, stage_of(work.costs[s, 0]), both, gap, n, m, m // 2, new)
    return work.label[(p - 1) % 2, one_f_one_b.END]


@leaf
def begin(label: Floats2, all_forward: bool) -> None:
    """Fill in what is behind the last stage."""
    for x in range(one_f_one_b.FIGURES):
        label[x] = 0.0
    if all_forward:
        for x in range(gpipe.FIGURES):
            label[x] = gpipe.NOTHING[x]
    else:
        for x in range(one_f_one_b.FIGURES):
            label[x] = one_f_one_b.NOTHING[x]
