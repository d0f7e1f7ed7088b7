"""Every uniform configuration of a grid, priced: what calculators of training time do.

Such as Calculon (M. Isaev, N. McDonald, L. Dennison, R. Vuduc, "Calculon: a methodology and tool
for high-level co-design of systems and large language models", SC'23; its
``llm-optimal-execution``). The grid, for N devices and a global batch B:

- tp: every legal degree; sp with and without where tp is above 1;
- pp: every number of stages with tp x pp dividing N, up to the repeated layers; even cuts
  (:mod:`nest.even`; Calculon wants pp to divide the layers), the embedding in the first stage and
  the head in the last;
- dp = N / (tp x pp), or the largest divisor of B below where that does not divide B; next to tp
  (the order of ranks tp-dp-pp, Megatron-Core's default) or outermost (tp-pp-dp);
- ep: every divisor of the experts whose ep x etp divides tp x dp, with etp 1 or tp;
- micro-batch: every divisor of B / dp;
- ZeRO 0 to 3 over all of dp; recompute none, selective (the attention core), full;
- schedule: 1F1B; interleaved with every vpp that divides the layers of a stage; GPipe where the
  space names it.

Context parallelism is not in the grid: cp is 1. Models of the catalog on 1,024 devices have 20,000
to 50,000 points, with experts 100,000. Layers are priced as arrays for all of them, by the cost
functions on the real network; the step time of a point is worked out unless a bound from sums over
its layers, which no schedule undercuts, is as long as the best found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

from nest.costs.choices import setting
from nest.costs.memory import limit_bytes
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.describe.space import SearchSpace
from nest.errors import NoPlanError
from nest.evaluation import chain_of, evaluate
from nest.even import even_configuration
from nest.graph import Chain
from nest.legality import divisors, expert_problem, sequence_problem, tensor_degrees, tp_problem
from nest.planners.exhaustive_table import POLICIES, Best, Layout, Point, Table
from nest.planners.prices import Price, Prices, aligned_everywhere
from nest.plans import Plan

CHUNK = 20_000
"""Points priced at once (chosen: some 50 MB of arrays)."""


@dataclass(frozen=True)
class Exhaustive:
    """The fastest point of the grid that fits; where none does, the one that lacks least."""

    name: ClassVar[str] = "exhaustive"

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Price the whole grid.

        Raises
        ------
        NoPlanError
            No point of the grid is legal and in the space.
        """
        chain = chain_of(model)
        grid = Grid(chain, cluster, job, space)
        point = grid.best()
        if point is None:
            raise NoPlanError(f"no uniform tp, pp, dp and ep for {chain.name} on {cluster.size} "
                              "devices is legal and in the space")
        return evaluate(model, cluster, job, grid.configuration(point))


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
        self.prices = Prices(self.chain, self.cluster, self.job)

    def best(self) -> Point | None:
        """Visit all points."""
        best = Best()
        if sequence_problem(self.chain, self.job) is None and self.space.allows("cp", 1):
            first, last = self.chain.body
            for pp in range(1, last - first + 1):
                if self.space.allows("pp", pp):
                    self._visit(pp, best)
        return best.point or best.nearest

    def configuration(self, point: Point) -> Configuration:
        """A point in layers and devices."""
        n = point.layout
        return even_configuration(
            self.chain, self.cluster, self.job, pp=n.pp, tp=n.tp, sp=n.sp, ep=n.ep, etp=n.etp,
            dp_in=n.dp_in, outer_dp=n.outer_dp, mbs=point.mbs, zero=point.zero,
            recompute=point.recompute,  # type: ignore[arg-type]
            vpp=point.vpp, schedule=point.schedule)  # type: ignore[arg-type]

    def price(self, point: Point) -> Price:
        """What a point takes, as ``evaluate`` says."""
        return self.prices.price(self.configuration(point))

    # ------------------------------------------------------------ what is in the grid

    def layouts(self, pp: int) -> list[Layout]:
        """Legal ways to share out the devices among so many stages."""
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
                    layout = Layout(pp, tp, sp, ep, etp, dp_in, dp // dp_in)
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

    def _in_space(self, n: Layout) -> bool:
        return self.space.allows("dp_in", n.dp_in) and self.space.allows("outer_dp", n.outer_dp)

    def _aligned(self, n: Layout) -> bool:
        stride = self.cluster.size // n.outer_dp
        return all(aligned_everywhere(s * n.block, n.block, n.outer_dp, stride,
                                      self.cluster.group_sizes) for s in range(n.pp))

    def ways(self, pp: int) -> Iterator[tuple[str, int]]:
        """Schedules of a pipeline, and the virtual stages of each."""
        first, last = self.chain.body
        for name in self.space.schedule:
            if name != "interleaved":
                if self.space.allows("vpp", 1):
                    yield name, 1
            elif pp > 1 and self.chain.is_chain and (last - first) % pp == 0:
                yield from ((name, vpp) for vpp in divisors((last - first) // pp)
                            if vpp > 1 and self.space.allows("vpp", vpp))

    def _rows(self, layouts: Sequence[Layout]) -> list[tuple[int, int, int, str]]:
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

    # ------------------------------------------------------------ prices

    def _visit(self, pp: int, best: Best) -> None:
        """Price all points of one number of stages."""
        layouts = self.layouts(pp)
        rows = self._rows(layouts)
        for start in range(0, len(rows), CHUNK):
            table = Table(self, pp, layouts, rows[start:start + CHUNK])
            for schedule, vpp in self.ways(pp):
                table.visit(schedule, vpp, best)
