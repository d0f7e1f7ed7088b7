"""Data goes to stdout, everything else to stderr; a closed pipe is not an error."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from nest.errors import OutputError

UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
"""Errors of a system that cannot write."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))
             if chr(code) not in "\n\t"} | {
    code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F),
                                       *range(0x2066, 0x206A))}
"""What a terminal would take for commands: messages quote texts of others' files."""
NARROWEST, WIDEST = 80, 100  # columns of a report


def emit(text: str) -> bool:
    """Write data to stdout; whether anybody may read it.

    Raises
    ------
    OutputError : stdout cannot be written (a full disk); a closed pipe is ignored.
    """
    if sys.stdout is None:  # closed by the parent process
        return False
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
        return True
    except BrokenPipeError:
        _drop_stdout()
        return False
    except OSError as error:
        raise unwritten(error) from None


def unwritten(error: OSError) -> OutputError:
    """The error of data that stdout does not take; the rest of it is discarded."""
    _drop_stdout()
    return OutputError(f"standard output: cannot be written ({error.strerror or error})")


def deliver(text: Callable[[], str], *writes: Callable[[], object], quiet: bool = False) -> None:
    """Write files, then print, so that printed results are saved; no result is lost.

    Parameters
    ----------
    text : what to print.
    writes : each writes one file.
    quiet : print only what could not be written.

    Raises
    ------
    OutputError : files that could not be written; the others are, and the text is printed.
    """
    failed = []
    for write in writes:
        try:
            write()
        except OutputError as error:
            failed.append(str(error))
    if failed or not quiet:
        emit(text())
    if failed:
        raise OutputError("\n".join(failed), printed=True)


def say(text: str) -> None:
    """Write one message to stderr."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        print(text.translate(_CONTROLS), file=sys.stderr, flush=True)


def note(notes: Iterable[str], kind: str = "note: ") -> None:
    """Write notes to stderr, a line each."""
    for one in notes:
        say(f"nest: {kind}{one}")


def width() -> int:
    """Columns of a report: those of the terminal or COLUMNS, within the readable range."""
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size((NARROWEST, 24)).columns))


def colour() -> bool:
    """Whether stdout is a terminal with colour."""
    return (sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
            and os.environ.get("TERM") != "dumb")


def unicode() -> bool:
    """Whether stdout can show lines and bars."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def page() -> dict[str, Any]:
    """Arguments of every report: ``width``, ``colour`` and ``unicode``."""
    return {"width": width(), "colour": colour(), "unicode": unicode()}


def tolerate() -> None:
    """Escape characters that the encoding of stdout or stderr lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Discard the rest of the buffer, so that the process ends without an error."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
