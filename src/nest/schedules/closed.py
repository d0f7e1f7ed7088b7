"""Schedules of one chunk a stage whose step is added up stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nest.schedules import gpipe, one_f_one_b
from nest.schedules.chunk import ChunkCosts
from nest.schedules.path import Ahead
from nest.schedules.traits import Hop, StepTime, Traits


@dataclass(frozen=True)
class Closed(Traits):
    """1F1B (:mod:`nest.schedules.one_f_one_b`), or GPipe (:mod:`nest.schedules.gpipe`).

    A single stage runs the same passes under both, in another order. With ZeRO-3 alone that takes
    another time: what is gathered in front of a pass hides beside the pass before it, and in front
    of a forward behind a backward, as 1F1B has them, gradients are still being scattered.

    The parameters that only a :class:`nest.schedules.path.Path` needs are ignored.
    """

    all_forward: bool
    """All micro-batches forward, then all backward."""
    ahead: Ahead
    split: ClassVar[bool] = False
    together: ClassVar[bool] = False
    parts: ClassVar[bool] = False
    """See :class:`nest.schedules.path.Path`."""

    def in_flight(
        self, stage: int, stages: int, micro_batches: int, vpp: int = 1, group: int | None = None
    ) -> int:
        """Most micro-batches of which a stage holds the activations at once."""
        return micro_batches if self.all_forward else min(stages - stage, micro_batches)

    def held(
        self, activations: Sequence[float], stage: int, stages: int, micro_batches: int,
        group: int | None = None, kept: Sequence[float] | None = None, layer: float = 0.0,
    ) -> float:
        """Most bytes of activations that a stage holds at once, given those of its chunk."""
        return self.in_flight(stage, stages, micro_batches) * activations[0]

    def hidden(
        self, chunks: Sequence[ChunkCosts], stage: int, stages: int, micro_batches: int,
        group: int | None = None,
    ) -> float:
        """Seconds that run beside another pass: none."""
        return 0.0

    def step_time(
        self, stages: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]],
        micro_batches: int, group: int | None = None,
    ) -> StepTime:
        """Seconds of a step, first stage first; ``hops[s][0]`` is behind stage s.

        A stage reduces its gradients and updates its parameters once its own last backward has
        ended; stages with copies of tied embeddings exchange their gradients in between, when all
        of them are ready. The step ends with the last stage.
        """
        m, f = micro_batches, gpipe if self.all_forward else one_f_one_b
        figures = list(f.NOTHING)
        for n, stage in enumerate(reversed(stages)):
            behind, figures, c = figures, list(f.NOTHING), stage[0]
            both, gap = hops[len(stages) - 1 - n][0] if n else (0.0, 0.0)
            if self.all_forward:
                gpipe.add_stage(behind, gpipe.stage_of(c), both, gap, n, m, figures)
            else:
                one_f_one_b.add_stage(
                    behind, one_f_one_b.stage_of(c), both, gap, n, m, m // 2, figures)
        pipeline = figures[one_f_one_b.REST]
        if self.all_forward:
            pipeline = (figures[gpipe.DOWN] + (m - 1) * figures[gpipe.SLOWEST_FORWARD]
                        + figures[gpipe.RETURNED])
        return StepTime(pipeline, figures[f.END] - pipeline)
