"""Questions that nobody waits for, and many questions in one request."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from nest.server.pool import Busy, Pool
from nest.server.work import BatchParts, Limits, Read, Reply, parts, read

Ask = Callable[[str, bytes], Awaitable[Reply]]
"""Answers a request to an address, whatever comes of it."""
POLL = 0.1
"""Seconds between two looks at a question that is followed."""
READING = 20.0
"""Seconds to read a request (chosen: a network of 100,000 devices takes 5)."""
LONGEST_WAIT = 60.0
"""Seconds that a look at a question may wait for its end (chosen)."""


@dataclass
class Submitted:
    """A question that is answered while its client does something else."""

    id: str
    endpoint: str
    key: str
    """Hash of all that its answer depends on."""
    task: asyncio.Future[Reply]

    @property
    def state(self) -> Literal["running", "done", "cancelled"]:
        """How far it is; one that waits for a worker runs."""
        if not self.task.done():
            return "running"
        return "cancelled" if self.task.cancelled() else "done"

    @property
    def reply(self) -> Reply | None:
        """Its answer or error; None: there is none."""
        return self.task.result() if self.state == "done" else None

    def document(self) -> bytes:
        """Its state, and what came of it, as JSON."""
        reply = self.reply
        head = json.dumps({
            "schema": "nest.submitted/1.0", "id": self.id, "to": self.endpoint,
            "state": self.state, "status": None if reply is None else reply.status}).encode()
        return head[:-1] + b', "answer": ' + (b"null" if reply is None else reply.body) + b"}"


class SubmittedQuestions:
    """The questions of a server that clients ask for later.

    Parameters
    ----------
    ask : answers them; told that they are followed.
    progress : how far the search of a question is, by its key.
    reader : reads them.
    limits : of each question.
    count : questions that may run, and answers that are kept.
    most : bytes of answers that are kept; the oldest go first.
    """

    def __init__(self, ask: Callable[[str, bytes, bool], Awaitable[Reply]],
                 progress: Callable[[str], dict[str, Any] | None], reader: Pool, limits: Limits,
                 count: int, most: int) -> None:
        self._ask, self._progress, self._reader, self._limits = ask, progress, reader, limits
        self._count, self._most = count, most
        self.known: dict[str, Submitted] = {}

    async def submit(self, body: bytes) -> Submitted | Reply:
        """Take a question; one that cannot be read is refused at once.

        Raises
        ------
        Busy : too many are being answered.
        LimitError, Died, Ending : of reading it.
        """
        found = await self._reader.run(parts, body, False, seconds=READING)
        if isinstance(found, Reply):
            return found
        assert isinstance(found, BatchParts)
        endpoint, (question,) = found
        checked = await self._reader.run(
            read, endpoint, question, self._limits, seconds=READING)
        if isinstance(checked, Reply):
            return checked
        assert isinstance(checked, Read)
        if sum(one.state == "running" for one in self.known.values()) >= self._count:
            raise Busy
        one = Submitted(secrets.token_hex(8), endpoint, checked.key, asyncio.ensure_future(
            self._ask(endpoint, question, True)))
        self.known[one.id] = one
        self._forget()
        return one

    def _forget(self) -> None:
        """Drop the answers that were asked for first, within the bytes."""
        over = [one for one in self.known.values() if one.state != "running"]
        held = sum(len(one.reply.body) for one in over if one.reply is not None)
        while over and (held > self._most or len(over) > self._count):
            gone = over.pop(0)
            held -= 0 if gone.reply is None else len(gone.reply.body)
            del self.known[gone.id]

    async def look(self, name: str, seconds: float) -> Submitted | None:
        """A question by its id, after its end or some seconds; None: it is not known."""
        one = self.known.get(name)
        if one is not None and seconds > 0 and one.state == "running":
            await asyncio.wait([one.task], timeout=min(seconds, LONGEST_WAIT))
        return one

    async def events(self, one: Submitted) -> AsyncIterator[bytes]:
        """How far a question is each time that changes, as server-sent events, until its end.

        ``plan`` has the best plan so far and what its page shows, ``progress`` how far its proof
        is, ``end`` the question with its answer.
        """
        last: dict[str, Any] = {}
        while not one.task.done():
            now = self._progress(one.key) or {}
            plan = {name: now[name] for name in ("plan", "page") if name in now}
            if plan and plan["plan"] != last.get("plan"):
                yield event("plan", json.dumps(plan).encode())
            if now and now["progress"] != last.get("progress"):
                yield event("progress", json.dumps(now["progress"]).encode())
            last = now or last
            await asyncio.wait([one.task], timeout=POLL)
        yield event("end", one.document())

    async def cancel(self, one: Submitted) -> None:
        """Stop answering it; others that ask the same are still answered."""
        one.task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([one.task])


def event(name: str, data: bytes) -> bytes:
    """A server-sent event, whose data are a line of JSON."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def batch(ask: Ask, asked: BatchParts, width: int) -> AsyncIterator[bytes]:
    """The answers to several questions as one document, in their order, each once it is known.

    Parameters
    ----------
    ask : answers each.
    width : questions at once.
    """
    gate = asyncio.Semaphore(width)

    async def answer(question: bytes) -> Reply:
        async with gate:
            return await ask(asked.to, question)

    tasks = [asyncio.ensure_future(answer(one)) for one in asked.questions]
    try:
        yield b'{"schema": "nest.batch/1.0", "answers": ['
        for number, task in enumerate(tasks):
            yield (b", " if number else b"") + (await task).body
        yield b"]}"
    finally:  # also where the client has hung up
        for task in tasks:
            task.cancel()


def seconds_of(text: Any) -> float | None:
    """Seconds that a client wants to wait; None: no number from 0 on."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0.0 <= found < float("inf") else None
