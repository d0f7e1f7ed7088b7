"""A stage of one chunk as the forms of 1F1B and GPipe take it."""

from __future__ import annotations

from typing import NamedTuple


class StageSeconds(NamedTuple):
    """Seconds of a micro-batch on a stage, and of what comes before the first and after the last.

    GPipe runs no forward behind a backward; its backwards but the last have others behind them.
    """

    forward: float
    """After the stage has waited for it."""
    backward: float
    """With another pass behind it."""
    last: float
    """With none: the last backward of a step, and no longer than the others."""
    turn: float
    """What a backward takes longer right behind a forward."""
    chase: float
    """What a forward takes longer right behind a backward."""
    queue_forward: float
    """What a forward takes longer right behind a forward."""
    queue_backward: float
    """What a backward takes longer right behind a backward."""
    wait: float
    """What the first forward waits for parameters, had it come at the start of the step."""
    left: float
    """After the last backward until gradients are reduced; of a stage that holds no copy of a tied
    embedding also the optimizer."""
    later: float
    """Exchange of gradients with other copies, and the optimizer; 0: it holds none."""
