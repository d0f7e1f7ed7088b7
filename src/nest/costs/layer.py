"""Seconds and bytes of one layer under many configurations at once.

A configuration has a *body*, what a micro-batch sees of it, and a *state*, what parameters,
gradients and optimizer see. Many configurations share one or the other, so that the search prices
each once. Shapes: C configurations, V network levels, R recompute policies, Z ways of ZeRO. The
terms come from :mod:`nest.costs.compute`, :mod:`nest.costs.network.collectives` and
:mod:`nest.costs.memory`; here they are added up per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import (
    CORE_ATTN,
    FULL,
    MLP_ACT,
    MODULE_BIT,
    MOE,
    NORM,
    PRODUCTS,
    Body,
    Setting,
    State,
)
from nest.costs.compute import (
    Array,
    Machine,
    attention_seconds,
    cast_seconds,
    gemm_seconds,
    memory_seconds,
    scores_seconds,
)
from nest.costs.memory import recipe
from nest.costs.network.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    ring_pass,
)
from nest.graph import EXPERT, Layer, Operator


@dataclass(frozen=True)
class BodyCosts:
    """Seconds and bytes per micro-batch that one layer adds; shape (C,) or (C, R)."""

    forward: Array
    backward: Array
    recompute: Array
    free_forward: Array
    """Computing under which no context-parallel traffic hides: other traffic may."""
    free_backward: Array
    """The same backward, recompute included."""
    tp_forward: Array
    tp_backward: Array
    cp_forward: Array
    cp_backward: Array
    ep_forward: Array
    ep_backward: Array
    activations: Array
    """Bytes per micro-batch in flight."""
    work: Array
    """Largest: bytes of activations that live while the layer is recomputed, or its loss runs."""


@dataclass(frozen=True)
class StateCosts:
    """What one layer adds to its stage by its parameters; shape (C,) or (C, Z)."""

    gathered: Array
    """Seconds per micro-batch of gathering parameters before the forward (ZeRO-3)."""
    regathered: Array
    """The same before the backward, where the stack reshards."""
    scattered: Array
    """Seconds per micro-batch of scattering gradients after the backward (ZeRO-2, 3)."""
    sync: Array
    """Seconds per step of gradient reduction, before overlap."""
    gather: Array
    """Seconds per step of the parameter all-gather after the optimizer, before overlap."""
    update: Array
    """Seconds per step of the optimizer."""
    tied: Array
    """Seconds per step of the gradient exchange with other copies of a tied embedding."""
    parameters: Array
    gradients: Array
    optimizer: Array
    buffers: Array
    """Largest: gathered parameters and unsharded gradients."""


@dataclass(frozen=True)
class LayerCosts(StateCosts, BodyCosts):
    """What one layer adds to its stage; float64 arrays of shape (C,).

    ``work`` and ``buffers`` count once a stage, for its largest layer; the rest adds up. What of
    its traffic computing hides is for the stage to say (:mod:`nest.costs.stage`).
    """


def layer_costs(layer: Layer, body: Body, state: State, s: Setting) -> LayerCosts:
    """Price one layer under C configurations; all arrays of shape (C,)."""
    return LayerCosts(**vars(body_costs(layer, body, s)), **vars(state_costs(layer, state, s)))


def body_costs(layer: Layer, c: Body, s: Setting) -> BodyCosts:
    """Seconds and bytes of a micro-batch; arrays of shape (C,), or (C, R).

    Full recompute keeps the layer's input alone (arXiv:2205.05198, section 5) and runs everything
    again, collectives included; selective recompute does so for the operators of its modules.
    """
    def wide(array: Array) -> Array:
        return array[:, None] if c.recompute.ndim == 2 else array

    policy = c.recompute if layer.checkpointed else 0 * c.recompute
    if s.machine.stack.selective_products:
        both = policy & (NORM | MLP_ACT) == NORM | MLP_ACT
        policy = policy + PRODUCTS * both
    full = policy == FULL
    if layer.measured:
        zeros = np.zeros(len(c.samples))
        ahead, back = c.samples * np.array(
            [(layer.measured[int(t)].forward, layer.measured[int(t)].backward) for t in c.tp]).T
        again = {0: ahead}
        tp, cp, ep, under_cp = ((zeros, zeros),) * 4
        saved, inputs, live = _measured_bytes(layer, c)
    else:
        ahead, back, again = _compute_seconds(layer, c, s)
        tp, ep = _tensor_traffic(layer, c, s), _expert_traffic(layer, c, s)
        cp, under_cp = _context_traffic(layer, c, s)
        saved, inputs, live = _saved_bytes(layer, c, s)
    # Operators by the modules that run them again: a policy takes those it shares a module with.
    repeated = sum(wide(time) * (full | (policy & bits > 0)) for bits, time in again.items())
    kept = sum(wide(held) * (policy & bits == 0) for bits, held in saved.items())
    everything = wide(sum(saved.values(), np.zeros(len(c.samples))))
    kept = np.where(full, wide(inputs), kept)
    whole = np.ones(policy.shape)
    tp_backward = wide(tp[1]) + wide(tp[0]) * np.where(
        full, 1.0, (policy & MOE > 0) * layer.traffic.experts)
    core_again = full | (policy & CORE_ATTN > 0)
    cp_backward = wide(cp[1]) + wide(cp[0]) * core_again
    ep_backward = wide(ep[1]) + wide(ep[0]) * (full | (policy & MOE > 0))
    # A layer's kernels leave gaps, whatever their size. Where the host issues them more slowly than
    # the device runs them, that waits.
    stack = s.machine.stack
    gap, host = (0.0, 0.0) if layer.measured else (stack.layer_gap, stack.layer_overhead)
    forward, backward = ahead + gap, wide(back) + gap * (1.0 + full)
    busy = backward + repeated + tp_backward + cp_backward + ep_backward
    forward = forward + np.maximum(0.0, host - (forward + tp[0] + cp[0] + ep[0]))
    backward = backward + np.maximum(0.0, host * (1.0 + full) - busy)
    return BodyCosts(
        forward=wide(forward) * whole,
        backward=backward,
        recompute=repeated * whole,
        free_forward=wide(forward - under_cp[0]) * whole,
        free_backward=backward + repeated - wide(under_cp[1]) - wide(under_cp[0]) * core_again,
        tp_forward=wide(tp[0]) * whole,
        tp_backward=tp_backward,
        cp_forward=wide(cp[0]) * whole,
        cp_backward=cp_backward,
        ep_forward=wide(ep[0]) * whole,
        ep_backward=ep_backward,
        activations=kept * whole,
        work=wide(live) + everything - kept,
    )


def state_costs(layer: Layer, c: State, s: Setting) -> StateCosts:
    """Gradient reduction, parameter gathers, the optimizer and what is held; (C,), or (C, Z).

    Volumes: ZeRO, arXiv:1910.02054, section 7: stage 0 all-reduces gradients; 1 scatters them and
    gathers parameters; 2 scatters every micro-batch; 3 gathers before forward and backward too.
    HSDP (PyTorch FSDP, arXiv:2304.11277, section 3.2.2) does so inside a block and all-reduces the
    shards over the replicas once a step. ZeRO-3 holds the gathered parameters of two layers (the
    next one is prefetched) and, as ZeRO-2 does, the whole gradients of one.
    """
    def wide(array: Array) -> Array:
        return array[:, None] if c.zero.ndim == 2 else array

    r, stack, network = recipe(s.job), s.machine.stack, s.network
    columns = len(c.tp)
    parameters = _parameters(layer, c)
    reduced, scattered, gathered, across = (np.zeros((2, columns)) for _ in range(4))
    whole, owned = np.zeros(columns), np.zeros((2, columns))
    groups = ((c.dp_group, c.inner_group), (c.expert_dp_group, c.inner_expert_group))
    for count, over in zip(parameters, groups, strict=True):
        whole = whole + count
        for hybrid, group in enumerate(over):
            share = count / group.size
            owned[hybrid] += share
            scattered[hybrid] += reduce_scatter(count * r.traveling_gradient, network, group)
            gathered[hybrid] += all_gather(count * r.gathered, network, group)
            if hybrid:
                across[1] += all_reduce(share * r.traveling_gradient, network, c.outer_group)
            else:
                reduced[0] += all_reduce(count * r.traveling_gradient, network, group)
    zero, hybrid = c.zero, c.shard == 1

    def sharded(pair: Array) -> Array:
        return np.where(hybrid, wide(pair[1]), wide(pair[0]))

    scatter, gather, mine = sharded(scattered), sharded(gathered), sharded(owned)
    final = np.where(zero == 1, scatter, 0.0) + np.where(hybrid, wide(across[1]), 0.0)
    held = wide(whole)
    again = gather if stack.reshard_after_forward else 0.0
    buffers = np.where(zero == 3, 2.0 * r.gathered * (held - mine), 0.0)
    buffers = buffers + np.where(zero >= 2, r.gradient * (held - mine), 0.0)
    updates = [memory_seconds(s.machine, n * r.update) for n in (held, mine)]
    return StateCosts(
        gathered=np.where(zero == 3, gather, 0.0),
        regathered=np.where(zero == 3, again, 0.0),
        scattered=np.where(zero >= 2, scatter, 0.0),
        sync=np.where(zero == 0, wide(reduced[0]), final),
        gather=np.where((zero == 1) | (zero == 2), gather, 0.0),
        update=np.where(zero == 0, updates[0], updates[1]),
        tied=wide(_tied_seconds(layer, c, s)) * np.ones(zero.shape),
        parameters=r.parameter * np.where(zero == 3, mine, held),
        gradients=r.gradient * np.where(zero >= 2, mine, held),
        optimizer=np.where(zero >= 1, r.sharded_optimizer * mine, r.optimizer * held),
        buffers=buffers,
    )


# ---------------------------------------------------------------- compute


def _positions(layer: Layer, s: Setting) -> int:
    """Tokens of a sample that the layer sees."""
    return layer.tokens or s.job.seq_len


def _tokens(layer: Layer, c: Body, s: Setting) -> tuple[Array, Array]:
    """Tokens of a tensor-parallel group, and those left to one rank between its collectives."""
    tokens = c.samples * float(_positions(layer, s)) / c.cp
    rest: Array = np.where(c.sp, tokens / c.tp, tokens)
    return tokens, rest


def _share(op: Operator, tp: NDArray[np.int64], etp: NDArray[np.int64]) -> tuple[Array, Array]:
    """Ranks that divide the width of an operator, and padding of the width."""
    if op.split in ("column", "row", "heads"):
        ranks = np.minimum(tp, op.groups) if op.groups else tp
    elif op.split in EXPERT:
        ranks = etp
    else:
        ranks = np.ones_like(tp)
    padding = np.ones(len(tp))
    if op.padded:
        step = 128 * tp
        padding = np.ceil(op.width / step) * step / op.width
    return ranks.astype(np.float64), padding


def _copies(layer: Layer, c: Body, tokens: Array) -> Array:
    """Token copies that one device runs through its experts (balanced routing)."""
    assert layer.experts is not None
    return tokens * layer.experts.top_k * c.etp / c.tp


def _rows(
    op: Operator, layer: Layer, c: Body, s: Setting, tokens: Array, rest: Array
) -> Array:
    """Tokens that the operator sees on one device."""
    if op.split == "dispatch" or op.split in EXPERT:
        return _copies(layer, c, tokens)
    rows = rest if op.split == "sequence" else tokens
    if op.positions and op.kind != "attention":  # it runs over another sequence, such as keys
        return rows * op.positions / _positions(layer, s)
    return rows


def _parts(op: Operator, modules: tuple[str, ...], s: Setting) -> list[tuple[int, float]]:
    """Modules as a policy of selective recompute, and the share of the operator that it is for."""
    bits = sum(MODULE_BIT[name] for name in modules)
    if not s.machine.stack.selective_products:
        return [(bits & ~PRODUCTS, 1.0)]
    return [(bits, 0.5), (bits | PRODUCTS, 0.5)] if op.halves else [(bits, 1.0)]


def _compute_seconds(
    layer: Layer, c: Body, s: Setting
) -> tuple[Array, Array, dict[int, Array]]:
    """Seconds forward and backward, and those forward by the modules that repeat them."""
    again: dict[int, Array] = {}
    backward = np.zeros(len(c.tp))
    tokens, rest = _tokens(layer, c, s)
    for op in layer.operators:
        rows = _rows(op, layer, c, s, tokens, rest)
        ranks, padding = _share(op, c.tp, c.etp)
        if op.kind == "gemm":
            machine = s.machine.half if op.bf16 else s.machine
            ahead, back = _gemm(op, layer, c, machine, rows, ranks, padding)
        elif op.kind == "attention":
            ahead, back = _attention(op, layer, s, tokens, ranks)
        else:
            scale = rows / ranks * padding * s.machine.element
            ahead = memory_seconds(s.machine, op.forward_elements * scale)
            back = memory_seconds(s.machine, op.backward_elements * scale)
        for bits, share in _parts(op, op.again, s):
            again[bits] = again.get(bits, 0.0) + share * ahead
        backward = backward + back
    return sum(again.values(), np.zeros(len(c.tp))), backward, again


def _gemm(
    op: Operator, layer: Layer, c: Body, machine: Machine, rows: Array, ranks: Array,
    padding: Array,
) -> tuple[Array, Array]:
    """Forward, and data plus weight gradient (the same product with its sides exchanged)."""
    count: Array | float = 1.0
    width, depth = op.width * padding, np.full(len(c.tp), float(op.depth))
    if op.split in EXPERT:
        assert layer.experts is not None
        count = layer.experts.count / c.ep
        rows = rows / count
    if op.split in ("row", "expert_row"):
        depth = depth / ranks
    else:
        width = width / ranks
    ahead = gemm_seconds(machine, rows, width, depth, count, alone=False)
    data = gemm_seconds(machine, rows, depth, width, count, alone=False)
    weight = gemm_seconds(machine, width, depth, rows, count, alone=False)
    gradient = np.where(depth > 0, width, 0.0)  # a table of embeddings is looked up
    return (ahead + cast_seconds(machine, count * rows * depth),
            data + weight + cast_seconds(machine, count * rows * gradient))


def _attention(
    op: Operator, layer: Layer, s: Setting, tokens: Array, ranks: Array
) -> tuple[Array, Array]:
    """The attention core; context-parallel ranks share its causal half evenly."""
    machine, positions = s.machine, float(op.positions or _positions(layer, s))
    width = op.attention_width / ranks
    times = [
        attention_seconds(machine, tokens, width, positions, op.causal, backward)
        for backward in (False, True)
    ]
    if not machine.stack.flash_attention:
        scores = tokens * positions * op.heads / ranks
        times = [t + scores_seconds(machine, scores, back)
                 for t, back in zip(times, (False, True), strict=True)]
    return times[0], times[1]


# ---------------------------------------------------------------- communication


def _tensor_traffic(layer: Layer, c: Body, s: Setting) -> tuple[Array, Array]:
    """Tensor-parallel collectives forward and backward, less what the stack overlaps.

    With sequence parallelism all-gathers and reduce-scatters, else all-reduces, of
    tokens x hidden elements (arXiv:2205.05198, section 4.2). In fp8 training a layer's
    all-gathers move what its products take, one byte an element (Transformer Engine quantises
    before it gathers).
    """
    ahead, back = np.zeros(len(c.tp)), np.zeros(len(c.tp))
    exposed = 1.0 - s.machine.stack.overlap_tp
    for t in filter(None, (layer.traffic, layer.cross_traffic)):
        tokens = c.samples * float(t.tokens or _positions(layer, s)) / c.cp
        size = tokens * layer.hidden * s.machine.element
        reduce = exposed * all_reduce(size, s.network, c.tp_group)
        scatter = exposed * reduce_scatter(size, s.network, c.tp_group)
        gather = scatter
        if layer.checkpointed and s.machine.fp8:
            size = tokens * layer.hidden * s.machine.weight_element
            gather = exposed * all_gather(size, s.network, c.tp_group)
        ahead = ahead + np.where(c.sp, t.forward_gathers * gather + t.forward_scatters * scatter,
                                 t.forward_reduces * reduce)
        back = back + np.where(c.sp, t.backward_gathers * gather + t.backward_scatters * scatter,
                               t.backward_reduces * reduce)
    return ahead, back


def _context_traffic(
    layer: Layer, c: Body, s: Setting
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Exchange of keys and values over cp, forward and backward; and what computing hides it.

    Ring (Ring Attention, arXiv:2310.01889; Megatron-Core p2p): each rank's keys and values pass
    all others, backward their gradients too, hidden under the attention core as far as the stack
    overlaps. All-to-all (DeepSpeed-Ulysses, arXiv:2309.14509, section 3): queries, keys, values
    and the output change from a share of the tokens to a share of the heads and back.
    """
    ahead, back, under_ahead, under_back = np.zeros((4, len(c.tp)))
    if not (c.cp > 1).any():
        return (ahead, back), (under_ahead, under_back)
    tokens, _ = _tokens(layer, c, s)
    element, hidden = s.machine.element, s.machine.stack.overlap_cp
    for op in layer.operators:
        if op.kind != "attention":
            continue
        core = _attention(op, layer, s, tokens, c.tp.astype(np.float64))
        keys = c.samples * float(op.positions or _positions(layer, s))
        held = keys * op.kv_width / np.minimum(c.tp, op.kv_groups) * element
        ring = ring_pass(held, s.network, c.cp_group)
        turned = tokens * op.attention_width / c.tp * element + held / c.cp
        swap = all_to_all(turned, s.network, c.cp_group)
        ahead = ahead + np.where(c.a2a, swap, np.maximum(0.0, ring - hidden * core[0]))
        back = back + np.where(c.a2a, swap, np.maximum(0.0, 2.0 * ring - hidden * core[1]))
        if hidden:
            under_ahead += np.where(c.a2a, 0.0, np.minimum(core[0], ring / hidden))
            under_back += np.where(c.a2a, 0.0, np.minimum(core[1], 2.0 * ring / hidden))
    return (ahead, back), (under_ahead, under_back)


