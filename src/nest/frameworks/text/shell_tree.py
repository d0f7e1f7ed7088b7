"""A shell script as a tree of commands: words are kept as they are written, with their quotes."""

from __future__ import annotations

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
