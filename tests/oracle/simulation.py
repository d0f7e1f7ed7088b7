"""Event simulation of pipeline schedules: every forward and backward of every micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Times = Sequence[Sequence[float]]
"""Seconds of one micro-batch, by stage and by the stage's chunk."""


class Task(NamedTuple):
    """What a stage does at a time."""

    kind: str
    """"f" or "b"."""
    chunk: int
    micro_batch: int


def one_f_one_b(stage: int, stages: int, m: int) -> list[Task]:
    """Fill, one forward and one backward in turn, drain."""
    fill = min(stages - 1 - stage, m)
    tasks = [Task("f", 0, k) for k in range(fill)]
    for k in range(m - fill):
        tasks += [Task("f", 0, fill + k), Task("b", 0, k)]
    return tasks + [Task("b", 0, k) for k in range(m - fill, m)]


def gpipe(stage: int, stages: int, m: int) -> list[Task]:
    """All forwards, then all backwards."""
    return [Task(kind, 0, k) for kind in "fb" for k in range(m)]


def interleaved(stage: int, stages: int, m: int, vpp: int) -> list[Task]:
    """As 1F1B, with micro-batches in groups of ``stages`` through one chunk after the other."""
    groups = range(0, m, stages)
    forward, backward = (
        [Task(kind, c, k) for g in groups for c in chunks for k in range(g, g + stages)]
        for kind, chunks in (("f", range(vpp)), ("b", range(vpp - 1, -1, -1)))
    )
    fill = min(m * vpp, 2 * (stages - 1 - stage) + (vpp - 1) * stages)
    tasks = forward[:fill]
    for one, other in zip(forward[fill:], backward, strict=False):
        tasks += [one, other]
    return tasks + backward[m * vpp - fill :]


def most_held(tasks: Sequence[Task]) -> int:
    """Most forwards at once of which the backward has not ended: they hold activations."""
    held = most = 0
    for task in tasks:
        held += 1 if task.kind == "f" else -1
        # The activations of a forward are there until its backward ends.
        most = max(most, held)
    return most


def ends(
    orders: Sequence[Sequence[Task]],
    forward: Times,
    backward: Times,
    link: Sequence[float],
    wrap: float = 0.0,
) -> list[float]:
    """Seconds from the first forward of all to the last task of each stage.

    ``orders[s]`` is what stage s does, ``link[s]`` the seconds between stages s and s+1, one way,
    and ``wrap`` those between the last stage and the next chunk of the first. No sender waits for
    a hand-over.
    """
    last, chunks = len(orders) - 1, len(forward[0])
    done: dict[tuple[int, Task], float] = {}

    def arrival(s: int, task: Task) -> float | None:
        """When the input of a task is there; None where that is not known yet."""
        kind, c, k = task
        if kind == "f":
            if s == 0 and c == 0:
                return 0.0
            source, chunk, delay = (s - 1, c, link[s - 1]) if s else (last, c - 1, wrap)
        elif s == last and c == chunks - 1:
            source, kind, chunk, delay = s, "f", c, 0.0
        else:
            source, chunk, delay = (s + 1, c, link[s]) if s < last else (0, c + 1, wrap)
        end = done.get((source, Task(kind, chunk, k)))
        return None if end is None else end + delay

    clock, place = [0.0] * (last + 1), [0] * (last + 1)
    left = sum(map(len, orders))
    while left:
        before = left
        for s, order in enumerate(orders):
            while place[s] < len(order):
                task = order[place[s]]
                arrives = arrival(s, task)
                if arrives is None:
                    break
                times = forward if task.kind == "f" else backward
                clock[s] = max(clock[s], arrives) + times[s][task.chunk]
                done[s, task] = clock[s]
                place[s] += 1
                left -= 1
        assert left < before, "the orders wait for each other"
    return clock
