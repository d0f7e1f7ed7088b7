"""How often the parts of a cluster fail, and what a failure costs the job that runs there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from nest.errors import InputError
from nest.inputs.base import Description, Flag, Freeze, FrozenDict, Name, Problems, Whole, at_most
from nest.inputs.cluster import MOST_DEVICES, Cluster
from nest.units import Bandwidth, Span

_DEVICE_HOURS = 16384 * 54 * 24
"""Of the 54 days of arXiv:2407.21783, section 3.3.4, on 16,384 H100 with 419 unexpected
interruptions. Its table 5, by part: devices 268 (faulty GPU 148, HBM3 72, SRAM 19, system processor
17, silent corruption 6, thermal 6), links 35 (switch or cable), nodes 53 (maintenance 32, adapter
7, SSD 3, power 3, chassis 2, expansion board 2, CPU 2, memory 2), software 63 (bugs 54, NCCL
watchdog 7, dependencies 2)."""
_STORAGE = 2e12 / 16384
"""Bytes/s for each device that storage sustains: 2 TB/s (arXiv:2407.21783, section 3.3.1)."""


def _every(count: int, parts: int = 1) -> float:
    """Seconds between failures of one part, where so many were seen; ``parts``: devices of one."""
    return _DEVICE_HOURS / parts / count * 3600.0


Often = Annotated[Span, Field(gt=0)] | None


class FailureDomain(NamedTuple):
    """Parts of a cluster that fail alike."""

    name: str
    parts: int
    rate: float
    """Failures a second of all parts."""
    nodes: int
    """That a failure takes away until they are repaired."""


class Failures(Description):
    """How often parts fail, what a failure costs, and where checkpoints are written.

    Times between failures are means of an exponential distribution, of one part. Defaults are the
    rates of Llama 3 405B on 16,384 H100 (arXiv:2407.21783, table 5).
    """

    device: Often = Field(_every(268), description="time between failures of a device, which take "
                          "its node away; null: none")
    link: Often = Field(_every(35), description="of a device's share of the network between nodes, "
                        "likewise; null: none")
    node: Often = Field(_every(53, 8), description="of the rest of a node; null: none")
    software: Often = Field(_every(63), description="of what takes no part away, for each device "
                            "(that it grows with devices is assumed); null: none")
    levels: Annotated[dict[Name, Annotated[Span, Field(gt=0)]], Freeze, at_most(8)] = Field(
        default_factory=FrozenDict, description="of a group of a level of the cluster, by the name "
        "of the level, with all its nodes, such as racks; no default, because none is published")
    node_devices: Annotated[Whole, Field(ge=1, le=MOST_DEVICES)] | None = Field(
        None, description="devices that are exchanged together; null: the innermost level, or 4 of "
        "a rack")
    restart: Span = Field(600.0, description="from a failure to the first new step, with detection "
                          "and loading; 10 min: detection and diagnosis take less on 10,000 "
                          "GPUs (arXiv:2402.15627); that the rest is short is assumed")
    repair: Span = Field(86400.0, description="until a node that was taken away is a spare again; "
                         "1 d is assumed")
    spares: Annotated[Whole, Field(ge=0, le=MOST_DEVICES)] | None = Field(
        None, description="nodes that wait beside those of the plan; null: those that give most "
        "tokens for each device, spares included")
    storage: Bandwidth | None = Field(
        None, description="bytes/s that all devices together write to storage; null: 122 MB/s for "
        "each device, 2 TB/s for 16,384 (arXiv:2407.21783, section 3.3.1)")
    node_storage: Bandwidth | None = Field(
        None, description="bytes/s that a node writes; null: no limit of its own")
    background: Flag = Field(
        False, description="training waits only for copies to the host, and goes on while they are "
        "written")

    @model_validator(mode="after")
    def _some(self) -> Failures:
        if not self.levels and not any((self.device, self.link, self.node, self.software)):
            raise Problems([("device", "got no part that fails; allowed: a time for one of device, "
                             "link, node, software, levels")])
        return self

    def node_size(self, cluster: Cluster) -> int:
        """Devices that are exchanged together."""
        return min(self.node_devices or cluster.node_devices, cluster.size)

    def domains(self, cluster: Cluster) -> Iterator[FailureDomain]:
        """The parts of a cluster that fail.

        Raises
        ------
        InputError : a level that the cluster does not have.
        """
        size, each = cluster.size, self.node_size(cluster)
        nodes = -(-size // each)
        given = (("device", size, self.device, 1), ("link", size * (nodes > 1), self.link, 1),
                 ("node", nodes, self.node, 1), ("software", size, self.software, 0))
        yield from (FailureDomain(name, parts, parts / every, lost)
                    for name, parts, every, lost in given if every and parts)
        names = [level.name for level in cluster.levels]
        for name, every in self.levels.items():
            if name not in names:
                raise InputError(f"failures: levels.{name}: {cluster.name} has no such level; "
                                 f"allowed: {', '.join(names)}")
            group = cluster.group_sizes[names.index(name)]
            yield FailureDomain(name, -(-size // group), -(-size // group) / every,
                                -(-min(group, size) // each))

    def storage_rate(self, devices: int) -> float:
        """Bytes/s of storage."""
        return _STORAGE * devices if self.storage is None else self.storage
