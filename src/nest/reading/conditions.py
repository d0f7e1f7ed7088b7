"""Comparisons of a script: ``[ "$A" = b ]``."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}


def compared(words: Sequence[str], names: Container[str]) -> bool | None:
    """Whether a comparison holds; None: it is not understood.

    Parameters
    ----------
    words : between its brackets; what is not set is empty.
    names : variables that are set.
    """
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in ("-z", "-n", "-v"):
        return bool(words[1]) != (words[0] == "-z") if words[0] != "-v" else words[1] in names
    if len(words) == 3:
        left, mark, right = words
        if mark in ("=", "==", "!="):
            if re.search(r"[*?\[]", right):
                return None
            return (left == right) == (mark != "!=")
        if mark in _NUMBERS and all(re.fullmatch(r"-?\d{1,18}", one) for one in (left, right)):
            a, b = int(left), int(right)
            return {"==": a == b, "!=": a != b, ">": a > b, ">=": a >= b, "<": a < b,
                    "<=": a <= b}[_NUMBERS[mark]]
    return None
