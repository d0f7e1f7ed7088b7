"""Seconds of a layer's tensor, context and expert parallel traffic.

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
    all_to_all,
    dispatch,
    reduce_scatter,
    ring_pass,
)
from nest.costs.operators import (
    attention,
    copies_of,
    key_copies,
    keys_bytes,
    positions_of,
    tokens_of,
    traffic_tokens,
)
from nest.model import Layer, Operator


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
    exposed = (1.0 - s.machine.stack.overlap_tp) * s.machine.tp_exposed
    copies = float(s.machine.stack.sequence_copies)
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
        gathers = t.backward_gathers - keeps * t.kept * t.forward_gathers
        back = back + np.where(c.sp, gathers * gather + t.backward_scatters * scatter,
                               t.backward_reduces * reduce)
        normed = normed + np.where(c.sp, keeps * t.kept * t.forward_gathers * gather, 0.0)
        unread = float(t is layer.traffic and s.machine.stack.stops_early
                       and any(op.unread for op in layer.operators))
        again = again + np.where(c.sp, t.forward_gathers * gather
                                 + max(0.0, t.forward_scatters - unread) * scatter,
                                 max(0.0, t.forward_reduces - unread) * reduce)
    if s.machine.stack.split_inputs:
        size = tokens_of(layer, c, s)[0] * layer.hidden * s.machine.element
        again = again + np.where(c.sp, 0.0, exposed * all_gather(size, s.network, c.tp_group))
    return ahead, back, again, normed


def context_traffic(
    layer: Layer, c: Body, s: StageSetting
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """Exchange of keys and values over cp, forward and backward, and what a gated norm that runs
    again repeats of it; and the compute that hides it.

    Ring (Ring Attention, arXiv:2310.01889; Megatron-Core p2p): each rank's keys and values pass all
    others, backward their gradients too, hidden by the attention core to the extent that the stack
    overlaps. All-to-all (DeepSpeed-Ulysses, arXiv:2309.14509, section 3): queries, keys, values and
    the output change from a share of the tokens to a share of the heads and back. Both (a2a+p2p;
    USP, arXiv:2405.07719): the latter among neighbours, then a ring of the heads that are left
    across them. The mean of all ranks' samples hides it. All-gather: see :func:`gathered_seconds`.
    None of them moves less where attention has a window. A recurrence exchanges heads whatever
    they are: :func:`swapped_seconds`.
    """
    ahead, back, behind, under_ahead, under_back = np.zeros((5, len(c.tp)))
    if not (c.cp > 1).any():
        return (ahead, back, behind), (under_ahead, under_back)
    tokens, _ = tokens_of(layer, c, s)
    element, hidden = s.machine.element, s.machine.stack.overlap_cp
    ranks = np.maximum(c.cp // c.inner, 1)
    for op in layer.operators:
        if op.type == "scan":
            behind = swapped_seconds(op, c, s, tokens, (op.returned,), (), 2)
            ahead = swapped_seconds(op, c, s, tokens, op.swapped, op.swapped_keys, 3) + behind
            back = ahead
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
    return (ahead, back, behind), (under_ahead, under_back)


def swapped_seconds(
    op: Operator, c: Body, s: StageSetting, tokens: Array, widths: tuple[int, ...],
    keys: tuple[int, ...], copies: int,
) -> Array:
    """Seconds of all-to-alls that change a share of the tokens for a share of a recurrence's heads.

    One for each of ``widths`` and of ``keys``, elements per token; keys and queries of which there
    are fewer than ranks are repeated first. Each tensor is read and written ``copies`` times: into
    the order of ranks, next to the others and into that of the sequence in front of the recurrence,
    two of these behind it; backward the same (NVIDIA/Megatron-LM@d98e8a6
    megatron/core/ssm/mamba_context_parallel.py:154-220, 332-391,
    megatron/core/tensor_parallel/mappings.py:566-621). Nothing hides them. With a2a+p2p they are
    priced in two steps, among neighbours and across; Megatron-Core takes one for all.
    """
    repeated = key_copies(op, c)
    each = tokens / c.tp * s.machine.element
    moved = np.zeros(len(c.tp))
    seconds = np.zeros(len(c.tp))
    for size in (*[width * each for width in widths], *[key * each * repeated for key in keys]):
        moved = moved + size
        for group in (c.swap_group, c.cp_group):
            seconds = seconds + all_to_all(size, s.network, group)
    return seconds + np.where(c.cp > 1, copy_seconds(s.machine, 2.0 * copies * moved), 0.0)


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


PER_PROCESSOR = 15.6e9
"""Bytes/s that a multiprocessor handles in DeepEP's combine: fitted to combines of 65,536 tokens in
bf16 on 8 H100, H200, B200 and B300 with 8 to 24 of them (ai-dynamo/aiconfigurator@095f58a51c
systems/data/*/comm)."""


def expert_traffic(layer: Layer, c: Body, s: StageSetting) -> tuple[Array, Array]:
    """Dispatch and combine of token copies over ep, gather and scatter over etp; each way.

    By all-to-all 2 T k h bytes per device and direction (arXiv:2401.06066 routing; Megatron-Core's
    dispatchers), T the tokens that a rank holds; by all-gather and reduce-scatter all tokens of the
    group; else as :func:`nest.costs.network.collectives.dispatch`, one of two ways in fp8 if the
    stack says so. Where the busiest rank gets more than the mean, so much more goes to it, and less
    where experts have a capacity, but for all-gathers, which send every token anyway. What pads
    experts travels as tokens do.
    """
    if layer.experts is None:
        return np.zeros(len(c.tp)), np.zeros(len(c.tp))
    moe, stack, ranks = layer.experts, s.machine.stack, c.ep_group
    tokens, _ = tokens_of(layer, c, s)
    size = copies_of(layer, c, s, tokens) * layer.sent * s.machine.element
    each = size / c.etp
    if stack.dispatcher == "alltoall":
        once = 2.0 * all_to_all(each, s.network, ranks)
    elif stack.dispatcher == "allgather":
        every = tokens / c.tp * layer.sent * s.machine.element * ranks.size
        once = 2.0 * all_gather(every, s.network, ranks)
    else:
        most = PER_PROCESSOR * stack.dispatch_processors
        rate = most if stack.dispatcher == "deepep" else np.inf
        limits = moe.groups, moe.group_limit
        ways = [1.0 / s.machine.element if stack.dispatch_fp8 else 1.0, 1.0]
        once = sum((dispatch(each / moe.top_k * way, moe.top_k, limits, s.network, ranks, rate)
                    for way in ways), np.zeros(len(c.tp)))
    once = once + 2.0 * all_gather(size, s.network, c.etp_group)
    return once, once
