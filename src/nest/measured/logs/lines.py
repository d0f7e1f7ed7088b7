"""Lines of a log, one after another: without colours, with the rank that printed each.

A log has any size and any bytes. It is read once, in order, in blocks; lines without any of the
words that are looked for are not even decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nest.errors import InputError
from nest.units import shorten

LONGEST = 2**18
"""Bytes of a line that are read; configurations of one line have some thousands."""
_BLOCK = 2**20
_ESCAPES = re.compile(  # ECMA-48, 5.4 (control sequences), 5.6 (strings such as titles of windows)
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_RANKS = re.compile(
    r"\s*(?:(?:[\w.-]{1,60}: )?\[(?P<rank>rank|default)(?P<number>\d{1,6})\]:?|"
    r"(?P<task>\d{1,6}):(?= )|"
    r"\[[Rr]ank (?P<named>\d{1,6})(?: ?\|[^\]]{0,40})?\](?!.{0,40}memory \())[ \t]?", re.ASCII)


class LogLine(NamedTuple):
    """A line, or what a progress bar wrote between two returns to its start."""

    number: int
    """From 1."""
    rank: int | None
    """That the launcher puts before its output; None: none is named."""
    text: str
    """Without colours and what the launcher puts before it."""


Wanted = tuple[Sequence[bytes], Callable[[], bool]]
"""Words of lines that count, and whether all lines do at the moment."""


def log_lines(path: str | Path, wanted: Wanted) -> Iterator[LogLine]:
    """Lines of a file that count.

    Raises
    ------
    InputError : no such file, or not readable; the file is a folder, or compressed.
    """
    where = shorten(str(path), 300)[1:-1]
    try:
        number = 1
        for part in _parts(path, where):
            yield from _lines(part, number, wanted)
            number += part.count(b"\n")
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror})") from None


def _parts(path: str | Path, where: str) -> Iterator[bytes]:
    """Whole lines, about a block of them; what is longer than :data:`LONGEST` is left out."""
    with Path(path).open("rb") as file:
        left, skips = b"", False
        while block := file.read(_BLOCK):
            if not left and not skips and file.tell() == len(block):
                _check_plain(block, where)
            if skips:
                at = re.search(rb"[\r\n]", block)
                if at is None:
                    continue
                block, skips = block[at.start():], False
            data = left + block
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            left = data[end:]
            if len(left) > LONGEST:
                end, left, skips = end + LONGEST, b"", True
            yield data[:end]
        if left:
            yield left


def _check_plain(first: bytes, where: str) -> None:
    for mark, what in ((b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"(\xb5/\xfd", "zstd"),
                       (b"\xfd7zXZ", "xz"), (b"BZh", "bzip2")):
        if first.startswith(mark):
            raise InputError(f"{where}: is compressed ({what}); allowed: a log as text")


def _lines(part: bytes, number: int, wanted: Wanted) -> Iterator[LogLine]:
    words, everything = wanted
    starts = {max(part.rfind(b"\n", 0, at), part.rfind(b"\r", 0, at)) + 1
              for word in words for at in _places(part, word)}
    if not (starts or everything()):
        return
    at = 0
    for n, line in enumerate(part.split(b"\n")):
        rank: int | None = None
        first = True
        for piece in line.split(b"\r"):
            if at in starts or everything():
                if first:
                    rank, text = _plain(piece)
                else:
                    if rank is None:
                        rank = _plain(line[:200])[0]
                    text = _plain(piece)[1]
                yield LogLine(number + n, rank, text)
            first = False
            at += len(piece) + 1


def _places(part: bytes, word: bytes) -> Iterator[int]:
    at = part.find(word)
    while at >= 0:
        yield at
        at = part.find(word, at + 1)


def _plain(raw: bytes) -> tuple[int | None, str]:
    """The rank that the launcher puts before a line, and the rest without colours."""
    text = raw[:LONGEST].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    text = _CONTROL.sub("", text)
    rank: int | None = None
    while found := _RANKS.match(text):
        # torchrun names the rank within the node as default0, the rank of all as rank0
        if rank is None or found["rank"] == "rank" or found["named"]:
            rank = int(found["number"] or found["task"] or found["named"])
        text = text[found.end():]
    return rank, text
