"""Three tiers of switches with k ports each."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from nest.inputs.base import Problems, Whole
from nest.network.draft import Draft
from nest.network.generators.fabric import Node, Ratio, SwitchedFabric, ports
from nest.network.topology import Topology


class FatTree(SwitchedFabric):
    """Fields of `fat_tree`."""

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
        """Give the network.

        Raises
        ------
        InputError : ``node`` does not divide the devices, or too many of them.
        """
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


def fat_tree(k: int, **given: Any) -> Topology:
    """Fat tree of k-port switches: k pods of k/2 edge and k/2 aggregation switches, k*k/4 cores.

    M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
    SIGCOMM 2008, section 2.2: k**3/4 devices, 5 k**2/4 switches.

    Parameters
    ----------
    k : ports of a switch, even.
    given : other fields of `FatTree`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return FatTree(k=k, **given).topology()
