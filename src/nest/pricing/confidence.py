"""The confidence of a price, from measured runs of the same software."""

from __future__ import annotations

import math

from nest.describe.cluster import Cluster
from nest.describe.job import Calibration, Job
from nest.graph import Chain
from nest.pricing.plans import Confidence

EXPERTS = (0.81, 1.24)
"""Measured over priced seconds of a mixture of experts where the stack measured none: the usual
spread of :mod:`nest.validation.ranges`."""
WIDER = 1.2
"""A range is so much wider for each property that was never measured (assumed; with a device left
out, unwidened ranges cover 90 % of its runs)."""


def confidence(
    step_time: float, chain: Chain, cluster: Cluster, job: Job, stages: int
) -> Confidence | None:
    """The range of nine of ten measured steps, and properties of the plan never measured.

    Parameters
    ----------
    step_time : priced seconds of a step.
    stages : of the pipeline; 1: there is none.

    Returns
    -------
    Confidence, or None if the stack was never measured. The percentiles are those of
    ``Stack.calibration``, of the runs that ``nest validate`` prices with the stack, for models that
    are not among them (:mod:`nest.validation.ranges`).
    """
    known = job.stack.calibration
    if known is None:
        return None
    beyond = []
    for device in cluster.device_types:
        name = device.name.casefold()
        if not any(name.startswith(measured.casefold()) for measured in known.devices):
            beyond.append(f"device {device.name} (measured: {', '.join(known.devices)})")
    if cluster.size > known.most_devices:
        beyond.append(f"{cluster.size:,} devices (measured: up to {known.most_devices:,})")
    if job.precision not in known.precisions:
        beyond.append(f"precision {job.precision} (measured: {', '.join(known.precisions)})")
    if chain.experts is not None and not known.experts:
        beyond.append("a mixture of experts")
    if stages > 1 and not known.pipelines:
        beyond.append("a pipeline")
    if chain.profile is not None:
        beyond.append("a measured profile instead of a model")
    low, high = _range(known, chain.experts is not None, len(beyond))
    return Confidence(
        low_s=step_time * low, high_s=step_time * high,
        configurations=known.configurations, beyond=tuple(beyond),
    )


def _range(known: Calibration, experts: bool, beyond: int) -> tuple[float, float]:
    """Least and largest measured over priced seconds."""
    low, high = known.low, known.high
    if experts:
        low, high = known.expert_low or EXPERTS[0], known.expert_high or EXPERTS[1]
    if not beyond:
        return low, high
    center, half = math.log(low * high) / 2.0, math.log(high / low) / 2.0 * WIDER**beyond
    return math.exp(center - half), math.exp(center + half)
