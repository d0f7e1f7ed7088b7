"""Interleaved 1F1B: several chunks a stage; see :func:`nest.forms.orders.in_turn`."""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.path import order_for, path_time
from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop
from nest.forms import orders
from nest.forms.passes import Order


def order_of(stages: int, micro_batches: int, vpp: int) -> Order:
    """Micro-batches in groups of ``stages``, which divides them."""
    order = order_for(stages, vpp, micro_batches)
    orders.looped(stages, vpp, order)
    orders.in_turn(stages, vpp, micro_batches, stages, 2, 0, order)
    return order


def warm_up(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Chunk forwards that a stage runs before its first backward."""
    return orders.warm_up(stage, stages, vpp, micro_batches, stages, 2, 0)


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most chunks of which a stage holds the activations of a micro-batch at once."""
    return min(micro_batches * vpp, warm_up(stage, stages, micro_batches, vpp) + 1)


def held(
    activations: Sequence[float], stage: int, stages: int, micro_batches: int
) -> float:
    """Most bytes of activations that a stage holds at once, given those of each chunk."""
    order = order_of(stages, min(micro_batches, 4 * stages), len(activations))
    return orders.held(activations, activations, stage, order, len(order.codes))


def step_time(
    stages: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]], micro_batches: int
) -> StepTime:
    """Seconds of a step of p stages, first stage first, each with its v chunks.

    ``hops[s][c]`` is behind chunk c of stage s: to the next stage, from the last one to the next
    chunk of the first.
    """
    order = order_of(len(stages), micro_batches, len(stages[0]))
    return path_time(stages, hops, micro_batches, order)
