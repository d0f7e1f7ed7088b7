"""Exceptions of NEST: one family, so that a caller can catch all of them or one cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NestError(Exception):
    """Base of all exceptions of NEST."""


class InputError(NestError, ValueError):
    """An input is not usable; the text says where, the given value and the allowed ones.

    Parameters
    ----------
    message : the whole text, one line per problem.
    problems : the same, one entry per problem.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems or (message,)

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
