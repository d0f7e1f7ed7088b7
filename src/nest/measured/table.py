"""A table of measurements as CSV: columns by name, numbers checked, every problem with its line."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nest.errors import InputError
from nest.inputs.files import csv_rows
from nest.units import shorten

MOST_ROWS = 10**6
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class TableRow:
    """One line of a table: its cells by column, and its place for messages."""

    place: str
    cells: dict[str, str]
    line: int

    def text(self, column: str) -> str:
        """A cell without blanks around it; empty where there is none."""
        return self.cells.get(column, "")

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


def rows(
    text: str, where: str, needed: Mapping[str, str], known: Collection[str] = ()
) -> list[TableRow]:
    """Rows of CSV text with a header line; lines that start with # are left out.

    Parameters
    ----------
    where : start of messages, such as the name of the file.
    needed : columns that it has to have, with their meaning; others may be there.
    known : further columns that are read: none of these may come twice.

    Raises
    ------
    InputError : malformed, a column is missing or comes twice, there is no row, or one is ragged.
    """
    lines = csv_rows(text, where, MOST_ROWS)
    if not lines:
        raise InputError(f"{where}: is empty; needed: a header line with columns "
                         f"{', '.join(needed)}")
    header = [cell.strip().lower() for cell in lines[0][1]]
    at = f"{where}: line {lines[0][0]}"
    problems = [f"{at}: column {name} is missing; needed: {meaning}"
                for name, meaning in needed.items() if name not in header]
    problems += [f"{at}: column {name} comes twice; allowed: once"
                 for name in dict.fromkeys((*needed, *known)) if header.count(name) > 1]
    if not problems and len(lines) == 1:
        problems = [f"{at}: no row follows the header; needed: measurements"]
    refuse(problems, where)
    refuse([f"{where}: line {line}: got {len(cells)} cells; allowed: {len(header)}, one for each "
            "column of the header" for line, cells in lines[1:] if len(cells) != len(header)],
           where)
    return [TableRow(f"{where}: line {line}",
                     dict(zip(header, (cell.strip() for cell in cells), strict=True)), line)
            for line, cells in lines[1:]]


def refuse(problems: Sequence[str], where: str) -> None:
    """Raise one error for all problems of a table, if there are any.

    Raises
    ------
    InputError : there are.
    """
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        told = [*problems[:_MOST_PROBLEMS],
                *([f"{where}: and {more} more problems"] if more > 0 else [])]
        raise InputError("\n".join(told), tuple(told))


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


def _some(given: Mapping[str, str]) -> str:
    names = sorted(given.values())
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
