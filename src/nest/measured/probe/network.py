"""A cluster of what files say of its shape, with figures fitted to measured collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nest.errors import InputError
from nest.inputs import Cluster, link_kinds
from nest.measured.calibration.collectives import (
    FEWEST,
    SMALLEST,
    MeasuredCollective,
    NetworkFit,
    fit_collectives,
)
from nest.measured.calibration.timings import bus_share
from nest.measured.calibration.written import cluster_data, cluster_of
from nest.measured.probe.device import ProbedFigures
from nest.measured.probe.sources import ClusterFiles
from nest.network.readers.fabric import uneven
from nest.units import format_bandwidth

SHARE = 0.6
"""Share of a level's bandwidth that the fastest collective is taken to reach, where nothing says
its bandwidth (chosen: larger messages than those measured are faster)."""
SMALLEST_OF_HOSTS = 2.0**14
"""Bytes from which on messages of CPUs count: their models are small, too (chosen)."""


def probed_cluster(
    told: ClusterFiles, given: str | None, device: Mapping[str, Any], name: str
) -> ProbedFigures:
    """A cluster with all that files and measurements say.

    Parameters
    ----------
    told : files that were read.
    given : catalog name or file whose levels are the start; None: they are made of the files.
    device : as written.
    name : of the device before it was measured.

    Raises
    ------
    InputError : nothing says how many devices a node has, or collectives do not fit the shape.
    """
    measured = (*(told.results.collectives if told.results else ()), *told.collectives)
    data = cluster_of(given) if given else _levels(told, measured, name)
    data |= {"device": dict(device)}
    notes: list[str] = []
    if told.network and given is None:
        notes += [note for tier in told.network.tiers if (note := uneven(tier))]
    cluster = Cluster.parse(data, given or "cluster")
    if len(measured) < FEWEST:
        data["name"] = str(data["name"])
        return ProbedFigures(data, [], [*notes, "no collectives were measured: the network's "
                                        "figures are assumed"])
    reached, more = _reached(cluster, told, given is None)
    least = SMALLEST
    if told.results and told.results.device.kind == "cpu":
        least = SMALLEST_OF_HOSTS
    found = fit_collectives(reached, measured, least, _node(told, measured) or None)
    data = cluster_data(found, data, told.paths)
    data["name"] = data["name"].replace("(calibrated)", "(probed)")
    for level in data["levels"]:
        level["source"] = str(level.get("source", "")).replace("nest calibrate", "nest probe")
    untold = [level.name for level in cluster.levels if level.name not in found.crossed]
    if untold:
        more.append(f"{', '.join(untold)}: no measured group crosses it; assumed, or as before")
    return ProbedFigures(data, list(found.fit.estimates), [*notes, *more, *_missed(found)])


def _missed(found: NetworkFit) -> list[str]:
    return [f"{len(found.measured)} collectives were fitted; the figures miss them by "
            f"{100 * found.fit.spread:.0f} % (standard deviation)"]


def _node(told: ClusterFiles, measured: Sequence[MeasuredCollective]) -> int:
    """Devices of a node; 0: nothing says so."""
    if told.node is not None:
        return told.node.devices
    if told.results is not None:
        return told.results.per_node
    return max((-(-each.ranks // each.nodes) for each in measured if each.nodes), default=0)


def _levels(
    told: ClusterFiles, measured: Sequence[MeasuredCollective], name: str
) -> dict[str, Any]:
    """A cluster whose levels files and measurements say."""
    node = _node(told, measured)
    if not node:
        raise InputError("cluster: no file says how many devices a node has; needed: --cluster "
                         "NAME, results of the probe program, `nvidia-smi topo -m`, or NCCL's "
                         "topology file")
    hosts = max([len(told.results.nodes) if told.results else 1,
                 *(each.nodes for each in measured)])
    levels = _inside(told, measured, node, name) + _between(told, measured, node, hosts)
    hosts = told.network.hosts if told.network else hosts
    found = {"name": f"{name} x {hosts * node}"[:60], "levels": levels}
    if hosts == 1:
        return found
    levels[-1]["size"] = "n"
    return found | {"default_devices": hosts * node}


def _inside(
    told: ClusterFiles, measured: Sequence[MeasuredCollective], node: int, name: str
) -> list[dict[str, Any]]:
    """Levels of a node: what joins its groups (NVLink), and what joins these."""
    shape, kind = told.node, link_kinds.own_link(name)
    inner = shape.inner if shape else node
    own = [each for each in measured if each.nodes < 2]
    levels = []
    if inner > 1 and kind is not None:
        said = f"{shape.source}, {shape.links} NVLinks; " if shape and shape.links else ""
        rate = link_kinds.device_rate(kind, name)
        levels.append(_assumed("nvlink", inner, kind, rate, f"{said}{kind} of {name}"))
    elif inner > 1 and shape and shape.rate:
        levels.append(_assumed("nvlink", inner, "nvlink4", shape.rate, shape.source))
    elif inner > 1:
        levels.append(_rated("node", inner, [each for each in own if each.ranks <= inner]))
    if inner < node or node == 1:
        levels.append(_rated("node", node // inner, [each for each in own if each.ranks > inner]))
    return levels


def _between(
    told: ClusterFiles, measured: Sequence[MeasuredCollective], node: int, hosts: int
) -> list[dict[str, Any]]:
    """Levels between nodes; the bandwidth of a device is its share of the node's."""
    across = [each for each in measured if each.nodes > 1]
    share, adapters = (told.node.network, f"adapters: {told.node.source}") if told.node else (
        None, "")
    if told.network is None:
        if hosts == 1:
            return []
        return [_assumed("network", hosts, "infiniband", share, adapters) if share
                else _rated("network", hosts, across)]
    levels: list[dict[str, Any]] = []
    below, source = 1, told.network.source
    for tier in told.network.tiers:
        size = -(-tier.size // below)
        below *= size
        if tier.rate:
            levels.append(_assumed(tier.name, size, "infiniband", tier.rate / node, source))
        elif levels:
            levels.append({
                "name": tier.name, "size": size, "oversubscription": 1,
                "latency": link_kinds.figures("roce")["latency"],
                "source": f"size: {source}; as many links up as down, latency: assumed"})
        elif share:
            levels.append(_assumed(tier.name, size, "infiniband", share, adapters))
        else:
            levels.append(_rated(tier.name, size, across))
    return levels


def _assumed(
    name: str, size: int, kind: str, rate: float | None, source: str
) -> dict[str, Any]:
    """A level with the figures of a kind of link, and perhaps another bandwidth."""
    figures = link_kinds.figures(kind)
    return {"name": name, "size": size, **figures, "bandwidth": rate or figures["bandwidth"],
            "source": f"bandwidth: {source}; latency, efficiency: of {kind}, assumed"}


def _rated(
    name: str, size: int, measured: Sequence[MeasuredCollective]
) -> dict[str, Any]:
    """A level whose bandwidth and latency were measured, or assumed."""
    # Of a group on several nodes, the members of a node share its bus bandwidth.
    rates = [bus_share(each.collective, each.ranks) * each.size / each.seconds
             / (each.ranks // each.nodes if each.nodes > 1 else 1) for each in measured]
    if not rates:
        kind = "pcie4" if name == "node" else "infiniband"
        return _assumed(name, size, kind, None, f"{kind}, assumed")
    one_step = [each.seconds for each in measured if each.collective == "sendrecv"]
    latency = min(0.05, min(one_step or [each.seconds / 2.0 for each in measured]))
    return {
        "name": name, "size": size, "bandwidth": float(f"{max(rates) / SHARE:.3g}"),
        "latency": float(f"{latency:.3g}"), "efficiency": SHARE,
        "source": f"bandwidth: the fastest measured, {format_bandwidth(max(rates))}, over "
        f"{SHARE} (chosen: prices have its product with efficiency); latency: the shortest "
        "measured"}


def _reached(cluster: Cluster, told: ClusterFiles, made: bool) -> tuple[Cluster, list[str]]:
    """The levels that the measured hosts cross, sized so, with the bandwidths of the whole.

    A fit takes the first devices of a cluster; no group of hosts below different leaves ends at
    a leaf.
    """
    results, network = told.results, told.network
    if not made or network is None or results is None or len(results.nodes) < 2:
        return cluster, []
    places = {host: [tier.group_of(host) for tier in network.tiers] for host in results.nodes}
    unknown = [host for host, each in places.items() if None in each]
    if unknown:
        return cluster, [f"{unknown[0]} is not in {network.source}: the measured hosts are taken "
                         "to be neighbours"]
    inner = len(cluster.levels) - len(network.tiers)
    kept, below = list(cluster.levels[:inner]), 1
    for n in range(len(network.tiers)):
        together: dict[int, int] = {}
        for each in places.values():
            together[each[n] or 0] = together.get(each[n] or 0, 0) + 1
        most = max(together.values())
        if most > below:
            kept.append(cluster.levels[inner + n].replace(
                size=-(-most // below), oversubscription=None,
                bandwidth=cluster.nominal_bandwidth[inner + n]))
            below = most
    sized = Cluster(name=cluster.name, device=cluster.device, levels=tuple(kept))
    return sized, []
