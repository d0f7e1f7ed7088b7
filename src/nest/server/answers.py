"""Answers that are kept in memory, the ones used last, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict

from nest.server.work import Reply

OVERHEAD = 500
"""Bytes of an entry besides its answer (chosen, above what was measured)."""


class Answers:
    """Replies by key.

    Parameters
    ----------
    most : bytes of all replies together.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._kept: OrderedDict[str, Reply] = OrderedDict()

    def get(self, key: str) -> Reply | None:
        """The reply of a key; None: there is none."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: str, reply: Reply) -> None:
        """Keep a reply; those not used for longest go."""
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
