"""Who works on a store: a locked file for each process, which its end unlocks, however it ends."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # not a POSIX system: every other process counts as ended
    fcntl = None

_NAME = re.compile(r"[0-9a-f]{16}")
"""Names of owners. A store may hold any text in their place, which must not become a path."""


class Owner:
    """A name of this process on a store, alive as long as the process holds it.

    Parameters
    ----------
    path : of the store; the locked file lies beside it.

    Raises
    ------
    OSError : the file cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        while True:
            self.name = secrets.token_hex(8)
            self._file = os.open(_file(path, self.name), os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o666)
            if fcntl is None:
                return
            fcntl.flock(self._file, fcntl.LOCK_EX)
            # unless another process took it for that of one that has ended
            if os.fstat(self._file).st_nlink:
                return
            os.close(self._file)

    def close(self) -> None:
        """Give up the name."""
        with contextlib.suppress(OSError):
            os.unlink(_file(self._path, self.name))
        with contextlib.suppress(OSError):
            os.close(self._file)


def alive(path: str, name: object) -> bool:
    """Whether the process of a name still runs; the file of one that does not is removed.

    Parameters
    ----------
    name : as a store has it; what no :class:`Owner` is named is nobody's.
    """
    if fcntl is None or not isinstance(name, str) or not _NAME.fullmatch(name):
        return False
    try:
        file = os.open(_file(path, name), os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        with contextlib.suppress(OSError):
            os.unlink(_file(path, name))
        return False
    finally:
        os.close(file)


def clear(path: str) -> None:
    """Remove the files of processes that have ended."""
    prefix = _file(path, "")
    for file in glob.glob(glob.escape(prefix) + "*"):
        alive(path, file[len(prefix):])


def _file(path: str, name: str) -> str:
    return f"{path}-owner-{name}"
