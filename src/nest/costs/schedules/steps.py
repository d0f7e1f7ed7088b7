"""What every schedule answers."""

from __future__ import annotations

from typing import NamedTuple


class StepTime(NamedTuple):
    """Seconds of a step."""

    pipeline: float
    """First forward to last backward of the first stage."""
    finish: float
    """What gradients, optimizer and parameters of any stage take longer than that."""

    @property
    def total(self) -> float:
        return self.pipeline + self.finish
