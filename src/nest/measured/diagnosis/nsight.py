"""Reports of Nsight Systems, exported by ``nsys export --type sqlite``.

Tables and columns: NVIDIA, SQLite Export Schema Reference (docs.nvidia.com/nsight-systems,
2021.5, nsys-exporter/exported_data.html): CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _RUNTIME (start and
end in nanoseconds, correlationId), NVTX_EVENTS (text, or textId in StringIds), StringIds. Tables
are made lazily, so any may be missing. The file is opened read-only; its schema runs nothing, for
views and virtual tables are refused and an authorizer allows reading alone.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.measured.diagnosis.timeline import (
    MOST_WORK,
    DeviceWork,
    HostSpan,
    PlanDegrees,
    Timeline,
    rank_in,
)
from nest.measured.diagnosis.timeline import timeline as made
from nest.units import shorten

SUFFIXES = (".sqlite", ".sqlite3", ".db")
LARGEST = 2**33
"""Bytes of a report (chosen); rows are read one after another."""
LONGEST = 120.0
"""Seconds of reading (chosen)."""
KERNELS, COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
CALLS, RANGES, TEXTS = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION,
                    sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_RECURSIVE})
_NANO, _LATEST = 1e-9, 2**62
_COPY_NAMES = {1: "copy of the host to the device", 2: "copy of the device to the host"}


def read(path: str | os.PathLike[str], degrees: PlanDegrees) -> Timeline:
    """The report of one rank: of several devices, the one that worked most.

    Raises
    ------
    InputError : it cannot be read, is no export, or holds no kernel with a time.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    _check_file(path, where)
    try:
        address = Path(os.path.abspath(path)).as_uri() + "?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as base:
            _restrict(base)
            tables = _tables(base, where)
            texts = dict(_texts(base, tables))
            kernels = [*_kernels(base, tables, texts, where)]
            spans = [*_spans(base, tables, texts)]
    except sqlite3.Error as error:
        raise InputError(f"{where}: cannot be read as SQLite ({error}); allowed: what `nsys export "
                         "--type sqlite` writes") from None
    except (OverflowError, MemoryError) as error:
        raise InputError(f"{where}: cannot be read ({error or 'too large'})") from None
    work: dict[int, float] = {}
    for device, one in kernels:
        work[device] = work.get(device, 0.0) + one.end - one.start
    busiest = max(work, key=lambda device: work[device], default=None)
    return made(where, rank_in(path), (one for device, one in kernels if device == busiest), spans,
                degrees)


def _check_file(path: str | os.PathLike[str], where: str) -> None:
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{where}: is not a regular file; allowed: a regular file")
        if info.st_size > LARGEST:
            raise InputError(f"{where}: got {info.st_size} bytes; allowed: at most {LARGEST}")
        with Path(path).open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":  # sqlite.org/fileformat.html, 1.3
                raise InputError(f"{where}: is no SQLite file; allowed: what `nsys export --type "
                                 "sqlite` writes")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot be read "
                         f"({getattr(error, 'strerror', None) or error})") from None


def _restrict(base: sqlite3.Connection) -> None:
    """Nothing but reading, of cells of a bounded length, for a bounded time."""
    base.execute("PRAGMA trusted_schema = OFF")
    base.execute("PRAGMA cell_size_check = ON")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**20)
    base.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS
                        else sqlite3.SQLITE_DENY)
    base.text_factory = lambda raw: raw.decode("utf-8", "replace")
    until = time.monotonic() + LONGEST
    base.set_progress_handler(lambda: time.monotonic() > until, 10**5)


