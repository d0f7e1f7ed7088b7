"""Settings of a target as a table: which figure of a plan each says, and in which words.

The table is read both ways: :func:`settings` writes the figures of a plan, :func:`figures_of` reads
settings back as figures.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from nest.frameworks.figures import Figure, Figures
from nest.units import shorten

Plain = dict[str, Any]
"""Values of JSON, TOML or a command line by name; a True of a command line is a flag."""


class Setting(NamedTuple):
    """A figure and the setting that says it."""

    figure: str
    """Name of the figure: :mod:`nest.frameworks.figures`."""
    name: str
    """Name of the setting, with dots between sections."""
    words: Mapping[Any, Hashable] | None = None
    """Its value for each value of the figure, no two alike; values that are not here leave it out.
    None: it has the figure's value."""
    unless: tuple[Figure, ...] = (None,)
    """Values of the figure that leave it out; the first is what its absence says, if not None. None
    is a value that is written, too, where this is empty."""
    when: Mapping[str, tuple[Figure, ...]] = {}
    """Values that other figures must have, or it is left out."""


def flag(
    figure: str, name: str, words: Mapping[Any, bool] | None = None,
    when: Mapping[str, tuple[Figure, ...]] | None = None,
) -> Setting:
    """A setting that is there, as True, for one value of a figure; default: for True."""
    [value] = words or (True,)
    absent: Figure = not value if isinstance(value, bool) else None
    return Setting(figure, name, {value: True}, (absent,), when or {})


def settings(table: Iterable[Setting], given: Figures) -> Plain:
    """Settings by name, in the order of the table."""
    return {one.name: value if one.words is None else one.words[value]
            for one in table for value in (given[one.figure],)
            if value not in one.unless and (one.words is None or value in one.words)
            and all(given[name] in allowed for name, allowed in one.when.items())}


def figures_of(table: Iterable[Setting], given: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures that settings say; where several settings say one, the first that is there.

    Raises
    ------
    ValueError : a value that is none of a setting's words; names the setting.
    """
    found: dict[str, Figure] = {}
    for one in table:
        if one.name not in given:
            continue
        value = given[one.name]
        if one.words is not None:
            means = [figure for figure, word in one.words.items() if word == value]
            if not means:
                raise ValueError(f"{one.name}: got {shorten(value)}; allowed: "
                                 f"{', '.join(map(str, dict.fromkeys(one.words.values())))}")
            value = means[0]
        found.setdefault(one.figure, value)
    return {**_absent(table, found), **found}


def _absent(table: Iterable[Setting], found: Mapping[str, Figure]) -> dict[str, Figure]:
    """What settings say by not being there, where they might have been."""
    return {one.figure: one.unless[0] for one in reversed([*table])
            if one.unless and one.unless[0] is not None
            and all(name in found and found[name] in allowed for name, allowed in one.when.items())}


def nested(given: Mapping[str, Any]) -> Plain:
    """Settings as sections within sections."""
    found: Plain = {}
    for name, value in given.items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def flat(given: Mapping[str, Any], start: str = "") -> Plain:
    """The inverse of :func:`nested`."""
    found: Plain = {}
    for name, value in given.items():
        found |= flat(value, f"{start}{name}.") if isinstance(value, Mapping) else {
            start + name: value}
    return found


def words(given: Mapping[str, Any]) -> list[list[str]]:
    """Settings as arguments, the words of each; a flag where the value is True."""
    return [[f"--{name}"] if value is True else
            [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else (value,))]
            for name, value in given.items()]
