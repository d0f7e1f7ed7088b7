"""How many threads a search takes where nobody says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from nest.errors import InputError
from nest.limits import MOST
from nest.units import shorten

VARIABLES = ("NEST_THREADS", "NUMBA_NUM_THREADS")
"""Environment variables that may say so; the first counts, and numba itself reads the second."""


class Alone(Executor):
    """Runs everything at once in the thread that asks: one thread more would be in its way."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None,
            chunksize: int = 1) -> Iterator[Any]:
        """Call a function with each of some arguments."""
        return iter([*map(fn, *iterables)])


def thread_count() -> int:
    """Threads to use: ``NEST_THREADS``, else ``NUMBA_NUM_THREADS``, else all processors.

    Raises
    ------
    InputError : one of the two is set to something else than a number of threads.
    """
    said = []
    for name in VARIABLES:
        text = os.environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit() and len(text) < 10
                         and 1 <= int(text) <= MOST["threads"]):
            raise InputError(f"{name}: got {shorten(text)} in the environment; allowed: "
                             f"1 to {MOST['threads']}, or not set")
        if text:
            said.append(int(text))
    if said:
        return said[0]
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
