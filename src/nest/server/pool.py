"""Worker processes that requests share; the death of one concerns no other.

Every worker is an executor of one process, so that a worker that dies, is killed or has to be
killed breaks its own request alone. It is replaced, and the request is asked again once.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from nest.errors import LimitError
from nest.studies.engines import begin, prepare

STOPPING = 2.0
"""Seconds in which work that is asked to stop must end; then its process is killed (chosen: a
search looks ten times a second, and writing down what it found takes less than one)."""
LIVES = 2
"""Workers that may die of a request."""
STARTS = 5
"""Processes that are started before a worker counts as broken (chosen)."""
FIRST, LATER = 0, 1
"""Order of requests: questions, then those of sweeps."""


class Died(Exception):
    """Workers died of a request, twice."""


class Ending(Exception):
    """The server ends before the request was answered."""


class Busy(Exception):
    """Too many requests wait."""


class Worker:
    """A process that is started when it is needed, and again after its death.

    Parameters
    ----------
    initial : run first in each process.
    """

    def __init__(self, initial: Callable[[], object]) -> None:
        self._initial = initial
        self._executor: ProcessPoolExecutor | None = None
        self._prepared: Future[object] | None = None

    def start(self) -> tuple[ProcessPoolExecutor, Future[object]]:
        """The executor, and what is done once its process is ready."""
        if self._executor is None or self._prepared is None:
            self._executor = ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("spawn"), initializer=begin)
            self._prepared = self._executor.submit(self._initial)
        return self._executor, self._prepared

    async def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Hand work to a process that is ready; one that ended meanwhile is replaced.

        Raises
        ------
        BrokenExecutor : new processes end before they are ready.
        """
        for start in range(STARTS):
            executor, prepared = self.start()
            try:
                await asyncio.wrap_future(prepared)
                return executor.submit(work, *given)
            except BrokenExecutor:
                self.kill()
                if start + 1 == STARTS:
                    raise
        raise AssertionError

    @property
    def ready(self) -> bool:
        """Its process has run what comes first."""
        done = self._prepared
        return done is not None and done.done() and not done.cancelled() and not done.exception()

    def kill(self) -> None:
        """End the process at once; what it runs breaks."""
        executor, self._executor, self._prepared = self._executor, None, None
        if executor is None:
            return
        for process in list((executor._processes or {}).values()):
            with suppress(OSError, ValueError, AttributeError):
                process.kill()
        executor.shutdown(wait=False, cancel_futures=True)

    @property
    def pid(self) -> int | None:
        """Of its process; None: it has none."""
        if self._executor is None:
            return None
        return next(iter(self._executor._processes or {}), None)


class Pool:
    """Workers for requests that wait in a queue.

    Parameters
    ----------
    count : processes.
    waiting : requests that may wait.
    initial : run first in each process.
    """

    def __init__(self, count: int, waiting: int,
                 initial: Callable[[], object] = prepare) -> None:
        self.workers = [Worker(initial) for _ in range(count)]
        self.deaths, self.running = 0, 0
        self._most, self._numbers = waiting, itertools.count()
        self._queue: asyncio.PriorityQueue[Any] = asyncio.PriorityQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._queue.qsize()

    @property
    def ready(self) -> bool:
        """A worker is ready."""
        return any(worker.ready for worker in self.workers)

    def start(self) -> None:
        """Start the workers; they load the kernels meanwhile."""
        self.loop = asyncio.get_running_loop()
        for worker in self.workers:
            worker.start()
            self._tasks.append(asyncio.create_task(self._serve(worker)))

    async def run(self, work: Callable[..., Any], *given: Any, order: int = FIRST,
                  seconds: float | None = None, stop: Callable[[], None] | None = None) -> Any:
        """Have a worker do something.

        Parameters
        ----------
        seconds : after which the worker is killed.
        stop : asks the work to end once nobody waits for it, so that its worker need not be killed
            and stays warm; None: it cannot be asked.

        Raises
        ------
        Busy, Ending, Died : see there.
        LimitError : it took longer than ``seconds``.
        """
        if self._ending:
            raise Ending
        if order == FIRST and self.waiting >= self._most:
            raise Busy
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((order, next(self._numbers), done, work, given, seconds, stop))
        return await done

    async def _serve(self, worker: Worker) -> None:
        """Take what waits, one after the other."""
        while True:
            order, _, done, work, given, seconds, stop = await self._queue.get()
            if done.done():  # nobody waits for it any more
                continue
            self.running += 1
            trying = asyncio.ensure_future(self._try(worker, work, given, seconds, stop))
            if order == FIRST:  # questions of sweeps are short
                done.add_done_callback(partial(_cancel, trying))
            try:
                found = await trying
                if not done.done():
                    done.set_result(found)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if done.cancelled() and task is not None and not task.cancelling():
                    worker.start()
                    continue  # nobody waits for it any more
                if not done.done():
                    done.set_exception(Ending())
                raise
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            finally:
                self.running -= 1

    async def _try(self, worker: Worker, work: Callable[..., Any], given: tuple[Any, ...],
                   seconds: float | None, stop: Callable[[], None] | None) -> Any:
        for life in range(LIVES):
            future: Future[Any] | None = None
            try:
                future = await worker.submit(work, *given)
                async with asyncio.timeout(seconds):
                    return await asyncio.wrap_future(future)
            except TimeoutError:
                worker.kill()
                raise LimitError(f"no answer was found in {seconds:g} s, as long as this server "
                                 "allows") from None
            except asyncio.CancelledError:
                if self._ending or stop is None or future is None or not await _stopped(
                        future, stop):
                    worker.kill()
                raise
            except BrokenExecutor:
                self.deaths += 1
                worker.kill()
                if life + 1 == LIVES:
                    worker.start()
        raise Died

    async def drain(self, grace: float) -> None:
        """Give back what waits, let what runs end for some seconds, and stop."""
        self._ending = True
        while not self._queue.empty():
            _, _, done, *_ = self._queue.get_nowait()
            if not done.done():
                done.set_exception(Ending())
        until = time.monotonic() + grace
        while self.running and time.monotonic() < until:
            await asyncio.sleep(0.02)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self.workers:
            worker.kill()


async def _stopped(future: Future[Any], stop: Callable[[], None]) -> bool:
    """Whether work ends soon after it was asked to."""
    stop()
    ended = asyncio.wrap_future(future)
    ended.add_done_callback(lambda one: one.cancelled() or one.exception())  # it may be killed
    await asyncio.wait([ended], timeout=STOPPING)
    return future.done()


def _cancel(trying: asyncio.Task[Any], done: asyncio.Future[Any]) -> None:
    """End work that nobody waits for any more."""
    if done.cancelled():
        trying.cancel()


class Lent(Executor):
    """The pool as an executor for threads, such as those of sweeps.

    Parameters
    ----------
    pool : whose loop runs in another thread.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        loop = self._pool.loop
        assert loop is not None and not kwargs  # the pool was started

        async def run() -> Any:
            try:
                return await self._pool.run(fn, *args, order=LATER)
            except Ending:
                raise asyncio.CancelledError from None

        return asyncio.run_coroutine_threadsafe(run(), loop)
