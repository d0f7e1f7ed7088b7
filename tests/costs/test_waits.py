"""Waits for longer samples: a step of drawn samples, pass by pass, without any formula."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracle_orders as orders
import pytest
import simulation
from numpy.typing import NDArray

from nest.costs.imbalance import Keys, Ranks, Waits, busiest, rounded, waiting, waits_of
from nest.schedules.registry import SCHEDULES

Floats = NDArray[np.float64]
Rows = list[list[tuple[str, int, int]]]


def closed(made: Callable[..., list[simulation.Task]]) -> Callable[[int, int], Rows]:
    return lambda p, m: [[(task.kind, s, task.micro_batch) for task in made(s, p, m)]
                         for s in range(p)]


MADE: dict[str, tuple[Callable[[int, int], Rows], int]] = {
    "1f1b": (closed(simulation.one_f_one_b), 1), "gpipe": (closed(simulation.gpipe), 1),
    "interleaved": (lambda p, m: orders.interleaved(p, 2, m, p), 2),
    "zb1p": (lambda p, m: orders.zero_bubble(p, 1, m, p), 1),
    "v-min": (lambda p, m: orders.controlled(p, m, False), 2),
    "v-half": (lambda p, m: orders.controlled(p, m, True), 2),
}
"""Orders, and chunks of a stage."""
SHARES = {"f": 1.0, "b": 2.0, "i": 1.0, "w": 1.0}
"""Of a pass in three forwards."""


def steps(name: str, p: int, durations: Floats) -> Floats:
    """Seconds of steps whose micro-batches take (steps, m) seconds a stage."""
    made, chunks = MADE[name]
    rows, last = made(p, durations.shape[1]), p * chunks - 1
    end, at = dict[tuple[str, int, int], Floats](), [0] * p
    clock = [np.zeros(len(durations)) for _ in range(p)]

    def needs(kind: str, place: int, k: int) -> list[tuple[str, int, int]]:
        if kind == "f":
            return [("f", place - 1, k)] if place else []
        if kind == "w":
            return [("i", place, k)]
        return [("f", place, k), *([(kind, place + 1, k)] if place < last else [])]

    while any(at[s] < len(rows[s]) for s in range(p)):
        for s in range(p):
            for kind, place, k in rows[s][at[s]:]:
                before = needs(kind, place, k)
                if any(one not in end for one in before):
                    break
                for one in before:
                    clock[s] = np.maximum(clock[s], end[one])
                clock[s] = clock[s] + SHARES[kind] / 3.0 / chunks * durations[:, k]
                end[kind, place, k] = clock[s]
                at[s] += 1
    return np.max(clock, axis=0)


@pytest.mark.parametrize(("name", "p", "m"), [
    ("1f1b", 4, 16), ("1f1b", 8, 64), ("1f1b", 8, 16), ("v-min", 4, 32), ("gpipe", 4, 16),
    ("gpipe", 8, 8), ("interleaved", 4, 32), ("interleaved", 8, 16), ("zb1p", 4, 16),
    ("v-half", 8, 32)])
def test_pipelines_wait_for_unlike_micro_batches(name: str, p: int, m: int) -> None:
    drawn = np.random.default_rng(5).normal(1.0, 0.1, (100, m))
    even = steps(name, p, np.ones((1, m)))[0]
    extra = np.mean(steps(name, p, drawn) - even * drawn.mean(axis=1)) / 0.1
    assert extra == pytest.approx(waiting(p, SCHEDULES[name].slack, m), rel=0.25)


def pairs(lengths: dict[int, float], tokens: int, count: int) -> Floats:
    """Of micro-batches of so many tokens, over the mean; what is cut off goes into the next one."""
    rng = np.random.default_rng(7)
    share = np.array([*lengths.values()])
    mean = sum(size * one for size, one in lengths.items()) / share.sum()
    pool = rng.choice([*lengths], int(1.2 * count * tokens / mean), p=share / share.sum())
    ends = np.cumsum(pool)
    below = np.searchsorted(ends, np.arange(1, count + 1) * tokens)
    work = np.concatenate([[0.0], np.cumsum(pool * pool / 2.0)])
    part = np.arange(1, count + 1) * tokens - (ends[below] - pool[below])
    found = np.diff(np.concatenate([[0.0], work[below] + part * pool[below] / 2.0]))
    return found / found.mean()


MIX = {256: 0.5, 1024: 0.3, 4096: 0.2}
LONG = {2048: 0.9, 32768: 0.1}


@pytest.mark.parametrize(("mix", "tokens", "name", "p", "m", "replicas", "meet"), [
    (MIX, 8192, "1f1b", 1, 8, 8, "step"), (MIX, 8192, "1f1b", 1, 8, 8, "all"),
    (MIX, 8192, "1f1b", 4, 16, 4, "step"), (MIX, 8192, "interleaved", 4, 16, 4, "step"),
    (MIX, 8192, "gpipe", 4, 8, 2, "step"), (MIX, 8192, "1f1b", 4, 8, 4, "all"),
    (LONG, 32768, "1f1b", 4, 16, 4, "step"), (LONG, 32768, "interleaved", 4, 16, 4, "step"),
    (LONG, 32768, "1f1b", 1, 8, 8, "block")])
def test_steps_of_drawn_samples(
    mix: dict[int, float], tokens: int, name: str, p: int, m: int, replicas: int, meet: str
) -> None:
    # Half of a micro-batch is attention, the rest as long for all.
    near = {"step": 1, "block": 2, "all": replicas}[meet]
    drawn = pairs(mix, tokens, 60 * replicas * m).reshape(60, replicas // near, near, m)
    together = drawn.max(axis=2).reshape(-1, m)
    found = steps(name, p, 0.5 + 0.5 * together).reshape(60, -1).max(axis=1).mean()
    total = sum(size * share for size, share in mix.items())
    keys = [Keys(size, size * share / total, size / 2) for size, share in mix.items()]
    ways = {"step": [(1, "dp")], "block": [(3, "dp_in")], "all": [(1, "dp"), (3, "dp_in")]}[meet]
    ranks = Ranks(np.array([replicas]), np.array([m]), float(tokens * replicas * m))
    factor = busiest(keys, ranks, [np.array([near])], waits_of(p, name, ways))[0]
    even = steps(name, p, np.ones((1, m)))[0]
    assert even * (0.5 + 0.5 * factor) == pytest.approx(found, rel=0.04)
    assert factor > 1.02


def test_more_ranks_that_meet_never_take_less() -> None:
    keys = [Keys(100, 0.5, 50), Keys(1000, 0.5, 500)]
    for p, m, replicas in ((1, 1, 64), (8, 2, 2), (4, 16, 32), (16, 64, 8)):
        ranks = Ranks(np.array([replicas]), np.array([m]), 1e6)
        groups = [np.array([some]) for some in (1, 2, replicas)]
        found = [busiest(keys, ranks, groups[:n], Waits(p, "none"))[0] for n in (1, 2, 3)]
        assert found == sorted(found)


def test_stages_are_rounded_up() -> None:
    assert [*map(rounded, (1, 2, 3, 4, 5, 7, 9, 13, 17))] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert waits_of(5, "zb-v", [(3, "dp_in"), (0, "dp")]) == Waits(6, "some", "block")
    assert waits_of(1, "gpipe", [(3, "dp_in"), (1, "dp")]) == Waits(1, "some", "all")
