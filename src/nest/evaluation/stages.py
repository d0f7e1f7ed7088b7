"""The price of one stage of a configuration: the one place where it is put together.

``evaluate``, the simulation and the planners all price stages here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from nest.costs.activations import backward_parts
from nest.costs.choices import (
    Body,
    Site,
    StageSetting,
    State,
    Way,
    bodies,
    exchange_of,
    policy,
    settings,
    states,
)
from nest.costs.host import kept_away
from nest.costs.imbalance import ALONE, Waits, waits_of
from nest.costs.layer import LayerCosts, layer_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import Fabric, fabric_of
from nest.costs.stage import chunk_costs, hop, layer_seconds, with_parts
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job, Stack
from nest.model import Chain, boundary_bytes, relay_bytes
from nest.model.schedules import group_of
from nest.schedules.chunk import ChunkCosts, LayerSeconds
from nest.schedules.closed import Closed
from nest.schedules.path import Path
from nest.schedules.registry import SCHEDULES, copies, placement, stage_behind, twin
from nest.schedules.traits import Hop, StepTime

Span = tuple[int, int]
LARGEST = ("work", "buffers")
"""Fields of :class:`nest.costs.layer.LayerCosts` that count for the largest layer of a stage."""


class PricedLayer(NamedTuple):
    """A layer of a stage."""

    seconds: LayerSeconds
    costs: dict[str, float]
    """Every field of :class:`nest.costs.layer.LayerCosts`."""
    weights: float
    """Seconds of the backward that are for weights; 0 where the schedule has no parts."""
    kept: float
    """Bytes that the backward for inputs leaves to the one for weights; likewise."""
    repeated: bool
    """Not an embedding, a head or the like."""
    loss: bool
    """It computes logits and the loss."""


Layers = dict[tuple[int, int], PricedLayer]
"""Priced layers of a stage, by kind and recompute policy."""


@dataclass(frozen=True)
class StagePrice:
    """A priced stage."""

    layers: tuple[tuple[PricedLayer, ...], ...]
    """Of each chunk, first to last."""
    kept: tuple[float, ...]
    """Bytes of activations of a micro-batch in flight, by chunk."""
    hosted: tuple[float, ...]
    """The same in the memory of the host."""
    received: float
    """Bytes of buffers for what the stage receives of all micro-batches."""
    stack: Stack
    schedule: Closed | Path

    @cached_property
    def chunks(self) -> tuple[ChunkCosts, ...]:
        """Seconds of each chunk."""
        return tuple(self._chunk(chunk) for chunk in self.layers)

    def _chunk(self, layers: Sequence[PricedLayer]) -> ChunkCosts:
        seconds = [layer.seconds for layer in layers]
        found = chunk_costs(seconds, sum(layer.costs["update"] for layer in layers),
                            sum(layer.costs["tied"] for layer in layers), self.stack)
        if not self.schedule.parts:
            return found
        return with_parts(
            found, seconds, [layer.weights for layer in layers],
            [(layer.costs["ep_forward"], layer.costs["ep_backward"]) for layer in layers],
            self.stack)

    @cached_property
    def first(self) -> ChunkCosts:
        """The first chunk with layers."""
        filled = (chunk for chunk, layers in zip(self.chunks, self.layers, strict=True) if layers)
        return next(filled, self.chunks[0])

    @property
    def left(self) -> float:
        """Gradient reduction that the last backward of the first chunk does not hide; seconds."""
        return self.first.left_weights if self.schedule.split else self.first.left

    @property
    def kept_for_weights(self) -> tuple[float, ...]:
        """Bytes that a backward for inputs leaves to the one for weights, by chunk."""
        return tuple(sum(layer.kept for layer in chunk) for chunk in self.layers)

    @cached_property
    def causes(self) -> dict[str, float]:
        """Every field of ``LayerCosts`` over all layers."""
        return {field.name: self._over_layers(field.name) for field in fields(LayerCosts)}

    @cached_property
    def resident(self) -> float:
        """Bytes on a device besides the activations in flight, summed as the search does."""
        parameters, gradients, optimizer, work, buffers = map(
            self._over_layers, ("parameters", "gradients", "optimizer", *LARGEST))
        return parameters + gradients + optimizer + work + buffers + self.received

    def largest(self, name: str) -> float:
        """A field of the transformer layer that has most of it."""
        return max((layer.costs[name] for chunk in self.layers for layer in chunk
                    if layer.repeated), default=0.0)

    def _over_layers(self, name: str) -> float:
        every = [layer.costs[name] for chunk in self.layers for layer in chunk]
        return max(every, default=0.0) if name in LARGEST else sum(every)


class Pricing:
    """Prices stages of configurations of one model, cluster and job.

    Parameters
    ----------
    chain : the layers of the model or profile.
    cluster, job : where and how it is trained.
    above : standard deviations by which the busiest replica's samples are longer than expected.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, above: float = 0.0) -> None:
        self._above = above
        self.chain, self.cluster, self.job = chain, cluster, job
        self.fabric = fabric_of(cluster)
        types = cluster.device_types
        self._stacks = job.stack, job.stack.of_stages(2)
        self._settings: dict[tuple[str, Waits], tuple[StageSetting, ...]] = {}
        self._limits = [limit_bytes(device, job) for device in types]
        self._sizes: dict[tuple[int, tuple[int, ...] | None], float] = {}
        self._priced: dict[tuple[Any, ...], Layers] = {}

    def setting(self, plan: Configuration, stage: StageConfiguration) -> StageSetting:
        """The setting of the devices of a stage."""
        key = plan.offload, self.waits(plan)
        if key not in self._settings:
            gone = kept_away(self.chain, plan.offload)
            self._settings[key] = settings(self.cluster, self.job, gone, key[1])
        return self._settings[key][self.cluster.type_at(stage.devices[0])]

    def waits(self, plan: Configuration) -> Waits:
        """How ranks wait for those with longer samples."""
        return ALONE if not self.job.uneven else waits_of(plan.pp, plan.schedule, (
            (stage.zero, stage.shard) for stage in plan.stages), self._above)

    def stack(self, plan: Configuration) -> Stack:
        """The software, as it overlaps traffic in a pipeline of so many stages."""
        return self._stacks[plan.pp > 1]

    def limit(self, stage: StageConfiguration) -> float:
        """Bytes that a device of a stage may hold."""
        return self._limits[self.cluster.type_at(stage.devices[0])]

    def host_limit(self, plan: Configuration, stage: StageConfiguration) -> float:
        """Bytes of its host's memory for each device of a stage."""
        return self.setting(plan, stage).machine.device.host_memory or math.inf

    def stage(
        self, plan: Configuration, stage: StageConfiguration, known: Layers | None = None
    ) -> StagePrice:
        """Price a stage; ``known`` is a cache of layers for equal stages, which is extended."""
        known = self._priced.setdefault(self.alike(plan, stage), {}) if known is None else known
        order = self.order(plan)
        chunks, kept, hosted = [], [], []
        for span in stage.chunks:
            pairs = layers_of(self.chain, plan, stage, span)
            if missing := [pair for pair in dict.fromkeys(pairs) if pair not in known]:
                known |= self._layers(plan, stage, missing)
            layers = tuple(known[pair] for pair in pairs)
            chunks.append(layers)
            kept.append(sum(layer.costs["activations"] for layer in layers)
                        + self._relayed_bytes(plan, order, stage, span))
            hosted.append(sum(layer.costs["host_activations"] for layer in layers))
        return StagePrice(tuple(chunks), tuple(kept), tuple(hosted), self._received(plan, stage),
                          self.stack(plan), SCHEDULES[plan.schedule])

    def alike(self, plan: Configuration, stage: StageConfiguration) -> tuple[Any, ...]:
        """A key: stages that have the same price their layers alike, whichever these are."""
        start, stop = stage.devices
        degrees = (getattr(stage, name) for name in _DEGREES)
        return (plan.outer_dp, plan.stride, plan.micro_batch, plan.schedule, plan.offload,
                stop - start, self.fabric.place(start, plan.outer_dp, plan.stride),
                way_to_twin(stage, plan, self.fabric), self.cluster.type_at(start),
                self.waits(plan), *degrees)

    def _layers(
        self, plan: Configuration, stage: StageConfiguration, pairs: Iterable[tuple[int, int]]
    ) -> Layers:
        state, found = state_of(stage, plan, self.fabric, self.job.reduces_maxima), {}
        for kind, again in pairs:
            body = body_of(stage, plan, again, self.fabric)
            layer, s = self.chain.kinds[kind], self.setting(plan, stage)
            costs = layer_costs(layer, body, state, s)
            weights = kept = 0.0
            if SCHEDULES[plan.schedule].parts:
                split = backward_parts(layer, body, s, costs.backward, costs.activations)
                weights, kept = float(split.weights[0]), float(split.kept[0])
            found[kind, again] = PricedLayer(
                layer_seconds(costs), {name: float(x[0]) for name, x in vars(costs).items()},
                weights, kept, layer.repeated, any(op.loss for op in layer.operators))
        return found

    def _relayed_bytes(
        self, plan: Configuration, order: Sequence[int], stage: StageConfiguration, span: Span
    ) -> float:
        """Bytes per micro-batch and device that a chunk keeps for later layers."""
        if self.chain.is_chain:
            return 0.0
        size = relay_bytes(self.chain, self.job, mask(order[:span[0]]), mask(order[:span[1]]))
        lanes = stage.cp * (stage.tp if stage.sp else 1)
        return size * (plan.micro_batch // stage.dp_in) / lanes

    def _received(self, plan: Configuration, stage: StageConfiguration) -> float:
        """Bytes of buffers for activations and gradients that a stage receives in a step: PyTorch
        has one for each chunk and micro-batch (torch==2.13.0 torch/distributed/pipelining/stage.py:
        205; measured: docs/accuracy.md, "One rank on one GPU").
        """
        if not self.job.stack.receives_all:
            return 0.0
        size = sum(self.handed(plan, cut) for span in stage.chunks for cut in span)
        samples = self.job.global_batch // plan.outer_dp // copies(plan.schedule)
        return size * samples / shards_of(stage, self.job.stack)

    def order(self, plan: Configuration) -> Sequence[int]:
        """Layers in the order that the ranges of a configuration refer to."""
        return plan.order or range(len(self.chain))

    def handed(self, plan: Configuration, stop: int) -> float:
        """Bytes per sample that are handed over after the first ``stop`` layers."""
        key = (stop, plan.order)
        if key not in self._sizes:
            self._sizes[key] = boundary_bytes(
                self.chain, self.job, mask(self.order(plan)[:stop]))
        return self._sizes[key]

    def hops(self, plan: Configuration, number: int) -> list[Hop]:
        """From each chunk of a stage to the next stage, over the slowest path of all replicas.

        Where chunks interleave, the last stage hands over to the first; nothing is handed over
        after the last chunk of the model, nor within a stage.
        """
        stage, stack, found = plan.stages[number], self.job.stack, []
        for n, (_, stop) in enumerate(stage.chunks):
            behind = stage_behind(plan.schedule, plan.pp, number, n, plan.vpp)
            if behind is None or behind == number:
                found.append(Hop(0.0, 0.0))
                continue
            after = plan.stages[behind]
            # The neighbours' nearest devices, whichever of them comes first.
            ends = (stage.devices[1] - 1, after.devices[0])
            if behind == number - 1 and placement(plan.schedule) != "looped":
                ends = (after.devices[1] - 1, stage.devices[0])
            lanes = min(shards_of(stage, stack), shards_of(after, stack))
            found.append(hop(
                self.handed(plan, stop) * plan.micro_batch, lanes,
                *self.fabric.pair(*ends, plan.outer_dp, plan.stride), stack))
        return found

    def micro_batches(self, plan: Configuration) -> int:
        """Micro-batches of a super-pipeline per step."""
        return self.job.global_batch // (plan.outer_dp * plan.micro_batch)

    def in_flight(self, plan: Configuration, number: int) -> int:
        """Most micro-batches of which a stage holds the activations at once."""
        schedule, m = SCHEDULES[plan.schedule], self.micro_batches(plan)
        return schedule.in_flight(number, plan.pp, m, plan.vpp, group_of(plan))

    def held(self, plan: Configuration, number: int, price: StagePrice) -> float:
        """Most bytes of activations that a stage holds at once."""
        return self._held(plan, number, price.kept, price.kept_for_weights,
                          price.largest("activations"))

    def hosted(self, plan: Configuration, number: int, price: StagePrice) -> float:
        """Bytes of a device of a stage in the memory of its host."""
        if plan.offload == "none":
            return 0.0
        return price.causes["host_states"] + self._held(
            plan, number, price.hosted, (0.0,) * len(price.hosted),
            price.largest("host_activations"))

    def _held(
        self, plan: Configuration, number: int, kept: tuple[float, ...], left: tuple[float, ...],
        layer: float,
    ) -> float:
        schedule, m = SCHEDULES[plan.schedule], self.micro_batches(plan)
        return schedule.held(
            kept, number, plan.pp, m, group_of(plan), left if schedule.split else None, layer)

    def hidden(self, plan: Configuration, number: int, price: StagePrice) -> float:
        """Seconds of all-to-alls of experts of a stage that run beside another pass."""
        schedule, m = SCHEDULES[plan.schedule], self.micro_batches(plan)
        return schedule.hidden(price.chunks, number, plan.pp, m, group_of(plan))

    def step_time(
        self, plan: Configuration, stages: Sequence[StagePrice], hops: Sequence[Sequence[Hop]]
    ) -> StepTime:
        """Seconds of a step under the plan's schedule."""
        m, schedule = self.micro_batches(plan), SCHEDULES[plan.schedule]
        return schedule.step_time([s.chunks for s in stages], hops, m, group_of(plan))


_DEGREES = tuple(name for name in StageConfiguration.model_fields if name not in (
    "layers", "devices", "chunks", "recompute", "recompute_modules", "recompute_layers"))
"""Fields of a stage that prices of a layer under a given policy depend on."""


def layers_of(
    chain: Chain, plan: Configuration, stage: StageConfiguration, span: Span
) -> list[tuple[int, int]]:
    """Kind and recompute policy of each layer of a chunk, layers [i, j) in the plan's order.

    Of two copies of the model each has all layers that share a table of the vocabulary on one
    stage, which holds it once.
    """
    order, once = plan.order or range(len(chain)), copies(plan.schedule) > 1
    code, left = policy(stage.recompute, stage.recompute_modules), stage.recompute_layers
    found = []
    for kind in chain.stage(sorted(order[span[0]:span[1]])):
        kind = chain.shared.get(kind, kind) if once else kind
        again = code
        if left is not None and chain.kinds[kind].checkpointed:
            again = code if left > 0 else 0
            left -= 1
        found.append((kind, again))
    return found


def _site(stage: StageConfiguration, plan: Configuration) -> Site:
    start, stop = stage.devices
    return Site(*(np.array([figure]) for figure in
                  (start, stop - start, plan.outer_dp, plan.stride)))


def body_of(
    stage: StageConfiguration, plan: Configuration, recompute: int, fabric: Fabric
) -> Body:
    """The body of a stage; ``recompute`` as :func:`nest.costs.choices.policy`."""
    degrees = (plan.micro_batch // stage.dp_in, stage.tp, stage.sp, stage.cp,
               *exchange_of(stage.cp_comm, stage.cp, stage.cp_a2a), stage.ep, stage.etp)
    return bodies(fabric, _site(stage, plan), *(np.array([degree]) for degree in degrees),
                  recompute=np.array([recompute]))


def state_of(
    stage: StageConfiguration, plan: Configuration, fabric: Fabric, maxima: bool = False
) -> State:
    """The state of a stage; ``maxima``: its devices reduce maxima."""
    tp, experts, zero, shard = (np.array([degree]) for degree in (
        stage.tp, stage.ep * stage.etp, stage.zero, int(stage.shard == "dp_in")))
    found = states(fabric, _site(stage, plan), tp, experts, zero, shard, maxima)
    way = way_to_twin(stage, plan, fabric)
    return found if way is None else found._replace(twin=Way(*(np.array([x]) for x in way)))


def way_to_twin(
    stage: StageConfiguration, plan: Configuration, fabric: Fabric
) -> tuple[float, float] | None:
    """Seconds per byte and latency of the slowest path to the stage with the same layers, device by
    device; None: there is none.
    """
    start, stop = stage.devices
    number = twin(plan.schedule, plan.pp, start // (stop - start))  # blocks are equal
    if number is None:
        return None
    other = plan.stages[number].devices[0]
    ways = [fabric.pair(start + k, other + k, plan.outer_dp, plan.stride)
            for k in range(stop - start)]
    return max(rate for rate, _ in ways), max(latency for _, latency in ways)


def shards_of(stage: StageConfiguration, stack: Stack) -> int:
    """Shards of a hand-over that travel in parallel."""
    return stage.dp_in * stage.cp * (stage.tp if stage.sp or stack.scatter_gather else 1)


def mask(layers: Iterable[int]) -> int:
    """Layers as bits."""
    return sum(1 << layer for layer in layers)
