"""Traffic between the groups of a level in a step, which direct links carry.

A *place* is a group of the level below (a device at level 0), the unit that links join. Groups of
devices become *rings* of places, whose bytes may pass in any order of the members (arXiv:
2202.00433, section 4.2: all-reduce traffic is mutable); what goes from one place to a certain other
one is a *pair*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from nest.costs.memory import recipe
from nest.evaluation.stages import mask, shards_of
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.model import EXPERT, Chain, Layer, boundary_bytes

Members = tuple[int, ...]


class Demands(NamedTuple):
    """Bytes of a step."""

    rings: dict[Members, float]
    """Bytes that each member sends to the next, for any order of the members."""
    pairs: dict[tuple[int, int], float]
    """Bytes from one place to another."""

    def sent(self) -> dict[int, float]:
        """Bytes that each place sends."""
        found: dict[int, float] = defaultdict(float)
        for members, size in self.rings.items():
            for member in members:
                found[member] += size
        for (a, _), size in self.pairs.items():
            found[a] += size
        return found


class LevelTraffic:
    """Demands of configurations of one model, cluster and job on one level.

    Volumes: gradients and parameters as in arXiv:1910.02054, section 7; tensor parallelism four
    all-reduces of a layer's output a micro-batch, full recompute not counted (arXiv:2104.04473,
    section 3.2); cp rings of keys and values, once forward and twice back (arXiv:2310.01889);
    experts two all-to-alls each way (arXiv:2401.06066); hand-overs each way. Nothing is hidden.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, level: int) -> None:
        self.chain, self.job = chain, job
        self.below = cluster.group_sizes[level - 1] if level else 1
        self.inside = cluster.group_sizes[level]
        """Devices of a group of the level: links stay inside it."""
        self._recipe = recipe(job)

    def of(self, plan: Configuration) -> Demands:
        """Demands of a legal configuration."""
        rings: dict[Members, float] = defaultdict(float)
        pairs: dict[tuple[int, int], float] = defaultdict(float)
        m = self.job.global_batch // (plan.outer_dp * plan.micro_batch)
        for stage in plan.stages:
            for members, size in self._stage_rings(plan, stage, m):
                rings[members] += size
            for pair, size in self._expert_pairs(plan, stage, m):
                pairs[pair] += size
        for number in range(plan.pp):
            for pair, size in self._hand_overs(plan, number, m):
                pairs[pair] += size
        return Demands(dict(rings), dict(pairs))

    # ------------------------------------------------------------ rings

    def _stage_rings(
        self, plan: Configuration, stage: StageConfiguration, m: int
    ) -> Iterator[tuple[Members, float]]:
        """Gradients and parameters, tensor-parallel and context-parallel traffic of a stage."""
        start, stop = stage.devices
        layers = self._layers(stage)
        dense = sum(op.parameters for layer in layers for op in layer.operators
                    if op.split not in EXPERT) / stage.tp
        dense += sum(layer.measured[stage.tp].parameters for layer in layers if layer.measured)
        expert = sum(op.parameters for layer in layers for op in layer.operators
                     if op.split in EXPERT) / (stage.ep * stage.etp)
        block = stop - start
        for count, inner in ((dense, stage.tp), (expert, stage.ep * stage.etp)):
            if count:
                yield from self._state(plan, stage, count, inner, m)
        micro = plan.micro_batch // stage.dp_in
        element = 4.0 if self.job.precision == "fp32" else 2.0
        tokens = [(layer, float(micro * (layer.tokens or self.job.seq_len))) for layer in layers]
        if stage.tp > 1:
            size = sum(n * layer.hidden for layer, n in tokens if layer.repeated) * element
            yield from self._ring(plan, start, block, 1, stage.tp, 8.0 * m * size / stage.cp)
        if stage.cp > 1:
            size = sum(n * op.kv_width / min(stage.tp, op.kv_groups) for layer, n in tokens
                       for op in layer.operators if op.type == "attention") * element
            yield from self._ring(plan, start, block, stage.tp, stage.cp, 3.0 * m * size)

    def _state(
        self, plan: Configuration, stage: StageConfiguration, count: float, inner: int, m: int
    ) -> Iterator[tuple[Members, float]]:
        """Gradients and parameters: ``count`` on each of the devices ``inner`` apart."""
        start, stop = stage.devices
        gradient, weight = self._recipe.traveling_gradient, self._recipe.gathered
        again = 2.0 if self.job.stack.reshard_after_forward else 1.0
        bytes_each = (2.0 * gradient, gradient + weight, m * gradient + weight,
                      m * (gradient + again * weight))[stage.zero]
        if stage.shard == "dp":
            for members, times in holders(start, stop - start, inner, plan.outer_dp, plan.stride,
                                          self.below, self.inside):
                yield members, times * _passed(len(members)) * count * bytes_each
            return
        size = (stop - start) // inner
        yield from self._ring(plan, start, stop - start, inner, size, count * bytes_each)
        for members, times in holders(start, stop - start, stop - start, plan.outer_dp,
                                      plan.stride, self.below, self.inside):
            yield members, times * _passed(len(members)) * 2.0 * gradient * count / size

    def _ring(
        self, plan: Configuration, start: int, block: int, stride: int, size: int, volume: float
    ) -> Iterator[tuple[Members, float]]:
        """Groups of ``size`` devices ``stride`` apart, in a block and all its replicas."""
        span = stride * size
        for members, times in spread(start, block, stride, span, plan.outer_dp, plan.stride,
                                     self.below, self.inside):
            yield members, times * _passed(len(members)) * volume

    def _layers(self, stage: StageConfiguration) -> list[Layer]:
        return [self.chain.kinds[kind] for first, stop in stage.chunks
                for kind in self.chain.order[first:stop]]

    # ------------------------------------------------------------ pairs

    def _expert_pairs(
        self, plan: Configuration, stage: StageConfiguration, m: int
    ) -> Iterator[tuple[tuple[int, int], float]]:
        """Token copies to experts and back, forward and backward, evenly over the group."""
        layers = [layer for layer in self._layers(stage) if layer.experts is not None]
        if stage.ep == 1 or not layers:
            return
        start, stop = stage.devices
        element = 4.0 if self.job.precision == "fp32" else 2.0
        tokens = plan.micro_batch // stage.dp_in * self.job.seq_len / stage.cp / stage.tp
        copies = sum(tokens * layer.experts.top_k * layer.sent for layer in layers
                     if layer.experts is not None) * element
        span = stage.ep * stage.etp
        for members, times in spread(start, stop - start, stage.etp, span, plan.outer_dp,
                                     plan.stride, self.below, self.inside):
            each = times * stage.ep / len(members) * 4.0 * m * copies / len(members)
            for a in members:
                for b in members:
                    if a != b:
                        yield (a, b), each

    def _hand_overs(
        self, plan: Configuration, number: int, m: int
    ) -> Iterator[tuple[tuple[int, int], float]]:
        """Activations to the next stage and their gradients back, lane by lane."""
        stage, after = plan.stages[number], plan.stages[(number + 1) % plan.pp]
        cuts = [stop for _, stop in stage.chunks if stop < len(self.chain)]
        order = plan.order or range(len(self.chain))
        size = sum(boundary_bytes(self.chain, self.job, mask(order[:cut])) for cut in cuts)
        if not cuts or stage is after:
            return
        lanes = int(min(shards_of(stage, self.job.stack), shards_of(after, self.job.stack)))
        each = size * plan.micro_batch * m / lanes
        ends = [tuple(s.devices[0] + lane * (s.devices[1] - s.devices[0]) // lanes
                      for lane in range(lanes)) for s in (stage, after)]
        for replica in range(plan.outer_dp):
            first = replica * plan.stride
            for a, b in zip(*ends, strict=True):
                a, b = first + a, first + b
                if a // self.inside == b // self.inside and a // self.below != b // self.below:
                    yield (a // self.below, b // self.below), each
                    yield (b // self.below, a // self.below), each


def _passed(members: int) -> float:
    """Share of a buffer that each member of a ring sends in one pass."""
    return (members - 1) / members


@lru_cache(maxsize=20_000)
def holders(
    start: int, block: int, inner: int, outer_dp: int, stride: int, below: int, inside: int
) -> tuple[tuple[Members, int], ...]:
    """Rings of holders of the same parameters, and the number of groups of each.

    A group takes every ``inner``-th device of a block and the same devices of every replica;
    members in other groups of the level form another ring.
    """
    devices = [[r * stride + start + i + inner * j for r in range(outer_dp)
                for j in range(block // inner)] for i in range(inner)]
    return _rings(devices, below, inside)


@lru_cache(maxsize=20_000)
def spread(
    start: int, block: int, stride: int, span: int, outer_dp: int, apart: int, below: int,
    inside: int,
) -> tuple[tuple[Members, int], ...]:
    """Rings of the groups of a block, ``stride`` between members, and of its replicas."""
    devices = [[r * apart + start + first + i + step for step in range(0, span, stride)]
               for r in range(outer_dp) for first in range(0, block, span) for i in range(stride)]
    return _rings(devices, below, inside)


def _rings(
    groups: list[list[int]], below: int, inside: int
) -> tuple[tuple[Members, int], ...]:
    found: dict[Members, int] = defaultdict(int)
    for devices in groups:
        parts: dict[int, set[int]] = defaultdict(set)
        for device in devices:
            parts[device // inside].add(device // below)
        for part in parts.values():
            if len(part) > 1:
                found[tuple(sorted(part))] += 1
    return tuple(sorted(found.items()))
