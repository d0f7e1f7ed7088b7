"""The timeline of a simulated step: passes, collectives, waits, and memory over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from nest.evaluation.evaluate import chain_of
from nest.evaluation.plans import Plan
from nest.evaluation.stages import layers_of
from nest.simulation.figures import LayerWork
from nest.simulation.result import COMPUTE, DATA, Slice
from nest.simulation.step import Traced
from nest.simulation.tasks import INPUTS, WEIGHTS, Task

MOST_RECORDED, MOST_ROWS = 90_000, 45_000
"""Slices that are recorded; rows above which hand-overs are not drawn (chosen: some 1.2 MB)."""
MOST_POINTS = 12_000
"""Points of the curves of memory, all stages together (chosen)."""
TICKS = 2_000_000
"""Units of time of a step: times are whole numbers of them, which keeps a page small."""
KINDS = ("forward", "backward", "backward for inputs", "backward for weights", "end", "optimizer",
         "collective", "hand-over", "wait", "left out")
FORWARD, BACKWARD, BACK_INPUTS, BACK_WEIGHTS, END, OPTIMIZER, COLLECTIVE, HANDOVER, WAIT, LEFT \
    = range(len(KINDS))


class ChunkLayers(NamedTuple):
    """Equal layers of a chunk, one after another; seconds of one of them."""

    name: str
    layers: int
    forward: float
    backward: float
    weights: float
    """Part of ``backward``."""
    ahead: float
    """Exposed traffic forward."""
    back: float
    """The same backward."""


@dataclass(frozen=True)
class StepTimeline:
    """Columns of equal length: an entry for each slice.

    Attributes
    ----------
    tick_s : seconds of a unit of time.
    stage, kind, start, length : row, number in ``kinds``, times in units.
    chunk, micro_batch : -1 where it is no pass.
    label : number in ``labels``; -1: none.
    memory : for each stage, times in units and bytes in MiB in turn.
    chunks : for each stage and chunk, its layers.
    activities : for each stage, seconds of a step by activity.
    """

    tick_s: float
    step_s: float
    replica: int
    equal: int
    """Replicas of the same length, this one too."""
    left_out: tuple[int, int] | None
    """First and last micro-batch without slices."""
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    stage: tuple[int, ...]
    kind: tuple[int, ...]
    start: tuple[int, ...]
    length: tuple[int, ...]
    chunk: tuple[int, ...]
    micro_batch: tuple[int, ...]
    label: tuple[int, ...]
    memory: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[tuple[ChunkLayers, ...], ...], ...]
    activities: tuple[dict[str, float], ...]


class _Row(NamedTuple):
    stage: int
    kind: int
    start: float
    end: float
    chunk: int = -1
    micro_batch: int = -1
    label: str = ""


def timeline(plan: Plan, traced: Traced) -> StepTimeline:
    """The timeline of the replica that takes longest.

    Parameters
    ----------
    plan : what was simulated.
    traced : its simulation with slices.
    """
    found = traced.simulation
    tick = found.step_time_s / TICKS
    rows = sorted(_rows(traced), key=lambda row: (row.stage, row.start))
    if len(rows) > MOST_ROWS:
        rows = [row for row in rows if row.kind != HANDOVER]
    labels = {text: number for number, text in enumerate(
        sorted({row.label for row in rows if row.label}))}
    starts = [round(row.start / tick) for row in rows]
    left = traced.record.left_out
    return StepTimeline(
        tick_s=tick, step_s=found.step_time_s, replica=found.replica,
        equal=sum(abs(one - found.step_time_s) <= 1e-9 * one for one in found.replicas_s),
        left_out=(left[0], left[-1]) if left else None, kinds=KINDS, labels=tuple(labels),
        stage=tuple(row.stage for row in rows), kind=tuple(row.kind for row in rows),
        start=tuple(starts),
        length=tuple(round(row.end / tick) - start
                     for row, start in zip(rows, starts, strict=True)),
        chunk=tuple(row.chunk for row in rows),
        micro_batch=tuple(row.micro_batch for row in rows),
        label=tuple(labels.get(row.label, -1) for row in rows),
        memory=tuple(_memory(traced, number, tick) for number in range(len(plan.stages))),
        chunks=_chunks(plan, traced),
        activities=tuple(stage.time_s.model_dump() for stage in found.stages))


def _rows(traced: Traced) -> Iterator[_Row]:
    slices = traced.record.slices
    for one in slices:
        if one.task >= 0:
            task = traced.orders[one.stage][one.task]
            yield _Row(one.stage, _kind(task), one.start, one.end, task.chunk, task.micro_batch,
                       "beside the backward that follows" if task.beside else "")
        elif one.stream == COMPUTE:
            yield _Row(one.stage, OPTIMIZER if one.name == "optimizer" else END, one.start,
                       one.end, label=one.name)
        else:
            kind = COLLECTIVE if one.stream == DATA else HANDOVER
            words = one.name.split()
            number = int(words[-1]) if kind == HANDOVER else -1
            yield _Row(one.stage, kind, one.start, one.end, -1, number,
                       one.name if number < 0 else " ".join(words[:-1]))
    compute = sorted((one for one in slices if one.stream == COMPUTE),
                     key=lambda one: (one.stage, one.start))
    for stage, group in groupby(compute, key=lambda one: one.stage):
        yield from _waits(traced, stage, list(group))


def _kind(task: Task) -> int:
    if task.forward:
        return FORWARD
    return {INPUTS: BACK_INPUTS, WEIGHTS: BACK_WEIGHTS}.get(task.part, BACKWARD)


def _waits(traced: Traced, stage: int, row: list[Slice]) -> Iterator[_Row]:
    """What lies between the passes of a stage: waits, and passes that are left out."""
    order, least = traced.orders[stage], traced.simulation.step_time_s * 1e-7
    before, task = 0.0, 0
    for one in row:
        left = one.task > task or (one.task < 0 and task < len(order))
        if one.start - before > least:
            yield _Row(stage, LEFT if left else WAIT, before, one.start,
                       label="" if left else _awaited(order[task]) if one.task >= 0
                       else "other stages, before the end of the step")
        before = one.end
        task = len(order) if one.task < 0 else one.task + 1 + order[one.task].beside
    if traced.simulation.step_time_s - before > least:
        yield _Row(stage, WAIT, before, traced.simulation.step_time_s,
                   label="the last stage to end its step")


def _awaited(one: Task) -> str:
    return (f"{'activations' if one.forward else 'the gradient'} of micro-batch "
            f"{one.micro_batch}")


def _memory(traced: Traced, stage: int, tick: float) -> tuple[int, ...]:
    """Times and MiB in turn, at the start and end of each pass; the largest of several."""
    levels = traced.memory[stage]
    points = [(second, level) for one in traced.record.slices
              if one.stage == stage and one.task >= 0
              for second, level in zip((one.start, one.end), levels[one.task], strict=True)]
    points.sort(key=lambda point: point[0])
    most = max(2, MOST_POINTS // len(traced.memory))
    each = -(-len(points) // most) or 1
    kept = [max(points[n:n + each], key=lambda point: point[1])
            for n in range(0, len(points), each)]
    return tuple(value for second, level in kept
                 for value in (round(second / tick), round(level / 2**20)))


def _chunks(plan: Plan, traced: Traced) -> tuple[tuple[tuple[ChunkLayers, ...], ...], ...]:
    chain, way = chain_of(plan.inputs.subject), plan.configuration
    found = []
    for stage, work in zip(way.stages, traced.work, strict=True):
        row = []
        for span, layers in zip(stage.chunks, work.chunks, strict=True):
            kinds = [chain.kinds[kind].name for kind, _ in layers_of(chain, way, stage, span)]
            row.append(tuple(
                _layers(name, layer, len(list(group))) for (name, layer), group in
                groupby(zip(kinds, layers, strict=True))))
        found.append(tuple(row))
    return tuple(found)


def _layers(name: str, one: LayerWork, count: int) -> ChunkLayers:
    return ChunkLayers(name, count, one.forward, one.backward, one.weights, one.ahead, one.back)
