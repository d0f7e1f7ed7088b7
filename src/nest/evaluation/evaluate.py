"""Price exactly one configuration, with the cost functions alone: no tensors, no kernels.

This checks the search, and prices configurations that a person or another tool wrote or edited.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from nest.costs.compute import peak_flops
from nest.costs.network.collectives import ALGORITHMS, algorithm
from nest.evaluation.breakdown import bottleneck, breakdown, slowest
from nest.evaluation.confidence import crowded, doubts, frozen_stages, sureness, swapped_heads
from nest.evaluation.feasibility import check, shortages
from nest.evaluation.plans import Inputs, Parallelism, Plan, Stage, StageMemory, StageTime
from nest.evaluation.ranks import stage_by_stage
from nest.evaluation.stages import Pricing, StagePrice, body_of, layers_of, state_of
from nest.evaluation.uneven import waiting_doubts
from nest.inputs.arguments import need
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.model import Chain, build_chain, model_flop, profile_chain
from nest.model.layouts import layout_of
from nest.schedules.registry import copies, placement
from nest.schedules.traits import Hop, StepTime
from nest.stacks import Finding, choosing, launch_needs, not_runnable, wrong_devices


def chain_of(model: Model | Profile) -> Chain:
    """Layers of a model or of a profile."""
    return profile_chain(model) if isinstance(model, Profile) else build_chain(model)


def need_question(model: object, cluster: object, job: object) -> None:
    """Refuse arguments of other classes, such as the names of a model and a cluster."""
    need("model", model, (Model, Profile), "nest.load_model or nest.load_profile")
    need("cluster", cluster, (Cluster,), "nest.load_cluster or nest.load_network")
    need("job", job, (Job,), "nest.Job(global_batch=512, seq_len=4096)")


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
    need_question(model, cluster, job)
    need("configuration", configuration, (Configuration,), "nest.load_configuration")
    return priced(chain_of(model), cluster, job, configuration)


def priced(chain: Chain, cluster: Cluster, job: Job, configuration: Configuration) -> Plan:
    """:func:`evaluate` for the layers of a model or of a profile.

    The plan's job has the figures of the values that the configuration chooses.
    """
    job = choosing(cluster, job, configuration.choices)
    pricing = Pricing(chain, cluster, job)
    check(pricing, configuration)
    m = pricing.micro_batches(configuration)
    prices, hops, time = _step(pricing, configuration)
    stages = tuple(_stage(pricing, configuration, number, *priced)
                   for number, priced in enumerate(zip(prices, hops, strict=True)))
    problems = tuple(shortages(stages, cluster, job))
    longest = slowest(prices)
    seconds = breakdown(stages[longest].time_s, time, m, configuration.pp,
                        pricing.hidden(configuration, longest, prices[longest]))
    samples = job.global_batch / time.total
    count = {0: cluster.size} if cluster.type_numbers is None else Counter(cluster.type_numbers)
    peak = sum(peak_flops(device, job.precision) * count[number]
               for number, device in enumerate(cluster.device_types))
    used = configuration.stages[-1].devices[1]
    broken = (*wrong_devices(cluster, job), *not_runnable(chain, job, configuration))
    needs = launch_needs(chain, job, configuration)
    known = sureness(time.total, chain, cluster, job, configuration)
    spread = _step(Pricing(chain, cluster, job, above=1.0), configuration)[
        2].total - time.total if job.uneven else None
    return Plan(
        step_time_s=time.total,
        step_spread_s=spread,
        samples_per_s=samples,
        tokens_per_s=samples * (job.tokens / job.global_batch),
        mfu=model_flop(chain, job.seq_len, job.samples) * job.global_batch / (peak * time.total),
        feasible=not problems,
        problems=problems,
        optimal=False,
        lower_bound_s=None,
        evidence=known.evidence,
        confidence=known.confidence,
        doubts=(*doubts(chain, cluster, job, configuration.offload),
                *frozen_stages(chain, configuration), *swapped_heads(chain, configuration),
                *waiting_doubts(job, configuration),
                *crowded(configuration, stages, cluster, job.memory_margin)),
        runnable=_runnable(chain, job, broken),
        not_runnable=broken,
        launch_needs=needs,
        host_order=stage_by_stage(configuration, cluster) if needs else None,
        bottleneck=bottleneck(longest, seconds, time.total),
        parallelism=Parallelism(
            pp=configuration.pp, vpp=configuration.vpp, outer_dp=configuration.outer_dp,
            micro_batch=configuration.micro_batch, micro_batches=m,
            global_batch=job.global_batch, devices_used=used * configuration.outer_dp,
            stride=configuration.stride, schedule=configuration.schedule, group=configuration.group,
            order=configuration.order, offload=configuration.offload, choices=configuration.choices,
        ),
        layout=layout_text(chain, configuration),
        stages=stages,
        replicas=tuple(r * configuration.stride for r in range(configuration.outer_dp)),
        breakdown_s=seconds,
        inputs=Inputs(model=chain.model, profile=chain.profile, cluster=cluster, job=job),
    )


def _step(
    pricing: Pricing, configuration: Configuration
) -> tuple[list[StagePrice], list[list[Hop]], StepTime]:
    """Prices of all stages, and of the step."""
    prices = [pricing.stage(configuration, stage) for stage in configuration.stages]
    hops = [pricing.hops(configuration, number) for number in range(configuration.pp)]
    return prices, hops, pricing.step_time(configuration, prices, hops)


def _runnable(chain: Chain, job: Job, broken: tuple[Finding, ...]) -> bool | None:
    """Whether the job's stack can run a plan; None: its tables do not say."""
    if job.stack.capabilities is None or (chain.unlisted and not broken):
        return None
    return not broken


