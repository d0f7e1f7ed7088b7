"""A table of measurements as CSV: columns by name, numbers checked, every problem with its line."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nest.errors import InputError
from nest.inputs.files import read_text
from nest.units import shorten

MOST_ROWS = 10**6


@dataclass(frozen=True)
class TableRow:
    """One line of a table: its cells by column, and its place for messages."""

    place: str
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """A cell without blanks around it; empty where there is none."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str, low: float = 0.0) -> float:
        """A finite number above ``low``.

        Raises
        ------
        InputError : the cell holds none.
        """
        try:
            found = float(self.text(column))
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or found <= low:
            raise InputError(f"{self.place}: {column}: got {shorten(self.text(column))}; "
                             f"allowed: a number above {low:g}")
        return found

    def whole(self, column: str) -> int:
        """A whole number of at least 1.

        Raises
        ------
        InputError : the cell holds none.
        """
        found = self.number(column)
        if found != int(found):
            raise InputError(f"{self.place}: {column}: got {shorten(self.text(column))}; "
                             "allowed: a whole number")
        return int(found)


def rows(path: str | os.PathLike[str], needed: Iterable[str]) -> list[TableRow]:
    """Rows of a CSV file with a header line; lines that start with # are left out.

    Parameters
    ----------
    path : the file.
    needed : columns that it has to have; others may be there.

    Raises
    ------
    InputError : the file cannot be read, a column is missing, or a row is ragged.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    lines = [(n, line) for n, line in enumerate(read_text(path).splitlines(), 1)
             if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise InputError(f"{where}: is empty; allowed: a header line with {', '.join(needed)}")
    if len(lines) > MOST_ROWS:
        raise InputError(f"{where}: got {len(lines)} lines; allowed: at most {MOST_ROWS}")
    reader = csv.reader((line for _, line in lines), strict=True)
    try:
        cells = [(lines[reader.line_num - 1][0], row) for row in reader]
    except csv.Error as error:
        line = lines[min(reader.line_num, len(lines)) - 1][0]
        raise InputError(f"{where}: line {line}: malformed CSV: {error}") from None
    header = [name.strip().lower() for name in cells[0][1]]
    missing = [name for name in needed if name not in header]
    if missing:
        raise InputError(f"{where}: line {cells[0][0]}: columns {', '.join(missing)} are missing; "
                         f"needed: {', '.join(needed)}; got {shorten(', '.join(header), 200)}")
    if not cells[1:]:
        raise InputError(f"{where}: got no rows below the header; needed: measurements")
    found = []
    for line, row in cells[1:]:
        place = f"{where}: line {line}"
        if len(row) != len(header):
            raise InputError(f"{place}: got {len(row)} cells; allowed: {len(header)}")
        found.append(TableRow(place, dict(zip(header, row, strict=True))))
    return found


_TIMES = {"latency_s": 1.0, "latency_ms": 1e-3, "latency_us": 1e-6,
          "time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "latency": 1.0, "time": 1.0}


def seconds(found: list[TableRow], where: str) -> Callable[[TableRow], float | None]:
    """How to read the time of a row: from the first column of latency_s, _ms, _us, time_s ...

    A plain `latency` or `time` is in seconds. The reader gives None where the cell is empty.

    Raises
    ------
    InputError : no such column.
    """
    column = next((name for name in _TIMES if name in found[0].cells), None)
    if column is None:
        raise InputError(f"{where}: no column of times; needed one of {', '.join(_TIMES)}")
    return lambda row: row.number(column) * _TIMES[column] if row.text(column) else None


def only(found: list[TableRow], column: str, wanted: str | None, option: str) -> list[TableRow]:
    """Rows whose cell is ``wanted`` (`*` stands for anything); without it, all if they agree.

    Raises
    ------
    InputError : nothing has it, or several values are there and none is asked for.
    """
    given: dict[str, str] = {}
    for row in found:
        given.setdefault(row.text(column).casefold(), row.text(column))
    if wanted is None:
        if len(given) > 1:
            raise InputError(f"{option}: got none; needed, for the file holds {_some(given)}")
        return found
    chosen = [row for row in found if like(row.text(column), wanted)]
    if not chosen:
        raise InputError(f"{option}: got {shorten(wanted)}; allowed: {_some(given)}")
    return chosen


def like(text: str, pattern: str | None) -> bool:
    """Whether a cell is what was asked for, whatever its case; None and `*`: anything is."""
    return pattern is None or fnmatchcase(text.casefold(), pattern.strip().casefold())


def _some(given: Collection[str] | dict[str, str]) -> str:
    names = sorted(given.values()) if isinstance(given, dict) else sorted(given)
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
