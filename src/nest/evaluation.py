"""Price exactly one configuration, with the cost functions alone: no tensors, no kernels.

This is what checks the search, what prices a person's own plan, and what an edited plan goes
through.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from nest.costs.choices import Row, choices, setting, span_level
from nest.costs.collectives import ALGORITHMS, algorithm
from nest.costs.compute import peak_flops
from nest.costs.groups import aligned, shared_level
from nest.costs.layer import (
    RECOMPUTE,
    SUMMED,
    Choices,
    LayerCosts,
    Setting,
    Sums,
    layer_costs,
    sums,
)
from nest.costs.memory import limit_bytes
from nest.costs.pipeline import StepTime, step_time
from nest.costs.stage import StageCosts, hop_seconds, stage_costs
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.errors import InputError
from nest.graph import Chain, boundary_bytes, build_chain, model_flop, profile_chain
from nest.legality import outer_problem, sequence_problem, stage_problem
from nest.plans import Breakdown, Inputs, Parallelism, Plan, Stage, StageMemory, StageTime
from nest.units import format_bytes


class _Priced(NamedTuple):
    """A stage and everything that its prices are made of."""

    stage: StageConfiguration
    causes: dict[str, float]
    """Sums over the layers of each field of ``LayerCosts`` (maxima for work and buffers)."""
    folded: Sums
    costs: StageCosts
    in_flight: int
    hop: float
    collectives: dict[str, str]

    @property
    def forward(self) -> float:
        return float(self.costs.forward[0])

    @property
    def backward(self) -> float:
        return float(self.costs.backward[0])


def chain_of(model: Model | Profile) -> Chain:
    """Layers of a model or of a profile."""
    return profile_chain(model) if isinstance(model, Profile) else build_chain(model)


def evaluate(
    model: Model | Profile, cluster: Cluster, job: Job, configuration: Configuration
) -> Plan:
    """Price a configuration.

    Parameters
    ----------
    model, cluster, job : what is trained, where, how.
    configuration : every stage, its layers, devices and degrees.

    Returns
    -------
    Plan
        ``feasible`` is False where a stage needs more memory than its devices have; ``problems``
        then says which, what for, and by how much.

    Raises
    ------
    InputError
        The configuration cannot be built at all: a cut, a block or a degree is not legal.
    """
    chain = chain_of(model)
    check(chain, cluster, job, configuration)
    m = job.global_batch // (configuration.outer_dp * configuration.micro_batch)
    priced = _price(chain, cluster, job, configuration, m)
    time = step_time(
        [p.forward for p in priced], [p.backward for p in priced],
        [float(p.costs.finish[0]) for p in priced], [p.hop for p in priced], m,
    )
    limit = limit_bytes(cluster.device, job)
    problems = tuple(_shortages(priced, limit))
    stages = tuple(_stage(p, limit) for p in priced)
    breakdown = _breakdown(priced, time, m)
    samples = job.global_batch / time.total
    peak = peak_flops(cluster.device, job.precision) * cluster.size
    used = configuration.stages[-1].devices[1]
    return Plan(
        step_time_s=time.total,
        samples_per_s=samples,
        tokens_per_s=samples * job.seq_len,
        mfu=model_flop(chain, job.seq_len) * job.global_batch / (peak * time.total),
        feasible=not problems,
        problems=problems,
        optimal=False,
        lower_bound_s=None,
        bottleneck=_bottleneck(priced, breakdown, time),
        parallelism=Parallelism(
            pp=configuration.pp, vpp=configuration.vpp, outer_dp=configuration.outer_dp,
            micro_batch=configuration.micro_batch, micro_batches=m,
            global_batch=job.global_batch, devices_used=used * configuration.outer_dp,
            stride=configuration.stride, schedule=configuration.schedule,
        ),
        stages=stages,
        replicas=tuple(r * configuration.stride for r in range(configuration.outer_dp)),
        breakdown_s=breakdown,
        inputs=Inputs(model=chain.model, profile=chain.profile, cluster=cluster, job=job),
    )


# ---------------------------------------------------------------- legality


def check(chain: Chain, cluster: Cluster, job: Job, plan: Configuration) -> None:
    """Raise an InputError that names every stage that cannot be built, and why."""
    found = []
    sequence = sequence_problem(chain, job)
    if sequence:
        found.append(sequence)
    if plan.vpp != 1:
        found.append(f"vpp {plan.vpp} is not available; allowed: 1")
    found += _cut_problems(chain, plan)
    if not found:
        outer = outer_problem(cluster, job, plan)
        found += [outer] if outer else []
    for number, stage in enumerate(plan.stages):
        where = f"stages.{number}: "
        legal = stage_problem(chain, job, stage, plan.micro_batch, plan.pp)
        found += [where + legal] if legal else []
        start, stop = stage.devices
        for r in range(plan.outer_dp):
            if not aligned(r * plan.stride + start, stop - start, cluster.group_sizes):
                found.append(where + f"devices [{start}, {stop}) of replica {r} straddle a group: "
                             "a block lies in one group of every level, or is whole groups")
                break
    if found:
        raise InputError("\n".join(found), tuple(found))


def _cut_problems(chain: Chain, plan: Configuration) -> list[str]:
    found, layer, device = [], 0, 0
    for number, stage in enumerate(plan.stages):
        if stage.layers[0] != layer:
            found.append(f"stages.{number}.layers: got [{stage.layers[0]}, {stage.layers[1]}); "
                         f"allowed: to start at {layer}, where the stage before ends")
        if stage.devices[0] != device:
            found.append(f"stages.{number}.devices: got [{stage.devices[0]}, "
                         f"{stage.devices[1]}); allowed: to start at {device}")
        layer, device = stage.layers[1], stage.devices[1]
    if layer != len(chain):
        found.append(f"stages.{plan.pp - 1}.layers: end at {layer}; allowed: {len(chain)}, "
                     f"the number of layers of {chain.name} with embedding and head")
    return found


# ---------------------------------------------------------------- prices


def _price(
    chain: Chain, cluster: Cluster, job: Job, plan: Configuration, m: int
) -> list[_Priced]:
    sizes = cluster.group_sizes
    common = setting(chain, cluster, job, span_level(plan.outer_dp, plan.stride, sizes))
    result = []
    for number, stage in enumerate(plan.stages):
        block = stage.devices[1] - stage.devices[0]
        row = Row(stage.devices[0], block, plan.micro_batch // stage.dp_in, stage.tp, stage.sp,
                  stage.ep, stage.etp, plan.outer_dp, plan.stride)
        policy = np.array([RECOMPUTE.index(stage.recompute)])
        choice = choices([row], np.array([stage.zero]), policy, sizes)
        layers = [layer_costs(chain.kinds[kind], choice, common)
                  for kind in chain.stage(*stage.layers)]
        causes = {
            f.name: (max if f.name in ("work", "buffers") else sum)(
                float(getattr(layer, f.name)[0]) for layer in layers)
            for f in fields(LayerCosts)
        }
        each = [sums(layer, job.stack) for layer in layers]
        folded = Sums(*(
            np.sum(field, axis=0) if n < SUMMED else np.max(field, axis=0)
            for n, field in enumerate(zip(*each, strict=True))
        ))
        costs = stage_costs(folded)
        hop = _hop(chain, cluster, job, plan, number)
        result.append(_Priced(stage, causes, folded, costs, min(plan.pp - number, m), hop,
                              _algorithms(choice, common, chain, stage, job)))
    return result


def _hop(
    chain: Chain, cluster: Cluster, job: Job, plan: Configuration, number: int
) -> float:
    """Round trip to the next stage, over the worst replica's level."""
    if number == plan.pp - 1:
        return 0.0
    sizes, start = cluster.group_sizes, plan.stages[number].devices[1]
    level = max(
        shared_level(r * plan.stride + start - 1, r * plan.stride + start, sizes)
        for r in range(plan.outer_dp)
    )
    lanes = min(_shards(stage) for stage in plan.stages[number : number + 2])
    size = boundary_bytes(chain, job, plan.stages[number].layers[1]) * plan.micro_batch
    return hop_seconds(size, lanes, 1.0 / cluster.resolved_bandwidth[level],
                       cluster.levels[level].latency, job.stack)


