"""Seconds and bytes of a layer by its parameters: ZeRO, HSDP, the optimizer, tied embeddings.

A *state* determines them (see :mod:`nest.costs.layer`). Shapes: C configurations, Z ways of ZeRO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nest.costs.choices import StageSetting, State, Way
from nest.costs.compute import Array, copy_seconds
from nest.costs.host import update_seconds
from nest.costs.learned import as_learned
from nest.costs.memory import recipe
from nest.costs.muon import STATE, UPDATE, shares
from nest.costs.network.collectives import all_gather, all_reduce, reduce_scatter
from nest.costs.operators import parameters_of, share_of
from nest.inputs.job import Job
from nest.model import EXPERT, Layer, Operator


@dataclass(frozen=True)
class StateCosts:
    """What one layer adds to its stage by its parameters; shape (C,) or (C, Z)."""

    gathered: Array
    """Seconds per micro-batch of gathering parameters before the forward (ZeRO-3)."""
    regathered: Array
    """The same before the backward, where the stack reshards."""
    scattered: Array
    """Seconds per micro-batch of scattering gradients after the backward (ZeRO-2, 3)."""
    slowed_forward: Array
    """Seconds per micro-batch that compute loses to gathers beside the forward (ZeRO-3)."""
    slowed_backward: Array
    """The same to gathers and scatters beside the backward (ZeRO-2, 3)."""
    sync: Array
    """Seconds per step of gradient reduction, before overlap."""
    gather: Array
    """Seconds per step of the parameter all-gather after the optimizer, before overlap."""
    maxima: Array
    """Seconds of :func:`maxima_seconds` each way, once for consecutive layers of a device."""
    update: Array
    """Seconds per step of the optimizer."""
    tied: Array
    """Seconds per step of the gradient exchange with other copies of a tied embedding."""
    parameters: Array
    gradients: Array
    optimizer: Array
    buffers: Array
    """Largest, not summed: gathered parameters and unsharded gradients."""
    host_states: Array
    """Bytes in the host's memory."""


