"""What a terminal shows while a command works, and Ctrl-C, which ends a search early."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from nest.cli import output

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

    def reraise(self) -> None:
        """End as an interrupted command, once the best plan so far is shown.

        Raises
        ------
        KeyboardInterrupt : the search was interrupted.
        """
        if self.interrupted:
            raise KeyboardInterrupt


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


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """Report steps that take seconds on stderr, unless ``quiet``."""
    from nest.search import compiled

    before = compiled.announce
    compiled.announce = (
        (lambda text: None) if quiet else (lambda text: output.say(f"nest: {text}")))
    try:
        yield
    finally:
        compiled.announce = before


@contextmanager
def bar(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; a call advances it by one and shows what is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}", markup=False), BarColumn(24),
                  MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True),
                  disable=quiet) as shown:
        task = shown.add_task("", total=total)
        yield lambda text: shown.update(task, advance=1, description=text)
        shown.update(task, description="done")
