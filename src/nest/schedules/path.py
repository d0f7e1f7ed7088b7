"""Schedules whose step is the longest path through their order, :mod:`nest.schedules.passes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf

from nest.schedules import orders
from nest.schedules.chunk import ChunkCosts
from nest.schedules.passes import BESIDE, PASSES, SURE, Order, Room, beside, step_seconds
from nest.schedules.traits import Hop, StepTime, Traits

Write = Callable[[int, int, int, int, Order], None]
"""Writes the order of p stages, v chunks and m micro-batches in groups."""
Ahead = Callable[[int, int, int, int, int, int], int]
"""Forwards of a chunk that a stage runs before its first backward, given p, v, m, the group, the
stage and the chunk."""


@dataclass(frozen=True)
class Path(Traits):
    """A schedule of alike or unlike stages, each with v chunks.

    ``group`` is the micro-batches that pass a chunk in a row; default: as many as stages.
    """

    write: Write
    ahead: Ahead | None = None
    """None: the kernels count them."""
    listed: bool = False
    """The kernels do not compile ``write``: they are given its codes. All ranks run as many."""
    repeats: bool = True
    """A few groups of micro-batches hold the most."""
    split: bool = False
    """Backwards are in two parts."""
    together: bool = False
    """Forwards run beside backwards."""
    grouped: bool = False
    """Groups of micro-batches in the middle run the same passes: :func:`orders.leave_out`."""

    @property
    def parts(self) -> bool:
        """Whether chunks need the figures of :func:`nest.costs.stage.with_parts`."""
        return self.split or self.together

    def order(self, stages: int, micro_batches: int, vpp: int, group: int | None = None) -> Order:
        """Passes of all stages."""
        return _order(self.write, stages, vpp, micro_batches // self.copies, group or stages, 0)

    def _few(self, stages: int, micro_batches: int, group: int | None) -> int:
        """Micro-batches of the first groups and the last ones alone."""
        return orders.few(stages, micro_batches, group or stages) if self.repeats else micro_batches

    def in_flight(
        self, stage: int, stages: int, micro_batches: int, vpp: int, group: int | None = None
    ) -> int:
        """Most chunks of which a stage holds activations of a micro-batch at once, or parts."""
        return round(self.held([1.0] * vpp, stage, stages, micro_batches, group))

    def held(
        self, activations: Sequence[float], stage: int, stages: int, micro_batches: int,
        group: int | None = None, kept: Sequence[float] | None = None, layer: float = 0.0,
    ) -> float:
        """Most bytes of activations that a stage holds at once, given those of each chunk.

        ``kept`` are the bytes that a backward for inputs leaves to the one for weights, ``layer``
        those of the largest layer: a forward beside a backward starts each of its layers before
        the backward has freed its own (TransformerModelChunkSchedulePlan.run of Megatron-Core).
        """
        m = self._few(stages, micro_batches, group)
        order = self.order(stages, m, len(activations), group)
        row = order.codes[order.rows[stage]:order.rows[stage + 1]]
        more = layer if any(code % PASSES == BESIDE for code in row) else 0.0
        return more + orders.held(activations, kept or activations, stage, order, inf)

    def hidden(
        self, chunks: Sequence[ChunkCosts], stage: int, stages: int, micro_batches: int,
        group: int | None = None,
    ) -> float:
        """Seconds of all-to-alls of experts that run beside another pass of the stage."""
        order = self.order(stages, micro_batches, len(chunks), group)
        row = order.codes[order.rows[stage]:order.rows[stage + 1]]
        pairs = ((chunks[code // PASSES], chunks[behind // PASSES])
                 for code, behind in pairwise(row) if code % PASSES == BESIDE)
        return sum(ahead.forward + back.backward - beside(ahead, back) for ahead, back in pairs)

    def step_time(
        self, stages: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]],
        micro_batches: int, group: int | None = None,
    ) -> StepTime:
        """Seconds of a step of p stages, first stage first, each with its v chunks.

        ``hops[s][n]`` is behind chunk n of stage s: on the way to the next chunk of the model.
        """
        p, v, m = len(stages), len(stages[0]), micro_batches // self.copies
        q = p * v
        room = Room(
            arrives=[0.0] * (2 * q * m), came=[0] * (2 * q), run=[0] * (2 * q), hop=[0.0] * q,
            gap=[0.0] * q, took=[0.0] * (4 * q), late=[0.0] * q, links=[0.0] * (2 * q),
            ends=[0.0] * q, place=[0] * p, stop=[0] * p, begun=[0] * p, traffic=[0] * p,
            clock=[0.0] * p, scattered=[0.0] * p, fresh=[0.0] * p, was=[0.0] * (2 * p + 2 * q),
            unsure=[0.0])
        few = self._few(p, m, group) if self.grouped and p > 1 else m
        for ran in sorted({few, m}):
            out = (m - ran) // (group or p)
            order = _order(self.write, p, v, ran, group or p, out)
            end = step_seconds(stages, hops, p, v, ran, q // self.copies, order, room, inf)
            if room.unsure[0] <= SURE * end:
                break
        return StepTime(max(room.clock), end - max(room.clock))


@lru_cache(maxsize=8)
def _order(write: Write, p: int, v: int, m: int, group: int, out: int) -> Order:
    order = Order(codes=[0] * (3 * p * v * m), rows=[0] * (p + 1), at=[0] * (p * v),
                  ahead=[0] * (p * v), back=[0] * (p * v), more=[0, 0], stops=[0] * (2 * p))
    write(p, v, m, group, order)
    if out:
        orders.leave_out(p, v, m, group, out, order)
    return order
