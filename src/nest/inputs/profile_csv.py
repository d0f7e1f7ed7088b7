"""A profile as a table: one row for each layer and tensor-parallel degree."""

from __future__ import annotations

from typing import Any

from nest.errors import InputError
from nest.inputs.files import csv_rows
from nest.units import shorten

NEEDED = ("layer", "tp", "forward_s", "backward_s", "parameter_bytes", "activation_bytes")
NEEDED_ONCE = ("output_bytes",)
OPTIONAL = ("repeat", "work_bytes", "inputs")
COLUMNS = (*NEEDED, *NEEDED_ONCE, *OPTIONAL)


def profile_from_csv(text: str, name: str, where: str) -> dict[str, Any]:
    """Plain data of a profile from CSV text with a header line.

    Parameters
    ----------
    text : columns layer, tp, forward_s, backward_s, parameter_bytes, activation_bytes,
        output_bytes and, optionally, repeat, work_bytes and inputs (names separated by ";", ";"
        alone for none); in any order.
    name : name of the profile.
    where : what messages start with.

    Raises
    ------
    InputError : columns are missing or unknown, a row is ragged, or rows of a layer disagree.
    """
    rows = csv_rows(text, where)
    if not rows:
        raise InputError(f"{where}: is empty; allowed: columns {', '.join(COLUMNS)}")
    header = [cell.strip() for cell in rows[0][1]]
    _check_header(header, where)
    layers: dict[str, dict[str, Any]] = {}
    for number, cells in rows[1:]:
        place = f"{where}: line {number}"
        if len(cells) != len(header):
            raise InputError(f"{place}: got {len(cells)} cells; allowed: {len(header)}")
        _add_row(layers, dict(zip(header, (c.strip() for c in cells), strict=True)), place)
    return {"name": name, "layers": list(layers.values())}


def _check_header(header: list[str], where: str) -> None:
    problems = [
        f"{where}: line 1: column {column} is missing; needed: {', '.join(NEEDED + NEEDED_ONCE)}"
        for column in (*NEEDED, *NEEDED_ONCE)
        if column not in header
    ]
    for column in dict.fromkeys(header):
        if column not in COLUMNS:
            allowed = ", ".join(COLUMNS)
            problems.append(
                f"{where}: line 1: unknown column {shorten(column)}; allowed: {allowed}"
            )
        elif header.count(column) > 1:
            problems.append(f"{where}: line 1: column {column} comes twice; allowed: once")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))


def _add_row(layers: dict[str, dict[str, Any]], row: dict[str, str], place: str) -> None:
    same: dict[str, Any] = {"output_bytes": row["output_bytes"]}
    if row.get("repeat"):
        same["repeat"] = _whole(row["repeat"], "repeat", place)
    if row.get("inputs"):
        given = (name.strip() for name in row["inputs"].split(";"))
        same["inputs"] = [name for name in given if name]
    layer = layers.setdefault(row["layer"], {"name": row["layer"], **same, "tp": {}})
    for column, value in same.items():
        if layer.get(column) != value:
            text = f"{shorten(layer.get(column))} as in the layer's first row"
            raise InputError(f"{place}: {column}: got {shorten(value)}; allowed: {text}")
    degree = _whole(row["tp"], "tp", place)
    if degree in layer["tp"]:
        text = f"got {degree} again for {shorten(row['layer'])}; allowed: once"
        raise InputError(f"{place}: tp: {text}")
    names = {"forward_s": "forward", "backward_s": "backward", "parameter_bytes": "parameter_bytes"}
    names |= {"activation_bytes": "activation_bytes", "work_bytes": "work_bytes"}
    layer["tp"][degree] = {field: row[column] for column, field in names.items() if row.get(column)}


def _whole(text: str, column: str, place: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise InputError(f"{place}: {column}: got {shorten(text)}; allowed: a whole number")
