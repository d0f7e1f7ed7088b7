"""Comparisons of a script: ``[ "$A" = b ]`` and ``[[ $A == b* ]]``; files are not looked at.

Rules: Bash Reference Manual 5.2, sections 3.2.5.2 and 6.4. Where a test needs a number and there
is none it fails; a variable that is not set makes that not known instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from nest.frameworks.text.shell_tree import MARK
from nest.frameworks.text.shell_words import Words

_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_LITERAL = re.compile(r"[\w/ -]+", re.ASCII)


class Tests:
    """Tests of a script in the state of its words."""

    def __init__(self, words: Words, line: int) -> None:
        self.words, self.line = words, line
        self.cause = ""
        """Mark of what decides, where the result is not known."""

    def _lost(self, *texts: str) -> bool:
        found = next((mark for text in texts if (mark := self.words.hard(text))), "")
        self.cause = self.cause or found
        return bool(found)

    def single(self, words: Sequence[str]) -> bool | None:
        """Whether a test in single brackets holds; None: not known.

        Parameters
        ----------
        words : between its brackets, expanded.
        """
        if len(words) > 4 or len(words) == 4 and words[0] != "!":
            return self._joined(words)
        if self._lost(*words):
            return None
        if not words:
            return False
        if words[0] == "!" and len(words) > 1 and not (len(words) == 3 and self._binary(words[1])):
            return _not(self.single(words[1:]))
        if len(words) == 1:
            return bool(words[0])
        if len(words) == 2:
            return self._unary(*words)
        if words[0] == "(" and words[2] == ")" and not self._binary(words[1]):
            return self.single(words[1:2])
        left, mark, right = words
        if mark in ("-a", "-o"):
            return (left != "" and right != "") if mark == "-a" else (left != "" or right != "")
        return self._compared(left, mark, right, False)

    def _joined(self, words: Sequence[str]) -> bool | None:
        if "(" in words or ")" in words:
            return None
        for mark, decided in (("-o", True), ("-a", False)):
            if mark in words:
                at = words.index(mark)
                parts = self.single(words[:at]), self.single(words[at + 1:])
                return _combined(decided, *parts)
        self._lost(*words)
        return None

    @staticmethod
    def _binary(word: str) -> bool:
        return word in _NUMBERS or word in ("=", "==", "!=", "-a", "-o", "<", ">", "=~", "-ef",
                                            "-nt", "-ot")

    def _unary(self, mark: str, text: str) -> bool | None:
        if mark in ("-z", "-n"):
            return bool(text) == (mark == "-n")
        if mark == "-v" and re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII):
            return self.words.is_set(text)
        return None

    def _compared(self, left: str, mark: str, right: str, double: bool) -> bool | None:
        if mark in ("=", "==", "!="):
            if not double and re.search(r"[*?\[]", left + right):
                return None
            return (left == right) == (mark != "!=")
        if mark not in _NUMBERS:
            return None
        numbers = []
        for text in (left, right):
            if double and not text.strip() and self.words.assumed:
                return None  # 0, unless it is set
            if double:
                text = self.words.arithmetic(text, text, self.line)
                if self._lost(text):
                    return None
            if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text):
                # [: integer expression expected; what is not set may be set
                self.cause = self.cause or next(iter(self.words.assumed or ()), "")
                return None if double or self.words.assumed or text.strip() else False
            numbers.append(int(text))
        a, b = numbers
        return {"==": a == b, "!=": a != b, ">": a > b, ">=": a >= b, "<": a < b,
                "<=": a <= b}[_NUMBERS[mark]]

    # ------------------------------------------------------------ [[ ... ]]

    def double(self, words: Sequence[str]) -> bool | None:
        """Whether a test in double brackets holds; None: not known.

        Parameters
        ----------
        words : between its brackets, as they are written.
        """
        self._left = [*words]
        found = self._either()
        return None if self._left else found

    def _either(self) -> bool | None:
        found = self._both()
        while self._left[:1] == ["||"]:
            self._left.pop(0)
            found = _combined(True, found, self._both())
        return found

    def _both(self) -> bool | None:
        found = self._term()
        while self._left[:1] == ["&&"]:
            self._left.pop(0)
            found = _combined(False, found, self._term())
        return found

    def _term(self) -> bool | None:
        left = self._left
        if not left:
            return None
        if left[0] == "!":
            left.pop(0)
            return _not(self._term())
        if left[0] == "(":
            left.pop(0)
            found = self._either()
            if left[:1] != [")"]:
                return None
            left.pop(0)
            return found
        first = left.pop(0)
        if re.fullmatch(r"-[a-zA-Z]", first) and left and left[0] not in ("&&", "||", ")"):
            text = self.words.text(left.pop(0), self.line)
            return None if self._lost(text) else self._unary(first, text)
        text = self.words.text(first, self.line)
        if not left or left[0] in ("&&", "||", ")"):
            return None if self._lost(text) else bool(text)
        mark = left.pop(0)
        return self._matched(text, mark, left.pop(0)) if left else None

    def _matched(self, text: str, mark: str, word: str) -> bool | None:
        right = self.words.text(word, self.line)
        if self._lost(text, right):
            return None
        if mark == "=~":
            return right in text if _LITERAL.fullmatch(right) else None
        if mark not in ("=", "==", "!="):
            return self._compared(text, mark, right, True)
        pattern = self.words.pattern(word, self.line)
        if pattern is None or MARK.search(pattern[0]):
            return None
        found = fnmatchcase(text, pattern[0])
        return found == (mark != "!=")


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _combined(decided: bool, one: bool | None, other: bool | None) -> bool | None:
    """What two tests say together; ``decided``: a value of one that decides."""
    if decided in (one, other):
        return decided
    return None if None in (one, other) else not decided
