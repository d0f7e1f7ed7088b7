"""The load of links: bytes that devices send in a step, by what they are for.

Sizes are those that :func:`nest.simulation.volumes.layer_volumes` finds in the prices. Rings run in
the order of the ranks; an all-to-all sends equally much to each member. A step that a stack hides
under computing is counted in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import exchange_of
from nest.evaluation.evaluate import chain_of
from nest.evaluation.plans import Plan
from nest.evaluation.stages import Pricing, layers_of, shards_of
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import StageConfiguration
from nest.network import Topology
from nest.network.routing import Routes
from nest.schedules.registry import copies, stage_behind
from nest.simulation.volumes import EXCHANGE, layer_volumes
from nest.units import format_bandwidth, format_bytes

PURPOSES = ("tensor parallel", "context parallel", "expert parallel", "data parallel",
            "pipeline")
_PURPOSE = {"tp": 0, "swap": 1, "cp": 1, "ep": 2, "etp": 2}
_ONCE = ("sync", "tied", "gather")
"""Fields of a layer's costs that are paid once a step."""
MOST_LINKS = 12
"""Links that are listed (chosen)."""
MOST_ROUTED = 2048
"""Devices up to which messages are routed over the links of a graph (chosen: a second)."""

Ints = NDArray[np.int64]


class Load(NamedTuple):
    """What a level or a link carries in a step."""

    name: str
    note: str
    bytes: tuple[float, ...]
    """For each of :data:`PURPOSES`."""
    seconds: float
    """That these take at the full rate."""
    share: float
    """Of the step."""
    text: str
    ends: tuple[int, int] | None = None
    """Nodes of the graph that a link joins."""


@dataclass(frozen=True)
class LinkLoads:
    """The load of levels, or of the busiest links of a graph."""

    title: str
    purposes: tuple[str, ...]
    loads: tuple[Load, ...]
    note: str
    spread: tuple[int, ...] = ()
    """Links by tenths of their load against the busiest one; empty: levels."""


class StageMessages(NamedTuple):
    """Messages of a stage: from each device to a peer."""

    purpose: int
    source: Ints
    target: Ints
    bytes: float


def traffic(plan: Plan) -> LinkLoads:
    """The load of the network in a step, of the stage that loads it most."""
    cluster = plan.inputs.cluster
    if cluster.links is None:
        return _levels(plan)
    if cluster.size > MOST_ROUTED:
        return LinkLoads("Load of links", PURPOSES, (), f"Not routed: {cluster.size:,} devices on "
                         f"a graph; messages are routed for up to {MOST_ROUTED:,}.")
    return _links(plan, cluster)