@as_learned
def state_costs(layer: Layer, c: State, s: StageSetting) -> StateCosts:
    """Gradient reduction, parameter gathers, optimizer, and resident bytes; (C,), or (C, Z).

    Volumes: ZeRO, arXiv:1910.02054, section 7: stage 0 all-reduces gradients; 1 scatters them and
    gathers parameters; 2 scatters every micro-batch; 3 gathers before forward and backward too.
    HSDP (PyTorch FSDP, arXiv:2304.11277, section 3.2.2) does so inside a block and all-reduces the
    shards over the replicas once per step. ZeRO-3 holds the gathered parameters of two layers (the
    next one is prefetched) and, as ZeRO-2 does, the whole gradients of one. Under Muon ZeRO-1
    divides whole matrices over the ranks, and all-reduces gradients. Where another stage holds the
    same layers (DualPipe), what a device has summed is exchanged with it, device by device; ZeRO
    shards over the holders of both copies, HSDP within a block.

    Collectives take multiprocessors and memory bandwidth from the compute beside them, which loses
    ``overlap_slowdown`` of each of their seconds, whether they are hidden or not
    (arXiv:2507.03114). FSDP2 copies what it has gathered into tensors of their own, and adds the
    gradients of a micro-batch to whole ones where it does not scatter them yet, on the stream that
    computes (torch==2.13.0 torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:485,
    _fsdp_param.py:820).
    """
    def wide(array: Array) -> Array:
        return array[:, None] if c.zero.ndim == 2 else array

    r, stack = recipe(s.job), s.machine.stack
    every = _exchanged(layer, c, s)
    zero, hybrid = c.zero, c.shard == 1

    def sharded(pair: Array) -> Array:
        return np.where(hybrid, wide(pair[1]), wide(pair[0]))

    scatter, gather, mine = map(sharded, (every.scattered, every.gathered, every.owned))
    ahead = np.where(zero == 3, sharded(every.collected), 0.0)
    behind = np.where(zero >= 2, scatter, 0.0)
    again = ahead if stack.reshard_after_forward and layer.passes else 0.0 * ahead
    once = sharded(every.reduced) if s.job.optimizer == "muon" else scatter
    final = np.where(zero == 1, once, 0.0) + np.where(hybrid, wide(every.across), 0.0)
    held = wide(every.whole)
    frozen, kept = wide(every.frozen), sharded(every.kept)
    copied = stack.fsdp_copies * (zero == 3) * copy_seconds(
        s.machine, 2.0 * (r.gathered * held + frozen))
    added = stack.fsdp_copies * (zero < 2) * copy_seconds(
        s.machine, (2.0 * r.traveling_gradient + r.gathered) * held)
    buffers = np.where(zero == 3, 2.0 * (r.gathered * (held - mine) + frozen - kept), 0.0)
    buffers = buffers + np.where(zero >= 2, r.gradient * (held - mine), 0.0)
    if not layer.measured:
        # The gradient of a table of the vocabulary is whole before it is added to what is kept.
        buffers = np.maximum(buffers, r.parameter * wide(_table(layer, c)))
        buffers = buffers + wide(_unpacked(layer, c, s))
    found = shares(layer, c, s)
    matrix, own = wide(found.whole[0]), sharded(found.own[:, 0])
    update, divided = (
        update_seconds(s.machine, r, count - less * UPDATE / r.update, s.away.optimizer)
        for count, less in ((held, matrix), (mine, own)))
    update = update + wide(found.whole[1])
    divided = divided + sharded(found.own[:, 1]) + np.where(zero >= 2, sharded(found.travel), 0.0)
    here = 1.0 - s.away.optimizer
    return StateCosts(
        gathered=ahead,
        regathered=again,
        scattered=behind,
        slowed_forward=stack.overlap_slowdown * ahead + copied,
        slowed_backward=(stack.overlap_slowdown * (again + behind)
                         + (stack.reshard_after_forward and layer.passes) * copied + added),
        sync=np.where(zero == 0, wide(every.reduced[0]), final),
        gather=np.where((zero == 1) | (zero == 2), gather, 0.0),
        maxima=wide(maxima_seconds(c, s)) * np.ones(zero.shape),
        update=np.where(zero == 0, update, divided),
        tied=wide(tied_seconds(layer, c, s)) * np.ones(zero.shape),
        parameters=(r.parameter * np.where(zero == 3, mine, held)
                    + np.where(zero == 3, kept, frozen)),
        gradients=r.gradient * np.where(zero >= 2, mine, held),
        optimizer=here * np.where(
            zero >= 1, (r.sharded_optimizer - r.merged * (zero == 3)) * mine - STATE * own,
            r.optimizer * held - STATE * matrix),
        buffers=buffers,
        host_states=s.away.optimizer * r.host * np.where(zero >= 1, mine, held),
    )


class StateTraffic(NamedTuple):
    """Seconds in which all parameters of a layer travel, and how many there are; (C,), or (2, C):
    sharded over all ranks, and within a block (HSDP)."""

    whole: Array
    """Trained parameters of a device."""
    owned: Array
    """Those of its shard."""
    frozen: Array
    """Bytes of frozen parameters of a device."""
    kept: Array
    """Those of its shard under ZeRO-3."""
    reduced: Array
    scattered: Array
    gathered: Array
    collected: Array
    """Trained and frozen parameters, as ZeRO-3 gathers them."""
    across: Array
    """(C,) shards over the replicas (HSDP)."""


def _exchanged(layer: Layer, c: State, s: StageSetting) -> StateTraffic:
    """The volumes of :func:`state_costs` on the network."""
    r, network, columns = recipe(s.job), s.network, len(c.tp)
    owned, kept, reduced, scattered, gathered, collected = np.zeros((6, 2, columns))
    whole, frozen, across = np.zeros((3, columns))
    groups = ((c.dp_group, c.inner_group), (c.expert_dp_group, c.inner_expert_group))
    counts, bytes_of = _parameters(layer, c, s)
    some = any(fixed.any() for fixed in bytes_of)
    for count, fixed, over in zip(counts, bytes_of, groups, strict=True):
        frozen += fixed
        for hybrid, group in enumerate(over if some else ()):
            copies = 2 if c.twin is not None and not hybrid else 1
            size = count * r.gathered + fixed
            kept[hybrid] += fixed / group.size / copies
            collected[hybrid] += all_gather(size, network, group)
            if copies == 2 and c.twin is not None:
                collected[0] += to_twin(size / group.size / 2, c.twin)
        if not count.any():  # most layers have no experts
            continue
        whole += count
        for hybrid, group in enumerate(over):
            share = count / group.size
            scattered[hybrid] += reduce_scatter(count * r.traveling_gradient, network, group)
            gathered[hybrid] += all_gather(count * r.gathered, network, group)
            if hybrid:
                across += all_reduce(share * r.traveling_gradient, network, c.outer_group)
            if not hybrid or s.job.optimizer == "muon":
                reduced[hybrid] += all_reduce(count * r.traveling_gradient, network, group)
            if c.twin is not None:
                both = across if hybrid else reduced[0]
                both += to_twin(share * r.traveling_gradient, c.twin)
                if not hybrid:  # ZeRO shards over the holders of both copies
                    share = share / 2
                    scattered[0] += to_twin(share * r.traveling_gradient, c.twin)
                    gathered[0] += to_twin(share * r.gathered, c.twin)
            owned[hybrid] += share
    return StateTraffic(whole, owned, frozen, kept, reduced, scattered, gathered,
                        collected if some else gathered, across)


