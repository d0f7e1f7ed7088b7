"""What the stacks of the catalog can run: as rows for programs, and as text for people."""

from __future__ import annotations

from typing import Any

from nest.inputs.capabilities import FIGURES, Rule
from nest.report.page import Page
from nest.stacks.overview import tables

INDENT = 1
Row = dict[str, Any]


def capabilities_rows() -> list[Row]:
    """Each table once, with the stacks that it is for."""
    return [{"stacks": stacks, **known.as_dict()} for known, stacks in tables()]


def capabilities_text(width: int = 80, colour: bool = False, unicode: bool = True) -> str:
    """The same: for each rule what it wants, when, why, and its source; the meaning of figures."""
    page = Page(width, colour, unicode)
    for known, stacks in tables():
        page.paragraph(f"{known.title} ({'stack' if len(stacks) == 1 else 'stacks'} "
                       f"{', '.join(stacks)})", "bold")
        _rules(page, "can run what keeps these rules:", known.rules)
        if known.needs:
            _rules(page, "and otherwise needs something to run:", known.needs)
        page.blank()
    page.paragraph("figures", "bold")
    for name, figure in FIGURES.items():
        page.fact("-", f"{name}: {figure.meaning}", INDENT)
    page.blank()
    page.paragraph("2..: 2 or more. Rules without `where` always hold.", "dim")
    return page.text()


def _rules(page: Page, title: str, rules: dict[str, Rule]) -> None:
    page.paragraph(title)
    for rule in rules.values():
        fields = ", ".join(rule.fields)
        where = f", where {rule.conditions}" if rule.conditions else ""
        page.fact("-", f"{fields}: {rule.wants}{where}", INDENT)
        page.fact("", rule.sentence, INDENT)
        page.fact("", rule.source, INDENT)
