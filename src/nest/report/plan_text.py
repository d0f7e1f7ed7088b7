"""A plan as a person reads it: what to act on first, then why."""

from __future__ import annotations

from nest.plans import Plan
from nest.report.page import Page
from nest.report.stages import Table, memory_table, stage_table, time_table
from nest.units import format_bytes, format_seconds

BAR = 24
MOST_PROBLEMS = 8
ROUNDING = 1e-9
"""Share of a step below which a part of it is what rounding left."""
_WORDS = {
    "forward": "forward", "backward": "backward", "recompute": "recompute", "tp": "tensor parallel",
    "cp": "context parallel", "ep": "expert parallel", "zero": "ZeRO",
    "bubble": "pipeline bubble", "finish": "end of step", "step": "step",
}
_SCOPE = ("outer_dp", "dp_in", "tp", "sp", "ep", "etp", "pp", "micro_batch", "mbs", "zero",
          "recompute", "cp", "vpp", "schedule")


def plan_text(plan: Plan, width: int = 80, colour: bool = False, unicode: bool = True) -> str:
    """Give the report of a plan.

    Parameters
    ----------
    plan : as `plan` or `evaluate` gives it.
    width : columns of the terminal, at least 80.
    colour : with escape codes for a terminal.
    unicode : with lines and bars that are not ASCII.

    Returns
    -------
    str
        Lines, each number with its unit.
    """
    page = Page(width, colour, unicode)
    _problems(page, plan)
    page.paragraph(headline(plan), "bold")
    page.blank()
    _choices(page, plan)
    page.blank()
    for table in (stage_table(plan), time_table(plan), memory_table(plan)):
        _table(page, table)
        if table.title.startswith("Stages"):
            page.paragraph(_layers(plan), "dim")
        page.blank()
    _breakdown(page, plan)
    page.blank()
    page.fact("Search", searched(plan))
    return page.text()


def headline(plan: Plan) -> str:
    """Model, cluster, and how fast: the plan in a sentence."""
    inputs = plan.inputs
    subject = inputs.model or inputs.profile
    name = subject.name if subject is not None else "chain"
    speed = [f"{format_seconds(plan.step_time_s)} per step"]
    if inputs.model is not None:
        speed.append(f"{_three(plan.tokens_per_s)}tokens/s")
        speed.append(f"{100 * plan.mfu:.1f} % MFU")
    else:  # a profile says nothing of tokens and FLOP
        speed.append(f"{_three(plan.samples_per_s)}samples/s")
    count = inputs.cluster.size
    devices = f"{count} device" + ("" if count == 1 else "s")
    return f"{name} on {inputs.cluster.name}, {devices}: {', '.join(speed)}"


def searched(plan: Plan) -> str:
    """What the search covered and what it took."""
    s = plan.search
    if s is None:
        return "not searched: exactly this configuration was priced"
    free = [name for name in _SCOPE if s.space.get(name) == "any"]
    fixed = [f"{name} {s.space[name]}" for name in _SCOPE if s.space.get(name, "any") != "any"]
    scope = "; ".join(filter(None, (
        f"every legal {', '.join(free)}" if free else "", ", ".join(fixed))))
    threads = f"{s.threads} thread" + ("" if s.threads == 1 else "s")
    word = "optimal" if plan.optimal else "best found"
    return (f"{word} over: {scope} ({s.solved:,} outer choices solved, {s.pruned:,} pruned, "
            f"{s.cells:,} cells) in {format_seconds(s.seconds, 3)} on {threads}; kernels compiled "
            f"or loaded in {format_seconds(s.compile_seconds, 3)}; peak memory "
            f"{format_bytes(s.peak_bytes, 3)}")


def _three(value: float) -> str:
    """A rate with three digits, ready for its unit: `1.10 M `, `32.4 k `, `7.90 `."""
    for factor, prefix in ((1e9, "G "), (1e6, "M "), (1e3, "k "), (1.0, "")):
        if value >= 0.9995 * factor or factor == 1.0:
            scaled = value / factor
            decimals = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{decimals}f} {prefix}"
    raise AssertionError("the last factor takes every value")


