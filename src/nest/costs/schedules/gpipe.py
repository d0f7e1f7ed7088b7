"""GPipe: all micro-batches forward, then all backward (arXiv:1811.06965, section 2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop


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
    """Seconds of a step, first stage first; ``hops[s]`` is between stages s and s+1.

    Both phases are flow shops whose jobs are all alike, so that the first micro-batch passes all
    stages and the others follow at the pace of the slowest stage or link. Where a stage behind
    waits longer for its parameters than for the first micro-batch, it and those behind begin that
    much later. What follows the longest backward counts whole; copies of tied embeddings are
    exchanged when all stages that hold one are ready.
    """
    m, depth = micro_batches, len(stages)
    trip = slow_forward = slow_backward = done = ready = exchange = 0.0
    back = -math.inf
    for s in range(depth - 1, -1, -1):
        c = stages[s]
        both, gap = hops[s] if s < depth - 1 else Hop(0.0, 0.0)
        trip += c.forward + c.backward + both
        slow_forward = max(slow_forward, c.forward + c.chase_forward, gap)
        trailing = max(0.0, c.trailing - c.trails_backward)
        slow_backward = max(slow_backward, c.backward + c.chase_backward + trailing, gap)
        if c.tied:
            ready, exchange = max(ready, c.left), max(exchange, c.tied + c.update)
        else:
            done = max(done, c.left + c.update)
        rest = trip + (m - 1) * (slow_forward + slow_backward)
        back = max(c.wait + rest, c.backward + both / 2 + back)
    return StepTime(rest, back - rest + max(done, ready + exchange))
