"""From a plan to plain seconds and bytes, by the cost functions of a single layer.

Nothing is summed or hidden here: overlap follows from the simulation.
"""

from __future__ import annotations

from typing import NamedTuple

from nest.costs.stage import hop
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration
from nest.describe.job import Job
from nest.graph import Chain
from nest.pricing.stages import Pricing, shards_of
from nest.simulation.parts import ChunkMemory, LayerWork, Link, Rates, StageWork


class Priced(NamedTuple):
    """Plain figures of a stage."""

    work: StageWork
    chunks: tuple[ChunkMemory, ...]
    constant: float
    """Bytes of parameters, gradients, optimizer states and ZeRO buffers."""


class Times:
    """Seconds and bytes of one configuration.

    Parameters
    ----------
    chain : the layers of the model or profile.
    cluster, job : where and how it is trained.
    plan : a legal configuration of them.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, plan: Configuration) -> None:
        self.job, self.plan = job, plan
        self._pricing, self._layers = Pricing(chain, cluster, job), len(chain)
        self._known: dict[tuple[int, float, float], tuple[Link, ...]] = {}
        """Links after a stage, by its number and the seconds per byte and latency of the path."""

    @property
    def rates(self) -> Rates:
        """Shares of computing that hide traffic, as the software stack declares them."""
        stack = self.job.stack
        return Rates(stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather)

    def stage(self, number: int) -> Priced:
        """Seconds and bytes of one stage."""
        price = self._pricing.stage(self.plan, self.plan.stages[number])
        chunks = [[layer.costs for layer in chunk] for chunk in price.layers]
        every = [c for chunk in chunks for c in chunk]
        memory = tuple(ChunkMemory(kept, max((c["work"] for c in chunk), default=0.0))
                       for kept, chunk in zip(price.kept, chunks, strict=True))
        resident = sum(c["parameters"] + c["gradients"] + c["optimizer"] for c in every)
        return Priced(
            StageWork(tuple(tuple(_layer_work(c) for c in chunk) for chunk in chunks),
                      sum(c["tied"] for c in every), sum(c["update"] for c in every)),
            memory, resident + max((c["buffers"] for c in every), default=0.0))

    def links(self, replica: int) -> tuple[tuple[Link, ...], ...]:
        """Links after each stage of one replica, by chunk."""
        return tuple(self._links(number, replica) for number in range(self.plan.pp))

    def _links(self, number: int, replica: int) -> tuple[Link, ...]:
        stage, after = self.plan.stages[number], self.plan.stages[(number + 1) % self.plan.pp]
        start = replica * self.plan.stride
        ends = start + stage.devices[1] - 1, start + after.devices[0]
        way = self._pricing.fabric.pair(*ends, 1, 0)
        if (number, *way) not in self._known:
            lanes = min(shards_of(stage, self.job.stack), shards_of(after, self.job.stack))
            self._known[number, *way] = tuple(
                self._link(stop, lanes, *way) for _, stop in stage.chunks)
        return self._known[number, *way]

    def _link(self, cut: int, lanes: int, per_byte: float, latency: float) -> Link:
        """Half of the round trip each way; a message occupies its lanes for its whole size."""
        size = 0.0
        if cut < self._layers:
            size = self._pricing.handed(self.plan, cut) * self.plan.micro_batch
        both, gap = hop(size, lanes, per_byte, latency, self.job.stack)
        return Link(both / 2.0, gap)


def _layer_work(c: dict[str, float]) -> LayerWork:
    """Seconds of a layer."""
    ahead = c["tp_forward"] + c["cp_forward"] + c["ep_forward"]
    back = c["tp_backward"] + c["cp_backward"] + c["ep_backward"]
    names = ("gathered", "regathered", "scattered", "sync", "gather", "gradients")
    return LayerWork(c["forward"], c["backward"] + c["recompute"], ahead, back,
                     *(c[name] for name in names))
