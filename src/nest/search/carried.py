"""Compiled code that travels: a zip file of the folder of :mod:`nest.search.kept_code`.

It is good where the folder has the same name: the same sources, processor, Python and numba. What
it holds is run, so that it needs the trust that a package needs; the digest of each file is
checked, which tells damage, and that of the whole, if it is given, which tells another's file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from nest.errors import InputError
from nest.inputs.base import Description
from nest.inputs.files import read_bytes, write_atomic
from nest.search import kept_code
from nest.units import shorten

VARIABLE = "NEST_KERNELS"
"""Names an archive that every process looks at before it compiles."""
WITHIN = Path(__file__).parents[1] / "_kernels" / "compiled.zip"
"""An archive in a wheel, which whoever builds one may add."""
ABOUT = "about.json"
LARGEST = 1 << 30
"""Bytes of an archive, and of what it holds (chosen; about 25 MB today)."""
MANY = 2000
"""Files of an archive (chosen; about 40 today)."""
_NAME = re.compile(r"(\w+/)?[\w.-]+")


class Carried(Description):
    """What an archive says of itself."""

    folder: str = Field(description="name of the folder: a digest, see `nest.search.kept_code`")
    machine: dict[str, str] = Field(description="processor and versions")
    files: Annotated[dict[str, str], Field(max_length=MANY)] = Field(
        description="SHA-256 of each file")


def beside() -> Path | None:
    """The archive that this process should take code from, if there is one."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return WITHIN if WITHIN.exists() else None


def write(path: str | os.PathLike[str], folder: Path) -> str:
    """Write an archive of a folder of compiled code, the same for the same files.

    Returns
    -------
    str
        SHA-256 of the archive, in hexadecimal digits.

    Raises
    ------
    InputError : entry points are not compiled.
    OutputError : it cannot be written.
    """
    missing = kept_code.uncompiled(folder)
    if missing:
        raise InputError(f"kernels: {', '.join(missing)} of {folder} are not compiled; needed: all "
                         "(`nest warm` compiles them)")
    files = {file.relative_to(folder).as_posix(): file.read_bytes()
             for file in sorted(folder.rglob("*")) if file.is_file() and not _other(file, folder)}
    about = Carried(folder=folder.name, machine=kept_code.machine(), files={
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {ABOUT: about.model_dump_json(indent=1).encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    write_atomic(path, packed.getvalue())
    return hashlib.sha256(packed.getvalue()).hexdigest()


def _other(file: Path, folder: Path) -> bool:
    """Whether a file is not one that a search loads, such as half a file of a killed process."""
    if file.parent == folder:
        return file.name not in kept_code.SECONDS
    return file.suffix not in (".nbi", ".nbc")


def take(path: str | os.PathLike[str], folder: Path, sha256: str | None = None) -> int:
    """Put the code of an archive into a folder of compiled code; all of it, or none.

    Parameters
    ----------
    sha256 : that of the archive, as :func:`write` returned it; None: it is not known.

    Returns
    -------
    int
        Files of code.

    Raises
    ------
    InputError : it is of another machine or version, damaged, or no such archive.
    """
    shown = shorten(os.fspath(path), 300)[1:-1]
    data = read_bytes(path, LARGEST)
    own = hashlib.sha256(data).hexdigest()
    if sha256 is not None and sha256.strip().lower() != own:
        raise InputError(f"{shown}: sha256: got {own}; allowed: {shorten(sha256)}, as was asked")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _files(archive, shown, folder)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError,
            OSError) as error:
        raise InputError(f"{shown}: is not an archive of compiled kernels ({error}); allowed: a "
                         "file of `nest warm -o`") from None
    # Marks of entry points come last: a process that reads meanwhile finds what they promise.
    for name in sorted(files, key=lambda name: (name in kept_code.SECONDS, name.endswith(".nbi"))):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as stream:
            stream.write(files[name])
        os.replace(stream.name, target)
    return sum("/" in name for name in files)


def _files(archive: zipfile.ZipFile, shown: str, folder: Path) -> dict[str, bytes]:
    """Names and bytes of the files of an archive that belongs into a folder."""
    entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MANY + 1 or size > LARGEST:
        raise InputError(f"{shown}: got {len(entries)} files of {size} bytes; allowed: at most "
                         f"{MANY} of {LARGEST}")
    names = {entry.filename for entry in entries} - {ABOUT}
    try:
        about = Carried.model_validate(json.loads(archive.read(ABOUT)))
    except (KeyError, ValueError, RecursionError, ValidationError) as error:
        raise InputError(f"{shown}: {ABOUT}: {str(error).splitlines()[0]}; allowed: a file of "
                         "`nest warm -o`") from None
    if about.folder != folder.name:
        here = kept_code.machine()
        apart = [f"{name} {shorten(about.machine.get(name))} (here {value})"
                 for name, value in here.items() if about.machine.get(name) != value]
        apart = apart or ["other sources of NEST"]
        raise InputError(f"{shown}: its kernels are compiled for {', '.join(apart)}; allowed: the "
                         "same (`nest warm` compiles them here)")
    odd = sorted(names ^ {*about.files})
    odd += [name for name in names if not _NAME.fullmatch(name) or ".." in name]
    if odd:
        raise InputError(f"{shown}: got {shorten(odd[0])}; allowed: the files that {ABOUT} lists")
    found = {name: archive.read(name) for name in sorted(names)}
    for name, data in found.items():
        if hashlib.sha256(data).hexdigest() != about.files[name]:
            raise InputError(f"{shown}: {shorten(name)}: got other bytes; allowed: those that "
                             f"{ABOUT} has the digest of")
    return found
