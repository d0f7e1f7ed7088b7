"""From degrees of parallelism to the rows that :func:`nest.costs.layer.layer_costs` prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.collectives import Group, Network
from nest.costs.compute import Machine
from nest.costs.groups import inner_group, replica_group, shared_level
from nest.costs.layer import Choices, Setting
from nest.describe.cluster import Cluster
from nest.describe.job import Job
from nest.graph import Chain


class Row(NamedTuple):
    """Degrees of one stage, and where it and its replicas are."""

    start: int
    """First device of the block (super-pipeline 0)."""
    block: int
    samples: int
    """Per-device micro-batch."""
    tp: int
    sp: bool
    ep: int
    etp: int
    outer_dp: int
    stride: int
    """Devices from one super-pipeline to the next."""


def network(cluster: Cluster) -> Network:
    """Levels of a cluster as arrays, innermost first."""
    return Network(
        np.array(cluster.resolved_bandwidth),
        np.array([level.latency for level in cluster.levels]),
        np.array([level.in_network_reduction for level in cluster.levels]),
    )


def span_level(outer_dp: int, stride: int, group_sizes: Sequence[int]) -> int:
    """Highest level that a super-pipeline spans, over all of them."""
    if all(stride % g == 0 or g % stride == 0 for g in group_sizes):
        outer_dp = 1
    return max(
        shared_level(r * stride, (r + 1) * stride - 1, group_sizes) for r in range(outer_dp)
    )


def setting(
    chain: Chain, cluster: Cluster, job: Job, tied_level: int | NDArray[np.int64]
) -> Setting:
    """What all stages of a plan share."""
    machine = Machine(cluster.device, job.stack, job.precision)
    return Setting(machine, network(cluster), job, chain.hidden, tied_level)


def choices(
    rows: Sequence[Row],
    zero: NDArray[np.int64],
    recompute: NDArray[np.int64],
    group_sizes: tuple[int, ...],
) -> Choices:
    """Rows as arrays, with the groups of devices that each degree forms.

    ``zero`` and ``recompute`` are of shape (C,), or (1, P) to combine every policy with every row.
    """
    g = group_sizes
    samples, tp, sp, ep, etp = np.array([r[2:7] for r in rows], dtype=np.int64).T
    return Choices(
        samples=samples, tp=tp, sp=sp.astype(bool), ep=ep, etp=etp, zero=zero, recompute=recompute,
        tp_group=_group(inner_group(g, r.block, 1, r.tp) for r in rows),
        ep_group=_group(inner_group(g, r.block, r.etp, r.ep) for r in rows),
        etp_group=_group(inner_group(g, r.block, 1, r.etp) for r in rows),
        dp_group=_group(
            replica_group(g, r.start, r.block, r.tp, r.outer_dp, r.stride) for r in rows
        ),
        expert_dp_group=_group(
            replica_group(g, r.start, r.block, r.ep * r.etp, r.outer_dp, r.stride) for r in rows
        ),
    )


def _group(spreads: Iterable[tuple[tuple[int, ...], bool]]) -> Group:
    inside, even = zip(*spreads, strict=True)
    return Group(np.array(inside, dtype=np.int64), np.array(even, dtype=bool))
