"""The best free cuts of stages of one chunk, where too many stay below the best to price each.

A label is the figures of the stages behind a cut, as in ``nest._kernels.pipeline``, of one block
size and one set of degrees: it is dropped when another one at its cut is no worse in all figures,
or when it cannot end below the best. Proof: docs/proofs.md, Lemma 33 (free cuts).
"""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.alike.chunks import fill_figures
from nest._kernels.alike.price import gpipe_stage_of, price, stage_of
from nest._kernels.alike.stages import least_of_stage
from nest._kernels.alike.work import CANDIDATE, FULL, PIPELINE
from nest._kernels.orders import GPIPE
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
from nest.forms import gpipe, one_f_one_b
from nest.forms.one_f_one_b import END, FIGURES, NEVER


@leaf
def best_cuts(t, q, a, w, top):
    """Price the best cuts of the pipeline that is asked for, if they take less than ``top``: the
    seconds of the best. ``w.bound`` has the least that the stages from one on take.

    Where there is no room for all labels, ``w.labels.state`` says so, and nothing is priced.
    """
    k, N, labels = w.question[PIPELINE], len(a.order), w.labels
    p, state = a.pp[k], labels.state
    _bound_fronts(t, q, a, w, p, top)
    for x in range(FIGURES):
        labels.values[0, x] = 0.0
    if a.schedule[k] == GPIPE:
        for x in range(gpipe.FIGURES):
            labels.values[0, x] = gpipe.NOTHING[x]
    else:
        for x in range(one_f_one_b.FIGURES):
            labels.values[0, x] = one_f_one_b.NOTHING[x]
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
    m, N, fronts = t.micro_batches, len(a.order), w.labels.fronts
    for s in range(p):
        for j in range(N + 1):
            fronts[s, j] = np.inf
    fronts[0, 0] = 0.0
    for s in range(p - 1):
        for i in range(s, N):
            if max(fronts[s, i], w.bound[s, i]) >= top * SLACK:
                continue
            done = w.ahead[i] + w.back[i]
            for j in range(i + 1, N):
                if m * (w.ahead[j] + w.back[j] - done) >= top:
                    break
                if w.bound[s + 1, j] < top * SLACK and fronts[s, i] < fronts[s + 1, j]:
                    least = least_of_stage(t, q, a, w, s, i, j)
                    if least == np.inf and a.grows:
                        break
                    fronts[s + 1, j] = min(fronts[s + 1, j], max(fronts[s, i], least))


@leaf
def _cell(t, q, a, w, s, i, behind, top):
    """Find the labels of stage s from cut i on; False: there is no room."""
    c, k, labels, m, N = (w.question[CANDIDATE], w.question[PIPELINE], w.labels, t.micro_batches,
                          len(a.order))
    p, x, new, cell = a.pp[k], q.size[c], labels.new, labels.cell
    n, y, y_hop = p - 1 - s, q.place[a.row[k], x, s], min(s + 1, p)
    # The least that the stages in front add: forward, backward, both.
    ahead, back = w.ahead[i] + w.near[s] / 2, w.back[i] + w.near[s] / 2
    done = w.ahead[i] + w.back[i]
    for j in range(i + 1, N + 1):
        if m * (w.ahead[j] + w.back[j] - done) >= top:
            break
        first, last = behind[0, j], behind[1, j]
        if first == last:
            continue
        least = least_of_stage(t, q, a, w, s, i, j)
        if least == np.inf and a.grows:
            break
        if least >= top * SLACK:
            continue
        g, both, gap = fill_figures(t, q, a, w, y, i, j), 0.0, 0.0
        if n:
            gap = q.handed[j] / t.shards[c] * q.hop[0, x, y_hop]
            both = q.both * (gap + q.hop[1, x, y_hop])
        new[one_f_one_b.SHARE] = 0.0  # the same for all
        for parent in range(first, last):
            old = labels.values[parent]
            if a.schedule[k] == GPIPE:
                extend_gpipe(old, gpipe_stage_of(w.figures[y, g]), both, gap, n, m, ahead, new)
                low = low_gpipe(m, new, ahead + back, ahead, w.back[i])
            else:
                extend(old, stage_of(w.figures[y, g]), both, gap, n, m, m // 2, w.back[i], NEVER,
                       ahead, new)
                low = low_of(new, ahead + back, ahead, w.back[i], ahead, NEVER)
            if low >= top * SLACK:
                continue
            if labels.state[COUNT] == len(cell) or (
                    labels.state[TOTAL] + len(cell) > len(labels.values)):
                labels.state[FULL] = 1
                return False
            new[FIGURES] = low
            insert(labels, 0, j, parent)
    return True
