"""Work of a benchmark on the processes of an engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, as_completed
from typing import Any, TypeVar

from nest.errors import InputError
from nest.studies.engines import Engine

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


def done(
    engine: Engine, work: Callable[..., R], given: Mapping[K, tuple[Any, ...]],
    first: Callable[[], object] = bool,
) -> Iterator[tuple[K, R]]:
    """Call a function with each of several arguments; yield what it returns, as it comes.

    Parameters
    ----------
    given : arguments by a key, which comes back with the result.
    first : done once in a worker, if there is anything to do.

    Raises
    ------
    InputError : a process has ended.
    """
    if not given:
        return
    executor = engine.make()
    try:
        executor.submit(first).result()
        running = {executor.submit(work, *one): key for key, one in given.items()}
        for future in as_completed(running):
            yield running[future], future.result()
    except BrokenExecutor:
        raise InputError("a process of the benchmark has ended; what is answered is stored, the "
                         "same command goes on") from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        engine.kill(executor)
