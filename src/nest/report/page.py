"""A page of text: paragraphs and tables, laid out by Rich, with or without colour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TypedDict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 100_000  # columns of the console, so that Rich cuts no table


class PageOptions(TypedDict, total=False):
    """What each report takes of :class:`Page`."""

    width: int
    colour: bool
    unicode: bool


class Page:
    """Collects text for a terminal of a given width.

    Parameters
    ----------
    width : columns, at least 80; paragraphs wrap there, tables are never cut.
    colour : write escape codes for colour and weight.
    unicode : lines and bars from Unicode; else from ASCII.
    """

    def __init__(self, width: int = 80, colour: bool = False, unicode: bool = True) -> None:
        self.width, self.unicode = width, unicode
        self._stream = io.StringIO()
        self._console = Console(
            force_jupyter=False,  # a report is a text, and shows nothing by itself
            file=self._stream, width=UNLIMITED, force_terminal=colour, legacy_windows=False,
            color_system="standard" if colour else None, markup=False, highlight=False, emoji=False,
        )

    def paragraph(self, text: str, style: str = "") -> None:
        """Add text, wrapped between words."""
        self._console.print(Text(text, style=style), width=self.width)

    def fact(self, name: str, text: str, indent: int = 12) -> None:
        """Add a name and its text, wrapped beside the name."""
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=indent, no_wrap=True, style="bold")
        grid.add_column(width=self.width - indent - 2, overflow="fold")
        grid.add_row(Text(name), Text(text))
        self._console.print(grid)

    def blank(self) -> None:
        """Add an empty line."""
        self._console.print()

    def table(
        self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]
    ) -> None:
        """Add a table; columns are right-aligned except those numbered in ``left``.

        Columns stand two spaces apart, one where the table would be too wide.
        """
        if title:
            self.paragraph(title, "bold")
        table = self._built(heads, rows, left, 1)
        if self._console.measure(table).maximum > self.width:
            table = self._built(heads, rows, left, 0)
        self._console.print(table)

    def _built(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int], gap: int
    ) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False,
                      header_style="cyan")
        for number, head in enumerate(heads):
            side = "left" if number in left else "right"
            table.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        return table

    def text(self) -> str:
        """The whole text, without spaces at the ends of lines."""
        lines = [line.rstrip() for line in self._stream.getvalue().splitlines()]
        found = "\n".join(lines).strip("\n") + "\n"
        return found if self.unicode else found.replace("─", "-").replace("█", "#")
