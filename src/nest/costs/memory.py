"""Bytes per parameter and per device.

Bytes per parameter follow Megatron-LM's distributed-optimizer guide: bf16 with fp32 gradients 18
(2 parameter + 4 gradient + 12 Adam state), fp16 20, fp32 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from nest.inputs.cluster import Cluster
from nest.inputs.device import Device
from nest.inputs.job import Job
from nest.units import format_bytes


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter of each state."""

    parameter: float
    gradient: float
    """Held by a device; ``traveling_gradient`` is reduced."""
    optimizer: float
    sharded_optimizer: float
    """The same where ZeRO shards it."""
    merged: float
    """Of that, what ZeRO-3 does not keep besides its shards of the parameters."""
    traveling_gradient: float
    gathered: float
    """Bytes per parameter that an all-gather of parameters moves."""
    update: float
    """Bytes read and written per parameter by the optimizer step."""
    host: float
    """Held by a host for a parameter that it updates: fp32 copy, states, gradient."""
    host_update: float
    """Bytes that it reads and writes for that."""


SCALED = ("fp8", "fp8-delayed", "fp8-blockwise")
"""Formats whose parameters can be gathered in 8 bits; rows of MXFP8 differ from its columns."""
_STATES = {"adam": 2, "sgd-momentum": 1, "sgd": 0, "muon": 2, "adam-8bit": 2, "adafactor": 0}
_MOMENTS = {"adam-8bit": 1.0 + 4.0 / 256.0}
"""Bytes of an element of the states of an optimizer that has a format of its own: 8 bits, and a
scale in fp32 for 256 elements (arXiv:2110.02861, section 2.1; bitsandbytes 0.49.0 has
blocks of as many)."""
_MORE = {"adafactor": 8.0}
"""Further bytes that an update reads and writes: the squares of gradients by rows and columns, and
the norm of an update (arXiv:1804.04235, algorithm 5), twice the gradient in fp32, assumed."""


def recipe(job: Job) -> Recipe:
    """Bytes per parameter for the precision and optimizer of a job.

    fp32 training keeps one copy of the parameters (4 + 4 + 4 per optimizer state); mixed precision
    adds an fp32 master copy. fp16 keeps an fp16 and an fp32 gradient (Megatron-LM,
    distributed-optimizer guide: 4 + 16/d). Where operands are cast, parameters take 2 bytes: bf16,
    or rows and columns of fp8 (Transformer Engine's primary weights). Sharded optimizers may keep
    of the master copy of a bf16 parameter the 16 bits that it lacks (store_param_remainders of
    Transformer Engine's FusedAdam and of Apex), not under Muon. Moments may be in bf16
    (Megatron-Core's --exp-avg-dtype and --exp-avg-sq-dtype). PyTorch's FSDP shards fp32
    parameters, which are the master copy, and casts what it gathers (MixedPrecisionPolicy of
    torch==2.13.0): 16/d with ZeRO-3. Where bf16 parameters are sharded, there is no master copy,
    and what is kept of a gradient has their format, whatever it is reduced in (foreach_reduce of
    torch.distributed.fsdp); so it is with ``narrow_gradients``. fp8 parameters may be gathered as
    they are (``fp8_gather``: --fp8-param-gather of Megatron-Core; those of MXFP8 are gathered in
    bf16 and cast, reuse_grad_buf_for_mxfp8_param_ag). Muon is Adam here: what its matrices need
    less is that of :mod:`nest.costs.muon`. Adafactor has no first moment, and sums of rows and
    columns instead of a second, which are neglected.
    """
    states = _STATES[job.optimizer]
    host = 4.0 + 4.0 * states + 4.0, 4.0 + 8.0 + 8.0 * states
    more = _MORE.get(job.optimizer, 0.0)
    if job.precision == "fp32":
        moments = _MOMENTS.get(job.optimizer, 4.0) * states
        return Recipe(4.0, 4.0, moments, moments, 0.0, 4.0, 4.0, 4.0 + 8.0 + 2 * moments + more,
                      *host)
    stack = job.stack
    wide = job.gradient_dtype == "fp32"
    gradient = 4.0 if wide else 2.0
    # fp16 keeps both gradients; the fp32 one belongs to the optimizer's share.
    moment = 2.0 if job.optimizer == "adam" and stack.moment_dtype == "bf16" else (
        _MOMENTS.get(job.optimizer, 4.0))
    if not stack.master_copy and job.precision != "fp16":
        moments = moment * states
        return Recipe(2.0, 2.0, moments, moments, 0.0, gradient, 2.0,
                      2.0 + 4.0 + 2.0 * moments + more, *host)
    optimizer = 4.0 + moment * states + (4.0 if job.precision == "fp16" else 0.0)
    held = 2.0 if job.precision == "fp16" or stack.narrow_gradients else gradient
    # A bf16 parameter is the upper half of its fp32 master copy.
    split = stack.master_remainders and job.optimizer != "muon"
    remainder = 2.0 if split and job.precision == "bf16" else 0.0
    merged = 2.0 - remainder if stack.fp32_shards else 0.0
    update = gradient + 8.0 + 2.0 * moment * states + 2.0 + more
    gathered = 1.0 if stack.fp8_gather and job.precision in SCALED else 2.0
    return Recipe(2.0, held, optimizer, optimizer - remainder, merged, gradient, gathered, update,
                  *host)


def memory_problem(cluster: Cluster, job: Job) -> str | None:
    """Why the stack leaves no memory on a device; None where it leaves some."""
    stack = job.stack
    for device in cluster.device_types:
        if limit_bytes(device, job) <= 0.0:
            return (f"stack {stack.name}: workspace {format_bytes(stack.reserved)}, "
                    f"fragmentation {stack.fragmentation:g} and memory_margin "
                    f"{job.memory_margin:g} leave nothing of the {format_bytes(device.memory)} of "
                    f"{device.name}, of which memory_reserved is "
                    f"{format_bytes(device.memory_reserved)}; allowed: less")
    return None


def limit_bytes(device: Device, job: Job) -> float:
    """Bytes of a device that a plan may use: not what is reserved, fragmented or kept free."""
    usable = device.memory * usable_share(job) - device.memory_reserved
    return float(usable - job.stack.reserved)


def usable_share(job: Job) -> float:
    """Fraction of a device's memory that is neither lost to fragments nor kept free."""
    return 1.0 - job.stack.fragmentation - job.memory_margin
