"""Times of a log, divided: the usual step, slow steps among them, and drift.

The mean of all steps is the sum of the three. Drift is the line of Theil and Sen (Sen, JASA 1968)
through the medians of blocks, if the steps at its ends differ; slow steps are those that lie beyond
the spread of the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import theilslopes

Steps = npt.NDArray[np.float64]
LEAST_DRIFT, LEAST_STALL = 0.02, 0.05
"""Shares of a step below which neither is told (chosen)."""
FEWEST = 9
"""Steps without which neither is told (chosen)."""
_BLOCKS = 120
"""Medians that the line goes through at the most: its time grows with their square."""
_SPREADS = 5.0
"""Standard deviations beyond which a step is slow (chosen)."""


class StepParts(NamedTuple):
    """Seconds of a step; the first three add up to the mean."""

    usual: float
    slow: float
    """What slow steps take more, spread over all."""
    drift: float
    """What steps take more than at the end of the line where they are quickest."""
    slow_at: npt.NDArray[np.int64]
    """Positions of slow steps."""
    every: int | None
    """Steps from one slow step to the next; None: not regular."""
    worst: float
    """Median seconds of slow steps."""
    grows: bool
    """Steps take longer at the end than at the beginning."""


def divided(steps: Steps) -> StepParts:
    """Divide the times of steps, shape (n,), n from 1 on; below 9 steps all is usual."""
    mean = float(steps.mean())
    none = np.zeros(0, dtype=np.int64)
    if len(steps) < FEWEST:
        return StepParts(mean, 0.0, 0.0, none, None, 0.0, False)
    line, grows = _line(steps)
    rest = steps - line
    middle = float(np.median(rest))
    spread = 1.4826 * float(np.median(np.abs(rest - middle)))
    limit = middle + max(_SPREADS * spread, LEAST_STALL * float(np.median(steps)))
    at = np.flatnonzero(rest > limit)
    if 2 * len(at) > len(steps):  # most steps are no exception
        at = none
    usual_rest = float(np.delete(rest, at).mean())
    slow = float((rest[at] - usual_rest).sum()) / len(steps)
    drift = float((line - line.min()).mean())
    return StepParts(mean - slow - drift, slow, drift, at, _every(at),
                     float(np.median(steps[at])) if len(at) else 0.0, grows)


def _line(steps: Steps) -> tuple[Steps, bool]:
    """The trend of steps, constant unless its ends differ beyond doubt; whether it rises."""
    places = np.array_split(np.arange(len(steps)), min(_BLOCKS, len(steps)))
    at = np.array([one.mean() for one in places])
    level = np.array([np.median(steps[one]) for one in places])
    slope, start, low, high = theilslopes(level, at)
    flat = np.full(len(steps), float(np.median(steps)))
    if low <= 0.0 <= high or abs(slope) * len(steps) < LEAST_DRIFT * flat[0]:
        return flat, False
    return start + slope * np.arange(len(steps), dtype=np.float64), slope > 0.0


def _every(at: npt.NDArray[np.int64]) -> int | None:
    """The distance of slow steps, if they come regularly."""
    if len(at) < 3:
        return None
    gaps = np.diff(at)
    middle = float(np.median(gaps))
    regular = np.abs(gaps - middle) <= max(1.0, 0.1 * middle)
    return round(middle) if middle > 1 and regular.mean() >= 0.8 else None
