"""Devices that each have a link to every other one."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

from pydantic import Field

from nest.inputs import load_device
from nest.inputs.base import Whole
from nest.network.draft import Draft
from nest.network.generators.fabric import DeviceType, Generator, port_rate
from nest.network.topology import Topology
from nest.units import Bandwidth, Delay

MOST = 1000  # devices, just below the links that a topology may have


class FullyConnected(Generator):
    """Fields of `fully_connected`."""

    devices: Annotated[Whole, Field(ge=1, le=MOST)] = Field(description="devices")
    device: DeviceType = Field(
        default_factory=lambda: load_device("mi300x"), description="type of the devices"
    )
    bandwidth: Bandwidth = Field(
        default_factory=lambda given: port_rate(given, 64e9),
        description="bytes/s of a link, each direction; default: that of the AMD device, of an "
        "MI300X for others (Infinity Fabric, 128 GB/s both ways: AMD Instinct MI300X datasheet)",
    )
    latency: Delay = Field(2e-6, description="seconds of a link (assumed)")

    def topology(self) -> Topology:
        """Give the network."""
        draft = Draft(f"{self.devices} devices, fully connected", "fully-connected")
        gpus = [draft.device(f"gpu{number}", self.device) for number in range(self.devices)]
        for one, other in itertools.combinations(gpus, 2):
            draft.cable(one, other, self.bandwidth, self.latency)
        return draft.build()


def fully_connected(devices: int, **given: Any) -> Topology:
    """Network without switches in which all devices are neighbours.

    Parameters
    ----------
    devices : how many.
    given : other fields of `FullyConnected`.

    Raises
    ------
    InputError : a field that is unknown or not allowed.
    """
    return FullyConnected(devices=devices, **given).topology()