def _expert_traffic(layer: Layer, c: Body, s: Setting) -> tuple[Array, Array]:
    """Dispatch and combine of token copies over ep, gather and scatter over etp; each way.

    2 T k h bytes a device and direction (arXiv:2401.06066 routing; Megatron-Core all-to-all
    dispatcher), T the tokens that a rank holds.
    """
    if layer.experts is None:
        return np.zeros(len(c.tp)), np.zeros(len(c.tp))
    tokens, _ = _tokens(layer, c, s)
    size = _copies(layer, c, tokens) * layer.hidden * s.machine.element
    once = 2.0 * all_to_all(size / c.etp, s.network, c.ep_group)
    once = once + 2.0 * all_gather(size, s.network, c.etp_group)
    return once, once


def _tied_seconds(layer: Layer, c: State, s: Setting) -> Array:
    """Sum of two copies of a tied embedding, each way from one end of the pipeline to the other."""
    if not layer.tied_parameters:
        return np.zeros(len(c.tp))
    size = layer.tied_parameters / c.tp * recipe(s.job).traveling_gradient
    return size * c.tied_per_byte + 2.0 * c.tied_latency


# ---------------------------------------------------------------- memory


def _parameters(layer: Layer, c: State) -> tuple[Array, Array]:
    """Dense and expert parameters that one device holds before ZeRO."""
    dense, expert = np.zeros(len(c.tp)), np.zeros(len(c.tp))
    if layer.measured:
        held = [layer.measured[int(t)].parameters for t in c.tp]
        return np.array(held, dtype=np.float64), expert
    for op in layer.operators:
        ranks, padding = _share(op, c.tp, c.etp)
        if op.split in EXPERT:
            expert = expert + op.parameters / (ranks * c.ep)
        else:
            dense = dense + op.parameters / ranks * padding
    return dense, expert


