"""The text of a diagnosis: the largest cause and what to try, then the waterfall, then memory."""

from __future__ import annotations

from collections.abc import Sequence

from nest.measured.diagnosis.result import TITLES, Cause, Diagnosis, MemoryDiagnosis, OutOfMemory
from nest.report.page import Page
from nest.units import format_bytes, format_seconds

BAR = 20
LEAST = 0.005
"""Share of the step below which causes are added up in one row."""
DETAILED = 4
"""Causes whose evidence is shown."""


def diagnosis_text(
    found: Diagnosis, width: int = 80, colour: bool = False, unicode: bool = True
) -> str:
    """Give a diagnosis as text; arguments as of :class:`nest.report.page.Page`."""
    page = Page(width, colour, unicode)
    page.paragraph(f"{found.headline}.", "bold")
    main = next((one for one in found.causes if one.seconds > 0.0), None)
    if main is not None and found.measured_s is not None and found.measured_s > found.priced_s:
        page.paragraph(f"Largest cause: {TITLES[main.name]}, {share_text(main.seconds, found)}.")
        for one in main.advice[:3]:
            page.fact("Try", one, 4)
    if within := within_text(found):
        page.paragraph(within)
    for each in found.out_of_memory:
        page.paragraph(out_of_memory_text(each), "bold red")
    for text in found.out_of_memory[0].advice[:3] if found.out_of_memory else ():
        page.fact("Try", text, 4)
    if found.measured_s is not None:
        page.blank()
        _waterfall(page, found)
        _evidence(page, found)
    if found.beside:
        page.blank()
        rows = [(TITLES[one.name], format_seconds(one.seconds), one.evidence[0][:48])
                for one in found.beside]
        page.table("Beside the steps, in the whole run", ("cause", "time", ""), rows, (0, 2))
    for memory in found.memory:
        page.blank()
        _memory(page, memory)
    if found.notes:
        page.blank()
        for note in found.notes:
            page.fact("Note", note, 5)
    return page.text()


def share_text(seconds: float, found: Diagnosis) -> str:
    """Seconds of a step, and their share of the priced one."""
    return f"{format_seconds(seconds)} a step ({100 * seconds / found.priced_s:+.1f} %)"


def within_text(found: Diagnosis) -> str:
    """That the price is no surer than the difference; empty: it is, or nobody knows."""
    if found.low_s is None or found.high_s is None or found.measured_s is None:
        return ""
    span = f"{format_seconds(found.low_s)} to {format_seconds(found.high_s)}"
    if not found.low_s <= found.measured_s <= found.high_s:
        return ""
    return f"The price itself is no surer: 9 of 10 such runs take {span}."


def _waterfall(page: Page, found: Diagnosis) -> None:
    assert found.measured_s is not None
    longest = max(found.priced_s, found.measured_s)
    rows = [("priced", format_seconds(found.priced_s), "", _bar(0.0, found.priced_s, longest))]
    at, small = found.priced_s, []
    for one in found.causes:
        if abs(one.seconds) < LEAST * found.priced_s:
            small.append(one.seconds)
            continue
        rows.append((TITLES[one.name], _signed(one.seconds),
                     f"{100 * one.seconds / found.priced_s:+.1f} %",
                     _bar(min(at, at + one.seconds), max(at, at + one.seconds), longest)))
        at += one.seconds
    if small:
        rows.append((f"{len(small)} smaller", _signed(sum(small)),
                     f"{100 * sum(small) / found.priced_s:+.1f} %", ""))
    rows.append(("measured", format_seconds(found.measured_s),
                 f"{100 * (found.measured_s / found.priced_s - 1.0):+.1f} %",
                 _bar(0.0, found.measured_s, longest)))
    page.table("From the priced step to the measured one", ("cause", "time", "of priced", ""),
               rows, (0, 3))


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0.0 else '-'}{format_seconds(abs(seconds), 3)}"


def _bar(low: float, high: float, longest: float) -> str:
    begin = round(BAR * max(0.0, low) / longest)
    return " " * begin + "█" * max(1, round(BAR * high / longest) - begin)


def _evidence(page: Page, found: Diagnosis) -> None:
    shown = [one for one in found.causes if abs(one.seconds) >= LEAST * found.priced_s]
    for n, one in enumerate(shown[:DETAILED]):
        page.blank()
        page.paragraph(f"{TITLES[one.name]}, {share_text(one.seconds, found)}", "bold")
        for text in one.evidence:
            page.fact("", text, 1)
        if n and one.seconds > 0.0:
            _tries(page, one)


def _tries(page: Page, one: Cause, most: int = 2) -> None:
    for text in one.advice[:most]:
        page.fact("", f"try {text}", 1)


def out_of_memory_text(one: OutOfMemory) -> str:
    """A rank that ran out of memory, in a sentence."""
    who = "A rank" if one.rank is None else f"Rank {one.rank}"
    text = f"{who} ran out of memory"
    if one.asked_bytes:
        text += f" as it asked for {format_bytes(one.asked_bytes)}"
    if one.priced_bytes is not None and one.limit_bytes is not None:
        text += (f"; its stage {one.stage} is priced {format_bytes(one.priced_bytes)} of the "
                 f"{format_bytes(one.limit_bytes)} that it may hold")
    return f"{text}."


def _memory(page: Page, found: MemoryDiagnosis) -> None:
    who = "a rank" if found.rank is None else f"rank {found.rank}"
    rows: list[Sequence[str]] = [("priced", format_bytes(found.priced_bytes), "")]
    for one in found.causes:
        sign = "+" if one.bytes >= 0.0 else "-"
        rows.append((TITLES[one.name], sign + format_bytes(abs(one.bytes)),
                     f"{100 * one.bytes / found.priced_bytes:+.1f} %"))
    rows.append((found.counted, format_bytes(found.measured_bytes),
                 f"{100 * (found.measured_bytes / found.priced_bytes - 1.0):+.1f} %"))
    page.table(f"Memory of {who}, stage {found.stage}; at most {format_bytes(found.limit_bytes)}",
               ("", "bytes", "of priced"), rows, (0,))
    for cause in found.causes[:2]:
        if cause.bytes > 0.0:
            for text in cause.evidence:
                page.fact("", f"{TITLES[cause.name]}: {text}", 1)
            for text in cause.advice[:2]:
                page.fact("", f"try {text}", 1)
