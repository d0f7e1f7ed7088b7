"""Tables of measured training runs: from CSV text to frozen rows.

A table has one run a row; `docs/accuracy.md` describes the columns. An empty cell is not known, and
a run that lacks an input of its price has the reason why it is not priced. No run is dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from nest.errors import InputError
from nest.inputs.files import csv_rows, read_text
from nest.measured.validation import columns
from nest.measured.validation.inferred import Inference, anomalous, inferred
from nest.measured.validation.reasons import unpriced
from nest.units import shorten

OWN = "catalog/runs.csv"
NAMED = columns.NEEDED["run_id"]
_MOST_PROBLEMS = 20


@dataclass(frozen=True, eq=False)
class Run:
    """A measured training run; two runs are equal only when they are the same object."""

    run_id: str
    group: str
    """Runs that are scored together."""
    quality: str
    model: str
    framework: str
    """Training software with its version."""
    measured_s: float | None
    """Seconds of a step: as stated, else computed from a stated rate; None: neither is known."""
    measured_memory: float | None
    """Bytes of the fullest device; None: not known."""
    memory_counted: str
    """What the bytes count: allocated, reserved (by the allocator) or total (nvidia-smi)."""
    notes: str
    source: str
    line: int
    """Line of the file, from 1."""
    fields: Mapping[str, str]
    """The row's own cells by column, without spaces at the ends; an empty one is not known."""
    inferred: Mapping[str, Inference]
    """Cells that the row leaves empty and that follow from elsewhere, with the reason."""
    anomalous: bool
    """The measurement contradicts its neighbours; scores are given without it too."""
    reason: str | None
    """Why the run is not priced; None: it can be."""

    def text(self, column: str) -> str:
        """A cell as text, inferred where the row leaves it empty; empty: not known."""
        given = self.fields.get(column, "")
        return given or (self.inferred[column].value if column in self.inferred else "")

    def whole(self, column: str) -> int | None:
        """A cell as a whole number; None where it is empty."""
        return columns.whole(self.text(column))

    def real(self, column: str) -> float | None:
        """A cell as a number; None where it is empty."""
        return columns.real(self.text(column))

    def degree(self, column: str) -> int:
        """A cell as a degree; 1 where it is empty."""
        return self.whole(column) or 1


def read(
    path: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
) -> tuple[Run, ...]:
    """Read a table of measured runs.

    Parameters
    ----------
    path : a CSV file; None: the project's own table.
    annotations : a CSV file of further cells, by run_id; they replace those of the table.

    Returns
    -------
    tuple of Run
        In the order of the file.

    Raises
    ------
    InputError
        The file cannot be read, is empty, lacks a column, or has a cell that is not allowed; each
        problem names file, line and column.
    """
    more = {} if annotations is None else _annotations(
        read_text(annotations), shorten(os.fspath(annotations), 300)[1:-1])
    if path is None:
        entry = resources.files("nest") / "catalog" / "runs.csv"
        return parse(entry.read_text(encoding="utf-8"), OWN, more)
    return parse(read_text(path), shorten(os.fspath(path), 300)[1:-1], more)


def _annotations(text: str, where: str) -> dict[str, dict[str, str]]:
    """Cells that are not empty, by run_id; notes are added to those of the run.

    Raises
    ------
    InputError : as :func:`read`.
    """
    rows = csv_rows(text, where)
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    if "run_id" not in header:
        raise InputError(f"{where}: line 1: column run_id is missing; needed: {NAMED}")
    found: dict[str, dict[str, str]] = {}
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise InputError(f"{where}: line {line}: got {len(cells)} cells; allowed: "
                             f"{len(header)}, one for each column of the header")
        given = {column: cell.strip() for column, cell in zip(header, cells, strict=True)
                 if cell.strip() and column in columns.COLUMNS}
        if problems := _cell_problems(given, f"{where}: line {line}"):
            raise InputError("\n".join(problems), tuple(problems))
        found[given.pop("run_id", "")] = given
    return found


