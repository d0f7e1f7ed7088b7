"""Step times of the schedules for the oracle, stage by stage from the last to the first.

All arrays hold one entry per plan; ``n`` is the number of stages behind the new one.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from oracle_prices import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Behind = tuple[Floats, ...]
"""What a schedule carries from the stages behind to the one in front."""


class Schedule(Protocol):
    """A schedule of which each stage holds one range of layers."""

    name: str

    def in_flight(self, n: int, m: Ints) -> Ints:
        """Micro-batches that a stage holds at once."""

    def nothing(self, count: int) -> Behind:
        """What is carried behind the last stage of ``count`` plans."""

    def put(self, behind: Behind, n: int, m: Ints, run: Run, hop: Floats, gap: Floats) -> Behind:
        """Put a stage in front; hand-over there and back, and what a message fills its lanes."""

    def seconds(self, behind: Behind) -> Floats:
        """The step, when there is nothing more in front."""


class OneFOneB:
    """Paths of docs/proofs.md, Lemma 9 (paths); carried are a :class:`Front`, and how it starts and
    ends.

    ``done`` and ``idle``: until all have finished that hold no copy of a tied table. ``ready`` and
    ``idle_ready``: until the gradients of all copies are there; ``exchange``: what copies do then.
    ``back``: the latest end of the new stage's last backward, because a stage waited for
    parameters; ``end``: of the step.
    """

    name = "1f1b"

    def in_flight(self, n: int, m: Ints) -> Ints:
        return np.minimum(n + 1, m)

    def nothing(self, count: int) -> Behind:
        return (np.zeros(count),) * 7 + (np.full(count, -np.inf),) * 7

    def put(self, behind: Behind, n: int, m: Ints, run: Run, hop: Floats, gap: Floats) -> Behind:
        done, idle, ready, idle_ready, exchange, back, end = behind[7:]
        f, last, copy = run.forward, run.backward, run.tied > 0.0
        left, wait = run.scattered + run.left, run.gathered + run.wait
        front, last_f, late = add_front(Front(*behind[:7]), run, hop, n, m)
        rest, after = front.rest, front.after
        if n:
            rest = np.maximum(rest, after - late + (m - 1) * gap)
        # A stage behind starts ``later`` than this one; its last micro-batch leaves here at `sent`.
        later = f + hop / 2
        sent = hop / 2 + np.maximum(last_f, f + (m - 1) * gap)
        done = np.maximum(later + done, sent + idle)
        idle = later + idle
        ready = np.maximum(later + ready, sent + idle_ready)
        idle_ready = later + idle_ready
        own = left + run.update
        done = np.where(copy, done, np.maximum(done, rest + own))
        idle = np.where(copy, idle, np.maximum(idle, after - late + own))
        ready = np.where(copy, np.maximum(ready, rest + left), ready)
        idle_ready = np.where(copy, np.maximum(idle_ready, after - late + left), idle_ready)
        exchange = np.where(copy, np.maximum(exchange, run.tied + run.update), exchange)
        back = np.maximum(wait + rest, last + hop / 2 + back)
        ended = back + np.where(copy, left + exchange, own)
        everything = np.maximum(done, ready + exchange)
        end = np.maximum.reduce([wait + everything, ended, end])
        # From the first backward on, the last ones are no further apart than all are on average.
        apart = (rest - after) / np.maximum(m - 1, 1)
        before_last, before_half = (
            np.maximum(early, np.where(m > 1, rest - j * apart, -np.inf))
            for early, j in ((front.before_last, 1), (front.before_half, m // 2)))
        front = front._replace(rest=rest, before_last=before_last, before_half=before_half)
        return *front, done, idle, ready, idle_ready, exchange, back, end

    def seconds(self, behind: Behind) -> Floats:
        return behind[-1]


class GPipe:
    """All forward passes, then all backward passes, counted from the turn between them.

    Carried are, of one micro-batch, the way down and the way up; the slowest forward and backward;
    the turn from the start of the step; from the turn on the last backward of the new stage, the
    end of stages without a copy, and the reduction of those with one; and what these do then.
    """

    name = "gpipe"

    def in_flight(self, n: int, m: Ints) -> Ints:
        return m

    def nothing(self, count: int) -> Behind:
        return (np.zeros(count),) * 4 + (np.full(count, -np.inf),) * 5

    def put(self, behind: Behind, n: int, m: Ints, run: Run, hop: Floats, gap: Floats) -> Behind:
        down, up, slow_f, slow_b, turned, returned, done, ready, exchange = behind
        f, end, copy = run.forward, run.backward, run.tied > 0.0
        b = end + run.late_b
        row = run.b_after_b + np.maximum(0.0, run.trailing - run.under_backward)
        left, wait = run.scattered + run.left, run.gathered + run.wait
        down = down + f + hop / 2
        slow_f = np.maximum.reduce([slow_f, f + run.f_after_f, gap])
        slow_b = np.maximum.reduce([slow_b, b + row, gap])
        turned = np.maximum(turned, wait + down + (m - 1) * slow_f)
        before = hop / 2 if n else run.b_after_f
        up = up + before + b
        returned = (returned if n else 0.0) + before + end
        many = up + (m - 2) * slow_b + np.maximum(row, gap - b) + end
        returned = np.where(m > 1, np.maximum(returned, many) if n else many, returned)
        done = np.where(copy, done, np.maximum(done, returned + left + run.update))
        ready = np.where(copy, np.maximum(ready, returned + left), ready)
        exchange = np.where(copy, np.maximum(exchange, run.tied + run.update), exchange)
        return down, up, slow_f, slow_b, turned, returned, done, ready, exchange

    def seconds(self, behind: Behind) -> Floats:
        _, _, _, _, turned, _, done, ready, exchange = behind
        return turned + np.maximum(done, ready + exchange)


class Front(NamedTuple):
    """What 1F1B carries from stages behind for round trips through them."""

    rest: Floats
    after: Floats
    behind: Floats
    """One micro-batch on the next stage alone."""
    pair: Floats
    """The same on the next two, one after the other."""
    last_trip: Floats
    """The last micro-batch, from the start of its forward."""
    before_last: Floats
    """The last backward but one."""
    before_half: Floats
    """The backward behind which half of all follow."""


def add_front(
    old: Front, run: Run, hop: Floats, n: int, m: Ints
) -> tuple[Front, Floats, Floats]:
    """Put a stage in front of ``n`` others; docs/proofs.md, Lemma 9 (paths).

    Also the end of the last forward, and what its backwards but the last wait for at their end.
    """
    f, end, half = run.forward, run.backward, m // 2
    late = np.where(m > 1, run.late_f, 0.0)
    b = end + late
    t = f + b
    trails = np.maximum(0.0, run.trailing - run.under_backward)
    turn, chase = run.b_after_f, run.f_after_b + np.maximum(0.0, trails - run.under_forward)
    queued = end + run.late_b + run.b_after_b + trails
    in_turn = t + turn + chase
    if n == 0:
        starts = [f + turn + (m - 1 - j) * in_turn for j in (0, 1, half)]
        early = [np.where(m > 1, start + b, -np.inf) for start in starts[1:]]
        front = Front(starts[0] + end, t + turn, t + turn, 0.0 * t, f + turn + end, *early)
        return front, starts[0] - turn, late
    row, trip = f + run.f_after_f, old.after + hop
    # Round trips to the next stage and to the one behind it, and forwards in front of either.
    reached = [(np.minimum(m, n) - 1, hop + old.behind)]
    if n > 1:
        reached.append((np.minimum(m - 1, n - 2), hop + old.pair))
    away = np.maximum.reduce([trip, *(count * row + seconds for count, seconds in reached)])
    own = np.minimum(m - 1, n)
    first = f + np.maximum(own * row + turn, away)

    def passed(count: Ints) -> Floats:
        """Seconds until so many have gone to and fro, by equal trips and then by smaller ones."""
        found = []
        for sizes in ((3, 2, 1), (2, 1), (1,)):
            for through in (True, False):
                seconds, left = np.zeros(len(f)), count
                if through:
                    seconds, left = count // (n + 1) * (t + trip + chase), count % (n + 1)
                for size in sizes:
                    if size == 3 and n == 1:
                        continue
                    each = {3: t + hop + old.pair + chase, 2: t + hop + old.behind + chase,
                            1: in_turn if sizes == (1,) else np.maximum(in_turn, old.behind)}
                    seconds, left = seconds + left // size * each[size], left % size
                found.append(seconds)
        return np.maximum.reduce(found)

    few = m < n + 2
    alternating = first + b + chase + passed(np.maximum(m - n - 2, 0)) + f
    last_f = np.where(few, m * f + (m - 1) * run.f_after_f, alternating)
    home = np.where(few, first + (m - 1) * queued, last_f + turn + n * queued)
    # Where there is time for it, the micro-batches in the middle turn round on the next stage.
    there = f + away - hop + (m - n - 1) * old.behind
    leaves = np.where(m > n, np.maximum(last_f, there), last_f)

    def drained(j: Ints) -> Floats:
        """Start of the backward with ``j`` behind it, by way of the stages behind."""
        ways = [np.where(j == 0, np.maximum(leaves + hop + old.last_trip, last_f + trip), -np.inf)]
        for count, seconds in reached:
            there = (count > 0) & (count >= j)
            ways.append(np.where(there, leaves + (count - j) * queued + seconds, -np.inf))
        for before, seconds in ((0 * m, old.rest), (0 * m + 1, old.before_last),
                                (half, old.before_half)):
            row = np.where((before == j) | (before > j) & (before <= n), before - j, 0)
            there = (before == j) | (row > 0)
            ways.append(np.where(there, f + hop + seconds + row * queued, -np.inf))
        return np.maximum.reduce(ways)

    time = np.maximum(home, drained(0 * m)) + end
    before_last = np.maximum(home - queued, drained(0 * m + 1)) + b
    within = np.where(few | (half <= n), home - half * queued,
                      first + passed(np.maximum(m - 1 - half, 0)))
    before_half = np.maximum(within, drained(half)) + b
    before_last, before_half = (np.where(m > 1, x, -np.inf) for x in (before_last, before_half))
    last_trip = f + end + np.maximum.reduce(
        [own * queued + turn, hop + old.last_trip,
         *(np.where(count > 0, count * queued + seconds, -np.inf)
           for count, seconds in reached)])
    front = Front(time, t + trip, t + turn, t + hop + old.behind, last_trip, before_last,
                  before_half)
    return front, last_f, late


SCHEDULES: tuple[Schedule, ...] = (OneFOneB(), GPipe())
