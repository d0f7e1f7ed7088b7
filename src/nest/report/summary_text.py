"""The text of a plan that fits a screen: what to run, how fast and how sure, what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack

from nest.evaluation.plans import Plan, Stage
from nest.report import plan_text as full
from nest.report.page import Page, PageOptions
from nest.schedules.registry import SCHEDULES
from nest.units import format_bytes, format_seconds

SMALL = 0.02
"""Share of a step below which causes are added up."""


def summary_text(
    plan: Plan, simulated: float | None = None, **options: Unpack[PageOptions]
) -> str:
    """Give the short report of a plan; arguments as of :func:`nest.report.plan_text.plan_text`."""
    page = Page(**options)
    full.problems(page, plan)
    page.paragraph(plan.headline, "bold")
    page.blank()
    if text := full.evidence(plan):
        page.fact("Evidence", text)
    likely = full.expected(plan)
    figures = [f"{likely} in 9 of 10 cases"] if likely else []
    if simulated is not None:
        figures.append(f"simulated {format_seconds(simulated)} "
                       f"({full.percent(simulated / plan.step_time_s - 1.0, 1)})")
    if figures:
        page.fact("Expected", "; ".join(figures))
    page.fact("Split", "; ".join(_split(plan)))
    if numbers := full.numbers(plan.inputs.cluster):
        page.fact("Devices", numbers)
    page.fact("Batch", _batch(plan))
    page.fact("Software", _software(plan))
    if plan.search is not None:
        page.fact("Optimal", full.proved(plan))
    page.fact("Memory", _memory(plan))
    page.fact("Bound by", plan.bottleneck.partition(", then ")[0].replace("%", " %"))
    page.blank()
    full.breakdown(page, plan, SMALL)
    if plan.alternatives:
        page.blank()
        full.alternatives(page, plan)
    page.blank()
    if assumed := "; ".join(_assumed(plan)):
        page.fact("Assumed", assumed)
    if better := full.other_batch(plan):
        page.fact("Other batch", better)
    page.fact("More", "--details; -o PLAN.json, then nest report, export, explain")
    return page.text()


def _split(plan: Plan) -> Iterator[str]:
    """The degrees, in the words of the field."""
    p, stages = plan.parallelism, plan.stages
    inside, replicas = {stage.dp_in for stage in stages}, p.outer_dp
    zero = f"ZeRO {full.span_text(stage.zero for stage in stages)}"
    total = full.span_text(replicas * one for one in inside)
    parts = "" if inside == {1} or replicas == 1 else (
        f" = {replicas:,} replicas x {full.span_text(inside)}")
    yield f"data parallel {total}{parts}, {zero}"
    for name, values in _degrees(stages):
        if set(values) != {1}:
            yield f"{name} {full.span_text(values)}"
    if p.pp > 1:
        chunks = f" of {p.vpp} chunks" if p.vpp > 1 else ""
        groups = "" if p.group is None else f" in groups of {p.group} micro-batches"
        yield f"pipeline of {p.pp} stages{chunks}, {SCHEDULES[p.schedule].label}{groups}"
    kinds = list(dict.fromkeys(stage.recompute for stage in stages))
    yield f"recompute {' or '.join(kinds)}"
    if p.offload != "none":
        yield f"offload {p.offload}"
    yield f"{p.devices_used:,} of {plan.inputs.cluster.size:,} devices"


def _degrees(stages: Iterable[Stage]) -> Iterator[tuple[str, list[int]]]:
    own = list(stages)
    sharded = all(stage.sp for stage in own if stage.tp > 1)
    yield "tensor" + (" and sequence" if sharded else "") + " parallel", [s.tp for s in own]
    yield "context parallel", [stage.cp for stage in own]
    yield "expert parallel", [stage.ep for stage in own]
    yield "expert tensor parallel", [stage.etp for stage in own if stage.ep > 1] or [1]


def _batch(plan: Plan) -> str:
    p = plan.parallelism
    each = full.span_text(p.micro_batch // stage.dp_in for stage in plan.stages)
    return (f"{p.global_batch:,} sequences of {plan.inputs.job.seq_len:,} tokens; "
            f"{p.micro_batches:,} micro-batches of {each} a rank"
            + (f"; samples of {text}" if (text := full.samples(plan)) else ""))


def _software(plan: Plan) -> str:
    job = plan.inputs.job
    devices = ", ".join(device.name for device in plan.inputs.cluster.device_types)
    told = full.launch_in_short(plan)
    if plan.runnable and plan.launch_needs:
        told += " (--details)"
    chosen = [f"{name} {value}" for name, value in plan.parallelism.choices.items()]
    return "; ".join([told, *([", ".join(chosen)] if chosen else []),
                      f"{job.precision}, {job.optimizer}, device {devices}"])


def _memory(plan: Plan) -> str:
    """The fullest stage, by kind."""
    stage = plan.stages[plan.fullest]
    held = stage.memory_bytes.model_dump()
    total = held.pop("total")
    kinds = sorted(((size, kind) for kind, size in held.items() if size >= 0.015 * total),
                   reverse=True)
    return (f"{format_bytes(total, 3)} of {format_bytes(stage.memory_limit_bytes, 3)} on stage "
            f"{plan.fullest}, the fullest (margin {100 * plan.inputs.job.memory_margin:g} %): "
            + ", ".join(f"{kind} {100 * size / total:.0f} %" for size, kind in kinds))


def _assumed(plan: Plan) -> Iterator[str]:
    if plan.inputs.job.expert_imbalance == 1.0 and any(stage.ep > 1 for stage in plan.stages):
        yield "experts get equally many tokens (--routing)"
    if text := full.defaults(plan.inputs.cluster):
        yield f"not measured, or not stated: {text}"