def _tables(base: sqlite3.Connection, where: str) -> dict[str, frozenset[str]]:
    """Columns of the tables that are read."""
    wanted = (KERNELS, COPIES, CALLS, RANGES, TEXTS)
    found: dict[str, frozenset[str]] = {}
    for name, kind, text in base.execute(
            "SELECT name, type, sql FROM sqlite_master WHERE name IN (?, ?, ?, ?, ?)", wanted):
        if not isinstance(text, str) or not text.lstrip().upper().startswith("CREATE TABLE"):
            raise InputError(f"{where}: {name}: is a {kind} that is no plain table; allowed: what "
                             "`nsys export --type sqlite` writes")
        found[name] = frozenset(row[1] for row in base.execute(f'PRAGMA table_info("{name}")'))
    if KERNELS not in found:
        raise InputError(f"{where}: got no table {KERNELS}; needed: a report of `nsys profile "
                         "--trace=cuda,nvtx`")
    missing = {"start", "end"} - found[KERNELS]
    if missing:
        raise InputError(f"{where}: {KERNELS}: got no column {', '.join(sorted(missing))}; needed: "
                         "what `nsys export --type sqlite` writes")
    return found


def _texts(base: sqlite3.Connection, tables: dict[str, frozenset[str]]
           ) -> Iterator[tuple[int, str]]:
    if {"id", "value"} <= tables.get(TEXTS, frozenset()):
        rows = base.execute(f"SELECT id, value FROM {TEXTS} LIMIT {MOST_WORK}")
        for number, text in rows:
            if isinstance(text, str):
                yield number, text[:300]


def _columns(wanted: Sequence[str], there: frozenset[str]) -> str:
    """Columns by name, those that are missing as nothing."""
    return ", ".join(f'"{one}"' if one in there else "NULL" for one in wanted)


def _times(start: Any, end: Any) -> tuple[float, float] | None:
    if type(start) is int and type(end) is int and 0 < start < end < _LATEST:
        return _NANO * start, _NANO * end
    return None


def _kernels(
    base: sqlite3.Connection, tables: dict[str, frozenset[str]], texts: dict[int, str], where: str
) -> Iterator[tuple[int, DeviceWork]]:
    """Kernels and copies, with their device."""
    calls: dict[Any, float] = {}
    if {"start", "correlationId"} <= tables.get(CALLS, frozenset()):
        for start, number in base.execute(
                f"SELECT start, correlationId FROM {CALLS} LIMIT {MOST_WORK}"):
            if type(start) is int and type(number) is int and 0 < start < _LATEST:
                calls[number] = _NANO * start
    names = ("start", "end", "deviceId", "streamId", "correlationId")
    count = 0
    for table, last in ((KERNELS, "demangledName"), (COPIES, "copyKind")):
        there = tables.get(table, frozenset())
        if not {"start", "end"} <= there:
            continue
        more = "shortName" if table == KERNELS else "bytes"
        for start, end, device, stream, number, first, second in base.execute(
                f"SELECT {_columns((*names, last, more), there)} FROM {table}"):
            count += 1
            if count > MOST_WORK:
                raise InputError(f"{where}: got more than {MOST_WORK:,} kernels and copies; "
                                 "allowed: a report of fewer steps")
            times = _times(start, end)
            if times is None:
                continue
            if table == KERNELS:
                name = texts.get(first) or texts.get(second) or "kernel"
            elif first not in _COPY_NAMES:
                continue
            else:
                name = _COPY_NAMES[first]
            yield (device if type(device) is int else 0), DeviceWork(
                name, *times, stream=stream if type(stream) is int else 0,
                launched=calls.get(number), copy=table == COPIES)


def _spans(base: sqlite3.Connection, tables: dict[str, frozenset[str]], texts: dict[int, str]
           ) -> Iterator[HostSpan]:
    """Ranges of the host."""
    there = tables.get(RANGES, frozenset())
    if not {"start", "end"} <= there:
        return
    for start, end, text, number in base.execute(
            f"SELECT {_columns(('start', 'end', 'text', 'textId'), there)} FROM {RANGES} "
            f"LIMIT {MOST_WORK}"):
        times = _times(start, end)
        name = text if isinstance(text, str) else texts.get(number)
        if times is not None and name:
            yield HostSpan(name[:200], *times)
