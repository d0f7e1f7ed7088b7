"""Seconds of a step by cause: what traces show beside what the plan prices.

The rank that waits least is compared: of what it does itself, the step cannot be without. What its
computing and its traffic take longer is put into the prices (:class:`nest.inputs.job.Factors`), so
that the bubble that follows counts to its cause. All else is measured less priced. So the causes of
a trace add up from the price to the length of the traced steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

import numpy as np

from nest.errors import InputError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plans import Plan
from nest.inputs.job import Factors
from nest.measured.diagnosis.result import Cause, PartSeconds
from nest.measured.diagnosis.steps import LEAST_STALL
from nest.measured.diagnosis.timeline import (
    COLLECTIVES,
    COMPUTING,
    IDLE,
    KINDS,
    PlanDegrees,
    Timeline,
    advice,
)
from nest.simulation.times import Times
from nest.units import format_seconds

PARTS = ("computing", "update", *COLLECTIVES, "copies", *IDLE, "gaps")
LEAST_STRAGGLER = 0.05
"""Share by which a rank computes longer than its like before it is one (chosen)."""
_HOST = {"layer_gap": 0.0, "layer_overhead": 0.0, "expert_gap": 0.0, "expert_overhead": 0.0,
         "captured_gap": 0.0}
"""What stacks price of the host."""
_FACTOR = (0.01, 100.0)
Parts = Mapping[str, float]


class TracedRank(NamedTuple):
    """One rank in its steps."""

    line: Timeline
    stage: int
    usual: dict[str, float]
    """Seconds of a step by part, without slow steps; they add up to ``length``."""
    length: float
    slow: dict[str, float]
    """What slow steps take more, by part; empty: there are none."""
    mean: float
    """Seconds of a step, slow ones too."""

    @property
    def who(self) -> str:
        """The rank in words."""
        return "the traced rank" if self.line.rank is None else f"rank {self.line.rank}"

    @property
    def own(self) -> float:
        """Seconds that hold no wait for others."""
        return self.length - sum(self.usual[name] for name in COLLECTIVES)


def degrees_of(plan: Plan) -> PlanDegrees:
    """Ranks of the groups of a plan."""
    one, way = plan.stages[0], plan.parallelism
    return PlanDegrees(one.tp, one.cp, one.ep, way.outer_dp * one.dp_in, way.pp)


def stage_of(plan: Plan, rank: int | None, where: str) -> int | None:
    """The stage of a rank; None: the rank is not told.

    Raises
    ------
    InputError : the plan has no such rank.
    """
    if rank is None:
        return 0 if plan.parallelism.pp == 1 else None
    stage_at = {one.device: one.stage for one in plan.ranks()}
    devices = plan.host_order or sorted(stage_at)
    if rank >= len(devices):
        raise InputError(f"{where}: is of rank {rank}; allowed: 0 to {len(devices) - 1}, the ranks "
                         "of the plan")
    return stage_at[devices[rank]]


def bottleneck_of(plan: Plan) -> int:
    """The stage that the plan's breakdown is of."""
    whole = plan.breakdown_s
    return min(range(len(plan.stages)), key=lambda n: abs(
        plan.parallelism.micro_batches * plan.stages[n].time_s.forward - whole.forward) + abs(
        plan.parallelism.micro_batches * plan.stages[n].time_s.backward - whole.backward))


# ---------------------------------------------------------------- prices


def priced_parts(plan: Plan, number: int, bare: Plan) -> dict[str, float]:
    """Priced seconds of a step on a stage, by part; they add up to the step.

    Parameters
    ----------
    bare : the plan priced without the host.
    """
    inputs, m = plan.inputs, plan.parallelism.micro_batches
    stage = plan.stages[number]
    work = Times(chain_of(inputs.subject), inputs.cluster, inputs.job,
                 plan.configuration).stage(number).work
    if number == bottleneck_of(plan):
        found = plan.breakdown_s.model_dump()
    else:
        found = {name: m * getattr(stage.time_s, name) for name in
                 ("forward", "backward", "recompute", "tp", "cp", "ep", "offload", "zero",
                  "maxima")}
        found["finish"] = stage.finish_s
    busy = found["forward"] + found["backward"] + found["recompute"]
    kernels = min(busy, m * sum(getattr(bare.stages[number].time_s, name)
                                for name in ("forward", "backward", "recompute")))
    update = min(work.update, found["finish"])
    parts = dict.fromkeys(PARTS, 0.0) | {
        "computing": kernels, "gaps": busy - kernels, "update": update,
        "tp": found["tp"], "cp": found["cp"], "ep": found["ep"], "copies": found["offload"],
        "dp": found["zero"] + found["maxima"] + found["finish"] - update}
    rest = plan.step_time_s - sum(parts.values())
    for name in ("dp", "ep"):  # hidden in the pipeline
        if rest < 0.0:
            less = min(parts[name], -rest)
            parts[name], rest = parts[name] - less, rest + less
    return parts | {"pp": rest}


