"""The confidence of a price, from measured runs of the same software."""

from __future__ import annotations

from nest.describe.cluster import Cluster
from nest.describe.job import Job
from nest.graph import Chain
from nest.pricing.plans import Confidence


def confidence(step_time: float, chain: Chain, cluster: Cluster, job: Job) -> Confidence | None:
    """The range of nine of ten measured steps, and properties of the plan never measured.

    Parameters
    ----------
    step_time : priced seconds of a step.

    Returns
    -------
    Confidence, or None if the stack was never measured. The percentiles are those of
    ``Stack.calibration``, over the runs that ``nest validate`` prices with the stack.
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
    if chain.profile is not None:
        beyond.append("a measured profile instead of a model")
    return Confidence(
        low_s=step_time * known.low, high_s=step_time * known.high,
        configurations=known.configurations, beyond=tuple(beyond),
    )
