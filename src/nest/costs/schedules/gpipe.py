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
    much later. All else is counted from the turn, when the last stage has run its last forward:
    ``back`` is the last backward of a stage, ``done`` and ``ready`` are as in
    :mod:`nest.costs.schedules.one_f_one_b`. Exact for all stages.
    """
    m = micro_batches
    down = up = slow_forward = slow_backward = turned = exchange = 0.0
    back = done = ready = -math.inf
    for s in range(len(stages) - 1, -1, -1):
        c, behind = stages[s], s < len(stages) - 1
        both, gap = hops[s] if behind else Hop(0.0, 0.0)
        end = c.backward - c.late  # of the last backward; all others have one behind them
        b = end + c.late_back
        queue = c.queue_backward + max(0.0, c.trailing - c.trails_backward)
        down += c.forward + both / 2
        slow_forward = max(slow_forward, c.forward + c.queue_forward, gap)
        turned = max(turned, c.wait + down + (m - 1) * slow_forward)
        slow_backward = max(slow_backward, b + queue, gap)
        up += b + (both / 2 if behind else c.turn)
        back = (back + both / 2 if behind else c.turn) + end
        if m > 1:
            back = max(back if behind else 0.0,
                       up + (m - 2) * slow_backward + max(queue, gap - b) + end)
        if c.tied:
            ready, exchange = max(ready, back + c.left), max(exchange, c.tied + c.update)
        else:
            done = max(done, back + c.left + c.update)
    rest = down + (m - 1) * slow_forward + back
    return StepTime(rest, turned + max(done, ready + exchange) - rest)
