"""The candidates for a stage: degrees on blocks, under each outer choice.

Shapes: S splits (tp, sp, cp and how cp exchanges), E expert pairs (ep, etp), C candidates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.network.fabric import Fabric, GroupShapes
from nest.costs.network.placement import strides
from nest.describe.cluster import Cluster
from nest.describe.job import Job
from nest.describe.space import SearchSpace
from nest.graph import Chain
from nest.graph.legality import cp_problem, divisors, expert_problem, tensor_degrees, tp_problem
from nest.search.starts import Places

Ints = NDArray[np.int64]


class Outer(NamedTuple):
    """One outer choice, which all stages share."""

    outer_dp: int
    stride: int
    micro_batch: int
    micro_batches: int


class Splits(NamedTuple):
    """Ways to split a sample over devices; arrays of shape (S,)."""

    tp: Ints
    sp: NDArray[np.bool_]
    cp: Ints
    a2a: NDArray[np.bool_]

    @property
    def width(self) -> Ints:
        """Devices that share a sample."""
        return self.tp * self.cp


class Pairs(NamedTuple):
    """Degrees of experts; arrays of shape (E,). etp 0 stands for tp (models without experts)."""

    ep: Ints
    etp: Ints

    @property
    def width(self) -> Ints:
        """Devices that share the experts."""
        return self.ep * np.maximum(self.etp, 1)


class Rows(NamedTuple):
    """C candidates; int64 arrays of shape (C,). ``split`` and ``pair`` are indices."""

    block: Ints
    start: Ints
    """First device of one place of each class that the block may take."""
    samples: Ints
    """Per-device micro-batch."""
    split: Ints
    pair: Ints

    def take(self, kept: Ints) -> Rows:
        """Some of them."""
        return Rows(*(column[kept] for column in self))


def outers(cluster: Cluster, job: Job, space: SearchSpace) -> list[Outer]:
    """Outer choices of a space, by outer_dp, stride and micro_batch."""
    found = []
    for outer_dp in divisors(job.global_batch):
        if outer_dp > cluster.size or not space.allows("outer_dp", outer_dp):
            continue
        for stride in strides(cluster.size, outer_dp, cluster.group_sizes):
            for size in divisors(job.global_batch // outer_dp):
                if space.allows("micro_batch", size):
                    count = job.global_batch // outer_dp // size
                    found.append(Outer(outer_dp, stride, size, count))
    return found


class Candidates:
    """Lists candidates.

    Parameters
    ----------
    alike : all stages of a pipeline are, see :class:`nest.search.starts.Places`.

    Attributes
    ----------
    splits, pairs : what their ``split`` and ``pair`` refer to; legal for the model and the job.
    """

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace, fabric: Fabric,
        alike: bool = False,
    ) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.fabric, self._alike = fabric, alike
        self.splits = self._splits()
        self.pairs = self._pairs()
        self._places: dict[tuple[int, int], Places] = {}

    def _splits(self) -> Splits:
        chain, job, space, size = self.chain, self.job, self.space, self.cluster.size
        experts = chain.experts is not None
        contexts = divisors(math.gcd(*chain.lengths(job.seq_len))) if chain.model else (1,)
        found = []
        for tp in tensor_degrees(chain, size):
            if not space.allows("tp", tp):
                continue
            if not experts and not (space.allows("etp", tp) and space.allows("ep", 1)):
                continue
            for sp in (True, False) if tp > 1 else (False,):
                if tp > 1 and not space.allows("sp", sp):
                    continue
                for cp in contexts:
                    if tp * cp > size or not space.allows("cp", cp):
                        continue
                    if tp_problem(chain, job, tp, sp, cp):
                        continue
                    for a2a in (False, True) if cp > 1 else (False,):
                        name = "a2a" if a2a else "p2p"
                        if cp > 1 and not space.allows("cp_comm", name):
                            continue
                        if not cp_problem(chain, job, cp, name, tp):
                            found.append((tp, sp, cp, a2a))
        tp_, sp_, cp_, a2a_ = np.array(found, dtype=np.int64).reshape(-1, 4).T
        return Splits(tp_, sp_.astype(bool), cp_, a2a_.astype(bool))

    def _pairs(self) -> Pairs:
        moe, space, size = self.chain.experts, self.space, self.cluster.size
        found = [(1, 0)]
        if moe is not None:
            found = [(ep, etp) for etp in divisors(moe.ffn) for ep in divisors(moe.experts)
                     if ep * etp <= size and space.allows("ep", ep) and space.allows("etp", etp)
                     and not expert_problem(self.chain, ep, etp)]
        ep, etp = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return Pairs(ep, etp)

    def places(self, outer: Outer) -> Places:
        """Places of blocks under an outer choice."""
        key = outer.outer_dp, outer.stride
        if key not in self._places:
            self._places[key] = Places(*key, self.fabric, self.shapes, self._alike)
        return self._places[key]

    def shapes(self, block: int) -> GroupShapes:
        """Shapes of the groups in a block of a size."""
        fits = block % self.splits.width == 0
        pairs = {(1, 1)} | {(max(int(etp), 1), int(ep)) for ep, etp, width in
                            zip(*self.pairs, self.pairs.width, strict=True) if block % width == 0}
        inside, inner = set(), {block}
        for tp, cp, a2a in {(int(tp), int(cp), bool(a2a)) for tp, _, cp, a2a in
                            np.stack(self.splits)[:, fits].T}:
            inside |= {(1, tp, False), (tp, cp, a2a), (tp, block // tp, False)}
            inner.add(tp)
        for etp, ep in pairs:
            experts = ep * etp
            inside |= {(1, etp, False), (etp, ep, ep > 1), (experts, block // experts, False)}
            inner.add(experts)
        return tuple(sorted(inside)), tuple(sorted(inner))

    def blocks(self, micro_batch: int) -> Ints:
        """Block sizes over which a micro-batch may be spread, for any replicas; ascending."""
        found = np.multiply.outer(np.array(divisors(micro_batch)), self.splits.width)
        return np.unique(found[found <= self.cluster.size])

    def rows(self, outer: Outer, useful: dict[int, NDArray[np.bool_]]) -> Rows:
        """Candidates of an outer choice, by block and start, then by split and pair.

        ``useful`` says for each block which pairs to take; (E,).
        """
        places, space = self.places(outer), self.space
        width = self.splits.width
        parts = []
        for dp_in in divisors(outer.micro_batch):
            samples = outer.micro_batch // dp_in
            if dp_in > outer.stride or not (
                    space.allows("dp_in", dp_in) and space.allows("mbs", samples)):
                continue
            block = dp_in * width
            legal = block <= outer.stride
            for g in self.cluster.group_sizes:
                legal &= (block <= g) | (block % g == 0)
            fitting = np.flatnonzero(legal)
            row, pair = np.nonzero([useful[size] for size in block[fitting].tolist()] or [[]])
            split = fitting[row]
            parts.append(np.stack([block[split], np.full_like(split, samples), split, pair]))
        if not any(part.size for part in parts):
            return Rows(*np.zeros((5, 0), dtype=np.int64))
        block, samples_, split, pair = np.concatenate(parts, axis=1)
        sizes, size = np.unique(block, return_inverse=True)
        starts = [places.representatives(one) for one in sizes.tolist()]
        counts = np.array([len(each) for each in starts])
        times = counts[size]
        at = np.repeat(np.arange(len(block)), times)
        nth = np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
        start = np.concatenate(starts)[(np.cumsum(counts) - counts)[size[at]] + nth]
        order = np.lexsort((pair[at], split[at], start, block[at]))
        at = at[order]
        return Rows(block[at], start[order], samples_[at], split[at], pair[at])
