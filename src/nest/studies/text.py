"""Results as files for other programs (CSV, JSON, Parquet), and as a report on a terminal.

The same answers give the same files.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, Unpack

from nest.errors import InputError
from nest.inputs.files import csv_cell, whole_file
from nest.report.page import Page, PageOptions
from nest.studies.questions import NEVER
from nest.studies.results import MOST_REASONS, OBJECTIVES, Figures, Results, Row, summary
from nest.studies.study import ObjectiveName, Study
from nest.units import format_count, format_seconds

if TYPE_CHECKING:
    from nest.studies.thresholds import AxisLine

FORMATS = ("csv", "json", "parquet")
_AFTER = ("status", "front", *Figures._fields, "peak_memory_bytes", "optimal", "gap", "plan",
          "message", "question", "low_s", "known_by", "beaten_by")
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
    proof = row.proof
    yield from (None,) * 3 if proof is None else (proof.low_s, proof.known_by, proof.beaten_by)


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
             "known_by": int, "beaten_by": int, "plan": str, "message": str, "question": str}
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


# ---------------------------------------------------------------- text


MOST = 12
"""Rows of a table of a report (chosen); the files have all."""
WIDEST = 18
"""Columns of a value of an axis."""


def report_text(
    results: Results, files: Sequence[str] = (), **options: Unpack[PageOptions],
) -> str:
    """The report: what was asked, the front, the best of each group, the effect of each axis.

    Parameters
    ----------
    files : that were written, to be named.
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    study, total = results.study, results.counts.total()
    page.paragraph(f"{study.name}: {total:,} points", "bold")
    page.fact("Status", status_text(results))
    if results.counts["proved"]:
        page.fact("Proved", f"{results.counts['proved']:,} points need not be asked"
                  + (f": none is better by more than {100 * results.within:g} %"
                     if results.within else ": none is on the front or best"))
    for place, line in enumerate(reason_lines(results)):
        page.fact("" if place else "Reasons", line)
    for place, (doubt, points) in enumerate([*results.doubts.items()][:MOST_REASONS]):
        page.fact("" if place else "Evidence", f"{points:,} points: {doubt}")
    page.fact("Processor", f"{results.seconds:,.1f} s for all answers")
    front = results.chosen(results.front)
    if front:
        page.blank()
        each = f" of each {_names(study.groups)}" if study.groups else ""
        _table(page, f"Front{each}: no point is better in one objective and not worse in "
               "another", study, front)
    for name in study.wanted:
        best = results.best(name)
        if best and (study.groups or len(study.wanted) > 1):
            page.blank()
            rows = results.chosen({one.number for one in best.values()})
            _table(page, f"Best by {title(name, study)}", study, rows)
    _together(page, results)
    if results.late:
        page.blank()
        late = sorted(results.chosen({*results.late}), key=lambda row: row.figures.days or 0.0
                      if row.figures else 0.0)
        assert study.train is not None
        _table(page, f"Late: more than {study.train.days:g} days", study, late, "days")
    _sensitivity(page, results)
    if files:
        page.blank()
        page.fact("Written", ", ".join(files))
    return page.text()


def status_text(results: Results) -> str:
    """How many points have which status."""
    said = ", ".join(f"{count:,} {status}" for status, count in results.counts.most_common())
    if results.late:
        assert results.study.train is not None
        said += f"; {len(results.late):,} take more than {results.study.train.days:g} days"
    return said or "no point"


