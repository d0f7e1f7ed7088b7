"""A plan beside what its run printed, and what profilers saw of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.inputs.arguments import need, takes
from nest.inputs.job import Job
from nest.measured import logs
from nest.measured.diagnosis import kineto, nsight, snapshot
from nest.measured.diagnosis.held import of_log, of_snapshot, out, out_of_memory
from nest.measured.diagnosis.result import (
    TITLES,
    Cause,
    CauseName,
    Diagnosis,
    MemoryDiagnosis,
    OutOfMemory,
    PartSeconds,
    SourceFile,
)
from nest.measured.diagnosis.seconds import TracedRank, compared, degrees_of, traced
from nest.measured.diagnosis.steps import StepParts, divided
from nest.measured.diagnosis.timeline import Timeline, advice
from nest.measured.learning import load_learned
from nest.measured.logs import RunLog
from nest.units import format_seconds, shorten

Path = str | os.PathLike[str]
MOST_FILES = 64
"""Traces, and snapshots, at the most (chosen)."""
_STALLED = 0.5
"""Share of what slow steps take more that makes a part their cause (chosen)."""
_SAME_PRICE = 1e-3
_ANOTHER = 0.5
"""Share of the price below which a trace is hardly of the plan (chosen)."""


@takes(log="path", traces="texts", memory="texts", learned="path")
def diagnose(
    plan: Plan, log: Path | None = None, traces: Sequence[str] = (), memory: Sequence[str] = (),
    learned: Path | None = None,
) -> Diagnosis:
    """Say why a run is slower, or holds more memory, than its plan is priced.

    Parameters
    ----------
    plan : that ran.
    log : what the run printed; None: traces or snapshots alone.
    traces : of torch.profiler (.json, .json.gz) or Nsight Systems (.sqlite), one for each rank.
    memory : snapshots of torch.cuda.memory._dump_snapshot.
    learned : file of `nest learn`, with which the plan is priced then.

    Raises
    ------
    InputError : a file cannot be read or holds nothing of use, or is of another job.
    """
    need("plan", plan, (Plan,), "nest.plan, nest.evaluate or nest.load_plan")
    if log is None and not traces and not memory:
        raise InputError("log: got none, and neither traces nor memory; needed: at least one")
    for name, some in (("traces", traces), ("memory", memory)):
        if len(some) > MOST_FILES:
            raise InputError(f"{name}: got {len(some)}; allowed: at most {MOST_FILES}")
    notes: list[str] = []
    sources = [SourceFile(file="PLAN", kind="plan")]
    priced = _priced(plan, learned, notes, sources)
    causes: list[Cause] = []
    printed = None if log is None else logs.read(log)
    if printed is not None:
        sources.append(SourceFile(file=printed.where, kind="log", steps=len(printed.steps)))
        notes += printed.notes
    run = priced if printed is None else _as_run(priced, printed, causes, notes)
    seen = [_trace(one, run) for one in traces]
    sources += [SourceFile(file=one.where, kind="trace", rank=one.rank,
                       steps=len(one.windows) if one.counted else None) for one in seen]
    shots = [snapshot.read(one) for one in memory]
    sources += [SourceFile(file=one.where, kind="snapshot", rank=one.rank) for one in shots]
    measured = _seconds(run, printed, seen, causes, notes)
    if measured.mean is not None:
        rest = measured.mean - math.fsum((priced.step_time_s, *(one.seconds for one in causes)))
        if abs(rest) > 1e-12 * priced.step_time_s:
            causes.append(_unexplained(rest, run, seen, measured))
    known = priced.confidence
    return Diagnosis(
        headline=_headline(priced, measured.mean, printed, causes),
        priced_s=priced.step_time_s, low_s=known and known.low_s, high_s=known and known.high_s,
        measured_s=measured.mean,
        causes=tuple(sorted(causes, key=lambda one: -abs(one.seconds))),
        beside=() if printed is None else _beside(printed, run),
        parts=measured.parts, memory=_memory(run, printed, shots, notes),
        out_of_memory=_out(run, printed, shots), sources=tuple(sources), notes=tuple(notes))


def _priced(plan: Plan, learned: Path | None, notes: list[str], sources: list[SourceFile]) -> Plan:
    """The plan with the prices of today, or with what was learned."""
    inputs = plan.inputs
    job: Job = inputs.job
    if learned is not None:
        known = load_learned(learned)
        job = job.replace(stack=known.taught())
        sources.append(SourceFile(file=shorten(os.fspath(learned), 300)[1:-1], kind="learned"))
    found = evaluate(inputs.subject, inputs.cluster, job, plan.configuration)
    if learned is None and abs(found.step_time_s / plan.step_time_s - 1.0) > _SAME_PRICE:
        notes.append(f"the plan says {format_seconds(plan.step_time_s)} a step; this version "
                     f"prices it {format_seconds(found.step_time_s)}, which counts")
    return found


# ---------------------------------------------------------------- settings


def _as_run(plan: Plan, log: RunLog, causes: list[Cause], notes: list[str]) -> Plan:
    """The plan as the log says that it ran; what differs is a cause."""
    if not log.printed:
        notes.append(f"{log.where}: prints no settings; it is taken as a run of the plan")
        return plan
    try:
        ran = log.settings
        inputs = plan.inputs
        if ran.devices != plan.parallelism.devices_used:
            raise _Another(f"{log.where}: ran on {ran.devices} devices, the plan on "
                           f"{plan.parallelism.devices_used}; allowed: the log of the plan's run")
        job = inputs.job.replace(global_batch=ran.job.global_batch, seq_len=ran.job.seq_len,
                                 precision=ran.job.precision)
        found = evaluate(inputs.subject, inputs.cluster, job, ran.configuration)
    except _Another as error:
        raise InputError(str(error)) from None
    except InputError as error:
        notes.append(f"{log.where}: its settings are not compared with the plan's "
                     f"({shorten(error.problems[0], 160)[1:-1]})")
        return plan
    told = _differences(plan, found)
    if not told:
        return plan
    causes.append(Cause(
        name="settings", seconds=found.step_time_s - plan.step_time_s,
        evidence=(f"{log.where}, line {log.printed[0].line}: {', '.join(told)}",),
        advice=advice("settings", plan.inputs.job.stack.name)))
    return found


class _Another(InputError):
    """A log of another job."""


def _differences(plan: Plan, run: Plan) -> list[str]:
    """Settings of a run that are not the plan's."""
    def table(one: Plan) -> dict[str, object]:
        way, stage, job = one.parallelism, one.stages[0], one.inputs.job
        return {"global batch": job.global_batch, "sequence": job.seq_len,
                "precision": job.precision, "pp": way.pp, "vpp": way.vpp,
                "schedule": way.schedule, "micro-batch": way.micro_batch // stage.dp_in,
                "tp": stage.tp, "cp": stage.cp, "ep": stage.ep, "sp": stage.sp,
                "ZeRO": stage.zero, "recompute": "+".join((
                    stage.recompute, *stage.recompute_modules)),
                "layers of stages": [each.layers for each in one.stages]}

    first, second = table(plan), table(run)
    return [f"{name} {shorten(second[name], 40).strip(chr(39))} (plan: "
            f"{shorten(first[name], 40).strip(chr(39))})" for name in first
            if first[name] != second[name]]


