"""Figures of layers, and of consecutive layers on a device, by :mod:`nest.schedules.chunk`.

Shapes: T layer kinds, R recompute policies.
"""

from __future__ import annotations

from nest._kernels import form, leaf
from nest.schedules import chunk

append, close = form(chunk.append), form(chunk.close)
remains = form(chunk.remains)
chunk_costs, add_parts = form(chunk.chunk_costs, leaf), form(chunk.add_parts, leaf)


@leaf
def layer_sums(tables, u, v, z, r, layers):
    """Fill ``layers[r]`` of (R, T) with the figures of each kind: of body ``u`` under policy ``r``,
    and of state ``v`` with way of ZeRO ``z``."""
    for kind in range(tables.ahead.shape[1]):
        ahead, back, state = tables.ahead[u, kind], tables.back[u, r, kind], tables.state[v, z,
            kind]
        layer = layers[r, kind]
        layer.free_forward, layer.forward = ahead.free, ahead.seconds + state.slowed_forward
        layer.free_backward, layer.backward = back.free, back.seconds + state.slowed_backward
        layer.activations, layer.work = back.activations, back.work
        layer.gathered, layer.regathered = state.gathered, state.regathered
        layer.scattered, layer.sync, layer.gather = state.scattered, state.sync, state.gather
        layer.buffers, layer.update, layer.tied = state.buffers, state.update, state.tied
        layer.resident = state.resident
