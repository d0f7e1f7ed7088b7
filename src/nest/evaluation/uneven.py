"""Steps of samples of many lengths: how much they differ, and what waits are not priced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nest.costs.imbalance import largest_of
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.units import format_seconds


class UnevenSteps(NamedTuple):
    """Seconds besides the expected ones of a step, which waits for its busiest replica."""

    spread: float
    """Standard deviation between steps."""
    waits: float
    """About so much longer a step may take where ranks meet in each micro-batch."""
    why: tuple[str, ...]
    """Where they do."""


def uneven(
    job: Job, plan: Configuration, expected: float, seconds: Callable[[float], float],
) -> UnevenSteps | None:
    """What samples of many lengths add; None: attention sees whole sequences.

    Replicas wait for each other once a step, which is priced. Ranks that share experts or the
    parameters of a layer (ZeRO-3) do in every micro-batch, whose pairs vary sqrt(m) times as much
    as those of m; pipelines wait too (:func:`waiting`).

    Parameters
    ----------
    expected : seconds of a step.
    seconds : of a step whose busiest replica has so many standard deviations more.
    """
    if not job.samples or not job.stack.flash_attention:
        return None
    # Stages of unlike degrees: the one with the most replicas.
    replicas = max(plan.outer_dp * stage.dp_in for stage in plan.stages)
    batches = job.global_batch // (plan.outer_dp * plan.micro_batch)
    own, deviations, why = largest_of(replicas), 0.0, list[str]()
    if replicas > 1 and batches > 1:
        meet = {"ZeRO-3 gathers": any(stage.zero == 3 for stage in plan.stages),
                "experts exchange tokens": any(stage.ep > 1 for stage in plan.stages)}
        why += [name for name, holds in meet.items() if holds]
        if why:
            deviations = (math.sqrt(batches) - 1.0) * own.mean / own.deviation
    if plan.pp > 1:
        why.append("stages work on unlike micro-batches at once")
        deviations += waiting(plan.schedule, plan.pp, batches) / (
            math.sqrt(batches) * own.deviation)
    waits = seconds(deviations) - expected if deviations else 0.0
    return UnevenSteps(seconds(1.0) - expected, waits, tuple(why))


def waiting(schedule: str, pp: int, m: int) -> float:
    """Standard deviations of a micro-batch that a step of m unlike ones takes longer, about.

    In 1F1B and its kin stages pass micro-batches on in turn, so that each trip takes as long as the
    largest of pp (simulated with 8 to 64 micro-batches on 2 to 8 stages: 0.7 to 0.95 of that). All
    forwards in a row take their sum and pp - 1 times the longest one.
    """
    if schedule == "gpipe":
        return (pp - 1) * largest_of(m).mean
    return m * largest_of(min(pp, m)).mean


def waiting_doubt(found: UnevenSteps | None) -> Iterator[str]:
    """What of samples of many lengths is not priced, or was never measured."""
    if found is None:
        return
    # bench/packed_runs.csv, bench/lora_runs.csv
    yield ("prices of packed samples were compared with ten runs of short ones alone: the busiest "
           "replica of samples dealt at random is priced, without sorting or balancing them")
    if found.waits:
        yield (f"steps may take about {format_seconds(found.waits)} longer, which is not priced: "
               f"{' and '.join(found.why)} while lengths differ")
