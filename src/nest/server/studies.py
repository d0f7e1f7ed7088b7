"""The sweeps of a server, each in a process of its own and followed by a thread."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from nest.errors import NestError
from nest.server.apart import Apart
from nest.server.pool import Busy, Lent, Pool
from nest.server.settings import ServerSettings
from nest.server.submitted import event
from nest.server.work import (
    Limits,
    ReadStudy,
    Reply,
    ask_study,
    read_study,
    stored_studies,
    study_table,
)
from nest.studies.running import StudyProgress
from nest.studies.store import make_folder

READING = 60.0
"""Seconds to read a study (chosen)."""
POLL = 0.2
"""Seconds between two looks at a sweep that is followed."""
TABLE = 300.0
"""Seconds for a table (chosen: a million points)."""
State = Literal["running", "done", "cancelling", "cancelled", "failed", "interrupted"]


@dataclass
class RunningStudy:
    """A sweep and how far it is."""

    id: str
    study: ReadStudy
    state: State = "running"
    total: int = 0
    done: int = 0
    asked: int = 0
    message: str | None = None
    thread: threading.Thread | None = None
    apart: Apart | None = None

    def document(self) -> dict[str, Any]:
        """Its state as plain data."""
        return {"schema": "nest.sweep-state/1.0", "id": self.id, "name": self.study.name,
                "state": self.state, "points": self.total, "answered": self.done,
                "asked": self.asked, "message": self.message}

    @property
    def over(self) -> bool:
        """It asks nothing more."""
        return self.state not in ("running", "cancelling")

    def follow(self, now: StudyProgress) -> None:
        """Note progress."""
        self.total, self.done, self.asked = now


class Studies:
    """The sweeps of a server; answers of all are in one store, so that none is asked twice.

    Parameters
    ----------
    pool, reader : workers for questions and for reading.
    limits : of each question.
    settings : with the folder, and how many run at once.
    """

    def __init__(self, pool: Pool, reader: Pool, limits: Limits, settings: ServerSettings) -> None:
        self._pool, self._reader, self._limits, self._settings = pool, reader, limits, settings
        self._folder: str | None = settings.folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.known: dict[str, RunningStudy] = {}

    @property
    def running(self) -> int:
        """Sweeps that ask."""
        return sum(not one.over for one in self.known.values())

    async def start(self, body: bytes) -> RunningStudy | Reply:
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
            raise Busy(f"{self.running} sweeps run")
        one = RunningStudy(name, read)
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

    def _run(self, one: RunningStudy) -> None:
        """Follow a sweep until it is over; runs in a thread."""
        lent, width = Lent(self._pool), len(self._pool.workers)
        try:
            one.apart = Apart(one.study.text, self._place(), width,
                              partial(lent.submit, partial(ask_study, self._limits)))
            if one.state == "cancelling":
                one.apart.stop()
            state, one.message = one.apart.run(one.follow)
            one.state = cast(State, state)
        except NestError as error:
            one.state, one.message = "failed", str(error)
        except Exception as error:
            one.state, one.message = "failed", f"{type(error).__name__}: {error}"

    async def find(self, name: str) -> RunningStudy | None:
        """The sweep of an id, also one that an earlier server has asked."""
        if name not in self.known:
            await self.look()
        return self.known.get(name)

    async def look(self) -> None:
        """Find the sweeps of earlier servers in the folder."""
        if self._settings.folder is None:
            return
        try:
            found = await self._reader.run(stored_studies, self._settings.folder, seconds=READING)
        except NestError as error:
            logging.getLogger("nest.server").error("%s", error)
            return
        for study, points, left, whole in found:
            name = study.digest[:16]
            if name not in self.known:
                over: State = "done" if whole and not left else "interrupted"
                message = None if over == "done" else "a server ended before all was answered; " \
                    "POST the study again to go on"
                self.known[name] = RunningStudy(name, study, over, points, points - left, 0,
                                                message)

    def cancel(self, one: RunningStudy) -> None:
        """Ask nothing more; answers in flight are kept."""
        if one.state == "running":
            one.state = "cancelling"
            if one.apart is not None:
                one.apart.stop()

    async def table(self, one: RunningStudy, file_format: str) -> bytes | Reply:
        """All points with their answers so far, as the text of a file.

        Raises
        ------
        Busy, Ending, Died, LimitError : of the worker that writes it.
        """
        found: bytes | Reply = await self._pool.run(
            study_table, one.study.text, self._place(), file_format, seconds=TABLE)
        return found

    async def events(self, one: RunningStudy) -> AsyncIterator[bytes]:
        """The state of a sweep each time it changes, as server-sent events, until it is over."""
        last = None
        while True:
            over, now = one.over, one.document()
            if now != last:
                name = "end" if over else "progress"
                yield event(name, json.dumps(now).encode())
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
            if one.apart is not None:
                one.apart.kill()
        if self._temporary is not None:
            self._temporary.cleanup()


