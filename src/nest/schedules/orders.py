"""The orders of passes of the published schedules, as rows of :class:`nest.schedules.passes.Order`.

A *placement* says where in the model the chunks of a rank are: ``looped`` around the pipeline,
``folded`` at its end (a V), or ``crossed``, with micro-batches from both ends. A row is written for
each rank. A chunk takes its micro-batches one after another, so that a row names chunks alone.

p ranks, v chunks a rank, m micro-batches.

=================  ==========  =====================================================================
function           placement   order
=================  ==========  =====================================================================
breadth_first      looped      GPipe (arXiv:1811.06965, section 2.3), of several chunks Looped BFS
                               (arXiv:2211.05953); PyTorch's ScheduleLoopedBFS
in_turn            looped      1F1B and interleaved 1F1B (arXiv:2104.04473, section 2.2), Megatron's
                               combined passes
zero_bubble        looped      ZB-H1 (arXiv:2401.10241, section 2.2), which is ZB1P; of several
                               chunks PyTorch's ScheduleInterleavedZeroBubble
zero_bubble_v      folded      ZB-V (arXiv:2405.15362) in the fixed order of PyTorch's
                               ScheduleZBVZeroBubble
dual_pipe          folded or   DualPipeV, PyTorch's ScheduleDualPipeV, and DualPipe
                   crossed     (arXiv:2412.19437, section 3.2.1)
=================  ==========  =====================================================================

PyTorch's classes are in torch 2.13, torch/distributed/pipelining/schedules.py; Megatron-Core's
order is that of 0.16.1, megatron/core/pipeline_parallel/schedules.py. Lines below are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from nest.schedules.passes import (
    BACKWARD,
    BESIDE,
    FORWARD,
    INPUTS,
    PASSES,
    WEIGHTS,
    Ints,
    Order,
)

# ---------------------------------------------------------------- placements


def looped(p: int, v: int, order: Order) -> None:
    """Chunk n of rank s at position n p + s, the last rank hands over to the first."""
    for n in range(v):
        for s in range(p):
            q = n * p + s
            order.at[s * v + n] = q
            order.ahead[q], order.back[q] = s, p + s


def folded(p: int, order: Order) -> None:
    """Two chunks a rank, at positions s and 2 p - 1 - s; the last rank goes on with its second.

    Links are those of neighbours, s from rank s to s + 1 and p + s back, whatever they carry.
    """
    for s in range(p):
        order.at[2 * s], order.at[2 * s + 1] = s, 2 * p - 1 - s
        order.ahead[s], order.back[s] = s, p + s
        # Behind position 2 p - 1 - s is rank s - 1; behind the last one, nothing.
        order.ahead[2 * p - 1 - s], order.back[2 * p - 1 - s] = p + s - 1, s - 1 if s else 0


def crossed(p: int, order: Order) -> None:
    """Two chunks a rank of two chains of p positions, of which one begins on the last rank.

    Both chains have the same layers, so that rank s holds those of positions s and p - 1 - s. Its
    chunk 0 is the one that is nearer to the begin of its chain. Links as in :func:`folded`.
    """
    for s in range(p):
        down, up = s, 2 * p - 1 - s
        near = 0 if 2 * s < p else 1
        order.at[2 * s + near], order.at[2 * s + 1 - near] = down, up
        order.ahead[down], order.back[down] = s, p + s
        order.ahead[up], order.back[up] = p + s - 1, s - 1 if s else 0


# ---------------------------------------------------------------- rows


def breadth_first(p: int, v: int, m: int, order: Order) -> None:
    """All micro-batches forward through a chunk, then through the next one; backward likewise."""
    i = 0
    for s in range(p):
        order.rows[s] = i
        for which in range(2):
            for n in range(v):
                for _ in range(m):
                    order.codes[i] = (v - 1 - n if which else n) * PASSES + which
                    i += 1
    order.rows[p] = i


def warm_up(s: int, p: int, v: int, m: int, group: int, slope: int, more: int) -> int:
    """Forwards that rank s runs before its first backward."""
    return min(m * v, slope * (p - s - 1) + (v - 1) * group + more)


def begun(d: int, count: int, v: int, group: int) -> int:
    """Forwards of chunk d among the first ``count`` of a rank whose micro-batches pass in groups.

    They reach no further than the first chunk of a last group that is smaller, which has as many
    micro-batches as stages: so do those before the first backward.
    """
    cycles, rest = count // (group * v), count % (group * v)
    return cycles * group + min(group, max(0, rest - d * group))


def in_turn(
    p: int, v: int, m: int, group: int, slope: int, more: int, order: Order
) -> None:
    """Some forwards, then a forward and a backward in turn, then the other backwards.

    ``group`` micro-batches pass a chunk, then the same ones the next chunk, and so on; the last
    group may be smaller (get_schedule_table, Megatron-Core, line 798; PyTorch's rounds are groups
    of m / (m // p)). The warm-up is ``(v - 1) group + slope (p - s - 1)`` forwards, with a slope of
    1 under 1F1B and of 2 if interleaved. ``more`` is 1 if each forward runs beside a backward,
    which then is of another micro-batch (get_pp_rank_microbatches, Megatron-Core, line 738).
    """
    total, ahead = m * v, BESIDE if more else FORWARD
    for s in range(p):
        warm = warm_up(s, p, v, m, group, slope, more)
        begin = 2 * s * total
        order.rows[s] = begin
        k = 0
        for first in range(0, m, group):
            size = min(group, m - first)
            for n in range(v):
                forward, backward = n * PASSES, (v - 1 - n) * PASSES + BACKWARD
                for _ in range(size):
                    if k < warm:
                        order.codes[begin + k] = forward
                    else:
                        order.codes[begin + 2 * k - warm] = forward + ahead
                    if k < total - warm:
                        order.codes[begin + warm + 2 * k + 1] = backward
                    else:
                        order.codes[begin + total + k] = backward
                    k += 1
    order.rows[p] = 2 * p * total


def chunk_of(k: int, v: int, m: int, group: int) -> int:
    """Chunk of the k-th forward of a rank."""
    whole = m // group * group
    return k // group % v if k < whole * v else (k - whole * v) // (m - whole)


def zero_bubble(p: int, v: int, m: int, group: int, order: Order) -> None:
    """As :func:`in_turn` with a slope of 1; rank s keeps s backwards for weights until the end.

    Backwards for inputs come in place of whole ones; that for weights of the k-th one comes behind
    the (k + s)-th one (_get_1f1b_rank_ops, PyTorch, line 2735). So every rank holds as many
    micro-batches as the first.
    """
    i, total = 0, m * v
    for s in range(p):
        warm = warm_up(s, p, v, m, group, 1, 0)
        order.rows[s] = i
        for k in range(total + warm):
            if k < total:
                order.codes[i] = chunk_of(k, v, m, group) * PASSES + FORWARD
                i += 1
            if k >= warm:
                order.codes[i] = (v - 1 - chunk_of(k - warm, v, m, group)) * PASSES + INPUTS
                i += 1
            if k >= warm + s:
                order.codes[i] = (v - 1 - chunk_of(k - warm - s, v, m, group)) * PASSES + WEIGHTS
                i += 1
        for k in range(max(0, total - s), total):
            order.codes[i] = (v - 1 - chunk_of(k, v, m, group)) * PASSES + WEIGHTS
            i += 1
    order.rows[p] = i


def few(p: int, m: int, group: int) -> int:
    """Micro-batches of the first groups and the last ones of m: so many that all between them run
    the same passes; m where these are all."""
    return min(m, 4 * max(group, p) + m % group)


def leave_out(p: int, v: int, m: int, group: int, count: int, order: Order) -> None:
    """Note that ``count`` groups are left out of the rows of :func:`in_turn` or
    :func:`zero_bubble`, which have m micro-batches, three groups or more.

    Rows are cut in front of a forward of the last group that is whole, and in front of that of the
    group before: between them and at them, all is the same for each group. The first rank has p - 1
    more forwards in front of the cut than the last one, so that no pass in front waits for one
    behind: docs/proofs.md, Lemma 15 (groups left out).
    """
    order.more[0], order.more[1] = count, group
    for s in range(p):
        behind = m // group * group * v - 1 - s
        front, k = behind - group * v, 0
        for i in range(order.rows[s], order.rows[s + 1]):
            if order.codes[i] % PASSES in (FORWARD, BESIDE):
                if k == front:
                    order.stops[s] = i
                if k == behind:
                    order.stops[p + s] = i
                k += 1


def zero_bubble_v(p: int, m: int, order: Order) -> None:
    """ZB-V: forwards down and up the V, both backwards for inputs as early as they come.

    It is written for 2 p - 1 micro-batches at the least, and those that are not there are left out
    (PyTorch, line 3268).
    """
    i, most = 0, max(2 * p - 1, m)
    down, up = 0, PASSES
    for s in range(p):
        order.rows[s] = i
        ahead = 2 * (p - s) - 1 + s
        for k in range(ahead):  # warm-up
            if k >= 2 * (p - s) - 1:
                i = _put(order.codes, i, up + FORWARD, k - 2 * (p - s) + 1 < m)
            i = _put(order.codes, i, down + FORWARD, k < m)
        behind, back, done = s, 0, 0  # forwards and backwards up the V, backwards down it
        for _ in range(p - s):
            i = _put(order.codes, i, up + FORWARD, behind < m)
            i = _both(order.codes, i, up, back < m)
            behind, back = behind + 1, back + 1
        while behind < ahead or ahead < most:
            if ahead < most:
                i = _put(order.codes, i, down + FORWARD, ahead < m)
                ahead += 1
            i = _both(order.codes, i, down, done < m)
            i = _put(order.codes, i, up + FORWARD, behind < m)
            i = _both(order.codes, i, up, back < m)
            behind, back, done = behind + 1, back + 1, done + 1
        kept_down, kept_up = done, back
        for _ in range(s):
            i = _put(order.codes, i, down + INPUTS, done < m)
            i = _put(order.codes, i, up + INPUTS, back < m)
            back, done = back + 1, done + 1
        for _ in range(p - s):
            i = _put(order.codes, i, down + INPUTS, done < m)
            i = _put(order.codes, i, down + WEIGHTS, kept_down < m)
            done, kept_down = done + 1, kept_down + 1
        for k in range(kept_up, back):
            i = _put(order.codes, i, up + WEIGHTS, k < m)
        for k in range(kept_down, done):
            i = _put(order.codes, i, down + WEIGHTS, k < m)
    order.rows[p] = i


def dual_pipe(ranks: int, m: int, p: int, ahead: int, order: Order) -> None:
    """DualPipeV of ``ranks`` ranks (p is the same), or DualPipe of p = 2 ``ranks``.

    Chunk 0 is that which micro-batches enter first. In the middle of the step a forward of one
    chunk and a backward of the other run together (``ahead`` is BESIDE), or behind each other
    (FORWARD). PyTorch: line 3459; DualPipe is the same with the ranks counted from the
    nearer end, m micro-batches from each (the program in deepseek-ai/DualPipe). Both need m of at
    least 2 ``ranks``.
    """
    i = 0
    near, far = 0, PASSES
    for rank in range(p):
        s = min(rank, p - 1 - rank) if p > ranks else rank
        order.rows[rank] = kept = i
        for _ in range(2 * (ranks - s - 1)):
            i = _put(order.codes, i, near + FORWARD)
        for _ in range(s + 1):
            i = _put(order.codes, i, near + FORWARD)
            i = _put(order.codes, i, far + FORWARD)
        for _ in range(ranks - s - 1):
            i = _both(order.codes, i, far)
            i = _put(order.codes, i, far + FORWARD)
        kept = i
        for k in range(m - 2 * ranks + s + 1):
            together = FORWARD if k == 0 and s == ranks - 1 else ahead
            i = _put(order.codes, i, near + together)
            i = _put(order.codes, i, far + BACKWARD)
            i = _put(order.codes, i, far + ahead)
            i = _put(order.codes, i, near + BACKWARD)
        for _ in range(ranks - s - 1):
            i = _put(order.codes, i, far + BACKWARD)
            i = _put(order.codes, i, far + ahead)
            i = _put(order.codes, i, near + BACKWARD)
        # Of the last backwards the second half is divided.
        half, odd, which = (s + 1) // 2, s % 2, BACKWARD
        for k in range(s + 1):
            which = INPUTS if k > half or (k == half and odd) else BACKWARD
            i = _put(order.codes, i, far + which)
            which = INPUTS if k >= half else BACKWARD
            i = _put(order.codes, i, near + which)
        for _ in range(ranks - s - 1):
            kept = _next_kept(order.codes, kept, i)
            i = _put(order.codes, i, order.codes[kept] - INPUTS + WEIGHTS)
            kept += 1
            i = _put(order.codes, i, near + which)
        for _ in range(s + 1):
            kept = _next_kept(order.codes, kept, i)
            if kept < i:
                i = _put(order.codes, i, order.codes[kept] - INPUTS + WEIGHTS)
                kept += 1
    order.rows[p] = i


def _put(codes: Ints, i: int, code: int, there: bool = True) -> int:
    """Write a code, if its micro-batch is there; the place of the next."""
    if there:
        codes[i] = code
        return i + 1
    return i


def _both(codes: Ints, i: int, chunk: int, there: bool = True) -> int:
    """A backward for inputs and the one for weights right behind it."""
    return _put(codes, _put(codes, i, chunk + INPUTS, there), chunk + WEIGHTS, there)


def _next_kept(codes: Ints, kept: int, stop: int) -> int:
    """Place of the oldest backward for inputs from ``kept`` on, whose weights have been left."""
    while kept < stop and codes[kept] % PASSES != INPUTS:
        kept += 1
    return kept


# ---------------------------------------------------------------- whole orders


def write_1f1b(p: int, v: int, m: int, group: int, order: Order) -> None:
    """1F1B; exact for all stages, where :mod:`nest.schedules.one_f_one_b` is for alike ones."""
    looped(p, 1, order)
    in_turn(p, 1, m, m, 1, 0, order)


def write_interleaved(p: int, v: int, m: int, group: int, order: Order) -> None:
    """Interleaved 1F1B, of Megatron-Core and, with groups of a round, of PyTorch."""
    looped(p, v, order)
    in_turn(p, v, m, group, 2, 0, order)


def write_combined(p: int, v: int, m: int, group: int, order: Order) -> None:
    """Interleaved 1F1B whose forwards run beside backwards, and one more pass to warm up."""
    looped(p, v, order)
    in_turn(p, v, m, group, 2, 1, order)


def write_folded(p: int, v: int, m: int, group: int, order: Order) -> None:
    """No passes, but where chunks in a V are."""
    folded(p, order)


def write_looped_bfs(p: int, v: int, m: int, group: int, order: Order) -> None:
    """GPipe, or Looped BFS."""
    looped(p, v, order)
    breadth_first(p, v, m, order)


def write_zero_bubble(p: int, v: int, m: int, group: int, order: Order) -> None:
    """ZB1P, or PyTorch's interleaved zero-bubble."""
    looped(p, v, order)
    zero_bubble(p, v, m, group, order)


def write_zb_v(p: int, v: int, m: int, group: int, order: Order) -> None:
    """ZB-V."""
    folded(p, order)
    zero_bubble_v(p, m, order)


def write_dualpipev(p: int, v: int, m: int, group: int, order: Order) -> None:
    """DualPipeV as PyTorch runs it: a forward and a backward of its pairs behind each other."""
    folded(p, order)
    dual_pipe(p, m, p, FORWARD, order)


def write_dualpipe(p: int, v: int, m: int, group: int, order: Order) -> None:
    """DualPipe, of m micro-batches from each end; the passes of its pairs run beside each other."""
    crossed(p, order)
    dual_pipe(p // 2, m, p, BESIDE, order)


# ---------------------------------------------------------------- forwards before a backward
#
# Micro-batches of chunk d whose forwards stage s runs before its first backward.


def all_ahead(p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """All of them, as GPipe."""
    return m


def ahead_in_turn(p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """Of 1F1B, and of :func:`in_turn` with several chunks."""
    return begun(d, min(m * v, warm_up(s, p, v, m, group, min(v, 2), 0) + 1), v, group)


def ahead_zero_bubble(p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """Of :func:`zero_bubble`."""
    return begun(d, min(m * v, warm_up(s, p, v, m, group, 1, 0) + 1), v, group)


def ahead_zb_v(p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """Of :func:`zero_bubble_v`."""
    return min(m, s + 1 if d else 2 * p - 1 - s)


def ahead_dualpipev(p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """Of :func:`dual_pipe` in a V, which needs 2 p micro-batches."""
    return s + 1 if d else 2 * p - 1 - s + (s == p - 1)


def ahead_dualpipe(p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """Of :func:`dual_pipe` from both ends; its ranks count from the nearer one."""
    return ahead_dualpipev(p // 2, v, m, group, min(s, p - 1 - s), d)


# ---------------------------------------------------------------- memory


def held(
    activations: Sequence[float], kept: Sequence[float], s: int, order: Order, limit: float
) -> float:
    """Most bytes of activations that rank s holds at once, given those of each chunk.

    ``kept`` are those of them, and of gradients, that a backward for inputs leaves to the one for
    weights. Without the one layer that a forward beside a backward is ahead of it. Where it is more
    than ``limit``, any number above that.
    """
    now = most = 0.0
    for i in range(order.rows[s], order.rows[s + 1]):
        n, which = order.codes[i] // PASSES, order.codes[i] % PASSES
        if which in (FORWARD, BESIDE):
            now += activations[n]
        elif which == BACKWARD:
            now -= activations[n]
        elif which == INPUTS:
            now += kept[n] - activations[n]
        else:
            now -= kept[n]
        # Layer by layer the backward beside a forward frees what the forward takes.
        if which != BESIDE:
            most = max(most, now)
            if most > limit:
                break
    return most
