"""A comparison of planners as a text, and as a picture of bars."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Unpack

from nest.report.figure import BLUE, GREY, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from collections.abc import Iterable, Sequence

from nest.evaluation.plans import Plan, Stage
from nest.planners.compare import ComparedPlan, peak_memory
from nest.report.page import Page, PageOptions
from nest.report.plan_text import percent
from nest.report.stages import GIB
from nest.units import format_seconds


def comparison_text(
    entries: Sequence[ComparedPlan], title: str, **options: Unpack[PageOptions],
) -> str:
    """Give the report of a comparison.

    Parameters
    ----------
    entries : of :func:`nest.planners.compare.compare`.
    title : what is trained where, a line.
    options : as of :class:`nest.report.page.Page`.

    Returns
    -------
    str
        Speed, memory and search time of each planner, in the order of :func:`ranked`; its plan in a
        line; what does not fit.
    """
    page = Page(**options)
    page.paragraph(title, "bold")
    page.blank()
    best = fastest(entries)
    limit = next((e.plan.stages[0].memory_limit_bytes for e in entries if e.plan), None)
    room = f"; GiB on the fullest device, at most {limit / GIB:.1f}" if limit else ""
    page.table(f"Planners (runnable plans first; search: seconds to choose{room})",
               heads(entries), [row(entry, best) for entry in ranked(entries)], (0,))
    if best is not None:
        page.paragraph(spaces_text(entries, best), "dim")
    page.blank()
    page.paragraph("Plans", "bold")
    for entry in ranked(entries):
        if entry.plan is not None:
            page.fact(entry.planner, in_a_line(entry.plan))
    reasons = [entry for entry in entries if entry.reason is not None]
    if reasons:
        page.blank()
        page.paragraph("Without a plan that fits", "bold")
        for entry in reasons:
            page.fact(entry.planner, entry.reason or "")
    elsewhere = [e for e in entries if e.plan is not None and best is not None
                 and e.plan.inputs.cluster != best.inputs.cluster]
    for entry in elsewhere:
        assert entry.plan is not None
        page.blank()
        page.paragraph(f"{entry.planner} is priced on {entry.plan.inputs.cluster.name}.", "dim")
    return page.text()


def spaces_text(entries: Sequence[ComparedPlan], best: Plan) -> str:
    """What `runnable` means, and what the planners searched."""
    stack = best.inputs.job.stack
    name = stack.name if stack.capabilities is None else stack.capabilities.title
    found = f"runnable: whether {name} can run the plan"
    for entry in entries:
        if entry.plan is not None and entry.plan.search is not None:
            within = entry.plan.search.within_stack
            found += f"; {entry.planner} searched " + (
                "what it can run" if within else "every legal plan")
    return f"{found}; {'the others' if '; ' in found else 'all'} searched what their methods can."


def rate_name(entries: Iterable[ComparedPlan]) -> str:
    """The unit of the rate; a profile has no tokens."""
    tokens = all(entry.plan.inputs.model is not None for entry in entries if entry.plan)
    return "tokens/s" if tokens else "samples/s"


def rate(plan: Plan) -> float:
    """Tokens a second, or samples of a profile."""
    return plan.tokens_per_s if plan.inputs.model is not None else plan.samples_per_s


def fastest(entries: Iterable[ComparedPlan]) -> Plan | None:
    """The fastest plan that fits and that the stack can run; else the fastest that fits."""
    best = next(iter(ranked(entries)), None)
    return None if best is None or best.plan is None or not best.plan.feasible else best.plan


def ranked(entries: Iterable[ComparedPlan]) -> list[ComparedPlan]:
    """Fastest first: plans that can run, plans that the stack cannot run, plans that do not fit."""
    def place(entry: ComparedPlan) -> tuple[int, float]:
        plan = entry.plan
        if plan is None:
            return 3, 0.0
        return (2 if not plan.feasible else 1 if plan.runnable is False else 0), plan.step_time_s

    return sorted(entries, key=place)


def heads(entries: Sequence[ComparedPlan]) -> tuple[str, ...]:
    """Heads of the columns of :func:`row`."""
    return ("planner", rate_name(entries), "step", "slower", "GiB", "search", "fits", "runnable")


def row(entry: ComparedPlan, best: Plan | None) -> tuple[str, ...]:
    """An entry as cells of a table."""
    search = format_seconds(entry.search_seconds, 2)
    plan = entry.plan
    if plan is None:
        return entry.planner, "-", "-", "-", "-", search, "no plan", "-"
    slower = "-"
    if best is not None and plan.feasible:
        equal = plan.step_time_s == best.step_time_s and plan.runnable == best.runnable
        slower = "best" if equal else percent(plan.step_time_s / best.step_time_s - 1.0, 1)
    return (entry.planner, short_number(rate(plan)), format_seconds(plan.step_time_s), slower,
            f"{peak_memory(plan) / GIB:.1f}", search, "yes" if plan.feasible else "no",
            {True: "yes", False: "no", None: "?"}[plan.runnable])


def short_number(value: float) -> str:
    """Three digits, as `1.21 M`, `952 k` or `7.90`."""
    factor, prefix = thousands(value)
    scaled = value / factor
    decimals = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{decimals}f}{prefix}"


def thousands(value: float) -> tuple[float, str]:
    """The factor and the prefix that a number is shown with."""
    return next((pair for pair in ((1e9, " G"), (1e6, " M"), (1e3, " k"))
                 if value >= 0.9995 * pair[0]), (1.0, ""))


def in_a_line(plan: Plan) -> str:
    """Degrees above 1, the least and the most of the stages where they differ."""
    p, stages = plan.parallelism, plan.stages
    words = [_degree("tp", [s.tp for s in stages]), _degree("cp", [s.cp for s in stages]),
             _degree("ep", [s.ep for s in stages]),
             _degree("etp", [s.etp for s in stages] if any(s.ep > 1 for s in stages) else [1]),
             _degree("pp", [p.pp]), _degree("vpp", [p.vpp]),
             _degree("dp", [s.dp_in * p.outer_dp for s in stages]),
             _span("mbs", [p.micro_batch // s.dp_in for s in stages]),
             _span("zero", [s.zero for s in stages])]
    words += ["HSDP"] if any(s.shard == "dp_in" for s in stages) else []
    words += [recomputed(stages)] if any(s.recompute != "none" for s in stages) else []
    words += ["gpipe"] if p.schedule == "gpipe" else []
    return " ".join(filter(None, words))


def recomputed(stages: Sequence[Stage]) -> str:
    """The recompute policy, if all stages have the same."""
    ways = {(s.recompute, s.recompute_layers) for s in stages}
    name = stages[0].recompute if len(ways) == 1 and not stages[0].recompute_layers else "some"
    return f"{name} recompute"


def _degree(name: str, values: Sequence[int]) -> str:
    return _span(name, values) if max(values) > 1 else ""


def _span(name: str, values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{name} {low}" if low == high else f"{name} {low}..{high}"


# ---------------------------------------------------------------- the picture

WIDTH, ABOVE, BAR = 8.0, 1.2, 0.4
"""Inches: of the picture; of the margins above and below the bars; of a bar and the gap."""


def comparison_figure(entries: Sequence[ComparedPlan], title: str) -> Figure:
    """Draw a bar for every planner: throughput to the right, in the order given.

    Parameters
    ----------
    entries : of :func:`nest.planners.compare.compare`.
    title : one line above the picture.

    Returns
    -------
    Figure
        Plans that do not fit are grey, planners without a plan have no bar.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter

    with look():
        figure = Figure((WIDTH, ABOVE + BAR * max(len(entries), 1)), layout="constrained")
        axes = figure.subplots()
        rates = [0.0 if entry.plan is None else rate(entry.plan) for entry in entries]
        colours = [BLUE if entry.feasible else GREY for entry in entries]
        bars = axes.barh(range(len(entries)), rates, 0.64, color=colours)
        best = fastest(entries)
        for mark, entry in zip(axes.bar_label(bars, [bar_text(e) for e in entries], padding=5),
                               entries, strict=True):
            if entry.plan is not None and entry.plan is best:
                mark.set_fontweight("bold")
        axes.set_yticks(range(len(entries)), [entry.planner for entry in entries])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0.0, 1.15 * max(rates, default=0.0) or 1.0)  # room for the last label
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        axes.grid(axis="x")
        axes.set_xlabel(rate_name(entries))
        axes.set_title(textwrap.fill(title, 90))
        if any(entry.plan is not None and not entry.feasible for entry in entries):
            figure.legend(handles=[Patch(color=BLUE, label="fits"),
                                   Patch(color=GREY, label="out of memory")],
                          loc="outside lower right", ncols=2)
    return figure


def bar_text(entry: ComparedPlan) -> str:
    """The label of a bar."""
    if entry.plan is None:
        return "no plan"
    return short_number(rate(entry.plan)) + ("" if entry.feasible else ", does not fit")


def _tick(value: float, position: object = None) -> str:
    factor, prefix = thousands(value)
    return f"{value / factor:g}{prefix}"