def with_factors(plan: Plan, **more: float) -> Plan:
    """The plan, priced with costs that are several times as large."""
    inputs = plan.inputs
    stack = inputs.job.stack
    own = stack.learned or Factors()
    low, high = _FACTOR
    factors = own.replace(**{name: min(high, max(low, getattr(own, name) * factor))
                             for name, factor in more.items()})
    return evaluate(inputs.subject, inputs.cluster,
                    inputs.job.replace(stack=stack.replace(learned=factors)), plan.configuration)


def without_host(plan: Plan) -> Plan:
    """The plan, priced as if kernels never waited for the host."""
    inputs = plan.inputs
    return evaluate(inputs.subject, inputs.cluster,
                    inputs.job.replace(stack=inputs.job.stack.replace(**_HOST)),
                    plan.configuration)


# ---------------------------------------------------------------- traces


def traced(plan: Plan, line: Timeline, usual_s: float | None, notes: list[str]) -> TracedRank:
    """A trace as seconds of a step.

    Parameters
    ----------
    usual_s : of a step by the log; counts the steps of a trace that does not mark them.
    """
    stage = stage_of(plan, line.rank, line.where)
    if stage is None:
        stage = bottleneck_of(plan)
        notes.append(f"{line.where}: names no rank; compared with stage {stage}, the slowest")
    lengths = line.lengths
    rows = line.seconds
    if not line.counted:
        count = max(1, round(float(lengths[0]) / usual_s)) if usual_s else 1
        notes.append(f"{line.where}: marks no steps; taken as {count} "
                     f"(of {format_seconds(float(lengths[0]) / count)})")
        rows, lengths = rows / count, lengths / count
    middle = float(np.median(lengths))
    fast = lengths <= (1.0 + LEAST_STALL) * middle
    usual = _parts(rows[fast].mean(axis=0))
    if plan.parallelism.pp > 1 and not (line.kinds == KINDS.index("pp")).any():
        usual["pp"], usual["gaps"] = usual["gaps"], 0.0
        notes.append(f"{line.where}: traces no send or receive between stages; times without work "
                     "count as bubble")
    slow: dict[str, float] = {}
    if not fast.all():
        more = _parts(rows[~fast].mean(axis=0))
        slow = {name: more[name] - usual[name] for name in PARTS}
    return TracedRank(line, stage, usual, float(lengths[fast].mean()), slow, float(lengths.mean()))


def _parts(row: Iterable[float]) -> dict[str, float]:
    found = dict.fromkeys(PARTS, 0.0)
    for kind, seconds in zip(KINDS, row, strict=True):
        found["computing" if kind in COMPUTING else kind] += float(seconds)
    return found


class StepCauses(NamedTuple):
    """What traces show."""

    causes: list[Cause]
    """They add up from the price to ``length``."""
    parts: tuple[PartSeconds, ...]
    one: TracedRank
    """The rank that was compared."""


def compared(plan: Plan, every: Sequence[TracedRank]) -> StepCauses:
    """Causes of the traced steps against the plan.

    Parameters
    ----------
    plan : with its current prices.
    every : ranks, one or more.
    """
    one = max(every, key=lambda each: each.own)
    bare = without_host(plan)
    priced = {n: priced_parts(plan, n, bare) for n in {each.stage for each in every}}
    own = priced[one.stage]
    ratios = [each.usual["computing"] / max(1e-12, priced[each.stage]["computing"])
              for each in every]
    ratio = ratios[every.index(one)]
    like = median_low(ratios)
    if ratio < (1.0 + LEAST_STRAGGLER) * like:
        like = ratio
    excess = (ratio - like) * own["computing"]
    bars = dict.fromkeys(PARTS, 0.0)
    now = plan
    for name, parts, wanted in (
            ("compute", ("computing", "gaps"), like * own["computing"] + own["gaps"]),
            ("tp", ("tp",), one.usual["tp"]),
            ("exchange", ("cp", "ep", "copies"),
             one.usual["cp"] + one.usual["ep"] + one.usual["copies"])):
        have = sum(own[part] for part in parts)
        if have <= 1e-4 * plan.step_time_s or wanted <= 0.0:
            continue
        after = with_factors(now, **{name: wanted / have})
        more = after.step_time_s - now.step_time_s
        for part, share in _shares(parts, own, one.usual).items():
            bars[part] += share * more
        now = after
    bare = without_host(now)
    left = priced_parts(now, one.stage, bare)
    left["computing"], left["gaps"] = left["computing"] + left["gaps"] - own["gaps"], own["gaps"]
    for name in PARTS:
        bars[name] += one.usual[name] - left[name]
    bars["computing"] -= excess
    _offset(bars)
    _merge_unknown(bars, one.usual["collectives"])
    found = [Cause(name=name, seconds=seconds, evidence=_evidence(name, one, every, own, left),
                   advice=advice(name, plan.inputs.job.stack.name) if seconds > 0.0 else ())
             for name, seconds in bars.items() if abs(seconds) > 1e-9 * plan.step_time_s]
    if excess > 0.0:
        others = [each for each in every if each is not one]
        found.append(Cause(
            name="stragglers", seconds=excess,
            evidence=(f"{one.who} ({one.line.where}) computes {ratio / like:.2f} times as long as "
                      f"{_list([each.who for each in others])} for its share",),
            advice=advice("stragglers", plan.inputs.job.stack.name)))
    shown = tuple(PartSeconds(name=name, priced=own[name], measured=one.usual[name])
                  for name in PARTS if own[name] > 0.0 or one.usual[name] > 0.0)
    return StepCauses(found, shown, one)


