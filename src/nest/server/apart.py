"""A sweep in a process of its own, which hands its questions to the workers of the server.

All that a study can make a process do happens there: its points, expressions and answers in the
store. What takes all memory, or never ends, is that process and nothing else.
"""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from nest.errors import NestError
from nest.studies.engines import Engine, begin
from nest.studies.questions import Answered, failed
from nest.studies.running import StudyProgress
from nest.studies.study import Study
from nest.studies.sweep import sweep

MEMORY = 4 * 2**30
"""Bytes of addresses that the process of a sweep may have (chosen: of a million points)."""


class SweepOutcome(NamedTuple):
    """How a sweep ended."""

    state: str
    """done, cancelled or failed."""
    message: str | None = None


class Apart:
    """The process of a sweep, as the server sees it.

    Parameters
    ----------
    text : the study as JSON.
    folder : of its answers.
    width : questions in flight.
    submit : takes a question as bytes, which :func:`nest.server.work.ask_study` reads.
    """

    def __init__(self, text: str, folder: str, width: int,
                 submit: Callable[[bytes], Future[Answered]]) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._submit, self._lock = submit, threading.Lock()
        self._process = context.Process(
            target=_work, args=(other, text, folder, width), daemon=True)
        self._process.start()
        other.close()

    def run(self, follow: Callable[[StudyProgress], object]) -> SweepOutcome:
        """Answer its questions until it is over."""
        found = SweepOutcome("failed", "the process of the sweep ended: it may need more memory "
                             "than it is given; what is answered is kept")
        with suppress(EOFError, OSError):
            while True:
                kind, number, data = self._pipe.recv()
                if kind == "over":
                    found = data
                    break
                if kind == "progress":
                    follow(data)
                else:
                    self._submit(data).add_done_callback(
                        lambda done, number=number: self._answer(number, done))  # type: ignore[misc]
        self._process.join(1.0)
        self.kill()
        return found

    def _answer(self, number: int, done: Future[Answered]) -> None:
        try:
            self._send("answer", number, done.result())
        except CancelledError:
            self._send("cancelled", number)
        except Exception as error:
            self._send("answer", number, failed(f"{type(error).__name__}: {error}"))

    def _send(self, kind: str, number: int = 0, data: object = None) -> None:
        with self._lock, suppress(OSError, ValueError):  # it is over
            self._pipe.send((kind, number, data))

    def stop(self) -> None:
        """Have it ask nothing more."""
        self._send("stop")

    def kill(self) -> None:
        """End it at once; what is answered is stored."""
        self._process.kill()


# ---------------------------------------------------------------- in the process of the sweep


class Handed(Executor):
    """Hands questions to the server.

    Parameters
    ----------
    pipe : to it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self._numbers, self._open = itertools.count(), dict[int, Future[Any]]()
        self.stopped = False
        threading.Thread(target=self._take, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        number = next(self._numbers)
        self._open[number] = future
        self.send("ask", number, pickle.dumps(args[0]))
        return future

    def follow(self, now: StudyProgress) -> bool:
        """Tell the server how far the sweep is."""
        self.send("progress", 0, now)
        return not self.stopped

    def send(self, kind: str, number: int, data: object) -> None:
        """Send a message to the server."""
        with self._lock:
            self._pipe.send((kind, number, data))

    def _take(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, number, data = self._pipe.recv()
                if kind == "stop":
                    self.stopped = True
                    continue
                future = self._open.pop(number)
                with suppress(InvalidStateError):
                    if kind == "answer":
                        future.set_result(data)
                    elif not self.stopped:  # else the sweep cancels it
                        future.cancel()
                        future.set_running_or_notify_cancel()


def _work(pipe: Connection, text: str, folder: str, width: int) -> None:
    """What the process does."""
    begin()
    _limit_memory()
    handed = Handed(pipe)
    try:
        study = Study.parse(json.loads(text), "study")
        found = sweep(study, folder, engine=Engine("server", lambda: handed, lambda one: width),
                      progress=handed.follow, question=failed)
        outcome = SweepOutcome("done" if found.complete else "cancelled")
    except NestError as error:
        outcome = SweepOutcome("failed", str(error))
    except Exception as error:
        outcome = SweepOutcome("failed", f"{type(error).__name__}: {error}")
    with suppress(OSError):
        handed.send("over", 0, outcome)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # no POSIX system
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
