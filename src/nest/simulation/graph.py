"""A training step as a graph: what each rank computes and sends, and what waits for what.

Passes are those of :mod:`nest.simulation.tasks`. All traffic is there in full: shares that a stack
hides are left out, because what overlaps follows from the graph. A pass waits for its tensor,
context and expert parallel traffic; parameters are gathered a layer ahead; gradients leave behind
the pass that makes them, and the optimizer waits for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from nest.costs.choices import exchange_of
from nest.evaluation.evaluate import chain_of
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.evaluation.stages import PricedLayer, Pricing, layers_of, shards_of
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.model.schedules import group_of
from nest.schedules.registry import copies, position
from nest.simulation.tasks import INPUTS, WEIGHTS, Task, orders
from nest.simulation.volumes import GROUPS, Sent, layer_volumes


class Node(NamedTuple):
    """Something that a rank of a stage does; all ranks of the stage do the same."""

    name: str
    after: tuple[int, ...]
    """Numbers of the nodes that it waits for."""
    seconds: float = 0.0
    """Of computing."""
    sent: Sent | None = None
    """A collective."""
    peer: int | None = None
    """Stage that it sends to or receives from."""
    receives: bool = False
    size: float = 0.0
    """Bytes of a message."""
    tag: int = 0
    """Of a message: the same at both ends."""


class StepGraph:
    """The nodes of each stage of a plan, and its groups of ranks.

    Parameters
    ----------
    plan : stages of equal degrees.
    """

    def __init__(self, plan: Plan) -> None:
        inputs, self.way = plan.inputs, plan.configuration
        self.ranks = plan.ranks()
        self.pricing = Pricing(chain_of(inputs.subject), inputs.cluster, inputs.job)
        self.micro_batches = plan.parallelism.micro_batches
        way = self.way
        self.orders = orders(way.schedule, way.pp, self.micro_batches, way.vpp, group_of(way))
        self.at = {(s, n): position(way.schedule, way.pp, s, n, way.vpp)
                   for s in range(way.pp) for n in range(way.vpp)}
        """Positions of the chunks in the order of the model."""
        self.holders = self._holders()
        """Stages with a copy of a tied embedding, if there are several."""
        built = [_StageGraph(self, number) for number in range(way.pp)]
        self.stages = [one.nodes for one in built]
        self.layers = [one.chunks for one in built]
        """Layers of each chunk of each stage, with what they send."""

    def members(self, group: str, rank: Rank) -> tuple[int, ...]:
        """Ranks of a group that a rank is in, in order."""
        return tuple(self._groups[self._key(group, rank)])

    def peer(self, rank: Rank, stage: int) -> int:
        """The rank at the same place of another stage."""
        return self._by_place[rank.replica, stage, self._place(rank)]

    def _holders(self) -> frozenset[int]:
        chain = self.pricing.chain
        found = frozenset(
            number for number, stage in enumerate(self.way.stages) for span in stage.chunks
            if any(chain.kinds[kind].tied_parameters
                   for kind, _ in layers_of(chain, self.way, stage, span)))
        return found if len(found) > 1 else frozenset()

    @cached_property
    def _groups(self) -> dict[tuple[str, int, tuple[int, ...]], list[int]]:
        found: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        for rank in self.ranks:
            for group in GROUPS:
                if group != "tied" or rank.stage in self.holders:
                    found.setdefault(self._key(group, rank), []).append(rank.rank)
        return found

    @cached_property
    def _by_place(self) -> dict[tuple[int, int, int], int]:
        return {(one.replica, one.stage, self._place(one)): one.rank for one in self.ranks}

    def _place(self, rank: Rank) -> int:
        stage = self.way.stages[rank.stage]
        return (rank.dp_in * stage.cp + rank.cp) * stage.tp + rank.tp

    def _key(self, group: str, rank: Rank) -> tuple[str, int, tuple[int, ...]]:
        stage = 0 if group == "tied" else rank.stage
        return group, stage, _key(group, rank, self._place(rank), self._exchanged[rank.stage])

    @cached_property
    def _exchanged(self) -> list[int]:
        """Ranks of context parallelism of each stage that exchange by all-to-all."""
        return [exchange_of(s.cp_comm, s.cp, s.cp_a2a)[0] for s in self.way.stages]


def _key(group: str, rank: Rank, place: int, exchanged: int) -> tuple[int, ...]:
    """Equal for the ranks of a stage that are in one group."""
    shared = rank.replica, rank.dp_in, rank.tp
    every = {
        "tp": (rank.replica, rank.dp_in, rank.cp), "swap": (*shared, rank.cp // exchanged),
        "cp": (*shared, rank.cp % exchanged),
        "ep": (rank.expert_dp, rank.etp), "etp": (rank.expert_dp, rank.ep),
        "dp": (rank.tp,), "expert_dp": (rank.ep, rank.etp), "inner": (rank.replica, rank.tp),
        "inner_expert": (rank.replica, rank.ep, rank.etp), "outer": (place,),
        "tied": (rank.replica, place)}
    return every[group]


class StageLayer(NamedTuple):
    """A layer of a stage, and what a device sends for it."""

    name: str
    priced: PricedLayer
    sent: dict[str, tuple[Sent, ...]]
    """By field of the layer's costs."""
    copied: tuple[float, float]
    """Seconds of copying what tensor parallelism sends, forward and backward; maxima of fp8."""

    @property
    def forward(self) -> float:
        """Seconds of a device for a micro-batch, with waits for activations on the host."""
        c = self.priced.costs
        return c["forward"] + c["offload_forward"] + self.copied[0]

    @property
    def backward(self) -> float:
        """The same of the whole backward pass."""
        c = self.priced.costs
        return c["backward"] + c["recompute"] + c["offload_backward"] + self.copied[1]


