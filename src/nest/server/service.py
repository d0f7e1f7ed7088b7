"""What happens to a request: it is read, looked up, asked once, and answered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nest.errors import InputError, NestError, OutputError
from nest.server.followed import SearchFile
from nest.server.pool import STOPPING, Busy, Died, Ending, Pool
from nest.server.settings import ServerSettings, need
from nest.server.studies import Studies
from nest.server.submitted import READING, SubmittedQuestions
from nest.server.work import Limits, Read, Reply, answer, read, refusal
from nest.studies.engines import prepare
from nest.studies.store import Store
from nest.studies.study import VERSION

OVERHEAD = 500
"""Bytes of an entry besides its answer (chosen, above what was measured)."""


class ReplyCache:
    """Replies by key.

    Parameters
    ----------
    most : bytes of all replies in memory together.
    file : where those of questions are stored for good; None: nowhere.

    Raises
    ------
    InputError, OutputError : as of :class:`nest.studies.store.Store`.
    """

    def __init__(self, most: int, file: str | None = None) -> None:
        self._most, self._held = most, 0
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._store = None if file is None else Store(file)

    def get(self, key: str) -> Reply | None:
        """The reply of a key; None: there is none."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        elif self._store is not None:
            with _logged():
                status, body = self._store.status(_name(key)), self._store.answer(_name(key))
                if status is not None and body is not None:
                    found = Reply(int(status), body.encode(), True)
                    self.keep(key, found)
        return found

    def store(self, key: str, reply: Reply) -> None:
        """Keep the reply to a question, also in the file."""
        self.keep(key, reply)
        if self._store is not None:
            with _logged():
                self._store.add(_name(key), str(reply.status), reply.body.decode())

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def keep(self, key: str, reply: Reply) -> None:
        """Keep a reply in memory; those not used for longest go."""
        size = len(reply.body) + OVERHEAD
        if key in self._kept or size > self._most:
            return
        self._kept[key] = reply
        self._held += size
        while self._held > self._most:
            _, gone = self._kept.popitem(last=False)
            self._held -= len(gone.body) + OVERHEAD

    @property
    def held(self) -> int:
        """Bytes of all replies."""
        return self._held

    def __len__(self) -> int:
        return len(self._kept)


@contextmanager
def _logged() -> Iterator[None]:
    """A file that cannot be read or written is told, and stops no answer."""
    try:
        yield
    except (InputError, OutputError) as error:
        logging.getLogger("nest.server").error("%s", error)


def _name(key: str) -> str:
    """The key of a reply among those of other versions."""
    return f"{VERSION} {key}"


BESIDES = 30.0
"""Seconds of an answer besides its search, at most (chosen)."""
AGAIN = 5
"""Seconds after which a client should ask again."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histogram of response times."""


class Metrics:
    """Counters of requests, and gauges of what the server holds.

    Parameters
    ----------
    pool, answers, studies : what the gauges look at.
    """

    def __init__(self, pool: Pool, answers: ReplyCache, studies: Studies) -> None:
        client = need("prometheus_client")
        self.registry = client.CollectorRegistry()
        make = {"registry": self.registry}
        self.requests = client.Counter(
            "nest_requests", "Requests by address and status.", ("path", "status"), **make)
        self.seconds = client.Histogram(
            "nest_request_seconds", "Seconds from request to response.", ("path",),
            buckets=SECONDS, **make)
        self.cached = client.Counter(
            "nest_cached", "Requests that needed no search: the same request, the same question, "
            "or one being asked.", ("what",), **make)
        for name, text, look in (
            ("nest_workers", "Processes that plan.", lambda: len(pool.workers)),
            ("nest_waiting", "Questions that wait for a worker.", lambda: pool.waiting),
            ("nest_running", "Questions that workers work on.", lambda: pool.running),
            ("nest_worker_deaths", "Workers that ended over a question.", lambda: pool.deaths),
            ("nest_answers", "Answers kept in memory.", lambda: len(answers)),
            ("nest_answers_bytes", "Bytes of these.", lambda: answers.held),
            ("nest_sweeps", "Sweeps that run.", lambda: studies.running),
        ):
            client.Gauge(name, text, **make).set_function(look)

    def text(self) -> bytes:
        """All figures in the text format."""
        found: bytes = need("prometheus_client").generate_latest(self.registry)
        return found


def load() -> bool:
    """Load what planning needs, kernels included, and what shows a first plan."""
    from nest.report.web import document

    return prepare() and document is not None


def warm() -> bool:
    """Load what reading needs."""
    from nest.questions import read_question

    read_question({"model": "bert-large", "cluster": "dgx-a100",
                   "job": {"global_batch": 8, "seq_len": 512}})
    return True


@dataclass
class Asked:
    """A question that a worker answers, or will."""

    task: asyncio.Task[Reply]
    file: SearchFile | None = None
    """How far its search is; None: nobody asked to follow it."""
    clients: int = 0
    """That wait for it."""


