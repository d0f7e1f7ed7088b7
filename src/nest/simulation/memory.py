"""Activations that a stage holds from task to task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.simulation.figures import ChunkMemory
from nest.simulation.tasks import INPUTS, WEIGHTS, WHOLE, Task


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
