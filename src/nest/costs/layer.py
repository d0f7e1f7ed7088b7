"""Seconds and bytes of one layer under many configurations at once.

Shapes: C configurations, V network levels, P policies (ZeRO stage x recompute). The terms come
from :mod:`nest.costs.compute`, :mod:`nest.costs.collectives` and :mod:`nest.costs.memory`; here
they are added up per layer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.collectives import (
    Group,
    Network,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from nest.costs.compute import (
    Array,
    Machine,
    attention_seconds,
    gemm_seconds,
    memory_seconds,
    scores_seconds,
)
from nest.costs.memory import recipe
from nest.describe.job import Job, Stack
from nest.graph import EXPERT, Layer, Operator

NONE, SELECTIVE, FULL = range(3)
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Choices:
    """C configurations of a stage, one array entry each.

    ``samples`` is the per-device micro-batch; ``recompute`` indexes :data:`RECOMPUTE`. Groups hold
    the worst group of the block and its replicas. ``zero`` and ``recompute`` are of shape (C,), or
    of shape (1, P) to price every policy with every configuration: prices then have shape (C, P).
    """

    samples: NDArray[np.int64]
    tp: NDArray[np.int64]
    sp: NDArray[np.bool_]
    ep: NDArray[np.int64]
    etp: NDArray[np.int64]
    zero: NDArray[np.int64]
    recompute: NDArray[np.int64]
    tp_group: Group
    ep_group: Group
    etp_group: Group
    dp_group: Group
    """Holders of the same dense parameters: data parallel inside the block and its replicas."""
    expert_dp_group: Group

    def __len__(self) -> int:
        return len(self.samples)

    def spread(self, array: Array) -> Array:
        """An array over configurations in the shape of the prices."""
        return array[:, None] if self.zero.ndim == 2 else array


@dataclass(frozen=True)
class LayerCosts:
    """What one layer adds to its stage; float64 arrays of shape (C,) or (C, P).

    Times are seconds per micro-batch, ``sync``, ``gather``, ``update`` and ``tied`` seconds per
    step. ``work`` and ``buffers`` count once a stage, for its largest layer; the rest adds up.
    """

    forward: Array
    backward: Array
    recompute: Array
    tp_forward: Array
    tp_backward: Array
    ep_forward: Array
    ep_backward: Array
    zero_forward: Array
    """Parameter gathers of ZeRO-3 that the layer's compute does not hide."""
    zero_backward: Array
    sync: Array
    """Gradient reduction at the end of the step, before overlap."""
    gather: Array
    """Parameter all-gather after the optimizer (ZeRO-1, 2), before overlap."""
    update: Array
    """Optimizer step."""
    tied: Array
    """Gradient exchange with the other copy of a tied embedding."""
    parameters: Array
    gradients: Array
    optimizer: Array
    activations: Array
    """Bytes per micro-batch in flight."""
    work: Array
    """Largest: bytes of activations that live while the layer is recomputed."""
    buffers: Array
    """Largest: gathered parameters and unsharded gradients."""


@dataclass(frozen=True)
class Setting:
    """What is the same for every stage of a plan."""

    machine: Machine
    network: Network
    job: Job
    hidden: int
    tied_level: int | NDArray[np.int64]
    """Level that a super-pipeline spans, per configuration where it is an array of shape (C,):
    over it the copies of tied embeddings are summed."""


class Sums(NamedTuple):
    """What a stage needs of its layers: arrays that add up, and two that do not."""

    forward: Array
    """All seconds of a micro-batch going forward."""
    backward: Array
    sync: Array
    """Gradient reduction less what hides it; below zero where the layer hides others'."""
    gather: Array
    """Parameter all-gather less what hides it."""
    exposed: Array
    """Seconds after the last backward that nothing hides."""
    resident: Array
    """Bytes of parameters, gradients and optimizer states."""
    activations: Array
    """Bytes per micro-batch in flight."""
    work: Array
    """Largest, not summed."""
    buffers: Array
    """Largest, not summed."""


SUMMED = len(Sums._fields) - 2
"""The first so many fields of :class:`Sums` add up over layers; the rest are maxima."""


def sums(c: LayerCosts, stack: Stack) -> Sums:
    """Fold the causes of :class:`LayerCosts` into what a stage needs.

    Gradients reduce while the last micro-batch goes backward, parameters gather under the next
    step's first forward pass, as far as the stack overlaps them. The exchange of tied embeddings
    is exposed (Megatron-LM finalises those gradients last), and so is the optimizer.
    """
    return Sums(
        forward=c.forward + c.tp_forward + c.ep_forward + c.zero_forward,
        backward=c.backward + c.recompute + c.tp_backward + c.ep_backward + c.zero_backward,
        sync=c.sync - stack.overlap_grad_reduce * (c.backward + c.recompute),
        gather=c.gather - stack.overlap_param_gather * c.forward,
        exposed=c.tied + c.update,
        resident=c.parameters + c.gradients + c.optimizer,
        activations=c.activations,
        work=c.work,
        buffers=c.buffers,
    )


