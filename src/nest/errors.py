"""Exceptions of NEST: one family, so that a caller can catch all of them or one cause."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

LONGEST_LINE = 2000  # characters of a message; chosen: above any list of allowed names


class NestError(Exception):
    """Base of all exceptions of NEST; lines above ``LONGEST_LINE`` are cut in their middle."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_cut(message))


def _cut(message: str) -> str:
    half = LONGEST_LINE // 2
    return message if len(message) <= LONGEST_LINE else "\n".join(
        line if len(line) <= LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"
        for line in message.split("\n"))


class InputError(NestError, ValueError):
    """An input is not usable; the text says where, the given value and the allowed ones.

    Parameters
    ----------
    message : the whole text, one line per problem.
    problems : the same, one entry per problem.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(map(_cut, problems or (message,)))

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


class LimitError(NoPlanError):
    """A declared limit was reached: time, memory, search size, or the types of network planned."""


class UnsupportedError(NestError):
    """The software that a plan is exported to cannot express it.

    Parameters
    ----------
    message : the whole text, one line per problem.
    problems : what it cannot express, a sentence each.
    """

    def __init__(self, message: str, problems: tuple[str, ...]) -> None:
        super().__init__(message)
        self.problems = tuple(map(_cut, problems))

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
