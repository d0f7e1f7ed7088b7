"""The links of a network that is not a hierarchy, by numbers of its devices and switches."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from nest.inputs.base import Description, Problems, Whole, at_most
from nest.units import Bandwidth, Delay

MOST_NODES = 500_000
MOST_LINKS = 1_000_000
"""Most links of a network; each direction counts."""

Node = Annotated[Whole, Field(ge=0, lt=MOST_NODES)]


class Links(Description):
    """Links of one direction between N devices, nodes 0 to N-1 in device order, and switches."""

    switches: Annotated[Whole, Field(ge=0, le=MOST_NODES)] = Field(
        0, description="nodes that are no devices; their numbers follow those of the devices"
    )
    source: Annotated[tuple[Node, ...], Field(min_length=1), at_most(MOST_LINKS)] = Field(
        description="node that each link leads from"
    )
    target: Annotated[tuple[Node, ...], at_most(MOST_LINKS)] = Field(
        description="node that each link leads to"
    )
    bandwidth: Annotated[tuple[Bandwidth, ...], at_most(MOST_LINKS)] = Field(
        description="bytes/s of each link"
    )
    latency: Annotated[tuple[Delay, ...], at_most(MOST_LINKS)] = Field(
        description="seconds of each link"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        count = len(self.source)
        for name in ("target", "bandwidth", "latency"):
            if len(getattr(self, name)) != count:
                text = f"got {len(getattr(self, name))} entries; allowed: {count}, as in source"
                raise Problems([(name, text)])
        pairs = list(zip(self.source, self.target, strict=True))
        if any(a == b for a, b in pairs):
            raise Problems([("target", "got a link from a node to itself; allowed: another node")])
        if len(set(pairs)) < count:
            raise Problems([("target", "got two links from one node to another; allowed: one")])
        return self

    def problem(self, devices: int) -> str | None:
        """Why the links do not connect all devices; None: they do."""
        nodes = devices + self.switches
        if max(*self.source, *self.target) >= nodes:
            return f"got a node beyond the {devices} devices and {self.switches} switches"
        for ways in (zip(self.source, self.target, strict=True),
                     zip(self.target, self.source, strict=True)):
            after: list[list[int]] = [[] for _ in range(nodes)]
            for one, other in ways:
                after[one].append(other)
            seen, waiting = {0}, [0]
            while waiting:
                found = [node for node in after[waiting.pop()] if node not in seen]
                seen.update(found)
                waiting += found
            if len(seen) < nodes:
                apart = next(node for node in range(nodes) if node not in seen)
                return f"got no path both ways between node 0 and node {apart}"
        return None
