"""1F1B: a stage runs one forward and one backward in turn (arXiv:2104.04473, section 2.2).

The step is a longest path through all passes. ``add_stage`` follows those that such paths are made
of: forwards of a stage in a row, then round trips from it through some of the stages behind, then
backwards in a row; the same with the round trips of the next stage alone; and those of the stages
behind, left one, half or none of the micro-batches before the last. Each is a path, so that without
ZeRO-2 and 3 the form is never above an event simulation. It is exact for stages that are alike
without hand-over; what it misses of others is in ``docs/proofs.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop


class Behind(NamedTuple):
    """What :func:`add_stage` carries; seconds."""

    rest: float = 0.0
    """From the first forward of the stage to its last backward."""
    after: float = 0.0
    """t = f + b of it and the stages behind plus the round-trip hand-overs between them, and what
    the last stage takes longer to turn round."""
    behind: float = 0.0
    """t of the stage alone, and what it takes longer to turn round."""
    pair: float = 0.0
    """The same of a round trip to the next stage, the hand-over included; 0 for the last stage."""
    last_trip: float = 0.0
    """From the start of its last forward to the end of its last backward."""
    before_last: float = -math.inf
    """From its first forward to its last backward but one; -inf: there is but one."""
    before_half: float = -math.inf
    """From its first forward to the backward behind which m // 2 follow; -inf: there is but one."""


def add_stage(v: Behind, c: ChunkCosts, hop: Hop, n: int, m: int) -> tuple[Behind, float]:
    """Put a stage in front of ``n`` others; also when its last forward ends at the least.

    ``first`` is the start of the first backward, ``home`` that of the last one as far as the stage
    itself goes; ``leaves`` the end of the last forward, or when the last micro-batch would have
    gone forward to arrive at a next stage that runs the others in turn without this one. Behind
    the first backward the others end one after another, the last ones no slower than on average.
    """
    f, half, (both, gap) = c.forward, m // 2, hop
    end = c.backward - c.late
    b = c.backward if m > 1 else end
    t, queued, row = f + b, b + c.queue, f + c.queue_forward
    swap = t + c.pace
    if n == 0:
        first = f + c.turn
        ends, sent = first + (m - 1) * swap, first + (m - 1) * swap - c.turn
        after, pair, last_trip = t + c.turn, 0.0, first + end
        early_ends, half_ends = ends - swap, ends - half * swap
    else:
        trip, chase = v.after + both, c.pace - c.turn
        # The next stage goes back first when it has gone forward as often as it may; so does the
        # one behind it. In the drain they have gone back as often when the last one arrives.
        most, fewer = min(m, n) - 1, min(m - 1, n - 2)
        away = max(trip, most * row + both + v.behind, fewer * row + both + v.pair)
        first = f + max(min(m - 1, n) * row + c.turn, away)
        drains = [
            both + max(v.last_trip if j == 0 else -math.inf,
                       (most - j) * queued + v.behind if most >= max(j, 1) else -math.inf,
                       (fewer - j) * queued + v.pair if fewer >= max(j, 1) else -math.inf)
            for j in (0, 1, half)]
        after, pair = t + trip, t + both + v.behind
        trips = swap, v.behind, pair + chase, t + both + v.pair + chase, after + chase
        if m < n + 2:  # all forwards in a row, then all backwards
            sent = m * f + (m - 1) * c.queue_forward
            home = first + (m - 1) * queued
        else:
            sent = first + b + chase + _between(m - n - 2, n, *trips) + f
            home = sent + c.turn + n * queued
        leaves = sent
        if m > n:
            leaves = max(sent, f + away - both + (m - n - 1) * v.behind)
        ends = max(home, sent + trip, leaves + drains[0], f + both + v.rest,
                   f + both + v.before_last + queued)
        early_ends = max(home - queued, leaves + drains[1], f + both + v.before_last)
        half_ends = max(leaves + drains[2], f + both + v.before_half)
        if half <= n:
            ends = max(ends, f + both + v.before_half + half * queued)
            early_ends = max(early_ends, f + both + v.before_half + (half - 1) * queued)
            half_ends = max(half_ends, home - half * queued)
        else:
            half_ends = max(half_ends, first + _between(m - 1 - half, n, *trips))
        last_trip = f + max(drains[0], c.turn + min(m - 1, n) * queued) + end
    rest = max(ends + end, after + end - b + (m - 1) * gap)
    early = [-math.inf, -math.inf]
    if m > 1:
        pace = (rest - after) / (m - 1)
        early = [max(early_ends + b, rest - pace), max(half_ends + b, rest - half * pace)]
    found = Behind(rest, after, t + c.turn, pair, last_trip, *early)
    return found, max(sent, f + (m - 1) * gap)


