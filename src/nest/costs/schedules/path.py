"""The step as the longest path through an order of passes; see :mod:`nest.forms.passes`."""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop
from nest.forms.passes import Order, Room, step_seconds


def order_for(p: int, v: int, m: int) -> Order:
    """Room for the order of p ranks with v chunks each, of m micro-batches a chunk."""
    return Order(codes=[0] * (3 * p * v * m), rows=[0] * (p + 1), at=[0] * (p * v),
                 ahead=[0] * (p * v), back=[0] * (p * v))


def path_time(
    ranks: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]], micro_batches: int,
    order: Order, chains: int = 1,
) -> StepTime:
    """Seconds of a step of p ranks, first one first, each with its v chunks.

    ``hops[s][n]`` is behind chunk n of rank s: on the way to the next position.
    """
    p, v, m = len(ranks), len(ranks[0]), micro_batches
    q = p * v
    room = Room(
        arrives=[0.0] * (2 * q * m), came=[0] * (2 * q), run=[0] * (2 * q), hop=[0.0] * q,
        gap=[0.0] * q, took=[0.0] * (4 * q), links=[0.0] * (2 * q), ends=[0.0] * q, place=[0] * p,
        begun=[0] * p, traffic=[0] * p, clock=[0.0] * p, scattered=[0.0] * p, fresh=[0.0] * p)
    end = step_seconds(ranks, hops, p, v, m, q // chains, order, room)
    return StepTime(max(room.clock), end - max(room.clock))
