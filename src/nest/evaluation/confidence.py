"""How sure a price is: the measured runs like it, and the range that follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nest.evaluation.evidence import (
    NEAR,
    Array,
    MeasuredConfiguration,
    Properties,
    Runs,
    chip,
    missed,
    products,
    runs_of,
)
from nest.evaluation.plans import Confidence, Evidence, LikeRun, Plan, Stage, Word
from nest.inputs import link_kinds
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Calibration, Job
from nest.inputs.offload import Offload
from nest.model import Chain
from nest.units import format_bandwidth

EXPERTS = (0.81, 1.24)
"""Measured over priced seconds of a mixture of experts where a calibration has none."""
WIDER = 1.2
"""A range is so much wider for each property that was never measured (assumed; with a device left
out, unwidened ranges cover 90 % of its runs)."""

SHOWN = 3
"""Nearest runs that a plan names."""

UNMEASURED = (0.75, 2.5)
"""Least and most measured over priced seconds of software without any measured run.

92 of 100 of 1,028 configurations of five codes that no stack describes lie in it, together with
:data:`WAITS`: arXiv:2311.05610 (100), huggingface/nanotron's Ultra-Scale Playbook (90),
OpenLLM-France/Lucie-Training, AlibabaPAI/reconfigurable-dl-scheduler and FlagOpen/FlagPerf (100).
"""
WAITS = 0.05
"""Seconds that a pass of a micro-batch through the pipeline may take longer there, for each node
of the job if there are several: nanotron on 2 to 64 nodes, whose passes wait for the slowest."""

OWN_MODULES = ("fsdp", "deepspeed")
"""Tables of rules of software that trains the modules of a model as they are."""
REPORTED = ("reported steps of FSDP and DeepSpeed took 0.8 to 2.4 times such prices, and up to 1.7 "
            "times the bytes")
"""What is known of :data:`OWN_MODULES`, which were never measured.