def _levels(plan: Plan) -> LinkLoads:
    cluster = plan.inputs.cluster
    sizes = np.array(cluster.group_sizes)
    most = [[0.0] * len(PURPOSES) for _ in sizes]
    for number in range(len(plan.stages)):
        sent = [[0.0] * len(PURPOSES) for _ in sizes]
        for one in _sent(plan, number):
            level = ((one.source[:, None] // sizes) != (one.target[:, None] // sizes)).sum(axis=1)
            shares = np.bincount(level, minlength=len(sizes)) / len(level)
            for place in range(len(sizes)):
                sent[place][one.purpose] += shares[place] * one.bytes
        for place, row in enumerate(sent):
            if sum(row) > sum(most[place]):
                most[place] = row
    loads = []
    for level, rate, row in zip(cluster.levels, cluster.resolved_bandwidth, most, strict=True):
        seconds = sum(row) / rate
        loads.append(Load(
            level.name, f"{format_bandwidth(rate, 3)} of a device", tuple(row), seconds,
            seconds / plan.step_time_s, format_bytes(sum(row), 3)))
    return LinkLoads(
        "Load of each level", PURPOSES, tuple(loads),
        "Bytes that a device sends to peers reached through the level, in the mean over the "
        "devices of the stage that sends most; the share of the step that they take at the level's "
        "full rate. What computing hides is counted in full.")


def _links(plan: Plan, cluster: Cluster) -> LinkLoads:
    network = Topology.of_links(cluster)
    routes = Routes(network)
    load_EP = np.zeros((len(network.source_E), len(PURPOSES)))
    for number in range(len(plan.stages)):
        for one in _sent(plan, number):
            load_EP[:, one.purpose] += routes.loads(
                one.source, one.target, np.full(len(one.source), one.bytes))
    seconds_E = load_EP.sum(axis=1) / network.bandwidth_E
    order = np.argsort(-seconds_E, kind="stable")[:MOST_LINKS]
    loads = tuple(Load(
        f"{network.nodes[network.source_E[e]]} to {network.nodes[network.target_E[e]]}",
        format_bandwidth(float(network.bandwidth_E[e]), 3), tuple(load_EP[e].tolist()),
        float(seconds_E[e]), float(seconds_E[e]) / plan.step_time_s,
        format_bytes(float(load_EP[e].sum()), 3),
        (int(network.source_E[e]), int(network.target_E[e]))) for e in order if seconds_E[e])
    most = float(seconds_E.max()) or 1.0
    tenths = np.bincount(np.minimum((10 * seconds_E / most).astype(int), 9), minlength=10)
    return LinkLoads(
        f"The busiest of {len(seconds_E):,} links", PURPOSES, loads,
        "Bytes over each link in a step, all messages on shortest paths, and the share of the step "
        "that they take at the link's full rate. What computing hides is counted in full.",
        tuple(tenths.tolist()))


def _sent(plan: Plan, number: int) -> Iterator[StageMessages]:
    """All that the devices of a stage send in a step, over all replicas."""
    way, inputs = plan.configuration, plan.inputs
    pricing = _pricing(plan)
    stage = way.stages[number]
    starts = np.array(plan.replicas)
    place = np.arange(stage.devices[1] - stage.devices[0])
    for (group, collective), size in _volumes(plan, pricing, number).items():
        members = _members(stage, group, place, starts)
        if members is None or members.shape[1] < 2:
            continue
        peers = members.shape[1]
        far = range(1, peers) if collective == EXCHANGE else (1,)
        for step in far:
            yield StageMessages(_PURPOSE.get(group, 3), members.ravel(),
                            np.roll(members, -step, axis=1).ravel(), size / len(far))
    m = plan.parallelism.micro_batches
    device = (starts[:, None] + stage.devices[0] + place).ravel()
    for stop, after in _handed(plan, number):
        peer = way.stages[after]
        size = pricing.handed(way, stop) * way.micro_batch
        lanes = min(shards_of(one, inputs.job.stack) for one in (stage, peer))
        width = peer.devices[1] - peer.devices[0]
        target = (starts[:, None] + peer.devices[0] + place * width // len(place)).ravel()
        for source, to in ((device, target), (target, device)):
            yield StageMessages(4, source, to, m * size / max(lanes, 1) / copies(way.schedule))


def _handed(plan: Plan, number: int) -> Iterator[tuple[int, int]]:
    """Ends of the chunks that a stage hands on forward, and the stage that takes each."""
    way = plan.configuration
    for chunk, (_, stop) in enumerate(way.stages[number].chunks):
        behind = stage_behind(way.schedule, way.pp, number, chunk, way.vpp)
        if behind is not None and behind != number:
            yield stop, behind


def _pricing(plan: Plan) -> Pricing:
    return Pricing(chain_of(plan.inputs.subject), plan.inputs.cluster, plan.inputs.job)


def _volumes(plan: Plan, pricing: Pricing, number: int) -> dict[tuple[str, str], float]:
    """Bytes that a device of a stage sends in a step, by group and collective."""
    way = plan.configuration
    stage = way.stages[number]
    layers = Counter(pair for span in stage.chunks
                     for pair in layers_of(pricing.chain, way, stage, span))
    found: dict[tuple[str, str], float] = {}
    for pair, count in layers.items():
        for one in layer_volumes(pricing, way, stage, *pair)[0]:
            times = 1 if one.field in _ONCE else plan.parallelism.micro_batches
            key = one.group, one.collective
            found[key] = found.get(key, 0.0) + one.size * count * times
    return found


def _members(stage: StageConfiguration, group: str, place: Ints, starts: Ints) -> Ints | None:
    """Devices of each group, int64 of shape (groups, members), in the order of the ranks."""
    device = starts[:, None] + stage.devices[0] + place
    tp, rest = place % stage.tp, place // stage.tp
    cp, dp_in = rest % stage.cp, rest // stage.cp
    expert = stage.ep * stage.etp
    swap = exchange_of(stage.cp_comm, stage.cp, stage.cp_a2a)[0]
    own = {  # within a replica, by what the members share
        "tp": dp_in * stage.cp + cp, "swap": (dp_in * stage.tp + tp) * stage.cp + cp // swap,
        "cp": (dp_in * stage.tp + tp) * stage.cp + cp % swap,
        "ep": place // expert * stage.etp + place % stage.etp, "etp": place // stage.etp,
        "inner": tp, "inner_expert": place % expert,
    }.get(group)
    if own is not None:
        return np.concatenate([_grouped(own, row) for row in device])
    every = {"dp": tp, "expert_dp": place % expert, "outer": place}.get(group)
    if every is None:  # a tied embedding joins stages
        return None
    return _grouped(np.tile(every, len(starts)), device.ravel())


def _grouped(key: Ints, device: Ints) -> Ints:
    order = np.argsort(key, kind="stable")
    return device[order].reshape(len(np.unique(key)), -1)
