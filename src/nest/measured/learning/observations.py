"""A run beside its price: what was priced, by cause, and what happened."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from nest.errors import InputError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plans import Plan, Positive
from nest.inputs.base import Written
from nest.inputs.job import Stack
from nest.measured.validation.pricing import counted
from nest.measured.validation.runs import Run
from nest.measured.validation.translate import RunQuestion, question

Verdict = Literal["ran", "out of memory"]
Amount = Annotated[float, Field(ge=0.0)]


class Observation(Written):
    """A configuration with its price by cause; measured, where it was run.

    The price is that of the stack before anything was learned.
    """

    name: str = Field(description="of the run")
    verdict: Verdict | None = Field(None, description="null: it was not run")
    seconds: Positive | None = Field(None, description="measured, of a step; null: not known")
    bytes: Positive | None = Field(
        None, description="measured, allocated on the fullest device; null: not known")
    compute: Positive = Field(description="priced seconds of a step; each of the four has its "
                              "share of the pipeline's bubble")
    tp: Amount
    exchange: Amount
    reduction: Amount
    activations: Amount = Field(description="priced bytes of the stage that is fullest")
    states: Positive
    limit: Positive = Field(description="bytes that this stage may hold, without a margin")
    degrees: Annotated[tuple[float, ...], Field(min_length=10, max_length=10)] = Field(
        description="binary logarithms of tp, pp, dp, vpp, cp, ep and the micro-batch; sequence "
        "parallelism; half the stage of ZeRO; share of recompute")
    sizes: tuple[float, float, float] = Field(
        description="binary logarithms of parameters, devices and tokens of a sample")
    variant: str = Field("", description="of the software, such as its kernels")

    @property
    def step_s(self) -> float:
        """Priced seconds of a step."""
        return self.compute + self.tp + self.exchange + self.reduction


def observed(
    plan: Plan, name: str, verdict: Verdict | None = None, seconds: float | None = None,
    size: float | None = None, variant: str = "",
) -> Observation:
    """A plan beside what was measured of it.

    Parameters
    ----------
    plan : priced with a stack that has learned nothing.
    verdict : None: it was not run.
    seconds : measured, of a step.
    size : measured bytes, allocated on the fullest device.
    """
    job, parts = plan.inputs.job, plan.breakdown_s
    assert job.stack.learned is None
    compute = parts.forward + parts.backward + parts.recompute
    exchange = parts.cp + parts.ep + parts.offload
    more = 1.0 + parts.bubble / (compute + parts.tp + exchange)
    full = min(plan.stages, key=lambda stage: stage.memory_limit_bytes - stage.memory_bytes.total)
    held, device = full.memory_bytes, plan.inputs.cluster.device_types[
        plan.inputs.cluster.type_at(full.devices[0])]
    one, way = plan.stages[0], plan.parallelism
    degrees = (one.tp, way.pp, way.outer_dp * one.dp_in, way.vpp, one.cp, one.ep,
               way.micro_batch / one.dp_in)
    again = {"none": 0.0, "selective": 0.5, "full": 1.0}[one.recompute]
    return Observation(
        name=name, verdict=verdict, seconds=seconds, bytes=size, compute=more * compute,
        tp=more * parts.tp, exchange=more * exchange,
        reduction=parts.zero + parts.maxima + parts.finish,
        activations=held.activations, states=held.total - held.activations,
        limit=full.memory_limit_bytes + job.memory_margin * device.memory,
        degrees=(*map(math.log2, degrees), float(one.sp), one.zero / 2.0, again),
        sizes=(math.log2(max(1.0, chain_of(plan.inputs.subject).parameters)),
               math.log2(plan.inputs.cluster.size), math.log2(job.seq_len)), variant=variant)


def observe(runs: Iterable[Run], stack: Stack | None = None) -> list[Observation]:
    """Runs of a table beside their prices; a run without a step ran out of memory.

    Parameters
    ----------
    runs : of :func:`nest.measured.validation.read`.
    stack : prices all of them; None: each the stack of its framework.

    Raises
    ------
    InputError : a run cannot be priced; the message names it and says why.
    """
    return [observe_run(run, stack)[1] for run in runs]


def observe_run(run: Run, stack: Stack | None = None) -> tuple[Plan, Observation]:
    """One run of :func:`observe`, with its price."""
    try:
        asked = question(run.configured)
        if stack is not None:
            asked = asked._replace(job=asked.job.replace(stack=stack))
        plan = evaluate(*asked)
    except InputError as error:
        raise InputError(f"run {run.run_id}: {error.problems[0]}") from None
    verdict: Verdict = "out of memory" if run.measured_s is None else "ran"
    return plan, observed(plan, run.run_id, verdict, run.measured_s, _allocated(run, asked),
                          variant_of(run))


def variant_of(run: Run) -> str:
    """Kernels that the notes of a run name, as in `kernel: fused`."""
    found = re.search(r"\bkernel: ([^;]*)", run.notes)
    return found[1].strip() if found else ""


def _allocated(run: Run, asked: RunQuestion) -> float | None:
    """Measured bytes as plans count them; None: not known."""
    if run.measured_memory is None or run.measured_s is None:
        return None
    share, beside = counted(run, asked)
    size = (run.measured_memory - beside) * share
    return size if size > 0.0 else None

