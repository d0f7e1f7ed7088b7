"""Fold equal problems of many stages, and name their source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from nest.errors import InputError

_STAGE = re.compile(r"stages\.(\d+): (.*)", re.DOTALL)


@contextmanager
def told(where: str) -> Iterator[None]:
    """Raise an InputError of the body again, with equal problems folded and ``where`` in front."""
    try:
        yield
    except InputError as error:
        lines = tuple(line if line.startswith(f"{where}: ") else f"{where}: {line}"
                      for line in folded(error.problems))
        raise InputError("\n".join(lines), lines) from error


def folded(problems: Iterable[str]) -> list[str]:
    """One line for equal problems of several stages."""
    stages: dict[str, list[int]] = {}
    for problem in problems:
        match = _STAGE.fullmatch(problem)
        text = match[2] if match else problem
        stages.setdefault(text, []).extend([int(match[1])] if match else [])
    return [_line(text, numbers) for text, numbers in stages.items()]


def _line(text: str, numbers: list[int]) -> str:
    if not numbers:
        return text
    more = len(numbers) - 1
    return f"stages.{numbers[0]}: {text}" + (f" (and {more} more stages)" if more else "")
