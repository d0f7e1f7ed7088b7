"""Whole-number arithmetic of a shell: the text between ``$((`` and ``))``, computed, never run."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

LONGEST = 300
"""Characters of an expression."""
DEEPEST = 40
"""Parentheses inside one another."""
_WORD = re.compile(r"\s*(\d{1,18}|[A-Za-z_]\w*|\*\*|<=|>=|==|!=|&&|\|\||[-+*/%()<>?:!])", re.ASCII)
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "==": (3, operator.eq), "!=": (3, operator.ne),
    "<": (4, operator.lt), ">": (4, operator.gt), "<=": (4, operator.le), ">=": (4, operator.ge),
    "+": (5, operator.add), "-": (5, operator.sub), "*": (6, operator.mul),
    # Towards zero, as in C.
    "/": (6, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "%": (6, lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1)),
    "**": (8, lambda a, b: a**b)}
"""How tightly operators bind, and what they compute."""


def computed(text: str, value: Callable[[str], str]) -> int:
    """The number that an expression gives.

    Parameters
    ----------
    text : of the expression; ``+ - * / % **``, comparisons, ``&& || !``, ``a ? b : c``.
    value : text of a variable.

    Raises
    ------
    ValueError : anything else, a variable that is no number, or a result of 64 bits or more.
    """
    words: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None or at > LONGEST:
            raise ValueError
        words.append(match[1])
        at = match.end()
    found = _Expression(words, value)
    number = found.choice(0)
    if found.at != len(words):
        raise ValueError
    return number


class _Expression:
    """A list of words, read from the front."""

    def __init__(self, words: list[str], value: Callable[[str], str]) -> None:
        self.words, self.value, self.at = words, value, 0

    def next(self) -> str:
        """The next word, or nothing."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, wanted: str) -> None:
        """Go on behind a word that has to be next."""
        if self.next() != wanted:
            raise ValueError
        self.at += 1

    def choice(self, depth: int) -> int:
        """``a ? b : c``, or what binds tighter."""
        found = self.terms(1, depth)
        if self.next() != "?":
            return found
        self.take("?")
        yes = self.choice(depth + 1)
        self.take(":")
        no = self.choice(depth + 1)
        return yes if found else no

    def terms(self, least: int, depth: int) -> int:
        """Operators that bind at least so tightly."""
        found = self.term(depth)
        while self.next() in _BINARY and _BINARY[self.next()][0] >= least:
            word = self.next()
            self.at += 1
            tight, compute = _BINARY[word]
            right = self.terms(tight + (word != "**"), depth + 1)
            if word == "**" and not (0 <= right <= 62 and abs(found) <= 2**31) or (
                    word in "/%" and right == 0):
                raise ValueError
            found = int(compute(found, right))
            if abs(found) >= 2**63:
                raise ValueError
        return found

    def term(self, depth: int) -> int:
        """A number, a variable, a sign before one, or an expression in parentheses."""
        word = self.next()
        self.at += 1
        if depth > DEEPEST:
            raise ValueError
        if word == "(":
            found = self.choice(depth + 1)
            self.take(")")
            return found
        if word in ("-", "+", "!"):
            found = self.term(depth + 1)
            return -found if word == "-" else found if word == "+" else int(not found)
        if word.isdigit():
            return int(word)
        text = self.value(word).strip() if word and word not in _BINARY else ""
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise ValueError
        return int(text)