def _table(layer: Layer, c: State) -> Array:
    """Parameters of the vocabulary's matrix that one device holds before ZeRO."""
    found = np.zeros(len(c.tp))
    for op in layer.operators:
        if op.padded and not op.fixed:
            ranks, padding = share_of(op, c.tp, c.etp)
            found = found + op.parameters / ranks * padding
    return found


def _unpacked(layer: Layer, c: State, s: StageSetting) -> Array:
    """Bytes of the largest frozen matrix, converted to what its product takes."""
    found = np.zeros(len(c.tp))
    for op in layer.operators:
        if op.stored not in (None, s.machine.element):
            held = parameters_of(op, c, share_of(op, c.tp, c.etp)[0])
            found = np.maximum(found, s.machine.element * held)
    return found


Apart = tuple[Array, Array]


def trained_share(op: Operator) -> float:
    """Share of an operator's parameters that is trained."""
    return 1.0 if op.trained is None else op.trained / max(1, op.parameters)


def frozen_bytes(op: Operator, job: Job) -> float:
    """Bytes that the frozen parameters of an operator take, for each of all its parameters."""
    return (1.0 - trained_share(op)) * (
        recipe(job).parameter if op.stored is None else op.stored)


def _parameters(layer: Layer, c: State, s: StageSetting) -> tuple[Apart, Apart]:
    """Dense and expert parameters that one device holds before ZeRO: the number of trained ones,
    and bytes of frozen ones."""
    dense, expert, fixed, fixed_expert = np.zeros((4, len(c.tp)))
    if layer.measured:
        held = [layer.measured[int(t)].parameters for t in c.tp]
        return (np.array(held, dtype=np.float64), expert), (fixed, fixed_expert)
    for op in layer.operators:
        ranks, padding = share_of(op, c.tp, c.etp)
        count = parameters_of(op, c, ranks) * padding
        trained, each = trained_share(op), frozen_bytes(op, s.job)
        if op.split in EXPERT:
            expert, fixed_expert = expert + count * trained, fixed_expert + count * each
        else:
            dense, fixed = dense + count * trained, fixed + count * each
    return (dense, expert), (fixed, fixed_expert)


def to_twin(size: Array, way: Way) -> Array:
    """Seconds of sending bytes to the holder of the other copy, and receiving as many from it."""
    return size * way.per_byte + way.latency


MAXIMA = 4096.0
"""Bytes of the maxima of a device: 4 of each of a layer's 12 forward and 8 backward, more with
experts (three tensors of a product, two). Latency is what they take, whatever their number."""


def maxima_seconds(c: State, s: StageSetting) -> Array:
    """The maximum over all devices of a stage and its replicas, of fp8 with delayed scaling.

    Transformer Engine does this for all tensors of a device at once, behind each forward and
    backward of a chunk, on the stream that computes: sources of fp8-delayed in
    catalog/formats.yaml, which also say what is not priced.
    """
    if c.all_group is None:
        return np.zeros(len(c.tp))
    return all_reduce(np.full(len(c.tp), MAXIMA), s.network, c.all_group)


def tied_seconds(layer: Layer, c: State, s: StageSetting) -> Array:
    """Gradient sum of two copies of a tied embedding, between the ends of the pipeline."""
    if not layer.tied_parameters:
        return np.zeros(len(c.tp))
    size = layer.tied_parameters / c.tp * recipe(s.job).traveling_gradient
    return size * c.tied_per_byte + 2.0 * c.tied_latency
