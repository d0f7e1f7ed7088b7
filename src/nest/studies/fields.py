"""Setting one field of plain data, by its dotted path."""

from __future__ import annotations

from typing import Any

from nest.errors import InputError, did_you_mean
from nest.units import shorten

NAMED = ("device", "stack")
"""Fields whose text is the name of a description that single fields of it may change."""
INSTEAD = {"bandwidth": "oversubscription", "oversubscription": "bandwidth"}
"""Setting the first takes the second away: a level has one of them."""


def with_field(data: Any, path: str, value: Any) -> Any:
    """A copy of plain data with one field set.

    Parameters
    ----------
    data : mappings and lists; what is on the path is copied, all else shared.
    path : names, joined by points; entries of a list by number, from the end if negative, or by
        their name.
    value : plain data.

    Raises
    ------
    InputError : the path leads through something that has no fields; the text names the place.
    """
    name, _, rest = path.partition(".")
    if isinstance(data, list):
        number = _entry(data, name)
        return [with_field(one, rest, value) if rest and place == number
                else value if place == number else one for place, one in enumerate(data)]
    if not isinstance(data, dict):
        raise InputError(f"{name}: got {shorten(data)}, which has no fields; allowed: a field of "
                         "a mapping, or the whole value")
    if not rest:
        return {key: one for key, one in data.items() if key != INSTEAD.get(name)} | {name: value}
    inner = data.get(name)
    if name in NAMED and isinstance(inner, str):
        inner = {"base": inner}
    return {**data, name: with_field({} if inner is None else inner, rest, value)}


def _entry(data: list[Any], name: str) -> int:
    """The place of an entry by its number or its name."""
    if name.lstrip("-").isdigit() and -len(data) <= int(name) < len(data):
        return int(name) % len(data)
    names = [str(one.get("name")) if isinstance(one, dict) else "" for one in data]
    if name in names:
        return names.index(name)
    known = ", ".join(filter(None, names))
    raise InputError(f"got no entry {shorten(name)}; {did_you_mean(name, names)}allowed: "
                     f"0 to {len(data) - 1}" + (f", or {known}" if known else ""))
