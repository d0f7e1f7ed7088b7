"""Several questions as one task of an executor, where its scheduler would be the limit."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, NamedTuple

RATE = 100.0
"""Tasks a second that a scheduler is given at the most (chosen): Dask's takes 4 ms for one
(`python bench/sweeps.py dask`)."""
WAIT = 0.1
"""Seconds after which a bundle is sent that nothing was added to (chosen)."""
MOST = 100
"""Calls of a bundle (chosen)."""
RECENT = 0.1
"""Weight of the last call in the mean of their seconds (chosen)."""


class Call(NamedTuple):
    """A call, and where its result goes."""

    future: Future[Any]
    work: Callable[..., Any]
    given: tuple[Any, ...]


class Done(NamedTuple):
    """What came of a call."""

    result: Any
    error: BaseException | None
    seconds: float


class Bundles(Executor):
    """Calls of an executor, as many in a task as keep it at ``RATE`` tasks a second.

    Few workers, or long calls, have a task for each call. A bundle whose worker dies is taken
    apart: its calls become tasks, one after another, so that hardly one fails beside a deadly one.

    Parameters
    ----------
    inner : runs the tasks.
    workers : how many run at once.
    """

    def __init__(self, inner: Executor, workers: Callable[[], int]) -> None:
        self._inner, self._workers = inner, workers
        self._waiting: list[Call] = []
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._seconds: float | None = None

    @property
    def size(self) -> int:
        """Calls of a bundle now; 1 until the first are done."""
        if self._seconds is None:
            return 1
        return max(1, min(MOST, math.ceil(self._workers() / (RATE * max(self._seconds, 1e-3)))))

    @property
    def width(self) -> int:
        """Calls that keep all workers busy."""
        return self._workers() * self.size

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.add_done_callback(_notify)
        with self._lock:
            self._waiting.append(Call(future, fn, args))
            full = len(self._waiting) >= self.size
            if self._timer is None and not full:
                self._timer = threading.Timer(WAIT, self._send)
                self._timer.daemon = True
                self._timer.start()
        if full:
            self._send()
        return future

    def _send(self) -> None:
        """Make a task of what waits."""
        with self._lock:
            calls, self._waiting = self._waiting, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._give(calls)

    def _give(self, calls: Sequence[Call], rest: Sequence[Call] = ()) -> None:
        """Make a task of calls that nobody has cancelled, and then one of each of the rest."""
        calls = [call for call in calls if not call.future.done()]
        if not calls:
            if rest:
                self._give(rest[:1], rest[1:])
            return
        try:
            task = self._inner.submit(together, [(call.work, call.given) for call in calls])
        except Exception as error:
            for call in (*calls, *rest):
                _end(call, Done(None, error, 0.0))
            return
        task.add_done_callback(lambda done: self._take(calls, done, rest))

    def _take(self, calls: Sequence[Call], task: Future[list[Done]], rest: Sequence[Call]) -> None:
        """Hand results on; take a bundle apart that its worker did not live to answer."""
        if task.cancelled():
            for call in (*calls, *rest):
                call.future.cancel()
            return
        lost = task.exception()
        if lost is not None and len(calls) > 1:
            calls, rest = (), calls  # one after another, so that none dies beside a deadly one
        for number, call in enumerate(calls):
            found = Done(None, lost, 0.0) if lost is not None else task.result()[number]
            if found.seconds:
                before = found.seconds if self._seconds is None else self._seconds
                self._seconds = before + RECENT * (found.seconds - before)
            _end(call, found)
        if rest:
            self._give(rest[:1], rest[1:])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._send()
        self._inner.shutdown(wait)


def _end(call: Call, found: Done) -> None:
    """Give a call its result, unless it was cancelled meanwhile."""
    with suppress(RuntimeError):  # cancelled at this moment
        if not call.future.done() and call.future.set_running_or_notify_cancel():
            if found.error is not None:
                call.future.set_exception(found.error)
            else:
                call.future.set_result(found.result)


def _notify(future: Future[Any]) -> None:
    """Wake those who wait for a call that was cancelled."""
    if future.cancelled():
        with suppress(RuntimeError):  # they are awake
            future.set_running_or_notify_cancel()


def together(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Done]:
    """Make calls one after another, in a worker; an error is that of its call alone."""
    found = []
    for work, given in calls:
        begun = time.perf_counter()
        result, error = None, None
        try:
            result = work(*given)
        except Exception as problem:
            error = problem
        found.append(Done(result, error, time.perf_counter() - begun))
    return found