def _saved_bytes(layer: Layer, c: Body, s: Setting) -> tuple[dict[int, Array], Array, Array]:
    """Bytes kept for the backward pass, by the modules that drop them; the layer's input; and
    what the loss needs besides while it runs.

    Of the attention core, softmax statistics are kept with flash kernels, else the scores, 5 bytes
    a head, query and key (arXiv:2205.05198, section 4.1).
    """
    tokens, rest = _tokens(layer, c, s)
    element, stack = s.machine.element, s.machine.stack
    saved: dict[int, Array] = {}
    live = np.zeros(len(c.tp))
    for op in layer.operators:
        ranks, padding = _share(op, c.tp, c.etp)
        rows = _rows(op, layer, c, s, tokens, rest) / ranks
        each = op.saved_elements * element
        if s.machine.fp8 and stack.fp8_inputs and op.fp8_bytes is not None:
            each = op.fp8_bytes
        if op.loss:
            # The stack's figures are those of 16-bit training.
            logits = rows * padding * op.width * element / 2.0
            each = stack.loss_kept * op.width * element / 2.0
            live = np.maximum(live, (stack.loss_peak - stack.loss_kept) * logits)
        held = {bits: share * rows * padding * each
                for bits, share in _parts(op, op.dropped, s)}
        if op.kind == "attention":
            scores = 4.0 if stack.flash_attention else (
                5.0 * (op.positions or _positions(layer, s)))
            held[CORE_ATTN] = held.get(CORE_ATTN, 0.0) + rows * scores * op.heads
        for bits, size in held.items():
            saved[bits] = saved.get(bits, 0.0) + size
    return saved, rest * layer.hidden * element, live


def _measured_bytes(layer: Layer, c: Body) -> tuple[dict[int, Array], Array, Array]:
    """Measured bytes as :func:`_saved_bytes`; the last are those that live within the layer."""
    assert layer.output_bytes is not None
    held = [(layer.measured[int(t)].activation_bytes, layer.measured[int(t)].work_bytes)
            for t in c.tp]
    saved, work = c.samples * np.array(held, dtype=np.float64).T
    return {0: saved}, np.minimum(c.samples * layer.output_bytes, saved), work
