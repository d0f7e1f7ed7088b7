"""1F1B: a stage runs one forward and one backward in turn; see :mod:`nest.forms.one_f_one_b`."""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop
from nest.forms.one_f_one_b import END, NOTHING, REST, add_stage, stage_of


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most micro-batches of which a stage holds the activations at once."""
    return min(stages - stage, micro_batches)


def held(
    activations: Sequence[float], stage: int, stages: int, micro_batches: int
) -> float:
    """Most bytes of activations that a stage holds at once; a stage is one chunk."""
    return in_flight(stage, stages, micro_batches, 1) * activations[0]


def step_time(
    stages: Sequence[ChunkCosts], hops: Sequence[Hop], micro_batches: int
) -> StepTime:
    """Seconds of a 1F1B step, first stage first; ``hops[s]`` is between stages s and s+1.

    A stage reduces its gradients and updates its parameters once its own last backward has ended;
    stages with copies of tied embeddings exchange their gradients in between, when all of them are
    ready. The step ends with the last stage.
    """
    m, figures, hop = micro_batches, list(NOTHING), Hop(0.0, 0.0)
    for n, c in enumerate(reversed(stages)):
        if n:
            hop = hops[len(stages) - 1 - n]
        behind, figures = figures, list(NOTHING)
        add_stage(behind, stage_of(c), hop.both, hop.gap, n, m, m // 2, figures)
    return StepTime(figures[REST], figures[END] - figures[REST])
