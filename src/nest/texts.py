"""Who writes a result for people: results know no report, the package's face joins the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

REPORTS: dict[str, Callable[..., str]] = {}
"""By the name of a class: its result, columns, colour and whether lines need not be ASCII, to text.
The texts are those of the command that makes such a result."""


def report(result: Any, width: int, colour: bool, unicode: bool, **options: bool) -> str:
    """The report of a result as text; options of its kind, such as a plan's `details`."""
    return REPORTS[type(result).__name__](
        result, width=width, colour=colour, unicode=unicode, **options)


PAGES: dict[str, Callable[[Any, bool], str | None]] = {}
"""By the name of a class: its result, and whether it is shown within a notebook, to HTML; None: it
is too large to be shown without being asked for."""


def page(result: Any, framed: bool = False) -> str | None:
    """The report of a result as HTML; None: there is none."""
    known = PAGES.get(type(result).__name__)
    return None if known is None else known(result, framed)


class HtmlReport(NamedTuple):
    """A report as HTML, which a notebook shows."""

    html: str
    """One file, which sends no request."""
    frame: str
    """The same as an element of a page."""

    def _repr_html_(self) -> str:
        return self.frame

    def __repr__(self) -> str:
        return f"<HtmlReport of {len(self.html):,} characters: .html is the file>"


PAIRS: dict[str, Callable[[Any, Any], HtmlReport]] = {}
"""By the name of a class: two results of it side by side."""


def against(one: Any, other: Any) -> HtmlReport:
    """Two results side by side."""
    return PAIRS[type(one).__name__](one, other)


JOBS: dict[str, Callable[[Any], Any]] = {}
"""By the name of a class: its result to the job that it is of, as :func:`nest.read` returns it."""
