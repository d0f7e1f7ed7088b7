"""The best free cuts of stages of one chunk, where too many stay below the best to price each.

A label is the figures of the stages behind a cut, as in ``nest._kernels.pipeline``, of one block
size and one set of degrees: it is dropped when another one at its cut is no worse in all figures,
or when it cannot end below the best. Proof: docs/proofs.md, Lemma 33 (free cuts).
"""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.labels import COUNT, CUT, LIKELY, PARENT, SLACK, TOTAL, insert
from nest._kernels.orders import is_all_forward
from nest._kernels.pipeline import (
    extend,
    extend_gpipe,
    low_gpipe,
    low_of,
)
from nest._kernels.uniform.price import begin, gpipe_stage_of, price, stage_of
from nest._kernels.uniform.stages import figures_of, least_of_stage
from nest._kernels.uniform.work import UniformWork
from nest.records import Ints2
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules import one_f_one_b
from nest.schedules.one_f_one_b import END, FIGURES, NEVER


@leaf
def best_cuts(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, top: float,
) -> float:
    """Price the best cuts of the pipeline that is asked for, if they take less than ``top``: the
    seconds of the best. ``work.bound`` has the least that the stages from one on take.

    Where there is no room for all labels, ``work.now`` says so, and nothing is priced.
    """
    k, N, labels = work.now[0].pipeline, len(pipelines.order), work.labels
    p, state = pipelines.pipe[k].pp, labels.state
    _bound_fronts(degrees, places, pipelines, work, p, top)
    begin(labels.values[0], is_all_forward(pipelines.pipe[k].schedule))
    state[TOTAL] = 1
    for s in range(p - 1, -1, -1):
        here, behind = labels.spans[s % 2], labels.spans[(s + 1) % 2]
        for i in range(N + 1):
            here[0, i] = here[1, i] = 0
            if s == p - 1:  # only the end of the model is behind the last stage
                behind[0, i], behind[1, i] = 0, int(i == N)
        for i in range(N):
            if max(labels.fronts[s, i], work.bound[s, i]) >= top * SLACK:
                continue
            state[COUNT] = state[LIKELY] = 0
            if not _cell(degrees, places, pipelines, work, s, i, behind, top):
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
        work.cuts[s + 1], best = labels.links[best, CUT], labels.links[best, PARENT]
    return price(degrees, places, pipelines, work, top)


@leaf
def _bound_fronts(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, p: int, top: float,
) -> None:
    """Fill ``work.labels.fronts``: the least that all stages in front of one take."""
    m, N, fronts, before = degrees.micro_batches, len(
        pipelines.order), work.labels.fronts, work.before
    for s in range(p):
        for j in range(N + 1):
            fronts[s, j] = np.inf
    fronts[0, 0] = 0.0
    for s in range(p - 1):
        for i in range(s, N):
            if max(fronts[s, i], work.bound[s, i]) >= top * SLACK:
                continue
            done = before[i].forward + before[i].backward
            for j in range(i + 1, N):
                if m * (before[j].forward + before[j].backward - done) >= top:
                    break
                if work.bound[s + 1, j] < top * SLACK and fronts[s, i] < fronts[s + 1, j]:
                    least = least_of_stage(degrees, places, pipelines, work, s, i, j)
                    if least == np.inf and pipelines.grows:
                        break
                    fronts[s + 1, j] = min(fronts[s + 1, j], max(fronts[s, i], least))


@leaf
def _cell(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, s: int, i: int,
    behind: Ints2, top: float,
) -> bool:
    """Find the labels of stage s from cut i on; False: there is no room."""
    c, pipe, labels = work.now[0].candidate, pipelines.pipe[work.now[0].pipeline], work.labels
    m, N, x, new, cell = degrees.micro_batches, len(pipelines.order), places.size[
        c], labels.new, labels.cell
    n, y, link = pipe.pp - 1 - s, places.place[pipe.row, x, s], places.hop[x, min(s + 1, pipe.pp)]
    # The least that the stages in front add: forward, backward, both.
    before, near = work.before[i], work.rank[s].near
    ahead, back = before.forward + near / 2, before.backward + near / 2
    done, hidden = before.forward + before.backward, before.backward
    for j in range(i + 1, N + 1):
        if m * (work.before[j].forward + work.before[j].backward - done) >= top:
            break
        first, last = behind[0, j], behind[1, j]
        if first == last:
            continue
        least = least_of_stage(degrees, places, pipelines, work, s, i, j)
        if least == np.inf and pipelines.grows:
            break
        if least >= top * SLACK:
            continue
        chunk, both, gap = figures_of(degrees, places, pipelines, work, y, i, j), 0.0, 0.0
        if n:
            gap = places.handed[j] / degrees.candidate[c].shards * link.per_byte
            both = places.both * (gap + link.latency)
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
                work.now[0].full = 1
                return False
            new[FIGURES] = low
            insert(labels, 0, j, parent)
    return True
