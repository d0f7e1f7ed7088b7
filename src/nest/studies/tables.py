"""Results as files for other programs: CSV, JSON, Parquet. The same answers give the same files."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO

from nest.errors import InputError
from nest.inputs.files import csv_cell, whole_file
from nest.studies.objectives import Figures
from nest.studies.results import Results, Row, summary

FORMATS = ("csv", "json", "parquet")
_AFTER = ("status", "front", *Figures._fields, "peak_memory_bytes", "optimal", "gap", "plan",
          "message", "question")
BATCH = 1000
"""Rows of a group of a Parquet file."""


def columns(results: Results) -> list[str]:
    """Names of the columns: the number of a point, its axes, and what is known of it."""
    return ["number", *(name if name not in ("number", *_AFTER) else f"axis {name}"
                        for name in results.study.axes), *_AFTER]


def records(results: Results) -> Iterator[dict[str, Any]]:
    """Rows as plain data by column, one after the other."""
    names, front = columns(results), results.front
    for row in results.rows():
        yield dict(zip(names, _cells(row, row.number in front), strict=True))


def _cells(row: Row, on_front: bool) -> Iterator[Any]:
    yield row.number
    yield from row.labels
    yield row.status
    yield on_front
    yield from (None,) * len(Figures._fields) if row.figures is None else row.figures
    yield from (row.peak_memory_bytes, row.optimal, row.gap, row.plan, row.message, row.question)


def write(results: Results, file_format: str, path: str) -> None:
    """Write all rows as a file, completely or not at all.

    Parameters
    ----------
    file_format : of :data:`FORMATS`.
    path : of the file.

    Raises
    ------
    InputError : Parquet without its package.
    OutputError : the file cannot be written.
    """
    with whole_file(path) as stream:
        _WRITERS[file_format](results, stream)


def need_parquet() -> None:
    """Refuse Parquet where its package is not installed.

    Raises
    ------
    InputError : it is not; the text says what to install.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError("parquet: needs pyarrow, which is not installed; "
                         "pip install 'nest-planner[parquet]' adds it")


def _csv(results: Results, stream: BinaryIO) -> None:
    with _text(stream, "backslashreplace") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(map(csv_cell, columns(results)))
        for record in records(results):
            table.writerow(str(value).lower() if isinstance(value, bool) else csv_cell(value)
                           for value in record.values())


def _json(results: Results, stream: BinaryIO) -> None:
    with _text(stream, "strict") as out:
        out.write(head(results)[:-2] + ',\n  "rows": [')
        for place, record in enumerate(records(results)):
            out.write(f"{',' if place else ''}\n    {json.dumps(record)}")
        out.write("\n  ]\n}\n")


@contextmanager
def _text(stream: BinaryIO, errors: str) -> Iterator[TextIO]:
    """A stream of bytes as one of text, which leaves it open."""
    out = io.TextIOWrapper(stream, "utf-8", errors, newline="")
    yield out
    out.detach()


def head(results: Results) -> str:
    """All but the rows, as a JSON document."""
    found: Mapping[str, Any] = {"schema": "nest.sweep/1", "study": results.study.name,
                                **summary(results)}
    return json.dumps(found, indent=2)


def _parquet(results: Results, stream: BinaryIO) -> None:
    need_parquet()
    import pyarrow
    import pyarrow.parquet

    study = results.study
    arrow = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    given = {"status": str, "front": bool, "in_time": bool, "optimal": bool, "devices": int,
             "plan": str, "message": str, "question": str}
    types = []
    for place, name in enumerate(columns(results)):
        inside = 0 < place <= len(study.axes)
        column: type = int if place == 0 else given.get(name, float)
        if inside:
            labels = {type(one.labels[place - 1]) for one in results.light}
            column = labels.pop() if len(labels) == 1 else float if labels == {int, float} else str
        types.append((name, arrow.get(column, pyarrow.string())))
    schema = pyarrow.schema(types)
    with pyarrow.parquet.ParquetWriter(stream, schema) as writer:
        batch: list[dict[str, Any]] = []
        for record in records(results):
            batch.append({name: str(value) if column == pyarrow.string() and value is not None
                          else value for (name, column), value in zip(types, record.values(),
                                                                    strict=True)})
            if len(batch) == BATCH:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                batch = []
        writer.write_table(pyarrow.Table.from_pylist(batch, schema))


_WRITERS = {"csv": _csv, "json": _json, "parquet": _parquet}
