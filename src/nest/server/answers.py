"""Answers that are kept: in memory the ones used last, within a number of bytes; in a file all."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from nest.errors import InputError, OutputError
from nest.server.work import Reply
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
