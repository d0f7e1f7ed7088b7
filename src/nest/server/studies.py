"""Sweeps on the workers of the server, each in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from nest.errors import NestError
from nest.server.pool import Busy, Lent, Pool
from nest.server.settings import Settings
from nest.server.work import Limits, ReadStudy, Reply, ask_study, read_study
from nest.sweeps.engines import Engine
from nest.sweeps.running import Progress
from nest.sweeps.store import make_folder
from nest.sweeps.study import Study
from nest.sweeps.sweep import Sweep, sweep

READING = 60.0
"""Seconds to read a study (chosen)."""
POLL = 0.2
"""Seconds between two looks at a sweep that is followed."""
State = Literal["running", "done", "cancelling", "cancelled", "failed"]


@dataclass
class Running:
    """A sweep and how far it is."""

    id: str
    study: Study
    state: State = "running"
    total: int = 0
    done: int = 0
    asked: int = 0
    message: str | None = None
    thread: threading.Thread | None = None
    found: Sweep | None = None

    def document(self) -> dict[str, Any]:
        """Its state as plain data."""
        return {"schema": "nest.sweep-state/1.0", "id": self.id, "name": self.study.name,
                "state": self.state, "points": self.total, "answered": self.done,
                "asked": self.asked, "message": self.message}

    @property
    def over(self) -> bool:
        """It asks nothing more."""
        return self.state in ("done", "cancelled", "failed")

    def follow(self, now: Progress) -> bool:
        """Note progress; False ends the sweep."""
        self.total, self.done, self.asked = now
        return self.state == "running"


class Studies:
    """The sweeps of a server; answers of all are in one store, so that none is asked twice.

    Parameters
    ----------
    pool, reader : workers for questions and for reading.
    limits : of each question.
    settings : with the folder, and how many run at once.
    """

    def __init__(self, pool: Pool, reader: Pool, limits: Limits, settings: Settings) -> None:
        self._pool, self._reader, self._limits, self._settings = pool, reader, limits, settings
        self._folder: str | None = settings.folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.known: dict[str, Running] = {}

    @property
    def running(self) -> int:
        """Sweeps that ask."""
        return sum(not one.over for one in self.known.values())

    async def start(self, body: bytes) -> Running | Reply:
        """Start a study, or go on with it; the same study has the same id.

        Raises
        ------
        Busy : too many run.
        LimitError, Died, Ending : of reading it.
        """
        read = await self._reader.run(read_study, body, self._limits, seconds=READING)
        if isinstance(read, Reply):
            return read
        assert isinstance(read, ReadStudy)
        name = read.digest[:16]
        before = self.known.get(name)
        if before is not None and before.state in ("running", "done"):
            return before
        if self.running >= self._settings.sweeps or before is not None and not before.over:
            raise Busy
        one = Running(name, Study.parse(json.loads(read.text), "study"))
        self.known[name] = one
        one.thread = threading.Thread(target=self._run, args=(one,), daemon=True)
        one.thread.start()
        return one

    def _place(self) -> str:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nest-serve-")
            self._folder = self._temporary.name
        make_folder(self._folder)
        return self._folder

    def _run(self, one: Running) -> None:
        engine = Engine("server", lambda: Lent(self._pool),
                        lambda executor: len(self._pool.workers))
        try:
            found = sweep(one.study, self._place(), engine=engine, progress=one.follow,
                          question=partial(ask_study, self._limits))
            one.found = found
            one.state = "done" if found.complete else "cancelled"
        except NestError as error:
            one.state, one.message = "failed", str(error)
        except Exception as error:
            one.state, one.message = "failed", f"{type(error).__name__}: {error}"

    def cancel(self, one: Running) -> None:
        """Ask nothing more; answers in flight are kept."""
        if one.state == "running":
            one.state = "cancelling"

    def table(self, one: Running, file_format: str) -> bytes:
        """All points with their answers so far, as the text of a file; takes a while."""
        from nest.sweeps.tables import write

        done = one.found or Sweep(one.study, self._place(), False)
        handle, path = tempfile.mkstemp(suffix=f".{file_format}")
        os.close(handle)
        try:
            with done.results() as results:
                write(results, file_format, path)
            with open(path, "rb") as stream:
                return stream.read()
        finally:
            with suppress(OSError):
                os.unlink(path)

    async def events(self, one: Running) -> AsyncIterator[bytes]:
        """The state of a sweep each time it changes, as server-sent events, until it is over."""
        last = None
        while True:
            over, now = one.over, one.document()
            if now != last:
                name = "end" if over else "progress"
                yield f"event: {name}\ndata: {json.dumps(now)}\n\n".encode()
                last = now
            if over:
                return
            await asyncio.sleep(POLL)

    def stop(self) -> None:
        """Ask nothing more in any sweep."""
        for one in self.known.values():
            self.cancel(one)

    async def ended(self) -> None:
        """Wait a few seconds for the threads; what they have answered is stored."""
        for one in self.known.values():
            if one.thread is not None:
                await asyncio.to_thread(one.thread.join, 3.0)
        if self._temporary is not None:
            self._temporary.cleanup()


