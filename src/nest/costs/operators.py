"""Seconds of the operators of a layer, and the share of an operator that one device runs.

Arrays have the shape (C,): one value for each configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import (
    ATTN_PROJ,
    MODULE_BIT,
    PRODUCTS,
    QKV_LINEAR,
    UNREAD,
    Body,
    StageSetting,
    State,
)
from nest.costs.compute import (
    Array,
    Machine,
    attention_seconds,
    cast_seconds,
    copy_seconds,
    gemm_seconds,
    grouped_seconds,
    memory_seconds,
    scores_seconds,
)
from nest.costs.imbalance import MEETINGS, Keys, Ranks, busiest
from nest.costs.loss import FORMS, parts
from nest.costs.memory import recipe
from nest.model import EXPERT, Layer, Operator, Traffic, spans


def positions_of(layer: Layer, s: StageSetting) -> int:
    """Tokens of a sample that the layer sees."""
    return layer.tokens or s.job.seq_len


def tokens_of(layer: Layer, c: Body, s: StageSetting) -> tuple[Array, Array]:
    """Tokens of a tensor-parallel group, and of one rank between its collectives."""
    tokens = c.samples * float(positions_of(layer, s)) / c.cp
    rest: Array = np.where(c.sp, tokens / c.tp, tokens)
    return tokens, rest


def traffic_tokens(traffic: Traffic, layer: Layer, c: Body, s: StageSetting) -> Array:
    """Tokens that collectives of tensor parallelism move."""
    return c.samples * float(traffic.tokens or positions_of(layer, s)) / c.cp


def share_of(op: Operator, tp: NDArray[np.int64], etp: NDArray[np.int64]) -> tuple[Array, Array]:
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


def copies_of(layer: Layer, c: Body, s: StageSetting, tokens: Array) -> Array:
    """Token copies that one device runs through its experts: the busiest, which all wait for.

    Balanced routing times the job's ``expert_imbalance``; without expert parallelism every device
    runs its own tokens, whichever experts they go to. With a capacity an expert takes of each rank
    at most ``ceil(copies / experts * expert_capacity)``, and exactly that where it is padded
    (get_capacity in NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/transformer/moe/moe_utils.py:193,
    of the copies that the rank's router sees, line 832).
    """
    assert layer.experts is not None
    moe, job = layer.experts, s.job
    own = tokens * moe.top_k / c.tp
    busiest: Array = np.where(c.ep > 1, job.expert_imbalance, 1.0) * own * c.etp
    if job.expert_capacity is None:
        return busiest
    # Ranks share the tokens in many ways, whose quotients differ by rounding errors.
    each = np.ceil(own / moe.count * job.expert_capacity * (1.0 - 1e-12))
    most: Array = moe.count * each * c.etp
    return most if job.expert_padding else np.minimum(busiest, most)


def keys_bytes(op: Operator, layer: Layer, c: Body, s: StageSetting) -> Array:
    """Bytes of the keys and values of all positions, of the heads of a tensor-parallel rank."""
    keys = c.samples * float(op.positions or positions_of(layer, s))
    held: Array = keys * op.kv_width / np.minimum(c.tp, op.kv_groups) * s.machine.element
    return held


def rows_of(
    op: Operator, layer: Layer, c: Body, s: StageSetting, tokens: Array, rest: Array
) -> Array:
    """Tokens that the operator sees on one device."""
    if op.split == "dispatch" or op.split in EXPERT:
        return copies_of(layer, c, s, tokens)
    rows = rest if op.split == "sequence" else tokens
    if op.positions and op.type != "attention":  # it works on another sequence, such as keys
        return rows * op.positions / positions_of(layer, s)
    return rows


class OperatorShare(NamedTuple):
    """An operator on one device; (C,)."""

    operator: Operator
    rows: Array
    """Tokens that it sees."""
    ranks: Array
    """Ranks that divide its width, and padding of the width."""
    padding: Array


def key_copies(op: Operator, c: Body) -> Array:
    """Copies of keys and queries of a recurrence that ranks with heads of their own hold together.

    Groups of which tensor and context parallelism have more ranks are repeated
    (NVIDIA/Megatron-LM@d98e8a6 megatron/core/ssm/mamba_context_parallel.py:99-114, 183-196).
    """
    return np.where(c.cp > 1, np.maximum(1.0, c.tp * c.cp / max(op.kv_groups, 1)), 1.0)


def shares(layer: Layer, c: Body, s: StageSetting) -> list[OperatorShare]:
    """What one device runs of the operators of a layer."""
    tokens, rest = tokens_of(layer, c, s)
    found = [OperatorShare(op, rows_of(op, layer, c, s, tokens, rest), *share_of(op, c.tp, c.etp))
             for op in layer.operators]
    if any(op.keyed for op in layer.operators):
        found = [one._replace(padding=one.padding + one.operator.keyed * (
            key_copies(one.operator, c) - 1.0)) if one.operator.keyed else one for one in found]
    if s.machine.stack.gathers_logits:
        found = [one._replace(ranks=np.ones(len(c.tp))) if one.operator.loss else one
                 for one in found]
    return found


def parts_of(op: Operator, modules: tuple[str, ...], s: StageSetting) -> list[tuple[int, float]]:
    """Policies of selective recompute that concern an operator, with the share of it."""
    bits = sum(MODULE_BIT[name] for name in modules)
    if not s.machine.stack.saves_outputs:
        bits &= ~(QKV_LINEAR | ATTN_PROJ)
    if op.unread and s.machine.stack.stops_early:
        bits += UNREAD
    if not s.machine.stack.selective_products:
        return [(bits & ~PRODUCTS, 1.0)]
    return [(bits, 0.5), (bits | PRODUCTS, 0.5)] if op.halves else [(bits, 1.0)]


def compute_seconds(
    layer: Layer, c: Body, s: StageSetting, every: Iterable[OperatorShare], tokens: Array,
) -> tuple[Array, Array, dict[int, Array]]:
    """Seconds forward and backward, and those forward by the modules that repeat them.

    Parameters
    ----------
    every : of :func:`shares`.
    tokens : of a tensor-parallel group.
    """
    again: dict[int, Array] = {}
    backward = np.zeros(len(c.tp))
    for op, rows, ranks, padding in every:
        if op.type == "gemm":
            ahead, back = _gemm(op, layer, c, s, rows, ranks, padding)
        elif op.type == "attention":
            ahead, back = attention(op, layer, s, tokens * busiest_rank(op, layer, c, s), ranks)
            if s.machine.stack.wide_ring:
                merged = merges(op, c, s, tokens / ranks)
                ahead, back = ahead + merged[0], back + merged[1]
        elif op.type == "scan":
            ahead, back = scan(op, s, tokens / ranks * padding)
        elif op.fusable and s.machine.stack.fused_experts:
            continue
        else:
            seconds = copy_seconds if op.long else memory_seconds
            scale = rows / ranks * padding * s.machine.element
            moved, form = (op.forward_elements, op.backward_elements), FORMS[s.machine.stack.loss]
            if op.loss and form.moved is not None:
                moved = form.moved[0] * op.width, form.moved[1] * op.width
            ahead = seconds(s.machine, moved[0] * scale)
            back = seconds(s.machine, moved[1] * scale)
        for bits, share in parts_of(op, op.again, s):
            again[bits] = again.get(bits, 0.0) + share * ahead
        backward = backward + back
    return sum(again.values(), np.zeros(len(c.tp))), backward, again


def merges(op: Operator, c: Body, s: StageSetting, tokens: Array) -> tuple[Array, Array]:
    """Seconds in which PyTorch's ring merges outputs, and sums gradients, in fp32.

    Of cp steps each reads what there is (4 bytes an element) and what it adds (in the number format
    of activations), and writes the sum (4); before the first one there is nothing, and the last sum
    is read and written in the format of activations. Forward the outputs, backward the gradients of
    queries, keys and values (torch==2.13.0
    torch/distributed/tensor/experimental/_context_parallel/_attention.py:163, 512; one kernel a
    sum, as the compiler makes of them, assumed).
    """
    element = s.machine.element
    ranks = c.cp // c.inner
    moved = (ranks * (8.0 + element) + element) * tokens * op.attention_width / 2.0
    ring = (ranks > 1) & ~c.gather
    return (np.where(ring, memory_seconds(s.machine, moved), 0.0),
            np.where(ring, memory_seconds(s.machine, 3.0 * moved), 0.0))


def scan(op: Operator, s: StageSetting, tokens: Array) -> tuple[Array, Array]:
    """A recurrence over the tokens: its products at the rate of measured kernels, or its bytes.

    Triton kernels of flash-linear-attention 0.5.1 for the gated delta rule (heads of 128 x 128,
    bf16; QwenLM/FlashQLA@6e5d2ea benchmark/benchmark_results_H200.txt, @5f6aa53
    benchmark_results_GB200.txt; 16 to 64 heads, 32,768 tokens: medians of 13 rows) take 1.80 ns a
    token and head forward on H200 and 1.68 on GB200, backward 3.1 and 3.3 times as long. So
    `recurrence_fraction` falls where the peak grows.
    Mamba has no products for tensor cores: all of its state passes through registers, and its
    bytes are what is priced on top.
    """
    machine = s.machine
    rate = op.speed * machine.core_peak * machine.device.recurrence_fraction
    flop = 2.0 * tokens * op.attention_width
    times = []
    for work, elements in ((1.0, op.forward_elements), (3.2, op.backward_elements)):
        moved = memory_seconds(machine, elements * tokens * machine.element)
        times.append(np.maximum(work * flop / rate + machine.overhead, moved))
    return times[0], times[1]


def machine_of(op: Operator, s: StageSetting) -> Machine:
    """That of a product's number format: the head and routers stay in 16 bit.

    But for the head, which has the vocabulary's padding, where the stack has ``fp8_head``
    (fp8_output_proj in NVIDIA/Megatron-LM@d98e8a6, TELMHeadColumnParallelLinear).
    """
    wide = op.bf16 and not (op.padded and s.machine.stack.fp8_head)
    return s.machine.half if wide else s.machine


WIDE = 12_288
"""Least width of both sides of a product that ``wide_derate`` slows."""


def _derate(op: Operator, machine: Machine) -> float:
    """What the width of a product takes from its rate in training."""
    return machine.wide_derate if min(op.width, op.depth) >= WIDE else 1.0


def _gemm(
    op: Operator, layer: Layer, c: Body, s: StageSetting, rows: Array, ranks: Array, padding: Array,
) -> tuple[Array, Array]:
    """Forward, and data plus weight gradient (the same product with its sides exchanged)."""
    machine = machine_of(op, s)
    weight = weight_seconds(op, layer, c, s, rows, ranks, padding)
    unpacked = unpack_seconds(op, c, s, ranks)
    count, rows, width, depth = product_shape(op, layer, c, rows, ranks, padding)
    if op.split in EXPERT:
        assert layer.experts is not None
        each = count, machine.element, float(layer.experts.ffn)
        ahead = grouped_seconds(machine, rows, width, depth, *each)
        data = grouped_seconds(machine, rows, depth, width, *each)
    else:
        if op.logits:
            split = parts(s.machine.stack, rows, width, float(op.depth))
            count, rows = count * split, rows / split
        derate = _derate(op, machine)
        ahead = gemm_seconds(machine, rows, width, depth, count, alone=False, derate=derate)
        data = gemm_seconds(machine, rows, depth, width, count, alone=False, derate=derate)
    ahead, data = ahead + unpacked, data + unpacked
    if op.logits and FORMS[s.machine.stack.loss].again:
        data = data + ahead
    if op.split in EXPERT and machine.stack.fused_experts:
        return ahead, data + weight
    gradient = np.where(depth > 0, width, 0.0)  # a table of embeddings is looked up
    return (ahead + cast_seconds(machine, count * rows * depth, op.fixed),
            data + weight + cast_seconds(machine, count * rows * gradient, op.fixed))


def parameters_of(op: Operator, c: Body | State, ranks: Array) -> Array:
    """Parameters of an operator on one device, without padding."""
    held: Array = op.parameters / (ranks * c.ep if op.split in EXPERT else ranks)
    return held


def unpack_seconds(op: Operator, c: Body, s: StageSetting, ranks: Array) -> Array:
    """Seconds of converting a frozen matrix that is kept in another format than products take.

    All of it is read, and written as the product reads it, in front of each product, forward and
    backward (MatMul4Bit of bitsandbytes-foundation/bitsandbytes@0.49.0
    bitsandbytes/autograd/_functions.py).
    """
    element = s.machine.element
    if op.stored is None or op.stored == element:
        return np.zeros(len(c.tp))
    return copy_seconds(s.machine, parameters_of(op, c, ranks) * (op.stored + element))


def weight_seconds(
    op: Operator, layer: Layer, c: Body, s: StageSetting, rows: Array, ranks: Array, padding: Array,
) -> Array:
    """Seconds of the gradient of a product's weights; experts' is added to what is there.

    A frozen matrix has none; its bias, if that is trained, is the sum of the gradient's rows.
    """
    machine = machine_of(op, s)
    if op.fixed:
        summed = rows * op.width * padding / ranks * bool(op.trained)
        return memory_seconds(machine, summed * machine.element)
    count, rows, width, depth = product_shape(op, layer, c, rows, ranks, padding)
    if op.split in EXPERT:
        added = 2.0 * recipe(s.job).gradient
        assert layer.experts is not None
        return grouped_seconds(
            machine, width, depth, rows, count, added, float(layer.experts.ffn))
    if op.logits:
        split = parts(s.machine.stack, rows, width, float(op.depth))
        count, rows = count * split, rows / split
    return gemm_seconds(
        machine, width, depth, rows, count, alone=False, derate=_derate(op, machine))


def product_shape(
    op: Operator, layer: Layer, c: Body, rows: Array, ranks: Array, padding: Array
) -> tuple[Array | float, Array, Array, Array]:
    """Products side by side on a device, their rows, output width and depth."""
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
    return count, rows, width, depth


def keys_of(op: Operator, machine: Machine, positions: float, backward: bool) -> float:
    """Keys that a query of an attention core computes in the mean.

    Kernels without flash attention compute all positions. Flash kernels skip what a causal mask or
    a window hides (:meth:`nest.model.operators.Operator.seen`) but for ``attention_edge`` keys at
    its edge; going backward in fp8 they skip nothing of a window (cuDNN 9.22: NVIDIA/cudnn-frontend
    @3929da2 benchmark/sdpa_benchmark_training/results/gpt_oss).
    """
    if not machine.stack.flash_attention:
        return positions
    whole = replace(op, window=None) if backward and machine.fp8_attention else op
    seen = whole.seen(positions)
    edge = machine.device.attention_edge if seen < 1.0 else 0.0
    return min(positions, positions * seen + edge)


def seen_keys(op: Operator, layer: Layer, s: StageSetting, backward: bool) -> list[Keys]:
    """:func:`keys_of` by the lengths of samples."""
    samples = s.job.samples if s.machine.stack.flash_attention else None
    return [Keys(positions, share, keys_of(op, s.machine, positions, backward))
            for positions, share in spans(op, layer, s.job.seq_len, samples)]


def busiest_rank(op: Operator, layer: Layer, c: Body, s: StageSetting) -> Array:
    """Pairs that a step waits for, over the mean; see :func:`busiest`."""
    every = seen_keys(op, layer, s, False)
    if c.replicas is None or c.near is None or len(every) == 1:
        return np.ones(len(c.tp))
    experts = np.minimum(c.near, np.maximum(1, c.ep * c.etp // (c.tp * c.cp)))
    batches = np.int64(s.job.global_batch) // (c.replicas * c.samples).astype(np.int64)
    meet = [np.where(c.ep > 1, experts, 1), c.near, c.replicas][:1 + MEETINGS.index(s.waits.meet)]
    return busiest(every, Ranks(c.replicas, batches, float(s.job.global_batch * s.job.seq_len)),
                   meet, s.waits)


def attention(
    op: Operator, layer: Layer, s: StageSetting, tokens: Array, ranks: Array
) -> tuple[Array, Array]:
    """The attention core; context-parallel ranks share the pairs that it needs evenly.

    Flash kernels stay within samples where sequences are full of them, and take as long as the mean
    of their tokens' keys asks for, which is exact: the time of a kernel is linear in its pairs.
    Others compute the scores of whole sequences and mask them.
    """
    machine, positions = s.machine, float(op.positions or positions_of(layer, s))
    width = op.attention_width / ranks
    head = op.attention_width / (2.0 * op.heads) if op.heads else np.inf
    times = [
        attention_seconds(
            machine, tokens, width,
            sum(one.share * one.keys for one in seen_keys(op, layer, s, backward)), head, backward)
        for backward in (False, True)
    ]
    if not machine.stack.flash_attention:
        scores = tokens * positions * op.heads / ranks
        times = [t + scores_seconds(machine, scores, back)
                 for t, back in zip(times, (False, True), strict=True)]
    return times[0], times[1]