def _shards(stage: StageConfiguration) -> int:
    """Distinct pieces of what a stage hands over."""
    return stage.dp_in * (stage.tp if stage.sp else 1)


def _algorithms(
    c: Choices, s: Setting, chain: Chain, stage: StageConfiguration, job: Job
) -> dict[str, str]:
    """Algorithm of the collectives of each kind of group, for one layer's volume."""
    layer = max((chain.kinds[k] for k in chain.stage(*stage.layers)), key=lambda x: x.parameters)
    tokens = float(c.samples[0] * job.seq_len * s.hidden * s.machine.element)
    weight = 4.0 * layer.parameters / stage.tp
    found = {}
    for name, size, group, reduce in (
        ("tp", tokens, c.tp_group, not stage.sp),
        ("dp", weight, c.dp_group, stage.zero == 0),
    ):
        chosen = int(algorithm(np.array([size]), s.network, group, reduce)[0])
        if chosen:
            found[name] = ALGORITHMS[chosen]
    return found


# ---------------------------------------------------------------- report


def _memory(p: _Priced) -> StageMemory:
    c = p.causes
    activations = p.in_flight * c["activations"] + c["work"]
    parts = c["parameters"], c["gradients"], c["optimizer"], activations, c["buffers"]
    names = ("parameters", "gradients", "optimizer", "activations", "buffers")
    # The total is the sum that the search compares with the limit.
    total = (p.costs.resident + p.in_flight * p.costs.activations)[0]
    return StageMemory(**dict(zip(names, parts, strict=True)), total=float(total))


