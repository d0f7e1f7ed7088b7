"""Which process of a launch goes to which device of which node, and the same read back.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from nest.errors import InputError
from nest.evaluation.ranks import Rank
from nest.inputs.cluster import Cluster
from nest.inputs.files import read_text
from nest.units import runs_text, shorten

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", re.ASCII)


class Place(NamedTuple):
    """A device of a node."""

    node: int
    """Number of the node in the order of the cluster, from 0."""
    local: int
    """Number of the device in its node."""


class RankPlaces(NamedTuple):
    """The place of each rank of a launch, and the forms in which a launcher takes them."""

    at: tuple[Place, ...]
    """By rank."""
    each: int | None
    """Ranks of a node, where all have as many, with local ranks in order; None: by rank alone."""
    names: tuple[str, ...]
    """Names of the hosts, by the number of the node."""
    per_node: int
    """Devices of a node, idle ones included; 0: those of the cluster are not numbered in a row."""
    named: bool = True
    """The names are the user's."""
    used: tuple[str, ...] = ()
    """Lines that say how many processes nodes have, and which devices the plan leaves idle."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes in the order of their ranks, each once."""
        return tuple(dict.fromkeys(place.node for place in self.at))

    @property
    def permuted(self) -> bool:
        """Whether the order of the nodes is not that of the cluster."""
        return self.nodes != tuple(range(len(self.nodes)))


def per_node(cluster: Cluster, given: int | None = None) -> int:
    """Devices of a node: as given, or the innermost level, or the trays of a rack.

    Raises
    ------
    InputError : neither, nodes that do not divide the innermost level, or larger ones than all
        devices together.
    """
    inner = cluster.whole_sizes[0]
    found = given or cluster.node_devices
    most, what = _most_per_node(cluster)
    if found > most:
        raise InputError(f"gpus_per_node: got {found}; allowed: at most the {most} devices of "
                         f"{what}")
    if found < 1 or (inner % found and found % inner):
        raise InputError(f"gpus_per_node: got {given if given is not None else found}; allowed: a "
                         f"divisor or a multiple of {inner}, the devices of a "
                         f"{cluster.levels[0].name}")
    return found


