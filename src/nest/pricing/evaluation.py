"""Price exactly one configuration, with the cost functions alone: no tensors, no kernels.

This is what checks the search, what prices a person's own plan, and what an edited plan goes
through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from nest.costs.choices import Body, Setting, State, setting
from nest.costs.compute import peak_flops
from nest.costs.layer import LayerCosts, layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.collectives import ALGORITHMS, algorithm
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import aligned
from nest.costs.schedules import SCHEDULES, StepTime
from nest.costs.stage import ChunkCosts, Hop, LayerSeconds, chunk_costs, layer_seconds
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.errors import InputError
from nest.graph import (
    Chain,
    Layer,
    boundary_bytes,
    build_chain,
    model_flop,
    profile_chain,
)
from nest.graph.legality import outer_problem, schedule_problems, sequence_problem, stage_problem
from nest.pricing.confidence import confidence
from nest.pricing.plans import Breakdown, Inputs, Parallelism, Plan, Stage, StageMemory, StageTime
from nest.pricing.stages import (
    body_of,
    hops_of,
    layers_of,
    mask,
    relayed_bytes,
    state_of,
)
from nest.units import format_bytes


class _Priced(NamedTuple):
    """A stage and everything that its prices are made of."""

    stage: StageConfiguration
    causes: dict[str, float]
    """Sums over the layers of each field of ``LayerCosts`` (maxima for work and buffers)."""
    chunks: list[ChunkCosts]
    limit: float
    """Bytes that a device of the stage may hold."""
    in_flight: int
    """Micro-batches; those of one chunk where the schedule interleaves."""
    held: float
    """Bytes of activations of all that is in flight."""
    hops: list[Hop]
    """Behind each chunk."""
    collectives: dict[str, str]

    @property
    def seconds(self) -> float:
        """Of a micro-batch there and back."""
        return sum(c.forward + c.backward for c in self.chunks)


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
    time = _step_time(configuration, priced, m)
    problems = tuple(_shortages(priced))
    stages = tuple(_stage(p) for p in priced)
    breakdown = _breakdown(priced, time, m)
    samples = job.global_batch / time.total
    count = {0: cluster.size} if cluster.kinds is None else Counter(cluster.kinds)
    peak = sum(peak_flops(device, job.precision) * count[kind]
               for kind, device in enumerate(cluster.device_types))
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
        confidence=confidence(time.total, chain, cluster, job),
        bottleneck=_bottleneck(priced, breakdown, time),
        parallelism=Parallelism(
            pp=configuration.pp, vpp=configuration.vpp, outer_dp=configuration.outer_dp,
            micro_batch=configuration.micro_batch, micro_batches=m,
            global_batch=job.global_batch, devices_used=used * configuration.outer_dp,
            stride=configuration.stride, schedule=configuration.schedule,
            order=configuration.order,
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
    fabric = fabric_of(cluster)
    sequence = sequence_problem(chain, job)
    if sequence:
        found.append(sequence)
    order = _order_problem(chain, plan)
    if order:
        raise InputError(order, (order,))
    if plan.schedule != "interleaved":
        found += _cut_problems(chain, plan)
    if not found:
        outer = outer_problem(cluster, job, plan)
        found += [outer] if outer else list(schedule_problems(chain, job, plan))
    for number, stage in enumerate(plan.stages):
        where = f"stages.{number}: "
        legal = stage_problem(chain, job, stage, plan)
        found += [where + legal] if legal else []
        start, stop = stage.devices
        for r in range(plan.outer_dp):
            if not aligned(r * plan.stride + start, stop - start, cluster.group_sizes):
                found.append(where + f"devices [{start}, {stop}) of replica {r} straddle a group: "
                             "a block lies in one group of every level, or is whole groups")
                break
        site = np.array([start]), stop - start, plan.outer_dp, plan.stride
        if not found and not fabric.alike(*site).all():
            found.append(where + f"devices [{start}, {stop}) are of several types in a replica, or "
                         "of others in another; allowed: devices of one type")
    if found:
        raise InputError("\n".join(found), tuple(found))


def _order_problem(chain: Chain, plan: Configuration) -> str | None:
    """Why the layers cannot be put in the order of a plan."""
    if plan.order is None:
        return None
    if sorted(plan.order) != list(range(len(chain))):
        return f"order: allowed: each of the layers 0 to {len(chain) - 1} of {chain.name} once"
    place = {layer: n for n, layer in enumerate(plan.order)}
    for tensor in chain.tensors:
        for consumer in tensor.consumers:
            if place[tensor.producer] > place[consumer]:
                return (f"order: layer {consumer} comes before layer {tensor.producer}, which "
                        "it needs")
    return None


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
    fabric = fabric_of(cluster)
    settings = [setting(cluster, job, kind) for kind in range(len(cluster.device_types))]
    order = plan.order or tuple(range(len(chain)))
    schedule = SCHEDULES[plan.schedule]
    result = []
    for number, stage in enumerate(plan.stages):
        state = state_of(stage, plan, fabric)
        device = cluster.kind_at(stage.devices[0])
        common = settings[device]
        # Layers of a kind under the same policy cost the same: each is priced once.
        known: dict[tuple[int, int], tuple[LayerCosts, LayerSeconds]] = {}
        chunks, kept, every = [], [], []
        for span in stage.chunks:
            layers = []
            for kind, again in layers_of(chain, order, stage, span):
                if (kind, again) not in known:
                    body = body_of(stage, plan, again, fabric)
                    costs = layer_costs(chain.kinds[kind], body, state, common)
                    known[kind, again] = costs, layer_seconds(costs)
                layers.append(known[kind, again])
            chunks.append(chunk_costs(
                [seconds for _, seconds in layers], sum(float(c.update[0]) for c, _ in layers),
                sum(float(c.tied[0]) for c, _ in layers), job.stack))
            kept.append(sum(float(c.activations[0]) for c, _ in layers)
                        + relayed_bytes(chain, job, plan, order, stage, span))
            every += [costs for costs, _ in layers]
        largest = max((chain.kinds[kind] for kind, _ in known), key=lambda x: x.parameters)
        causes = {
            field.name: (max if field.name in ("work", "buffers") else sum)(
                float(getattr(costs, field.name)[0]) for costs in every)
            for field in fields(LayerCosts)
        }
        in_flight = schedule.in_flight(number, plan.pp, m, plan.vpp)
        hops = hops_of(fabric, job, plan, number,
                       lambda stop: boundary_bytes(chain, job, mask(order[:stop])))
        result.append(_Priced(
            stage, causes, chunks, limit_bytes(cluster.device_types[device], job), in_flight,
            schedule.held(kept, number, plan.pp, m), hops,
            _algorithms(body, state, common, largest, stage, job)))
    return result


def _step_time(plan: Configuration, priced: list[_Priced], m: int) -> StepTime:
    """Seconds of a step under the plan's schedule."""
    step_time: Callable[..., StepTime] = SCHEDULES[plan.schedule].step_time
    if plan.vpp > 1:
        return step_time([p.chunks for p in priced], [p.hops for p in priced], m)
    return step_time([p.chunks[0] for p in priced], [p.hops[0] for p in priced[:-1]], m)


