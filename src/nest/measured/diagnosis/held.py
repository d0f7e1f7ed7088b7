"""Bytes of a device by cause: a snapshot, or what a log says, beside what the plan prices."""

from __future__ import annotations

from collections.abc import Mapping

from nest.evaluation.plans import Plan
from nest.measured.diagnosis.result import MemoryCause, MemoryDiagnosis, MemoryName, OutOfMemory
from nest.measured.diagnosis.seconds import stage_of
from nest.measured.diagnosis.snapshot import KINDS, UNTOLD, Snapshot
from nest.measured.diagnosis.timeline import advice
from nest.measured.logs import RunLog
from nest.units import format_bytes


def of_snapshot(plan: Plan, found: Snapshot, notes: list[str]) -> MemoryDiagnosis:
    """Causes by kind."""
    stage = _stage(plan, found.rank, found.where, notes)
    return _made(plan, found.where, found.rank, stage, found.allocated, found.reserved, found.kinds,
                 "at the most" if found.entries else "now: no action was recorded")


def of_log(plan: Plan, log: RunLog, notes: list[str]) -> MemoryDiagnosis | None:
    """Causes of the fullest rank; None: the log says nothing of memory."""
    both = log.reserved_by_rank or log.allocated_by_rank
    if not both:
        return None
    rank = max(both, key=lambda each: both[each])
    stage = _stage(plan, rank, log.where, notes)
    allocated = log.allocated_by_rank.get(rank, log.peak_allocated_bytes)
    return _made(plan, log.where, rank, stage, allocated, log.reserved_by_rank.get(rank), {}, "")


def out_of_memory(plan: Plan, log: RunLog) -> tuple[OutOfMemory, ...]:
    """Ranks of a log that ran out."""
    return tuple(out(plan, log.where, rank, asked) for rank, asked in log.out_of_memory)


def out(plan: Plan, where: str, rank: int | None, asked: float | None) -> OutOfMemory:
    """A rank that ran out, beside what its stage is priced."""
    stage = stage_of(plan, rank, where)
    one = None if stage is None else plan.stages[stage]
    held = (one or max(plan.stages, key=lambda each: each.memory_bytes.total)).memory_bytes
    largest = max(KINDS, key=lambda kind: float(getattr(held, kind)))
    name = plan.inputs.job.stack.name
    return OutOfMemory(
        where=where, rank=rank, asked_bytes=asked, stage=stage,
        priced_bytes=None if one is None else one.memory_bytes.total,
        limit_bytes=None if one is None else _limit(plan, stage or 0),
        advice=(*advice("memory", name), *advice(largest, name)))


def _limit(plan: Plan, stage: int) -> float:
    """Bytes of a device that the software may use."""
    one, inputs = plan.stages[stage], plan.inputs
    device = inputs.cluster.device_types[inputs.cluster.type_at(one.devices[0])]
    return one.memory_limit_bytes + inputs.job.memory_margin * device.memory


def _stage(plan: Plan, rank: int | None, where: str, notes: list[str]) -> int:
    found = stage_of(plan, rank, where)
    if found is None:
        found = max(range(len(plan.stages)),
                    key=lambda n: plan.stages[n].memory_bytes.total)
        notes.append(f"{where}: names no rank; its memory is compared with stage {found}, the "
                     "fullest")
    return found


def _made(
    plan: Plan, where: str, rank: int | None, stage: int, allocated: float | None,
    reserved: float | None, kinds: Mapping[str, float], when: str,
) -> MemoryDiagnosis:
    """Causes of a rank.

    Bytes that no frame tells may be of any kind: kinds that seem smaller than priced count with
    them.
    """
    stack, priced = plan.inputs.job.stack.name, plan.stages[stage].memory_bytes
    measured = reserved if reserved is not None else allocated
    assert measured is not None
    held = measured if allocated is None else allocated
    bars: dict[MemoryName, float] = {}
    evidence: dict[str, list[str]] = {}
    untold = kinds.get(UNTOLD, 0.0)
    for name in KINDS if kinds else ():
        own: MemoryName = name  # type: ignore[assignment]
        more = kinds[name] - getattr(priced, name)
        if more > 0.0 or untold < 0.02 * held:
            bars[own] = more
            evidence[own] = [f"{format_bytes(kinds[name])} of its frames, priced "
                             f"{format_bytes(getattr(priced, name))}; {when}"]
    if reserved is not None and allocated is not None:
        bars["fragments"] = reserved - held
        evidence["fragments"] = [f"{format_bytes(reserved)} reserved, {format_bytes(held)} "
                                 "allocated at the most"]
    rest = measured - priced.total - sum(bars.values())
    if abs(rest) > 1e-6 * priced.total:
        bars["unexplained"] = rest
        evidence["unexplained"] = [
            f"{format_bytes(untold)} have no frames that tell their kind" if kinds else
            f"{format_bytes(measured)} "
            f"{'allocated' if allocated is not None else 'reserved'}, priced "
            f"{format_bytes(priced.total)}; a log does not tell kinds"]
    causes = [MemoryCause(
        name=name, bytes=size, evidence=tuple(evidence[name]),
        advice=() if size <= 0.0 else advice(
            "memory" if name == "unexplained" and not kinds else name, stack))
        for name, size in bars.items()]
    return MemoryDiagnosis(
        where=where, rank=rank, stage=stage, priced_bytes=priced.total, measured_bytes=measured,
        counted="allocated" if reserved is None else "reserved", limit_bytes=_limit(plan, stage),
        causes=tuple(sorted(causes, key=lambda one: -abs(one.bytes))))
