"""GPipe: all micro-batches forward, then all backward (arXiv:1811.06965, section 2.3).

Both phases are flow shops whose jobs are all alike, so that the first micro-batch passes all stages
and the others follow at the pace of the slowest stage or link. Where a stage behind waits longer
for its parameters than for the first micro-batch, it and those behind begin that much later. All
else is counted from the turn, when the last stage has run its last forward. Exact for all stages.

Figures of a stage and those behind it, in seconds:

- DOWN, UP: one micro-batch forward through them, and backward;
- SLOWEST_FORWARD, SLOWEST_BACKWARD: of them and the links between them, with what passes take
  longer in a row;
- TURNED: the turn, from the start of the step;
- RETURNED, DONE, READY: from the turn until the last backward of the stage; until those that hold
  no copy of a tied embedding have finished; until those that hold one have reduced their gradients;
- EXCHANGE, END, SHARE: as in :mod:`nest.schedules.one_f_one_b`.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from nest.schedules.chunk import ChunkCosts
from nest.schedules.stage import StageSeconds

# END and SHARE have the numbers that they have under 1F1B; the last two are of copies alone.
(DOWN, UP, SLOWEST_FORWARD, SLOWEST_BACKWARD, TURNED, END, RETURNED, SHARE, DONE, READY,
 EXCHANGE) = range(11)
FIGURES, UNTIED = 11, 9
NEVER = -float("inf")
NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0, NEVER, 0.0, 0.0, NEVER, NEVER, 0.0)
"""Figures behind the last stage."""


def stage_of(c: ChunkCosts) -> StageSeconds:
    """A stage of one chunk, whose figures are those of :mod:`nest.schedules.chunk`.

    All backwards but the last have one behind.
    """
    last, trailing = c.backward - c.late, max(0.0, c.trailing - c.trails_backward)
    tied = c.tied > 0.0
    return StageSeconds(
        c.forward, last + c.late_back, last, c.turn, 0.0, c.queue_forward,
        c.queue_backward + trailing, c.wait,
        c.left if tied else c.left + c.update, c.tied + c.update if tied else 0.0)


def add_stage(
    old: Sequence[float], stage: StageSeconds, both: float, gap: float, n: int, m: int,
    new: MutableSequence[float],
) -> None:
    """Fill ``new`` with the figures of a stage in front of the ``n`` that have ``old``.

    ``both`` and ``gap`` are those of the hand-over between them, ``m`` the micro-batches. No figure
    falls when a time grows.
    """
    b, end, before = stage.backward, stage.last, both / 2 if n else stage.turn
    queue = stage.queue_backward
    down, up = stage.forward + both / 2 + old[DOWN], b + before + old[UP]
    forward = max(old[SLOWEST_FORWARD], stage.forward + stage.queue_forward, gap)
    backward = max(old[SLOWEST_BACKWARD], b + queue, gap)
    back, done, ready, exchange = old[RETURNED] + before + end, old[DONE], old[READY], old[EXCHANGE]
    if m > 1:
        back = max(back, up + (m - 2) * backward + max(queue, gap - b) + end)
    if stage.later > 0.0:
        ready, exchange = max(ready, back + stage.left), max(exchange, stage.later)
    else:
        done = max(done, back + stage.left)
    turned = max(old[TURNED], stage.wait + down + (m - 1) * forward)
    new[DOWN], new[UP], new[SLOWEST_FORWARD], new[SLOWEST_BACKWARD] = down, up, forward, backward
    new[RETURNED], new[DONE], new[READY], new[EXCHANGE] = back, done, ready, exchange
    new[TURNED], new[END] = turned, turned + max(done, ready + exchange)
