"""Interleaved 1F1B: every device holds several chunks of layers, far apart in the model.

arXiv:2104.04473, section 2.2; the order of Megatron-Core's interleaved schedule: micro-batches in
groups of p, each stage warms up with 2 (p - s - 1) + (v - 1) p chunk forwards, then runs one
forward and one backward in turn. All stages hold v chunks; p divides the micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most chunks of which a stage holds the activations of a micro-batch at once."""
    return min(micro_batches * vpp, 2 * (stages - stage - 1) + (vpp - 1) * stages + 1)


def step_time(
    forward: Sequence[float],
    backward: Sequence[float],
    finish: Sequence[float],
    hops: Sequence[float],
    micro_batches: int,
    vpp: int,
    traffic: Sequence[float],
    overlap: float,
) -> StepTime:
    """Seconds of a step of p stages, first stage first.

    Parameters
    ----------
    forward, backward : seconds of a micro-batch through all chunks of each stage.
    finish : seconds that each stage takes after its last backward, where the traffic of all
        chunks but one hides.
    traffic : the same where nothing hides.
    overlap : share of the time of the last p micro-batches that hides traffic.
    hops : round trips behind each stage, from one chunk to the next: the last one leads from the
        last stage back to the first.

    Notes
    -----
    A stage s waits 1/v of the micro-batch time of every stage in front before its first forward,
    and after its last backward; it runs m micro-batches of its own; and where the n stages behind
    take longer, there and back, than the chunks it has in stock for that time, it idles, once
    while the pipeline fills and once while it drains. Hand-overs delay the first micro-batch on
    its way through all v chunks, and the last one on its way back; in between, stock hides them.
    Even stages are exact; see docs/algorithm.md for the rest.

    Gradients of a chunk reduce while the chunks of lower number still go backward: all but one
    chunk's hide, as far as the last p of the m micro-batches last. Taking that as a share of
    ``reach`` keeps faster compute from lengthening the step.

    Non-decreasing in every time: of ``forward[s]``, ``own`` has the slope m - 2 n / v at the
    least, and p <= m, v >= 2.
    """
    m, v = micro_batches, vpp
    waits = v * sum(hops[:-1]) + (v - 1) * hops[-1]
    behind = reach = done = 0.0
    for s in range(len(forward) - 1, -1, -1):
        n, f, b = len(forward) - 1 - s, forward[s], backward[s]
        own = m * (f + b) + max(0.0, behind - 2 * n * f / v) + max(0.0, behind - 2 * n * b / v)
        reach = max(own, (f + b) / v + reach)
        # The stages behind start a forward and a hand-over later, and end so much earlier.
        left = max(finish[s], traffic[s] - overlap * reach * len(forward) / m)
        done = max(reach + left, f / v - hops[s] / 2 + done if n else 0.0)
        behind += (f + b) / v
    return StepTime(waits + reach, done - reach)