def _between(
    count: int, n: int, swap: float, other: float, pair: float, three: float, full: float
) -> float:
    """Seconds in which ``count`` micro-batches pass a stage that runs in turn, ``n`` behind it.

    One passes while a forward and a backward take turns, here (``swap``) or on the next stage
    (``other``); two in a round trip to the next stage (``pair``), three to the one behind it, and
    n + 1 in one through all (``full``).
    """
    def short(left: int) -> float:
        pairs, one = max(swap, other), left % 3
        return max(left * swap, left // 2 * pair + left % 2 * pairs,
                   left // 3 * three + one // 2 * pair + one % 2 * pairs)

    trips, left = divmod(count, n + 1)
    return max(short(count), trips * full + short(left))


def held(
    activations: Sequence[float], stage: int, stages: int, micro_batches: int
) -> float:
    """Most bytes of activations that a stage holds at once; a stage is one chunk."""
    return in_flight(stage, stages, micro_batches, 1) * activations[0]


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most micro-batches of which a stage holds the activations at once."""
    return min(stages - stage, micro_batches)


def step_time(
    stages: Sequence[ChunkCosts], hops: Sequence[Hop], micro_batches: int
) -> StepTime:
    """Seconds of a 1F1B step, first stage first; ``hops[s]`` is between stages s and s+1.

    A stage reduces its gradients and updates its parameters once its own last backward has ended;
    stages with copies of tied embeddings exchange their gradients in between, when all of them are
    ready. The step ends with the last stage. Times are carried from the last stage to the first,
    from the first forward of a stage on:

    - ``rest``, ``after``: see :class:`Behind`;
    - ``done``, ``idle``: until it and all behind it that hold no copy have finished; and the same
      from the arrival of a micro-batch that finds them idle, which is what the last one does
      behind a slow stage;
    - ``ready``, ``idle_ready``: until those that hold one have reduced their gradients;

    and, from the start of the step, when stages gather their parameters too: ``back``, the last
    backward of the stage, ``end``, all that follows it and those behind.

    Notes
    -----
    Non-decreasing in every time; a second more of a wait or of what is left after the backward
    costs a second at the most. See docs/proofs.md.
    """
    m, depth = micro_batches, len(stages)
    v, exchange = Behind(), 0.0
    done = idle = ready = idle_ready = back = end = -math.inf
    for s in range(depth - 1, -1, -1):
        n, c = depth - 1 - s, stages[s]
        hop = hops[s] if n else Hop(0.0, 0.0)
        both, late = hop.both, c.late if m > 1 else 0.0
        v, sent = add_stage(v, c, hop, n, m)
        f, last = c.forward + both / 2, c.left + c.update
        done, idle = max(f + done, sent + both / 2 + idle), f + idle
        ready, idle_ready = max(f + ready, sent + both / 2 + idle_ready), f + idle_ready
        if c.tied:
            ready = max(ready, v.rest + c.left)
            idle_ready = max(idle_ready, v.after - late + c.left)
            exchange = max(exchange, c.tied + c.update)
            last = c.left + exchange
        else:
            done, idle = max(done, v.rest + last), max(idle, v.after - late + last)
        back = max(c.wait + v.rest, c.backward - c.late + both / 2 + back)
        end = max(c.wait + max(done, ready + exchange), back + last, end)
    return StepTime(v.rest, end - v.rest)