def _most_per_node(cluster: Cluster) -> tuple[int, str]:
    """Devices that a node has at most, idle ones included, and in words whose these are."""
    numbers, inner = cluster.numbers, cluster.whole_sizes[0]
    used = cluster.size if numbers is None else max(cluster.size, 1 + max(numbers))
    most = -(-used // inner) * inner
    return most, "the plan" if most == cluster.size else "the plan's nodes"


def places(
    listed: Sequence[Rank], gpus_per_node: int, hosts: Sequence[str] | None = None,
    in_a_row: bool = True, inner: tuple[str, int] = ("node", 1),
) -> RankPlaces:
    """Places of ranks in the order in which a launch numbers them.

    Parameters
    ----------
    listed : ranks in that order.
    gpus_per_node : devices of a node.
    hosts : names of the nodes in the order of the cluster; default: node0, node1, ...
    in_a_row : devices of the cluster have no numbers of their own (``Cluster.numbers``).
    inner : name and devices of the innermost level; default: nodes are the innermost.

    Raises
    ------
    InputError : a name that is none of a host, two alike, or fewer than nodes.
    """
    at = tuple(Place(*divmod(rank.device, gpus_per_node)) for rank in listed)
    runs = [[place.local for place in members]
            for _, members in groupby(at, key=lambda place: place.node)]
    once = len(runs) == len({place.node for place in at})
    alike = all(run == list(range(len(runs[0]))) for run in runs)
    nodes = 1 + max(place.node for place in at)
    names = host_names(hosts, nodes) if hosts is not None else tuple(
        f"node{number}" for number in range(nodes))
    return RankPlaces(at, len(runs[0]) if once and alike else None, names,
                  gpus_per_node if in_a_row else 0, hosts is not None,
                  tuple(_used(at, gpus_per_node, *inner)))


def _used(at: Sequence[Place], per_node: int, level: str, size: int) -> Iterator[str]:
    """Processes of nodes, a line for nodes that are alike, and racks that are used in part."""
    on: dict[int, list[int]] = {}
    for place in sorted(at):
        on.setdefault(place.node, []).append(place.local)
    alike: dict[tuple[int, ...], list[int]] = {}
    for node, used in on.items():
        alike.setdefault(tuple(used), []).append(node)
    for devices, nodes in alike.items():
        idle = "" if len(devices) == per_node else \
            f", on device {runs_text(devices)} of {per_node}; the others stay idle"
        yield f"Processes: {len(devices)} on node {runs_text(nodes)}{idle}."
    if size > per_node:  # nodes are trays of a rack
        racks = Counter(place.node * per_node // size for place in at)
        for count in sorted({*racks.values()} - {size}):
            here = [rack for rack in sorted(racks) if racks[rack] == count]
            yield f"Of {level} {runs_text(here)}: {count} of {size} devices; the others stay idle."


def host_names(given: Sequence[str], nodes: int) -> tuple[str, ...]:
    """Names of hosts, checked: they are words of shell scripts and of lists of hosts.

    Raises
    ------
    InputError : as :func:`places`.
    """
    names, seen = tuple(given), set[str]()
    for number, name in enumerate(names):
        if not isinstance(name, str) or not _HOST.fullmatch(name):
            raise InputError(f"hosts: {number + 1}. name: got {shorten(name)}; allowed: letters, "
                             "digits, dots and hyphens, a letter or digit first")
        if name in seen:
            raise InputError(f"hosts: {number + 1}. name: got {name} again; allowed: each once")
        seen.add(name)
    if len(names) < nodes:
        raise InputError(f"hosts: got {len(names)} names; allowed: at least {nodes}, one for each "
                         "node up to the last that is used")
    return names


Placed = tuple[int, ...]
"""Device of each rank."""
MOST = 10**7
_SLOTS = re.compile(r"(\S+)(?:\s+slots=(\d{1,6}))?")
_NUMBER = re.compile(r"(\d{1,8})")
_SIZE = re.compile(r"^# node, device of (\d{1,4}) of the node, rank$", re.MULTILINE)
"""Devices of a node, where some of each are not used."""


def devices_of(hosts: str | None, ranks: str | None, per_node: int, where: str) -> Placed:
    """Devices by rank, of a list of hosts or of node, device and rank.

    Raises
    ------
    InputError : lines that are no such list.
    """
    rows = [line for line in (hosts or ranks or "").splitlines()
            if line.strip() and not line.startswith("#")]
    if hosts is not None:
        nodes = [found[1] for row in rows if (found := re.search(r"(\d{1,8})\s*$", row))]
        if len(nodes) != len(rows) or len(rows) * per_node > MOST:
            raise InputError(f"{where}: got a line that is no number of a node; allowed: numbers")
        return tuple(int(node) * per_node + n for node in nodes for n in range(per_node))
    numbers = [row.split() for row in rows]
    if not all(len(row) == 3 and all(_NUMBER.fullmatch(one) for one in row) for row in numbers):
        raise InputError(f"{where}: allowed: lines of node, device and rank")
    table = [[int(one) for one in row] for row in numbers]
    size = max(per_node, 1 + max((row[1] for row in table), default=0))
    if named := _SIZE.search(ranks or ""):
        size = max(size, int(named[1]))
    by_rank = {row[2]: row[0] * size + row[1] for row in table}
    if sorted(by_rank) != list(range(len(rows))):
        raise InputError(f"{where}: allowed: each rank once, from 0")
    return tuple(by_rank[rank] for rank in range(len(rows)))


def listed_beside(text: str, script: str | os.PathLike[str], each: int) -> Placed | None:
    """Devices by rank, in a list of ranks or nodes that a script reads; None: it reads none.

    Parameters
    ----------
    text, script : of the script, and its path.
    each : devices of a node.

    Raises
    ------
    InputError : a list that cannot be read.
    """
    for name in ("ranks", "hosts"):
        if re.search(rf"\$(here|0)/{name}(?![\w.-])", text):
            path = Path(os.path.abspath(script)).parent / name
            rows = read_text(path)
            return devices_of(None, rows, 1, str(path)) if name == "ranks" else devices_of(
                rows, None, each, str(path))
    return None


HOSTS = ("hostfile", "slurm.hosts", "slurm.nodes")
"""Lists of hosts, or of nodes by rank."""


def hosts_beside(text: str, script: str | os.PathLike[str]) -> Placed | None:
    """Devices by rank, in a list of hosts that a launcher reads; as :func:`listed_beside`."""
    folder = Path(os.path.abspath(script)).parent
    for name in HOSTS:
        if f"$here/{name}" in text:
            return devices_of_hosts(read_text(folder / name), str(folder / name))
    return None


def devices_of_hosts(rows: str, where: str) -> Placed:
    """Devices by rank, of a list of hosts: with slots, or a line for each rank.

    Raises
    ------
    InputError : lines that are no such list.
    """
    found: dict[str, int] = {}
    for row in rows.splitlines():
        if row.strip() and not row.startswith("#"):
            match = _SLOTS.fullmatch(row.strip())
            if match is None:
                raise InputError(f"{where}: got {shorten(row)}; allowed: a host, or host slots=N")
            found[match[1]] = found.get(match[1], 0) + int(match[2] or 1)
    if len({*found.values()}) != 1:
        raise InputError(f"{where}: hosts of several sizes; allowed: as many ranks on each")
    numbers = "\n".join(name if name[-1].isdigit() else f"{name} {n}"
                        for n, name in enumerate(found))
    return devices_of(numbers, None, next(iter(found.values())), where)


def placed(
    found: Placed | range, dp: int, tp: int, pp: int, cp: int, *, experts: int = 1,
    replicas: int | None = None,
) -> tuple[int, int | None]:
    """Replicas, and devices from one to the next, whose devices are those of the ranks.

    Ranks are numbered tp, cp, dp, pp, the first the fastest.

    Parameters
    ----------
    experts : ranks that share experts, which are in one block.
    replicas : number of replicas; default: the most.

    Raises
    ------
    InputError : no configuration has this order.
    """
    inner = tp * cp
    if len(found) != dp * inner * pp:
        raise InputError(f"places of {len(found)} ranks; allowed: {dp * inner * pp}")
    outer = [n for n in range(dp, 0, -1) if dp % n == 0 and replicas in (None, n)
             and dp // n * inner % experts == 0]
    # Where groups are partly used, devices are numbered with those that are not.
    order = {device: n for n, device in enumerate(sorted(found))}
    for listed in (found, tuple(order[device] for device in found)):
        if (match := _order(listed, dp, inner, pp, outer)) is not None:
            return match
    raise InputError("places: no configuration of replicas one behind the other has this order of "
                     "ranks")


def _order(
    found: Placed | range, dp: int, inner: int, pp: int, replicas: list[int]
) -> tuple[int, int] | None:
    for outer in replicas:
        dp_in = dp // outer
        stride = found[dp_in * inner] - found[0] if outer > 1 else pp * dp_in * inner
        block = dp_in * inner
        if all(device - found[0] == (rank // inner % dp) // dp_in * stride
               + rank // (inner * dp) * block + rank // inner % dp_in * inner + rank % inner
               for rank, device in enumerate(found)):
            return outer, stride
    return None
