"""A command line as arguments by name: how many words each takes, and which change no cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.inputs.files import read_description

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


@cache
def known(name: str) -> KnownArguments:
    """A table below this folder, by the name of its file."""
    data = read_description(Path(__file__).parent / f"{name}.yaml")
    small = data.pop("small")
    takes = {one: arity for group in (*data.values(), *small.values())
             for arity, names in group.items() for one in names.split()}
    groups = {group: frozenset(one for names in data[group].values() for one in names.split())
              for group in ("free", "elsewhere") if group in data}
    effects = {one: effect for effect, group in small.items() for names in group.values()
               for one in names.split()}
    return KnownArguments(takes, small=frozenset(effects), effects=effects, **groups)


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
