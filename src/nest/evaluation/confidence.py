"""The confidence of a price, from measured runs of the same software."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nest.evaluation.plans import Confidence, Stage
from nest.inputs import link_kinds
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Calibration, Job
from nest.model import Chain
from nest.units import format_bandwidth

EXPERTS = (0.81, 1.24)
"""Measured over priced seconds of a mixture of experts where the stack measured none: the usual
spread of :mod:`nest.measured.validation.score`."""
WIDER = 1.2
"""A range is so much wider for each property that was never measured (assumed; with a device left
out, unwidened ranges cover 90 % of its runs)."""

OWN_MODULES = ("fsdp", "deepspeed")
"""Tables of rules of software that trains the modules of a model as they are."""
REPORTED = ("reported steps of FSDP and DeepSpeed took 0.8 to 2.4 times such prices, and up to 1.7 "
            "times the bytes")
"""What is known of :data:`OWN_MODULES`, which were never measured.

Least: NeMo AutoModel's Qwen3-30B and Nemotron 3 Nano on 8 H100 (docs/accuracy.md); most: Falcon-7B
with 4,096 tokens on 8 A100 of 40 GB, 2.93 s by FSDP and 2.86 s and 38 GB by DeepSpeed where 1.22 s
and 20.6 GiB are priced (deepspeedai/DeepSpeed issue 3901).
"""
HOSTED = "with the optimizer on the host a step took 4.1 times its price"
"""The same where something is kept in the memory of the hosts: 9.6 s by ZeRO-2, 2.3 priced."""
LOOPED = ("no price is known for experts outside grouped kernels: Hugging Face's loop over experts "
          "(transformers before 5) took 91 s where 2.7 s were priced")
"""The same of mixtures, whose experts may run one by one there.

Qwen3-30B-A3B by ZeRO-3 on 16 A800: 91.2 s (QwenLM/Qwen3 issue 1278). From version 5 on transformers
has grouped products (get_correct_experts_implementation of transformers==5.23.0).
"""


EDGE = 0.1
"""Share of a device's memory that runs need free, or they slow down before they fail.

Of 711 configurations of nanotron on H100 (Ultra-Scale Playbook,
vinjn/nanotron-ultrascale-playbook@924e4d0 assets/data/benchmarks/benchmarks_interactive.html) the
13 in pipelines that hold 64 GiB and more take 3.5 and 6.3 times as long for their price, in the
median, as those that hold 24 to 64. Default plans keep as much free (``memory_margin``).
"""


def doubts(chain: Chain, cluster: Cluster, job: Job, offload: str) -> tuple[str, ...]:
    """Why the price of a model may be far off; empty: nothing speaks against it.

    Where the stack of the job was measured, :func:`confidence` says what of a plan was not.
    """
    stack, found = job.stack, [*_foreign_links(cluster)]
    if stack.calibration is None:
        found.append(f"no measured run of stack {stack.name}")
        if stack.capabilities is not None and stack.capabilities.name in OWN_MODULES:
            found.append(REPORTED)
            found += [HOSTED] if offload != "none" else []
            found += [LOOPED] if chain.experts is not None else []
    return tuple(found)


def _foreign_links(cluster: Cluster) -> Iterator[str]:
    """Levels with the rate of another type of device: one was put in the place of the other.

    A rate that is no device's is a choice of the user, and no doubt.
    """
    for level, rate in zip(cluster.levels, cluster.nominal_bandwidth, strict=True):
        others = link_kinds.rates(level.link)
        for device in cluster.device_types if rate in others else ():
            link = link_kinds.own_link(device.name)
            own = None if link is None else link_kinds.device_rate(link, device.name)
            if own != rate or link != level.link:
                has = "links that are not known" if own is None else (
                    f"{link} of {format_bandwidth(own)}")
                yield (f"level {level.name} has {level.link} of {format_bandwidth(rate)}, which "
                       f"{device.name} does not: it has {has}")


def crowded(
    plan: Configuration, stages: Sequence[Stage], cluster: Cluster, margin: float
) -> tuple[str, ...]:
    """Why a plan that fits may run much slower: a device is close to its limit."""
    left = []
    for way, stage in zip(plan.stages, stages, strict=True):
        memory = cluster.device_types[cluster.type_at(way.devices[0])].memory
        room = stage.memory_limit_bytes - stage.memory_bytes.total
        left.append(margin + room / memory)
    if not margin <= min(left) < EDGE:
        return ()
    return (f"a device keeps {100 * min(left):.0f} % of its memory free: measured runs with less "
            "than 10 % took 3 to 10 times as long as others, while the allocator retried",)


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
    are not among them (:mod:`nest.measured.validation.score`).
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
