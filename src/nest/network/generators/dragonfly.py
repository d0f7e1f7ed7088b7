"""Groups of routers, fully connected inside and among each other."""

from __future__ import annotations

import itertools
from typing import Any, Self

from pydantic import Field, model_validator

from nest.inputs.base import Problems
from nest.network.draft import Draft
from nest.network.generators.fabric import Count, Node, SwitchedFabric, ports
from nest.network.topology import Topology


class Dragonfly(SwitchedFabric):
    """Fields of `dragonfly`."""

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
        """Give the network.

        Raises
        ------
        InputError : ``node`` does not divide the devices, or too many of them or of links.
        """
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


def dragonfly(a: int, p: int, h: int, **given: Any) -> Topology:
    """Dragonfly: g groups of a routers with p devices and h global links each.

    J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-driven, highly-scalable dragonfly
    topology", ISCA 2008, section 3.1: at most a h + 1 groups, a p g devices, balanced where
    a = 2p = 2h. All links of routers have the bandwidth of a device's port. With fewer groups,
    each pair gets as many links as the ports allow, and ports that are left stay free.

    Parameters
    ----------
    a : routers of a group.
    p : devices of a router.
    h : links of a router to other groups.
    given : other fields of `Dragonfly`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return Dragonfly(a=a, p=p, h=h, **given).topology()
