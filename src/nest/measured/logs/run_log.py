"""The measurement of a run, as its log has it: times of steps, memory, and how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nest import texts
from nest.errors import InputError
from nest.measured.logs.added import AddedLog, added_log
from nest.measured.logs.lines import log_lines
from nest.measured.logs.printed import Configurations, PrintedSettings
from nest.measured.logs.scan import PrintedStep, Scan, intervals, table
from nest.units import shorten

Steps = npt.NDArray[np.float64]
Verdict = Literal["ran", "out_of_memory", "stopped"]
_MOST_FIRST = 10
"""Steps of an attempt that are left out at most; chosen: compilers and allocators take up to three,
a printed time that is the mean of ten takes one."""
_SETTLED = 0.1
"""A first step counts if it is within this of the median of those behind it; chosen."""
_OUTLIER = 1.5
"""Times the median; chosen: what checkpoints and stragglers take is more."""


@dataclass(frozen=True, eq=False)
class RunLog:
    """What a run printed of itself; two logs are equal only when they are the same object."""

    where: str
    """Name of the file."""
    framework: str
    """Training software: a name of `formats.yaml`, or of a printed configuration."""
    version: str
    """Of the software, where it prints one; empty: not known."""
    verdict: Verdict
    """``ran``: it printed times of steps, and did not run out of memory after its last start;
    ``out_of_memory``; ``stopped``: neither."""
    steps: Steps
    """Seconds of steps, float64, shape (number of steps,), in their order, without the first ones
    of each start. Where a line is the mean of several steps, one entry."""
    lines: npt.NDArray[np.int64]
    """Lines of the file that say them, of the same shape."""
    first: Steps
    """Seconds of the first steps, which are not among them."""
    repeated: int
    """Steps that were run again after a restart."""
    tokens_per_s: float | None
    """Median of what is printed, tokens a second and device."""
    flops_per_s: float | None
    """Median of what is printed, FLOP a second and device; its count is the software's."""
    allocated_by_rank: Mapping[int | None, int]
    """Largest allocated bytes by rank; None: the line names no rank."""
    reserved_by_rank: Mapping[int | None, int]
    """Largest bytes that the allocator held, by rank."""
    out_of_memory: tuple[tuple[int | None, int | None], ...]
    """Rank and the bytes that it asked for, of each that ran out; None: not printed."""
    restarts: int
    """Starts after the first one."""
    ranks: int
    """Ranks that printed lines of interest, as far as the launcher names them."""
    end: str
    """What ended the run behind its last step; empty: nothing is printed."""
    device: str
    """Name of the device, where it is printed."""
    printed: tuple[PrintedSettings, ...]
    """Configurations, in their order."""
    notes: tuple[str, ...]
    """What was left out or is in doubt."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """What the log does not say: arguments of :func:`nest.read`."""

    @property
    def left_out(self) -> int:
        """First steps that are not among ``steps``."""
        return len(self.first)

    @property
    def step_time_s(self) -> float | None:
        """Median seconds of a step; None: no step was measured."""
        return float(np.median(self.steps)) if len(self.steps) else None

    @property
    def spread(self) -> float | None:
        """Distance of the quartiles of the steps, over their median; None below 3 steps."""
        if len(self.steps) < 3:
            return None
        low, middle, high = np.percentile(self.steps, (25, 50, 75))
        return float((high - low) / middle)

    @property
    def drift(self) -> float | None:
        """Median of the last third of the steps over that of the first, less 1; None below 9."""
        third = len(self.steps) // 3
        if third < 3:
            return None
        return float(np.median(self.steps[-third:]) / np.median(self.steps[:third]) - 1)

    @property
    def outliers(self) -> int:
        """Steps that took more than 1.5 times the median."""
        middle = self.step_time_s
        return 0 if middle is None else int((self.steps > _OUTLIER * middle).sum())

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Of the fullest rank; None: not printed."""
        return max(self.allocated_by_rank.values(), default=None)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Of the fullest rank; None: not printed."""
        return max(self.reserved_by_rank.values(), default=None)

    @cached_property
    def settings(self) -> Any:
        """The job: a :class:`nest.Reading`, as :func:`nest.read` returns it.

        Raises
        ------
        InputError : the log prints no configuration, not all of it, several that differ, or one
            that has no price; the message says which.
        """
        return texts.JOBS[type(self).__name__](self)


LOGS, OTHERS = (".log", ".out", ".err"), (".txt", "")
"""Suffixes of logs, and those that scripts and command lines have too."""


def is_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a log: by its suffix, or, where that may be a script's, by its lines."""
    suffix = Path(os.fspath(path)).suffix.lower()
    if suffix in LOGS or not os.path.isfile(path):
        return suffix in LOGS
    if suffix not in OTHERS and not re.fullmatch(r"\.[oe]?\d{1,12}", suffix, re.ASCII):
        return False  # but train.log.1, and job.o123 of PBS
    scan, configurations = Scan(), Configurations()
    for line in log_lines(os.fspath(path), (table().words, lambda: configurations.open)):
        scan.line(line)
        if configurations.line(line, False) or scan.steps:
            return True
    return False


