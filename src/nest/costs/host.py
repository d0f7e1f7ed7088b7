"""What a plan keeps in the memory of the hosts, and what that costs.

Only transfers and the host's part of the update are priced here: bytes that leave a device are
those of :mod:`nest.costs.activations` and :mod:`nest.costs.memory`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest.costs.compute import Array, Machine, copy_seconds
from nest.costs.memory import Recipe
from nest.inputs.offload import Offload
from nest.model import Chain

LINK_EFFICIENCY = 0.85
"""Share of a nominal link that copies of page-locked memory reach (assumed)."""
UPDATE_EFFICIENCY = 0.5
"""Share of the host's nominal bandwidth that its optimizer reaches (assumed)."""


class Away(NamedTuple):
    """What is kept in the memory of the hosts."""

    optimizer: float = 0.0
    """Share of the optimizer's states."""
    layers: float = 0.0
    """Share of the transformer layers whose activations go."""
    modules: tuple[str, ...] = ()
    """Modules whose activations go, of all layers."""
    checkpoints: bool = False
    """The inputs that full recompute keeps go."""


HERE = Away()
"""Everything is kept on the devices."""


def kept_away(chain: Chain, text: str) -> Away:
    """What a text asks for, of one chain."""
    found = Offload.of(text)
    return Away(found.optimizer, found.layers / max(1, chain.repeated), found.modules,
                found.checkpoints)


def link_rate(machine: Machine) -> float:
    """Bytes/s of a copy between device and host, each way."""
    return (machine.device.host_link or 0.0) * LINK_EFFICIENCY


def update_seconds(machine: Machine, r: Recipe, count: Array, share: float) -> Array:
    """Seconds of the optimizer for ``count`` parameters, a ``share`` of which the host updates.

    The host gets the gradients of its parameters, updates them in fp32, and returns them in the
    format of training: 4 bytes of gradient read, master copy and states read and written. Device
    and host work at the same time. The host's three steps follow each other, parameter by
    parameter where the stack overlaps them (``overlap_offload``): then the longest counts.
    """
    own = copy_seconds(machine, count * r.update * (1.0 - share))
    if not share:
        return own
    link = link_rate(machine)
    memory = (machine.device.host_memory_bandwidth or 0.0) * UPDATE_EFFICIENCY
    steps = [r.gradient / link, r.host_update / memory, r.gathered / link]
    each = max(steps) if machine.stack.overlap_offload else sum(steps)
    return np.maximum(own, count * share * each)


def waiting(machine: Machine, moved: Array, busy: Array) -> Array:
    """Seconds that a pass through a layer waits for ``moved`` bytes to or from the host.

    They move while the layer runs, for ``busy`` seconds: what is copied of one layer moves beside
    the next, which is taken to be alike (PipelineOffloadManager of Megatron-Core,
    AsyncDoubleBufferGroupOffloadHandler of Transformer Engine).
    """
    return np.maximum(0.0, moved / link_rate(machine) - busy)