def _algorithms(
    body: Body, state: State, s: Setting, layer: Layer, stage: StageConfiguration, job: Job
) -> dict[str, str]:
    """Algorithm of the collectives of each kind of group, for the volume of one layer."""
    tokens = float(body.samples[0] / stage.cp * job.seq_len * layer.hidden * s.machine.element)
    weight = 4.0 * layer.parameters / stage.tp
    found = {}
    for name, size, group, reduce in (
        ("tp", tokens, body.tp_group, not stage.sp),
        ("dp", weight, state.inner_group if stage.shard == "dp_in" else state.dp_group,
         stage.zero == 0),
    ):
        chosen = int(algorithm(np.array([size]), s.network, group, reduce)[0])
        if chosen:
            found[name] = ALGORITHMS[chosen]
    if stage.cp > 1:
        found["cp"] = {"p2p": "ring", "a2a": "all-to-all"}[stage.cp_comm]
    return found


# ---------------------------------------------------------------- report


def _memory(p: _Priced) -> StageMemory:
    c = p.causes
    parts = {
        "parameters": c["parameters"], "gradients": c["gradients"], "optimizer": c["optimizer"],
        "activations": p.held + c["work"], "buffers": c["buffers"],
    }
    # In the order of the sum that the search compares with the limit.
    resident = c["parameters"] + c["gradients"] + c["optimizer"] + c["work"] + c["buffers"]
    return StageMemory(**parts, total=resident + p.held)


def _time(p: _Priced) -> StageTime:
    c = p.causes
    split = {
        "forward": c["forward"], "backward": c["backward"], "recompute": c["recompute"],
        "tp": c["tp_forward"] + c["tp_backward"],
        "cp": c["cp_forward"] + c["cp_backward"],
        "ep": c["ep_forward"] + c["ep_backward"],
        "zero": sum(chunk.zero for chunk in p.chunks),
        "handover": max(hop.both for hop in p.hops),
    }
    return StageTime(**split, total=sum(split.values()))


def _stage(p: _Priced) -> Stage:
    shared: dict[str, Any] = {name: getattr(p.stage, name)
                              for name in StageConfiguration.model_fields}
    first = p.chunks[0]
    return Stage(
        **shared, in_flight=p.in_flight, time_s=_time(p), param_wait_s=first.wait,
        grad_sync_s=first.left, finish_s=first.left + p.causes["tied"] + p.causes["update"],
        memory_bytes=_memory(p), memory_limit_bytes=p.limit, collectives=p.collectives,
    )


def _shortages(priced: list[_Priced]) -> list[str]:
    found = []
    for number, p in enumerate(priced):
        memory, limit = _memory(p), p.limit
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
    return max(range(len(priced)), key=lambda n: priced[n].seconds)


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
