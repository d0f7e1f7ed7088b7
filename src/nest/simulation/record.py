"""The events of a simulation for a trace: slices of time on the streams of the stages."""

from __future__ import annotations

from typing import NamedTuple

COMPUTE, DATA, AHEAD, BACK = range(4)
"""Streams of a stage: computing, data-parallel traffic, links to the next and previous stage."""


class Slice(NamedTuple):
    """An activity of a stream, with start and end."""

    stage: int
    stream: int
    name: str
    start: float
    end: float
    task: int = -1
    """Position of a task in the stage's order."""


class Record:
    """Slices of some micro-batches.

    Parameters
    ----------
    kept : micro-batches at each end of the step whose slices are kept; the others are left out.
    micro_batches : of the step.
    """

    def __init__(self, kept: int, micro_batches: int) -> None:
        self.slices: list[Slice] = []
        first, last = kept, micro_batches - kept
        self.left_out = range(first, max(first, last))
        """Micro-batches without slices."""

    def wants(self, micro_batch: int) -> bool:
        """Whether slices of a micro-batch are kept; -1 stands for the step as a whole."""
        return micro_batch not in self.left_out
