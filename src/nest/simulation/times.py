"""From a plan to plain seconds and bytes, by the cost functions of a single layer.

Nothing is summed or hidden here: overlap follows from the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.costs.stage import hop
from nest.evaluation.stages import Pricing, shards_of
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.model import Chain
from nest.schedules.registry import placement, stage_behind
from nest.simulation.figures import ChunkMemory, LayerWork, Link, OverlapRates, StageWork


class StageFigures(NamedTuple):
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
        self._looped = placement(plan.schedule) == "looped"
        self._known: dict[tuple[float, ...], tuple[Link, ...]] = {}
        """Links after a stage, by its number, cuts, and seconds per byte and latency of the path"""

    @property
    def rates(self) -> OverlapRates:
        """Shares of computing that hide traffic, as the software stack declares them."""
        stack = self._pricing.stack(self.plan)
        return OverlapRates(stack.overlap_zero3, stack.overlap_grad_reduce,
                            stack.overlap_param_gather)

    def stage(self, number: int) -> StageFigures:
        """Seconds and bytes of one stage."""
        price = self._pricing.stage(self.plan, self.plan.stages[number])
        chunks = [[layer.costs for layer in chunk] for chunk in price.layers]
        every = [c for chunk in chunks for c in chunk]
        memory = tuple(
            ChunkMemory(kept, max((c["work"] for c in chunk), default=0.0), left,
                        price.largest("activations"))
            for kept, left, chunk in zip(price.kept, price.kept_for_weights, chunks, strict=True))
        resident = sum(c["parameters"] + c["gradients"] + c["optimizer"] for c in every)
        return StageFigures(
            StageWork(tuple(tuple(_layer_work(layer.costs, layer.weights, price.stack.overlap_ep,
                                              first=number == 0)
                                  for number, layer in enumerate(chunk))
                            for chunk in price.layers),
                      sum(c["tied"] for c in every), sum(c["update"] for c in every)),
            memory, resident + max((c["buffers"] for c in every), default=0.0) + price.received)

    def links(self, replica: int) -> tuple[tuple[Link, ...], ...]:
        """Links after each stage of one replica, by chunk."""
        return tuple(self._links(number, replica) for number in range(self.plan.pp))

    def _links(self, number: int, replica: int) -> tuple[Link, ...]:
        stage, after = self.plan.stages[number], self.plan.stages[(number + 1) % self.plan.pp]
        if not self._looped:
            return tuple(self._link_of(number, n, replica) for n in range(len(stage.chunks)))
        return self._to(number, stage, after, replica, [stop for _, stop in stage.chunks])

    def _link_of(self, number: int, chunk: int, replica: int) -> Link:
        """Behind a chunk to one of the neighbours of its stage."""
        plan = self.plan
        behind = stage_behind(plan.schedule, plan.pp, number, chunk, plan.vpp)
        if behind is None or behind == number:
            return Link(0.0, 0.0)
        first, second = sorted((number, behind))
        return self._to(number, plan.stages[first], plan.stages[second], replica,
                        [plan.stages[number].chunks[chunk][1]])[0]

    def _to(
        self, number: int, stage: StageConfiguration, after: StageConfiguration, replica: int,
        stops: Sequence[int],
    ) -> tuple[Link, ...]:
        """Links between two stages for what is handed over after some layers."""
        start = replica * self.plan.stride
        ends = start + stage.devices[1] - 1, start + after.devices[0]
        way = self._pricing.fabric.pair(*ends, 1, 0)
        key = (number, *stops, *way)
        if key not in self._known:
            lanes = min(shards_of(stage, self.job.stack), shards_of(after, self.job.stack))
            self._known[key] = tuple(self._link(stop, lanes, *way) for stop in stops)
        return self._known[key]

    def _link(self, cut: int, lanes: int, per_byte: float, latency: float) -> Link:
        """Half of the round trip each way; a message occupies its lanes for its whole size."""
        size = 0.0
        if cut < self._layers:
            size = self._pricing.handed(self.plan, cut) * self.plan.micro_batch
        both, gap = hop(size, lanes, per_byte, latency, self.job.stack)
        return Link(both / 2.0, gap)


def _layer_work(c: dict[str, float], weights: float, share: float, first: bool) -> LayerWork:
    """Seconds of a layer, of which ``weights`` of the backward are for weights.

    ``share`` of the traffic of experts may run beside another pass; the ``first`` layer of a chunk
    has the maxima of all.
    """
    maxima = c["maxima"] if first else 0.0
    return LayerWork(
        forward=c["forward"] + c["offload_forward"],
        backward=c["backward"] + c["recompute"] + c["offload_backward"],
        ahead=c["tp_forward"] + c["cp_forward"] + c["ep_forward"] + c["slowed_forward"] + maxima,
        back=c["tp_backward"] + c["cp_backward"] + c["ep_backward"] + c["slowed_backward"] + maxima,
        gathered=c["gathered"], regathered=c["regathered"], scattered=c["scattered"],
        reduced=c["sync"], refreshed=c["gather"], gradient_bytes=c["gradients"], weights=weights,
        exchanged_ahead=share * c["ep_forward"], exchanged_back=share * c["ep_backward"],
        busy_ahead=c["free_forward"] if c["ep_forward"] else 0.0,
        busy_back=c["free_backward"] if c["ep_forward"] else 0.0)