class Service:
    """Answers requests; one object for a server.

    Parameters
    ----------
    settings : its limits.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.limits = Limits(settings.devices, settings.layers, settings.seconds)
        self.pool = Pool(settings.processes, settings.waiting, load)
        self.reader = Pool(1, settings.waiting, warm)
        self.answers = ReplyCache(settings.cache, settings.store)
        self.studies = Studies(self.pool, self.reader, self.limits, settings)
        self.questions = SubmittedQuestions(
            self.ask, self.progress, self.reader, self.limits, settings.waiting, settings.cache)
        self.metrics = Metrics(self.pool, self.answers, self.studies)
        self.ending = False
        self._asked: dict[str, Asked] = {}
        self._files: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Start the workers; needs a running loop."""
        self._files = tempfile.TemporaryDirectory(prefix="nest-serve-")
        self.pool.start()
        self.reader.start()

    @property
    def ready(self) -> bool:
        """Some worker has its kernels, and requests can be read: none waits for that any more."""
        return self.pool.ready and self.reader.ready

    async def end(self) -> None:
        """Let what runs end within the grace, hand back the rest, and stop the workers."""
        self.ending = True
        self.studies.stop()
        await asyncio.gather(self.pool.drain(self.settings.grace), self.reader.drain(0.0))
        await asyncio.gather(*(one.task for one in self._asked.values()), return_exceptions=True)
        await self.studies.ended()
        self.answers.close()
        if self._files is not None:
            self._files.cleanup()

    def known(self, endpoint: str, body: bytes) -> Reply | None:
        """The reply to exactly this request, if it is kept."""
        found = self.answers.get(_exact(endpoint, body))
        if found is not None:
            self.metrics.cached.labels("request").inc()
        return found

    async def ask(self, endpoint: str, body: bytes, followed: bool = False) -> Reply:
        """The reply to a request, whatever comes of it.

        Parameters
        ----------
        followed : its search tells how far it is (:meth:`progress`) and ends once nobody waits.
        """
        found: Reply = self.known(endpoint, body) or await self.caught(
            self._ask, endpoint, body, followed, asked=body)
        return found

    def progress(self, key: str) -> dict[str, Any] | None:
        """How far the search of a question is; None: it does not run, or nobody follows it."""
        asked = self._asked.get(key)
        return None if asked is None or asked.file is None else asked.file.read()

    async def caught(self, work: Callable[..., Awaitable[Any]], *given: Any,
                     asked: bytes | None = None) -> Any:
        """What some work gives, or the reply that says why it gives nothing.

        Parameters
        ----------
        asked : the request, which is handed back where the server ends.
        """
        try:
            return await work(*given)
        except Busy as error:
            return busy(str(error) or "too many questions wait")
        except Ending:
            return handed_back(asked)
        except NestError as error:
            return refusal(error)
        except Died:
            return died()

    async def _ask(self, endpoint: str, body: bytes, followed: bool) -> Reply:
        found = await self.reader.run(read, endpoint, body, self.limits, seconds=READING)
        if isinstance(found, Reply):
            return self._kept(_exact(endpoint, body), found)
        assert isinstance(found, Read)
        reply = self.answers.get(found.key)
        if reply is not None:
            self.metrics.cached.labels("question").inc()
        else:
            reply = await self._once(found.key, endpoint, body, followed)
        return self._kept(_exact(endpoint, body), reply._replace(body=found.named(reply.body)))

    async def _once(self, key: str, endpoint: str, body: bytes, followed: bool) -> Reply:
        """The reply to a question that several clients may ask at the same time."""
        asked = self._asked.get(key)
        if asked is None:
            file = SearchFile(self._files.name) if followed and self._files is not None else None
            asked = self._asked[key] = Asked(asyncio.ensure_future(self.pool.run(
                answer, endpoint, body, self.limits, None if file is None else file.place,
                seconds=self.limits.seconds + BESIDES,
                stop=None if file is None else file.stop)), file)
            if file is not None:  # a worker that is asked to end writes a little longer
                asked.task.add_done_callback(lambda _: asyncio.get_running_loop().call_later(
                    STOPPING, file.remove))
            asked.task.add_done_callback(lambda done: self._forget(key, done))
        else:
            self.metrics.cached.labels("asked").inc()
        asked.clients += 1
        try:
            return await asyncio.shield(asked.task)
        except asyncio.CancelledError:
            if asked.clients == 1:  # nobody else waits
                self._asked.pop(key, None)
                asked.task.cancel()
            raise
        finally:
            asked.clients -= 1

    def _forget(self, key: str, task: asyncio.Task[Reply]) -> None:
        asked = self._asked.get(key)
        if asked is not None and asked.task is task:
            del self._asked[key]
        if not task.cancelled() and task.exception() is None and task.result().lasting:
            self.answers.store(key, task.result())

    def _kept(self, key: str, reply: Reply) -> Reply:
        if reply.lasting:
            self.answers.keep(key, reply)
        return reply


def _exact(endpoint: str, body: bytes) -> str:
    return hashlib.sha256(endpoint.encode() + b"\n" + body).hexdigest()


# ---------------------------------------------------------------- replies of the server itself


def told(status: int, error: str, message: str, **more: Any) -> Reply:
    """An error of the server itself as a document of the same form."""
    return Reply(status, json.dumps({
        "schema": "nest.error/1", "error": error, "code": 75, "message": message,
        "problems": [message], **more}).encode())


def busy(why: str) -> Reply:
    """Refuse for now."""
    return told(429, "busy", f"{why}; ask again in {AGAIN} seconds")


def starting() -> Reply:
    """Say that the workers are not ready."""
    return told(503, "starting", "the workers load their kernels, or compile them, which takes up "
                "to a minute; questions asked now wait for them")


def died() -> Reply:
    """Give up a request that ends workers."""
    return told(422, "died", "the process that worked on this question ended, twice: it may need "
                "more memory than there is")


def handed_back(body: bytes | None = None) -> Reply:
    """Give a question back because the server ends."""
    try:
        asked = {} if body is None else {"question": json.loads(body)}
    except (ValueError, RecursionError):
        asked = {}
    return told(503, "ending", f"the server ends; ask again in {AGAIN} seconds", **asked)
