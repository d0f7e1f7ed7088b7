"""Which device does what: groups of levels, or the picture of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.report.network.layout import layout
from nest.report.network.sketch import sketch
from nest.units import format_bandwidth, format_seconds

MOST_SQUARES = 4096
"""Squares of a picture of levels; of more devices, a square stands for a group (chosen)."""


class LevelOfPlaces(NamedTuple):
    """A level, innermost first."""

    name: str
    devices: int
    """Of one of its groups."""
    note: str


@dataclass(frozen=True)
class GraphPicture:
    """A graph: positions of squares, then switches; lines of its cables."""

    squares: int
    points: tuple[tuple[float, float], ...]
    lines: tuple[tuple[float, ...], ...]
    """x and y in turn."""
    rates: tuple[float, ...]
    """Bytes/s of each line."""
    rows: tuple[tuple[float, str], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Places:
    """Devices of a cluster and their work.

    Attributes
    ----------
    each : devices of a square.
    stages : devices [k, k+a) of each stage of replica 0.
    replicas : first device of each replica.
    types, type_runs : names; number of devices and type of each run.
    """

    size: int
    idle: int
    each: int
    levels: tuple[LevelOfPlaces, ...]
    stages: tuple[tuple[int, int], ...]
    replicas: tuple[int, ...]
    types: tuple[str, ...]
    type_runs: tuple[tuple[int, int], ...]
    graph: GraphPicture | None
    notes: tuple[str, ...]


def places(plan: Plan) -> Places:
    """The devices of a plan's cluster."""
    cluster = plan.inputs.cluster
    graph, each, notes = None, 1, []
    if cluster.links is not None:
        try:
            drawn = sketch(cluster)
        except InputError:
            notes.append("The graph is too large for a picture of its links.")
        else:
            found, each = layout(drawn), drawn.each
            graph = GraphPicture(
                drawn.squares, tuple((round(x, 2), round(y, 2)) for x, y in found.position_V),
                tuple(tuple(np.round(line, 2).ravel().tolist()) for line, _ in found.lines),
                tuple(float(drawn.bandwidth_C[cable]) for _, cable in found.lines),
                tuple(found.rows), tuple(found.notes))
    if graph is None:
        each = next((size for size in (1, *cluster.group_sizes)
                     if cluster.size // size <= MOST_SQUARES), cluster.group_sizes[-1])
    if cluster.numbers is not None:
        notes.append("Devices are shown in the order of the plan, which is not that of the network "
                     "(nest plan --ranks FILE names each).")
    rates = cluster.resolved_bandwidth
    return Places(
        size=cluster.size, idle=cluster.size - plan.parallelism.devices_used, each=each,
        levels=tuple(LevelOfPlaces(
            level.name, size, f"{format_bandwidth(rate, 3)}, {format_seconds(level.latency, 3)}")
            for level, size, rate in zip(cluster.levels, cluster.group_sizes, rates, strict=True))
        if cluster.links is None else (),
        stages=tuple(stage.devices for stage in plan.stages), replicas=plan.replicas,
        types=tuple(one.name for one in cluster.device_types),
        type_runs=tuple((len(list(group)), number)
                        for number, group in groupby(cluster.type_numbers or [0] * cluster.size)),
        graph=graph, notes=tuple(notes))
