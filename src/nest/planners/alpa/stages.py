"""Meshes of Alpa's stages, and the latency and memory of every stage on each.

arXiv:2201.12023, section 5.2; ``get_submesh_choices`` and
``get_one_submesh_autosharding_config_choices`` of its authors' program (alpa-projects/alpa,
alpa/pipeline_parallel/stage_construction.py).

Shapes: K kinds of layers, C options (ways to run a stage on a mesh), P stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nest.costs.choices import FULL, Site, bodies, setting, states
from nest.costs.layer import layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import fabric_of
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain, boundary_bytes
from nest.model.legality import expert_problem, tensor_degrees
from nest.planners.alpa.inter import StageTable
from nest.planners.alpa.intra import Mesh, Pair, shard
from nest.planners.alpa.layers import clusters
from nest.planners.alpa.profile import AlpaLayerSeconds, alone, figures
from nest.planners.flat import (
    Array,
    Cuts,
    Ints,
    LayerSplit,
    body_prices,
    full_allowed,
    legal_starts,
    most_that_fit,
    sequence_split,
    two_level_network,
)


class Option(NamedTuple):
    """A way to run a stage."""

    mesh: int
    """Devices."""
    way: LayerSplit
    zero: int
    alone: bool
    """Only if one stage holds the whole model: the stack has no such ZeRO stage in pipelines."""


class AlpaLayerBytes(NamedTuple):
    """Bytes of a layer under C options, (C,), stacked (K, C): what adds up, and what does not."""

    resident: Array
    activations: Array
    work: Array
    """Largest, not summed."""
    buffers: Array
    """Largest, not summed."""


class Meshes:
    """Meshes, options on them, and their prices on the two-level network.

    Parameters
    ----------
    chain, cluster, job, space : what is trained, where, how, and what may be chosen.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.view = two_level_network(cluster)
        self.starts: dict[int, Ints] = {}
        for size in submeshes(self.view):
            starts = legal_starts(size, cluster)
            if len(starts):
                self.starts[size] = starts
        node = self.view.group_sizes[0]
        self.degrees = [(tp, sp) for tp in tensor_degrees(chain, node)
                        if (sp := sequence_split(chain, job, space, tp)) is not None]

    @cached_property
    def cuts(self) -> Cuts:
        """Cuts between clusters; layers of a graph stand in the order of the model.

        Clusters are balanced by forward seconds on the fewest devices; Alpa counts FLOP, which
        measured layers lack.
        """
        chain, job = self.chain, self.job
        fewest = 1 if chain.profile is None else chain.profile.degrees[0]
        prices = body_prices(chain, self.view, job, [LayerSplit(fewest, fewest > 1, 1, fewest)],
                             [1])
        work = prices.forward[np.array(chain.order), 0]
        received = np.array([boundary_bytes(chain, job, (1 << n) - 1) for n in range(len(chain))])
        return Cuts(chain, job, [(1 << n) - 1 for n in clusters(work, received)])

    def options(self, micro_batch: int) -> list[Option]:
        """Ways to run a stage, by mesh, over which a micro-batch can be divided."""
        if not self.space.allows("micro_batch", micro_batch):
            return []
        found: list[Option] = []
        for size in self.starts:
            for tp, sp in self.degrees:
                ranks, left = divmod(size, tp)
                pairs = [] if left else self._pairs(ranks, tp)
                if (not pairs or micro_batch % ranks or not self.space.allows("dp_in", ranks)
                        or not self.space.allows("mbs", micro_batch // ranks)):
                    continue
                mesh = Mesh(ranks, tp, micro_batch // ranks)
                for replicate in (True, False):
                    chosen = shard(self.chain, self.view, self.job, mesh, pairs, replicate)
                    way = LayerSplit(tp, sp, *chosen.pair)
                    found += [Option(size, way, zero, alone)
                              for zero, alone in self._zeros(chosen.parameters)]
        return list(dict.fromkeys(found))

    def _pairs(self, ranks: int, tp: int) -> list[Pair]:
        """Ways to distribute experts over one axis of a mesh, over both, or to divide each."""
        if self.chain.experts is None:
            return [(1, tp)] if self.space.allows("ep", 1) and self.space.allows("etp", tp) else []
        listed = dict.fromkeys(((1, tp), (tp, 1), (ranks, tp), (ranks * tp, 1), (1, 1)))
        return [(ep, etp) for ep, etp in listed
                if self.space.allows("ep", ep) and self.space.allows("etp", etp)
                and not expert_problem(self.chain, ep, etp)]

    def _zeros(self, parameters: bool) -> list[tuple[int, bool]]:
        """ZeRO stages that correspond to the sharding of parameters, and where they may be used."""
        allowed = [zero for zero in ((3,) if parameters else (1, 2, 0))
                   if self.space.allows("zero", zero)
                   and (zero == 0 or self.space.allows("shard", "dp"))]
        piped = [zero for zero in allowed if zero in self.job.stack.zero_with_pipeline]
        found = [(zero, False) for zero in piped[:1]]
        return found if allowed[:1] == piped[:1] else [*found, (allowed[0], True)]

    def table(self, micro_batch: int, options: Sequence[Option], recompute: str) -> StageTable:
        """Latency and memory of every stage under every option.

        The latency is that of the stage alone (:func:`nest.planners.alpa.profile.alone`); with s
        stages from itself to the end it holds s micro-batches (section 5.2).
        """
        cuts, (each, held) = self.cuts, self._kinds(micro_batch, options, recompute)
        batches = self.job.global_batch // micro_batch
        limit = limit_bytes(self.cluster.device, self.job)
        only = np.array([option.alone for option in options])
        latencies = self._latencies(each, batches)
        rows = []
        for i in range(cuts.last):
            room = limit - (cuts.sums(i, held.resident) + cuts.largest(i, held.work)
                            + cuts.largest(i, held.buffers))
            deepest = most_that_fit(room, cuts.sums(i, held.activations))
            whole = (i == 0) & (cuts.after(i) == cuts.last)
            deepest[np.ix_(~whole, only)] = 0.0
            if recompute == "full":
                deepest[~full_allowed(self.space, cuts.recomputed(i))] = 0.0
            rows.append((np.full(len(deepest), i), cuts.after(i), latencies[i], deepest))
        first, end, seconds, deepest = (np.concatenate(part) for part in zip(*rows, strict=True))
        mesh = np.array([option.mesh for option in options], dtype=np.int64)
        return StageTable(first, end, mesh, seconds, deepest)

    def _latencies(self, each: AlpaLayerSeconds, batches: int) -> list[Array]:
        """Seconds of a micro-batch on the stages that begin at each cut, by the cut they end at."""
        stack, chain = self.job.stack, self.chain
        layers = np.array([mask.bit_count() for mask in self.cuts.masks])
        found: list[list[Array]] = [[] for _ in layers[:-1]]
        ends = set(layers.tolist())
        for n, seconds in enumerate(
                alone(each, np.array(chain.order), layers[:-1], batches, stack), start=1):
            for i, row in enumerate(seconds):
                if int(layers[i]) + n in ends:
                    found[i].append(row)
        # One stage holds both copies of a tied embedding as one.
        whole = np.array(chain.stage(range(len(chain))))
        *_, last = alone(each, whole, layers[:1], batches, stack)
        found[0][-1] = last[0]
        return [np.stack(rows) for rows in found]

    def _kinds(
        self, micro_batch: int, options: Sequence[Option], recompute: str
    ) -> tuple[AlpaLayerSeconds, AlpaLayerBytes]:
        """Each kind of layer under each option; (K, C)."""
        mesh, zero = (np.array([getattr(o, name) for o in options]) for name in ("mesh", "zero"))
        tp, sp, ep, etp = (np.array(column) for column in zip(
            *(option.way for option in options), strict=True))
        one, fabric, site = np.ones_like(mesh), fabric_of(self.view), Site.alone(mesh)
        body = bodies(fabric, site, micro_batch * tp // mesh, tp, sp, one, one, one == 0, ep,
                      etp, recompute=one * (FULL if recompute == "full" else 0))
        # Where a stage has not all layers, the pipeline spans the cluster.
        per_byte, latency = fabric.pair(0, self.view.size - 1, 1, self.view.size)
        state = states(fabric, site, tp, ep * etp, zero, 0 * one)._replace(
            tied_per_byte=one * per_byte, tied_latency=one * latency)
        s = setting(self.view, self.job)
        priced = [layer_costs(kind, body, state, s) for kind in self.chain.kinds]
        held = [(c.parameters + c.gradients + c.optimizer, c.activations, c.work, c.buffers)
                for c in priced]
        return (AlpaLayerSeconds(*map(np.stack, zip(*map(figures, priced), strict=True))),
                AlpaLayerBytes(*map(np.stack, zip(*held, strict=True))))


def submeshes(view: Cluster) -> list[int]:
    """Devices of the meshes that stages may have: powers of two in a node, and whole nodes.

    A node whose size is not a power of two has the powers that divide it (where Alpa stops).
    ``view`` has one or two levels.
    """
    node = view.group_sizes[0]
    powers = [1 << n for n in range(node.bit_length()) if node % (1 << n) == 0 and 1 << n < node]
    return [*powers, *(nodes * node for nodes in range(1, view.size // node + 1))]
