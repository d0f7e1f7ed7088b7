"""GPipe: all micro-batches forward, then all backward (arXiv:1811.06965, section 2.3)."""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most micro-batches of which a stage holds the activations at once."""
    return micro_batches


def step_time(
    forward: Sequence[float],
    backward: Sequence[float],
    finish: Sequence[float],
    hops: Sequence[float],
    micro_batches: int,
) -> StepTime:
    """Seconds of a step, first stage first; ``hops`` are round trips between neighbours.

    Both phases are flow shops whose jobs are all alike, so that the first micro-batch passes all
    stages and the others follow at the pace of the slowest. The longest finish counts whole.
    """
    trip = sum(forward) + sum(backward) + sum(hops)
    pace = max(forward) + max(backward)
    return StepTime(trip + (micro_batches - 1) * pace, max(finish))
