"""GPipe: all micro-batches forward, then all backward; see :mod:`nest.forms.gpipe`."""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop
from nest.forms.gpipe import DOWN, END, NOTHING, RETURNED, SLOWEST_FORWARD, add_stage, stage_of


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most micro-batches of which a stage holds the activations at once."""
    return micro_batches


def held(
    activations: Sequence[float], stage: int, stages: int, micro_batches: int
) -> float:
    """Most bytes of activations that a stage holds at once; a stage is one chunk."""
    return in_flight(stage, stages, micro_batches, 1) * activations[0]


def step_time(
    stages: Sequence[ChunkCosts], hops: Sequence[Hop], micro_batches: int
) -> StepTime:
    """Seconds of a step, first stage first; ``hops[s]`` is between stages s and s+1."""
    m, figures, hop = micro_batches, list(NOTHING), Hop(0.0, 0.0)
    for n, c in enumerate(reversed(stages)):
        if n:
            hop = hops[len(stages) - 1 - n]
        behind, figures = figures, list(NOTHING)
        add_stage(behind, stage_of(c), hop.both, hop.gap, n, m, figures)
    pipeline = figures[DOWN] + (m - 1) * figures[SLOWEST_FORWARD] + figures[RETURNED]
    return StepTime(pipeline, figures[END] - pipeline)