class _StageGraph:
    """The nodes of one stage."""

    def __init__(self, step: StepGraph, number: int) -> None:
        self.step, self.number = step, number
        self.nodes: list[Node] = []
        way, pricing = step.way, step.pricing
        stage = way.stages[number]
        price = pricing.stage(way, stage)
        volumes = dict[tuple[int, int], tuple[dict[str, tuple[Sent, ...]], tuple[float, float]]]()
        self.chunks: list[list[StageLayer]] = []
        for span, layers in zip(stage.chunks, price.layers, strict=True):
            pairs = layers_of(pricing.chain, way, stage, span)
            for pair in pairs:
                if pair not in volumes:
                    sent, copied = layer_volumes(pricing, way, stage, *pair)
                    volumes[pair] = _by_field(sent), copied
            kinds = pricing.chain.kinds
            self.chunks.append([StageLayer(kinds[pair[0]].name, priced, *volumes[pair])
                                for priced, pair in zip(layers, pairs, strict=True)])
            if layers and (maxima := layers[0].seconds.maxima):
                first = self.chunks[-1][0]
                self.chunks[-1][0] = first._replace(copied=(
                    first.copied[0] + maxima, first.copied[1] + maxima))
        self.last: tuple[int, ...] = ()
        """Nodes that the next pass waits for."""
        self.ends: list[int] = []
        """Nodes that the optimizer waits for."""
        self.refreshed = self._refresh()
        self._run(step.orders[number])
        self._finish()

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _collectives(
        self, layer: StageLayer, fields: Sequence[str], after: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Collectives one behind the other; the numbers of the last, or what they wait for."""
        for name in fields:
            for sent in layer.sent.get(name, ()):
                after = (self._add(Node(f"{name} {sent.collective}", after, sent=sent)),)
        return after

    def _refresh(self) -> list[list[tuple[int, ...]]]:
        """Parameters that are gathered at the start of a step, by chunk and layer."""
        found, after = [], tuple[int, ...]()
        for chunk in self.chunks:
            row = []
            for layer in chunk:
                after = self._collectives(layer, ("gather",), after)
                row.append(after if "gather" in layer.sent else ())
            found.append(row)
        return found

    def _run(self, tasks: Sequence[Task]) -> None:
        beside: tuple[int, ...] | None = None
        for task in tasks:
            start = self.last
            self._pass(task)
            if beside is not None:
                self.last, beside = (*beside, *self.last), None
            if task.beside:  # the backward that follows starts with this forward
                beside, self.last = self.last, start

    def _pass(self, task: Task) -> None:
        received = () if task.part == WEIGHTS else self._received(task)
        layers = self.chunks[task.chunk]
        numbers = range(len(layers)) if task.forward else range(len(layers) - 1, -1, -1)
        computed = [self.last, self.last]
        for at, n in enumerate(numbers):
            layer = layers[n]
            way, again = ("forward", "gathered") if task.forward else ("backward", "regathered")
            needed: tuple[int, ...] = ()
            if task.part != WEIGHTS and again in layer.sent:
                needed = self._collectives(layer, (again,), computed[-2])
            if task.forward and task.micro_batch == 0:
                needed += self.refreshed[task.chunk][n]
            after = tuple(dict.fromkeys((*self.last, *needed, *(received if at == 0 else ()))))
            name = f"{way} of layer {n}, chunk {task.chunk}, micro-batch {task.micro_batch}"
            node = self._add(Node(name, after, seconds=_seconds(layer, task)))
            computed.append((node,))
            self.last = (node,)
            if task.part != WEIGHTS:
                self.last = self._collectives(
                    layer, (f"tp_{way}", f"cp_{way}", f"ep_{way}"), self.last)
            if not task.forward and task.part != INPUTS:
                self._leave(layer, task, (node,))
        if not layers and received:
            self.last = tuple(dict.fromkeys((*self.last, *received)))
        if task.part != WEIGHTS:
            self._hand_over(task)

    def _leave(self, layer: StageLayer, task: Task, after: tuple[int, ...]) -> None:
        """Gradients of a layer that leave the device."""
        fields = ["scattered"]
        if task.micro_batch == self._final(task):
            fields.append("sync")
        found = self._collectives(layer, fields, after)
        if found != after:
            self.ends += found

    def _final(self, task: Task) -> int:
        """The last micro-batch whose gradients a chunk makes."""
        return next(one.micro_batch for one in reversed(self.step.orders[self.number])
                    if one.chunk == task.chunk and not one.forward and one.part != INPUTS)

    def _neighbour(self, task: Task, ahead: bool) -> tuple[int, int] | None:
        """Stage in front of or behind a chunk, and the position of the chunk in front."""
        here = self.step.at[self.number, task.chunk]
        there = here + 1 if ahead else here - 1
        for (stage, _), place in self.step.at.items():
            if place == there:
                return None if stage == self.number else (stage, min(here, there))
        return None

    def _message(self, task: Task, ahead: bool, receives: bool) -> Node | None:
        found = self._neighbour(task, ahead)
        if found is None:
            return None
        stage, front = found
        step, way = self.step, self.step.way
        [source] = [one for one, place in step.at.items() if place == front]
        stop = way.stages[source[0]].chunks[source[1]][1]
        lanes = min(shards_of(way.stages[one], step.pricing.job.stack)
                    for one in (self.number, stage))
        size = step.pricing.handed(way, stop) * way.micro_batch / lanes
        tag = 2 * (task.micro_batch * way.pp * way.vpp + front) + (not task.forward)
        name = f"{'receive' if receives else 'send'} micro-batch {task.micro_batch}"
        return Node(name, () if receives else self.last, peer=stage, receives=receives, size=size,
                    tag=tag)

    def _received(self, task: Task) -> tuple[int, ...]:
        node = self._message(task, not task.forward, True)
        return () if node is None else (self._add(node),)

    def _hand_over(self, task: Task) -> None:
        node = self._message(task, task.forward, False)
        if node is not None:
            self._add(node)

    def _finish(self) -> None:
        """The gradients of a stage's copy of a tied embedding, and the optimizer."""
        layers = [layer for chunk in self.chunks for layer in chunk]
        if self.number in self.step.holders:
            holder = next(layer for layer in layers if "tied" in layer.sent)
            self.ends += self._collectives(holder, ("tied",), self.last)
        seconds = sum(layer.priced.costs["update"] for layer in layers)
        self._add(Node("optimizer", tuple(dict.fromkeys((*self.last, *self.ends))),
                       seconds=seconds))


def _by_field(sent: Sequence[Sent]) -> dict[str, tuple[Sent, ...]]:
    names = dict.fromkeys(one.field for one in sent)
    return {name: tuple(one for one in sent if one.field == name) for name in names}


def _seconds(layer: StageLayer, task: Task) -> float:
    """Computing of a pass through a layer."""
    if task.forward:
        return layer.forward
    weights = layer.priced.weights
    return {WEIGHTS: weights, INPUTS: layer.backward - weights}.get(task.part, layer.backward)


def unlike(way: Configuration) -> Iterator[str]:
    """Why the graph of a step would say less than a plan, or other things; a sentence each.

    Ranks of neighbouring stages face each other, and no two stages hold the same layers.
    """
    if copies(way.schedule) > 1:
        yield (f"schedule {way.schedule}: the exchange between two stages that hold the same "
               "layers has no group")
    names = ("tp", "cp", "dp_in", "sp")

    def degrees(stage: StageConfiguration) -> dict[str, Any]:
        return {name: getattr(stage, name) for name in names}

    for number, stage in enumerate(way.stages[1:], 1):
        if degrees(stage) != degrees(way.stages[0]):
            yield (f"stage {number}: {', '.join(names)} differ from those of stage 0, so that no "
                   "rank hands over to one rank alone")
