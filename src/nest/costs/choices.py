"""From degrees of parallelism to the arrays that :mod:`nest.costs.layer` prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.compute import Array, Machine
from nest.costs.host import HERE, Away
from nest.costs.imbalance import ALONE, Waits
from nest.costs.network.collectives import Group, Network
from nest.costs.network.fabric import Fabric
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CORE_ATTN, NORM, MLP_ACT, MOE, FULL = 1, 2, 4, 8, 16
"""Recompute is a sum of these: modules of selective recompute, or all of a layer; 0: none."""
PRODUCTS = 32
"""Every second product too; implied by NORM and MLP_ACT under stacks with selective_products."""
MLP, MLA_UP_PROJ, SHARED_EXPERTS, GDN_NORM_OUT = 64, 128, 256, 512
QKV_LINEAR, ATTN_PROJ = 1024, 2048
"""Under stacks with saves_outputs alone."""
UNREAD = 4096
"""Of operators that full recompute leaves out under stacks with stops_early; of no policy."""
MODULE_BIT = {"core_attn": CORE_ATTN, "norm": NORM, "mlp_act": MLP_ACT, "moe": MOE,
              "products": PRODUCTS, "mlp": MLP, "mla_up_proj": MLA_UP_PROJ,
              "shared_experts": SHARED_EXPERTS, "gdn_norm_out": GDN_NORM_OUT,
              "qkv_linear": QKV_LINEAR, "attn_proj": ATTN_PROJ}


def exchange_of(cp_comm: str, cp: int, cp_a2a: int) -> tuple[int, bool]:
    """``inner`` and ``gather`` of a :class:`Body` by the name of the exchange."""
    return {"a2a": cp, "a2a+p2p": cp_a2a}.get(cp_comm, 1), cp_comm == "all_gather"


def exchange_named(cp: int, inner: int, gather: bool) -> tuple[str, int]:
    """The other way: ``cp_comm`` and ``cp_a2a``."""
    if inner in (1, cp):
        return "all_gather" if gather else "a2a" if inner > 1 else "p2p", 1
    return "a2a+p2p", inner


class Body(NamedTuple):
    """C configurations as a micro-batch sees them; arrays of shape (C,).

    ``recompute`` may be of shape (1, R) instead, to price every policy with every configuration.
    """

    samples: NDArray[np.int64] | Array
    """Per-device micro-batch."""
    tp: NDArray[np.int64]
    sp: NDArray[np.bool_]
    cp: NDArray[np.int64]
    inner: NDArray[np.int64]
    """Ranks of cp that exchange by all-to-all: 1 in a ring, cp in all-to-all, between in both."""
    gather: NDArray[np.bool_]
    """The others gather keys and values, instead of passing them round a ring."""
    ep: NDArray[np.int64]
    etp: NDArray[np.int64]
    recompute: NDArray[np.int64]
    tp_group: Group
    swap_group: Group
    """Ranks of cp that exchange by all-to-all."""
    cp_group: Group
    """Ranks of cp, one of each such group, that pass keys and values or gather them."""
    ep_group: Group
    etp_group: Group
    replicas: NDArray[np.int64] | None = None
    """Groups of ranks with samples of their own, of which the busiest is priced; None: the mean."""
    near: NDArray[np.int64] | None = None
    """Those of them in a block."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups."""
        return self[9:14]

    def take(self, rows: NDArray[np.int64]) -> Body:
        """Select configurations."""
        columns: list[Any] = [column[rows] for column in self[:8]]
        columns += [self.recompute, *(group.take(rows) for group in self.groups)]
        columns += [None if column is None else column[rows]
                    for column in (self.replicas, self.near)]
        return Body(*columns)


class Way(NamedTuple):
    """From a device to one other; arrays of shape (C,)."""

    per_byte: Array
    latency: Array


class State(NamedTuple):
    """C configurations as parameters, gradients and optimizer see them; arrays of shape (C,).

    ``zero`` and ``shard`` may be of shape (1, Z) instead. Groups are the worst ones of the block
    and its replicas.
    """

    tp: NDArray[np.int64]
    ep: NDArray[np.int64]
    etp: NDArray[np.int64]
    zero: NDArray[np.int64]
    shard: NDArray[np.int64]
    """0: ZeRO shards over all holders of a parameter; 1: over those of the block (HSDP)."""
    tied_per_byte: Array
    """From one end of a super-pipeline to the other, where copies of tied embeddings are summed.
    """
    tied_latency: Array
    dp_group: Group
    """Holders of the same dense parameters: data and context parallel, in all replicas."""
    expert_dp_group: Group
    inner_group: Group
    """The same inside the block of one replica."""
    inner_expert_group: Group
    outer_group: Group
    """The same device of every replica."""
    twin: Way | None = None
    """To the device at the same place of the stage that holds the same layers; None: none does."""
    all_group: Group | None = None
    """All devices of the block and its replicas; None: they reduce no maxima."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups."""
        return self[7:12] if self.all_group is None else (*self[7:12], self.all_group)

    def take(self, rows: NDArray[np.int64]) -> State:
        """Some of the configurations."""
        columns: list[Any] = [column[rows] for column in self[:3]]
        columns += [self.zero, self.shard, self.tied_per_byte[rows], self.tied_latency[rows]]
        columns += [group.take(rows) for group in self[7:12]]
        columns.append(self.twin and Way(*(column[rows] for column in self.twin)))
        columns.append(self.all_group and self.all_group.take(rows))
        return State(*columns)


