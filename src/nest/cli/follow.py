"""A line on a terminal while a search runs, and Ctrl-C, which ends it with the best plan so far."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nest.search.progress import Progress

AFTER = 0.5
"""Seconds until the line appears."""


class Follow:
    """Follows ``nest.plan``, as its ``progress``, inside a ``with`` block.

    Ctrl-C ends the search once there is a plan. Without a plan, and the second time, it is a
    KeyboardInterrupt.

    Parameters
    ----------
    what : is searched.
    quiet : show no line; nor is one shown where stderr is no terminal.
    """

    def __init__(self, what: str, quiet: bool) -> None:
        self.what = what
        self.shows = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self.interrupted = self._planned = self._shown = False
        self._before: Any = None

    def __enter__(self) -> Follow:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted or not self._planned:
            raise KeyboardInterrupt
        self.interrupted = True

    def __call__(self, now: Progress) -> bool:
        self._planned = now.step_time_s is not None
        if self.shows and now.seconds >= AFTER:
            self._shown = True
            width = shutil.get_terminal_size((80, 24)).columns - 1
            sys.stderr.write(f"\r{line(self.what, now)[:width]}\x1b[K")
            sys.stderr.flush()
        return not self.interrupted


def line(what: str, now: Progress) -> str:
    """What is searched, how far, and how good the best plan is."""
    from nest.units import format_seconds

    if now.total:
        what += f": {now.proved}/{now.total} proved"
    if now.step_time_s is None:
        return f"{what}, no plan yet"
    what += f", best {format_seconds(now.step_time_s)}"
    if now.lower_bound_s is None or now.gap is None:
        return what
    return f"{what}, bound {format_seconds(now.lower_bound_s)}, gap {100 * now.gap:.2g} %"
