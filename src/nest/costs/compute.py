"""Seconds of single operators on one device: a roofline with measured efficiencies.

All functions work element-wise on arrays, so that many configurations are priced at once.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from nest.inputs.device import Device, Dtype
from nest.inputs.formats import number_format
from nest.inputs.job import Stack
from nest.inputs.space import Precision

Array = NDArray[np.float64]


# Precisions that use each other's tensor-core rate when a device lists only one of them.
_ALIKE: dict[Dtype, Dtype] = {"bf16": "fp16", "fp16": "bf16", "fp32": "tf32"}


def peak_flops(device: Device, precision: Dtype | Precision) -> float:
    """Dense peak FLOP/s of a device.

    Raises
    ------
    InputError
        The device lists no rate for the precision.
    """
    rate = rate_of(precision)
    alike = _ALIKE.get(rate, rate)
    listed = rate in device.peak_flops or alike not in device.peak_flops
    return device.peak(rate if listed else alike)


def rate_of(precision: Dtype | Precision) -> Dtype:
    """Name of the rates of a number format in descriptions of devices."""
    return cast(Dtype, number_format(precision).rate)


class Machine:
    """Achievable rates of one device under one software stack.

    Parameters
    ----------
    device : peak FLOP/s, memory bandwidth and measured efficiencies.
    stack : derates of the training software against stand-alone kernels.
    precision : number format of the matrix products.
    """

    def __init__(self, device: Device, stack: Stack, precision: Dtype | Precision) -> None:
        self.device = device
        self.stack = stack
        self.peak = peak_flops(device, precision)
        self.format = number_format(precision)
        wide = cast(Precision, self.format.wide or precision)
        self.core_peak = peak_flops(device, wide)
        self.gemm = device.gemm_for(rate_of(precision))
        self.fp8_attention = stack.fp8_attention and self.format.narrow
        self.core_fraction = device.attention_for(rate_of(precision), self.fp8_attention)
        self.element = self.format.element
        self.operand = self.format.operand
        rates = stack.rates(device.name)
        self.gemm_derate, self.attention_derate = rates.gemm_derate, rates.attention_derate
        self.wide_derate = rates.wide_derate
        self.tp_exposed = rates.tp_exposed
        self.copy_bandwidth = device.memory_bandwidth * device.memory_efficiency
        """Of the bytes of products and of long fused kernels, such as the optimizer's."""
        self.bandwidth = self.copy_bandwidth * rates.memory_derate
        """Of element-wise kernels in training."""
        self.grouped = device.grouped_for(rate_of(precision))
        self.half = self if self.format.wide is None else Machine(device, stack, wide)
        """The same for products that are not cast: they stay in 16 bit."""
        self.overhead = device.launch_overhead


def gemm_seconds(
    machine: Machine, m: Array, n: Array, k: Array, count: Array | float = 1, alone: bool = True,
    derate: float = 1.0,
) -> Array:
    """Seconds of ``count`` matrix products (m x k) @ (k x n), in one launch.

    max(2mnk / achievable FLOP/s, bytes / achievable bytes/s) + launch overhead, and the traffic
    that casts the first operand. The achievable share of the peak is that of
    :class:`nest.inputs.device.GemmEfficiency`, fitted on measured products (see the device
    catalog), times the stack's derate, and ``derate``. A product ``alone`` casts its first operand
    itself, as measured products do: ``cast_bytes`` per element at the nominal memory bandwidth. In
    training :func:`cast_seconds` counts this separately.
    """
    e = machine.gemm
    arithmetic = _flop(machine, m, n, k) / (
        machine.peak * e.peak_fraction * machine.gemm_derate * derate)
    moved = machine.operand * (m * k + k * n) + machine.element * m * n
    each = np.maximum(arithmetic, moved / machine.copy_bandwidth)
    if alone:
        each = each + e.cast_bytes * m * k / machine.device.memory_bandwidth
    return np.where(m * n * k * count > 0, count * each + machine.overhead, 0.0)


