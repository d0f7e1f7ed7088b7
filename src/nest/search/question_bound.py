"""What no plan of a question takes less than, in milliseconds: before any place is priced.

Proof: docs/proofs.md, Lemma 55 (totals of a question).
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from nest.costs.choices import Body, StageSetting
from nest.costs.compute import Machine
from nest.costs.memory import limit_bytes, recipe
from nest.costs.network.collectives import Network
from nest.costs.operators import compute_seconds, shares, tokens_of
from nest.inputs.base import FrozenDict
from nest.inputs.cluster import Cluster
from nest.inputs.device import Device
from nest.inputs.job import Job
from nest.model import Chain, Layer

MANY = 2**24
"""Samples of a device: products are as large as they are efficient, and kernels never short."""
COMPUTING = ("fused_experts", "fp8_attention", "fp8_head")
"""Flags of a stack that a plan may choose and that change what operators take."""
NOWHERE = Network(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.bool_))
"""No traffic is priced."""


def least_seconds(chain: Chain, cluster: Cluster, job: Job) -> float:
    """Seconds that no step takes less than; inf: the devices cannot hold the parameters.

    The computing of all layers at the rate of the largest products, on the fastest type of device,
    divided over all devices; and the bytes of parameters that no sharding divides further.
    """
    counted = [cluster.type_at(n) for n in range(cluster.size)] if cluster.types else (
        [0] * cluster.size)
    room = [limit_bytes(device, job) for device in cluster.device_types]
    if _held(chain, job) > sum(room[number] for number in counted):
        return math.inf
    learned = job.stack.learned
    factor = 1.0 if learned is None else learned.compute
    whole = min(_sample(chain, job, device) for device in cluster.device_types)
    return factor * job.global_batch * whole / cluster.size


def _sample(chain: Chain, job: Job, device: Device) -> float:
    """Device-seconds of a sample in all layers, each under the best flags of the stack."""
    steady = device.unchecked(gemm=FrozenDict({  # no slower for products above 1 TFLOP
        name: one.unchecked(decline=0.0) for name, one in device.gemm.items()}))
    known = Machine(steady, job.stack, job.precision)
    flags = [(False, True) if chain.experts is not None or known.format.narrow
             else (getattr(job.stack, name),) for name in COMPUTING]
    stacks = [job.stack.unchecked(**dict(zip(COMPUTING, values, strict=True)))
              for values in product(*flags)]
    every = [StageSetting(Machine(steady, stack, job.precision), NOWHERE,
                          job.unchecked(stack=stack)) for stack in stacks]
    counts = np.bincount(chain.order, minlength=len(chain.kinds)).tolist()
    return float(sum(count * min(_layer(kind, one) for one in every)
                     for kind, count in zip(chain.kinds, counts, strict=True)))


def _layer(layer: Layer, setting: StageSetting) -> float:
    """Device-seconds of a sample in a layer: on one device, which has many."""
    if layer.measured:
        return 0.0
    one = np.ones(1, dtype=np.int64)
    none: Any = None
    body = Body(MANY * one, one, one < 1, one, one, one < 1, one, one, 0 * one,
                none, none, none, none, none)
    ahead, back, _ = compute_seconds(layer, body, setting, shares(layer, body, setting),
                                     tokens_of(layer, body, setting)[0])
    return float(ahead[0] + back[0]) / MANY


def _held(chain: Chain, job: Job) -> float:
    """Bytes of the parameters of all layers of the body, sharded over all devices; 0: not known."""
    if job.optimizer == "muon" or job.stack.learned is not None:
        return 0.0
    r = recipe(job)
    each = r.parameter + r.gradient  # the optimizer's may be on hosts
    counts = np.bincount(chain.order, minlength=len(chain.kinds))
    return float(sum(each * count * kind.parameters
                     for kind, count in zip(chain.kinds, counts.tolist(), strict=True)
                     if kind.repeated))