# ---------------------------------------------------------------- seconds


class _Measured(NamedTuple):
    """The measured step; its causes are in the list that was given."""

    mean: float | None
    usual: float | None
    one: TracedRank | None
    parts: tuple[PartSeconds, ...]


def _trace(path: str, plan: Plan) -> Timeline:
    reader = nsight.read if path.lower().endswith(nsight.SUFFIXES) else kineto.read
    return reader(path, degrees_of(plan))


def _seconds(
    plan: Plan, log: RunLog | None, lines: Sequence[Timeline], causes: list[Cause],
    notes: list[str],
) -> _Measured:
    """Add the causes of a step."""
    printed = None if log is None or not len(log.steps) else divided(log.steps)
    every = [traced(plan, one, printed and printed.usual, notes) for one in lines]
    notes += [f"{one.line.where}: its steps take less than half of the price; is it a trace of "
              "whole steps of this plan?" for one in every
              if one.length < _ANOTHER * plan.step_time_s]
    shown = compared(plan, every) if every else None
    one = None if shown is None else shown.one
    stack = plan.inputs.job.stack.name
    found = [*(shown.causes if shown is not None else ())]
    usual = printed.usual if printed is not None else one.length if one is not None else None
    mean = usual
    if printed is not None and log is not None:
        mean = float(log.steps.mean())
        if printed.drift:
            found.append(Cause(name="drift", seconds=printed.drift, evidence=(
                f"{log.where}: steps take {100 * abs(log.drift or 0.0):.1f} % "
                f"{'longer' if printed.grows else 'less'} in its last third than in its first, "
                f"lines {log.lines[0]} to {log.lines[-1]}",), advice=advice("drift", stack)))
        if printed.slow:
            found.append(_slow(log, printed, every, stack))
    elif one is not None and one.slow:
        mean = one.mean
        name = _part_of(every) or "stalls"
        found.append(Cause(name=name, seconds=one.mean - one.length, evidence=(
            f"{one.who}: the longest steps of {one.line.where} take "
            f"{format_seconds(sum(one.slow.values()))} more",), advice=advice(name, stack)))
    causes += _joined(found)
    return _Measured(mean, usual, one, () if shown is None else shown.parts)


