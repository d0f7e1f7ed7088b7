"""The place of each rank: a launcher's process for each device that a plan uses."""

from __future__ import annotations

from typing import NamedTuple

from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration


class Rank(NamedTuple):
    """A rank, its device, and its position in each of its groups."""

    rank: int
    """0, 1, ... over the devices used, in the order of the cluster."""
    device: int
    """Number in the graph that the cluster was given as, or in a cluster with levels, where
    devices of whole groups that are not used have numbers too."""
    name: str
    """Of the device in that graph; empty in a cluster with levels."""
    replica: int
    """Super-pipeline."""
    stage: int
    """Position in the pipeline (pp)."""
    tp: int
    cp: int
    dp_in: int
    """Data parallel inside the block."""
    dp: int
    """Data parallel over all replicas."""
    ep: int
    etp: int
    expert_dp: int
    """Among the holders of the same experts, over all replicas."""


def stage_by_stage(way: Configuration, cluster: Cluster) -> tuple[int, ...]:
    """Device of each rank of software that numbers the ranks of a stage, of all replicas, together.

    Within a stage the order is that of :func:`ranks`.
    """
    numbers = cluster.numbers
    found = (replica * way.stride + device for stage in way.stages
             for replica in range(way.outer_dp) for device in range(*stage.devices))
    return tuple(device if numbers is None else numbers[device] for device in found)


def ranks(way: Configuration, cluster: Cluster) -> tuple[Rank, ...]:
    """Ranks of a plan; in a block tp goes fastest, then cp, then dp_in; of experts etp, then ep.

    See `nest.costs.network.placement`.
    """
    found: list[Rank] = []
    numbers = cluster.numbers
    for replica in range(way.outer_dp):
        for number, stage in enumerate(way.stages):
            first, stop = stage.devices
            copies = (stop - first) // (stage.ep * stage.etp)
            for place in range(stop - first):
                device = replica * way.stride + first + place
                rest, tp = divmod(place, stage.tp)
                dp_in, cp = divmod(rest, stage.cp)
                rest, etp = divmod(place, stage.etp)
                copy, ep = divmod(rest, stage.ep)
                found.append(Rank(
                    rank=len(found),
                    device=device if numbers is None else numbers[device],
                    name="" if cluster.names is None else cluster.names[device],
                    replica=replica, stage=number, tp=tp, cp=cp, dp_in=dp_in,
                    dp=replica * stage.dp_in + dp_in, ep=ep, etp=etp,
                    expert_dp=replica * copies + copy,
                ))
    return tuple(found)
