"""Exceptions of NEST: one family, so that a caller can catch all of them or one cause."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LONGEST_LINE = 2000  # characters; chosen: above any list of allowed names
LONGEST_MESSAGE = 8000  # characters; chosen: two pages of a terminal


class NestError(Exception):
    """Base of all exceptions of NEST.

    Lines above ``LONGEST_LINE`` are cut in their middle; lines that make a message longer than
    ``LONGEST_MESSAGE`` are counted.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("\n".join(_bounded(message.split("\n"))))


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, each cut, and a count of the others."""
    half, left = LONGEST_LINE // 2, LONGEST_MESSAGE
    found: list[str] = []
    for line in lines:
        cut = line if len(line) <= LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"
        left -= len(cut) + 1
        if left < 0:
            return (*found, f"and {len(lines) - len(found)} more lines")
        found.append(cut)
    return tuple(found)


class InputError(NestError, ValueError):
    """An input is not usable; the text says where, the given value and the allowed ones.

    Parameters
    ----------
    message : the whole text, one line per problem.
    problems : the same, one entry per problem.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = _bounded(problems or (message,))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.problems))


class NoPlanError(NestError):
    """The search ended without a plan."""


class InfeasibleError(NoPlanError):
    """No plan in the declared space fits the devices.

    Parameters
    ----------
    message : the reason, for a person.
    nearest : the nearest miss, for a program (stage, category, bytes short, what would help).
    """

    def __init__(self, message: str, nearest: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.nearest: dict[str, Any] = dict(nearest or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.nearest))


class NoFasterError(NoPlanError):
    """No plan is faster than the caller wants.

    Parameters
    ----------
    lower_bound_s : seconds of a step that no plan takes less than.
    """

    def __init__(self, lower_bound_s: float) -> None:
        super().__init__(f"no plan takes less than {lower_bound_s!r} s per step")
        self.lower_bound_s = lower_bound_s

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.lower_bound_s,))


class LimitError(NoPlanError):
    """A declared limit was reached: time, memory, search size, or the types of network planned."""


class UnsupportedError(NestError):
    """The software that a plan is exported to cannot express it.

    Parameters
    ----------
    message : the whole text, one line per problem.
    problems : what it cannot express, a sentence each.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = _bounded(problems or (message,))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.problems))


class OutputError(NestError):
    """A result cannot be written: a full disk, a file that must not be changed.

    Parameters
    ----------
    message : the whole text, one line per file.
    printed : whether the result is on stdout all the same.
    """

    def __init__(self, message: str, printed: bool = False) -> None:
        super().__init__(message)
        self.printed = printed

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.printed))


class KernelError(NestError):
    """A kernel returned an unknown status: a defect of NEST, not of the input."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as a part of a message: `did you mean X? `; or nothing."""
    close = difflib.get_close_matches(given.strip().casefold()[:100], list(known), 1)
    return f"did you mean {close[0]}? " if close else ""
