"""Activations that a stage holds from task to task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.simulation.parts import ChunkMemory
from nest.simulation.work import Task


class Level(NamedTuple):
    """Bytes of activations, and of work, while a task runs and after it."""

    during: float
    after: float


def levels(order: Sequence[Task], chunks: Sequence[ChunkMemory]) -> list[Level]:
    """What a stage holds during and after each of its tasks.

    A micro-batch's activations are held from the start of its forward to the end of its backward;
    work within a layer only during a backward.
    """
    held = [0] * len(chunks)
    found = []
    for task in order:
        chunk = chunks[task.chunk]
        held[task.chunk] += task.forward
        now = sum(count * c.activations for count, c in zip(held, chunks, strict=True))
        if task.forward:
            found.append(Level(now, now))
        else:
            held[task.chunk] -= 1
            found.append(Level(now + chunk.work, now - chunk.activations))
    return found


def peak(order: Sequence[Task], chunks: Sequence[ChunkMemory]) -> float:
    """Most bytes of activations and work at once."""
    return max(level.during for level in levels(order, chunks))
