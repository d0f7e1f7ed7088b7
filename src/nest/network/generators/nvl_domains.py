"""NVLink domains the size of a rack, behind a spine-leaf fabric."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from nest.inputs import load_device
from nest.network.draft import Draft
from nest.network.generators.fabric import Count, DeviceType, ports
from nest.network.generators.spine_leaf import Spines, join_leaves
from nest.network.topology import Topology
from nest.units import Delay


class NvlDomains(Spines):
    """Fields of `nvl_domains`."""

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
        """Give the network.

        Raises
        ------
        InputError : too many devices.
        """
        draft = Draft(f"{self.domains} NVLink domains of {self.size}", "nvl-domains")
        attached = ports(draft, self, self.domains * self.size, self.size, "domain")
        leaves = [draft.switch(f"leaf{number}") for number in range(self.domains)]
        for number, port in enumerate(attached):
            draft.cable(port, leaves[number // self.size], self.bandwidth, self.latency)
        join_leaves(draft, leaves, self, self.size)
        return draft.build()


def nvl_domains(domains: int, **given: Any) -> Topology:
    """NVLink domains, each with its own leaf, joined by spines; one adapter per device.

    MLPerf system description of GB200 NVL72: 72 GPUs in a domain, a 400 Gb/s adapter each.

    Parameters
    ----------
    domains : how many.
    given : other fields of `NvlDomains`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return NvlDomains(domains=domains, **given).topology()
