"""JSON with some values changed, its text kept otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
STEP = 2
"""Spaces of an object inside another one, where the text does not show them."""


class _Member(NamedTuple):
    """A key of an object, with its value: positions in a text."""

    key: int
    start: int
    end: int
    """Behind the value."""


class _Object(NamedTuple):
    """An object of a text."""

    start: int
    end: int
    """Behind its closing brace."""
    members: dict[str, _Member]


def edited(text: str, given: Mapping[str, Any], taken: Iterable[str]) -> str:
    """The text of a JSON object with values written, and keys taken out.

    Parameters
    ----------
    text : well-formed JSON without a key twice.
    given : values by names with dots; what is missing is made, objects included.
    taken : names that are taken out, with objects that this leaves empty.
    """
    for name in taken:
        text = _without(text, name.split("."))
    for name, value in given.items():
        text = _with(text, name.split("."), value)
    return text


def _with(text: str, path: list[str], value: Any) -> str:
    found = _objects(text)
    depth = max(n for n in range(len(path)) if tuple(path[:n]) in found)
    place, name = found[tuple(path[:depth])], path[depth]
    for part in reversed(path[depth + 1:]):
        value = {part: value}
    member = place.members.get(name)
    if member is not None:
        return text[:member.start] + json.dumps(value) + text[member.end:]
    if not place.members:
        return f"{text[:place.start]}{{{json.dumps(name)}: {json.dumps(value)}}}{text[place.end:]}"
    last = [*place.members.values()][-1]
    indent = _indent(text, last.key)
    if indent is None:
        return f"{text[:last.end]}, {json.dumps(name)}: {json.dumps(value)}{text[last.end:]}"
    outer = _indent(text, found[tuple(path[:depth - 1])].members[path[depth - 1]].key) \
        if depth else ""
    step = len(indent) - len(outer or "") or STEP
    rows = json.dumps(value, indent="\t" if "\t" in indent else step).replace("\n", f"\n{indent}")
    return f"{text[:last.end]},\n{indent}{json.dumps(name)}: {rows}{text[last.end:]}"


def _without(text: str, path: list[str]) -> str:
    place = _objects(text).get(tuple(path[:-1]))
    if place is None or path[-1] not in place.members:
        return text
    if len(place.members) == 1 and len(path) > 1:
        return _without(text, path[:-1])
    members = [*place.members.values()]
    n = members.index(place.members[path[-1]])
    if n + 1 < len(members):
        return text[:members[n].key] + text[members[n + 1].key:]
    start = members[n - 1].end if n else place.start + 1
    return text[:start] + text[members[n].end:]


def _indent(text: str, at: int) -> str | None:
    """Spaces before a key that is the first of its line; None: it is not."""
    start = text.rfind("\n", 0, at) + 1
    return text[start:at] if start and not text[start:at].strip() else None


def _objects(text: str) -> dict[tuple[str, ...], _Object]:
    """Objects of a text by the keys that lead to them; those in lists have none."""
    found: dict[tuple[str, ...], _Object] = {}
    _object(text, _blank(text, 0), (), found)
    return found


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _object(
    text: str, start: int, path: tuple[str, ...], found: dict[tuple[str, ...], _Object]
) -> int:
    """Enter the object at a position, and those in it; the position behind it."""
    members: dict[str, _Member] = {}
    found[path] = _Object(start, 0, members)
    at = _blank(text, start + 1)
    while text[at] != "}":
        key = at
        name, at = _DECODER.raw_decode(text, at)
        value = _blank(text, _blank(text, at) + 1)  # behind the colon
        if text[value] == "{":
            end = _object(text, value, (*path, name), found)
        else:
            _, end = _DECODER.raw_decode(text, value)
        members[name] = _Member(key, value, end)
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)
    found[path] = _Object(start, at + 1, members)
    return at + 1
