"""How far a search is, and what ends it early: its time, or who follows it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from nest.evaluation.plans import Plan

EVERY = 0.1
"""Seconds between two reports, and the longest until a search is stopped."""


class Progress(NamedTuple):
    """What a search has found and proved so far."""

    seconds: float
    """Since the search began."""
    proved: int
    """Outer choices (each under each schedule) that hold no better plan than the best known."""
    total: int
    """All of them; 0 while a first plan is looked for in a part of the space."""
    step_time_s: float | None
    """Of the best plan so far; None: there is none."""
    lower_bound_s: float | None
    """No plan takes less; None: not known yet."""
    gap: float | None
    """step_time_s / lower_bound_s - 1."""
    found: Callable[[], Plan] | None = None
    """Prices the best plan so far; None: it is not of the part of the space at hand."""


Follower = Callable[[Progress], Any]
"""Called with the progress of a search about ten times a second; returning False ends it."""


class Timeout(Exception):
    """The search was ended; the argument is what it has found."""


class Watch:
    """The clock of one question, whatever number of searches answer it.

    Parameters
    ----------
    limit : seconds from the first ``begin`` on, but for those that are excused.
    follow : told how far the search is; False ends it.
    """

    def __init__(self, limit: float = math.inf, follow: Follower | None = None) -> None:
        self._limit, self._follow = limit, follow
        self._started = self._next = -math.inf
        self._told = math.inf
        self.stopped = False
        """Somebody asked for the end."""

    def begin(self) -> None:
        """Start the clock, unless it runs."""
        if self._started == -math.inf:
            self._started = time.perf_counter()

    def excuse(self, seconds: float) -> None:
        """Leave seconds out of the limit: kernels were compiled or loaded in them."""
        self._started += seconds

    @property
    def over(self) -> bool:
        """Whether the search has to end."""
        return self.stopped or time.perf_counter() - self._started > self._limit

    @property
    def waits(self) -> bool:
        """Whether the search may have to end before it is done."""
        return self._follow is not None or self._limit < math.inf

    def report(self, proved: int, total: int, best: float, bound: float,
               found: Callable[[], Plan] | None = None) -> None:
        """Tell the follower, unless it was told just now and nothing better is known since."""
        now = time.perf_counter() if self._follow is not None else -math.inf
        if self._follow is None or self.stopped or (
                now < self._next and best >= self._told):
            return
        self._next, self._told = now + EVERY, best
        lower = min(bound, best)
        known = 0.0 < lower < math.inf
        self.stopped = self._follow(Progress(
            now - self._started, proved, total, best if best < math.inf else None,
            lower if known else None, best / lower - 1.0 if known and best < math.inf else None,
            found)) is False

    def results(self, futures: list[Future[Any]], tell: Callable[[], None]) -> list[Any] | None:
        """What the futures give; None if the search has to end before."""
        while self.waits and wait(futures, EVERY).not_done:
            tell()
            if self.over:
                return None
        return [future.result() for future in futures]
