"""Seconds of tensor parallelism in a layer.

Arrays have the shape (C,): one value for each configuration.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nest.costs.choices import Body, StageSetting
from nest.costs.compute import Array, copy_seconds
from nest.costs.network.collectives import (
    Group,
    Network,
    all_gather,
    all_reduce,
    reduce_scatter,
)
from nest.costs.operators import tokens_of, traffic_tokens
from nest.model import Layer


def tensor_traffic(layer: Layer, c: Body, s: StageSetting) -> tuple[Array, Array, Array, Array]:
    """Tensor-parallel collectives forward, backward, and what full recompute and recompute of norms
    add to the backward.

    All less what the stack overlaps.

    All-gathers and reduce-scatters with sequence parallelism, else all-reduces, of tokens x hidden
    elements (arXiv:2205.05198, section 4.2). A layer's all-gathers move what its products take, in
    fp8 one byte an element (Transformer Engine quantises before it gathers). NCCL gathers along the
    first dimension: where several samples come before the tokens that are divided, the whole tensor
    is read and written once more (torch==2.13.0, _functional_collectives of torch.distributed,
    lines 213 and 276). The backward pass gathers the inputs of products again, unless the stack
    keeps what is gathered (:func:`nest.costs.activations.gathered_inputs`).
    """
    ahead, back, again, normed = np.zeros((4, len(c.tp)))
    exposed, copies = 1.0 - s.machine.stack.overlap_tp, float(s.machine.stack.sequence_copies)
    keeps = s.machine.stack.keeps_gathered

    def moved(collective: Callable[[Array, Network, Group], Array], size: Array) -> Array:
        copied = np.where((c.tp > 1) & (c.samples > 1), 2.0 * copies * size, 0.0)
        return exposed * (collective(size, s.network, c.tp_group)
                          + copy_seconds(s.machine, copied))

    for t in filter(None, (layer.traffic, layer.cross_traffic)):
        tokens = traffic_tokens(t, layer, c, s)
        size = tokens * layer.hidden * s.machine.element
        reduce = exposed * all_reduce(size, s.network, c.tp_group)
        scatter = moved(reduce_scatter, size)
        gather = scatter
        if layer.checkpointed and s.machine.format.narrow:
            size = tokens * layer.hidden * s.machine.operand
            gather = moved(all_gather, size)
        ahead = ahead + np.where(c.sp, t.forward_gathers * gather + t.forward_scatters * scatter,
                                 t.forward_reduces * reduce)
        gathers = t.backward_gathers - keeps * t.forward_gathers
        back = back + np.where(c.sp, gathers * gather + t.backward_scatters * scatter,
                               t.backward_reduces * reduce)
        normed = normed + np.where(c.sp, keeps * t.forward_gathers * gather, 0.0)
        unread = float(t is layer.traffic and s.machine.stack.stops_early
                       and any(op.unread for op in layer.operators))
        again = again + np.where(c.sp, t.forward_gathers * gather
                                 + max(0.0, t.forward_scatters - unread) * scatter,
                                 max(0.0, t.forward_reduces - unread) * reduce)
    if s.machine.stack.split_inputs:
        size = tokens_of(layer, c, s)[0] * layer.hidden * s.machine.element
        again = again + np.where(c.sp, 0.0, exposed * all_gather(size, s.network, c.tp_group))
    return ahead, back, again, normed
