"""Networks with switches: fat trees, spines and leaves, rails, NVLink domains, dragonflies."""

from __future__ import annotations

import itertools
from typing import Annotated, Self

from pydantic import Field, model_validator

from nest.inputs import load_device
from nest.inputs.base import Problems, Whole
from nest.network.generators.fabric import Count, DeviceType, Node, Ratio, SwitchedFabric, ports
from nest.network.topology import Draft, Topology
from nest.units import Delay


class FatTree(SwitchedFabric):
    """Fat tree of k-port switches: k pods of k/2 edge and k/2 aggregation switches, k*k/4 cores.

    M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
    SIGCOMM 2008, section 2.2: k**3/4 devices, 5 k**2/4 switches.
    """

    k: Annotated[Whole, Field(ge=2, le=256)] = Field(description="ports of a switch, even")
    node: Node = 1
    oversubscription: Ratio = Field(
        1.0, description="links between switches have this many times less than a device's port"
    )

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.k % 2:
            raise Problems([("k", f"got {self.k}; allowed: an even number")])
        return self

    def topology(self) -> Topology:
        half = self.k // 2
        draft = Draft(f"fat tree of {self.k}-port switches", "fat-tree")
        attached = ports(draft, self, half * half * self.k, self.node)
        narrow = self.bandwidth / self.oversubscription
        edges = [draft.switch(f"edge{n}") for n in range(half * self.k)]
        middles = [draft.switch(f"aggregation{n}") for n in range(half * self.k)]
        cores = [draft.switch(f"core{n}") for n in range(half * half)]
        for number, port in enumerate(attached):
            draft.cable(port, edges[number // half], self.bandwidth, self.latency)
        for pod in range(self.k):
            for plane in range(half):
                middle = middles[pod * half + plane]
                for edge in edges[pod * half : (pod + 1) * half]:
                    draft.cable(edge, middle, narrow, self.switch_latency)
                for core in cores[plane * half : (plane + 1) * half]:
                    draft.cable(middle, core, narrow, self.switch_latency)
        return draft.build()


class Spines(SwitchedFabric):
    """Fields of networks whose leaf switches are joined by spine switches."""

    spines: Count = Field(4, description="spine switches, each linked to every leaf (chosen)")
    oversubscription: Ratio = Field(
        1.0, description="bandwidth of the ports of a leaf's devices over that of its links up"
    )


class SpineLeaf(Spines):
    """Two-tier Clos network; the cables between a leaf and a spine are one link.

    C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32(2),
    1953, folded.
    """

    leaves: Count = Field(description="leaf switches")
    per_leaf: Count = Field(description="devices of a leaf")
    node: Node = 1

    def topology(self) -> Topology:
        draft = Draft(f"{self.leaves} leaves of {self.per_leaf}", "spine-leaf")
        attached = ports(draft, self, self.leaves * self.per_leaf, self.node)
        leaves = [draft.switch(f"leaf{number}") for number in range(self.leaves)]
        for number, port in enumerate(attached):
            draft.cable(port, leaves[number // self.per_leaf], self.bandwidth, self.latency)
        join_leaves(draft, leaves, self, self.per_leaf)
        return draft.build()


def join_leaves(draft: Draft, leaves: list[int], fabric: Spines, per_leaf: int) -> None:
    """Add spine switches and their links to all leaves."""
    up = per_leaf * fabric.bandwidth / (fabric.spines * fabric.oversubscription)
    spines = [draft.switch(f"spine{number}") for number in range(fabric.spines)]
    for leaf in leaves:
        for spine in spines:
            draft.cable(leaf, spine, up, fabric.switch_latency)


class RailOptimized(Spines):
    """Network in which device j of every node of a unit is linked to leaf j of the unit.

    NVIDIA DGX SuperPOD reference architecture (DGX H100), compute fabric: scalable units of 32
    nodes, 8 leaves each, all linked to the spines.
    """

    nodes: Count = Field(description="nodes of a scalable unit: ports of a leaf to devices")
    units: Count = Field(1, description="scalable units, each with leaves of its own")
    node: Count = Field(8, description="devices of a node, and leaves of a unit (DGX: 8)")

    def topology(self) -> Topology:
        draft = Draft(f"{self.units} x {self.nodes} nodes on rails", "rail-optimized")
        attached = ports(draft, self, self.units * self.nodes * self.node, self.node)
        leaves = [draft.switch(f"leaf{number}") for number in range(self.units * self.node)]
        for number, port in enumerate(attached):
            unit = number // (self.nodes * self.node)
            leaf = leaves[unit * self.node + number % self.node]
            draft.cable(port, leaf, self.bandwidth, self.latency)
        join_leaves(draft, leaves, self, self.nodes)
        return draft.build()


class NvlDomains(Spines):
    """NVLink domains, each with its own leaf, joined by spines; one adapter per device.

    MLPerf system description of GB200 NVL72: 72 GPUs in a domain, a 400 Gb/s adapter each.
    """

    domains: Count = Field(description="NVLink domains")
    size: Count = Field(72, description="devices of a domain")
    device: DeviceType = Field(
        default_factory=lambda: load_device("gb200"), description="type of the devices"
    )
    node_latency: Delay | None = Field(
        1.4e-6,
        description="seconds of a device into its domain: half of 2.8 us a ring step, fitted, as "
        "the catalog's gb200-nvl72",
    )

    def topology(self) -> Topology:
        draft = Draft(f"{self.domains} NVLink domains of {self.size}", "nvl-domains")
        attached = ports(draft, self, self.domains * self.size, self.size, "domain")
        leaves = [draft.switch(f"leaf{number}") for number in range(self.domains)]
        for number, port in enumerate(attached):
            draft.cable(port, leaves[number // self.size], self.bandwidth, self.latency)
        join_leaves(draft, leaves, self, self.size)
        return draft.build()


class Dragonfly(SwitchedFabric):
    """Dragonfly: g groups of a routers with p devices and h global links each.

    J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-driven, highly-scalable dragonfly
    topology", ISCA 2008, section 3.1: at most a h + 1 groups, a p g devices, balanced where
    a = 2p = 2h. All links of routers have the bandwidth of a device's port. With fewer groups,
    each pair gets as many links as the ports allow, and ports that are left stay free.
    """

    a: Count = Field(description="routers of a group")
    p: Count = Field(description="devices of a router")
    h: Count = Field(description="links of a router to other groups")
    groups: Count | None = Field(None, description="groups; left out: a h + 1, the most there are")

    node: Node = 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        most = self.a * self.h + 1
        if self.groups is not None and not 2 <= self.groups <= most:
            text = f"got {self.groups}; allowed: 2 to {most} = a h + 1"
            raise Problems([("groups", text)])
        return self

    def topology(self) -> Topology:
        groups = self.groups or self.a * self.h + 1
        name = f"dragonfly of {groups} groups of {self.a} routers"
        draft = Draft(name, "dragonfly", adds_parallel=True)
        attached = ports(draft, self, groups * self.a * self.p, self.node)
        routers = [
            [draft.switch(f"group{group}/router{number}") for number in range(self.a)]
            for group in range(groups)
        ]
        for number, port in enumerate(attached):
            group, place = divmod(number // self.p, self.a)
            draft.cable(port, routers[group][place], self.bandwidth, self.latency)
        for own in routers:
            for one, other in itertools.combinations(own, 2):
                draft.cable(one, other, self.bandwidth, self.switch_latency)
        for here, there in self._global_links(groups):
            one, other = routers[here[0]][here[1]], routers[there[0]][there[1]]
            draft.cable(one, other, self.bandwidth, self.switch_latency)
        return draft.build()

    def _global_links(
        self, groups: int
    ) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Pairs of (group, router): port q of a group leads q + 1 groups on, round and round."""
        found = []
        others = groups - 1
        for copy in range(self.a * self.h // others):
            for group, step in itertools.product(range(groups), range(1, groups)):
                other = (group + step) % groups
                if group < other:
                    here = copy * others + step - 1
                    there = copy * others + (groups - step) - 1
                    found.append(((group, here // self.h), (other, there // self.h)))
        return found