def read(path: str | os.PathLike[str], **said: Any) -> RunLog:
    """Read the log of a training run; nothing in it is executed.

    Parameters
    ----------
    path : of the log, a text of any size, of Megatron-LM and its forks, Megatron-Bridge, NeMo,
        nanotron, torchtitan, MaxText, DeepSpeed, Hugging Face's Trainer or Axolotl, or one that
        the reader of another package knows.
    said : what the log does not say, arguments of :func:`nest.read` such as ``model`` or
        ``devices``; :attr:`RunLog.settings` takes them.

    Raises
    ------
    InputError : no such file, or nothing in it that such software prints.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    scan, configurations = Scan(), Configurations()
    for line in log_lines(os.fspath(path), (table().words, lambda: configurations.open)):
        if configurations.line(line, scan.busy):
            scan.configured()
        scan.line(line)
    printed = configurations.finish()
    rows = table().steps
    chosen = min(scan.steps, key=lambda key: (key[0], -len(scan.steps[key]), str(key)),
                 default=None)
    series = _longest(scan, chosen[0]) if chosen is not None else []
    if not (series or printed or scan.out_of_memory):
        if (other := added_log(path)) is not None:
            return _of_added(other, where, said)
        raise InputError(f"{where}: nothing found that training software prints: no configuration, "
                         "no time of a step, no lack of memory; allowed: a log of Megatron-LM, "
                         "Megatron-Bridge, NeMo, nanotron, torchtitan, MaxText, DeepSpeed, Hugging "
                         "Face's Trainer or Axolotl")
    framework = _framework(printed) or (rows[chosen[0]][0] if chosen else "")
    notes: list[str] = []
    steps, lines, first = _settled(_timed(series, printed, notes), notes)
    if scan.odd:
        shown = ", ".join(f"{text} (line {at})" for text, at in scan.strange.items())
        notes.append(f"{scan.odd} times of steps are no positive numbers, and left out: {shown}")
    return RunLog(
        where=where, framework=framework,
        version=scan.versions.get("transformers" if framework in ("trainer", "axolotl")
                                  else framework, ""),
        verdict=_verdict(scan, len(steps) > 0), steps=steps, lines=lines, first=first,
        repeated=_repeated(series),
        tokens_per_s=_median(series, "tokens"), flops_per_s=_median(series, "flops", 1e12),
        allocated_by_rank={rank: round(size) for rank, size in scan.allocated.items()},
        reserved_by_rank={rank: round(size) for rank, size in scan.reserved.items()},
        out_of_memory=tuple(_distinct(scan.out_of_memory)), restarts=scan.attempt,
        ranks=len(scan.ranks), end=scan.end, device=scan.device, printed=tuple(printed),
        notes=tuple(notes), said=said)


def _of_added(log: AddedLog, where: str, said: Mapping[str, Any]) -> RunLog:
    """What a reader of another package says, with the same steps left out."""
    notes = [*log.notes]
    steps, lines, first = _settled(
        [[(seconds, 0) for seconds in log.steps]] if log.steps else [], notes)
    return RunLog(
        where=where, framework=log.framework, version=log.version,
        verdict="out_of_memory" if log.out_of_memory else "ran" if len(steps) else "stopped",
        steps=steps, lines=lines, first=first, repeated=0, tokens_per_s=None, flops_per_s=None,
        allocated_by_rank=dict(log.allocated_by_rank.items()),
        reserved_by_rank=dict(log.reserved_by_rank.items()),
        out_of_memory=((None, None),) if log.out_of_memory else (), restarts=0,
        ranks=len({*log.allocated_by_rank, *log.reserved_by_rank}), end="", device=log.device,
        printed=tuple(PrintedSettings(kind, 0, settings)
                      for kind, settings in log.printed.items()),
        notes=tuple(notes), said=said)


def _longest(scan: Scan, row: int) -> list[PrintedStep]:
    """The series of the rank that printed most; of bars, that of the largest number of steps."""
    best = max((key for key in scan.steps if key[0] == row),
               key=lambda key: (len(key[2]), key[2], len(scan.steps[key])))
    return scan.steps[best]


def _framework(printed: list[PrintedSettings]) -> str:
    """Software by its printed configurations; what is handed to others counts first."""
    kinds = {one.kind.partition("-")[0] if one.kind.startswith(("torchtitan", "deepspeed"))
             else one.kind.removesuffix("-summary") for one in printed}
    return next((name for name in ("axolotl", "trainer", "nemo", "gpt-neox", "megatron-bridge",
                                   "megatron", "torchtitan", "maxtext", "deepspeed")
                 if name in kinds), "")


def _timed(series: list[PrintedStep], printed: list[PrintedSettings],
           notes: list[str]) -> list[list[tuple[float, int]]]:
    """Seconds of steps and their lines, a list for each start."""
    found: dict[int, list[tuple[float, int]]] = {}
    for one, seconds in intervals(series):
        found.setdefault(one.attempt, []).append((seconds, one.line))
    if found or not any(one.samples for one in series):
        return [*found.values()]
    batch = next((one.settings[name] for one in reversed(printed)
                  for name in ("train_batch_size", "global_batch_size")
                  if type(one.settings.get(name)) is int), None)
    if batch is None:
        notes.append("samples a second are printed, and not how many a step has: no time of a step")
        return []
    for one in series:
        if one.samples:
            found.setdefault(one.attempt, []).append((batch / one.samples, one.line))
    return [*found.values()]


def _settled(attempts: list[list[tuple[float, int]]], notes: list[str]
             ) -> tuple[Steps, npt.NDArray[np.int64], Steps]:
    """Steps behind the first ones of each start, their lines, and these first ones."""
    kept, lines, firsts = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for printed in attempts:
        given = np.array([seconds for seconds, _ in printed], dtype=np.float64)
        first = min(1, len(given) - 1)
        while first and first < min(_MOST_FIRST, len(given) - 3) and abs(
                given[first] / np.median(given[first + 1:]) - 1) > _SETTLED:
            first += 1
        kept.append(given[first:])
        lines.append(np.array([line for _, line in printed[first:]], dtype=np.int64))
        firsts.append(given[:first])
    if sum(map(len, attempts)) == 1:
        notes.append("one time of a step is printed, the first, which the start of the run makes "
                     "longer")
    return np.concatenate(kept), np.concatenate(lines), np.concatenate(firsts)


def _repeated(series: list[PrintedStep]) -> int:
    """Steps that came again, of those that are numbered."""
    count = end = 0
    for one in series:
        if one.step is not None:
            count += one.step <= end
            end = max(end, one.step)
    return count


def _median(series: list[PrintedStep], name: str, unit: float = 1.0) -> float | None:
    values = [value for one in series[1:] or series if (value := getattr(one, name)) is not None]
    return float(np.median(values)) * unit if values else None


def _distinct(found: Mapping[tuple[int | None, int | None], int]
              ) -> list[tuple[int | None, int | None]]:
    """Each that ran out; without those of no size where the same rank says one too."""
    sized = {rank for rank, size in found if size is not None}
    return [(rank, size) for rank, size in found if size is not None or rank not in sized]


def _verdict(scan: Scan, measured: bool) -> Verdict:
    if scan.attempt in scan.out_of_memory.values() or scan.out_of_memory and not measured:
        return "out_of_memory"
    return "ran" if measured else "stopped"