def _shares(parts: Sequence[str], priced: Parts, measured: Parts) -> dict[str, float]:
    """How much each part has of what several take longer together."""
    if parts[0] == "computing":
        return {"computing": 1.0}
    more = {part: measured[part] - priced[part] for part in parts}
    total = sum(more.values())
    if len(parts) == 1 or abs(total) < 1e-12:
        return {parts[0]: 1.0}
    return {part: each / total for part, each in more.items()}


def _offset(bars: dict[str, float]) -> None:
    """Kernels and the gaps between them are priced together: opposite errors of both cancel."""
    first, second = bars["computing"], bars["gaps"]
    if first * second < 0.0:
        both = first + second
        bars["computing"], bars["gaps"] = (both, 0.0) if both * first > 0.0 else (0.0, both)


def _merge_unknown(bars: dict[str, float], unknown: float) -> None:
    """Collectives of unknown groups stand for those that seem shorter than priced."""
    if unknown <= 0.0:
        return
    for name in COLLECTIVES:
        if name != "collectives" and bars[name] < 0.0:
            bars["collectives"] += bars[name]
            bars[name] = 0.0


# ---------------------------------------------------------------- evidence


def _evidence(
    name: str, one: TracedRank, every: Sequence[TracedRank], priced: Parts, after: Parts
) -> tuple[str, ...]:
    """What shows that a part takes longer or shorter."""
    line, seconds = one.line, one.usual[name]
    steps = len(line.windows)
    told = (f"{one.who}, {steps} step{'s' * (steps > 1)} of {line.where}: {_told(seconds)} a "
            f"step, priced {_told(priced[name])}")
    if name == "pp" and abs(after["pp"] - priced["pp"]) > 0.01 * (priced["pp"] + 1e-9):
        told += f" ({format_seconds(after['pp'])} with the measured computing and traffic)"
    found = [told]
    kinds = COMPUTING if name == "computing" else (name,)
    if name == "computing":
        total = line.seconds.sum(axis=0)
        shares = [(kind, total[KINDS.index(kind)]) for kind in COMPUTING]
        busy = sum(share for _, share in shares) or 1.0
        found.append(", ".join(f"{'other kernels' if kind == 'kernels' else kind} "
                               f"{100 * share / busy:.0f} %" for kind, share in shares))
    if name in KINDS[:KINDS.index("data")] or name == "computing":
        found += [f"{text}: {calls / steps:.3g} a step, {format_seconds(took / steps)}"
                  for text, calls, took in line.largest(kinds, 2)]
    elif name in IDLE:
        found.append("no kernel runs meanwhile: the host is in "
                     + (next((each.name[:60] for each in line.spans), "it")))
    elif name == "gaps" and line.on_device and seconds > 0.0:
        found.append(f"{100 * line.late_share:.0f} % of it: the host had not launched the next "
                     "kernel")
    if len(every) > 1:
        found.append("by rank: " + _list(
            [f"{each.who.removeprefix('rank ')} {_told(each.usual[name])}" for each in every]))
    if name in COLLECTIVES and seconds > priced[name]:
        found.append("traces do not tell slow links from a wait for a rank that is not traced")
    return tuple(found)


def _told(seconds: float) -> str:
    """Seconds in words; below a nanosecond none."""
    return format_seconds(seconds if seconds > 1e-9 else 0.0)


def _list(texts: Sequence[str], most: int = 8) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
