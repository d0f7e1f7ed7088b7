"""Measured collectives: output of nccl-tests, its JSON, and CSV.

Output of nccl-tests: the text that its programs print, and what `-J FILE` writes.

Text: lines that start with # name what runs where (`# Collective test starting: all_reduce_perf`,
`#  Rank  0 Group  0 Pid 1887 on worker-1 device  0 [0000:8d:00] NVIDIA H100 80GB HBM3`) and name
the columns; a line for each size follows, with time, algbw, busbw and #wrong out of place and in
place. Columns in front of the first time differ between versions, and some are blank; those from
it on are counted from the right. Sizes are bytes of the whole buffer (sendrecv: bytes sent),
times microseconds.

JSON: the same under `results`; `config.devices` has one entry for each process only, which is
why ranks are processes x threads x GPUs.

Reference: NVIDIA/nccl-tests, src/util.cu (writeResultHeader, writeBenchmarkLineBody,
writeDeviceReport) and doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.inputs.files import parse_text, read_text
from nest.measured.calibration.collectives import COLLECTIVES, Collective, MeasuredCollective
from nest.measured.table import TableRow, only, rows
from nest.units import shorten

NEEDED = {"collective": "which one, such as all_reduce", "n_ranks": "devices that take part",
          "message_bytes": "bytes of the whole buffer"}
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
        if text.lstrip().startswith("{"):
            timings = from_json(text, where)
        elif "algbw" in text and "busbw" in text and re.search(r"(?m)^\s*#", text):
            timings = from_text(text, where)
        else:
            found += _from_table(text, where, asked, left_out)
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
    timings: list[Timing], file_name: str, asked: TimingSelection, left_out: Counter[str]
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
    text: str, where: str, asked: TimingSelection, left_out: Counter[str]
) -> list[MeasuredCollective]:
    table = rows(text, where, NEEDED)
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


def bus_share(name: Collective, ranks: int) -> float:
    """Bus bandwidth over the rate of the whole buffer (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return {"all_reduce": 2.0, "sendrecv": ranks / (ranks - 1)}.get(name, 1.0) * (
        ranks - 1) / ranks


def _seconds(row: TableRow, name: Collective, ranks: int, size: float) -> float | None:
    """Time of a row, from bus bandwidth where no time is given."""
    for column, unit in _TIMES.items():
        if row.text(column):
            return row.number(column) * unit
    if not row.text("busbw_gb_s"):
        return None
    return bus_share(name, ranks) * size / (row.number("busbw_gb_s") * 1e9)


# ---------------------------------------------------------------- nccl


_PROGRAM = re.compile(r"\b([a-z0-9_]+?)_perf\b")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_START = re.compile(r"#\s*(nThread\s+\d|Collective test starting)")
_USUAL = ("time", "algbw", "busbw", "#wrong") * 2
_WRONG = ("#wrong", "error")
_STAMP = "timestamp"  # printed as a date and a time, that is two words


@dataclass(frozen=True)
class Timing:
    """One line of a test.

    Attributes
    ----------
    program : `all_reduce` of `all_reduce_perf`; empty if the output does not name it.
    ranks, nodes : devices and hosts that took part; 0: not said.
    size : bytes.
    seconds : out of place; in place where only that was measured.
    place : file and line, for messages.
    """

    program: str
    ranks: int
    nodes: int
    size: float
    seconds: float
    place: str


@dataclass
class _Test:
    """Content of the # lines so far, for the current test."""

    program: str = ""
    hosts: dict[tuple[str, str], str] = field(default_factory=dict)
    """By group and rank as printed: digits without number are no figures."""
    columns: tuple[str, ...] = _USUAL
    started: bool = False

    def where(self) -> tuple[int, int]:
        """Ranks and hosts of the first group: a split test runs equally in each."""
        first = min((group for group, _ in self.hosts), key=lambda one: (len(one), one), default="")
        own = [host for (group, _), host in self.hosts.items() if group == first]
        return len(own), len(set(own))


def from_text(text: str, where: str) -> list[Timing]:
    """Timings of all tests that a printed output holds, one after the other.

    Sizes of zero and lines with wrong results are left out.

    Raises
    ------
    InputError : a line of figures has too few columns or is no number.
    """
    found: list[Timing] = []
    test = _Test()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if not words[0].isdigit():
            test = _heard(test, line, words)
        elif len(words) > len(test.columns) // 2:
            test.started = True
            timing = _timing(test, words, f"{where}: line {number}")
            found += [timing] if timing else []
    return found


def _heard(test: _Test, line: str, words: list[str]) -> _Test:
    """Read a line without figures; a new test resets the state."""
    if test.started and (_START.match(line) or (_PROGRAM.search(line) and "concluded" not in line)):
        test = _Test(program=test.program if _START.match(line) else "")
    named = _PROGRAM.search(line)
    if named:
        test.program = named[1]
    rank = _RANK.match(line)
    if rank:
        test.hosts[rank[2] or "0", rank[1]] = rank[3]
    if {"size", "algbw"} <= set(words):
        first = next((i for i, word in enumerate(words) if word.endswith("time")), None)
        test.columns = tuple(words[first:]) if first is not None else _USUAL
    return test


def _timing(test: _Test, words: list[str], place: str) -> Timing | None:
    columns = test.columns
    if _STAMP in columns:
        columns, words = columns[:-1], words[:-2]
    if len(words) < len(columns) + 1:
        raise InputError(f"{place}: got {len(words)} columns; needed: size, then "
                         f"{', '.join(columns)}, as nccl-tests prints them")
    figures = dict[str, list[float]]()
    for name, word in zip(columns, words[-len(columns):], strict=True):
        figures.setdefault(name, []).append(_number(word, place, name))
    times = next(each for name, each in figures.items() if name.endswith("time"))
    wrong = [each for name in _WRONG for each in figures.get(name, [])[:1]]
    size = _number(words[0], place, "size")
    if size <= 0 or not times[0] > 0 or any(each > 0 for each in wrong if "error" not in columns):
        return None
    ranks, nodes = test.where()
    return Timing(test.program, ranks, nodes, size, times[0] * 1e-6, place)


def _number(word: str, place: str, column: str) -> float:
    if word == "N/A":
        return 0.0
    try:
        found = float(word)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{place}: {column}: got {shorten(word)}; allowed: a number")
    return found


def from_json(text: str, where: str) -> list[Timing]:
    """Timings of the JSON document that `-J FILE` writes.

    Raises
    ------
    InputError : malformed, or without config and results.
    """
    data = parse_text(text, ".json", where)
    config, results = data.get("config"), data.get("results")
    if not isinstance(config, dict) or not isinstance(results, list):
        raise InputError(f"{where}: has no config and results; allowed: what nccl-tests writes "
                         "with -J, its printed output, or CSV")
    words = data.get("args")
    program = _PROGRAM.search(" ".join(map(str, words)) if isinstance(words, list) else "")
    processes = [each for each in config.get("devices") or [] if isinstance(each, dict)]
    group = min((each.get("group", 0) for each in processes), default=0)
    own = [each for each in processes if each.get("group", 0) == group]
    each_has = _whole(config, "nthreads") * _whole(config, "ngpus")
    hosts = {str(each.get("hostname")) for each in own}
    found = []
    for number, result in enumerate(results):
        place = f"{where}: results.{number}"
        if not isinstance(result, dict):
            raise InputError(f"{place}: got {shorten(result)}; allowed: a mapping")
        size, seconds = _figures(result, place)
        if size > 0 and seconds > 0:
            name = program[1] if program else ""
            found.append(Timing(name, len(own) * each_has, len(hosts), size, seconds, place))
    return found


def _whole(config: dict[str, Any], name: str) -> int:
    value = config.get(name, 1)
    return value if isinstance(value, int) and value > 0 else 1


def _figures(result: dict[str, Any], place: str) -> tuple[float, float]:
    """Bytes and seconds of one entry; zero seconds where its results were wrong."""
    for name in ("out_of_place", "in_place"):
        part = result.get(name)
        if not isinstance(part, dict):
            continue
        time = part.get("time", part.get("cpu_time"))
        size = result.get("size")
        for field_name, value in (("size", size), (f"{name}.time", time)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"{place}: {field_name}: got {shorten(value)}; allowed: a number")
        wrong = part.get("nwrong")
        right = not isinstance(wrong, (int, float)) or wrong == 0
        return float(size or 0), float(time or 0) * 1e-6 * right
    raise InputError(f"{place}: has neither out_of_place nor in_place")
