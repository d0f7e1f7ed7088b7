"""Alpa: sharding by an integer program, stages and meshes by a dynamic program.

L. Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
Learning", OSDI 2022, arXiv:2201.12023, and its authors' program (alpa-projects/alpa).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nest.errors import NoPlanError
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import divisors
from nest.planners.alpa.inter import AlpaPipeline, Inter, Meshes, Option
from nest.planners.flat import policies
from nest.planners.prices import Baseline

TOLERANCE = 1e-3
"""Share of its own estimate: limits on the slowest stage that could gain less are left out, as
those closer than epsilon are in section 5.2 (chosen; there 1e-6 s, and B times that in total)."""


@dataclass(frozen=True)
class Alpa(Baseline):
    """Intra-operator parallelism inside a stage's mesh, inter-operator parallelism between them.

    Layers are clustered; each cluster or run of clusters may be a stage on a mesh of
    1, 2, 4, ... devices of a node or of whole nodes (section 5.2); each mesh is viewed as n0 x n1
    with n1 inside a node, and sharded by the integer program (section 4), once with parameters
    replicated where that is cheaper and once with all of them sharded; the dynamic program takes
    the stages and meshes that cover the cluster exactly with the least sum(t) + (B - 1) max(t),
    where mem_stage + s mem_act fits (section 5.2). The network has two levels. Hand-overs between
    stages cost nothing (section 5.2). Around it every micro-batch size, and rematerialisation of
    every layer or of none (option ``remat_layer`` of the program).

    What differs, and why:

    - Stages lie in device order on aligned meshes (:func:`nest.costs.network.placement.aligned`):
      others are illegal. Alpa assigns its meshes by size, largest first.
    - t is the time of the nearest configuration alone on the two-level network, 1/B of the B
      micro-batches of a step with the exposed part of gathers, gradients and optimizer
      (:mod:`nest.planners.alpa.intra`). Alpa profiles the compiled stage, which leaves out
      gradients (``skip_grad_sync``), which the cost model of its program counts 1/B.
    - The choices of the integer program for single operators become degrees of the stage: axis 1 is
      tp, with the pairs of products split as Megatron-LM splits them; parameters sharded over axis
      0 are ZeRO-3. Replicated ones are ZeRO-1: after the program Alpa replaces all-reduces by
      reduce-scatters and all-gathers (section 4.2), which makes it sp as well.
    - One integer program for the whole model and a mesh, not one for each stage.
    """

    name: ClassVar[str] = "alpa"
    fixed: ClassVar[Mapping[str, object]] = {"outer_dp": 1, "cp": 1, "vpp": 1, "schedule": "1f1b"}
    tolerance: float = TOLERANCE

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """Choose by both passes."""
        meshes = Meshes(chain, cluster, job, space)
        last = meshes.cuts.last
        depths = [n for n in range(1, last + 1) if space.allows("pp", n)]
        best, chosen = math.inf, None
        for micro_batch in divisors(job.global_batch):
            options = meshes.options(micro_batch)
            for recompute in policies(space) if options else ():
                table = meshes.table(micro_batch, options, recompute)
                batches = job.global_batch // micro_batch
                pipeline = Inter(table, last, cluster.size, meshes.starts, batches, depths,
                                 self.tolerance).best(best)
                if pipeline is not None:
                    best = pipeline.seconds
                    chosen = (pipeline, options, micro_batch, recompute)
        if chosen is None:
            raise NoPlanError(
                f"{self.name}: no stages and meshes of the space cover the {cluster.size} devices "
                f"of {cluster.name} and fit their memory by the method's own count for "
                f"{chain.name}")
        return _configuration(meshes, *chosen)


def _configuration(
    meshes: Meshes, pipeline: AlpaPipeline, options: list[Option], micro_batch: int, recompute: str
) -> Configuration:
    """The pipeline on its meshes."""
    path = [0, *(stage.cuts[1] for stage in pipeline.stages)]
    stages = []
    for span, stage in zip(meshes.cuts.spans(path), pipeline.stages, strict=True):
        option = options[stage.way]
        way = option.way
        stages.append(StageConfiguration.parse({
            "layers": span, "devices": (stage.start, stage.start + option.mesh),
            "dp_in": option.mesh // way.tp, "tp": way.tp, "sp": way.sp, "ep": way.ep,
            "etp": way.etp, "zero": option.zero, "recompute": recompute,
        }, meshes.cuts.chain.name))
    return Configuration(micro_batch=micro_batch, stages=tuple(stages))
