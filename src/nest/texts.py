"""Who writes a result for people: results know no report, the package's face joins the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPORTS: dict[str, Callable[..., str]] = {}
"""By the name of a class: its result, columns, colour and whether lines need not be ASCII, to text.
The texts are those of the command that makes such a result."""


def report(result: Any, width: int, colour: bool, unicode: bool) -> str:
    """The report of a result as text."""
    return REPORTS[type(result).__name__](result, width=width, colour=colour, unicode=unicode)


JOBS: dict[str, Callable[[Any], Any]] = {}
"""By the name of a class: its result to the job that it is of, as :func:`nest.read` returns it."""