def reason_lines(results: Results) -> list[str]:
    """Why points have no plan: the most frequent reasons, and how many more there are."""
    reasons = results.reasons
    found = [f"{one.points:,} {one.status}: {one.message}" for one in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        least = "" if results.all_reasons else "at least "
        found.append(f"and {least}{len(reasons) - MOST_REASONS:,} more kinds, see the column "
                     "message of points.csv")
    return found


def title(name: ObjectiveName, study: Study) -> str:
    """The objective for people."""
    return OBJECTIVES[name].title.format(
        currency=study.prices.currency if study.prices else "money")


def short_names(study: Study) -> list[str]:
    """Names of the axes for the head of a table: the last words of their paths that differ."""
    names = [*study.axes]
    for words in range(1, 9):
        short = [" ".join(name.split(".")[-words:]) for name in names]
        if len(set(short)) == len(short):
            return short
    return names


def shown(value: Any) -> str:
    """A value of an axis or an objective."""
    if isinstance(value, float):
        return format_count(value, 4) if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def line_rows(lines: Sequence[AxisLine]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of what is known along an axis, at each setting of the others."""
    goal = any(value.holds is not None for line in lines for value in line.values)
    rows = []
    for line in lines:
        others = [shown(label) for label in line.labels.values()]
        if goal:
            failing = [value for value in line.values if value.holds is False]
            asked = sum(value.asked for value in line.values)
            rows.append([*others, "none" if line.least is None else shown(line.least),
                         shown(failing[-1].value) if failing else "",
                         f"{asked} of {len(line.values)}"])
            continue
        for value in line.values:
            low, high = (format_seconds(one) if one < NEVER else "does not fit"
                         for one in (value.low_s, value.high_s))
            rows.append([*others, shown(value.value),
                         low if low == high else f"{low} to {high}",
                         "" if value.elasticity is None else f"{value.elasticity:+.3f}",
                         "" if value.asked else "proved"])
    ends = ["least", "refuted up to", "asked"] if goal else ["value", "step", "% for 1 %", ""]
    heads = [name.rpartition(".")[2] for name in (lines[0].labels if lines else ())]
    return [*heads, *ends], rows


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _with_range(row: Row, name: ObjectiveName) -> str:
    """A figure, and its range where the plan has one."""
    low, high = (getattr(row.figures, f"{name}_{side}", None) for side in ("low", "high"))
    said = shown(getattr(row.figures, name))
    return said if low is None or high is None else f"{said} ({shown(low)} to {shown(high)})"


def _table(
    page: Page, title_text: str, study: Study, rows: Sequence[Row],
    by: ObjectiveName | None = None,
) -> None:
    """A table of points, the best first by an objective; default: the first wanted."""
    wanted = study.wanted if by is None or by in study.wanted else (*study.wanted, by)
    first = by or wanted[0]
    sign = -1.0 if OBJECTIVES[first].most else 1.0

    def order(row: Row) -> tuple[Any, ...]:
        names = [*study.axes]
        value = getattr(row.figures, first)
        return (*(str(row.labels[names.index(name)]) for name in study.groups),
                sign * (value if value is not None else 0.0))

    ordered = sorted(rows, key=order)
    heads = [*short_names(study), *(title(name, study) for name in wanted)]
    cells = [[*(shown(label) for label in row.labels),
              *(_with_range(row, name) for name in wanted)]
             for row in ordered[:MOST]]
    page.table(title_text, heads, cells, [
        place for place in range(len(study.axes))
        if any(isinstance(row.labels[place], str) for row in ordered)])
    if len(ordered) > MOST:
        page.paragraph(f"and {len(ordered) - MOST:,} more")


def _together(page: Page, results: Results) -> None:
    """Clusters for several trainings, the cheapest first."""
    study, found = results.study, results.shared
    if study.together is None:
        return
    page.blank()
    trained = ", ".join(f"{shown(tokens)} tokens of {label}"
                        for label, tokens in study.together.tokens.items())
    if not found:
        page.paragraph(f"No cluster has a plan for all of {trained}")
        return
    heads = [name for name, axis in zip(short_names(study), study.axes, strict=True)
             if axis != study.together.axis]
    cells = [[*(shown(label) for label in one.labels), shown(one.days),
              "" if one.money is None else shown(one.money), "" if one.in_time else "late"]
             for one in found[:MOST]]
    page.table(f"One cluster, one training after another: {trained}",
               [*heads, "days", title("money", study), ""], cells, [
                   place for place in range(len(heads))
                   if any(isinstance(one.labels[place], str) for one in found)])
    if len(found) > MOST:
        page.paragraph(f"and {len(found) - MOST:,} more")


def _sensitivity(page: Page, results: Results) -> None:
    study = results.study
    short = dict(zip(study.axes, short_names(study), strict=True))
    cells = []
    for effect in results.sensitivity():
        cells.append([
            short[effect.axis], title(effect.objective, study),
            "" if effect.ratio is None else f"x {effect.ratio:.3g}",
            "" if effect.better is None else shown(effect.better),
            "" if effect.elasticity is None else f"{effect.elasticity:+.2f}",
            "" if effect.rank is None else f"{effect.rank:+.2f}"])
    if any(any(row[2:]) for row in cells):
        page.blank()
        page.table("Effect of each axis: best over worst, all else equal; the best value; % for "
                   "1 % of the axis; rank correlation",
                   ["axis", "objective", "ratio", "best at", "% for 1 %", "rank"], cells,
                   [0, 1, 3])
