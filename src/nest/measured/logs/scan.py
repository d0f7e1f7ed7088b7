"""What a log says of steps, memory and its end, by the table `formats.yaml`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.inputs.files import read_description
from nest.measured.logs.lines import LogLine
from nest.units import shorten

NUMBER = re.compile(r"[+-]?(\d{1,18}|\d{1,3}(,\d{3}){1,5})(\.\d{0,18})?([eE][+-]?\d{1,3})?",
                    re.ASCII)
_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BYTES = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "GB": 1e9, "MB": 1e6, "bytes": 1.0,
          "B": 1.0}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{0,6})?) ?(GiB|MiB|KiB|bytes|B)?\b")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
MOST_STEPS = 2 * 10**6
"""Printed steps that are kept; a month at one a second."""
_LOOKED_AT = 4000
"""Characters of a line that are searched; lines of steps have some hundreds."""
MOST_RANKS = 10**5
"""Ranks of which the memory is kept."""


def number(word: str) -> float | None:
    """A finite number above 0; None: it is none, or has more digits than a figure has."""
    suffix = _SUFFIXES.get(word[-1:], 1.0)
    plain = word[:-1] if suffix != 1.0 else word
    if len(plain) > 40 or not NUMBER.fullmatch(plain):
        return None
    found = float(plain.replace(",", "")) * suffix
    return found if math.isfinite(found) and found > 0 else None


@dataclass
class _Table:
    """formats.yaml, compiled."""

    steps: list[tuple[str, bool, re.Pattern[str], list[re.Pattern[str]]]]
    """Software, whether lines have times, the line, what else it says."""
    memory: list[re.Pattern[str]]
    out: list[re.Pattern[str]]
    ends: dict[str, re.Pattern[str]]
    devices: list[re.Pattern[str]]
    versions: dict[str, re.Pattern[str]]
    words: list[bytes]
    """Each line of interest has one."""


_VALUES = {"_": r"\S+?", "name": r"(?P<name>[^|,]{1,60}?)",
           "version": r"(?P<version>[\w.+-]{1,40})",
           "size": r"(?P<size>\d{1,18}(?:\.\d{0,6})? ?(?:GiB|MiB|KiB|bytes|B)?)",
           "rank": r"(?P<rank>\d{1,6})"}


def _pattern(text: str) -> re.Pattern[str]:
    def value(found: re.Match[str]) -> str:
        name = found[1]
        return _VALUES.get(name, rf"(?P<{name}>[^\s|,'\"/\])}}]+(?:,\d{{3}})*)")

    return re.compile(re.sub(r"<(\w+)>", value, text.replace(" ", r"\s*")), re.ASCII)


@cache
def table() -> _Table:
    data: Mapping[str, Any] = read_description(Path(__file__).with_name("formats.yaml"))
    steps = [(one["framework"], bool(one.get("stamped")), _pattern(line),
              [_pattern(more) for more in one.get("more", ())])
             for one in data["steps"] for line in one["lines"]]
    return _Table(
        steps, [_pattern(one) for one in data["memory"]],
        [_pattern(one) for one in data["out_of_memory"]],
        {name: re.compile(one) for name, one in data["ends"].items()},
        [_pattern(one) for one in data["devices"]],
        {name: _pattern(one) for name, one in data["versions"].items()},
        [word.encode() for word in data["words"]])


class PrintedStep(NamedTuple):
    """A line of a step."""

    step: int | None
    seconds: float | None
    tokens: float | None
    """A second and device."""
    samples: float | None
    """A second."""
    flops: float | None
    """A second and device."""
    stamp: float | None
    """Seconds of a clock."""
    attempt: int


@dataclass
class Scan:
    """What the lines said so far."""

    steps: dict[tuple[int, int | None, str], list[PrintedStep]] = field(default_factory=dict)
    """By the row of the table, the rank, and the last step of the run where lines say it."""
    allocated: dict[int | None, float] = field(default_factory=dict)
    reserved: dict[int | None, float] = field(default_factory=dict)
    out_of_memory: dict[tuple[int | None, int | None], int] = field(default_factory=dict)
    """Rank and bytes asked for, with the attempt."""
    attempt: int = 0
    busy: bool = False
    """Whether the attempt did something: printed a step, or ended."""
    end: str = ""
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    strange: dict[str, int] = field(default_factory=dict)
    """Times that are none, and the first line of each; a few."""
    odd: int = 0
    ranks: set[int] = field(default_factory=set)
    """That the launcher named before a line of interest."""

    def configured(self) -> None:
        """A configuration begins: a new attempt, if there was one before."""
        if self.busy:
            self.attempt, self.busy = self.attempt + 1, False

    def line(self, line: LogLine) -> None:
        if line.rank is not None and len(self.ranks) < MOST_RANKS:
            self.ranks.add(line.rank)
        found = table()
        text = line.text[:_LOOKED_AT]
        for row, (_, stamped, pattern, more) in enumerate(found.steps):
            if match := pattern.search(text):
                self._step(row, line, match, more, stamped)
                break
        for pattern in found.memory:
            if match := pattern.search(text):
                self._memory(line, match)
        for pattern in found.out:
            if match := pattern.search(text):
                size = _bytes_of(match.groupdict().get("size"))
                self.out_of_memory[line.rank, size] = self.attempt
                self.busy = True
                return
        for name, pattern in found.ends.items():
            if pattern.search(text):
                self.end, self.busy = name, True
        for pattern in found.devices:
            if not self.device and (match := pattern.search(text)):
                self.device = match["name"].strip()
        for name, pattern in found.versions.items():
            if match := pattern.search(text):
                self.versions.setdefault(name, match["version"])

    def _step(self, row: int, line: LogLine, match: re.Match[str],
              more: list[re.Pattern[str]], stamped: bool) -> None:
        words = {name: word for name, word in match.groupdict().items() if word}
        for pattern in more:
            if found := pattern.search(line.text[:_LOOKED_AT]):
                words |= {name: word for name, word in found.groupdict().items() if word}
        values = {name: number(word) for name, word in words.items()}
        timed = {"s": 1, "ms": 1000}
        seconds = next((value / unit for name, unit in timed.items()
                        if (value := values.get(name))), None)
        if (rate := values.get("per_s")) is not None:
            seconds = 1.0 / rate
        step = int(number(words["step"]) or 0) if "step" in words else None
        for name in ("s", "ms", "per_s", "samples"):
            if name in words and values[name] is None and words[name] != "?":
                self.odd += 1
                if len(self.strange) < 3:
                    self.strange.setdefault(shorten(words[name]), line.number)
                return
        if seconds is None and not stamped and values.get("samples") is None:
            return
        series = self.steps.setdefault((row, line.rank, words.get("total", "")), [])
        last = series[-1].step if series else None
        if step is not None and last is not None:
            if step == last and series[-1].attempt == self.attempt:
                return  # a bar that is drawn again
            if step < last and series[-1].attempt == self.attempt:
                self.attempt, self.busy = self.attempt + 1, False
        if len(series) < MOST_STEPS:
            series.append(PrintedStep(step, seconds, values.get("tokens"), values.get("samples"),
                                      values.get("flops"), _stamp(line.text) if stamped else None,
                                      self.attempt))
        self.busy, self.end = True, ""

    def _memory(self, line: LogLine, match: re.Match[str]) -> None:
        words = match.groupdict()
        named = words.pop("rank", None)
        rank = line.rank if named is None else int(named)
        for name, word in words.items():
            kind, _, unit = name.partition("_")
            value = number(word) if word else None
            if value is not None:
                kept = self.allocated if kind == "allocated" else self.reserved
                if rank in kept or len(kept) < MOST_RANKS:
                    kept[rank] = max(kept.get(rank, 0.0), value * _BYTES[unit])


def _bytes_of(text: str | None) -> int | None:
    found = _SIZE.match(text or "")
    return None if found is None else round(float(found[1]) * _BYTES[found[2] or "bytes"])


def _stamp(text: str) -> float | None:
    """Seconds of the clock that a line begins with."""
    found = _STAMP.search(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}")
    except ValueError:
        return None
    return (moment - datetime(1970, 1, 1)).total_seconds() + float(f"0.{found[3] or 0}")


def intervals(steps: list[PrintedStep]) -> Iterator[tuple[PrintedStep, float]]:
    """Steps with their seconds: as printed, else from the clocks of consecutive lines."""
    before: PrintedStep | None = None
    for one in steps:
        seconds = one.seconds
        if seconds is None and before is not None and one.attempt == before.attempt and (
                None not in (one.stamp, before.stamp, one.step, before.step)):
            assert one.step is not None and before.step is not None
            assert one.stamp is not None and before.stamp is not None
            seconds = (one.stamp - before.stamp) / (one.step - before.step)
        before = one
        if seconds is not None and seconds > 0:
            yield one, seconds
