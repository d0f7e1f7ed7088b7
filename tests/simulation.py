"""Event simulation of a 1F1B pipeline: every forward and backward of every micro-batch."""

from __future__ import annotations

from collections.abc import Sequence


def order(behind: int, m: int) -> list[tuple[str, int]]:
    """What a stage does, in order: fill, one forward and one backward in turn, drain.

    ``behind`` is the number of stages behind it, ``m`` the number of micro-batches.
    """
    fill = min(behind, m)
    tasks = [("forward", k) for k in range(fill)]
    for k in range(m - fill):
        tasks += [("forward", fill + k), ("backward", k)]
    return tasks + [("backward", k) for k in range(m - fill, m)]


def simulate(
    forward: Sequence[float], backward: Sequence[float], link: Sequence[float], m: int
) -> float:
    """Seconds from the first forward to the last backward of the first stage."""
    return ends(forward, backward, link, m)[0]


def ends(
    forward: Sequence[float], backward: Sequence[float], link: Sequence[float], m: int
) -> list[float]:
    """Seconds from the first forward of all to the last backward of each stage.

    ``link[s]`` is the seconds between stages s and s+1, one way; no sender waits for it.
    """
    depth = len(forward)
    tasks = [order(depth - 1 - s, m) for s in range(depth)]
    done: dict[tuple[int, str, int], float] = {}
    clock, place = [0.0] * depth, [0] * depth
    while any(place[s] < 2 * m for s in range(depth)):
        for s in range(depth):
            while place[s] < 2 * m:
                kind, k = tasks[s][place[s]]
                source = s - 1 if kind == "forward" else s + 1
                arrives = 0.0
                if 0 <= source < depth:
                    if (source, kind, k) not in done:
                        break
                    arrives = done[source, kind, k] + link[min(s, source)]
                seconds = forward[s] if kind == "forward" else backward[s]
                clock[s] = max(clock[s], arrives) + seconds
                done[s, kind, k] = clock[s]
                place[s] += 1
    return clock
