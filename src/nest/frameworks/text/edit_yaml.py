"""YAML with some values changed, its text kept otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def edited(text: str, given: Mapping[str, Any], taken: Iterable[str]) -> str:
    """The text of a YAML mapping with values written, and keys taken out.

    Parameters
    ----------
    text : one well-formed document without aliases and without a key twice.
    given : values by names of the mapping; what is missing is added behind the last key.
    taken : names that are taken out, with the rest of their lines, or up to the next one.
    """
    root = yaml.compose(text, Loader=_LOADER)
    assert isinstance(root, yaml.MappingNode)
    places = {key.value: _KeyPlace(key.start_mark.index, value.start_mark.index,
                                value.end_mark.index) for key, value in root.value}
    out = {*taken} & {*places}
    changes = [*(_flow if root.flow_style else _lines)(text, places, out)]
    for name, value in given.items():
        if name in places:
            _, start, end = places[name]
            changes.append((start, end, " " * (start == end) + _value(value)))
    new = {name: _value(value) for name, value in given.items() if name not in places}
    if root.flow_style and new:
        rows = ", ".join(f"{name}: {value}" for name, value in new.items())
        kept = [place.end for name, place in places.items() if name not in out]
        at = kept[-1] if kept else root.start_mark.index + 1
        changes.append((at, at, f", {rows}" if kept else rows))
    for start, end, words in sorted(changes, reverse=True):
        text = text[:start] + words + text[end:]
    return text if root.flow_style else _added(text, new)


class _KeyPlace(NamedTuple):
    """Where a key and its value stand in a text."""

    key: int
    start: int
    end: int
    """Behind the value."""


_Changes = Iterator[tuple[int, int, str]]
"""Texts in place of others, by their positions."""


def _lines(text: str, places: Mapping[str, _KeyPlace], out: set[str]) -> _Changes:
    """Keys with lines of their own, taken out with these."""
    for name in out:
        behind = text.find("\n", places[name].end)
        yield (text.rfind("\n", 0, places[name].key) + 1,
               len(text) if behind < 0 else behind + 1, "")


def _flow(text: str, places: Mapping[str, _KeyPlace], out: set[str]) -> _Changes:
    """Keys between braces, taken out up to the next one; behind the last one that stays, from it.
    """
    names = [*places]
    kept = [n for n, name in enumerate(names) if name not in out]
    for name, following in zip(names, names[1:kept[-1] + 1] if kept else (), strict=False):
        if name in out:
            yield places[name].key, places[following].key, ""
    if len(names) > (last := kept[-1] if kept else -1) + 1:
        yield (places[names[last]].end if kept else places[names[0]].key), places[names[-1]].end, ""


def _added(text: str, given: Mapping[str, str]) -> str:
    """A text with lines behind the last key of its mapping."""
    if not given:
        return text
    root = yaml.compose(text, Loader=_LOADER)
    last = root.value[-1][1].end_mark.index if root is not None and root.value else len(text)
    behind = text.find("\n", max(0, last - (text[last - 1:last] == "\n")))
    at = len(text) if behind < 0 else behind + 1
    indent = " " * root.value[0][0].start_mark.column if root is not None and root.value else ""
    lines = "".join(f"{indent}{name}: {value}\n" for name, value in given.items())
    return text[:at] + ("\n" if at and text[at - 1] != "\n" else "") + lines + text[at:]


def _value(value: Any) -> str:
    """A plain value; words have quotes."""
    if isinstance(value, float):  # 1e-05 without a point is a word in YAML 1.1
        return str(yaml.safe_dump(value).split("\n")[0])
    return json.dumps(value)
