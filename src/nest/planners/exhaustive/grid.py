"""The grid: layouts, micro-batches, ZeRO, recompute and schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from nest.costs.choices import CORE_ATTN, FULL, setting
from nest.costs.memory import limit_bytes
from nest.evaluation.even import even_configuration
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import (
    divisors,
    expert_problem,
    tensor_degrees,
    tp_problem,
)
from nest.planners.prices import PlannerPrices, Price, aligned_everywhere
from nest.schedules.registry import PLAIN

POLICIES = {"none": 0, "selective": CORE_ATTN, "full": FULL}
"""Recompute of the grid: Calculon's none, attn_only and full. Sets of other modules are not in its
grid; with all that a search tries, a grid would have up to 16 times as many points."""


class GridDivision(NamedTuple):
    """A division of the devices for one number of stages."""

    pp: int
    tp: int
    sp: bool
    ep: int
    etp: int
    dp_in: int
    outer_dp: int

    @property
    def block(self) -> int:
        return self.tp * self.dp_in


class GridPoint(NamedTuple):
    """One configuration of the grid."""

    layout: GridDivision
    mbs: int
    zero: int
    recompute: str
    schedule: str
    vpp: int


@dataclass
class Grid:
    """The points of a grid, by number of stages."""

    chain: Chain
    cluster: Cluster
    job: Job
    space: SearchSpace
    points: int = field(default=0, init=False)
    """Points priced so far."""

    def __post_init__(self) -> None:
        self.setting = setting(self.cluster, self.job)
        self.limit = limit_bytes(self.cluster.device, self.job)
        self.prices = PlannerPrices(self.chain, self.cluster, self.job)

    def configuration(self, point: GridPoint) -> Configuration:
        """A point as a configuration of layers and devices."""
        n = point.layout
        return even_configuration(
            self.chain, self.cluster, self.job, pp=n.pp, tp=n.tp, sp=n.sp, ep=n.ep, etp=n.etp,
            dp_in=n.dp_in, outer_dp=n.outer_dp, mbs=point.mbs, zero=point.zero,
            recompute=point.recompute,  # type: ignore[arg-type]
            vpp=point.vpp, schedule=point.schedule)  # type: ignore[arg-type]

    def price(self, point: GridPoint) -> Price:
        """Price of a point, equal to that of ``evaluate``."""
        return self.prices.price(self.configuration(point))

    # ------------------------------------------------------------ what is in the grid

    def layouts(self, pp: int) -> list[GridDivision]:
        """Legal ways to divide the devices among ``pp`` stages."""
        chain, space, size = self.chain, self.space, self.cluster.size
        found = []
        for tp in tensor_degrees(chain, size):
            if size % (tp * pp) or not space.allows("tp", tp):
                continue
            dp = max(d for d in divisors(self.job.global_batch) if d <= size // (tp * pp))
            for sp, (ep, etp) in product((True, False) if tp > 1 else (False,), self._pairs(tp)):
                if (tp > 1 and not space.allows("sp", sp)
                        or tp_problem(chain, self.job, tp, sp)):
                    continue
                inner = ep * etp // math.gcd(ep * etp, tp)
                for dp_in in dict.fromkeys((dp, inner)):
                    if dp % dp_in or tp * dp_in % (ep * etp):
                        continue
                    layout = GridDivision(pp, tp, sp, ep, etp, dp_in, dp // dp_in)
                    if self._in_space(layout) and self._aligned(layout):
                        found.append(layout)
        return list(dict.fromkeys(found))

    def _pairs(self, tp: int) -> list[tuple[int, int]]:
        """Expert-parallel and expert-tensor degrees beside a tp."""
        moe = self.chain.experts
        pairs = [(1, tp)] if moe is None else [
            (ep, etp) for etp in dict.fromkeys((1, tp)) for ep in divisors(moe.experts)]
        return [(ep, etp) for ep, etp in pairs
                if self.space.allows("ep", ep) and self.space.allows("etp", etp)
                and not expert_problem(self.chain, ep, etp)]

    def _in_space(self, n: GridDivision) -> bool:
        return self.space.allows("dp_in", n.dp_in) and self.space.allows("outer_dp", n.outer_dp)

    def _aligned(self, n: GridDivision) -> bool:
        stride = self.cluster.size // n.outer_dp
        return all(aligned_everywhere(s * n.block, n.block, n.outer_dp, stride,
                                      self.cluster.group_sizes) for s in range(n.pp))

    def ways(self, pp: int) -> Iterator[tuple[str, int]]:
        """Schedules of a pipeline, and the virtual stages of each."""
        first, last = self.chain.body
        for name in self.space.schedules:
            if name not in PLAIN:
                continue
            if name != "interleaved":
                if self.space.allows("vpp", 1):
                    yield name, 1
            elif (pp > 1 and self.chain.is_chain and (last - first) % pp == 0
                    and self.space.allows("group", pp)):
                yield from ((name, vpp) for vpp in divisors((last - first) // pp)
                            if vpp > 1 and self.space.allows("vpp", vpp))

    def rows(self, layouts: Sequence[GridDivision]) -> list[tuple[int, int, int, str]]:
        """Layout, micro-batch of a device, ZeRO stage and recompute of every point."""
        space, stack = self.space, self.job.stack
        again = [name for name in POLICIES if space.allows("recompute", name)
                 and (name != "selective" or ("core_attn" in self.chain.modules
                      and space.allows("recompute_modules", "core_attn")))]
        found = []
        for number, n in enumerate(layouts):
            zeros = [z for z in range(4) if space.allows("zero", z)
                     and (z == 0 or space.allows("shard", "dp"))
                     and (n.pp == 1 or z in stack.zero_with_pipeline)]
            sizes = [mbs for mbs in divisors(self.job.global_batch // (n.dp_in * n.outer_dp))
                     if space.allows("mbs", mbs) and space.allows("micro_batch", mbs * n.dp_in)]
            found += [(number, *rest) for rest in product(sizes, zeros, again)]
        return found
