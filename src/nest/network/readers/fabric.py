"""The shape of a cluster, as tools print it that know switches, hosts or kinds of paths.

None of these is a whole network: what joins devices inside a node, and what joins nodes, come from
different tools, most of them without rates. `nest probe` puts them together with measured figures.

- ``nvidia-smi topo -m``: the matrix of a node; NV# are bonded NVLinks, the other words paths over
  PCIe (its own legend). Lines of adapters are left out.
- Slurm's ``topology.conf`` (slurm.schedmd.com/topology.conf.html): ``SwitchName=`` with ``Nodes=``
  or ``Switches=``, ``BlockName=`` with ``Nodes=``; names are case insensitive, lists are hostlists
  such as ``tux[0-3,12]``. Other fields, such as link speeds, are left out.
- ``ibnetdiscover`` (linux-rdma/rdma-core@0c0ced8 infiniband-diags/ibnetdiscover.c:225-448): a line
  for each node, ``Switch``, ``Ca`` or ``Rt``, then one for each of its ports, with width and speed.
  The first word of an adapter's name is its host. Names of speeds: dump_linkspeedext_compat
  (76-100); data rates of a lane: the roadmap of infinibandta.org.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx
import numpy as np

from nest.errors import InputError
from nest.network.topology import Topology
from nest.units import shorten

MOST_HOSTS = 10**5
MOST_TIERS = 6
"""Switches above one another: a cluster has 8 levels, two of them in a node."""


@dataclass(frozen=True)
class NodeShape:
    """A node.

    Attributes
    ----------
    devices : of the node.
    inner : devices of a group that NVLink joins; 1: no links but those of PCIe.
    links : NVLinks of a device; 0: not said.
    rate : bytes/s of a device inside the node, each way; None: not said.
    network : bytes/s of a device's share of the adapters, each way; None: not said.
    source : what says so.
    """

    devices: int
    inner: int
    links: int
    rate: float | None
    network: float | None
    source: str


@dataclass(frozen=True)
class NetworkTier:
    """Groups of hosts that switches up to some height join.

    Attributes
    ----------
    groups : names of the hosts of each, in order.
    rate : bytes/s of a host through the tier, each way, the least of any group; None: not said.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    rate: float | None

    @property
    def size(self) -> int:
        """Hosts of a group: of most groups, of equally many the larger size."""
        sizes = Counter(map(len, self.groups))
        return max(sizes, key=lambda size: (sizes[size], size))

    def group_of(self, host: str) -> int | None:
        """The group of a host, by its name with or without a domain."""
        short = host.partition(".")[0]
        return next((n for n, group in enumerate(self.groups)
                     if any(short == other.partition(".")[0] for other in group)), None)


@dataclass(frozen=True)
class FabricShape:
    """What joins the hosts, innermost tier first; the last one joins all."""

    tiers: tuple[NetworkTier, ...]
    source: str

    @property
    def hosts(self) -> int:
        return sum(map(len, self.tiers[0].groups))


# ---------------------------------------------------------------- nvidia-smi topo -m


