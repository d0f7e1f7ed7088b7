"""A topology under construction; every error names its source."""

from __future__ import annotations

import math

import numpy as np

from nest.errors import InputError
from nest.inputs import Device
from nest.network.topology import MOST_LINKS, MOST_NODES, Topology
from nest.units import shorten


class Draft:
    """Collects nodes and links for a topology.

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
