"""Interleaved 1F1B: several chunks a stage; see :mod:`nest.forms.interleaved`."""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop
from nest.forms import interleaved as form


def warm_up(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Chunk forwards that a stage runs before its first backward."""
    return form.warm_up(stage, stages, micro_batches, vpp)


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most chunks of which a stage holds the activations of a micro-batch at once."""
    return min(micro_batches * vpp, warm_up(stage, stages, micro_batches, vpp) + 1)


def held(
    activations: Sequence[float], stage: int, stages: int, micro_batches: int
) -> float:
    """Most bytes of activations that a stage holds at once, given those of each chunk."""
    return form.held(activations, stage, stages, micro_batches, len(activations))


def step_time(
    stages: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]], micro_batches: int
) -> StepTime:
    """Seconds of a step of p stages, first stage first, each with its v chunks.

    ``hops[s][c]`` is behind chunk c of stage s: to the next stage, from the last one to the next
    chunk of the first.
    """
    p, v, m = len(stages), len(stages[0]), micro_batches
    room = form.Room(
        arrives=[[0.0] * (p * m * v) for _ in range(2)],
        links=[[0.0] * p for _ in range(2)],
        run=[[0] * p for _ in range(2)],
        front=[[0] * p for _ in range(2)],
        gathers=[0] * p,
        clock=[0.0] * p,
        scattered=[0.0] * p,
        starts=[[0.0] * v for _ in range(p)],
        ends=[[0.0] * v for _ in range(p)],
    )
    alone = [[chunk.alone for chunk in stage] for stage in stages]
    end = form.step_seconds(stages, alone, hops, p, m, v, room)
    return StepTime(max(room.clock), end - max(room.clock))
