"""Where questions run: processes of this machine, or a cluster of Dask, MPI or Ray.

Each is an `Executor` of the standard library, which is all that :mod:`nest.studies.running` knows.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
)
from contextlib import suppress
from typing import Any, NamedTuple

from nest.errors import InputError, did_you_mean
from nest.inputs.arguments import refusal
from nest.search.threads import thread_count
from nest.units import shorten

NAMES = ("local", "inline", "dask://HOST:PORT", "mpi", "ray", "ray://HOST:PORT")
"""What ``--engine`` takes; ``inline`` asks in the process itself, for a debugger."""
_NEEDS = {"dask": "distributed", "mpi": "mpi4py", "ray": "ray"}
"""The package of an engine, by the name of the extra that installs it."""


class Engine:
    """A way to make an executor, again if its workers have died.

    Parameters
    ----------
    name : for messages.
    make : gives an executor.
    width : questions that an executor of it works on at once.
    kill : ends what an executor of it runs.
    """

    def __init__(self, name: str, make: Callable[[], Executor], width: Callable[[Executor], int],
                 kill: Callable[[Executor], None] = lambda executor: None) -> None:
        self.name, self.make, self.width, self.kill = name, make, width, kill


def engine(text: str = "local", workers: int | None = None) -> Engine:
    """The engine of a text as ``--engine`` takes it.

    Parameters
    ----------
    text : see :data:`NAMES`.
    workers : processes of this machine; None: ``NEST_THREADS``, or one for each processor. Other
        engines have the workers that they were started with.

    Raises
    ------
    InputError : an unknown text, a package that is not installed, or a scheduler out of reach.
    """
    if not isinstance(text, str):
        raise refusal("engine", text, ", ".join(NAMES))
    name, _, address = text.partition("://")
    if text == "inline":
        return Engine(text, Inline, lambda executor: 1)
    if text == "local":
        count = workers or thread_count()
        return Engine(text, lambda: _processes(count), lambda executor: count, _terminate)
    made = {"dask": _dask, "mpi": _mpi, "ray": _ray}.get(name)
    if made is None or (name == "dask") != bool(address) and name != "ray" or (
            name == "mpi" and text != "mpi"):
        near = did_you_mean(name, ("local", "inline", *_NEEDS))
        raise InputError(f"engine: got {shorten(text)}; {near}allowed: {', '.join(NAMES)}")
    if importlib.util.find_spec(_NEEDS[name]) is None:
        raise InputError(f"engine: {name} needs {_NEEDS[name]}, which is not installed; "
                         f"pip install 'nest-planner[{name}]' adds it")
    return made(text, address)


def prepare() -> bool:
    """Load the kernels in a worker; the first one compiles them for all, if need be."""
    from nest.search import compiled

    compiled.load()
    return True


class Inline(Executor):
    """Runs everything at once where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


# ---------------------------------------------------------------- this machine


def _processes(count: int) -> Executor:
    return ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=begin)


def begin() -> None:
    """Set up a worker: one thread, no Ctrl-C of its own, an end when its parent ends."""
    for name in ("NEST_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _terminate(executor: Executor) -> None:
    for process in multiprocessing.active_children():
        process.terminate()


# ---------------------------------------------------------------- clusters


class DaskExecutor(Executor):
    """An executor of Dask's tasks; a task whose worker dies is run again by Dask.

    That of Dask leaves a future open for ever whose result is lost with its worker while it is
    fetched (distributed 2026.8.0, line 21 of its cfexecutor), and its client, gathering a result
    that is lost with the scheduler, asks for ever, in its one thread for what is done with results.

    Parameters
    ----------
    client : of the scheduler.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        task = self._client.submit(fn, *args, pure=False, retries=2)

        def take(done: Any) -> None:
            """In a thread of Dask's client, not in its event loop."""
            with suppress(InvalidStateError):
                try:
                    future.set_result(self._result(done))
                except CancelledError:
                    future.cancel()
                    future.set_running_or_notify_cancel()
                except Exception as error:
                    future.set_exception(error)

        task.add_done_callback(take)
        return future

    def _result(self, done: Any) -> Any:
        """The result of a task that is done, as long as there is a scheduler to fetch it by.

        Raises
        ------
        CancelledError : the client has lost its scheduler.
        """
        while True:
            try:
                return done.result(timeout=FETCH)
            except TimeoutError:
                if done.status == "error":  # that of the question
                    raise
                if self._client.status != "running":
                    raise CancelledError from None


FETCH = 5.0
"""Seconds between two looks at the scheduler while a result of Dask is fetched (chosen)."""


def _dask(text: str, address: str) -> Engine:
    from distributed import Client

    for name in ("distributed", "distributed.client"):  # a lost scheduler is told once, by NEST
        logging.getLogger(name).setLevel(logging.CRITICAL)
    clients: list[Any] = []

    def make() -> Executor:
        try:
            clients.append(Client(f"tcp://{address}", timeout=10))
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"engine: no scheduler of Dask at {shorten(address)} "
                             f"({type(error).__name__}); allowed: where `dask scheduler` listens"
                             ) from None
        client = clients[-1]
        return Bundles(DaskExecutor(client), lambda: sum(client.nthreads().values()) or 1)

    def kill(executor: Executor) -> None:
        for client in clients:
            with suppress(Exception):
                client.close(timeout=2)

    return Engine(text, make, lambda executor: executor.width, kill)  # type: ignore[attr-defined]


def _mpi(text: str, address: str) -> Engine:
    from mpi4py import MPI
    from mpi4py.futures import MPIPoolExecutor

    if MPI.COMM_WORLD.Get_size() < 2:
        raise InputError("engine: got mpi in one process; allowed: mpiexec -n 3 python -m "
                         "mpi4py.futures -m nest sweep run STUDY --engine mpi")
    return Engine(text, MPIPoolExecutor, lambda executor: executor.num_workers)  # type: ignore[attr-defined]


class RayExecutor(Executor):
    """An executor of Ray's tasks; a task whose worker dies is run again by Ray.

    Parameters
    ----------
    address : of the head, ``HOST:PORT``; ``auto``: the one on this machine.
    """

    def __init__(self, address: str) -> None:
        import ray

        self._ray = ray
        host, _, port = address.rpartition(":")
        try:
            if address != "auto":  # Ray itself would wait for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address, log_to_driver=False, configure_logging=False,
                     ignore_reinit_error=True)
        except (OSError, RuntimeError, ValueError, OverflowError) as error:
            raise InputError(f"engine: no head of Ray at {shorten(address)} "
                             f"({type(error).__name__}); allowed: where `ray start --head` listens"
                             ) from None
        self._remote: dict[Callable[..., Any], Any] = {}
        self._running: set[Any] = set()

    @property
    def processors(self) -> int:
        """Processors of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1)) or 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fn not in self._remote:
            self._remote[fn] = self._ray.remote(num_cpus=1, max_retries=2)(fn)
        reference = self._remote[fn].remote(*args, **kwargs)
        future: Future[Any] = reference.future()
        self._running.add(reference)
        future.add_done_callback(lambda done: self._running.discard(reference))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for reference in [*self._running]:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _ray(text: str, address: str) -> Engine:
    return Engine(text, lambda: RayExecutor(address or "auto"),
                  lambda executor: executor.processors)  # type: ignore[attr-defined]


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