def _flop(machine: Machine, m: Array, n: Array, k: Array) -> Array:
    """2mnk over the share of ``peak_fraction``, with m/(m + m_half) and so on cancelled.

    So empty products do not divide by zero.
    """
    e = machine.gemm
    flop = 2.0 * (m + e.m_half) * (n + e.n_half) * (k + e.k_half)
    full: Array = flop * (1.0 + e.decline * np.log2(1.0 + 2.0 * m * n * k / 1e12))
    return full


def grouped_seconds(
    machine: Machine, m: Array, n: Array, k: Array, count: Array | float, written: float,
    expert: float,
) -> Array:
    """Seconds of ``count`` groups, each a product (m x k) @ (k x n), in one call.

    Of :class:`nest.inputs.device.GroupedEfficiency`, measured in training software, so that the
    stack's derate does not apply. ``written`` are the bytes for an element of the result: a
    gradient that is added to is read and written. ``expert`` is the width of an expert's MLP.
    """
    e = machine.grouped
    share = e.share(expert, machine.stack.fused_experts)
    arithmetic = _flop(machine, m, n, k) / (machine.peak * machine.gemm.peak_fraction
                                            * share)
    moved = machine.operand * (m * k + k * n) + written * m * n
    bound = np.maximum(arithmetic, moved / (machine.device.memory_bandwidth * e.memory_share))
    return np.where(m * n * k * count > 0, count * (bound + e.group_time) + machine.overhead, 0.0)


def cast_seconds(machine: Machine, elements: Array, fixed: bool = False) -> Array:
    """Seconds that training takes to turn ``elements`` of 16 bit into operands of products.

    Transformer Engine casts the input of a product and its gradient once each, and keeps a copy of
    both for the weight gradient, transposed or scaled by columns: ``cast`` of
    :class:`nest.inputs.formats.NumberFormat`, 0 in 16 and 32 bit. Weights are cast once per step
    (``fp8_model_init``), which is neglected. Beside a ``fixed`` matrix there is no such copy
    (backward_needs_input of NVIDIA/TransformerEngine@v2.9
    transformer_engine/pytorch/module/linear.py). The bytes move at the nominal memory bandwidth,
    because some casts are fused into the preceding kernel (assumed); launches are included in those
    of the products.
    """
    moved = machine.format.cast - fixed * machine.format.operand if machine.format.cast else 0.0
    return moved * elements / machine.device.memory_bandwidth


def memory_seconds(machine: Machine, moved: Array) -> Array:
    """Seconds of an operator that only moves ``moved`` bytes: bandwidth plus launch overhead."""
    return np.where(moved > 0, moved / machine.bandwidth + machine.overhead, 0.0)


def copy_seconds(machine: Machine, moved: Array) -> Array:
    """The same of one long fused kernel that training does not slow down, as the optimizer's."""
    return np.where(moved > 0, moved / machine.copy_bandwidth + machine.overhead, 0.0)


def attention_seconds(
    machine: Machine, tokens: Array, width: Array, keys: float, head: float, backward: bool
) -> Array:
    """Seconds of the attention core for ``tokens`` queries that each compute ``keys`` keys.

    ``width`` is the query-key plus value elements per token on the device (heads x (d_qk + d_v)),
    so that forward is 2 * tokens * keys * width FLOP, and ``head`` the mean width of a head's
    queries and values. Flash kernels execute 2.5 times the forward FLOP going backward
    (arXiv:2307.08691, section 4.1), others twice. Heads narrower than 128 take as long as if they
    were wider: the exponentials, one for each score, limit them.
    """
    flop = 2.0 * tokens * keys * width
    if backward:
        flop = flop * (2.5 if machine.stack.flash_attention else 2.0)
    narrow = machine.device.attention_narrow ** np.log2(128.0 / min(head, 128.0))
    rate = machine.core_peak * machine.core_fraction * machine.attention_derate * narrow
    return np.where(flop > 0, flop / rate + machine.overhead, 0.0)


def scores_seconds(machine: Machine, elements: Array, backward: bool) -> Array:
    """Seconds to scale, mask, normalise and drop out ``elements`` attention scores in memory.

    Without flash kernels each score is written and read by the products and by a fused softmax
    (2-byte elements; forward write, read, write, read with dropout mask and output; backward the
    same again): arXiv:2205.05198, section 4.1, lists the tensors.
    """
    passes = 9.0 if backward else 11.0
    return memory_seconds(machine, passes * elements)
