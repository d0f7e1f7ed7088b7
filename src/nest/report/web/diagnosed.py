"""A diagnosis of a run, as the document of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nest.measured.diagnosis.result import (
    TITLES,
    Cause,
    Diagnosis,
    MemoryCause,
    MemoryDiagnosis,
    PartSeconds,
)
from nest.report.diagnosis_text import LEAST, out_of_memory_text, share_text, within_text
from nest.report.plan_text import ROUNDING
from nest.units import format_bytes, format_seconds

FIRST = 3
"""Advice that stands above the figure."""


def diagnosis_document(found: Diagnosis, where: str) -> dict[str, Any]:
    """The document of a diagnosis.

    Parameters
    ----------
    found : of :func:`nest.measured.diagnosis.diagnose`.
    where : the run, in words.
    """
    main = next((one for one in found.causes if one.seconds > 0.0), None)
    slower = found.measured_s is not None and found.measured_s > found.priced_s
    return {
        "kind": "diagnosis", "title": f"Why {where} takes as long as it does", "setting": "",
        "headline": found.headline, "within": within_text(found), "figures": _figures(found),
        "first": list(main.advice[:FIRST]) if main is not None and slower else [],
        "stairs": _stairs(found),
        "causes": [_cause(one, share_text(one.seconds, found)) for one in found.causes],
        "beside": [_cause(one, format_seconds(one.seconds)) for one in found.beside],
        "parts": [[TITLES.get(one.name, one.name), format_seconds(one.priced),
                   format_seconds(one.measured), _difference(one)] for one in found.parts],
        "memory": [_memory(one) for one in found.memory],
        "out_of_memory": [{"text": out_of_memory_text(one), "advice": list(one.advice)}
                          for one in found.out_of_memory],
        "sources": [f"{one.file}: {one.kind}" + ("" if one.rank is None else f" of rank {one.rank}")
                    + ("" if one.steps is None else f", {one.steps} steps")
                    for one in found.sources],
        "notes": list(found.notes)}


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0.0 else '-'}{format_seconds(abs(seconds), 3)}"


def _difference(one: PartSeconds) -> str:
    more = one.measured - one.priced
    return "as priced" if abs(more) < ROUNDING * max(one.priced, one.measured) else _signed(more)


def _cause(one: Cause | MemoryCause, text: str) -> dict[str, Any]:
    return {"name": TITLES[one.name], "text": text, "evidence": list(one.evidence),
            "advice": list(one.advice)}


def _figures(found: Diagnosis) -> list[dict[str, str]]:
    span = "" if found.low_s is None or found.high_s is None else (
        f"{format_seconds(found.low_s)} to {format_seconds(found.high_s)} in 9 of 10 cases")
    rows = [("Priced", format_seconds(found.priced_s), span, "plain")]
    if found.measured_s is not None:
        more = found.measured_s / found.priced_s - 1.0
        rows.insert(0, ("Measured", format_seconds(found.measured_s),
                        f"{100 * more:+.1f} % against the price", "warn" if more > 0.0 else "good"))
        loss = sum(one.seconds for one in found.causes if one.name == "unexplained")
        rows.append(("Unexplained", _signed(loss), "that no evidence tells apart",
                     "warn" if abs(loss) > LEAST * found.priced_s else "good"))
    return [dict(zip(("name", "value", "note", "tone"), row, strict=True)) for row in rows]


def _stairs(found: Diagnosis) -> list[dict[str, Any]]:
    """Bars from the priced step to the measured one; small causes are one bar."""
    if found.measured_s is None:
        return []
    least = LEAST * found.priced_s
    steps = [(TITLES[one.name], one.seconds, "\n".join(one.evidence[:2]))
             for one in found.causes if abs(one.seconds) >= least]
    small = [one for one in found.causes if abs(one.seconds) < least]
    if small:
        steps.append((f"{len(small)} smaller", sum(one.seconds for one in small),
                      ", ".join(TITLES[one.name] for one in small)))
    return _bars(("priced", found.priced_s, format_seconds(found.priced_s)),
                 [(name, value, _signed(value), tip) for name, value, tip in steps],
                 ("measured", found.measured_s, format_seconds(found.measured_s)))


def _memory(found: MemoryDiagnosis) -> dict[str, Any]:
    who = "a rank" if found.rank is None else f"rank {found.rank}"
    steps = [(TITLES[one.name], one.bytes, _bytes(one.bytes), "\n".join(one.evidence[:2]))
             for one in found.causes]
    return {
        "name": f"Memory of {who}, stage {found.stage}; at most {format_bytes(found.limit_bytes)}",
        "stairs": _bars(("priced", found.priced_bytes, format_bytes(found.priced_bytes)), steps,
                        (found.counted, found.measured_bytes, format_bytes(found.measured_bytes))),
        "causes": [_cause(one, _bytes(one.bytes)) for one in found.causes
                   if one.evidence or one.advice]}


def _bytes(value: float) -> str:
    return f"{'+' if value >= 0.0 else '-'}{format_bytes(abs(value))}"


def _bars(
    first: tuple[str, float, str], steps: Sequence[tuple[str, float, str, str]],
    last: tuple[str, float, str],
) -> list[dict[str, Any]]:
    """Bars in shares of the longest; each step begins where the one before ended."""
    ends, at = [first[1], last[1]], first[1]
    for _, value, _, _ in steps:
        at += value
        ends.append(at)
    most = max(ends)
    bars = [_stair(first[0], 0.0, first[1] / most, first[2], "whole", f"{first[0]}: {first[2]}")]
    at = first[1]
    for name, value, text, tip in steps:
        bars.append(_stair(name, at / most, (at + value) / most, text,
                           "more" if value >= 0.0 else "less", f"{name}: {text}\n{tip}".strip()))
        at += value
    return [*bars, _stair(last[0], 0.0, last[1] / most, last[2], "end", f"{last[0]}: {last[2]}")]


def _stair(*row: Any) -> dict[str, Any]:
    return dict(zip(("name", "from", "to", "text", "kind", "tip"), row, strict=True))
