"""Seconds of context parallelism in a layer: keys and values in a ring, gathered, or exchanged.

Arrays have the shape (C,): one value for each configuration.
"""

from __future__ import annotations

import numpy as np

from nest.costs.choices import Body, StageSetting
from nest.costs.compute import Array, copy_seconds
from nest.costs.network.collectives import all_gather, all_to_all, reduce_scatter, ring_pass
from nest.costs.operators import attention, keys_bytes, positions_of, tokens_of
from nest.model import Layer


def context_traffic(
    layer: Layer, c: Body, s: StageSetting
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Exchange of keys and values over cp, forward and backward; and the compute that hides it.

    Ring (Ring Attention, arXiv:2310.01889; Megatron-Core p2p): each rank's keys and values pass
    all others, backward their gradients too, hidden by the attention core to the extent that the
    stack overlaps. All-to-all (DeepSpeed-Ulysses, arXiv:2309.14509, section 3): queries, keys,
    values and the output change from a share of the tokens to a share of the heads and back. Both
    (a2a+p2p; USP, arXiv:2405.07719): the latter among neighbours, then a ring of the heads that
    are left across them. All-gather: see :func:`gathered_seconds`. None of them moves less where
    attention has a window.
    """
    ahead, back, under_ahead, under_back = np.zeros((4, len(c.tp)))
    if not (c.cp > 1).any():
        return (ahead, back), (under_ahead, under_back)
    tokens, _ = tokens_of(layer, c, s)
    element, hidden = s.machine.element, s.machine.stack.overlap_cp
    ranks = np.maximum(c.cp // c.inner, 1)
    for op in layer.operators:
        if op.type != "attention":
            continue
        core = attention(op, layer, s, tokens, c.tp.astype(np.float64))
        keys = c.samples * float(op.positions or positions_of(layer, s))
        held = keys_bytes(op, layer, c, s)
        ring = ring_back = ring_pass(held / c.inner, s.network, c.cp_group)
        if s.machine.stack.wide_ring:
            wide = keys * op.attention_width / c.tp / c.inner
            ring = ring_pass(wide * element, s.network, c.cp_group)
            # After the last step gradients return to where their keys came from.
            ring_back = ring_pass(wide * 4.0, s.network, c.cp_group)
            ring_back = ring_back * ranks / np.maximum(ranks - 1, 1)
        turned = tokens * op.attention_width / c.tp * element + held / c.cp
        swap = all_to_all(turned, s.network, c.swap_group)
        gathered = gathered_seconds(held, c, s)
        ahead = ahead + swap + np.where(
            c.gather, gathered[0], np.maximum(0.0, ring - hidden * core[0]))
        back = back + swap + np.where(
            c.gather, gathered[1], np.maximum(0.0, ring + ring_back - hidden * core[1]))
        if hidden:
            under_ahead += np.where(c.gather, 0.0, np.minimum(core[0], ring / hidden))
            under_back += np.where(c.gather, 0.0, np.minimum(core[1], (ring + ring_back) / hidden))
    return (ahead, back), (under_ahead, under_back)


def gathered_seconds(held: Array, c: Body, s: StageSetting) -> tuple[Array, Array]:
    """Seconds in which cp gathers keys and values, ``held`` bytes, forward and backward; exposed.

    Keys and values are gathered one after the other in front of attention, and put in order: read
    and written once. Nothing runs meanwhile (Megatron-Core core_v0.16.1
    megatron/core/transformer/transformer_config.py:739). Backward Transformer Engine 2.20 gathers
    and orders them again, and reduces and scatters gradients of all positions in the number format
    of activations, which it has set to zero (a write), added to (two reads, a write) and put in
    order (transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:3226,
    3742, 3772, 4093, 4119 and 4122 at d0067d0). PyTorch's FlexAttention gathers and scatters along
    the tokens of a sample, which copies once each, and keeps what it gathered (torch==2.13.0
    torch/distributed/tensor/experimental/_context_parallel/_cp_custom_ops.py:9, 42).
    """
    keeps, half = s.machine.stack.keeps_gathered, held / 2.0

    def copied(times: float) -> Array:
        return np.where(c.gather, copy_seconds(s.machine, times * held), 0.0)

    gather = 2.0 * all_gather(half, s.network, c.cp_group) + copied(2.0)
    scatter = 2.0 * reduce_scatter(half, s.network, c.cp_group)
    if keeps:
        return gather, scatter + copied(2.0)
    return gather, gather + scatter + copied(1.0 + 3.0 + 2.0)