@dataclass(frozen=True)
class StageSetting:
    """Inputs that all stages of a plan on one device type share."""

    machine: Machine
    network: Network
    job: Job
    away: Away = HERE
    waits: Waits = ALONE
    """How ranks wait for those with longer samples."""


def network(cluster: Cluster) -> Network:
    """Levels of a cluster as arrays, innermost first."""
    return Network(
        np.array(cluster.resolved_bandwidth),
        np.array([level.latency for level in cluster.levels]),
        np.array([level.in_network_reduction for level in cluster.levels]),
        np.array([level.base_time for level in cluster.levels]),
        np.array([level.ramp for level in cluster.levels]),
        np.array([float(level.axes) for level in cluster.levels]),
        np.array([float(level.size) for level in cluster.levels]),
    )


def setting(
    cluster: Cluster, job: Job, type_number: int = 0, away: Away = HERE, waits: Waits = ALONE
) -> StageSetting:
    """Inputs that all stages of a plan on one device type share."""
    device = cluster.device_types[type_number]
    return StageSetting(Machine(device, job.stack, job.precision), network(cluster), job, away,
                        waits)


@lru_cache(maxsize=64)
def settings(
    cluster: Cluster, job: Job, away: Away = HERE, waits: Waits = ALONE
) -> tuple[StageSetting, ...]:
    """:func:`setting` of each device type of a cluster, resolved once for all prices."""
    return tuple(setting(cluster, job, number, away, waits)
                 for number in range(len(cluster.device_types)))


def policy(recompute: str, modules: Sequence[str]) -> int:
    """Recompute policy as a number, see :data:`FULL`."""
    return FULL if recompute == "full" else sum(MODULE_BIT[name] for name in modules)


class Site(NamedTuple):
    """Where C configurations lie; int64, shape (C,)."""

    start: Ints
    """First device of the block, in the first super-pipeline."""
    block: Ints
    outer_dp: Ints
    """Super-pipelines."""
    stride: Ints
    """Devices from one super-pipeline to the next."""

    @classmethod
    def alone(cls, block: Ints) -> Site:
        """Blocks at the first device, without replicas."""
        return cls(0 * block, block, 0 * block + 1, block)

    def take(self, rows: Ints) -> Site:
        """Some of the configurations."""
        return Site(*(column[rows] for column in self))


def bodies(
    fabric: Fabric, site: Site, *degrees: Any, recompute: Ints,
) -> Body:
    """Degrees on blocks, with the groups of devices that they form; (C,).

    ``degrees`` are the first eight fields of :class:`Body`: samples, tp, sp, cp, inner, gather, ep
    and etp.
    """
    samples, tp, sp, cp, inner, gather, ep, etp = degrees
    one = np.ones_like(tp)
    return Body(
        samples, tp, sp, cp, inner, gather, ep, etp, recompute,
        fabric.inside(*site, one, tp), fabric.inside(*site, tp, inner, inner > 1),
        # A recurrence exchanges heads over these, too.
        fabric.inside(*site, tp * inner, cp // inner, cp > inner),
        fabric.inside(*site, etp, ep, ep > 1), fabric.inside(*site, one, etp),
        replicas=site.outer_dp * (site.block // (tp * cp)), near=site.block // (tp * cp),
    )


def states(
    fabric: Fabric, site: Site, tp: Ints, experts: Ints, zero: Ints, shard: Ints,
    maxima: bool = False,
) -> State:
    """Holders of parameters of blocks and their replicas; (C,).

    ``experts``: ep x etp; ``maxima``: all devices reduce maxima.
    """
    return State(
        tp, experts, np.ones_like(tp), zero, shard, *fabric.ends(site.outer_dp, site.stride)[1:],
        fabric.over_replicas(*site, tp), fabric.over_replicas(*site, experts),
        fabric.inside(*site, tp, site.block // tp),
        fabric.inside(*site, experts, site.block // experts),
        fabric.over_replicas(*site, site.block),
        all_group=fabric.over_replicas(*site, np.ones_like(tp)) if maxima else None,
    )
