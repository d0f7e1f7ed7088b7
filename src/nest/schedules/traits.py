"""What every schedule has, as data, and what it answers of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Placement = Literal["looped", "folded", "crossed"]
"""Where in the model the chunks of stages are: around the pipeline; in a V, 0, 1, ..., p - 1,
p - 1, ..., 1, 0; or twice, 0, 1, ..., p - 1 and p - 1, ..., 1, 0, with micro-batches from both
ends."""
MANY = 10**4


Slack = Literal["none", "some", "all"]
"""Whether a pass may be late without delaying the step, where micro-batches take unlike times: not
where each stage has as few micro-batches in flight as keep it busy; where it has more; where all
forwards come first."""


class Hop(NamedTuple):
    """Handing a micro-batch to the next stage, and its gradient back; seconds."""

    both: float
    """Both directions, minus what compute hides."""
    gap: float
    """Seconds that a message occupies its lanes, one way: the least distance of two arrivals."""


class StepTime(NamedTuple):
    """Seconds of a step."""

    pipeline: float
    """First forward to last backward of the first stage."""
    finish: float
    """What gradients, optimizer and parameters of any stage take longer than that."""

    @property
    def total(self) -> float:
        return self.pipeline + self.finish


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a schedule asks of a configuration, and what others call it."""

    label: str = ""
    """Its name in reports."""
    placement: Placement = "looped"
    least_chunks: int = 1
    """Chunks of a stage of a pipeline."""
    most_chunks: int = 1
    alone: bool = False
    """One stage may have it, with one chunk."""
    rounds: int = 0
    """Micro-batches at the least, in multiples of the stages."""
    lean: bool = False
    """Stages may hold fewer micro-batches than under 1F1B."""
    most_zero: int = 3
    """Largest ZeRO stage: parameters that are gathered for every pass are not priced between the
    parts of a backward."""
    slack: Slack = "some"
    written: str = ""
    """Pattern of cells that name it in tables of runs."""
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What a framework calls it, by the name of the export target."""

    @property
    def copies(self) -> int:
        """Copies of the model that the stages of a pipeline hold together.

        Each has its part of the micro-batches.
        """
        return 2 if self.placement == "crossed" else 1
