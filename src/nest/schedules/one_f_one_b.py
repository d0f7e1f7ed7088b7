"""1F1B: a stage runs one forward and one backward in turn (arXiv:2104.04473, section 2.2).

The step is a longest path through all passes. ``add_stage`` follows those that such paths are made
of: forwards of a stage in a row, then round trips from it through some of the stages behind, then
backwards in a row; the same with the round trips of the next stage alone; and those of the stages
behind, left one, half or none of the micro-batches before the last. Each is a path, so that without
ZeRO-2 and 3 the form is never above an event simulation. It is exact for stages that are alike
without hand-over; docs/simulation.md has its errors for others.

Figures of a stage and those behind it, in seconds from the first forward of the stage on:

- REST: until its last backward ends; BEFORE_LAST, BEFORE_HALF: until the last one but one ends, and
  the one behind which m // 2 follow; -inf where there is but one;
- AFTER: no time, but t = f + b of it and the stages behind plus the round-trip hand-overs between
  them, and what the last stage takes longer to turn round; BEHIND: the same of the stage alone;
  PAIR: of a round trip to the next stage, 0 for the last stage;
- LAST_TRIP: from the start of its last forward to the end of its last backward;
- DONE, IDLE: until it and all behind it that hold no copy of a tied embedding have finished; and
  the same from the arrival of a micro-batch that finds them idle, which is what the last one does
  behind a slow stage;
- READY, IDLE_READY: until those that hold one have reduced their gradients; EXCHANGE: what they do
  then;
- BACK, END: from the start of the step, when stages gather their parameters too, until the last
  backward of the stage, and until it and all behind it have finished;
- SHARE: no time, but of what the stage hands over the share on one lane. Labels of the search
  carry it; the form leaves it alone.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from nest.schedules.chunk import ChunkCosts
from nest.schedules.stage import StageSeconds

# Labels are compared in this order; without copies of an embedding the last three decide nothing.
(REST, AFTER, DONE, IDLE, BACK, END, BEHIND, SHARE, BEFORE_LAST, PAIR, LAST_TRIP, BEFORE_HALF,
 READY, IDLE_READY, EXCHANGE) = range(15)
FIGURES, UNTIED = 15, 12
NEVER = -float("inf")
NOTHING = (0.0, 0.0, NEVER, NEVER, NEVER, NEVER, 0.0, 0.0, NEVER, 0.0, 0.0, NEVER, NEVER, NEVER,
           0.0)
"""Figures behind the last stage."""


def stage_of(c: ChunkCosts) -> StageSeconds:
    """A stage of one chunk, whose figures are those of :mod:`nest.schedules.chunk`."""
    trailing = max(0.0, c.trailing - c.trails_backward)
    tied = c.tied > 0.0
    return StageSeconds(
        c.forward, c.backward, c.backward - c.late, c.turn,
        c.chase + max(0.0, c.trailing - c.trails_forward - c.trails_backward),
        c.queue_forward, c.queue_backward + c.late_back - c.late + trailing, c.wait,
        c.left if tied else c.left + c.update, c.tied + c.update if tied else 0.0)


def add_stage(
    old: Sequence[float], stage: StageSeconds, both: float, gap: float, n: int, m: int, half: int,
    new: MutableSequence[float],
) -> None:
    """Fill ``new`` with the figures of a stage in front of the ``n`` that have ``old``.

    ``both`` and ``gap`` are those of the hand-over between them, ``m`` the micro-batches; ``half``
    is m // 2, or 0 where no stage is asked for BEFORE_HALF: none has as many behind it.

    Notes
    -----
    Non-decreasing in every time; a second more of a wait or of what is left after the backward
    costs a second at the most: docs/proofs.md, Lemma 11 (dominance).
    """
    sent = add_passes(old, stage, both, gap, n, m, half, new)
    f, rest, left, exchange = stage.forward, new[REST], stage.left, old[EXCHANGE]
    idle_rest = new[AFTER] - (stage.backward - stage.last if m > 1 else 0.0)
    down, behind = f + both / 2, sent + both / 2
    done, idle = max(down + old[DONE], behind + old[IDLE]), down + old[IDLE]
    ready, idle_ready = max(down + old[READY], behind + old[IDLE_READY]), down + old[IDLE_READY]
    if stage.later > 0.0:
        ready, idle_ready = max(ready, rest + left), max(idle_ready, idle_rest + left)
        exchange = max(exchange, stage.later)
        left += exchange
    else:
        done, idle = max(done, rest + left), max(idle, idle_rest + left)
    back = max(stage.wait + rest, stage.last + both / 2 + old[BACK])
    new[END] = max(stage.wait + max(done, ready + exchange), back + left, old[END])
    new[DONE], new[IDLE], new[BACK] = done, idle, back
    new[READY], new[IDLE_READY], new[EXCHANGE] = ready, idle_ready, exchange


def add_passes(
    old: Sequence[float], stage: StageSeconds, both: float, gap: float, n: int, m: int, half: int,
    new: MutableSequence[float],
) -> float:
    """The same of the figures that follow passes; when the last forward ends at the least.

    ``first`` is the start of the first backward, ``home`` that of the last one as far as the stage
    itself goes; ``leaves`` the end of the last forward, or when the last micro-batch would have
    gone forward to arrive at a next stage that runs the others in turn without this one. Behind
    the first backward the others end one after another, the last ones no slower than on average.
    """
    f, end, turn, chase = stage.forward, stage.last, stage.turn, stage.chase
    b = stage.backward if m > 1 else end
    t, row, queued, arrived = f + b, f + stage.queue_forward, b + stage.queue_backward, f + both
    trip = both + old[AFTER] if n else turn
    two, three = both + old[BEHIND], both + old[PAIR]
    # The next stage goes back first when it has gone forward as often as it may; so does the one
    # behind it. In the drain they have gone back as often when the last one arrives.
    most, fewer = min(m, n) - 1, min(m - 1, n - 2)
    away = max(trip, most * row + two, fewer * row + three)
    first, swap = f + max(min(m - 1, n) * row + turn, away), t + turn + chase
    trips = (swap, max(swap, old[BEHIND]), t + two + chase, t + three + chase, t + trip + chase)
    if m < n + 2:  # all forwards in a row, then all backwards
        sent = m * f + (m - 1) * stage.queue_forward
        home = first + (m - 1) * queued
    else:
        sent = first + b + chase + passing(m - n - 2, n, trips) + f
        home = sent + turn + n * queued
    leaves = sent
    if m > n:
        leaves = max(sent, f + away - both + (m - n - 1) * old[BEHIND])
    rest = after = t + trip
    new[AFTER], new[BEHIND], new[PAIR] = after, t + turn, t + two if n else 0.0
    new[BEFORE_LAST] = new[BEFORE_HALF] = NEVER
    # Backwards with j others behind them, by way of the stage's own, of the last trip, or of the
    # stages behind, left k before the last, and from there on in a row.
    for point in range(1 if m == 1 else 3 if half else 2):
        j, figure = (0, 1, half)[point], (REST, BEFORE_LAST, BEFORE_HALF)[point]
        start, drain = home - j * queued, NEVER
        if j > n and m > n + 1:
            start = first + passing(m - 1 - j, n, trips)
        if j == 0:
            start, drain = max(start, sent + trip), both + old[LAST_TRIP]
        if most >= max(j, 1):
            drain = max(drain, (most - j) * queued + two)
        if fewer >= max(j, 1):
            drain = max(drain, (fewer - j) * queued + three)
        start = max(start, leaves + drain, arrived + old[figure])
        if j < 1 <= n:
            start = max(start, arrived + old[BEFORE_LAST] + queued)
        if j < half <= n:
            start = max(start, arrived + old[BEFORE_HALF] + (half - j) * queued)
        if j == 0:
            rest = max(start + end, after + end - b + (m - 1) * gap)
            new[LAST_TRIP] = f + max(drain, turn + min(m - 1, n) * queued) + end
            new[REST] = rest
        else:
            new[figure] = max(start + b, rest - j * ((rest - after) / (m - 1)))
    return max(sent, f + (m - 1) * gap)


def passing(count: int, n: int, trips: tuple[float, float, float, float, float]) -> float:
    """Seconds in which ``count`` micro-batches pass a stage that runs in turn, ``n`` behind it.

    One passes while a forward and a backward take turns, here or (second) on the next stage; two
    in a round trip to the next stage, three to the one behind it, and n + 1 in one through all.
    """
    whole, left = count // (n + 1), count % (n + 1)
    return max(in_short_trips(count, trips), whole * trips[4] + in_short_trips(left, trips))


def in_short_trips(count: int, trips: tuple[float, float, float, float, float]) -> float:
    """The same by trips of one length and what is left over by those that are shorter."""
    one, pair, left = trips[1], trips[2], count % 3
    return max(count * trips[0], count // 2 * pair + count % 2 * one,
               count // 3 * trips[3] + left // 2 * pair + left % 2 * one)
