"""What no step is shorter than, by one stage of one chunk."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.alike.chunks import fill_figures
from nest._kernels.alike.work import (
    CANDIDATE,
    F_ACTIVATIONS,
    F_BUFFERS,
    F_RESIDENT,
    F_WORK,
    PIPELINE,
)
from nest._kernels.orders import GPIPE
from nest.forms.chunk import C_BACKWARD, C_FORWARD, C_LATE, C_LEFT, C_TIED, C_UPDATE


@leaf
def least_of_stage(t, q, a, w, s, i, j):
    """No step is shorter with layers i..j on stage s of one chunk; inf: they do not fit.

    What is in front of the stage, what it runs itself, and what it waits for: 1F1B runs n + 1
    forwards before the first backward, and as many backwards behind the last forward.
    """
    c, k = w.question[CANDIDATE], w.question[PIPELINE]
    p, m, y = a.pp[k], t.micro_batches, q.place[a.row[k], q.size[c], s]
    g = fill_figures(t, q, a, w, y, i, j)
    n = m - 1 if a.schedule[k] == GPIPE else min(p - 1 - s, m - 1)
    if (w.figures[y, g, F_RESIDENT] + w.figures[y, g, F_WORK] + w.figures[y, g, F_BUFFERS]
            + (q.received[i] + q.received[j]) / t.shards[c]
            + (n + 1) * w.figures[y, g, F_ACTIVATIONS] > t.limit_bytes):
        return np.inf
    N, f = len(a.order), w.figures[y, g, C_FORWARD]
    b = w.figures[y, g, C_BACKWARD] - w.figures[y, g, C_LATE]
    behind = w.ahead[N] - w.ahead[j] + w.back[N] - w.back[j] + w.near[p - 1] - w.near[s]
    time = waits(t, a, k, n, f, b, behind)
    left = w.figures[y, g, C_LEFT] + w.figures[y, g, C_TIED] + w.figures[y, g, C_UPDATE]
    return w.ahead[i] + w.near[s] / 2 + time + max(w.back[i] + w.near[s] / 2, left)


@leaf
def waits(t, a, k, n, f, b, behind):
    """Seconds of a stage of one chunk from its first pass to its last one, at the least."""
    m = t.micro_batches
    if a.schedule[k] == GPIPE:
        return m * (f + b) + behind
    time = m * (f + b) + max(0.0, behind - n * min(f, b))
    return max(time, ((m - 1) // (n + 1) + 1) * (f + b + behind))
