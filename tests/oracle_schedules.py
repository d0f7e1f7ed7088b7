"""Step times of the schedules for the oracle, stage by stage from the last to the first.

All arrays hold one entry per plan; ``n`` is the number of stages behind the new one.
"""

from __future__ import annotations

from typing import Protocol

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
    """See ``docs/algorithm.md``; carried are T, Q, N, W, V, R, RV, L, Y and Z of it.

    ``rest`` and ``after`` (T, Q): until the last backward ends, and the same for one micro-batch;
    ``next_t`` (N): one micro-batch on the first of the stages behind alone.
    ``done`` and ``idle`` (W, V): until all have finished that hold no copy of a tied table.
    ``reduced`` and ``alone`` (R, RV): until the gradients of all copies are there; ``exchange``
    (L): what copies do then. ``begun`` (Y): the latest end of the new stage's last backward,
    because a stage waited for parameters; ``step`` (Z).
    """

    name = "1f1b"

    def in_flight(self, n: int, m: Ints) -> Ints:
        return np.minimum(n + 1, m)

    def nothing(self, count: int) -> Behind:
        return (np.zeros(count),) * 3 + (np.full(count, -np.inf),) * 8

    def put(self, behind: Behind, n: int, m: Ints, run: Run, hop: Floats, gap: Floats) -> Behind:
        rest, after, next_t, done, idle, reduced, alone, exchange, begun, step, second = behind
        f, end, copy = run.forward, run.backward, run.tied > 0.0
        left, wait = run.scattered + run.left, run.gathered + run.wait
        rest, after, t, second, last_f, late = add_front(
            rest, after, next_t, second, run, hop, n, m)
        if n:
            rest = np.maximum(rest, after - late + (m - 1) * gap)
        # A stage behind starts ``later`` than this one; its last micro-batch leaves here at `sent`.
        later = f + hop / 2
        sent = hop / 2 + np.maximum(last_f, f + (m - 1) * gap)
        done = np.maximum(later + done, sent + idle)
        idle = later + idle
        reduced = np.maximum(later + reduced, sent + alone)
        alone = later + alone
        own = left + run.update
        done = np.where(copy, done, np.maximum(done, rest + own))
        idle = np.where(copy, idle, np.maximum(idle, after - late + own))
        reduced = np.where(copy, np.maximum(reduced, rest + left), reduced)
        alone = np.where(copy, np.maximum(alone, after - late + left), alone)
        exchange = np.where(copy, np.maximum(exchange, run.tied + run.update), exchange)
        begun = np.maximum(wait + rest, end + hop / 2 + begun)
        ended = begun + np.where(copy, left + exchange, own)
        everything = np.maximum(done, reduced + exchange)
        step = np.maximum.reduce([wait + everything, ended, step])
        return rest, after, t, done, idle, reduced, alone, exchange, begun, step, second

    def seconds(self, behind: Behind) -> Floats:
        return behind[9]


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
        down, up, slow_f, slow_b, turned, back, finish, reduced, exchange = behind
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
        back = (back if n else 0.0) + before + end
        many = up + (m - 2) * slow_b + np.maximum(row, gap - b) + end
        back = np.where(m > 1, np.maximum(back, many) if n else many, back)
        finish = np.where(copy, finish, np.maximum(finish, back + left + run.update))
        reduced = np.where(copy, np.maximum(reduced, back + left), reduced)
        exchange = np.where(copy, np.maximum(exchange, run.tied + run.update), exchange)
        return down, up, slow_f, slow_b, turned, back, finish, reduced, exchange

    def seconds(self, behind: Behind) -> Floats:
        _, _, _, _, turned, _, finish, reduced, exchange = behind
        return turned + np.maximum(finish, reduced + exchange)


def add_front(
    rest: Floats, after: Floats, next_t: Floats, second: Floats, run: Run, hop: Floats, n: int,
    m: Ints
) -> tuple[Floats, ...]:
    """Put a stage in front of ``n`` others; entry by entry, see ``docs/algorithm.md``.

    ``next_t``: one micro-batch on the next stage alone; ``second``: its last backward but one.
    Also the end of the last forward, and what its backwards but the last wait for at their end.
    """
    f, end = run.forward, run.backward
    late = np.where(m > 1, run.late_f, 0.0)
    b = end + late
    t = f + b
    trails = np.maximum(0.0, run.trailing - run.under_backward)
    turn, chase = run.b_after_f, run.f_after_b + np.maximum(0.0, trails - run.under_forward)
    queued = end + run.late_b + run.b_after_b + trails
    own = (run.gathers > 0.0) & (m > 1)
    if n == 0:
        last_f = f + (m - 1) * (t + chase + turn)
        second = np.where(own, last_f - chase - f, -np.inf)
        return last_f + turn + end, t + turn, t, second, last_f, late
    trip = after + hop
    second = f + hop + second + queued
    row = f + run.f_after_f
    few_f = m * f + (m - 1) * run.f_after_f
    # The next stage goes back only after its own forwards, which this one has to send.
    first = np.maximum(trip, (np.minimum(m, n) - 1) * row + hop + next_t)
    few = f + np.maximum((m - 1) * row + turn, first) + (m - 1) * queued
    many_f = f + np.maximum(n * row + turn, first) + (m - n - 1) * (t + chase) + (m - n - 2) * turn
    home = np.where(m < n + 2, few, many_f + turn + n * queued)
    last_f = np.where(m < n + 2, few_f, many_f)
    second = np.where(own, np.maximum(second, home), second)
    time = np.maximum.reduce([home, last_f + trip, f + hop + rest, second]) + end
    q, r = (m - 1) // (n + 1), (m - 1) % (n + 1)
    pace = np.maximum(np.maximum(f, b), (rest - after) / np.maximum(m - 1, 1))
    many = np.maximum(time, (q + 1) * (t + trip) + q * chase - late + r * pace)
    pair = t + hop + next_t
    ends = np.maximum(trip + t, n * f + b + pair - t)
    ends = ends + np.maximum(trip + t, n * b + f + pair - t)
    many = np.maximum(many, ends + (m - n - 2) * pair / 2 - late)
    time = np.where(m < n + 2, time, many)
    return time, t + trip, t, second - (queued - b), last_f, late


SCHEDULES: tuple[Schedule, ...] = (OneFOneB(), GPipe())