def layer_costs(layer: Layer, c: Choices, s: Setting) -> LayerCosts:
    """Price one layer under C configurations.

    Returns
    -------
    LayerCosts
        Arrays of shape (C,), or (C, P): seconds and bytes, see its fields.
    """
    zeros = np.zeros(len(c))
    if layer.measured:
        compute = _measured_seconds(layer, c)
        parameters = _measured(layer, c, "parameters"), zeros
        saved = _measured_bytes(layer, c)
        tp, ep = (zeros, zeros), (zeros, zeros)
    else:
        compute = _compute_seconds(layer, c, s)
        parameters = _parameters(layer, c)
        saved = _saved_bytes(layer, c, s)
        tp = _tensor_traffic(layer, c, s)
        ep = _expert_traffic(layer, c, s)
    forward, backward, core = map(c.spread, compute)
    full = (c.recompute == FULL) & layer.repeated
    selective = (c.recompute == SELECTIVE) & layer.repeated
    again = np.where(full, forward, np.where(selective, core, 0.0))
    none, without_core, inputs, live = map(c.spread, saved)
    kept = np.where(full, inputs, np.where(selective, without_core, none))
    tp_forward, tp_backward = map(c.spread, tp)
    ep_forward, ep_backward = map(c.spread, ep)
    costs = LayerCosts(
        forward=forward, backward=backward, recompute=again,
        tp_forward=tp_forward, tp_backward=tp_backward + np.where(full, tp_forward, 0.0),
        ep_forward=ep_forward, ep_backward=ep_backward + np.where(full, ep_forward, 0.0),
        **_data_traffic(parameters, c, s, forward, backward + again),
        **_state_bytes(parameters, c, s),
        tied=c.spread(_tied_seconds(layer, c, s)),
        activations=kept,
        work=live + np.where(full, none - kept, 0.0),
    )
    shape = np.broadcast_shapes(c.samples.shape if c.zero.ndim == 1 else (len(c), 1), c.zero.shape)
    return LayerCosts(*(np.broadcast_to(getattr(costs, f.name), shape) for f in fields(costs)))


# ---------------------------------------------------------------- compute


def _tokens(c: Choices, s: Setting) -> tuple[Array, Array]:
    """Tokens of a tensor-parallel group, and those left to one rank between its collectives."""
    tokens = c.samples.astype(np.float64) * s.job.seq_len
    rest: Array = np.where(c.sp, tokens / c.tp, tokens)
    return tokens, rest


def _share(op: Operator, c: Choices) -> tuple[Array, Array]:
    """Ranks that divide the width of an operator, and padding of the width."""
    if op.split in ("column", "row", "heads"):
        ranks = np.minimum(c.tp, op.groups) if op.groups else c.tp
    elif op.split in EXPERT:
        ranks = c.etp
    else:
        ranks = np.ones_like(c.tp)
    padding = np.ones(len(c))
    if op.padded:
        step = 128 * c.tp
        padding = np.ceil(op.width / step) * step / op.width
    return ranks.astype(np.float64), padding


def _copies(layer: Layer, c: Choices, tokens: Array) -> Array:
    """Token copies that one device runs through its experts (balanced routing)."""
    assert layer.experts is not None
    return tokens * layer.experts.top_k * c.etp / c.tp


def _rows(op: Operator, layer: Layer, c: Choices, tokens: Array, rest: Array) -> Array:
    """Tokens that the operator sees on one device."""
    if op.split == "dispatch" or op.split in EXPERT:
        return _copies(layer, c, tokens)
    return rest if op.split == "sequence" else tokens


def _compute_seconds(layer: Layer, c: Choices, s: Setting) -> tuple[Array, Array, Array]:
    """Seconds forward, backward, and forward of the attention core alone."""
    forward = np.zeros(len(c))
    backward = np.zeros(len(c))
    core = np.zeros(len(c))
    tokens, rest = _tokens(c, s)
    for op in layer.operators:
        rows = _rows(op, layer, c, tokens, rest)
        ranks, padding = _share(op, c)
        if op.kind == "gemm":
            ahead, back = _gemm(op, layer, c, s.machine, rows, ranks, padding)
        elif op.kind == "attention":
            ahead, back = _attention(op, s, tokens, ranks)
            core = core + ahead
        else:
            scale = rows / ranks * padding * s.machine.element
            ahead = memory_seconds(s.machine, op.forward_elements * scale)
            back = memory_seconds(s.machine, op.backward_elements * scale)
        forward = forward + ahead
        backward = backward + back
    return forward, backward, core


