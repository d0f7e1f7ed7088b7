"""A network as a graph: devices and switches, and links with a bandwidth per direction.

Shapes: V nodes, E links (one for each direction), N devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from nest.errors import InputError
from nest.inputs import Cluster, Device
from nest.inputs.links import MOST_LINKS, MOST_NODES
from nest.units import shorten

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

__all__ = ["MOST_LINKS", "MOST_NODES", "Flags", "Floats", "Ints", "Topology"]


@dataclass(frozen=True, eq=False)
class Topology:
    """A network of devices and switches; links are sorted by source, then by target.

    Attributes
    ----------
    name : name of the network.
    nodes : names of the V nodes.
    types : the different types of device.
    type_V : int64, shape (V,)
        Index in ``types``; -1 for a switch.
    source_E, target_E : int64, shape (E,)
        Nodes that a link leads from and to; no two links lead from one node to the same node.
    bandwidth_E : float64, shape (E,)
        Bytes/s, all cables between the two nodes together.
    latency_E : float64, shape (E,)
        Seconds that a message takes over the link, half of both ends included.
    base_time_V, ramp_V : float64, shape (V,)
        Of a switch: extra time of a collective over it, as the fields of the same name of a level
        of a cluster; 0 for devices.
    reduces_V : bool, shape (V,)
        Whether a switch reduces in the network.
    """

    name: str
    nodes: tuple[str, ...]
    types: tuple[Device, ...]
    type_V: Ints
    source_E: Ints
    target_E: Ints
    bandwidth_E: Floats
    latency_E: Floats
    base_time_V: Floats
    ramp_V: Floats
    reduces_V: Flags

    def __post_init__(self) -> None:
        order = np.lexsort((self.target_E, self.source_E))
        for name in ("source_E", "target_E", "bandwidth_E", "latency_E"):
            self._freeze(name, getattr(self, name)[order])
        for name in ("type_V", "base_time_V", "ramp_V", "reduces_V"):
            self._freeze(name, getattr(self, name).copy())

    def _freeze(self, name: str, array: NDArray[np.generic]) -> None:
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    @classmethod
    def of_links(cls, cluster: Cluster) -> Topology:
        """The network of a cluster that has links; devices have the names of the cluster."""
        links, devices = cluster.links, cluster.size
        assert links is not None
        names = cluster.names or tuple(f"device{n}" for n in range(devices))
        switches = links.switches
        return cls(
            cluster.name, (*names, *(f"switch{n}" for n in range(switches))),
            cluster.device_types,
            np.array([*(cluster.type_at(n) for n in range(devices)), *[-1] * switches]),
            np.array(links.source), np.array(links.target), np.array(links.bandwidth),
            np.array(links.latency), np.zeros(devices + switches), np.zeros(devices + switches),
            np.zeros(devices + switches, dtype=np.bool_),
        )

    @cached_property
    def device_N(self) -> Ints:
        """Nodes of the devices in device order, int64 of shape (N,)."""
        return np.flatnonzero(self.type_V >= 0)

    @cached_property
    def number_V(self) -> Ints:
        """Device numbers of the nodes, -1 for switches, int64 of shape (V,)."""
        numbers = np.full(len(self.nodes), -1, dtype=np.int64)
        numbers[self.device_N] = np.arange(len(self.device_N))
        return numbers

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of each node by its name."""
        return {name: number for number, name in enumerate(self.nodes)}

    @cached_property
    def below(self) -> dict[str, Ints]:
        """Nodes whose names begin with a name and "/", for each such name."""
        found: dict[str, list[int]] = {}
        for number, name in enumerate(self.nodes):
            cut = name.find("/")
            while cut > 0:
                found.setdefault(name[:cut], []).append(number)
                cut = name.find("/", cut + 1)
        return {name: np.array(nodes, dtype=np.int64) for name, nodes in found.items()}

    @cached_property
    def _key_E(self) -> Ints:
        return self.source_E * len(self.nodes) + self.target_E

    def links(self, sources: Ints, targets: Ints) -> Ints:
        """Number of the link from each source to each target node, -1 where there is none."""
        if not len(self._key_E):
            return np.full(len(sources), -1, dtype=np.int64)
        wanted = sources * len(self.nodes) + targets
        found = np.minimum(np.searchsorted(self._key_E, wanted), len(self._key_E) - 1)
        return np.where(self._key_E[found] == wanted, found, -1).astype(np.int64)

    def part(self, kept_V: Flags, kept_E: Flags) -> Topology:
        """The network of some nodes and the kept links between them."""
        kept = kept_E & kept_V[self.source_E] & kept_V[self.target_E]
        number_V = np.cumsum(kept_V) - 1
        numbers, place = np.unique(self.type_V[kept_V], return_inverse=True)
        types = tuple(self.types[number] for number in numbers if number >= 0)
        return Topology(
            name=self.name,
            nodes=tuple(n for n, keep in zip(self.nodes, kept_V, strict=True) if keep),
            types=types,
            type_V=place.astype(np.int64) - int(len(numbers) > len(types)),
            source_E=number_V[self.source_E[kept]],
            target_E=number_V[self.target_E[kept]],
            bandwidth_E=self.bandwidth_E[kept],
            latency_E=self.latency_E[kept],
            base_time_V=self.base_time_V[kept_V],
            ramp_V=self.ramp_V[kept_V],
            reduces_V=self.reduces_V[kept_V],
        )

    def with_device(self, device: Device) -> Topology:
        """Give the same network with devices of one type."""
        numbers = np.where(self.type_V < 0, -1, 0).astype(np.int64)
        return replace(self, types=(device,), type_V=numbers)

    def parts(self) -> Ints:
        """Label of each node: two nodes share it if paths lead both ways between them."""
        size = len(self.nodes)
        ones = np.ones(len(self.source_E), dtype=np.int8)
        graph = csr_array((ones, (self.source_E, self.target_E)), shape=(size, size))
        labels: Ints = connected_components(graph, connection="strong")[1].astype(np.int64)
        return labels

    def check_connected(self, where: str) -> None:
        """Refuse a network in which some node cannot reach another.

        Raises
        ------
        InputError : no device, or a node without a path to or from the first device.
        """
        if not len(self.device_N):
            raise InputError(f"{where}: got no device; allowed: at least one device")
        labels = self.parts()
        first = self.device_N[0]
        apart = np.flatnonzero(labels != labels[first])
        if not len(apart):
            return
        devices = apart[self.type_V[apart] >= 0]
        other = devices[0] if len(devices) else apart[0]
        node = "device" if len(devices) else "switch"
        a, b = shorten(self.nodes[first]), shorten(self.nodes[other])
        raise InputError(
            f"{where}: got a disconnected network: no path both ways between {a} and the {node} "
            f"{b} ({len(apart)} nodes are cut off); allowed: paths between all nodes"
        )


