"""Figures of the chunks and stages that are asked for, and where each lies in the model."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.fold import add_parts, chunk_costs
from nest._kernels.orders import CROSSED, FOLDED, is_all_forward, is_in
from nest._kernels.uniform.work import UniformWork
from nest.records import Pipe, Row
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees

LEAST = -1
"""``NowRow.first`` of a question of the seconds without recompute, the bytes with the policy."""


@leaf
def figures_of(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, y: int, i: int,
    j: int,
) -> Row:
    """Figures of layers i..j at places of class y, which are filled in; of none they are 0."""
    now, out = work.now[0], work.figures[y, pipelines.signature[i, j]]
    # The overlap of all layers depends on the pipeline.
    if i == j or (out.asked == now.number and j - i < len(pipelines.order)):
        return out
    out.asked = now.number
    r, some = now.policy, now.first
    kinds = pipelines.whole if has_all(pipelines.pipe[now.pipeline]) else pipelines.order
    out.resident = out.work = out.buffers = out.update = out.tied = kept = 0.0
    for n in range(i, j):
        marked = places.marked_before[n + 1] - places.marked_before[i]
        again = 0 if 0 < some < marked else r
        kind, work.again[n] = kinds[n], 0 if some == LEAST else again
        layer = work.layers[y, again, kind]
        kept += layer.activations
        out.resident += layer.resident
        out.update += layer.update
        out.tied += layer.tied
        out.work, out.buffers = max(out.work, layer.work), max(out.buffers, layer.buffers)
    overlaps = degrees.overlaps_alone if pipelines.pipe[now.pipeline].pp == 1 else degrees.overlaps
    chunk_costs(work.layers[y], kinds, work.again, i, j, overlaps, out)
    if some == LEAST:
        out.work = 0.0
    out.activations = kept + degrees.relay[pipelines.signature[i, j]] * degrees.candidate[
        now.candidate].relayed
    if some == 0 and r == degrees.full and (
            places.marked_before[j] - places.marked_before[i] > degrees.most_layers):
        out.resident = np.inf
    return out


@leaf
def figures_in_parts(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, y: int, i: int,
    j: int,
) -> Row:
    """The same with those of passes in parts or side by side."""
    now, out = work.now[0], figures_of(degrees, places, pipelines, work, y, i, j)
    if i == j or (out.parted == now.number and j - i < len(pipelines.order)):
        return out
    out.parted = now.number
    kinds = pipelines.whole if has_all(pipelines.pipe[now.pipeline]) else pipelines.order
    apart = pipelines.apart[degrees.candidate[places.alike[now.candidate, y]].body]
    out.kept_back = out.layer = 0.0
    for n in range(i, j):
        # As in ``figures_of``, whose answer may be that of equal layers elsewhere.
        marked = places.marked_before[n + 1] - places.marked_before[i]
        kind, r = kinds[n], now.policy
        if now.first == LEAST or 0 < now.first < marked:
            r = 0
        work.again[n] = r
        out.kept_back += apart[r, kind].kept_back
        if pipelines.repeated[kind]:
            out.layer = max(out.layer, work.layers[y, r, kind].activations)
    overlaps = degrees.overlaps_alone if pipelines.pipe[now.pipeline].pp == 1 else degrees.overlaps
    add_parts(work.layers[y], apart, kinds, work.again, i, j, overlaps, out)
    return out


@leaf
def has_all(pipe: Pipe) -> bool:
    """Whether all layers that share a table of the vocabulary are on one stage."""
    return pipe.pp == 1 or is_in(pipe.schedule, CROSSED)


@leaf
def position_of(pipe: Pipe, s: int, d: int) -> int:
    """Place in the model of chunk d of stage s."""
    if is_in(pipe.schedule, CROSSED):
        return max(s, pipe.pp - 1 - s) if d else min(s, pipe.pp - 1 - s)
    if d == 1 and is_in(pipe.schedule, FOLDED):
        return 2 * pipe.pp - 1 - s
    return d * pipe.pp + s


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
