"""The text of an improvement: what the script takes, the faster plan, and the difference."""

from __future__ import annotations

from collections.abc import Sequence

from nest.evaluation.plans import Plan
from nest.frameworks.improvement import Change, Improvement
from nest.report.page import Page
from nest.report.plan_text import proved, sure
from nest.units import format_bytes, format_seconds

LONGEST, SHORTEST = 46, 12
"""Characters of a value in a table: at most, and at least where lines would get too long."""


def improvement_text(
    found: Improvement, width: int = 80, colour: bool = False, unicode: bool = True
) -> str:
    """Give the report of an improvement.

    Parameters
    ----------
    found : what is shown.
    width, colour, unicode : as of :class:`nest.report.page.Page`.
    """
    page = Page(width, colour, unicode)
    known = found.plan or found.before
    job = "" if known is None else (
        f": {known.inputs.cluster.size:,} devices of {known.inputs.cluster.name}, "
        f"{known.inputs.job.global_batch:,} sequences of {known.inputs.job.seq_len:,} tokens, "
        f"{known.inputs.job.precision}, {known.inputs.job.stack.name}")
    script = found.target == "megatron"
    line = "" if found.line == 1 and not script else f", line {found.line}"
    page.fact("Script" if script else "File", f"{found.script}{line}{job}")
    page.fact("Now", "not priced" if found.before is None else speed(found.before))
    for problem in found.problems:
        page.fact("", f"cannot run: {problem}")
    if found.plan is None:
        page.fact("Better", "none found that the launcher can start" if found.problems
                  else "none: no plan that the stack can run is faster")
    else:
        more = "" if found.faster is None else f"; {100 * found.faster:+.1f} %"
        page.fact("Better", speed(found.plan) + more)
        if found.plan.confidence is not None:
            page.fact("Expected", sure(found.plan, found.plan.confidence))
        if found.plan.doubts:
            page.fact("Evidence", "; ".join(found.plan.doubts))
        page.fact("Optimal", proved(found.plan))
        for need in found.plan.launch_needs:
            page.fact("Launch", need.sentence)
    for note in found.notes:
        page.fact("Note", note)
    _table(page, "Plan", "", found.options)
    if script:
        _table(page, "Arguments of the script", "argument", found.arguments)
    else:
        _table(page, "Settings", "setting", found.arguments)
    if found.refused:
        page.blank()
        for reason in found.refused:
            page.fact("No script" if script else "No file", reason)
    return page.text()


def speed(plan: Plan) -> str:
    """Seconds, tokens and memory of a plan."""
    most = max(plan.stages, key=lambda one: one.memory_bytes.total / one.memory_limit_bytes)
    return (f"{format_seconds(plan.step_time_s)} per step, {plan.tokens_per_s:,.0f} tokens/s, "
            f"{format_bytes(most.memory_bytes.total)} of {format_bytes(most.memory_limit_bytes)} "
            "on a device")


def _table(page: Page, title: str, head: str, lines: Sequence[Change]) -> None:
    if not lines:
        return
    page.blank()
    names = max(len(line.name) for line in lines)
    before = max(len("now"), *(len(_short(line.before, LONGEST)) for line in lines))
    room = max(SHORTEST, page.width - names - before - 4)
    rows = [(line.name, _short(line.before, LONGEST), _short(line.after, min(room, LONGEST)))
            for line in lines]
    page.table(title, (head, "now", "better"), rows, (0, 1, 2))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 3] + "..."