def _part_of(every: Iterable[TracedRank]) -> CauseName | None:
    """The part that makes slow steps slow; None: traces have none, or none has most of it."""
    for one in every:
        more = sum(one.slow.values())
        part = max(one.slow, key=lambda name: one.slow[name], default=None)
        if part is not None and one.slow[part] >= _STALLED * more > 0.0:
            return part  # type: ignore[return-value]
    return None


def _slow(log: RunLog, printed: StepParts, every: Sequence[TracedRank], stack: str) -> Cause:
    """Slow steps of a log, by the part that a trace of one shows."""
    name: CauseName = _part_of(every) or "stalls"
    at = [str(one) for one in log.lines[printed.slow_at[:6]]]
    often = f"every {printed.every} steps" if printed.every else "irregularly"
    told = [f"{len(printed.slow_at)} of {len(log.steps)} steps take "
            f"{format_seconds(printed.worst)}, {often}: lines {', '.join(at)}"
            f"{' ...' if len(printed.slow_at) > len(at) else ''} of {log.where}"]
    if name == "stalls":
        told.append("the log does not tell data loading, checkpoints, evaluation and stragglers "
                    "apart")
    else:
        told.append(f"the slow steps of the trace: more {TITLES[name]}")
    return Cause(name=name, seconds=printed.slow, evidence=tuple(told), advice=advice(name, stack))


def _joined(causes: Iterable[Cause]) -> list[Cause]:
    """Causes of one name as one."""
    found: dict[str, Cause] = {}
    for one in causes:
        before = found.get(one.name)
        found[one.name] = one if before is None else one.model_copy(update={
            "seconds": before.seconds + one.seconds,
            "evidence": (*one.evidence, *before.evidence)})
    return [*found.values()]


def _unexplained(rest: float, plan: Plan, lines: Sequence[Timeline], measured: _Measured) -> Cause:
    """What no evidence tells apart."""
    if measured.one is None:
        told = ["without a trace, computing, traffic, gaps of the host and waiting are not told "
                "apart"]
    else:
        told = [f"steps of the trace take {format_seconds(measured.one.length)}, those of the log "
                f"{format_seconds(measured.usual or 0.0)}"]
        if rest < 0.0:
            told.append("a profiler makes the host slower")
    known = plan.confidence
    if known is not None and measured.mean is not None and (
            known.low_s <= measured.mean <= known.high_s):
        told.append(f"the measured step is within the range of the price, "
                    f"{format_seconds(known.low_s)} to {format_seconds(known.high_s)}")
    return Cause(name="unexplained", seconds=rest, evidence=tuple(told),
                 advice=() if lines else advice("unexplained", plan.inputs.job.stack.name))


def _beside(log: RunLog, plan: Plan) -> tuple[Cause, ...]:
    """Seconds of the run that are no part of its steps."""
    found = []
    stack, usual = plan.inputs.job.stack.name, log.step_time_s or 0.0
    more = float((log.first - usual).sum()) if len(log.first) else 0.0
    if more > 0.0 and usual:
        found.append(Cause(name="first", seconds=more, evidence=(
            f"{log.where}: first steps of each start, {log.left_out} in all, take "
            f"{format_seconds(float(log.first.sum()))}, as many later ones "
            f"{format_seconds(usual * log.left_out)}",), advice=advice("first", stack)))
    if log.restarts:
        told = [f"{log.where}: {log.restarts} restarts; {log.repeated} steps were run again"]
        if log.end:
            told.append(f"it ended by: {log.end}")
        found.append(Cause(name="restarts", seconds=usual * log.repeated, evidence=tuple(told),
                           advice=advice("restarts", stack)))
    return tuple(found)


def _headline(plan: Plan, mean: float | None, log: RunLog | None, causes: Sequence[Cause]) -> str:
    priced = f"priced {format_seconds(plan.step_time_s)} a step"
    if mean is None:
        if log is not None and log.verdict == "out_of_memory":
            return f"The run is {priced}, and ran out of memory"
        return f"The run is {priced}; no step was timed"
    ratio = mean / plan.step_time_s - 1.0
    way = "slower" if ratio >= 0.0 else "faster"
    return f"The run is {100 * abs(ratio):.1f} % {way}: {format_seconds(mean)} a step, {priced}"


# ---------------------------------------------------------------- memory


def _memory(
    plan: Plan, log: RunLog | None, shots: Sequence[snapshot.Snapshot], notes: list[str]
) -> tuple[MemoryDiagnosis, ...]:
    found = [of_snapshot(plan, one, notes) for one in shots]
    printed = None if log is None else of_log(plan, log, notes)
    return (*found, *([printed] if printed is not None else []))


def _out(
    plan: Plan, log: RunLog | None, shots: Sequence[snapshot.Snapshot]
) -> tuple[OutOfMemory, ...]:
    printed = () if log is None else out_of_memory(plan, log)
    return (*printed, *(out(plan, one.where, one.rank, each.asked)
                        for one in shots for each in one.refused[:8]))
