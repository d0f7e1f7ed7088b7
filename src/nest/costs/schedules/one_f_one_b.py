"""1F1B: a stage runs one forward and one backward in turn (arXiv:2104.04473, section 2.2).

The critical path of 1F1B is one stage's own micro-batches, or round trips from a stage through
some of those behind it, one after another. ``add_stage`` takes the longest of: the stage alone,
with the round trip that its first and its last micro-batch wait for; what backwards in a row take
in the drain, of the stage or of one behind it; full round trips back to back, as a window of n+1
micro-batches in flight allows; round trips to the next stage only, where two micro-batches take
one of them and a pass of both stages. Against an event simulation of random
pipelines it is exact for even stages without hand-over, and within 2 % for 99 % of those whose
stages differ by less than 10 % with hand-overs up to 0.3 forward times (``docs/algorithm.md``).
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
    """t of the stage alone."""
    before_last: float = -math.inf
    """From its first forward to its last backward but one; -inf: no stage gathers (ZeRO-3)."""


def add_stage(v: Behind, c: ChunkCosts, hop: float, n: int, m: int) -> tuple[Behind, float]:
    """Put a stage in front of ``n`` others; also when its last forward ends at the least.

    ``home`` is when the last backward may start as far as the stage itself goes, ``last`` as far
    as the last backward but one does that a stage behind ended with what it gathers behind it.
    The latter is asked of stages that gather alone, whatever they hide, so that no second more of
    computing shortens it (docs/algorithm.md).
    """
    f, gathers = c.forward, c.gathers and m > 1
    end = c.backward - c.late
    b = c.backward if m > 1 else end
    t, chase = f + b, c.pace - c.turn
    if n == 0:
        sent = f + (m - 1) * (t + chase + c.turn)
        last = sent - chase - f if gathers else -math.inf
        return Behind(sent + c.turn + end, t + c.turn, t, last), sent
    trip, queued = v.after + hop, b + c.queue
    # The next stage goes back first when it has gone forward as often as it may.
    first = max(trip, (min(m, n) - 1) * (f + c.queue_forward) + hop + v.behind)
    last = f + hop + v.before_last + queued
    if m < n + 2:  # all forwards in a row, then all backwards
        sent = m * f + (m - 1) * c.queue_forward
        home = f + max((m - 1) * (f + c.queue_forward) + c.turn, first) + (m - 1) * queued
    else:
        sent = (f + max(n * (f + c.queue_forward) + c.turn, first)
                + (m - n - 1) * (t + chase) + (m - n - 2) * c.turn)
        home = sent + c.turn + n * queued
    if gathers:
        last = max(last, home)
    rest = max(home, sent + trip, f + hop + v.rest, last) + end
    if m >= n + 2:
        full, left = divmod(m - 1, n + 1)
        rest = max(rest, (full + 1) * (t + trip) + full * chase - (b - end)
                   + left * max(f, b, (v.rest - v.after) / (m - 1)))
        pair = t + hop + v.behind
        ends = max(trip + t, n * f + b + pair - t) + max(trip + t, n * b + f + pair - t)
        rest = max(rest, ends + (m - n - 2) * pair / 2 - (b - end))
    return Behind(rest, t + trip, t, last - c.queue), sent


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

    - ``rest``, ``after``: see :func:`add_stage`;
    - ``done``, ``idle``: until it and all behind it that hold no copy have finished; and the same
      from the arrival of a micro-batch that finds them idle, which is what the last one does
      behind a slow stage;
    - ``ready``, ``idle_ready``: until those that hold one have reduced their gradients;

    and, from the start of the step, when stages gather their parameters too: ``back``, the last
    backward of the stage, ``end``, all that follows it and those behind.

    Notes
    -----
    Non-decreasing in every time; a second more of a wait or of what is left after the backward
    costs a second at the most. See docs/algorithm.md.
    """
    m, depth = micro_batches, len(stages)
    v, exchange = Behind(), 0.0
    done = idle = ready = idle_ready = back = end = -math.inf
    for s in range(depth - 1, -1, -1):
        n, c = depth - 1 - s, stages[s]
        both, gap = hops[s] if n else (0.0, 0.0)
        v, sent = add_stage(v, c, both, n, m)
        late = c.late if m > 1 else 0.0
        if n:
            v = v._replace(rest=max(v.rest, v.after - late + (m - 1) * gap))
        sent = max(sent, c.forward + (m - 1) * gap)
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
