"""Networks whose links join devices directly."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from nest.inputs import load_device
from nest.inputs.base import Problems, Whole, at_most
from nest.network.generators.fabric import DeviceType, Generator, port_rate
from nest.network.topology import MOST_NODES, Draft, Topology
from nest.units import Bandwidth, Delay

MOST = 1000  # devices, just below the links that a topology may have


class FullyConnected(Generator):
    """Network without switches in which all devices are neighbours."""

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
        draft = Draft(f"{self.devices} devices, fully connected", "fully-connected")
        gpus = [draft.device(f"gpu{number}", self.device) for number in range(self.devices)]
        for one, other in itertools.combinations(gpus, 2):
            draft.cable(one, other, self.bandwidth, self.latency)
        return draft.build()


MOST_DIMENSIONS = 6


def _sizes(value: object) -> object:
    """Take 4x4x4 as three numbers, and 8 as one."""
    if isinstance(value, str) and len(value) <= 100:
        parts = value.split("x")
        if all(part.isascii() and part.isdigit() for part in parts):
            return [int(part) for part in parts]
    return [value] if isinstance(value, int) else value


class Torus(Generator):
    """Torus of any number of dimensions up to six; devices are numbered with the last one fastest.

    N. P. Jouppi et al., "TPU v4: an optically reconfigurable supercomputer", arXiv:2304.01433,
    section 2.
    """

    dims: Annotated[
        tuple[Annotated[Whole, Field(ge=2, le=MOST_NODES)], ...],
        Field(min_length=1),
        at_most(MOST_DIMENSIONS),
        BeforeValidator(_sizes),
    ] = Field(description="devices of each dimension, such as 4x4x4")
    device: DeviceType = Field(
        default_factory=lambda: load_device("tpu-v4"), description="type of the devices"
    )
    bandwidth: Bandwidth = Field(
        default_factory=lambda given: port_rate(given, 50e9),
        description="bytes/s of a link, each direction; default: that of the TPU, of a v4 for "
        "other devices (6 links of 50 GB/s: arXiv:2304.01433, table 4)",
    )
    latency: Delay = Field(1e-6, description="seconds of a link (assumed)")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        total = math.prod(self.dims)
        if total > MOST_NODES:
            text = f"got {total} devices; allowed: at most {MOST_NODES}"
            raise Problems([("dims", text)])
        return self

    def topology(self) -> Topology:
        draft = Draft(f"torus {'x'.join(map(str, self.dims))}", "torus")
        total = math.prod(self.dims)
        chips = np.array([draft.device(f"chip{n}", self.device) for n in range(total)])
        grid = chips.reshape(self.dims)
        for axis, size in enumerate(self.dims):
            after = np.roll(grid, -1, axis)
            if size == 2:  # one link joins the two, not one each way round
                grid_axis, after = (part.take([0], axis) for part in (grid, after))
            else:
                grid_axis = grid
            for one, other in zip(grid_axis.flat, after.flat, strict=True):
                draft.cable(int(one), int(other), self.bandwidth, self.latency)
        return draft.build()
