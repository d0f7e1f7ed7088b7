"""Efficiency and latency of each level of a network, fitted to measured collectives.

The model is :mod:`nest.costs.network.collectives` on the cluster itself: its levels with other
figures go through :func:`nest.costs.choices.network`, as those of a plan do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import network
from nest.costs.network import collectives as costs
from nest.costs.network.placement import count
from nest.errors import InputError
from nest.inputs import Cluster, Level
from nest.measured.calibration.fit import Array, Fit, Parameter, fit, median_and_tail, percent_off
from nest.units import format_bytes

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"]
COLLECTIVES: tuple[Collective, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
SMALLEST = 2.0**20
"""Bytes from which on messages count in a fit: what training sends is larger (chosen)."""
FEWEST = 3
"""Messages below which nothing is fitted."""
NOISE = 0.02
"""Least spread of the misfits: repeats of nccl-tests differ by about so much (chosen)."""

FITTED = {
    # figure of a level: bounds, least spread of its prior (chosen: wide), unit
    "efficiency": (0.01, 1.0, 0.3, ""),
    "latency": (0.0, 0.1, 1e-5, "s"),
    "base_time": (0.0, 0.1, 5e-5, "s"),
    "ramp": (0.0, 1.0, 0.02, ""),
}
"""Figures of a level that can be fitted."""
SCHEMA = "nest.collectives/1"


@dataclass(frozen=True)
class MeasuredCollective:
    """One measured collective.

    Attributes
    ----------
    ranks, nodes : devices that take part, evenly over so many nodes; 0 nodes: as few as hold them.
    size : bytes of the whole buffer; of sendrecv, bytes that each device sends.
    """

    collective: Collective
    ranks: int
    nodes: int
    size: float
    seconds: float
    place: str = ""


@dataclass(frozen=True)
class NetworkFit:
    """The fit of a cluster to collectives.

    Attributes
    ----------
    measured : those that were fitted, in the order of the misfits.
    small, small_before, small_after : those below the limit, and their misfits.
    crossed : names of the levels that they cross; the others are unknown.
    """

    before: Cluster
    cluster: Cluster
    measured: tuple[MeasuredCollective, ...]
    fit: Fit
    small: tuple[MeasuredCollective, ...]
    small_before: Array
    small_after: Array
    crossed: tuple[str, ...]


@dataclass(frozen=True)
class Decade:
    """Error of prices of messages within a power of ten.

    Attributes
    ----------
    from_bytes, to_bytes : the powers of ten.
    fitted : whether these messages count in the fit; the smaller ones are compared only.
    count : collectives.
    before, after : median of the absolute error, a share: 0.05 is 5 %.
    """

    from_bytes: int
    to_bytes: int
    fitted: bool
    count: int
    before: float
    after: float


class _Groups:
    """Measured collectives as the network of one cluster sees them."""

    def __init__(self, cluster: Cluster, measured: Sequence[MeasuredCollective],
                 node_size: int) -> None:
        self.measured = measured
        sizes = cluster.group_sizes
        spread = [count(_members(each, node_size, cluster)[None, :], sizes) for each in measured]
        inside = np.array([each for each, _ in spread], dtype=np.int64).reshape(-1, len(sizes))
        self.group = costs.Group(inside, np.array([even for _, even in spread], dtype=np.bool_))
        self.size = np.array([each.size for each in measured])
        self.seconds = np.array([each.seconds for each in measured])
        called = np.array([each.collective for each in measured], dtype=np.str_)
        self.rows = {name: np.flatnonzero(called == name) for name in COLLECTIVES}
        whole = inside == self.group.size[:, None]
        self.level = whole.argmax(axis=1) if len(measured) else np.zeros(0, dtype=np.intp)

    def crossed(self) -> list[int]:
        """Levels that some collective crosses."""
        inner = np.concatenate([np.ones((len(self.measured), 1)), self.group.inside[:, :-1]], 1)
        return [int(v) for v in np.flatnonzero((self.group.inside > inner).any(axis=0))]

    def misfits(self, cluster: Cluster) -> Array:
        """log(predicted / measured); shape (N,)."""
        net, found = network(cluster), np.zeros(len(self.measured))
        functions = {"all_reduce": costs.all_reduce, "all_gather": costs.all_gather,
                     "reduce_scatter": costs.reduce_scatter, "alltoall": costs.all_to_all}
        for name, rows in self.rows.items():
            if not len(rows):
                continue
            if name == "sendrecv":
                found[rows] = [costs.point_to_point(self.size[i], net, int(self.level[i]))
                               for i in rows]
            else:
                found[rows] = functions[name](self.size[rows], net, self.group.take(rows))
        misfits: Array = np.log(np.maximum(found, 1e-12) / self.seconds)
        return misfits


def _members(each: MeasuredCollective, node_size: int, cluster: Cluster) -> NDArray[np.int64]:
    """Device numbers: the first ones of each node.

    Raises
    ------
    InputError : they do not fit the nodes, or the nodes not the cluster.
    """
    nodes = each.nodes or -(-each.ranks // node_size)
    least = -(-each.ranks // nodes)
    if least > node_size:
        raise InputError(f"{each.place}: got {each.ranks} ranks on {nodes} nodes; allowed: at most "
                         f"{node_size} a node, as {cluster.name} has (--node-size N says else)")
    if nodes * node_size > max(cluster.size, node_size):
        raise InputError(f"{each.place}: got {nodes} nodes of {node_size}; allowed: at most the "
                         f"{cluster.size} devices of {cluster.name}")
    rank = np.arange(each.ranks, dtype=np.int64)
    return rank // least * node_size + rank % least


def fit_collectives(
    cluster: Cluster, measured: Sequence[MeasuredCollective], smallest: float = SMALLEST,
    node_size: int | None = None, figures: Sequence[str] = tuple(FITTED),
) -> NetworkFit:
    """Fit the levels of a cluster to collectives measured on it.

    Parameters
    ----------
    cluster : where the fit starts; it must have as many devices as the measurements.
    measured : in any order.
    smallest : bytes from which on they count; smaller ones are compared only.
    node_size : devices of a node; default: a group of the innermost level.
    figures : some of :data:`FITTED`; the others are unchanged.

    Raises
    ------
    InputError : too few are left, or they do not fit the cluster.
    """
    large = tuple(each for each in measured if each.size >= smallest)
    small = tuple(each for each in measured if each.size < smallest)
    if len(large) < FEWEST:
        raise InputError(f"collectives: got {len(large)} of {format_bytes(smallest)} and more; "
                         f"needed: at least {FEWEST} (--from SIZE takes smaller ones)")
    node = node_size or cluster.levels[0].size
    groups = _Groups(cluster, large, node)
    crossed = groups.crossed()
    if not crossed:
        raise InputError("collectives: got single devices only; needed: groups of 2 and more")
    parameters = [_parameter(cluster.levels[v], name) for v in crossed for name in figures]
    found = fit(parameters, lambda values: groups.misfits(_with(cluster, parameters, values)),
                NOISE)
    final = [each.parameter.low if each.bound == "lower" else float(f"{each.value:.3g}")
             for each in found.estimates]
    changed = _with(cluster, parameters, np.array(final))
    below = _Groups(cluster, small, node)
    return NetworkFit(
        cluster, changed, large, found, small, below.misfits(cluster), below.misfits(changed),
        tuple(cluster.levels[v].name for v in crossed))


def misfits(
    cluster: Cluster, measured: Sequence[MeasuredCollective], node_size: int | None = None
) -> Array:
    """log(predicted / measured) on an unchanged cluster, float64 of shape (N,).

    Raises
    ------
    InputError : they do not fit the cluster.
    """
    return _Groups(cluster, measured, node_size or cluster.levels[0].size).misfits(cluster)


def decades(found: NetworkFit) -> tuple[Decade, ...]:
    """Errors by the power of ten of the message, small ones first."""
    groups: dict[tuple[int, bool], list[tuple[float, float]]] = {}
    for fitted, measured, before, after in (
            (False, found.small, found.small_before, found.small_after),
            (True, found.measured, found.fit.before, found.fit.after)):
        for each, *pair in zip(measured, before, after, strict=True):
            power = math.floor(math.log10(each.size) + 1e-9)
            groups.setdefault((power, fitted), []).append((float(pair[0]), float(pair[1])))
    rows = []
    for (power, fitted), pairs in sorted(groups.items()):
        before, after = np.median(percent_off(np.array(pairs)), axis=0) / 100.0
        rows.append(Decade(10**power, 10 ** (power + 1), fitted, len(pairs), float(before),
                           float(after)))
    return tuple(rows)


def to_json(found: NetworkFit, notes: Sequence[str]) -> str:
    """The fit as the text of one JSON document, schema `nest.collectives/1`.

    Errors are shares (0.05 is 5 %), of the collectives that were fitted; figures are in SI units.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA, "cluster": found.before.name, "notes": list(notes),
        "figures": [{
            "name": each.parameter.name, "value": each.value,
            "error": each.error if each.determined else None, "before": each.parameter.catalog,
            "bound": each.bound or None,
        } for each in found.fit.estimates],
        "count": len(found.measured),
        "error": {name: dict(zip(("median", "p90"), _shares(values), strict=True))
                  for name, values in (("before", found.fit.before), ("after", found.fit.after))},
        "sizes": [asdict(each) for each in decades(found)],
    }
    return json.dumps(document, indent=2)


def _shares(off: Array) -> tuple[float, float]:
    median, tail = median_and_tail(off)
    return median / 100.0, tail / 100.0


def _parameter(level: Level, name: str) -> Parameter:
    low, high, spread, unit = FITTED[name]
    before = getattr(level, name)
    return Parameter(f"{level.name}: {name}", before, low, high,
                     max(spread, before) if unit else spread, unit)


def _with(cluster: Cluster, parameters: Sequence[Parameter], values: Array) -> Cluster:
    """The cluster with figures of its levels changed; not validated, for speed."""
    changes: dict[str, dict[str, float]] = {}
    for parameter, value in zip(parameters, values, strict=True):
        level, _, name = parameter.name.rpartition(": ")
        changes.setdefault(level, {})[name] = float(value)
    levels = tuple(level.model_copy(update=changes.get(level.name, {}))
                   for level in cluster.levels)
    return cluster.model_copy(update={"levels": levels})

