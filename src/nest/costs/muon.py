"""Muon: matrices are orthogonalised by Newton-Schulz iterations, all else is Adam's.

Matrices are the weights of products other than the embedding and the head (arXiv:2502.16982,
section 2.2; NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/optimizer/muon.py:252). They have one
state, the momentum. An iteration of X (n x m, m <= n) is A = X^T X, A^2 and X (aI + bA + cA^2):
4 n m^2 + 2 m^3 FLOP; five of them (Keller Jordan, Muon, 2024, kellerjordan.github.io/posts/muon;
NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/optimizer/optimizer_config.py:275), in 16 bit (line
272). Tensor-parallel ranks orthogonalise their parts (blockwise, line 278); experts that etp
divides count as fewer whole ones. Under ZeRO-1 a matrix belongs to one rank
(NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/optimizer/layer_wise_optimizer.py:26): gradients are
all-reduced and updated parameters gathered. Under ZeRO-2 and 3, whose shards are parts of matrices,
momenta travel to the rank that orthogonalises, and updates back: an all-to-all of 4 bytes an
element each way (DistMuon, torchtitan==0.3.0 torchtitan/distributed/flex_shard/dist_muon.py:57;
that it is fp32 and not hidden is assumed); on networks of links it is priced as a gather of as
many bytes. Ranks are taken to have equal shares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nest.costs.choices import StageSetting, State
from nest.costs.compute import Array, gemm_seconds
from nest.costs.network.collectives import all_gather, all_to_all
from nest.costs.operators import share_of
from nest.model import EXPERT, Layer
from nest.model.trained import TABLES

ITERATIONS = 5
STATE = 4.0
"""Bytes of the second state of Adam, which a matrix does not have."""
UPDATE = 8.0
"""Bytes that its update would read and write."""
MOMENTUM = 4.0
"""Bytes of an element of a momentum that travels."""


class Shares(NamedTuple):
    """Matrices of a layer, zeros without Muon; by ZeRO over all holders, and in a block (HSDP)."""

    whole: Array
    """(2, C): parameters of a device before ZeRO, and seconds to orthogonalise them."""
    own: Array
    """(2, 2, C): the same of a rank's share, by ZeRO."""
    travel: Array
    """(2, C): seconds in which momenta and updates travel under ZeRO-2 and 3."""


def shares(layer: Layer, c: State, s: StageSetting) -> Shares:
    """Matrices of a layer, dense ones and those of experts together."""
    columns = len(c.tp)
    found = Shares(np.zeros((2, columns)), np.zeros((2, 2, columns)), np.zeros((2, columns)))
    if s.job.optimizer != "muon":
        return found
    groups = ((c.dp_group, c.inner_group), (c.expert_dp_group, c.inner_expert_group))
    for held, over in zip(matrices(layer, c, s), groups, strict=True):
        if not held.any():
            continue
        found.whole[:] += held
        for hybrid, group in enumerate(over):
            found.own[hybrid] += held / group.size
            # On links all-to-all has figures inside blocks only.
            exchange = all_to_all if group.paths is None else all_gather
            found.travel[hybrid] += 2.0 * exchange(
                MOMENTUM * held[0] / group.size, s.network, group)
    return found


def matrices(layer: Layer, c: State, s: StageSetting) -> Array:
    """(2, 2, C): of dense matrices and of experts' the parameters on a device, and seconds.

    There are none in a measured layer, whose shapes are unknown.
    """
    columns = len(c.tp)
    found = np.zeros((2, 2, columns))
    for op in layer.operators:
        if op.type != "gemm" or not op.parameters or op.fixed or op.name in TABLES:
            continue
        ranks, _ = share_of(op, c.tp, c.etp)
        width, depth = np.full(columns, float(op.width)), np.full(columns, float(op.depth))
        count = np.ones(columns)
        if op.split in EXPERT:  # a state knows only the product of ep and etp
            assert layer.experts is not None
            count = layer.experts.count / (c.ep * ranks)
        elif op.split == "row":
            depth = depth / ranks
        else:
            width = width / ranks
        seconds = orthogonal_seconds(s, width, depth)
        found[int(op.split in EXPERT)] += count * np.stack([width * depth, seconds])
    return found


def orthogonal_seconds(s: StageSetting, width: Array, depth: Array) -> Array:
    """Seconds of the iterations of one matrix (width x depth)."""
    n, m = np.maximum(width, depth), np.minimum(width, depth)
    each = [gemm_seconds(s.machine.half, *shape, alone=False)
            for shape in ((m, m, n), (m, m, m), (n, m, m))]
    return ITERATIONS * sum(each, np.zeros(len(n)))
