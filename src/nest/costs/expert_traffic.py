"""Seconds of dispatch and combine: tokens to the devices of their experts, and back.

Arrays have the shape (C,): one value for each configuration.
"""

from __future__ import annotations

import numpy as np

from nest.costs.choices import Body, StageSetting
from nest.costs.compute import Array
from nest.costs.network.collectives import all_gather, all_to_all, dispatch
from nest.costs.operators import copies_of, tokens_of
from nest.model import Layer

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
    size = copies_of(layer, c, s, tokens) * layer.hidden * s.machine.element
    each = size / c.etp
    if stack.dispatcher == "alltoall":
        once = 2.0 * all_to_all(each, s.network, ranks)
    elif stack.dispatcher == "allgather":
        every = tokens / c.tp * layer.hidden * s.machine.element * ranks.size
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