Least: NeMo AutoModel's Qwen3-30B and Nemotron 3 Nano on 8 H100 (docs/accuracy.md); most: Falcon-7B
with 4,096 tokens on 8 A100 of 40 GB, 2.93 s by FSDP and 2.86 s and 38 GB by DeepSpeed where 1.22 s
and 20.6 GiB are priced (deepspeedai/DeepSpeed issue 3901).
"""
HOSTED_MOST, LOOPED_MOST = 5.0, 40.0
"""Measured over priced seconds at the most, of :data:`HOSTED` and :data:`LOOPED`."""
HOSTED = "with the optimizer on the host a step took 4.1 times its price"
"""The same where the optimizer is in the memory of the hosts: 9.6 s by ZeRO-2, 2.3 priced."""
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
NEW_PARTS = frozenset((
    "compressed attention", "sparse attention", "latent experts", "mixed residuals",
    "inputs of each layer", "shared keys",
    "gated_delta", "kimi_delta", "lightning", "mamba"))
"""What layers consist of that no measured run of any stack had, as `Chain.unlisted` calls it."""
WORDS: tuple[Word, ...] = ("measured", "between", "extrapolated", "never measured")
"""From the nearest evidence to none."""


def preferred(plans: Sequence[Plan]) -> Plan:
    """Of plans that the error of prices does not tell apart, the one to run.

    That is the one with the nearest evidence; of these the one that holds the least share of its
    memory limit.

    Parameters
    ----------
    plans : of one question, the fastest first.
    """
    best = plans[0]
    most = best.step_time_s * (1.0 + (best.error or 0.0))
    return min((plan for plan in plans if plan.step_time_s <= most),
               key=lambda plan: (WORDS.index(plan.evidence.word) if plan.evidence else len(WORDS),
                                 plan.memory_share))


def doubts(chain: Chain, cluster: Cluster, job: Job, offload: str) -> tuple[str, ...]:
    """Why the price of a model may be far off; empty: nothing speaks against it.

    Where the stack of the job was measured, :func:`sureness` says what of a plan was not.
    """
    stack, found = job.stack, [*_foreign_links(cluster)]
    if not stack.measured_on(cluster.device.name):
        found.append(f"no measured run of stack {stack.name}")
        if stack.capabilities is not None and stack.capabilities.name in OWN_MODULES:
            found.append(REPORTED)
            found += [HOSTED] if Offload.of(offload).optimizer else []
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


def swapped_heads(chain: Chain, plan: Configuration) -> tuple[str, ...]:
    """Why a plan that divides sequences of recurrences may be far off: none was measured."""
    forms = sorted(chain.mixers - {"attention"})
    if not forms or all(stage.cp == 1 for stage in plan.stages):
        return ()
    return (f"no measured run of context parallelism with {forms[0]}: its all-to-alls are priced "
            "as measured collectives",)


def frozen_stages(chain: Chain, plan: Configuration) -> tuple[str, ...]:
    """Why a plan with frozen layers behind its first stage may take longer.

    What a stage receives asks for a gradient there (NVIDIA/Megatron-LM@core_v0.16.1
    megatron/core/pipeline_parallel/p2p_communication.py, _communicate).
    """
    order = plan.order or range(len(chain))
    behind = (order[layer] for stage in plan.stages[1:] for first, stop in stage.chunks
              for layer in range(first, stop))
    if all(chain.kinds[chain.order[layer]].passes for layer in behind):
        return ()
    return ("stages behind the first one have layers in front of what is trained: priced without "
            "a backward pass, which Megatron's pipelines run all the same",)


def question_of(
    chain: Chain, cluster: Cluster, job: Job, plan: Configuration
) -> Properties:
    """What of a question decides which runs are like it; of unlike stages the largest degrees."""
    tp, cp, ep = (max(getattr(stage, name) for stage in plan.stages) for name in ("tp", "cp", "ep"))
    return Properties(cluster.device_types[0].name, chain.experts is not None, job.precision,
                    max(chain.parameters, 1.0), cluster.size, tp, plan.pp, cp, ep, job.seq_len)


class Sureness(NamedTuple):
    """What is known of a price."""

    evidence: Evidence
    confidence: Confidence


def sureness(
    step_time: float, chain: Chain, cluster: Cluster, job: Job, plan: Configuration
) -> Sureness:
    """The measured runs like a plan, and the range of nine of ten measured steps.

    Parameters
    ----------
    step_time : priced seconds of a step.
    """
    known, stack = job.stack.calibration, job.stack
    question = question_of(chain, cluster, job, plan)
    if known is not None:
        beyond = tuple(_beyond(_scope_of_calibration(known), chain, cluster, job, question))
        word: Word = "extrapolated" if beyond else "measured"
        low, high = _range(known, question.experts, len(beyond))
        count = known.configurations
        evidence = Evidence(word=word, configurations=count, like=0 if beyond else count,
                            nearest=(), missed=None)
    elif stack.measured_on(question.device):
        assert stack.runs is not None
        runs = runs_of(stack.runs)
        far = runs.far(question)
        beyond = tuple(_beyond(_scope_of_runs(runs), chain, cluster, job, question))
        evidence = _evidence(runs, far, bool(beyond))
        center, half = runs.spread(question, far)
        half *= WIDER ** len(beyond)
        # Three decimals: the last bits of the matrices depend on the machine.
        low, high = (round(math.exp(center + sign * half), 3) for sign in (-1.0, 1.0))
        low, high = min(low, 1.0), max(high, 1.0)  # a price is not outside of its own range
        count = evidence.configurations
    else:
        beyond, count = (), 0
        evidence = Evidence(word="never measured", configurations=0, like=0, nearest=(),
                            missed=None)
        low, high = UNMEASURED[0], _most(step_time, chain, cluster, job, plan)
    return Sureness(evidence, Confidence(low_s=step_time * low, high_s=step_time * high,
                                         configurations=count, beyond=beyond))


def _most(
    step_time: float, chain: Chain, cluster: Cluster, job: Job, plan: Configuration
) -> float:
    """The most measured over priced seconds of software that was never measured."""
    known, most = job.stack.capabilities, UNMEASURED[1]
    if known is not None and known.name in OWN_MODULES:
        most = max(most, HOSTED_MOST if Offload.of(plan.offload).optimizer else 0.0,
                   LOOPED_MOST if chain.experts is not None else 0.0)
    nodes = cluster.size // cluster.group_sizes[0]
    passes = job.global_batch // (plan.outer_dp * plan.micro_batch) + plan.pp - 1
    return most + (WAITS * nodes * passes / step_time if nodes > 1 else 0.0)


def _evidence(runs: Runs, far: Array, beyond: bool) -> Evidence:
    """The nearest runs, and what the prices of those like the question missed."""
    order = sorted(range(len(far)), key=lambda n: (far[n], n))
    like = [n for n in order if far[n] <= NEAR]
    known = missed([runs.measured[n] for n in like or order], apart=bool(like))
    nearest = tuple(_like_run(runs.measured[n], float(far[n])) for n in order[:SHOWN])
    word: Word = "extrapolated" if beyond else "measured" if like else "between"
    return Evidence(word=word, configurations=len(order), like=len(like), nearest=nearest,
                    missed=known.error, fitted=known.fitted)


def _like_run(one: MeasuredConfiguration, far: float) -> LikeRun:
    own = one.question
    return LikeRun(group=one.group, model=one.model, device=own.device, devices=own.devices,
                   tp=own.tp, pp=own.pp, cp=own.cp, ep=own.ep, precision=own.precision,
                   distance=round(far, 3), error=1.0 / one.ratio - 1.0)


class Scope(NamedTuple):
    """What measured runs of a stack had."""

    devices: tuple[str, ...]
    has: Callable[[str], bool]
    """Whether a device is one of them."""
    most_devices: int
    precisions: tuple[str, ...]
    longest: float
    """Tokens of a sample at the most."""
    experts: bool
    pipelines: bool


def _scope_of_runs(runs: Runs) -> Scope:
    known = [one.question for one in runs.measured]
    chips = tuple(dict.fromkeys(chip(one.device) for one in known))
    return Scope(chips, lambda device: chip(device) in chips, max(one.devices for one in known),
                 tuple(dict.fromkeys(one.precision for one in known)),
                 max(one.seq_len for one in known), any(one.experts for one in known),
                 any(one.pp > 1 for one in known))


def _scope_of_calibration(known: Calibration) -> Scope:
    begins = tuple(name.casefold() for name in known.devices)
    return Scope(known.devices, lambda device: device.casefold().startswith(begins),
                 known.most_devices, known.precisions, math.inf, known.experts, known.pipelines)


def _beyond(
    scope: Scope, chain: Chain, cluster: Cluster, job: Job, question: Properties
) -> Iterator[str]:
    """Properties of a question that no measured run of its stack had."""
    for device in cluster.device_types:
        if not scope.has(device.name):
            yield f"device {device.name} (measured: {', '.join(scope.devices)})"
    if question.devices > scope.most_devices:
        yield f"{question.devices:,} devices (measured: up to {scope.most_devices:,})"
    if products(question.precision) not in map(products, scope.precisions):
        yield f"precision {question.precision} (measured: {', '.join(scope.precisions)})"
    if question.seq_len > scope.longest:
        yield f"samples of {question.seq_len:,} tokens (measured: up to {scope.longest:,})"
    if question.experts and not scope.experts:
        yield "a mixture of experts"
    if question.pp > 1 and not scope.pipelines:
        yield "a pipeline"
    if chain.model is not None and chain.model.trainable is not None:
        yield "frozen parameters"
    yield from (f"layers with {part}" for part in chain.unlisted if part in NEW_PARTS)
    if job.lengths is not None:
        yield "samples of many lengths"
    if chain.profile is not None:
        yield "a measured profile instead of a model"


def _range(known: Calibration, experts: bool, beyond: int) -> tuple[float, float]:
    """Least and largest measured over priced seconds."""
    low, high = known.low, known.high
    if experts:
        low, high = known.expert_low or EXPERTS[0], known.expert_high or EXPERTS[1]
    if not beyond:
        return low, high
    center, half = math.log(low * high) / 2.0, math.log(high / low) / 2.0 * WIDER**beyond
    return math.exp(center - half), math.exp(center + half)
