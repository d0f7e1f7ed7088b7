"""Leaf switches with devices, each linked to every spine switch."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from nest.network.draft import Draft
from nest.network.generators.fabric import Count, Node, Ratio, SwitchedFabric, ports
from nest.network.topology import Topology


class Spines(SwitchedFabric):
    """Fields of networks whose leaf switches are joined by spine switches."""

    spines: Count = Field(4, description="spine switches, each linked to every leaf (chosen)")
    oversubscription: Ratio = Field(
        1.0, description="bandwidth of the ports of a leaf's devices over that of its links up"
    )


class SpineLeaf(Spines):
    """Fields of `spine_leaf`."""

    leaves: Count = Field(description="leaf switches")
    per_leaf: Count = Field(description="devices of a leaf")
    node: Node = 1

    def topology(self) -> Topology:
        """Give the network.

        Raises
        ------
        InputError : ``node`` does not divide the devices, or too many of them.
        """
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


def spine_leaf(leaves: int, per_leaf: int, **given: Any) -> Topology:
    """Two-tier Clos network; the cables between a leaf and a spine are one link.

    C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32(2),
    1953, folded.

    Parameters
    ----------
    leaves : leaf switches.
    per_leaf : devices of a leaf.
    given : other fields of `SpineLeaf`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return SpineLeaf(leaves=leaves, per_leaf=per_leaf, **given).topology()
