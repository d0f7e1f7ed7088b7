"""The best free cuts of stages of one chunk, where too many stay below the best to price each.

A label is the figures of the stages behind a cut, as in ``nest._kernels.pipeline``, of one block
size and one set of degrees: it is dropped when another one at its cut is no worse in all figures,
or when it cannot end below the best. Proof: docs/proofs.md, Lemma 33 (free cuts).
"""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.orders import is_all_forward
from nest._kernels.pipeline import (
    COUNT,
    CUT,
    LIKELY,
    PARENT,
    SLACK,
    TOTAL,
    extend,
    extend_gpipe,
    insert,
    low_gpipe,
    low_of,
)
from nest._kernels.uniform.chunks import figures_of
from nest._kernels.uniform.price import begin, gpipe_stage_of, price, stage_of
from nest._kernels.uniform.stages import least_of_stage
from nest.schedules import one_f_one_b
from nest.schedules.one_f_one_b import END, FIGURES, NEVER


@leaf
def best_cuts(t, q, a, w, top):
    """Price the best cuts of the pipeline that is asked for, if they take less than ``top``: the
    seconds of the best. ``w.bound`` has the least that the stages from one on take.

    Where there is no room for all labels, ``w.now`` says so, and nothing is priced.
    """
    k, N, labels = w.now[0].pipeline, len(a.order), w.labels
    p, state = a.pipe[k].pp, labels.state
    _bound_fronts(t, q, a, w, p, top)
    begin(labels.values[0], is_all_forward(a.pipe[k].schedule))
    state[TOTAL] = 1
    for s in range(p - 1, -1, -1):
        here, behind = labels.spans[s % 2], labels.spans[(s + 1) % 2]
        for i in range(N + 1):
            here[0, i] = here[1, i] = 0
            if s == p - 1:  # only the end of the model is behind the last stage
                behind[0, i], behind[1, i] = 0, int(i == N)
        for i in range(N):
            if max(labels.fronts[s, i], w.bound[s, i]) >= top * SLACK:
                continue
            state[COUNT] = state[LIKELY] = 0
            if not _cell(t, q, a, w, s, i, behind, top):
                return top
            here[0, i] = state[TOTAL]
            for c in range(state[COUNT]):
                for x in range(FIGURES):
                    labels.values[state[TOTAL], x] = labels.cell[c, x]
                for x in range(3):
                    labels.links[state[TOTAL], x] = labels.cell_links[c, x]
                state[TOTAL] += 1
            here[1, i] = state[TOTAL]
    best = 0
    for label in range(labels.spans[0, 0, 0], labels.spans[0, 1, 0]):
        if best == 0 or labels.values[label, END] < labels.values[best, END]:
            best = label
    if best == 0:
        return top
    for s in range(p):
        w.cuts[s + 1], best = labels.links[best, CUT], labels.links[best, PARENT]
    return price(t, q, a, w, top)


@leaf
def _bound_fronts(t, q, a, w, p, top):
    """Fill ``w.labels.fronts``: the least that all stages in front of one take."""
    m, N, fronts, before = t.micro_batches, len(a.order), w.labels.fronts, w.before
    for s in range(p):
        for j in range(N + 1):
            fronts[s, j] = np.inf
    fronts[0, 0] = 0.0
    for s in range(p - 1):
        for i in range(s, N):
            if max(fronts[s, i], w.bound[s, i]) >= top * SLACK:
                continue
            done = before[i].forward + before[i].backward
            for j in range(i + 1, N):
                if m * (before[j].forward + before[j].backward - done) >= top:
                    break
                if w.bound[s + 1, j] < top * SLACK and fronts[s, i] < fronts[s + 1, j]:
                    least = least_of_stage(t, q, a, w, s, i, j)
                    if least == np.inf and a.grows:
                        break
                    fronts[s + 1, j] = min(fronts[s + 1, j], max(fronts[s, i], least))


@leaf
def _cell(t, q, a, w, s, i, behind, top):
    """Find the labels of stage s from cut i on; False: there is no room."""
    c, pipe, labels = w.now[0].candidate, a.pipe[w.now[0].pipeline], w.labels
    m, N, x, new, cell = t.micro_batches, len(a.order), q.size[c], labels.new, labels.cell
    n, y, link = pipe.pp - 1 - s, q.place[pipe.row, x, s], q.hop[x, min(s + 1, pipe.pp)]
    # The least that the stages in front add: forward, backward, both.
    before, near = w.before[i], w.rank[s].near
    ahead, back = before.forward + near / 2, before.backward + near / 2
    done, hidden = before.forward + before.backward, before.backward
    for j in range(i + 1, N + 1):
        if m * (w.before[j].forward + w.before[j].backward - done) >= top:
            break
        first, last = behind[0, j], behind[1, j]
        if first == last:
            continue
        least = least_of_stage(t, q, a, w, s, i, j)
        if least == np.inf and a.grows:
            break
        if least >= top * SLACK:
            continue
        chunk, both, gap = figures_of(t, q, a, w, y, i, j), 0.0, 0.0
        if n:
            gap = q.handed[j] / t.candidate[c].shards * link.per_byte
            both = q.both * (gap + link.latency)
        new[one_f_one_b.SHARE] = 0.0  # the same for all
        for parent in range(first, last):
            old = labels.values[parent]
            if is_all_forward(pipe.schedule):
                extend_gpipe(old, gpipe_stage_of(chunk), both, gap, n, m, ahead, new)
                low = low_gpipe(m, new, ahead + back, ahead, hidden)
            else:
                extend(old, stage_of(chunk), both, gap, n, m, m // 2, hidden, NEVER, ahead, new)
                low = low_of(new, ahead + back, ahead, hidden, ahead, NEVER)
            if low >= top * SLACK:
                continue
            if labels.state[COUNT] == len(cell) or (
                    labels.state[TOTAL] + len(cell) > len(labels.values)):
                w.now[0].full = 1
                return False
            new[FIGURES] = low
            insert(labels, 0, j, parent)
    return True
