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
        return (np.zeros(count),) * 3 + (np.full(count, -np.inf),) * 7

    def put(self, behind: Behind, n: int, m: Ints, run: Run, hop: Floats, gap: Floats) -> Behind:
        rest, after, next_t, done, idle, reduced, alone, exchange, begun, step = behind
        f, b, copy, pace = run.forward, run.backward, run.tied > 0.0, run.pace
        if n == 0:
            # Each backward of the last stage follows the forward of its own micro-batch.
            b, pace = b + run.turn, pace - run.turn
        left, wait = run.scattered + run.left, run.gathered + run.wait
        # A stage behind starts ``later`` than this one; its last micro-batch leaves here at `sent`.
        later = f + hop / 2
        backwards = (m - n - 1) * b + np.maximum(0.0, after + hop - n * f)
        sent = hop / 2 + np.maximum(
            m * f + np.where(m > n + 1, backwards, 0.0), f + (m - 1) * gap)
        rest, after = add_front(rest, after, next_t, f, b, hop, n, m)
        rest = np.maximum.reduce([rest, m * (f + b) + (m - 1) * pace, after + (m - 1) * gap])
        done = np.maximum(later + done, sent + idle)
        idle = later + idle
        reduced = np.maximum(later + reduced, sent + alone)
        alone = later + alone
        own = left + run.update
        done = np.where(copy, done, np.maximum(done, rest + own))
        idle = np.where(copy, idle, np.maximum(idle, after + own))
        reduced = np.where(copy, np.maximum(reduced, rest + left), reduced)
        alone = np.where(copy, np.maximum(alone, after + left), alone)
        exchange = np.where(copy, np.maximum(exchange, run.tied + run.update), exchange)
        begun = np.maximum(wait + rest, b + hop / 2 + begun)
        late = begun + np.where(copy, left + exchange, own)
        end = np.maximum(done, reduced + exchange)
        step = np.maximum.reduce([wait + end, late, step])
        return rest, after, f + b, done, idle, reduced, alone, exchange, begun, step

    def seconds(self, behind: Behind) -> Floats:
        return behind[9]


class GPipe:
    """All forward passes, then all backward passes; carried are Q, F, B, G, E, L and Y.

    Seconds of one micro-batch (Q), the slowest forward and backward (F, B), the longest finish of
    stages without a copy of a tied table (G), of copies the longest reduction (E) and what follows
    (L), and the latest end of the new stage's last backward (Y).
    """

    name = "gpipe"

    def in_flight(self, n: int, m: Ints) -> Ints:
        return m

    def nothing(self, count: int) -> Behind:
        return (np.zeros(count),) * 3 + (np.full(count, -np.inf),) * 4

    def put(self, behind: Behind, n: int, m: Ints, run: Run, hop: Floats, gap: Floats) -> Behind:
        total, slow_f, slow_b, finish, reduced, exchange, begun = behind
        f, b, copy = run.forward, run.backward, run.tied > 0.0
        left, wait = run.scattered + run.left, run.gathered + run.wait
        total = total + f + b + hop
        trails = np.maximum(0.0, run.trailing - run.under_backward)
        slow_f = np.maximum.reduce([slow_f, f + run.chase_forward, gap])
        slow_b = np.maximum.reduce([slow_b, b + run.chase_backward + trails, gap])
        finish = np.where(copy, finish, np.maximum(finish, left + run.update))
        reduced = np.where(copy, np.maximum(reduced, left), reduced)
        exchange = np.where(copy, np.maximum(exchange, run.tied + run.update), exchange)
        begun = np.maximum(wait + total + (m - 1) * (slow_f + slow_b), b + hop / 2 + begun)
        return total, slow_f, slow_b, finish, reduced, exchange, begun

    def seconds(self, behind: Behind) -> Floats:
        _, _, _, finish, reduced, exchange, begun = behind
        return begun + np.maximum(finish, reduced + exchange)


def add_front(
    rest: Floats, after: Floats, next_t: Floats, f: Floats, b: Floats, hop: Floats, n: int, m: Ints
) -> tuple[Floats, Floats]:
    """Put a stage in front of ``n`` others; entry by entry, see ``docs/algorithm.md``.

    ``next_t``: one micro-batch on the next stage alone.
    """
    t = f + b
    if n == 0:
        return m * t, t
    trip = after + hop
    time = t + hop + rest
    few = np.maximum.reduce([time, m * t, f + trip + m * b, m * f + trip + b])
    many = np.maximum(
        time, m * t + np.maximum(0.0, trip - n * f) + np.maximum(0.0, trip - n * b))
    q, r = (m - 1) // (n + 1), (m - 1) % (n + 1)
    pace = np.maximum(np.maximum(f, b), (rest - after) / np.maximum(m - 1, 1))
    many = np.maximum(many, (q + 1) * (t + trip) + r * pace)
    pair = t + hop + next_t
    ends = np.maximum(trip + t, n * f + b + pair - t)
    ends = ends + np.maximum(trip + t, n * b + f + pair - t)
    many = np.maximum(many, ends + (m - n - 2) * pair / 2)
    return np.where(m < n + 2, few, many), t + trip


SCHEDULES: tuple[Schedule, ...] = (OneFOneB(), GPipe())