TOPO_MATRIX = re.compile(
    r"^(?:\x1b\[\d*m)?\s*GPU0(?:\s+GPU\d+|\s+X\s|\s+\S*Affinity)", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[\d*m")
_PATHS = {"X", "PIX", "PXB", "PXN", "PHB", "NODE", "SYS", "SOC", "C2C"}
_NVLINK = re.compile(r"NV(\d{1,3})", re.ASCII)


def from_topo_matrix(text: str, where: str) -> NodeShape:
    """The node that ``nvidia-smi topo -m`` prints.

    Raises
    ------
    InputError : rows or cells are missing, a word is unknown, or NVLink joins unequal groups.
    """
    lines = [line.split() for line in _COLOURS.sub("", text).splitlines()]
    head = next((words for words in lines if words and words[0] == "GPU0" and not {
        "X", "CPU"} & set(words[1:2])), ["GPU0"])
    count = sum(re.fullmatch(r"GPU\d+", word) is not None for word in head)
    rows = {words[0]: words[1:] for words in lines
            if words and re.fullmatch(r"GPU\d+", words[0]) and words is not head}
    if len(rows) != count:
        raise InputError(f"{where}: got {len(rows)} rows for {count} GPUs; allowed: the whole "
                         "matrix of nvidia-smi topo -m")
    graph = networkx.Graph()
    graph.add_nodes_from(range(count))
    links = []
    for n in range(count):
        cells = rows.get(f"GPU{n}", [])[:count]
        for other, cell in enumerate(cells):
            bonded = _NVLINK.fullmatch(cell)
            if bonded:
                graph.add_edge(n, other)
                links.append(int(bonded[1]))
            if bonded is None and cell not in _PATHS or (cell == "X") != (other == n):
                raise InputError(f"{where}: GPU{n}: got {shorten(cell)} for GPU{other}; allowed: X "
                                 f"for itself, else NV# or {', '.join(sorted(_PATHS - {'X'}))}")
        if len(cells) < count:
            raise InputError(f"{where}: GPU{n}: got {len(cells)} cells; allowed: {count}")
    sizes = {len(each) for each in networkx.connected_components(graph)}
    if len(sizes) > 1:
        raise InputError(f"{where}: NVLink joins groups of {', '.join(map(str, sorted(sizes)))} "
                         "GPUs; allowed: equal groups, for levels have equal groups; a graph "
                         "(docs/topologies.md) has any")
    return NodeShape(count, sizes.pop() if sizes else 1, min(links, default=0), None, None, where)


def of_nccl(topology: Topology, where: str) -> NodeShape:
    """The first host of a network that :func:`nest.network.readers.nccl.from_nccl_xml` read."""
    gpus = [int(n) for n in topology.device_N]
    host = topology.nodes[gpus[0]].rpartition("gpu")[0]
    own = {n for n in gpus if topology.nodes[n].startswith(host)}
    inside = {n for n in range(len(topology.nodes)) if topology.nodes[n] == "nvswitch"}
    rates: dict[int, float] = defaultdict(float)
    graph = networkx.Graph()
    graph.add_nodes_from(own)
    nets: dict[int, float] = {}
    for source, target, rate in zip(topology.source_E, topology.target_E, topology.bandwidth_E,
                                    strict=True):
        a, b = int(source), int(target)
        if a in own and b in own | inside:
            rates[a] += float(rate)
            graph.add_edge(a, b)
        name = topology.nodes[b]
        if name.startswith(f"{host}net") and name[len(host) + 3:].isdigit():
            nets[b] = float(rate)
    joined = max((len(each & own) for each in networkx.connected_components(graph)), default=1)
    inner = joined if len(own) % joined == 0 else 1
    return NodeShape(len(own), inner, 0, min(rates.values()) if len(rates) == len(own) else None,
                     sum(nets.values()) / len(own) if nets else None, where)


# ---------------------------------------------------------------- Slurm


SLURM = re.compile(r"^\s*(?:SwitchName|BlockName)\s*=", re.MULTILINE | re.IGNORECASE)


def from_slurm(text: str, where: str) -> FabricShape:
    """The tree of ``topology.conf``, or its blocks.

    Raises
    ------
    InputError : a malformed line or list, an unknown switch, a circle, a host below two leaves, or
        too many hosts.
    """
    nodes: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for number, line in enumerate(re.sub(r"\\\r?\n", " ", text).splitlines(), 1):
        words = line.partition("#")[0].split()
        given = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise InputError(f"{where}: line {number}: got {shorten(word)}; allowed: "
                                 "NAME=VALUE, such as SwitchName=leaf0 Nodes=node[0-15]")
            given[name.casefold()] = value
        name = given.get("switchname", given.get("blockname", ""))
        if not name:
            continue
        place = f"{where}: line {number}"
        if name in below:
            raise InputError(f"{place}: got {shorten(name)} twice; allowed: once")
        nodes[name] = hostlist(given.get("nodes", ""), place)
        below[name] = hostlist(given.get("switches", ""), place)
    leaves = {name for name in below if nodes[name]}
    heights: dict[str, int] = {}
    graph = networkx.DiGraph((name, other) for name, each in below.items() for other in each)
    missing = [name for name in graph if name not in below]
    if missing:
        raise InputError(f"{where}: got no switch {shorten(missing[0])}, which another one has in "
                         "Switches; needed: a line for each")
    graph.add_nodes_from(below)
    try:
        order = list(reversed(list(networkx.topological_sort(graph))))
    except networkx.NetworkXUnfeasible:
        raise InputError(f"{where}: Switches lead in a circle; allowed: a tree") from None
    hosts: dict[str, tuple[str, ...]] = {}
    for name in order:
        heights[name] = max((heights[other] + 1 for other in below[name]), default=0)
        if heights[name] >= MOST_TIERS:
            raise InputError(f"{where}: got more than {MOST_TIERS} switches above one another; "
                             f"allowed: {MOST_TIERS}")
        hosts[name] = tuple(dict.fromkeys(
            [*nodes[name], *(host for other in below[name] for host in hosts[other])]))
    twice = Counter(host for name in leaves for host in nodes[name])
    if not twice:
        raise InputError(f"{where}: got no Nodes; needed: the hosts below each leaf or block")
    host, times = twice.most_common(1)[0]
    if times > 1:
        raise InputError(f"{where}: got {shorten(host)} below {times} switches; allowed: one")
    word = "block" if "blockname" in text.casefold() else "leaf"
    # A leaf may hang on a switch higher up than others do: what is below its height stands alone.
    tiers = [NetworkTier(word if height == 0 else f"tier{height + 1}", tuple(
        hosts[name] for name in below if hosts[name] and heights[name] <= height
        and all(heights[other] > height for other in graph.predecessors(name))), None)
        for height in range(max(heights.values()) + 1)]
    return _shape(tiers, where)


def hostlist(text: str, place: str) -> list[str]:
    """Names of a list of Slurm's, such as ``tux[0-3,012],login``.

    Raises
    ------
    InputError : brackets that do not close, a range that is none, or too many names.
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[]*)(\[[^\]]*\]?)?", part):
            names = [name + plain for name in names]
            if ranges:
                numbers = list(_numbers(ranges, place))
                if len(numbers) * len(names) > MOST_HOSTS:
                    raise _too_many(place)
                names = [name + number for name in names for number in numbers]
        found += names
        if len(found) > MOST_HOSTS:
            raise _too_many(place)
    return found


def _too_many(place: str) -> InputError:
    return InputError(f"{place}: got more than {MOST_HOSTS:,} hosts; allowed: {MOST_HOSTS:,}")


def _numbers(ranges: str, place: str) -> Iterator[str]:
    for one in ranges.strip("[]").split(","):
        ends = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", one, re.ASCII)
        if ends is None or not ranges.endswith("]") or int(ends[2] or ends[1]) < int(ends[1]):
            raise InputError(f"{place}: got {shorten(ranges)}; allowed: ranges such as [0-3,12]")
        if int(ends[2] or ends[1]) - int(ends[1]) > MOST_HOSTS:
            raise _too_many(place)
        for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1):
            yield str(number).zfill(len(ends[1]))


# ---------------------------------------------------------------- ibnetdiscover


IBNETDISCOVER = re.compile(r'^(?:Switch|Ca|Rt)\s+\d+\s+"[SHR]-[0-9a-f]{16}"', re.MULTILINE)
_NODE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]{16})"\s+#\s+"([^"]*)"')
_PORT = re.compile(r'\[\d+\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]{16})"\[\d+\].*?'
                   r'\s(\d+x|\?\?)([A-Z0-9]+|\?\?\?)(?:\s.*)?')
LANES = {"SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0,
         "NDR": 100.0, "XDR": 200.0}
"""Gb/s of data that a lane carries."""
_REDUCER = "Aggregation Node"
"""Of the name of what adds up in a switch (SHARP), which is no host."""


def from_ibnetdiscover(text: str, where: str) -> FabricShape:
    """The fabric that ``ibnetdiscover`` prints.

    A tier joins the hosts that switches up to its height connect, so that all rails of a unit are
    one group. The rate of a host is that of its adapters, and further up that of the links that
    leave its group over the hosts of the group.

    Raises
    ------
    InputError : a malformed line, an unknown width or speed, or no hosts.
    """
    kinds: dict[str, str] = {}
    hosts: dict[str, str] = {}
    ends: dict[tuple[str, str], float] = defaultdict(float)
    own = ""
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{where}: line {number}"
        node = _NODE.match(line)
        if node:
            own = node[2]
            kinds[own] = node[1]
            if node[1] == "Ca":
                hosts[own] = node[3].split()[0] if node[3].split() else own
                if _REDUCER in node[3]:
                    kinds[own] = "reducer"
        elif line.startswith("["):
            port = _PORT.fullmatch(line.rstrip())
            if port is None or not own:
                raise InputError(f"{place}: got {shorten(line)}; allowed: a port, as ibnetdiscover "
                                 'prints it: [1] "S-GUID"[2] # "name" lid 3 4xNDR')
            if port[3] not in LANES or not port[2][:-1].isdigit():
                raise InputError(f"{place}: got the rate {port[2]}{port[3]}; allowed: a width with "
                                 f"one of {', '.join(LANES)}")
            ends[own, port[1]] += int(port[2][:-1]) * LANES[port[3]] * 1e9 / 8
    graph = networkx.Graph()
    for (a, b), rate in ends.items():
        # Each link stands below both of its ends; one of them is enough.
        graph.add_edge(a, b, rate=max(rate, ends.get((b, a), 0.0)))
    for name in [name for name, kind in kinds.items() if kind in ("reducer", "Rt")]:
        if name in graph:
            graph.remove_node(name)
    adapters = [name for name in hosts if kinds[name] == "Ca" and name in graph]
    if not adapters:
        raise InputError(f"{where}: got no adapter (Ca) with a link; needed: the hosts")
    for name in adapters:
        graph.add_edge(f"host {hosts[name]}", name)
    heights = networkx.multi_source_dijkstra_path_length(graph, adapters, weight=None)
    unknown = [name for name in graph if name not in kinds and not name.startswith("host ")]
    if unknown:
        raise InputError(f"{where}: got a port to {shorten(unknown[0])}, which has no lines of its "
                         "own; needed: the whole output of ibnetdiscover")
    tops = max((heights[name] for name in kinds if kinds[name] == "Switch" and name in heights),
               default=0)
    if not 1 <= tops <= MOST_TIERS:
        raise InputError(f"{where}: got {tops} tiers of switches; allowed: 1 to {MOST_TIERS}")
    tiers = [_tier(graph, {**heights, **{f"host {host}": 0 for host in hosts.values()}}, top)
             for top in range(1, tops + 1)]
    return _shape(tiers, where)


def _tier(graph: networkx.Graph, heights: Mapping[str, int], top: int) -> NetworkTier:
    """What switches up to a height join."""
    joined = graph.subgraph(name for name in graph if heights.get(name, 0) <= top)
    inside = graph.subgraph(name for name in graph if heights.get(name, 0) < top)
    groups = [tuple(sorted(name[5:] for name in each if name.startswith("host ")))
              for each in networkx.connected_components(joined)]
    rates = []
    for each in networkx.connected_components(inside):
        hosts = sum(name.startswith("host ") for name in each)
        up = sum(data["rate"] for _, far, data in graph.edges(each, data=True)
                 if heights.get(far, 0) == top)
        if hosts and up:
            rates.append(up / hosts)
    return NetworkTier("leaf" if top == 1 else f"tier{top}",
                       tuple(sorted(each for each in groups if each)),
                       min(rates) if rates else None)


def _shape(tiers: Sequence[NetworkTier], where: str) -> FabricShape:
    """Tiers that join more than those below them; the last one joins all hosts."""
    kept: list[NetworkTier] = []
    for tier in tiers:
        if not kept or len(tier.groups) < len(kept[-1].groups):
            kept.append(tier)
    if len(kept[-1].groups) > 1:
        every = tuple(host for group in kept[0].groups for host in group)
        kept.append(NetworkTier(f"tier{len(kept) + 1}", (every,), None))
    if len(kept) > 1 and kept[-1].name.startswith("tier"):
        last = kept.pop()
        kept.append(NetworkTier("spine", last.groups, last.rate))
    return FabricShape(tuple(kept), where)


def uneven(tier: NetworkTier) -> str:
    """A remark where groups of a tier differ in size; empty: they do not."""
    sizes = sorted(set(map(len, tier.groups)))
    if len(sizes) < 2 or math.prod(sizes) == 0:
        return ""
    return (f"{tier.name}: groups of {', '.join(map(str, np.array(sizes)[:6].tolist()))} hosts; a "
            f"level has equal groups, {tier.size} here")
