"""Step times of the schedules for the oracle, stage by stage from the last to the first.

All arrays hold one entry per plan; ``n`` is the number of stages behind the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Behind = tuple[Floats, Floats, Floats, Floats]
"""What a schedule carries from the stages behind to the one in front; zeros behind the last."""


class Schedule(Protocol):
    """A schedule of which each stage holds one range of layers."""

    name: str

    def in_flight(self, n: int, m: Ints) -> Ints:
        """Micro-batches that a stage holds at once."""

    def put(
        self, behind: Behind, n: int, m: Ints, f: Floats, b: Floats, finish: Floats, hop: Floats
    ) -> Behind:
        """Put a stage in front: forward, backward, finish, hand-over there and back."""

    def seconds(self, behind: Behind, m: Ints) -> Floats:
        """The step, when there is nothing more in front."""


class OneFOneB:
    """See ``docs/algorithm.md``; carried are T, Q, W and V of it."""

    name = "1f1b"

    def in_flight(self, n: int, m: Ints) -> Ints:
        return np.minimum(n + 1, m)

    def put(
        self, behind: Behind, n: int, m: Ints, f: Floats, b: Floats, finish: Floats, hop: Floats
    ) -> Behind:
        rest, after, done, idle = behind
        rest, after = add_front(rest, after, f, b, hop, n, m)
        done, idle = add_finish(done, idle, rest, after, f, b, finish, hop, n, m)
        return rest, after, done, idle

    def seconds(self, behind: Behind, m: Ints) -> Floats:
        return behind[2]


class GPipe:
    """All forward passes, then all backward passes.

    Carried are the seconds of one micro-batch, the slowest forward, the slowest backward and the
    longest finish.
    """

    name = "gpipe"

    def in_flight(self, n: int, m: Ints) -> Ints:
        return m

    def put(
        self, behind: Behind, n: int, m: Ints, f: Floats, b: Floats, finish: Floats, hop: Floats
    ) -> Behind:
        total, slow_f, slow_b, last = behind
        return (total + f + b + hop, np.maximum(slow_f, f), np.maximum(slow_b, b),
                np.maximum(last, finish))

    def seconds(self, behind: Behind, m: Ints) -> Floats:
        total, slow_f, slow_b, last = behind
        return total + (m - 1) * (slow_f + slow_b) + last


def add_front(
    rest: Floats, after: Floats, f: Floats, b: Floats, hop: Floats, n: int, m: Ints
) -> tuple[Floats, Floats]:
    """Put a stage in front of ``n`` others; entry by entry, see ``docs/algorithm.md``."""
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
    pair = t + hop + np.minimum(t, after / n)
    ends = np.maximum(trip + t, n * f + b + pair - t)
    ends = ends + np.maximum(trip + t, n * b + f + pair - t)
    many = np.maximum(many, ends + (m - n - 2) * pair / 2)
    return np.where(m < n + 2, few, many), t + trip


def add_finish(
    done: Floats, idle: Floats, rest: Floats, after: Floats, forward: Floats, backward: Floats,
    finish: Floats, hop: Floats, n: int, m: Ints,
) -> tuple[Floats, Floats]:
    """Put a stage in front: seconds until all have finished, and the same for one micro-batch.

    ``rest`` and ``after`` are those of :func:`add_front` with the new stage. All that waits behind
    starts a forward pass and a one-way hand-over later; the last micro-batch leaves once the stage
    has run every forward pass and, of the backward passes, all but those in flight then.
    """
    if n == 0:
        return rest + finish, after + finish
    leaves = m * forward + np.maximum(0, m - n - 1) * backward + hop / 2
    through = np.maximum(rest + finish, forward + hop / 2 + done)
    return np.maximum(through, leaves + idle), np.maximum(after + finish, forward + hop / 2 + idle)


def interleaved_in_flight(n: int, p: int, v: int, m: Ints) -> Ints:
    """Chunks that a stage with ``n`` stages behind holds at once."""
    return np.minimum(m * v, 2 * n + (v - 1) * p + 1)


def interleaved_seconds(
    f: Sequence[Floats], b: Sequence[Floats], finish: Sequence[Floats], unhidden: Sequence[Floats],
    hops: Sequence[Floats], m: Ints, v: int, hidden: float,
) -> Floats:
    """The step; the last of ``hops`` leads back to the first.

    A micro-batch passes every stage ``v`` times. A stage is busy for ``m`` micro-batches; it waits
    for the first chunks to come through the stages behind and back, less what it runs meanwhile.
    Of what follows, ``unhidden`` in all, no more than a share of the stage's own time hides:
    ``hidden`` of the last of ``m / p`` groups of micro-batches.
    """
    p = len(f)
    behind = reach = done = np.zeros_like(f[0])
    for s in range(p - 1, -1, -1):
        n, once = p - 1 - s, (f[s] + b[s]) / v
        own = m * (f[s] + b[s])
        own = own + np.maximum(0.0, behind - 2 * n * f[s] / v)
        own = own + np.maximum(0.0, behind - 2 * n * b[s] / v)
        reach = own if n == 0 else np.maximum(own, once + reach)
        last = reach + np.maximum(finish[s], unhidden[s] - hidden * p / m * reach)
        done = last if n == 0 else np.maximum(last, f[s] / v - hops[s] / 2 + done)
        behind = behind + once
    waits = (v - 1) * hops[-1]
    for hop in hops[:-1]:
        waits = waits + v * hop
    return waits + done


SCHEDULES: tuple[Schedule, ...] = (OneFOneB(), GPipe())
