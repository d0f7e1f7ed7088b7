"""The tasks of every stage in order, by the schedules' publications, and the activations held.

1F1B, interleaved 1F1B and GPipe are written here once more. Of the others the rows that their
entries write are read, micro-batches are counted, and each task is checked to be there once and
behind those that it needs on its stage.

A stage runs its tasks one after another, in this order, each as soon as its input has arrived. p
stages, m micro-batches, v chunks per stage; stage 0 is the first of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from nest.errors import KernelError
from nest.schedules import passes
from nest.schedules.path import Path
from nest.schedules.registry import SCHEDULES, copies
from nest.simulation.figures import ChunkMemory

WHOLE, INPUTS, WEIGHTS = range(3)


class Task(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage."""

    forward: bool
    """Else backward."""
    chunk: int
    micro_batch: int
    part: int = WHOLE
    """Of a backward: WHOLE, INPUTS or WEIGHTS."""
    beside: bool = False
    """A forward that runs beside the backward that follows."""


def orders(
    schedule: str, stages: int, micro_batches: int, vpp: int = 1, group: int = 0
) -> tuple[tuple[Task, ...], ...]:
    """Tasks of each stage in the order in which it runs them.

    Parameters
    ----------
    schedule : as in :class:`nest.inputs.Configuration`.
    vpp : chunks per stage.
    group : micro-batches that pass a chunk in a row; default: ``stages``.
    micro_batches : of a step; those of each copy of the model are numbered from 0 on.
    """
    group = group or stages
    if schedule == "gpipe":
        return tuple(_gpipe(micro_batches) for _ in range(stages))
    if schedule == "1f1b":
        return tuple(_one_f_one_b(s, stages, micro_batches) for s in range(stages))
    if schedule == "interleaved":
        return tuple(_interleaved(s, stages, micro_batches, vpp, group) for s in range(stages))
    # Of two copies of the model each takes half of the micro-batches.
    micro_batches //= copies(schedule)
    chunks = stages * vpp
    order = passes.Order(
        codes=[0] * (3 * chunks * micro_batches), rows=[0] * (stages + 1), at=[0] * chunks,
        ahead=[0] * chunks, back=[0] * chunks, more=[0, 0], stops=[0] * (2 * stages))
    entry = SCHEDULES[schedule]
    assert isinstance(entry, Path)
    entry.write(stages, vpp, micro_batches, group, order)
    return tuple(
        _row(order.codes[begin:end], micro_batches, vpp)
        for begin, end in pairwise(order.rows))


def _row(codes: Sequence[int], m: int, v: int) -> tuple[Task, ...]:
    """Tasks of a row of codes; a chunk takes its micro-batches one after another."""
    count = {(which, n): 0 for which in ("ahead", "back", "weights") for n in range(v)}
    found = []
    for code in codes:
        n, which = divmod(code, passes.PASSES)
        ahead = which in (passes.FORWARD, passes.BESIDE)
        part = {passes.INPUTS: INPUTS, passes.WEIGHTS: WEIGHTS}.get(which, WHOLE)
        what = "ahead" if ahead else "weights" if part == WEIGHTS else "back"
        if part == WHOLE and not ahead:
            count["weights", n] += 1
        found.append(Task(ahead, n, count[what, n], part, which == passes.BESIDE))
        count[what, n] += 1
        if not count["weights", n] <= count["back", n] <= count["ahead", n]:
            raise KernelError("simulation: a task comes before another one that it needs")
    if any(number != m for number in count.values()):
        raise KernelError("simulation: tasks are missing")
    return tuple(found)


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


def _interleaved(stage: int, p: int, m: int, v: int, group: int) -> tuple[Task, ...]:
    """1F1B over chunks (arXiv:2104.04473, section 2.2.2), in the order of Megatron-Core.

    A group of micro-batches (p by default) passes chunk 0, then chunk 1, and so on; backward from
    the last chunk. A stage warms up with 2 (p - s - 1) + (v - 1) group chunk forwards
    (`forward_backward_pipelining_with_interleaving`).
    """
    warm = min(2 * (p - stage - 1) + (v - 1) * group, m * v)
    forward = [Task(True, c, k) for c, k in _rounds(group, m, range(v))]
    backward = [Task(False, c, k) for c, k in _rounds(group, m, range(v - 1, -1, -1))]
    return _in_turn(forward, backward, warm)


def _rounds(group: int, m: int, chunks: range) -> Iterator[tuple[int, int]]:
    """Chunk and micro-batch: groups of micro-batches through all chunks."""
    for first in range(0, m, group):
        for chunk in chunks:
            for number in range(first, min(first + group, m)):
                yield chunk, number


def _in_turn(forward: list[Task], backward: list[Task], warm: int) -> tuple[Task, ...]:
    """Some forwards, pairs of a forward and a backward, then the remaining backwards."""
    pairs = chain.from_iterable(zip(forward[warm:], backward, strict=False))
    return (*forward[:warm], *pairs, *backward[len(forward) - warm:])


class MemoryLevel(NamedTuple):
    """Bytes of activations, and of work, while a task runs and after it."""

    during: float
    after: float


def levels(order: Sequence[Task], chunks: Sequence[ChunkMemory]) -> list[MemoryLevel]:
    """What a stage holds during and after each of its tasks.

    A micro-batch's activations are held from the start of its forward to the end of its backward;
    work within a layer only during a backward. A backward for inputs leaves what the one
    for weights needs. A backward beside a forward frees its layers as the forward needs theirs, one
    layer later.
    """
    held, left = [0] * len(chunks), [0] * len(chunks)
    largest, begun = max(chunk.layer for chunk in chunks), None
    found = []

    def now() -> float:
        return sum(whole * c.activations + part * c.kept
                   for whole, part, c in zip(held, left, chunks, strict=True))

    for task in order:
        before = now()
        if task.forward:
            held[task.chunk] += 1
            begun = before if task.beside else None
            found.append(MemoryLevel(before, before) if task.beside else MemoryLevel(now(), now()))
            continue
        if task.part != WEIGHTS:
            held[task.chunk] -= 1
        if task.part != WHOLE:
            left[task.chunk] += 1 if task.part == INPUTS else -1
        most = max(before, now()) if begun is None else max(begun, now()) + largest
        found.append(MemoryLevel(most + chunks[task.chunk].work, now()))
        begun = None
    return found


def peak(order: Sequence[Task], chunks: Sequence[ChunkMemory]) -> float:
    """Most bytes of activations and work at once."""
    return max(level.during for level in levels(order, chunks))
