"""From a plan to plain seconds and bytes, by the cost functions of a single layer.

Nothing is summed or hidden here: what overlaps with what is for the simulation to find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.costs.choices import setting
from nest.costs.layer import LayerCosts, layer_costs
from nest.costs.network.fabric import fabric_of
from nest.costs.stage import hop
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration
from nest.describe.job import Job
from nest.graph import Chain, boundary_bytes
from nest.pricing.stages import body_of, layers_of, mask, relayed_bytes, shards_of, state_of
from nest.simulation.parts import ChunkMemory, LayerWork, Link, Rates, StageWork


class Priced(NamedTuple):
    """A stage in plain figures."""

    work: StageWork
    chunks: tuple[ChunkMemory, ...]
    constant: float
    """Bytes of parameters, gradients, optimizer states and ZeRO buffers."""


class Pricing:
    """Prices of one configuration.

    Parameters
    ----------
    chain : the layers of the model or profile.
    cluster, job : where and how it is trained.
    plan : a legal configuration of them.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, plan: Configuration) -> None:
        self.chain, self.cluster, self.job, self.plan = chain, cluster, job, plan
        self.order: Sequence[int] = plan.order or range(len(chain))
        self._fabric = fabric_of(cluster)
        self._known: dict[tuple[int, float, float], tuple[Link, ...]] = {}
        """Links behind a stage over a way of so many seconds a byte and seconds."""

    @property
    def rates(self) -> Rates:
        """Shares of computing that hide traffic, as the software stack declares them."""
        stack = self.job.stack
        return Rates(stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather)

    def stage(self, number: int) -> Priced:
        """What one stage takes and holds."""
        stage = self.plan.stages[number]
        state = state_of(stage, self.plan, self._fabric)
        kind = self.cluster.kind_at(stage.devices[0])
        using = setting(self.cluster, self.job, kind)
        known: dict[tuple[int, int], LayerCosts] = {}
        work, memory = [], []
        every: list[LayerCosts] = []
        for span in stage.chunks:
            layers = []
            for kind, again in layers_of(self.chain, self.order, stage, span):
                if (kind, again) not in known:
                    known[kind, again] = layer_costs(
                        self.chain.kinds[kind], body_of(stage, self.plan, again, self._fabric),
                        state, using)
                layers.append(known[kind, again])
            work.append(tuple(self._layer_work(layer) for layer in layers))
            held = sum(float(layer.activations[0]) for layer in layers)
            held += relayed_bytes(self.chain, self.job, self.plan, self.order, stage, span)
            memory.append(ChunkMemory(held, max(float(layer.work[0]) for layer in layers)))
            every += layers
        resident = sum(float((c.parameters + c.gradients + c.optimizer)[0]) for c in every)
        return Priced(
            StageWork(tuple(work), sum(float(c.tied[0]) for c in every),
                      sum(float(c.update[0]) for c in every)),
            tuple(memory), resident + max(float(c.buffers[0]) for c in every))

    def links(self, replica: int) -> tuple[tuple[Link, ...], ...]:
        """Links behind each stage of one replica, by chunk."""
        return tuple(self._links(number, replica) for number in range(self.plan.pp))

    def _links(self, number: int, replica: int) -> tuple[Link, ...]:
        stage, after = self.plan.stages[number], self.plan.stages[(number + 1) % self.plan.pp]
        start = replica * self.plan.stride
        way = self._fabric.pair(start + stage.devices[1] - 1, start + after.devices[0], 1, 0)
        if (number, *way) not in self._known:
            lanes = min(shards_of(stage, self.job.stack), shards_of(after, self.job.stack))
            self._known[number, *way] = tuple(
                self._link(stop, lanes, *way) for _, stop in stage.chunks)
        return self._known[number, *way]

    def _link(self, cut: int, lanes: int, per_byte: float, latency: float) -> Link:
        """Half of the round trip each way; a message fills its lanes for its whole size."""
        size = 0.0
        if cut < len(self.chain):
            before = mask(self.order[:cut])
            size = boundary_bytes(self.chain, self.job, before) * self.plan.micro_batch
        both, gap = hop(size, lanes, per_byte, latency, self.job.stack)
        return Link(both / 2.0, gap)

    # ------------------------------------------------------------ layers

    def _layer_work(self, c: LayerCosts) -> LayerWork:
        """Seconds of a layer."""
        ahead = c.tp_forward + c.cp_forward + c.ep_forward
        back = c.tp_backward + c.cp_backward + c.ep_backward
        columns = (c.forward, c.backward + c.recompute, ahead, back, c.gathered,
                   c.regathered, c.scattered, c.sync, c.gather, c.gradients)
        return LayerWork(*(float(column[0]) for column in columns))
