"""Nodes whose j-th devices share the j-th leaf switch, their rail."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from nest.network.draft import Draft
from nest.network.generators.fabric import Count, ports
from nest.network.generators.spine_leaf import Spines, join_leaves
from nest.network.topology import Topology


class RailOptimized(Spines):
    """Fields of `rail_optimized`."""

    nodes: Count = Field(description="nodes of a scalable unit: ports of a leaf to devices")
    units: Count = Field(1, description="scalable units, each with leaves of its own")
    node: Count = Field(8, description="devices of a node, and leaves of a unit (DGX: 8)")

    def topology(self) -> Topology:
        """Give the network.

        Raises
        ------
        InputError : too many devices.
        """
        draft = Draft(f"{self.units} x {self.nodes} nodes on rails", "rail-optimized")
        attached = ports(draft, self, self.units * self.nodes * self.node, self.node)
        leaves = [draft.switch(f"leaf{number}") for number in range(self.units * self.node)]
        for number, port in enumerate(attached):
            unit = number // (self.nodes * self.node)
            leaf = leaves[unit * self.node + number % self.node]
            draft.cable(port, leaf, self.bandwidth, self.latency)
        join_leaves(draft, leaves, self, self.nodes)
        return draft.build()


def rail_optimized(nodes: int, **given: Any) -> Topology:
    """Network in which device j of every node of a unit is linked to leaf j of the unit.

    NVIDIA DGX SuperPOD reference architecture (DGX H100), compute fabric: scalable units of 32
    nodes, 8 leaves each, all linked to the spines.

    Parameters
    ----------
    nodes : nodes of a unit.
    given : other fields of `RailOptimized`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return RailOptimized(nodes=nodes, **given).topology()