def _gemm(
    op: Operator, layer: Layer, c: Choices, machine: Machine, rows: Array, ranks: Array,
    padding: Array,
) -> tuple[Array, Array]:
    """Forward, and data plus weight gradient (the same product with its sides exchanged)."""
    count: Array | float = 1.0
    width, depth = op.width * padding, np.full(len(c), float(op.depth))
    if op.split in EXPERT:
        assert layer.experts is not None
        count = layer.experts.count / c.ep
        rows = rows / count
    if op.split in ("row", "expert_row"):
        depth = depth / ranks
    else:
        width = width / ranks
    ahead = gemm_seconds(machine, rows, width, depth, count)
    data = gemm_seconds(machine, rows, depth, width, count)
    weight = gemm_seconds(machine, width, depth, rows, count)
    return ahead, data + weight


def _attention(
    op: Operator, s: Setting, tokens: Array, ranks: Array
) -> tuple[Array, Array]:
    machine, positions = s.machine, float(s.job.seq_len)
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


def _tensor_traffic(layer: Layer, c: Choices, s: Setting) -> tuple[Array, Array]:
    """Tensor-parallel collectives forward and backward, less what the stack overlaps.

    With sequence parallelism all-gathers and reduce-scatters, else all-reduces, of
    tokens x hidden elements (arXiv:2205.05198, section 4.2).
    """
    tokens, _ = _tokens(c, s)
    size = tokens * s.hidden * s.machine.element
    t = layer.traffic
    gather = all_gather(size, s.network, c.tp_group)
    reduce = all_reduce(size, s.network, c.tp_group)
    exposed = 1.0 - s.machine.stack.overlap_tp
    ahead = np.where(c.sp, (t.forward_gathers + t.forward_scatters) * gather,
                     t.forward_reduces * reduce)
    back = np.where(c.sp, (t.backward_gathers + t.backward_scatters) * gather,
                    t.backward_reduces * reduce)
    return exposed * ahead, exposed * back


def _expert_traffic(layer: Layer, c: Choices, s: Setting) -> tuple[Array, Array]:
    """Dispatch and combine of token copies over ep, gather and scatter over etp; each way.

    2 T k h bytes a device and direction (arXiv:2401.06066 routing; Megatron-Core all-to-all
    dispatcher), T the tokens that a rank holds.
    """
    if layer.experts is None:
        return np.zeros(len(c)), np.zeros(len(c))
    tokens, _ = _tokens(c, s)
    size = _copies(layer, c, tokens) * s.hidden * s.machine.element
    once = 2.0 * all_to_all(size / c.etp, s.network, c.ep_group)
    once = once + 2.0 * all_gather(size, s.network, c.etp_group)
    return once, once


def _data_traffic(
    parameters: tuple[Array, Array], c: Choices, s: Setting, forward: Array, backward: Array
) -> dict[str, Array]:
    """Gradient reduction, parameter gathers and the optimizer step.

    Volumes: ZeRO, arXiv:1910.02054, section 7: stage 0 all-reduces gradients; 1 scatters them and
    gathers parameters; 2 scatters every micro-batch; 3 gathers before forward and backward too.
    """
    r, stack, network = recipe(s.job), s.machine.stack, s.network
    sync, scattered, gathered = np.zeros(len(c)), np.zeros(len(c)), np.zeros(len(c))
    owned, whole = np.zeros(len(c)), np.zeros(len(c))
    for count, group in zip(parameters, (c.dp_group, c.expert_dp_group), strict=True):
        sync = sync + all_reduce(count * r.traveling_gradient, network, group)
        scattered = scattered + reduce_scatter(count * r.traveling_gradient, network, group)
        gathered = gathered + all_gather(count * r.gathered, network, group)
        whole, owned = whole + count, owned + count / group.size
    sync, scattered, gathered = map(c.spread, (sync, scattered, gathered))
    updates = [memory_seconds(s.machine, n * r.update) for n in (whole, owned)]
    hidden = stack.overlap_zero3
    again = gathered if stack.reshard_after_forward else 0.0
    late = np.where(c.zero == 3, again + scattered, np.where(c.zero == 2, scattered, 0.0))
    return {
        "zero_forward": np.where(c.zero == 3, np.maximum(0.0, gathered - hidden * forward), 0.0),
        "zero_backward": np.maximum(0.0, late - hidden * backward),
        "sync": np.where(c.zero == 0, sync, np.where(c.zero == 1, scattered, 0.0)),
        "gather": np.where((c.zero == 1) | (c.zero == 2), gathered, 0.0),
        "update": np.where(c.zero == 0, c.spread(updates[0]), c.spread(updates[1])),
    }


