"""The first screen: what to run, how fast, how sure and on what evidence, what limits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nest.evaluation.plans import Plan, Stage
from nest.inputs.space import SearchSpace
from nest.report.comparison_text import rate, short_number
from nest.report.plan_text import (
    ROUNDING,
    WORDS,
    blocks,
    defaults,
    evidence,
    expected,
    launch,
    launch_in_short,
    percent,
    proved,
    samples,
    searched,
    span_text,
)
from nest.report.stages import GIB
from nest.schedules.registry import SCHEDULES
from nest.simulation import Simulation
from nest.units import format_seconds


class HeadFigure(NamedTuple):
    """A number of the first screen."""

    name: str
    value: str
    note: str
    tone: str = "plain"
    """good, warn, bad or plain."""


class ShownChoice(NamedTuple):
    """A choice in the words of the field, and in NEST's own."""

    name: str
    value: str
    own: str


class Verdict(NamedTuple):
    """An answer in a few sentences."""

    question: str
    sentences: tuple[str, ...]


class Step(NamedTuple):
    """A part of a waterfall of seconds."""

    name: str
    seconds: float
    text: str
    share: float
    evidence: str
    advice: str
    kind: str
    """What decides its colour: compute, traffic, wait or end."""


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of a plan."""

    headline: str
    subject: str
    setting: str
    feasible: bool
    problems: tuple[str, ...]
    figures: tuple[HeadFigure, ...]
    choices: tuple[ShownChoice, ...]
    verdicts: tuple[Verdict, ...]
    assumed: tuple[str, ...]
    launch: tuple[str, ...]


KINDS = {"forward": "compute", "backward": "compute", "recompute": "compute", "tp": "traffic",
         "cp": "traffic", "ep": "traffic", "zero": "traffic", "offload": "traffic",
         "maxima": "traffic",
         "bubble": "wait", "finish": "end"}
"""Kinds of the causes of a step."""
ADVICE = {
    "forward": "Lower precision or faster devices shorten it.",
    "backward": "Lower precision or faster devices shorten it.",
    "recompute": "More memory, more pipeline stages or ZeRO make it unnecessary.",
    "tp": "Less tensor parallelism, or faster links inside a node.",
    "cp": "Shorter sequences for each device, or another exchange (cp_comm).",
    "ep": "Fewer ranks of expert parallelism, experts kept inside a node, or overlap of the stack.",
    "zero": "A lower ZeRO stage, if memory allows, or larger micro-batches.",
    "offload": "More device memory, or a faster link to the host.",
    "maxima": "Another scaling of fp8, larger micro-batches, or a faster network.",
    "bubble": "More micro-batches (a larger batch), more chunks of layers (vpp) or fewer stages.",
    "finish": "Overlap of gradient reduction, fewer replicas, or a faster outer network.",
}
"""What shortens a cause of a step, generally; alternatives and resources show what it brings."""


def answer(plan: Plan, simulation: Simulation | None, target: str = "") -> FirstScreen:
    """The first screen of a plan.

    Parameters
    ----------
    plan : as `plan` or `evaluate` gives it.
    simulation : of it; None: not simulated.
    target : whose launch files the page shows; empty: none.
    """
    inputs = plan.inputs
    job, size = inputs.job, inputs.cluster.size
    rules = job.stack.capabilities
    devices = ", ".join(one.name for one in inputs.cluster.device_types)
    return FirstScreen(
        headline=plan.headline, subject=inputs.subject.name,
        setting=f"{size:,} {devices} ({inputs.cluster.name}), {job.precision}, "
                f"{job.global_batch:,} sequences of {job.seq_len:,} tokens a step, "
                f"{job.stack.name if rules is None else rules.title}",
        feasible=plan.feasible, problems=plan.problems,
        figures=tuple(_figures(plan, simulation)), choices=tuple(choices(plan)),
        verdicts=tuple(_verdicts(plan, simulation, target)), assumed=tuple(_assumed(plan)),
        launch=tuple(text for _, text in launch(plan)))


def waterfall(plan: Plan) -> tuple[Step, ...]:
    """The parts of a priced step, first to last; their sum is the step."""
    total = plan.step_time_s
    compute, network = _evidence(plan)
    return tuple(
        Step(WORDS[cause], seconds, format_seconds(seconds), seconds / total,
             {"compute": compute, "wait": "follows from the times of all passes"}.get(
                 KINDS[cause], network), ADVICE[cause], KINDS[cause])
        for cause, seconds in plan.breakdown_s.model_dump().items()
        if abs(seconds) > ROUNDING * total)


def _evidence(plan: Plan) -> tuple[str, str]:
    """What prices of computing and of traffic rest on."""
    assumed = defaults(plan.inputs.cluster)
    compute = ("default efficiency of products" if "products of" in assumed
               else "efficiencies fitted to the device")
    network = ("some figures of links are defaults" if " of level " in assumed
               else "figures of links as the cluster states them")
    return compute, network


def _figures(plan: Plan, simulation: Simulation | None) -> Iterator[HeadFigure]:
    likely = expected(plan)
    yield HeadFigure("Step", format_seconds(plan.step_time_s),
                     f"{likely} in 9 of 10 cases" if likely else "")
    unit = "tokens/s" if plan.inputs.model is not None else "samples/s"
    each = rate(plan) / plan.inputs.cluster.size
    yield HeadFigure("Speed", f"{short_number(rate(plan))} {unit}",
                 f"{short_number(each)} on each device")
    if plan.inputs.model is not None:
        yield HeadFigure("MFU", f"{100 * plan.mfu:.1f} %", "of the peak FLOP/s of all devices")
    share = plan.memory_share
    stage = plan.stages[plan.fullest]
    yield HeadFigure("Memory", f"{100 * share:.0f} % full",
                 f"stage {plan.fullest}: {stage.memory_bytes.total / GIB:.1f} of "
                 f"{stage.memory_limit_bytes / GIB:.1f} GiB",
                 "bad" if not plan.feasible else "warn" if share > 0.97 else "good")
    if plan.evidence is not None:
        runs = plan.evidence
        yield HeadFigure("Evidence", runs.word, f"{runs.like} runs like it were measured, of "
                     f"{runs.configurations} of {plan.inputs.job.stack.name}",
                     {"measured": "good", "between": "good", "extrapolated": "warn"}.get(
                         runs.word, "bad"))
    if plan.search is None:
        yield HeadFigure("Optimal", "not searched", "no other plan was looked at", "warn")
    elif plan.optimal:
        yield HeadFigure("Optimal", "proved", "no plan in the searched space is estimated faster",
                         "good")
    else:
        gap = "" if plan.gap is None else f"within {100 * plan.gap:.2g} % of the best possible"
        yield HeadFigure("Optimal", "not proved", gap or "the search ended early", "warn")
    if simulation is not None:
        yield HeadFigure("Simulated", format_seconds(simulation.step_time_s),
                     f"{percent(simulation.relative_difference, 1)} against the step above, from "
                     "a formula")


def choices(plan: Plan) -> Iterator[ShownChoice]:
    """Parallelism, batch and memory, in the field's words."""
    p, stages, job = plan.parallelism, plan.stages, plan.inputs.job

    def span(figure: Callable[[Stage], int]) -> str:
        return span_text(figure(one) for one in stages)

    inside = span(lambda s: s.dp_in)
    yield ShownChoice("Data parallel", span(lambda s: s.dp_in * p.outer_dp),
                 f"{f'{p.outer_dp:,} pipelines' if p.outer_dp > 1 else 'one pipeline'} (outer_dp) "
                 f"x {inside} inside a stage (dp_in)")
    yield ShownChoice("Tensor parallel", span(lambda s: s.tp),
                 "with sequence parallelism" if any(s.sp for s in stages) else "tp")
    virtual = f", {p.vpp} chunks of layers each (vpp)" if p.vpp > 1 else ""
    yield ShownChoice("Pipeline parallel", f"{p.pp:,}",
                 f"{SCHEDULES[p.schedule].label}{virtual}; blocks of "
                 f"{blocks(plan.configuration)} devices" if p.pp > 1 else "no pipeline")
    if any(s.cp > 1 for s in stages):
        yield ShownChoice("Context parallel", span(lambda s: s.cp),
                     ", ".join(sorted({s.cp_comm for s in stages})))
    if any(s.ep > 1 for s in stages):
        yield ShownChoice("Expert parallel", span(lambda s: s.ep),
                     f"expert tensor parallel {span(lambda s: s.etp)}")
    yield ShownChoice("Micro-batch", span(lambda s: p.micro_batch // s.dp_in),
                 f"sequences of a rank at once; {p.micro_batches:,} micro-batches a step")
    yield ShownChoice("ZeRO", span(lambda s: s.zero), {
        "0": "nothing is sharded", "1": "optimizer states are sharded",
        "2": "optimizer states and gradients are sharded",
        "3": "parameters, gradients and optimizer states are sharded"}.get(
            span(lambda s: s.zero), "differs between stages"))
    policies = sorted({s.recompute if s.recompute != "selective" else
                       "+".join(s.recompute_modules) for s in stages})
    yield ShownChoice("Recompute", " or ".join(policies),
                 "all activations are kept" if policies == ["none"] else
                 "activations that are computed again in the backward pass")
    if p.offload != "none":
        yield ShownChoice("Offload", p.offload, "kept in the memory of the hosts")
    idle = plan.inputs.cluster.size - p.devices_used
    yield ShownChoice("Devices", f"{p.devices_used:,}",
                 f"{f'{idle:,} more are idle' if idle else 'all work'}; {job.optimizer}, "
                 f"{job.precision}")


def _verdicts(plan: Plan, simulation: Simulation | None, target: str) -> Iterator[Verdict]:
    p, stages = plan.parallelism, plan.stages
    copies = (f"{p.outer_dp:,} equal pipelines work side by side, each on a share of the batch. "
              if p.outer_dp > 1 else "")
    if p.pp > 1:
        does = (f"The model is cut into {p.pp} stages of consecutive layers, each on its own "
                f"block of {blocks(plan.configuration)} devices"
                + (f", in {p.vpp} chunks of layers each" if p.vpp > 1 else "") + ".")
    else:
        does = "All layers are on every group of devices; there is no pipeline."
    inside = max(stages, key=lambda s: s.tp * s.cp * s.dp_in)
    parts = [f"{word} {value}" for word, value in (
        ("tensor parallel", inside.tp), ("context parallel", inside.cp),
        ("expert parallel", inside.ep), ("data parallel", inside.dp_in)) if value > 1]
    yield Verdict("What does the plan do?", tuple(filter(None, (
        does, copies.strip(),
        f"Devices of a stage share each layer and the batch: {', '.join(parts)}." if parts else "",
        f"A training step takes {p.micro_batches:,} micro-batches through the pipeline"
        f"{'' if p.pp > 1 else ' of one stage'}, forward and backward, and then updates the "
        "weights."))))
    yield Verdict("What limits it?", tuple(_limits(plan)))
    words = [f"{text[0].upper()}{text[1:]}."] if (text := evidence(plan)) else []
    if likely := expected(plan):
        words.append(f"Expect {likely} per step in 9 of 10 cases.")
    if simulation is not None:
        words.append("An independent simulation of the step differs by "
                     f"{abs(100 * simulation.relative_difference):.1f} %.")
    if plan.search is not None:
        scope = "plan that the software can run" if plan.search.within_stack else "legal plan"
        bounds = "" if plan.search.space == SearchSpace().describe() else " within the bounds asked"
        words.append((f"Proved: no {scope}{bounds} is faster" + (
            ", except perhaps plans left out of the search (listed at the end)."
            if plan.search.left_out else ".")) if plan.optimal else
            f"Optimal: {proved(plan)}.")
    else:
        words.append("Nothing was searched: other plans may be faster.")
    yield Verdict("How sure is that?", tuple(words))
    yield Verdict("How does it start?", tuple(filter(None, (
        f"{launch_in_short(plan)}.",
        "nest export writes the files that start it; Launch, above, leads to them. Data, "
        "tokenizer and learning rate are yours to add." if target else ""))))


def _limits(plan: Plan) -> Iterator[str]:
    steps = waterfall(plan)
    computing = sum(one.share for one in steps if one.kind == "compute")
    yield f"{100 * computing:.0f} % of the step is computing."
    losses = sorted((one for one in steps if one.kind != "compute"), key=lambda one: -one.share)
    if losses and losses[0].share > 0.001:
        yield "The largest losses: " + ", ".join(
            f"{one.name} {100 * one.share:.1f} %" for one in losses[:3] if one.share > 0.001) + "."
    yield f"Bound by {plan.bottleneck.replace('%', ' %')}."
    share = plan.memory_share
    if share > 0.9:
        yield f"Memory is {100 * share:.0f} % full, so a plan that holds more does not fit."
    idle = plan.inputs.cluster.size - plan.parallelism.devices_used
    if idle:
        yield f"{idle:,} devices have nothing to do."


def _assumed(plan: Plan) -> Iterator[str]:
    job = plan.inputs.job
    yield (f"The software is {job.stack.name}: what it overlaps and what it can run is taken from "
           "its source.")
    if assumed := defaults(plan.inputs.cluster):
        yield f"Not measured, or not stated: {assumed}."
    if text := samples(plan):
        yield f"Samples have {text}."
    if job.expert_imbalance > 1.0:
        yield f"The busiest device of experts gets {job.expert_imbalance:g} times the mean."
    elif any(stage.ep > 1 for stage in plan.stages):
        yield ("Experts get equally many tokens, as in benchmarks that force them; trained with a "
               "balancing loss a step takes longer (--routing loss).")
    if job.memory_margin:
        yield f"{100 * job.memory_margin:g} % of each device's memory stays free."
    for one in plan.doubts:
        yield f"{one[0].upper()}{one[1:]}."
    for left in plan.search.left_out if plan.search is not None else ():
        yield f"Left out of the search: {left.figure}: {left.sentence}."
    yield f"Search: {searched(plan)}."

