"""The tasks of every stage in order: the schedules from their publications.

A stage runs its tasks one after another, in this order, each as soon as its input has arrived. p
stages, m micro-batches, v chunks per stage; stage 0 is the first of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple


class Task(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage."""

    forward: bool
    """Else backward."""
    chunk: int
    micro_batch: int


def orders(
    schedule: str, stages: int, micro_batches: int, vpp: int = 1
) -> tuple[tuple[Task, ...], ...]:
    """Tasks of each stage in the order in which it runs them.

    Parameters
    ----------
    schedule : "1f1b", "interleaved" or "gpipe".
    vpp : chunks per stage; above 1 with "interleaved" only, and then ``stages`` divides
        ``micro_batches``.
    """
    if schedule == "gpipe":
        return tuple(_gpipe(micro_batches) for _ in range(stages))
    if schedule == "1f1b":
        return tuple(_one_f_one_b(s, stages, micro_batches) for s in range(stages))
    return tuple(_interleaved(s, stages, micro_batches, vpp) for s in range(stages))


def _gpipe(m: int) -> tuple[Task, ...]:
    """All forwards, then all backwards, the last micro-batch first (arXiv:1811.06965, figure 2c)"""
    return (*(Task(True, 0, k) for k in range(m)),
            *(Task(False, 0, k) for k in range(m - 1, -1, -1)))


def _one_f_one_b(stage: int, p: int, m: int) -> tuple[Task, ...]:
    """Warm-up, one forward and one backward in turn, cool-down (arXiv:2104.04473, section 2.2.1).

    In the steady phase as many micro-batches are in flight as there are stages from here on.
    """
    warm = min(p - stage - 1, m)
    forward = [Task(True, 0, k) for k in range(m)]
    backward = [Task(False, 0, k) for k in range(m)]
    return _in_turn(forward, backward, warm)


def _interleaved(stage: int, p: int, m: int, v: int) -> tuple[Task, ...]:
    """1F1B over chunks (arXiv:2104.04473, section 2.2.2), in the order of Megatron-Core.

    p micro-batches pass chunk 0, then the same p chunk 1, and so on; backward from the last chunk.
    A stage warms up with 2 (p - s - 1) + (v - 1) p chunk forwards
    (`forward_backward_pipelining_with_interleaving`).
    """
    warm = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    forward = [Task(True, c, k) for c, k in _rounds(p, m, range(v))]
    backward = [Task(False, c, k) for c, k in _rounds(p, m, range(v - 1, -1, -1))]
    return _in_turn(forward, backward, warm)


def _rounds(p: int, m: int, chunks: range) -> Iterator[tuple[int, int]]:
    """Chunk and micro-batch: groups of p micro-batches through all chunks."""
    for first in range(0, m, p):
        for chunk in chunks:
            for number in range(first, first + p):
                yield chunk, number


def _in_turn(forward: list[Task], backward: list[Task], warm: int) -> tuple[Task, ...]:
    """Some forwards, pairs of a forward and a backward, then the remaining backwards."""
    pairs = chain.from_iterable(zip(forward[warm:], backward, strict=False))
    return (*forward[:warm], *pairs, *backward[len(forward) - warm:])