def parse(
    text: str, where: str, annotations: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[Run, ...]:
    """Read CSV text with a header line; lines that start with # are comments.

    Parameters
    ----------
    where : start of messages, such as the file name.
    annotations : further cells by run_id.

    Raises
    ------
    InputError : as :func:`read`.
    """
    rows = csv_rows(text, where)
    if not rows:
        raise InputError(f"{where}: is empty; needed: a header line with columns "
                         f"{', '.join(columns.NEEDED)}")
    header = [cell.strip() for cell in rows[0][1]]
    _check_header(header, where, rows[0][0])
    if len(rows) == 1:
        raise InputError(f"{where}: line {rows[0][0]}: no row follows the header; needed: a run")
    problems: list[str] = []
    found: list[Run] = []
    lines: dict[str, int] = {}
    for line, cells in rows[1:]:
        place = f"{where}: line {line}"
        if len(cells) != len(header):
            problems.append(f"{place}: got {len(cells)} cells; allowed: {len(header)}, one for "
                            "each column of the header")
            continue
        pairs = zip(header, (cell.strip() for cell in cells), strict=True)
        fields = {column: cell for column, cell in pairs if column in columns.COLUMNS}
        problems += _cell_problems(fields, place)
        name = fields["run_id"]
        if name in lines:
            problems.append(f"{place}: run_id: got {shorten(name)} again, after line "
                            f"{lines[name]}; allowed: once")
        lines[name] = line
        if not problems:
            found.append(_run(_annotated(fields, (annotations or {}).get(name, {})), line))
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        told = problems[:_MOST_PROBLEMS] + ([f"{where}: and {more} more problems"]
                                            if more > 0 else [])
        raise InputError("\n".join(told), tuple(told))
    return tuple(found)


def _annotated(fields: dict[str, str], more: Mapping[str, str]) -> dict[str, str]:
    notes = "; ".join(filter(None, (each.get("notes") for each in (fields, more))))
    return {**fields, **more, "notes": notes} if more else fields


def _check_header(header: list[str], where: str, line: int) -> None:
    problems = [f"{where}: line {line}: column {name} is missing; needed: {meaning}"
                for name, meaning in columns.NEEDED.items() if name not in header]
    problems += [f"{where}: line {line}: column {name} comes twice; allowed: once"
                 for name in columns.COLUMNS if header.count(name) > 1]
    if problems:
        raise InputError("\n".join(problems), tuple(problems))


def _cell_problems(fields: Mapping[str, str], place: str) -> list[str]:
    found = []
    for column, text in fields.items():
        allowed = columns.cell_problem(column, text) if text else None
        if allowed:
            found.append(f"{place}: {column}: got {shorten(text)}; allowed: {allowed}")
    found += [f"{place}: {column}: is empty; needed: {columns.NEEDED[column]}"
              for column in ("run_id", "model", "framework") if fields.get(column) == ""]
    return found


def _run(fields: dict[str, str], line: int) -> Run:
    stated = fields["step_time_s"] or fields.get("step_time_s_derived", "")
    memory, counted = _memory(fields)
    more = inferred(fields)
    known = {**fields, **{column: found.value for column, found in more.items()}}
    return Run(
        run_id=fields["run_id"],
        group=fields.get("source_group") or fields["framework"],
        quality=fields.get("quality", ""),
        model=fields["model"],
        framework=fields["framework"],
        measured_s=columns.real(stated),
        measured_memory=memory,
        memory_counted=counted,
        notes=fields.get("notes", ""),
        source=fields.get("source", ""),
        line=line,
        fields=fields,
        inferred=more,
        anomalous=anomalous(fields),
        reason=unpriced(known),
    )


def _memory(fields: Mapping[str, str]) -> tuple[float | None, str]:
    """Bytes, and how they are counted.

    nvidia-smi prints MiB, which tables convert to GiB; sources that divide by 1e9 say so.
    """
    note = fields.get("mem_note", "").lower()
    unit = 1e9 if re.search(r"1e9|\bgb\b", note) else 2.0**30
    counted = ("total" if "nvidia-smi" in note else
            "reserved" if "reserved" in note else "allocated")
    size = columns.real(fields.get("peak_mem_gb", ""))
    return (None if size is None else size * unit), counted
