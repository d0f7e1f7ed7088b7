"""The settings of training software, one table for each, read both ways.

:func:`settings` writes the figures of a plan by a table, :func:`figures_of` reads settings back as
figures. A command line is read as arguments by name: how many words each takes, and which change
no cost. Tables are YAML beside the software that they are of, with the source of each group:

- ``sections``: settings that a plan decides, each with the figure that it says, or with the fields
  of :class:`Setting`; ``flag: FIGURE``: it is there, as True, for one value of a figure (``for``;
  default: true), ``schedules: TARGET``: its words are the names of schedules in
  :mod:`nest.schedules.registry`.
- ``printed``: what a job prints of them, where that is not the setting's name or says nothing.
- ``read``: others that are read; ``aliases``: arguments that others say, with their words where
  these differ; ``defaults``: values of settings that are not there (``defaults_of``: those of
  another table).
- ``free``: no effect on the cost, by the reason. ``small``: no price, with what they change and by
  how much, which is the text of a note. ``only``: values with no effect or with a price, others are
  refused unless they are small too. ``within``: values that a small setting may have, others are
  refused. All other settings are refused.

A name stands for its section too, and one with a star for all names that begin so.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.frameworks.figures import Figure, Figures
from nest.inputs.files import read_description
from nest.schedules.registry import named
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
    type: str = ""
    """count: a whole number, at least 1; many: several words of a command line; flag: none."""


def _setting(name: str, entry: Any) -> Setting:
    """An entry of a table's ``sections``."""
    if isinstance(entry, str):
        return Setting(entry, name)
    when = {figure: tuple(values) for figure, values in entry.get("when", {}).items()}
    if "flag" in entry:
        return flag(entry["flag"], name, entry.get("for", True), when)
    unless = tuple(tuple(one) if isinstance(one, list) else one
                   for one in entry.get("unless", (None,)))
    words = named(entry["schedules"]) if "schedules" in entry else entry.get("words")
    return Setting(entry["figure"], name, words, unless, when, entry.get("type", ""))


def flag(
    figure: str, name: str, value: Figure = True,
    when: Mapping[str, tuple[Figure, ...]] | None = None,
) -> Setting:
    """A setting that is there, as True, for one value of a figure."""
    absent: Figure = not value if isinstance(value, bool) else None
    return Setting(figure, name, {value: True}, (absent,), when or {}, "flag")


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
            f"{start}{name}": value}
    return found


def words(given: Mapping[str, Any]) -> list[list[str]]:
    """Settings as arguments, the words of each; a flag where the value is True."""
    return [[f"--{name}"] if value is True else
            [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else (value,))]
            for name, value in given.items()]


# ---------------------------------------------------------------- tables

_FILES = {"megatron": "megatron/settings", "torchtitan": "torchtitan/settings",
          "torchtitan-toml": "torchtitan/settings", "deepspeed": "deepspeed/settings",
          "megatron-bridge": "megatron/bridge", "nemo": "translated", "nanotron": "translated",
          "gpt-neox": "translated",
          "trainer": "huggingface", "accelerate": "huggingface"}
"""Files of tables, where they have other names than the software."""


@cache
def tables_of(target: str) -> Mapping[str, Any]:
    """The table of some software, as its file has it."""
    file = Path(__file__).parent / f"{_FILES.get(target, target)}.yaml"
    data: dict[str, Any] = read_description(file)
    if target == "megatron":
        return data
    own: dict[str, Any] = data[target]
    base = own.get("defaults_of")
    return own | ({"defaults": data[base]["defaults"]} if base else {})


@cache
def sections(target: str) -> Mapping[str, tuple[Setting, ...]]:
    """Settings that a plan decides, by section."""
    return {name: tuple(_setting(*entry) for entry in section.items())
            for name, section in tables_of(target)["sections"].items()}


class SoftwareSettings(NamedTuple):
    """The settings of some software besides those that a plan decides."""

    free: tuple[str, ...]
    """Those that change no cost; a name that ends with a star stands for all that begin so."""
    small: Mapping[tuple[str, ...], str]
    """Those that have no price: what they change, and by how much."""
    only: Mapping[str, tuple[Any, ...]]
    """Values that have a price, or change no cost."""
    within: Mapping[str, tuple[Any, ...]]
    """Values that a setting of ``small`` may have."""
    defaults: Mapping[str, Any]
    """Values of settings that are not there."""