def _tied_seconds(layer: Layer, c: Choices, s: Setting) -> Array:
    """Sum of two copies of a tied embedding, each way over the level the pipeline spans."""
    if not layer.tied_parameters:
        return np.zeros(len(c))
    size = layer.tied_parameters / c.tp * recipe(s.job).traveling_gradient
    return size / s.network.bandwidth[s.tied_level] + 2.0 * s.network.latency[s.tied_level]


# ---------------------------------------------------------------- memory


def _parameters(layer: Layer, c: Choices) -> tuple[Array, Array]:
    """Dense and expert parameters that one device holds before ZeRO."""
    dense, expert = np.zeros(len(c)), np.zeros(len(c))
    for op in layer.operators:
        ranks, padding = _share(op, c)
        if op.split in EXPERT:
            expert = expert + op.parameters / (ranks * c.ep)
        else:
            dense = dense + op.parameters / ranks * padding
    return dense, expert


def _saved_bytes(layer: Layer, c: Choices, s: Setting) -> tuple[Array, Array, Array, Array]:
    """Bytes kept for the backward pass: all, without the attention core, the layer's input alone.

    Full recompute keeps the layer's input (arXiv:2205.05198, section 5). Selective recompute drops
    what the attention core alone keeps: softmax statistics with flash kernels, else the scores,
    5 bytes a head, query and key (section 4.1). The last array are bytes live within the layer.
    """
    tokens, rest = _tokens(c, s)
    element = s.machine.element
    saved, dropped = np.zeros(len(c)), np.zeros(len(c))
    for op in layer.operators:
        ranks, padding = _share(op, c)
        rows = _rows(op, layer, c, tokens, rest) / ranks
        saved = saved + rows * padding * op.saved_elements * element
        if op.kind == "attention":
            core = rows * 4.0 * op.heads
            if not s.machine.stack.flash_attention:
                core = rows * 5.0 * op.heads * s.job.seq_len
            saved, dropped = saved + core, dropped + core
    return saved, saved - dropped, rest * s.hidden * element, np.zeros(len(c))


def _state_bytes(
    parameters: tuple[Array, Array], c: Choices, s: Setting
) -> dict[str, Array]:
    """Parameters, gradients and optimizer states after ZeRO, and what is gathered for a while.

    ZeRO-3 holds the gathered parameters of two layers (the next one is prefetched) and, as ZeRO-2
    does, the whole gradients of one (arXiv:1910.02054, section 5).
    """
    r = recipe(s.job)
    whole = c.spread(parameters[0] + parameters[1])
    shared = c.spread(parameters[0] / c.dp_group.size + parameters[1] / c.expert_dp_group.size)
    buffers = np.where(c.zero == 3, 2.0 * r.gathered * (whole - shared), 0.0)
    buffers = buffers + np.where(c.zero >= 2, r.gradient * (whole - shared), 0.0)
    return {
        "parameters": r.parameter * np.where(c.zero == 3, shared, whole),
        "gradients": r.gradient * np.where(c.zero >= 2, shared, whole),
        "optimizer": r.optimizer * np.where(c.zero >= 1, shared, whole),
        "buffers": buffers,
    }


# ---------------------------------------------------------------- measured layers


def _measured(layer: Layer, c: Choices, name: str) -> Array:
    return np.array([getattr(layer.measured[int(t)], name) for t in c.tp], dtype=np.float64)


def _measured_seconds(layer: Layer, c: Choices) -> tuple[Array, Array, Array]:
    """Measured seconds, tensor-parallel collectives included; no attention core apart."""
    ahead = c.samples * _measured(layer, c, "forward")
    return ahead, c.samples * _measured(layer, c, "backward"), np.zeros(len(c))


def _measured_bytes(layer: Layer, c: Choices) -> tuple[Array, Array, Array, Array]:
    """Bytes kept for the backward pass, as :func:`_saved_bytes`; no attention core apart."""
    assert layer.output_bytes is not None
    saved = c.samples * _measured(layer, c, "activation_bytes")
    inputs = np.minimum(c.samples * layer.output_bytes, saved)
    return saved, saved, inputs, c.samples * _measured(layer, c, "work_bytes")
