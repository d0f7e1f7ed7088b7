"""Devices on a grid whose rows are rings, as TPUs have it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from nest.inputs import load_device
from nest.inputs.base import Problems, Whole, at_most
from nest.network.draft import Draft
from nest.network.generators.fabric import DeviceType, Generator, port_rate
from nest.network.topology import MOST_NODES, Topology
from nest.units import Bandwidth, Delay

MOST_DIMENSIONS = 6


def _sizes(value: object) -> object:
    """Take 4x4x4 as three numbers, and 8 as one."""
    if isinstance(value, str) and len(value) <= 100:
        parts = value.split("x")
        if all(part.isascii() and part.isdigit() for part in parts):
            return [int(part) for part in parts]
    return [value] if isinstance(value, int) else value


class Torus(Generator):
    """Fields of `torus`."""

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
        """Give the network."""
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


def torus(*dims: int, **given: Any) -> Topology:
    """Torus of any number of dimensions up to six; devices are numbered with the last one fastest.

    N. P. Jouppi et al., "TPU v4: an optically reconfigurable supercomputer", arXiv:2304.01433,
    section 2.

    Parameters
    ----------
    dims : devices of each dimension; two are joined by one link.
    given : other fields of `Torus`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many devices.
    """
    return Torus(dims=list(dims), **given).topology()
