"""From degrees of parallelism to the arrays that :mod:`nest.costs.layer` prices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nest.costs.collectives import Group, Network
from nest.costs.compute import Array, Machine
from nest.costs.groups import inner_group, replica_group, shared_level
from nest.costs.layer import FULL, MODULE_BIT, Body, Setting, State
from nest.describe.cluster import Cluster
from nest.describe.job import Job

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Spread = tuple[tuple[int, ...], bool]


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


def setting(cluster: Cluster, job: Job) -> Setting:
    """What all stages of a plan share."""
    return Setting(Machine(cluster.device, job.stack, job.precision), network(cluster), job)


def policy(recompute: str, modules: Sequence[str]) -> int:
    """Recompute as a number of :mod:`nest.costs.layer`."""
    return FULL if recompute == "full" else sum(MODULE_BIT[name] for name in modules)


def bodies(
    group_sizes: tuple[int, ...], block: Ints, samples: Ints | Array, tp: Ints, sp: Bools,
    cp: Ints, a2a: Bools, ep: Ints, etp: Ints, recompute: Ints,
) -> Body:
    """Degrees on blocks of the given sizes, with the groups of devices that they form; (C,)."""
    one = np.ones_like(tp)
    return Body(
        samples, tp, sp, cp, a2a, ep, etp, recompute,
        _inner(group_sizes, block, one, tp), _inner(group_sizes, block, tp, cp),
        _inner(group_sizes, block, etp, ep), _inner(group_sizes, block, one, etp),
    )


def states(
    group_sizes: tuple[int, ...], start: Ints, block: Ints, tp: Ints, experts: Ints,
    outer_dp: Ints, stride: Ints, tied_level: Ints, zero: Ints, shard: Ints,
) -> State:
    """Holders of parameters of blocks and their replicas; (C,). ``experts``: ep x etp."""
    return State(
        tp, experts, np.ones_like(tp), zero, shard, tied_level,
        _replicas(group_sizes, start, block, tp, outer_dp, stride),
        _replicas(group_sizes, start, block, experts, outer_dp, stride),
        _inner(group_sizes, block, tp, block // tp),
        _inner(group_sizes, block, experts, block // experts),
        _replicas(group_sizes, start, block, block, outer_dp, stride),
    )


def _inner(group_sizes: tuple[int, ...], block: Ints, stride: Ints, size: Ints) -> Group:
    return _group([
        inner_group(group_sizes, *key) for key in
        zip(block.tolist(), stride.tolist(), size.tolist(), strict=True)
    ])


def _replicas(group_sizes: tuple[int, ...], *columns: Ints) -> Group:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return _group([replica_group(group_sizes, *key) for key in rows])


def _group(spreads: Sequence[Spread]) -> Group:
    inside, even = zip(*spreads, strict=True)
    return Group(np.array(inside, dtype=np.int64), np.array(even, dtype=bool))