class Draft:
    """A topology under construction: its nodes and links; every error names its source.

    Parameters
    ----------
    name : of the topology.
    where : start of messages, such as a file name.
    adds_parallel : whether a second link between the same nodes is a further cable, whose
        bandwidth is added (the latency stays that of the first), or refused.
    """

    def __init__(self, name: str, where: str, adds_parallel: bool = False) -> None:
        self.name = name
        self.where = where
        self._adds_parallel = adds_parallel
        self._nodes: dict[str, int] = {}
        self._names: list[str] = []
        self._types: dict[Device, int] = {}
        self._known: dict[int, int] = {}  # by identity: a device's hash reads all its fields
        self._held: list[Device] = []  # kept alive, so that identities stay unique
        self._type_of: list[int] = []
        self._figures: list[tuple[float, float, bool]] = []
        self._links: dict[tuple[int, int], tuple[float, float]] = {}

    def refuse(self, field: str, problem: str) -> InputError:
        """The error for a field."""
        return InputError(": ".join(part for part in (self.where, field, problem) if part))

    def device(self, name: str, device: Device, field: str = "") -> int:
        """Add a device and give its number among the nodes."""
        number = self._known.get(id(device))
        if number is None:
            number = self._types.setdefault(device, len(self._types))
            self._known[id(device)] = number
            self._held.append(device)
        return self._node(name, number, (0.0, 0.0, False), field)

    def switch(
        self,
        name: str,
        field: str = "",
        base_time: float = 0.0,
        ramp: float = 0.0,
        reduces: bool = False,
    ) -> int:
        """Add a switch and give its number among the nodes."""
        return self._node(name, -1, (base_time, ramp, reduces), field)

    def _node(self, name: str, number: int, figures: tuple[float, float, bool], field: str) -> int:
        if name in self._nodes:
            problem = f"got the node {shorten(name)} twice; allowed: a name of its own for each"
            raise self.refuse(field, problem)
        if len(self._nodes) >= MOST_NODES:
            raise self.refuse("nodes", f"got more than {MOST_NODES}; allowed: {MOST_NODES}")
        self._nodes[name] = len(self._nodes)
        self._names.append(name)
        self._type_of.append(number)
        self._figures.append(figures)
        return len(self._nodes) - 1

    def find(self, name: str) -> int | None:
        """The number of a node by its name, None if it is unknown."""
        return self._nodes.get(name)

    def node(self, name: str, field: str) -> int:
        """Give the number of a node by its name.

        Raises
        ------
        InputError : there is no such node.
        """
        if name not in self._nodes:
            raise self.refuse(field, f"got {shorten(name)}; allowed: the name of a node")
        return self._nodes[name]

    def cable(
        self, one: int, other: int, bandwidth: float, latency: float, field: str = ""
    ) -> None:
        """Add a link for each direction.

        Parameters
        ----------
        one, other : numbers of the nodes.
        bandwidth : bytes/s of each direction.
        latency : seconds.

        Raises
        ------
        InputError : as `link`.
        """
        self.link(one, other, bandwidth, latency, field)
        self.link(other, one, bandwidth, latency, field)

    def link(
        self, source: int, target: int, bandwidth: float, latency: float, field: str = ""
    ) -> None:
        """Add a link in one direction.

        Raises
        ------
        InputError : from a node to itself, a second one if those are refused, a bandwidth that
            is not above zero, a latency below zero, or too many.
        """
        if source == target:
            problem = f"got a link from {shorten(self._names[source])} to itself"
            raise self.refuse(field, f"{problem}; allowed: links between two nodes")
        if not (bandwidth > 0 and math.isfinite(bandwidth)):
            problem = f"got a bandwidth of {bandwidth:g}; allowed: more than 0 bytes/s"
            raise self.refuse(field, problem)
        if not (latency >= 0 and math.isfinite(latency)):
            raise self.refuse(field, f"got a latency of {latency:g}; allowed: 0 s or more")
        before = self._links.get((source, target))
        if before is not None and not self._adds_parallel:
            a, b = (shorten(self._names[end]) for end in (source, target))
            problem = f"got a second link from {a} to {b}; allowed: one for each direction"
            raise self.refuse(field, f"{problem}, with the bandwidth of all its cables")
        if before is None and len(self._links) >= MOST_LINKS:
            raise self.refuse("links", f"got more than {MOST_LINKS}; allowed: {MOST_LINKS}")
        added, latency = before or (0.0, latency)
        self._links[source, target] = (added + bandwidth, latency)

    def build(self) -> Topology:
        """Build the topology.

        Raises
        ------
        InputError : no device, or the network is disconnected.
        """
        ends = np.array(list(self._links), dtype=np.int64).reshape(-1, 2)
        figures = np.array(list(self._links.values()), dtype=np.float64).reshape(-1, 2)
        switches = np.array(self._figures, dtype=np.float64).reshape(-1, 3)
        topology = Topology(
            name=self.name,
            nodes=tuple(self._names),
            types=tuple(self._types),
            type_V=np.array(self._type_of, dtype=np.int64),
            source_E=ends[:, 0],
            target_E=ends[:, 1],
            bandwidth_E=figures[:, 0],
            latency_E=figures[:, 1],
            base_time_V=switches[:, 0],
            ramp_V=switches[:, 1],
            reduces_V=switches[:, 2] > 0,
        )
        topology.check_connected(self.where)
        return topology
