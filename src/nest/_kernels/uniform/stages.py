"""What no step is shorter than, by one stage of one chunk."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.orders import is_all_forward
from nest._kernels.uniform.chunks import figures_of
from nest._kernels.uniform.work import UniformWork
from nest.records import Pipe
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees


@leaf
def least_of_stage(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, s: int, i: int,
    j: int,
) -> float:
    """No step is shorter with layers i..j on stage s of one chunk; inf: they do not fit.

    What is in front of the stage, what it runs itself, and what it waits for: 1F1B runs n + 1
    forwards before the first backward, and as many backwards behind the last forward.
    """
    c, pipe, m = work.now[0].candidate, pipelines.pipe[work.now[0].pipeline], degrees.micro_batches
    chunk = figures_of(degrees, places, pipelines, work, places.place[pipe.row, places.size[c], s],
        i, j)
    n = in_flight_behind(pipe, m, s)
    if (chunk.resident + chunk.work + chunk.buffers
            + (places.received[i] + places.received[j]) / degrees.candidate[c].shards
            + (n + 1) * chunk.activations > degrees.limit_bytes):
        return np.inf
    near, before = work.rank[s].near, work.before[i]
    time = waits(pipe, m, n, chunk.forward, chunk.backward - chunk.late,
                 behind_stage(work, pipe, s, j, len(pipelines.order)))
    left = chunk.left + chunk.tied + chunk.update
    return before.forward + near / 2 + time + max(before.backward + near / 2, left)


@leaf
def in_flight_behind(pipe: Pipe, m: int, s: int) -> int:
    """Forwards that stage s runs in front of its first backward, but for one."""
    return m - 1 if is_all_forward(pipe.schedule) else min(pipe.pp - 1 - s, m - 1)


@leaf
def behind_stage(work: UniformWork, pipe: Pipe, s: int, j: int, layers: int) -> float:
    """Least seconds from the end of stage s, at cut j, to the loss and back."""
    model, behind = work.before[layers], work.before[j]
    return (model.forward - behind.forward + model.backward - behind.backward
            + work.rank[pipe.pp - 1].near - work.rank[s].near)


@leaf
def waits(pipe: Pipe, m: int, n: int, f: float, b: float, behind: float) -> float:
    """Seconds of a stage of one chunk from its first pass to its last one, at the least."""
    if is_all_forward(pipe.schedule):
        return m * (f + b) + behind
    time = m * (f + b) + max(0.0, behind - n * min(f, b))
    return max(time, ((m - 1) // (n + 1) + 1) * (f + b + behind))