@cache
def software_settings(target: str) -> SoftwareSettings:
    """The table of some software whose settings are in files."""
    data = tables_of(target)
    free = tuple(" ".join(data.get("free", {}).values()).split())
    small = {tuple(names.split()): effect for names, effect in data.get("small", {}).items()}
    only, within = ({name: tuple(values) for name, values in data.get(group, {}).items()}
                    for group in ("only", "within"))
    return SoftwareSettings(free, small, only, within, data.get("defaults", {}))


Words = tuple[str, ...]
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_REAL = re.compile(r"[+-]?(\d{1,30}\.?\d{0,30}|\.\d{1,30})([eE][+-]?\d{1,4})?")


class KnownArguments(NamedTuple):
    """The arguments of some software."""

    takes: Mapping[str, str]
    """Words that each takes: flag, one or many; plain, if it is written NAME=VALUE without hyphens.
    """
    free: frozenset[str]
    """Those that change no cost."""
    small: frozenset[str]
    """Those that have no price."""
    elsewhere: frozenset[str] = frozenset()
    """Those of other versions and forks that change no cost."""
    effects: Mapping[str, str] = {}
    """What those without a price change, and by how much."""
    read: frozenset[str] = frozenset()
    """Those that are read."""
    only: Mapping[str, tuple[Any, ...]] = {}
    """Values that have a price."""
    aliases: Mapping[str, tuple[tuple[str, Words], ...]] = {}
    """Arguments that others say, with their words where these differ."""


@cache
def known() -> KnownArguments:
    """The arguments of Megatron-LM."""
    data = tables_of("megatron")
    groups = {name: {one: arity for arity, names in data[name].items() for one in names.split()}
              for name in ("free", "elsewhere", "read", "other")}
    effects = {one: effect for effect, group in data["small"].items() for names in group.values()
               for one in names.split()}
    small = {one: arity for group in data["small"].values() for arity, names in group.items()
             for one in names.split()}
    decided = {one.name: one.type if one.type in ("flag", "many") else "one"
               for section in sections("megatron").values() for one in section}
    return KnownArguments(
        {**decided, **small, **{one: arity for group in groups.values()
                                for one, arity in group.items()}},
        frozenset(groups["free"]), frozenset(effects), frozenset(groups["elsewhere"]), effects,
        frozenset((*decided, *groups["read"])),
        {name: tuple(values) for name, values in data["only"].items()},
        {name: tuple((first, tuple(words)) for first, *words in map(str.split, others))
         for name, others in data["aliases"].items()})


def arguments_of(words: Sequence[str], table: KnownArguments) -> tuple[dict[str, Words], list[str]]:
    """Words of each argument by its name without hyphens; the last one of a name counts.

    Returns
    -------
    The arguments, and words that belong to none.
    """
    found: dict[str, Words] = {}
    stray: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--"):
            name, _, value = word.lstrip("+").partition("=")
            if table.takes.get(name) == "plain":
                found[name] = (value,)
            else:
                stray.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        arity = table.takes.get(name, "many")
        if equals:
            found[name] = (value,)
            continue
        end = at
        most = {"flag": 0, "one": 1}.get(arity, len(words))
        while end < len(words) and end - at < most and not words[end].startswith("--"):
            end += 1
        found[name] = tuple(words[at:end])
        at = end
    return found, stray


def plain(name: str, words: Words, arity: str) -> Any:
    """The value of an argument: True of a flag, a number, a text, or a tuple of texts.

    Raises
    ------
    InputError : no value, or a number of more digits than allowed.
    """
    if arity == "flag":
        return True
    if arity == "many":
        return words
    if not words:
        raise InputError(f"--{name}: got no value; allowed: one")
    return number_or_text(words[0])


def number_or_text(word: str) -> int | float | str:
    """A word as the number that it is, or as it stands."""
    if _WHOLE.fullmatch(word):
        return int(word)
    return float(word) if _REAL.fullmatch(word) else word


def listed(names: Iterable[str]) -> str:
    """Arguments in a sentence."""
    return ", ".join(f"--{name}" for name in names)
