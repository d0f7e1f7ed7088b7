"""Files written into a folder together, or none of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping

from nest.errors import InputError, OutputError
from nest.units import shorten


def check_folder(folder: str, force: bool) -> None:
    """Refuse a folder that cannot be written or holds files, before any work is done for it.

    Raises
    ------
    InputError : no name, a file, a folder that is not empty (without ``force``), or no folder to
        make it in.
    """
    shown = shorten(folder, 300)[1:-1]
    try:
        if not folder or "\0" in folder or (os.path.lexists(folder) and not os.path.isdir(folder)):
            raise InputError(f"output: got {shorten(folder, 300)}; allowed: a folder, created if "
                             "missing")
        if not os.path.isdir(folder):
            above = os.path.dirname(os.path.abspath(folder))
            if not os.path.isdir(above):
                raise InputError(f"output: {shown} cannot be created (no folder {above})")
        elif os.listdir(folder) and not force:
            raise InputError(f"output: {shown} is not empty; allowed: a new or an empty folder, or "
                             "--force, which replaces files of the same names")
    except OSError as error:
        raise OutputError(f"{shown}: cannot be read ({error.strerror or error})") from None


def write_folder(folder: str, files: Mapping[str, str | bytes], force: bool = False) -> None:
    """Write files by name; a new folder appears with all of them, or not at all.

    In a folder that has files, all are written beside their places first, and then moved there.

    Raises
    ------
    InputError : as :func:`check_folder`.
    OutputError : the disk is full, or the folder must not be changed.
    """
    check_folder(folder, force)
    target, draft = os.path.realpath(folder), ""
    inside = os.path.isdir(target)
    try:
        draft = tempfile.mkdtemp(prefix=".nest-", dir=target if inside else os.path.dirname(target))
        for name, text in files.items():
            with open(os.path.join(draft, name), "wb") as stream:
                stream.write(text.encode() if isinstance(text, str) else text)
        if inside:
            for name in files:
                os.replace(os.path.join(draft, name), os.path.join(target, name))
        else:
            os.chmod(draft, 0o777 & ~_umask())
            os.rename(draft, target)
    except OSError as error:
        shown = shorten(folder, 300)[1:-1]
        raise OutputError(f"{shown}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