def layout_text(chain: Chain, plan: Configuration) -> str | None:
    """Megatron-Core's text of the division of the layers; None: it has none."""
    if placement(plan.schedule) != "looped":
        return None
    spans = [stage.chunks[v] for v in range(plan.vpp) for stage in plan.stages]
    return layout_of(chain, [0, *(stop for _, stop in spans)], plan.pp)


def _stage(
    pricing: Pricing, plan: Configuration, number: int, price: StagePrice, hops: list[Hop]
) -> Stage:
    """A stage with its prices, as the plan reports it."""
    stage = plan.stages[number]
    shared: dict[str, Any] = {name: getattr(stage, name)
                              for name in StageConfiguration.model_fields}
    return Stage(
        **shared, in_flight=pricing.in_flight(plan, number),
        time_s=_time(price, hops, copies(plan.schedule)), param_wait_s=price.first.wait,
        grad_sync_s=price.left,
        finish_s=price.left + price.causes["tied"] + price.causes["update"],
        memory_bytes=_memory(price, pricing.held(plan, number, price)),
        memory_limit_bytes=pricing.limit(stage),
        logits_bytes=max((layer.costs["activations"] + layer.costs["work"]
                          for chunk in price.layers for layer in chunk if layer.loss), default=0.0),
        host_bytes=pricing.hosted(plan, number, price),
        host_limit_bytes=None if plan.offload == "none" else pricing.host_limit(plan, stage),
        collectives=_algorithms(pricing, plan, stage),
    )


def _memory(price: StagePrice, held: float) -> StageMemory:
    """``held``: bytes of activations of all micro-batches in flight."""
    c = price.causes
    return StageMemory(
        parameters=c["parameters"], gradients=c["gradients"], optimizer=c["optimizer"],
        activations=held + c["work"], buffers=c["buffers"] + price.received,
        total=price.resident + held)


def _time(price: StagePrice, hops: list[Hop], chains: int) -> StageTime:
    """Of a micro-batch, which passes the chunks of one of ``chains`` copies: their mean."""
    c = price.causes
    split = {
        "forward": c["forward"], "backward": c["backward"], "recompute": c["recompute"],
        "tp": c["tp_forward"] + c["tp_backward"],
        "cp": c["cp_forward"] + c["cp_backward"],
        "ep": c["ep_forward"] + c["ep_backward"],
        "offload": c["offload_forward"] + c["offload_backward"],
        "maxima": 2.0 * sum(chunk[0].seconds.maxima for chunk in price.layers if chunk),
        "zero": (sum(chunk.zero for chunk in price.chunks)
                 + c["slowed_forward"] + c["slowed_backward"]),
    }
    split = {cause: seconds / chains for cause, seconds in split.items()}
    split["handover"] = max(hop.both for hop in hops)
    return StageTime(**split, total=sum(split.values()))


def _algorithms(
    pricing: Pricing, plan: Configuration, stage: StageConfiguration
) -> dict[str, str]:
    """Algorithm of the collectives of each dimension, for the volume of the largest layer."""
    chain, job, s = pricing.chain, pricing.job, pricing.setting(plan, stage)
    body = body_of(stage, plan, 0, pricing.fabric)
    state = state_of(stage, plan, pricing.fabric)
    layers = [chain.kinds[kind] for span in stage.chunks
              for kind, _ in layers_of(chain, plan, stage, span)]
    if not layers:
        return {}
    layer = max(layers, key=lambda layer: layer.parameters)
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
        found["cp"] = {
            "p2p": "ring", "a2a": "all-to-all", "all_gather": "all-gather",
            "a2a+p2p": f"all-to-all of {stage.cp_a2a}, ring of {stage.cp // stage.cp_a2a}",
        }[stage.cp_comm]
    return found
