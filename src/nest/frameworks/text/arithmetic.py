"""Whole-number arithmetic of a shell: the text between ``$((`` and ``))``, computed, never run.

Operators and how tightly they bind: Bash Reference Manual 5.2, section 6.5.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

LONGEST = 300
"""Characters of an expression."""
LONGEST_TEXT = 1000
"""Characters of one that is not computed, in which what it changes is looked for."""
DEEPEST = 40
"""Parentheses inside one another."""
_WORD = re.compile(
    r"\s*(\d+#\w{1,20}|0[xX][0-9a-fA-F]{1,15}|\d{1,18}|[A-Za-z_]\w*|<<=|>>=|\*\*|\+\+|--|<<|>>|"
    r"<=|>=|==|!=|&&|\|\||[-+*/%&^|]=|[-+*/%()<>?:!~&^|,=])", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
CHANGED = re.compile(
    r"(?<!\w)([A-Za-z_]\w*+)\s*(?:\[[^\]]*\]\s*)?(?:(?:\*|/|%|\+|-|<<|>>|&|\^|\|)?=(?!=)|\+\+|--)"
    r"|(?:\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII)
"""Variables that an expression may change."""
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "|": (3, operator.or_), "^": (4, operator.xor), "&": (5, operator.and_),
    "==": (6, operator.eq), "!=": (6, operator.ne),
    "<": (7, operator.lt), ">": (7, operator.gt), "<=": (7, operator.le), ">=": (7, operator.ge),
    "<<": (8, operator.lshift), ">>": (8, operator.rshift),
    "+": (9, operator.add), "-": (9, operator.sub), "*": (10, operator.mul),
    # Towards zero, as in C.
    "/": (10, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "%": (10, lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1)),
    "**": (11, lambda a, b: a**b)}
"""How tightly operators bind, and what they compute; ``||`` is 1, ``&&`` 2."""


def number_of(text: str) -> int:
    """A number as a shell writes it: 010 is 8, 0x10 16, 2#10 2.

    Raises
    ------
    ValueError : it is none.
    """
    base, mark, digits = text.rpartition("#")
    if mark:
        if not base.isdecimal() or not 2 <= int(base) <= 36:
            raise ValueError
        return int(digits, int(base))
    if len(text) > 20 or "_" in text:
        raise ValueError
    return int(text, 16) if text[:2].lower() == "0x" else (
        int(text, 8) if text.isdecimal() and text[0] == "0" else int(text))


def computed(
    text: str, value: Callable[[str], int],
    put: Callable[[str, int], None] | None = None,
) -> int:
    """The number that an expression gives.

    Parameters
    ----------
    text : of the expression.
    value : number of a variable.
    put : takes the new number of a variable; None: none may change.

    Raises
    ------
    ValueError : arrays, a variable that is no number, or a result of 64 bits or more.
    """
    words: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None or at > LONGEST:
            raise ValueError
        words.append(match[1])
        at = match.end()
    if not words:
        return 0
    found = _Expression(words, value, put)
    number = found.all(0)
    if found.at != len(words):
        raise ValueError
    return number


class _Expression:
    """A list of words, read from the front."""

    def __init__(
        self, words: list[str], value: Callable[[str], int],
        put: Callable[[str, int], None] | None,
    ) -> None:
        self.words, self.value, self.put, self.at = words, value, put, 0
        self.idle = 0
        """Above 0: behind what decides without it."""

    def next(self, ahead: int = 0) -> str:
        """A word that follows, or nothing."""
        return self.words[self.at + ahead] if self.at + ahead < len(self.words) else ""

    def take(self, wanted: str) -> None:
        """Go on behind a word that has to be next."""
        if self.next() != wanted:
            raise ValueError
        self.at += 1

    def all(self, depth: int) -> int:
        """Expressions, separated by commas."""
        found = self.assigned(depth)
        while self.next() == ",":
            self.at += 1
            found = self.assigned(depth)
        return found

    def assigned(self, depth: int) -> int:
        """``a = b``, ``a += b``, or what binds tighter."""
        name, mark = self.next(), self.next(1)
        if _NAME.fullmatch(name) and mark.endswith("=") and mark not in ("==", "!=", "<=", ">="):
            if depth > DEEPEST:
                raise ValueError
            self.at += 2
            right = self.assigned(depth + 1)
            return self.changed(
                name, right if mark == "=" else self.binary(mark[:-1], self.read(name), right))
        return self.choice(depth)

    def changed(self, name: str, number: int) -> int:
        """A variable with a new number."""
        if not self.idle:
            if self.put is None:
                raise ValueError
            self.put(name, number)
        return number

    def read(self, name: str) -> int:
        """The number of a variable."""
        return 0 if self.idle else self.value(name)

    def part(self, used: bool, read: Callable[[int], int], depth: int) -> int:
        """Part of an expression that counts or not."""
        self.idle += not used
        found = read(depth)
        self.idle -= not used
        return found

    def choice(self, depth: int) -> int:
        """``a ? b : c``, or what binds tighter."""
        found = self.either(depth)
        if self.next() != "?":
            return found
        self.at += 1
        yes = self.part(bool(found), self.assigned, depth + 1)
        self.take(":")
        no = self.part(not found, self.assigned, depth + 1)
        return yes if found else no

    def either(self, depth: int) -> int:
        """``a || b``, or what binds tighter."""
        found = self.both(depth)
        while self.next() == "||":
            self.at += 1
            right = self.part(not found, self.both, depth + 1)
            found = int(bool(found) or bool(right))
        return found

    def both(self, depth: int) -> int:
        """``a && b``, or what binds tighter."""
        found = self.terms(3, depth)
        while self.next() == "&&":
            self.at += 1
            right = self.part(bool(found), lambda deep: self.terms(3, deep), depth + 1)
            found = int(bool(found) and bool(right))
        return found

    def terms(self, least: int, depth: int) -> int:
        """Operators that bind at least so tightly."""
        found = self.term(depth)
        while self.next() in _BINARY and _BINARY[self.next()][0] >= least:
            word = self.next()
            self.at += 1
            right = self.terms(_BINARY[word][0] + (word != "**"), depth + 1)
            found = self.binary(word, found, right)
        return found

    def binary(self, word: str, left: int, right: int) -> int:
        """What an operator computes."""
        if word not in _BINARY or (word == "**" and not (
                0 <= right <= 62 and abs(left) <= 2**31)) or (
                word in ("<<", ">>") and not 0 <= right <= 62) or (word in "/%" and right == 0):
            if self.idle:
                return 0
            raise ValueError
        found = int(_BINARY[word][1](left, right))
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
            found = self.all(depth + 1)
            self.take(")")
            return found
        if word in ("++", "--"):
            name = self.next()
            if not _NAME.fullmatch(name):
                raise ValueError
            self.at += 1
            return self.changed(name, self.read(name) + (1 if word == "++" else -1))
        if word in ("-", "+", "!", "~"):
            found = self.term(depth + 1)
            return {"-": -found, "+": found, "!": int(not found), "~": ~found}[word]
        if _NAME.fullmatch(word):
            found = self.read(word)
            if self.next() in ("++", "--"):
                step = 1 if self.next() == "++" else -1
                self.at += 1
                self.changed(word, found + step)
            return found
        return number_of(word)
