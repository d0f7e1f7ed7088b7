"""Data parallelism only, with the state of the model sharded over the devices.

ZeRO (S. Rajbhandari et al., arXiv:1910.02054, section 5): stage 1 shards the optimizer, 2 also
gradients, 3 also parameters. FSDP (Y. Zhao et al., arXiv:2304.11277): full sharding is stage 3,
section 3.2.1; hybrid sharding shards inside a group of devices and replicates over groups, section
3.2.2, here inside a group of each level of the network. A step accumulates the gradients of all
micro-batches of the global batch.

For each stage and each way to shard, the largest micro-batch that fits is tried, without recompute
if possible, else with the attention core and then everything recomputed ("activation
checkpointing", arXiv:1910.02054, section 6.1); the fastest of these is chosen. A larger micro-batch
fills the devices better and gathers less often, but leaves fewer backwards to hide the gradient
reduction: a smaller one is taken if it is faster, as DeepSpeed's autotuner does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

from nest.errors import NoPlanError
from nest.evaluation.even import even_configuration
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.space import Recompute, SearchSpace
from nest.model import Chain
from nest.model.legality import divisors
from nest.planners.prices import Baseline, PlannerPrices, outside


class ZeroSharding(NamedTuple):
    """A ZeRO stage over groups of ``dp_in`` devices; hybrid where there are several groups."""

    zero: int
    dp_in: int
    outer_dp: int
    hybrid: bool


@dataclass(frozen=True)
class Zero(Baseline):
    """The fastest stage of ZeRO or FSDP that fits; else the one that lacks least memory."""

    name: ClassVar[str] = "zero"

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """Try every stage."""
        prices = PlannerPrices(chain, cluster, job)
        fitting: list[tuple[float, Configuration]] = []
        missed: list[tuple[float, Configuration]] = []
        for sharding in shardings(cluster, job, space):
            for recompute in ("none", "selective", "full"):
                ways = list(_ways(chain, cluster, job, space, prices, sharding, recompute))
                priced = [(prices.price(way), way) for way in ways]
                found = [(price.step_time, way) for price, way in priced if price.excess == 0.0]
                missed += [(price.excess, way) for price, way in priced if price.excess > 0.0]
                fitting += found
                if found:
                    break
        if not fitting and not missed:
            raise NoPlanError(f"no data-parallel configuration of {chain.name} with ZeRO 1 to 3 "
                              f"on {cluster.size} devices is legal and in the space")
        return min(fitting or missed, key=lambda pair: pair[0])[1]


def shardings(cluster: Cluster, job: Job, space: SearchSpace) -> Iterator[ZeroSharding]:
    """Ways to shard over device counts that divide the global batch."""
    most = max(d for d in divisors(job.global_batch) if d <= cluster.size)
    groups = [most, *(g for g in cluster.group_sizes if g < most and most % g == 0)]
    for dp_in, zero in product(groups, (1, 2, 3)):
        if not space.allows("zero", zero):
            continue
        hybrid = dp_in < most
        if space.allows("shard", "dp_in" if hybrid else "dp"):
            yield ZeroSharding(zero, dp_in, most // dp_in, hybrid)
        if not hybrid and space.allows("shard", "dp"):
            yield ZeroSharding(zero, 1, most, False)


def _ways(
    chain: Chain, cluster: Cluster, job: Job, space: SearchSpace, prices: PlannerPrices,
    n: ZeroSharding, recompute: Recompute,
) -> Iterator[Configuration]:
    """Legal configurations of a sharding, the largest micro-batch first."""
    for mbs in reversed(divisors(job.global_batch // (n.dp_in * n.outer_dp))):
        way = even_configuration(
            chain, cluster, job, dp_in=n.dp_in, outer_dp=n.outer_dp, mbs=mbs, zero=n.zero,
            shard="dp_in" if n.hybrid else "dp", recompute=recompute)
        if prices.legal(way) and outside(space, chain, way) is None:
            yield way
