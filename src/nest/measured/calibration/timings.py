"""Measured collectives from files of three formats: nccl-tests text, its JSON, and CSV."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nest.errors import InputError
from nest.inputs.files import read_text
from nest.measured.calibration import nccl
from nest.measured.calibration.collectives import COLLECTIVES, Collective, MeasuredCollective
from nest.measured.calibration.table import TableRow, only, rows
from nest.units import shorten

NEEDED = ("collective", "n_ranks", "message_bytes")
_TIMES = {"latency_us": 1e-6, "latency_ms": 1e-3, "latency_s": 1.0, "time_us": 1e-6}
_SPELLED: dict[str, Collective] = {
    "allreduce": "all_reduce", "all-reduce": "all_reduce", "allgather": "all_gather",
    "all-gather": "all_gather", "reducescatter": "reduce_scatter",
    "reduce-scatter": "reduce_scatter", "all_to_all": "alltoall", "all2all": "alltoall",
    "all-to-all": "alltoall", "send_recv": "sendrecv", "send-recv": "sendrecv",
    "p2p": "sendrecv", **{name: name for name in COLLECTIVES}}


@dataclass(frozen=True)
class TimingSelection:
    """What the user states about files that do not contain it, and which rows to use.

    Attributes
    ----------
    collective, ranks, nodes : if the output of nccl-tests does not name them.
    gpu, system : rows of a table to take; `*` stands for anything.
    """

    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    gpu: str | None = None
    system: str | None = None


def read_collectives(
    paths: Sequence[str | os.PathLike[str]], asked: TimingSelection = TimingSelection()
) -> tuple[tuple[MeasuredCollective, ...], tuple[str, ...]]:
    """Measured collectives of several files, and notes on what was left out.

    Parameters
    ----------
    paths : nccl-tests output, its -J files, or CSV with the columns collective, n_ranks,
        message_bytes, and latency_us or busbw_gb_s; n_nodes, gpu and system where they matter.

    Raises
    ------
    InputError : a file cannot be read or lacks information, or no file holds a collective that NEST
    prices.
    """
    found: list[MeasuredCollective] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        where = shorten(os.fspath(path), 300)[1:-1]
        text = read_text(path)
        if nccl.is_json(text):
            timings = nccl.from_json(text, where)
        elif nccl.looks_printed(text):
            timings = nccl.from_text(text, where)
        else:
            found += _from_table(path, asked, left_out)
            continue
        if not timings:
            raise InputError(f"{where}: got no line with a size and a time; allowed: output of "
                             "nccl-tests that ran to its end")
        found += _named(timings, Path(path).name, asked, left_out)
    if not found:
        reasons = "; ".join(f"{number} {why}" for why, number in left_out.items()) or "no rows"
        raise InputError(f"collectives: got none of {', '.join(COLLECTIVES)} to use ({reasons})")
    notes = tuple(f"left out: {number} {why}" for why, number in left_out.items())
    return tuple(found), notes


def _named(
    timings: list[nccl.Timing], file_name: str, asked: TimingSelection, left_out: Counter[str]
) -> list[MeasuredCollective]:
    """Timings, completed by what the user or the name of the file states."""
    in_name = next((name for name in COLLECTIVES if name in file_name.lower()), "")
    found = []
    for each in timings:
        program = each.program or asked.collective or in_name
        if not program:
            raise InputError(f"{each.place}: the output does not say which collective it is; "
                             f"needed: --collective, one of {', '.join(COLLECTIVES)}")
        name = _SPELLED.get(program.casefold())
        if name is None:
            left_out[f"of {shorten(program)}, which NEST does not price"] += 1
            continue
        ranks, nodes = each.ranks or asked.ranks or 0, each.nodes or asked.nodes or 0
        if not ranks:
            raise InputError(f"{each.place}: the output has no `# Rank` lines; needed: --ranks N "
                             "(and --nodes N)")
        if ranks > 1:
            found.append(MeasuredCollective(name, ranks, nodes, each.size, each.seconds,
                                            each.place))
    return found


def _from_table(
    path: str | os.PathLike[str], asked: TimingSelection, left_out: Counter[str]
) -> list[MeasuredCollective]:
    table = rows(path, NEEDED)
    for column, wanted in (("gpu", asked.gpu), ("system", asked.system)):
        if wanted is not None or column in table[0].cells:
            if column not in table[0].cells:
                raise InputError(f"{column}: got {shorten(wanted)}; allowed: nothing, for the "
                                 "table has no such column")
            table = only(table, column, wanted, column)
    found = []
    for row in table:
        name = _SPELLED.get(row.text("collective").casefold())
        if name is None:
            left_out[f"of {shorten(row.text('collective'))}, which NEST does not price"] += 1
        elif not row.text("n_ranks") or not row.text("message_bytes"):
            left_out["without n_ranks or message_bytes"] += 1
        else:
            ranks, size = row.whole("n_ranks"), row.number("message_bytes")
            taken = _seconds(row, name, ranks, size)
            if taken is None or ranks < 2:
                left_out["without a time or of a single device"] += 1
                continue
            nodes = row.whole("n_nodes") if row.text("n_nodes") else 0
            found.append(MeasuredCollective(name, ranks, nodes, size, taken, row.place))
    return found


def _seconds(row: TableRow, name: Collective, ranks: int, size: float) -> float | None:
    """Time of a row, from bus bandwidth where no time is given.

    Factors of the bus bandwidth: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    for column, unit in _TIMES.items():
        if row.text(column):
            return row.number(column) * unit
    if not row.text("busbw_gb_s"):
        return None
    factor = {"all_reduce": 2.0, "sendrecv": ranks / (ranks - 1)}.get(name, 1.0)
    return factor * (ranks - 1) / ranks * size / (row.number("busbw_gb_s") * 1e9)