def _time(p: _Priced) -> StageTime:
    c = p.causes
    split = {
        "forward": c["forward"], "backward": c["backward"], "recompute": c["recompute"],
        "tp": c["tp_forward"] + c["tp_backward"], "cp": 0.0,
        "ep": c["ep_forward"] + c["ep_backward"], "zero": c["zero_forward"] + c["zero_backward"],
        "handover": p.hop,
    }
    return StageTime(**split, total=sum(split.values()))


def _stage(p: _Priced, limit: float) -> Stage:
    shared: dict[str, Any] = {name: getattr(p.stage, name) for name in
                              ("layers", "devices", "dp_in", "tp", "sp", "cp", "ep", "etp", "zero",
                               "recompute")}
    return Stage(
        **shared, in_flight=p.in_flight, time_s=_time(p),
        grad_sync_s=max(0.0, float(p.folded.sync[0])), finish_s=float(p.costs.finish[0]),
        memory_bytes=_memory(p), memory_limit_bytes=limit, collectives=p.collectives,
    )


def _shortages(priced: list[_Priced], limit: float) -> list[str]:
    found = []
    for number, p in enumerate(priced):
        memory = _memory(p)
        if memory.total > limit:
            parts = memory.model_dump(exclude={"total"})
            most = max(parts, key=lambda name: parts[name])
            found.append(
                f"stage {number} needs {format_bytes(memory.total)} of {format_bytes(limit)}: "
                f"{format_bytes(memory.total - limit)} short, most of it {most} "
                f"({format_bytes(parts[most])})"
            )
    return found


def _slowest(priced: list[_Priced]) -> int:
    return max(range(len(priced)), key=lambda n: priced[n].forward + priced[n].backward)


def _breakdown(priced: list[_Priced], time: StepTime, m: int) -> Breakdown:
    split = _time(priced[_slowest(priced)])
    causes = {name: m * getattr(split, name) for name in
              ("forward", "backward", "recompute", "tp", "cp", "ep", "zero")}
    return Breakdown(**causes, bubble=time.pipeline - sum(causes.values()), finish=time.finish)


def _bottleneck(priced: list[_Priced], breakdown: Breakdown, time: StepTime) -> str:
    words = {
        "forward": "arithmetic of stage {n}", "backward": "arithmetic of stage {n}",
        "recompute": "recomputation on stage {n}", "tp": "tensor-parallel traffic of stage {n}",
        "cp": "context-parallel traffic of stage {n}", "ep": "expert traffic of stage {n}",
        "zero": "ZeRO traffic of stage {n}", "bubble": "the pipeline's bubble",
        "finish": "gradients and optimizer at the end of the step",
    }
    shares: dict[str, float] = {}
    for name, seconds in breakdown.model_dump().items():
        text = words[name].format(n=_slowest(priced))
        shares[text] = shares.get(text, 0.0) + seconds / time.total
    ranked = [x for x in sorted(shares.items(), key=lambda x: -x[1])[:2] if x[1] >= 0.01]
    return ", then ".join(f"{text} ({share:.0%} of the step)" for text, share in ranked)
