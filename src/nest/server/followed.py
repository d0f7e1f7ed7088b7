"""How far the search of a worker is, and its end, told between processes by two small files."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from types import TracebackType
from typing import Any

from nest.search.progress import Progress

STOP = ".stop"
"""End of the name of the file that asks a search to end."""
NEW = ".new"
"""End of the name of a state that is being written."""


class FollowedSearch:
    """A search as its worker follows it: a file has its state, another one asks for its end.

    Parameters
    ----------
    place : the file, which is removed in the end; nothing is told where it cannot be written.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._best: float | None = None
        self._found: dict[str, Any] = {}

    def __enter__(self) -> FollowedSearch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for place in (self._place, self._place + STOP):
            with suppress(OSError):
                os.remove(place)

    def __call__(self, now: Progress) -> bool:
        """Write how far it is; False where it shall end."""
        if os.path.exists(self._place + STOP):
            return False
        if now.found is not None and now.step_time_s is not None and (
                self._best is None or now.step_time_s < self._best):
            from nest.report.web.document import first_document

            plan = now.found()
            if plan.feasible:
                self._best = now.step_time_s
                self._found = {"plan": plan.model_dump(mode="json", by_alias=True),
                               "page": first_document(plan).data()}
        state = {name: value for name, value in now._asdict().items() if name != "found"}
        with suppress(OSError):
            with open(self._place + NEW, "w", encoding="utf-8") as stream:
                json.dump({"progress": state, **self._found}, stream)
            os.replace(self._place + NEW, self._place)
        return True


class SearchFile:
    """The other end: what the server knows of a search that a worker follows.

    Parameters
    ----------
    folder : of the files.
    """

    def __init__(self, folder: str) -> None:
        self.place = os.path.join(folder, secrets.token_hex(8))

    def read(self) -> dict[str, Any] | None:
        """``progress``, and ``plan`` and ``page`` once there is a plan; None: nothing yet."""
        try:
            with open(self.place, encoding="utf-8") as stream:
                found: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            return None
        return found

    def remove(self) -> None:
        """Remove what a worker that was killed has left."""
        for end in ("", STOP, NEW):
            with suppress(OSError):
                os.remove(self.place + end)

    def stop(self) -> None:
        """Ask the search to end."""
        with suppress(OSError), open(self.place + STOP, "w", encoding="utf-8"):
            pass
