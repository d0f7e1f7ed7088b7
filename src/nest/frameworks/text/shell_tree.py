"""A shell script as a tree of commands: words are kept as they are written, with their quotes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

DEEPEST = 40
"""Commands, quotes and expansions inside one another."""
DECLARES = ("export", "declare", "local", "readonly", "typeset")
"""Commands whose words are assignments."""


class Assign(NamedTuple):
    """``NAME=VALUE``; a tuple: the words of an array."""

    name: str
    at: str | None
    """The text of an index."""
    more: bool
    """``+=``."""
    value: str | tuple[str, ...]
    text: str


class Redirect(NamedTuple):
    mark: str
    target: str
    """A word; of a here-document its text."""


class Simple(NamedTuple):
    line: int
    assigns: tuple[Assign, ...]
    words: tuple[str | Assign, ...]
    redirects: tuple[Redirect, ...]


class ShellBlock(NamedTuple):
    """``{ ... }``, or ``( ... )``, a shell of its own."""

    line: int
    own: bool
    body: Commands


class If(NamedTuple):
    line: int
    branches: tuple[tuple[Commands, Commands], ...]
    other: Commands


class Loop(NamedTuple):
    """``while``, or ``until``."""

    line: int
    turned: bool
    condition: Commands
    body: Commands


class For(NamedTuple):
    line: int
    name: str
    words: tuple[str, ...] | None
    body: Commands
    select: bool


class Count(NamedTuple):
    """``for (( ...; ...; ... ))``."""

    line: int
    texts: tuple[str, str, str]
    body: Commands


class Case(NamedTuple):
    line: int
    word: str
    branches: tuple[tuple[tuple[str, ...], Commands, str], ...]
    """Patterns, statements, and what ends them."""


class Arithmetic(NamedTuple):
    line: int
    text: str


class Test(NamedTuple):
    """``[[ ... ]]``: words and operators."""

    line: int
    words: tuple[str, ...]


class Function(NamedTuple):
    line: int
    name: str
    body: Node


class Directed(NamedTuple):
    """A block with redirections."""

    line: int
    node: Node
    redirects: tuple[Redirect, ...]


class ShellPipeline(NamedTuple):
    line: int
    turned: bool
    parts: tuple[Node, ...]


class AndOrList(NamedTuple):
    """Pipelines joined by ``&&`` and ``||``."""

    line: int
    first: ShellPipeline
    rest: tuple[tuple[str, ShellPipeline], ...]
    background: bool


Node: TypeAlias = (Simple | ShellBlock | If | Loop | For | Count | Case | Arithmetic | Test |
                   Function
                   | Directed)
Commands: TypeAlias = tuple[AndOrList, ...]


OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}(\\d+){CLOSE}")
Value = tuple[str, ...]
"""Texts of an array; of another variable one."""


class Unknown(NamedTuple):
    """A value that a script does not say."""

    line: int
    text: str
    unset: bool
    """It is a variable or an argument that is empty unless the user gives it."""
    where: str
    """Name of the script."""
    name: str = ""
    """Of the variable that has it first, or of that which decides it; the user may give it."""


@dataclass
class ShellState:
    """Variables at one point of a script."""

    values: dict[str, Value] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    arrays: frozenset[str] = frozenset()
    """Names of arrays, which no program gets."""
    fixed: frozenset[str] = frozenset()
    """Names that cannot change."""
    odd: dict[str, str] = field(default_factory=dict)
    """Names whose values are not followed, each with its mark."""
    functions: dict[str, Node | None] = field(default_factory=dict)
    """None: one of several."""
    arguments: Value | None = ()
    """None: not known."""
    shifted: int = 0
    """Arguments of the script itself that are gone."""
    saved: tuple[dict[str, Value | None], ...] = ()
    """For each function that is running, what its own variables hid; None: nothing."""
    options: frozenset[str] = frozenset()
    """Of ``set``."""
    rest: str = ""
    """Mark of what all other variables may have become; empty: they are as the user gives them."""
    ended: str = ""
    """How it ended: exit, return, break, continue; gone: in several ways."""

    def copy(self) -> ShellState:
        """One that changes by itself."""
        found = ShellState(**{one.name: getattr(self, one.name) for one in fields(self)})
        found.values, found.odd = dict(self.values), dict(self.odd)
        found.functions = dict(self.functions)
        found.saved = tuple(dict(one) for one in self.saved)
        return found


def merged(
    states: Sequence[ShellState], unknown: Callable[[str], str],
    lost: Callable[[Value | None], bool],
) -> ShellState:
    """What holds where several ways meet: what they differ in is unknown.

    Parameters
    ----------
    unknown : makes the value of a variable.
    lost : whether a value may be anything.
    """
    first, *others = states
    found = first.copy()

    def one_of(name: str, one: Value | None, two: Value | None) -> Value:
        # What is unknown stays the same unknown, so that loops come to rest.
        return one if one and lost(one) else two if two and lost(two) else (unknown(name),)
    for other in others:
        names = {*found.values, *other.values}
        for name in names if found.values != other.values else ():
            one, two = found.values.get(name), other.values.get(name)
            if one is None or one != two:
                found.values[name] = one_of(name, one, two)
        for name in {*found.functions, *other.functions}:
            if found.functions.get(name) != other.functions.get(name):
                found.functions[name] = None
        for here, there in zip(found.saved, other.saved, strict=False):
            for name in {*here, *there}:
                if name not in here or name not in there or here[name] != there[name]:
                    here[name] = one_of(name, here.get(name), there.get(name))
        found.exported |= other.exported
        found.fixed |= other.fixed
        found.arrays |= other.arrays
        found.odd = {**other.odd, **found.odd}
        found.options |= other.options
        found.rest = found.rest or other.rest
        if (found.arguments, found.shifted) != (other.arguments, other.shifted):
            found.arguments = None
    return found
