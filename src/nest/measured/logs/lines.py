"""Lines of a log, one after another: without colours, with the rank that printed each.

A log has any size and any bytes. It is read once, in order; nothing of it is kept but the line at
hand, of which at most :data:`LONGEST` bytes are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nest.errors import InputError
from nest.units import shorten

LONGEST = 2**18
"""Bytes of a line that are read; configurations of one line have some thousands."""
_ESCAPES = re.compile(  # ECMA-48, 5.4 (control sequences), 5.6 (strings such as titles of windows)
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_RANKS = re.compile(
    r"\s*(?:\[(?P<rank>rank|default)(?P<number>\d{1,6})\]:?|(?P<task>\d{1,6}):(?= )|"
    r"\[[Rr]ank (?P<named>\d{1,6})(?: ?\|[^\]]{0,40})?\](?!.{0,40}memory \())[ \t]?")


class LogLine(NamedTuple):
    """A line, or what a progress bar wrote between two returns to its start."""

    number: int
    """From 1."""
    rank: int | None
    """That the launcher puts before its output; None: none is named."""
    text: str
    """Without colours and what the launcher puts before it."""


def log_lines(path: str | Path) -> Iterator[LogLine]:
    """Lines of a file.

    Raises
    ------
    InputError : no such file, or not readable; the file is a folder, or compressed.
    """
    where = shorten(str(path), 300)[1:-1]
    try:
        with Path(path).open("rb") as file:
            number = 0
            while raw := file.readline(LONGEST):
                number += 1
                if number == 1:
                    _check_plain(raw, where)
                whole = raw
                while len(whole) == LONGEST and not whole.endswith(b"\n"):
                    whole = file.readline(LONGEST)  # the rest of a line that is longer
                yield from _parts(raw, number)
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror})") from None


def _check_plain(first: bytes, where: str) -> None:
    for mark, what in ((b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"(\xb5/\xfd", "zstd"),
                       (b"\xfd7zXZ", "xz"), (b"BZh", "bzip2")):
        if first.startswith(mark):
            raise InputError(f"{where}: is compressed ({what}); allowed: a log as text")


def _parts(raw: bytes, number: int) -> Iterator[LogLine]:
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    rank: int | None = None
    for part in text.split("\r") if "\r" in text else (text,):
        part = _CONTROL.sub("", part)
        while found := _RANKS.match(part):
            named = found["number"] or found["task"] or found["named"]
            # torchrun names the rank within the node as default0, the rank of all as rank0
            if rank is None or found["rank"] == "rank" or found["named"]:
                rank = int(named)
            part = part[found.end():]
        yield LogLine(number, rank, part)