def _problems(page: Page, plan: Plan) -> None:
    if plan.feasible:
        return
    page.paragraph("DOES NOT FIT", "bold red")
    for problem in plan.problems[:MOST_PROBLEMS]:
        page.fact("-", problem, 1)
    more = len(plan.problems) - MOST_PROBLEMS
    if more > 0:
        page.fact("-", f"and {more} more stages; --json lists them all", 1)
    page.blank()


def _choices(page: Page, plan: Plan) -> None:
    p, job = plan.parallelism, plan.inputs.job
    sizes = sorted({s.devices[1] - s.devices[0] for s in plan.stages})
    blocks = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}..{sizes[-1]}"
    what = f"pp {p.pp} x blocks of {blocks} x outer_dp {p.outer_dp}"
    virtual = f", vpp {p.vpp}" if p.vpp > 1 else ""
    page.fact("Parallelism", f"{what}{virtual}, schedule {p.schedule.upper()}; "
              f"{p.devices_used:,} of {plan.inputs.cluster.size:,} devices used")
    page.fact("Batch", f"{p.global_batch:,} sequences of {job.seq_len:,} tokens = outer_dp "
              f"{p.outer_dp} x micro-batch {p.micro_batch} x {p.micro_batches:,} micro-batches")
    page.fact("Training", f"{job.precision}, {job.optimizer}, stack {job.stack.name}, device "
              f"{plan.inputs.cluster.device.name}")
    page.fact("Replicas", _replicas(plan.replicas))
    page.fact("Bound by", plan.bottleneck.replace("%", " %"))
    used: dict[str, dict[str, None]] = {}
    for kind, name in (item for s in plan.stages for item in s.collectives.items()):
        used.setdefault(kind, {})[name] = None
    if used:
        page.fact("Collectives", "; ".join(f"{kind} {' or '.join(used[kind])}" for kind in used))


def _replicas(starts: tuple[int, ...]) -> str:
    if len(starts) == 1:
        return f"one super-pipeline, from device {starts[0]}"
    shown = [str(start) for start in starts]
    if len(shown) > 6:
        shown = [*shown[:4], "...", shown[-1]]
    text = ", ".join(shown).replace("..., ", "... ")
    return f"{len(starts):,} super-pipelines, from devices {text}"


def _layers(plan: Plan) -> str:
    model, profile = plan.inputs.model, plan.inputs.profile
    if model is not None:
        tensor = [s for s in plan.stages if s.tp > 1]
        sequence = "; sp where tp > 1" if tensor and all(s.sp for s in tensor) else ""
        return (f"layer 0: embedding; 1..{model.layers}: transformer layers; "
                f"{model.layers + 1}: vocabulary head and loss{sequence}")
    assert profile is not None
    return f"layers 0..{profile.length - 1} of the profile, in its order"


def _table(page: Page, table: Table) -> None:
    page.table(table.title, table.heads, table.rows, table.left)


def _breakdown(page: Page, plan: Plan) -> None:
    total = plan.step_time_s
    parts = {name: value for name, value in plan.breakdown_s.model_dump().items()
             if abs(value) > ROUNDING * total}
    unit = format_seconds(total).split()[-1]
    factor, decimals = {"s": (1.0, 3), "ms": (1e3, 2), "us": (1e6, 1)}.get(unit, (1e9, 0))
    rows = []
    for name, seconds in (*parts.items(), ("step", total)):
        share = seconds / total if total else 0.0
        bar = "" if name == "step" else "█" * round(BAR * share)
        rows.append((_WORDS[name], f"{factor * seconds:,.{decimals}f} {unit}",
                     f"{100 * share:.1f} %", bar))
    page.table("Where the step goes", ("cause", "time", "share", ""), rows, (0, 3))


