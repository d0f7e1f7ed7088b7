"""TOML with some values changed, its text kept otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_PART = r"(?:[\w-]+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')"
_KEY = re.compile(rf"[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*")
_HEADER = re.compile(rf"[ \t]*\[(\[?)[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*\]")
_PARTS = re.compile(_PART)
_BLANK = re.compile(r"[ \t]*")
_EMPTY = re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)")
_TEXTS = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*',
    re.DOTALL)
_TABLE = "[]"
"""Part of a name for what stands in an array of tables, which no setting is in."""


class _Entry(NamedTuple):
    """A key and its value: positions in a text."""

    path: tuple[str, ...]
    key: str
    """As it is written, with its dots."""
    line: int
    start: int
    end: int
    """Behind the value."""
    behind: int
    """Behind its line."""
    inside: tuple[_Entry, ...] | None = None
    """Keys of an inline table, in its order; None: the value is none."""


def edited(text: str, given: Mapping[str, Any], taken: Iterable[str]) -> str:
    """The text of a TOML with values written, and keys taken out.

    Parameters
    ----------
    text : well-formed TOML.
    given : values by names with dots; what is missing is added behind the last key of its section
        or inline table, or in a new section at the end.
    taken : names that are taken out, with their lines.
    """
    entries, heads = _scanned(text)
    taken = {*taken}
    places = {".".join(entry.path): entry for entry in entries}
    changes: list[tuple[int, int, str]] = [
        (places[name].line, places[name].behind, "") for name in taken & {*places}]
    for entry in entries:
        if entry.inside is not None and any(_within(name, entry) for name in (*given, *taken)):
            given = {**given}
            changes.append((entry.start, entry.end, _table(text, entry, given, taken)))
    sections: dict[str, str] = {}
    for name, value in given.items():
        section, _, last = name.rpartition(".")
        if name in places:
            changes.append((places[name].start, places[name].end, _value(value)))
            continue
        beside = [entry for entry in entries if ".".join(entry.path[:-1]) == section]
        if beside:
            entry = beside[-1]
            indent = text[entry.line:].split(entry.key, 1)[0]
            key = "".join(re.split(r"([.])", entry.key)[:-1]) + last
            row, at = f"{indent}{key} = {_value(value)}\n", entry.behind
        elif section in heads:
            row, at = f"{last} = {_value(value)}\n", heads[section]
        else:
            sections[section] = sections.get(section, "") + f"{last} = {_value(value)}\n"
            continue
        changes.append((at, at, row if text[at - 1:at] == "\n" else f"\n{row.rstrip()}"))
    changes.sort(key=lambda one: one[:2])
    for start, stop, new in reversed(changes):
        text = text[:start] + new + text[stop:]
    gap = "" if not text or text.endswith("\n") else "\n"
    return text + "".join(
        f"{gap if n == 0 else ''}\n[{section}]\n{rows}"
        for n, (section, rows) in enumerate(sections.items()))


def _within(name: str, entry: _Entry) -> bool:
    return name.startswith(".".join((*entry.path, "")))


def _table(text: str, entry: _Entry, given: dict[str, Any], taken: set[str]) -> str:
    """An inline table with values written, and keys taken out.

    Parameters
    ----------
    given : values by name; those in the table are taken from it.
    """
    rows: list[str] = []
    for one in entry.inside or ():
        name = ".".join(one.path)
        value = text[one.start:one.end]
        if name in given:
            value = _value(given.pop(name))
        elif one.inside is not None:
            value = _table(text, one, given, taken)
        if name not in taken:
            rows.append(text[one.line:one.start] + value)
    start = len(".".join(entry.path)) + 1
    rows += [f"{name[start:]} = {_value(given.pop(name))}"
             for name in [*given] if _within(name, entry)]
    pad = " " if text[entry.start + 1] in " \t" and rows else ""
    return f"{{{pad}{', '.join(rows)}{pad}}}"


def _value(value: Any) -> str:
    """JSON of numbers, words and lists of them is TOML, too; lists of lists take a line each."""
    if isinstance(value, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in value):
        return "[\n" + "".join(f"  {json.dumps(one)},\n" for one in value) + "]"
    return json.dumps(value)


def _scanned(text: str) -> tuple[list[_Entry], dict[str, int]]:
    """Keys of a text, and the first line behind the head of each section."""
    entries: list[_Entry] = []
    heads: dict[str, int] = {}
    section: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        if empty := _EMPTY.match(text, at):
            at = empty.end()
        elif head := _HEADER.match(text, at):
            section = (*_names(head[2]), *([_TABLE] if head[1] else []))
            at = _line(text, head.end())
            heads[".".join(section)] = at
        elif key := _KEY.match(text, at):
            start = _behind(_BLANK, text, key.end() + 1)  # behind the =
            end = _value_end(text, start)
            path = (*section, *_names(key[1]))
            entries.append(_Entry(path, key[1], at, start, end, _line(text, end),
                                  _inside(text, path, start, end)))
            at = entries[-1].behind
        else:
            raise ValueError("a line that is not understood")
    return entries, heads


def _inside(text: str, path: tuple[str, ...], at: int, end: int) -> tuple[_Entry, ...] | None:
    """Keys of a value that is an inline table; None: it is none."""
    if text[at] != "{":
        return None
    found: list[_Entry] = []
    at = _behind(_BLANK, text, at + 1)
    while key := _KEY.match(text, at, end - 1):
        start = _behind(_BLANK, text, key.end() + 1)
        stop = _value_end(text, start, ",}")
        own = (*path, *_names(key[1]))
        found.append(_Entry(own, key[1], at, start, stop, stop, _inside(text, own, start, stop)))
        at = _behind(_BLANK, text, _behind(_BLANK, text, stop) + 1)  # behind the comma
    return tuple(found)


def _behind(form: re.Pattern[str], text: str, at: int) -> int:
    found = form.match(text, at)
    assert found
    return found.end()


def _names(key: str) -> Iterator[str]:
    for part in _PARTS.findall(key):
        yield json.loads(part) if part.startswith('"') else part.strip("'")


def _line(text: str, at: int) -> int:
    """The beginning of the next line."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _value_end(text: str, at: int, stops: str = "") -> int:
    """The position behind a value: brackets, texts and comments in them are stepped over.

    ``stops``: what ends a value besides its line.
    """
    depth, end = 0, at
    while at < len(text):
        one = text[at]
        if one in "\"'#" and not (one == "#" and depth == 0) and (found := _TEXTS.match(text, at)):
            at = found.end()
            end = at if one != "#" else end
            continue
        if depth == 0 and one in f"\r\n#{stops}":
            break
        depth += (one in "[{") - (one in "]}")
        at += 1
        end = at if not one.isspace() else end
    return end
