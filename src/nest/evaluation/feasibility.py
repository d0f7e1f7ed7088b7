"""Why a configuration is illegal, and which stages need more memory than their devices have."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nest.costs.memory import memory_problem
from nest.costs.network.fabric import Fabric
from nest.errors import InputError
from nest.evaluation.plans import Stage
from nest.evaluation.stages import Pricing
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.model import Chain
from nest.model.legality import (
    excluded,
    offload_problem,
    outer_problem,
    schedule_problems,
    sequence_problem,
    stage_problem,
)
from nest.schedules.registry import twin
from nest.units import format_bytes


def check(pricing: Pricing, plan: Configuration) -> None:
    """Raise an InputError that names every illegal stage, with the reason.

    Parameters
    ----------
    pricing : of the chain, cluster and job that the plan is for.
    """
    chain, cluster, job = pricing.chain, pricing.cluster, pricing.job
    found = [*filter(None, [sequence_problem(chain, job), memory_problem(cluster, job),
                            offload_problem(chain, cluster, plan.offload),
                            excluded(plan.offload, "pp", plan.pp)])]
    if order := _order_problem(chain, plan):
        raise InputError(order, (order,))
    if plan.schedule in ("1f1b", "gpipe") or plan.vpp == 1:
        found += _cut_problems(chain, plan)
    if not found:
        outer = outer_problem(cluster, job, plan)
        found += [outer] if outer else list(schedule_problems(chain, job, plan))
    for number, stage in enumerate(plan.stages):
        where = f"stages.{number}: "
        legal = stage_problem(chain, job, stage, plan)
        found += [where + legal] if legal else []
        if straddling := _straddles(pricing.fabric, stage.devices, plan):
            found.append(where + straddling)
        start, stop = stage.devices
        site = np.array([start]), stop - start, plan.outer_dp, plan.stride
        if not found and not pricing.fabric.alike(*site).all():
            found.append(where + f"devices [{start}, {stop}) are of several types in a replica, or "
                         "of other types in another one; allowed: devices of one type")
        other = twin(plan.schedule, plan.pp, number)
        if not found and other is not None and cluster.type_at(start) != cluster.type_at(
                plan.stages[other].devices[0]):
            found.append(where + f"has other devices than stage {other}, which holds the same "
                         f"layers with schedule {plan.schedule}; allowed: devices of one type")
    if found:
        raise InputError("\n".join(found), tuple(found))


def _straddles(fabric: Fabric, devices: tuple[int, int], plan: Configuration) -> str | None:
    """Which group of the cluster a block is partly in, and what to do; None: in none."""
    start, stop = devices
    for replica in range(plan.outer_dp):
        first = replica * plan.stride + start
        size = fabric.straddled(first, stop - start)
        if size is not None:
            return (f"devices [{start}, {stop}) of replica {replica} straddle a group: a block "
                    "lies in one group of every level, or is whole groups, but this one begins at "
                    f"device {first % size} of a group of {size}; choose degrees whose blocks of "
                    f"{stop - start} devices fill groups of {size}, or another number of devices "
                    "(--devices N)")
    return None


def _order_problem(chain: Chain, plan: Configuration) -> str | None:
    """Why the order of a plan is illegal."""
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


def largest_part(stage: Stage) -> tuple[str, str]:
    """The category that takes most of a stage's memory, and its bytes in words.

    Of activations the words name the logits if these take most: a loss that software computes in
    chunks holds only a part of them, which has no price.
    """
    parts = stage.memory_bytes.model_dump(exclude={"total"})
    most = max(parts, key=lambda name: parts[name])
    words = format_bytes(parts[most])
    if most == "activations" and 2.0 * stage.logits_bytes > parts[most]:
        words += (f", of these {format_bytes(stage.logits_bytes)} logits and loss: a loss in "
                  "chunks of the sequence has no price")
    return most, words


def shortages(stages: Sequence[Stage], cluster: Cluster, job: Job) -> list[str]:
    """A sentence for each stage that needs more memory than its devices have."""
    found = []
    for number, stage in enumerate(stages):
        memory, limit = stage.memory_bytes, stage.memory_limit_bytes
        if memory.total > limit:
            most, words = largest_part(stage)
            whole = limit + job.memory_margin * cluster.device_types[
                cluster.type_at(stage.devices[0])].memory
            found.append(
                f"stage {number} needs {format_bytes(memory.total)} of {format_bytes(limit)}: "
                f"{format_bytes(memory.total - limit)} short, most of it {most} ({words})"
                + (f"; it fits in the {format_bytes(whole)} without the margin of "
                   f"{100 * job.memory_margin:g} % (--memory-margin 0)"
                   if memory.total <= whole and job.memory_margin else "")
            )
        limit = stage.host_limit_bytes or math.inf
        if stage.host_bytes > limit:
            found.append(f"stage {number} needs {format_bytes(stage.host_bytes)} of the host's "
                         f"memory for each device; it has {format_bytes(limit)}")
    return found
