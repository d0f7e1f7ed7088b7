"""Every uniform configuration of a grid, priced, as in calculators of training time.

Such as Calculon (M. Isaev, N. McDonald, L. Dennison, R. Vuduc, "Calculon: a methodology and tool
for high-level co-design of systems and large language models", SC'23; its
``llm-optimal-execution``). The grid, for N devices and a global batch B:

- tp: every legal degree; sp with and without where tp is above 1;
- pp: every number of stages with tp x pp dividing N, up to the repeated layers; even cuts
  (:mod:`nest.evaluation.even`; Calculon wants pp to divide the layers), the embedding in the first
  stage and the head in the last;
- dp = N / (tp x pp), or the largest divisor of B below where that does not divide B; next to tp
  (the order of ranks tp-dp-pp, Megatron-Core's default) or outermost (tp-pp-dp);
- ep: every divisor of the experts whose ep x etp divides tp x dp, with etp 1 or tp;
- micro-batch: every divisor of B / dp;
- ZeRO 0 to 3 over all of dp; recompute none, selective (the attention core), full;
- schedule: 1F1B; interleaved with every vpp that divides the layers of a stage; GPipe where the
  space names it.

Context parallelism is not in the grid: cp is 1. Models of the catalog on 1,024 devices have 20,000
to 50,000 points, with experts 100,000. Layers are priced as arrays for all of them, by the cost
functions on the real network; the step time of a point is computed unless a lower bound from sums
over its layers, valid for all schedules, is at least the best time found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nest.errors import NoPlanError
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import (
    sequence_problem,
)
from nest.planners.exhaustive.grid import Best, Grid, GridPoint, PointTable
from nest.planners.prices import Baseline

CHUNK = 20_000
"""Points priced at once (chosen: some 50 MB of arrays)."""


@dataclass(frozen=True)
class Exhaustive(Baseline):
    """The fastest point of the grid that fits; if none fits, the one that lacks least memory."""

    name: ClassVar[str] = "exhaustive"

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """Price the whole grid."""
        grid = Grid(chain, cluster, job, space)
        point = best(grid)
        if point is None:
            raise NoPlanError(f"no uniform tp, pp, dp and ep for {chain.name} on {cluster.size} "
                              "devices is legal and in the space")
        return grid.configuration(point)


def best(grid: Grid) -> GridPoint | None:
    """Visit all points, by number of stages."""
    found = Best()
    if sequence_problem(grid.chain, grid.job) is None and grid.space.allows("cp", 1):
        first, last = grid.chain.body
        for pp in range(1, last - first + 1):
            if grid.space.allows("pp", pp):
                _visit(grid, pp, found)
    return found.point or found.nearest


def _visit(grid: Grid, pp: int, best: Best) -> None:
    """Price all points of one number of stages."""
    layouts = grid.layouts(pp)
    rows = grid.rows(layouts)
    for start in range(0, len(rows), CHUNK):
        table = PointTable(grid, pp, layouts, rows[start:start + CHUNK])
        for schedule, vpp in grid.ways(pp):
            table.visit(schedule, vpp, best)
