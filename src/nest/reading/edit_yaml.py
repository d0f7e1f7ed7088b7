"""YAML with some values changed, its text kept otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def edited(text: str, given: Mapping[str, Any], taken: Iterable[str]) -> str:
    """The text of a YAML mapping with values written, and keys taken out.

    Parameters
    ----------
    text : one well-formed document without aliases and without a key twice.
    given : values by names of the mapping; what is missing is added behind the last key.
    taken : names that are taken out, with the rest of their lines.
    """
    root = yaml.compose(text, Loader=_LOADER)
    assert isinstance(root, yaml.MappingNode)
    places = {key.value: (key.start_mark, value.start_mark, value.end_mark)
              for key, value in root.value}
    changes: list[tuple[int, int, str]] = []
    for name in {*taken} & {*places}:
        key, _, end = places[name]
        behind = text.find("\n", end.index)
        changes.append((key.index - key.column, len(text) if behind < 0 else behind + 1, ""))
    for name, value in given.items():
        if name in places:
            _, start, end = places[name]
            gap = " " if start.index == end.index else ""
            changes.append((start.index, end.index, gap + _value(value)))
    for start_at, end_at, new in sorted(changes, reverse=True):
        text = text[:start_at] + new + text[end_at:]
    return _added(text, {name: value for name, value in given.items() if name not in places})


def _added(text: str, given: Mapping[str, Any]) -> str:
    """A text with lines behind the last key of its mapping."""
    if not given:
        return text
    root = yaml.compose(text, Loader=_LOADER)
    last = root.value[-1][1].end_mark.index if root is not None and root.value else len(text)
    behind = text.find("\n", max(0, last - (text[last - 1:last] == "\n")))
    at = len(text) if behind < 0 else behind + 1
    end = "\r\n" if "\r\n" in text else "\n"
    indent = " " * root.value[0][0].start_mark.column if root is not None and root.value else ""
    lines = "".join(f"{indent}{name}: {_value(value)}{end}" for name, value in given.items())
    return text[:at] + (end if at and text[at - 1] != "\n" else "") + lines + text[at:]


def _value(value: Any) -> str:
    """A plain value; words have quotes."""
    if isinstance(value, float):  # 1e-05 without a point is a word in YAML 1.1
        return str(yaml.safe_dump(value).split("\n")[0])
    return json.dumps(value)
