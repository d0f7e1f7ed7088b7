"""All that plans of one question are made of, and how many there are.

Shapes: O outer choices, C cuts, K devices of a super-pipeline and one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle_layouts import Cuts, equal, family
from oracle_rules import (
    Choice,
    Outer,
    Policy,
    Split,
    State,
    blocks,
    checkpointed,
    cuts,
    members,
    outer_choices,
    policies,
    splits,
    states,
)

from nest.inputs import Cluster, Job, SearchSpace
from nest.model import Chain

Floats = NDArray[np.float64]


class Wrap(NamedTuple):
    """An interleaved pipeline but for the degrees of its blocks."""

    outer: int
    """Number of the outer choice."""
    size: int
    pp: int
    vpp: int
    cuts: Cuts = ()
    """First layer of each chunk, in the order of the layers, and their number."""


@dataclass(frozen=True)
class Question:
    """A chain, a cluster, a job and a space: which plans are there?"""

    chain: Chain
    cluster: Cluster
    job: Job
    space: SearchSpace

    @cached_property
    def outers(self) -> list[Outer]:
        return outer_choices(self.cluster, self.job, self.space)

    @cached_property
    def cuts(self) -> list[int]:
        return cuts(self.chain)

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of the cuts in front of and behind every stage there can be."""
        return [(i, j) for i, before in enumerate(self.cuts) for j, after in enumerate(self.cuts)
                if before != after and before & after == before]

    @cached_property
    def deepest(self) -> int:
        """Most stages that a plan can have."""
        pp = self.space.pp
        return len(self.chain) if pp is None else min(len(self.chain), pp.largest)

    @cached_property
    def trees(self) -> tuple[str, ...]:
        """Schedules whose stages hold one range of layers each."""
        named = tuple(name for name in ("1f1b", "gpipe") if name in self.space.schedules)
        return named if self.space.allows("vpp", 1) else ()

    def layers(self, i: int, j: int) -> tuple[int, ...]:
        """Layers between two cuts, ascending."""
        return members(self.chain, self.cuts[j] & ~self.cuts[i])

    def blocks(self, outer: Outer) -> tuple[tuple[int, int], ...]:
        found = blocks(self.cluster.group_sizes, outer.outer_dp, outer.stride)
        kinds = self.cluster.type_numbers
        if kinds is None:
            return found
        return tuple((k, size) for k, size in found if len({
            kinds[r * outer.stride + k + n] for r in range(outer.outer_dp) for n in range(size)
        }) == 1)

    def splits(self, micro_batch: int, size: int) -> list[Split]:
        if (micro_batch, size) not in self._splits:
            self._splits[micro_batch, size] = list(
                splits(self.chain, self.job, self.space, micro_batch, size))
        return self._splits[micro_batch, size]

    @cached_property
    def _splits(self) -> dict[tuple[int, int], list[Split]]:
        return {}

    def all_splits(self) -> list[list[Split]]:
        """The splits of every micro-batch and size that has been asked for."""
        return list(self._splits.values())

    def states(self, outer: Outer, split: Split, piped: bool) -> list[State]:
        return states(self.job, self.space, outer.outer_dp, split, piped)

    def policies(self, *chunks: tuple[int, ...]) -> list[Policy]:
        """Every recompute of a stage with these chunks."""
        count = max(checkpointed(self.chain, chunk) for chunk in chunks)
        if count not in self._policies:
            self._policies[count] = policies(
                self.chain, self.space, count, self.job.stack.saves_outputs)
        return self._policies[count]

    @cached_property
    def _policies(self) -> dict[int, list[Policy]]:
        return {}

    def choices(self) -> Iterator[tuple[int, Choice]]:
        """All choices, each with the number of its outer choice; block by block."""
        for n, outer in enumerate(self.outers):
            for start, size in self.blocks(outer):
                for split in self.splits(outer.micro_batch, size):
                    for state in self.states(outer, split, piped=False):
                        yield n, Choice(start, size, split, state)

    def wraps(self, unequal: bool = False) -> Iterator[Wrap]:
        """All interleaved pipelines of equal chunks but for their degrees; or the other ones."""
        if "interleaved" not in self.space.schedules or not self.chain.is_chain:
            return
        for pp in range(2, len(self.chain) + 1):
            for vpp in range(2, len(self.chain) // pp + 1):
                if not (self.space.allows("pp", pp) and self.space.allows("vpp", vpp)):
                    continue
                layouts = list(equal(self.chain, pp, vpp))
                if unequal:
                    layouts = [x for x in family(self.chain, pp, vpp) if x not in layouts]
                for n, outer in enumerate(self.outers) if layouts else ():
                    if self.job.global_batch // (outer.outer_dp * outer.micro_batch) % pp:
                        continue
                    legal = self.blocks(outer)
                    for size in range(1, outer.stride // pp + 1):
                        if all((s * size, size) in legal for s in range(pp)):
                            yield from (Wrap(n, size, pp, vpp, cuts) for cuts in layouts)

    def chunks(self, wrap: Wrap, stage: int) -> list[tuple[int, ...]]:
        """Layers of each chunk of a stage of an interleaved pipeline."""
        return [tuple(range(*wrap.cuts[n : n + 2]))
                for n in range(stage, wrap.pp * wrap.vpp, wrap.pp)]

    # ------------------------------------------------------------ numbers

    def ways(self, outer: Outer, size: int, piped: bool) -> int:
        """Choices of one block."""
        key = outer.micro_batch, size, outer.outer_dp > 1, piped
        if key not in self._ways:
            self._ways[key] = sum(len(self.states(outer, split, piped))
                                  for split in self.splits(outer.micro_batch, size))
        return self._ways[key]

    @cached_property
    def _ways(self) -> dict[tuple[int, int, bool, bool], int]:
        return {}

    def counts(self) -> tuple[float, float]:
        """Plans to list if all fitted: with the unfinished ones, and finished ones alone."""
        total, finished = self._tree_counts() if self.trees and self.outers else (0.0, 0.0)
        total, finished = total * len(self.trees), finished * len(self.trees)
        for wrap in self.wraps():
            chunks = [c for s in range(wrap.pp) for c in self.chunks(wrap, s)]
            ways = self.ways(self.outers[wrap.outer], wrap.size, piped=True)
            total += ways * len(self.policies(*chunks))
            finished += ways * len(self.policies(*chunks))
        return total, finished

    def _tree_counts(self) -> tuple[float, float]:
        """Plans that grow at their front, by the cut and the device that they begin with."""
        many, width = len(self.cuts), max(outer.stride for outer in self.outers) + 1
        kept_CC = np.zeros((many, many))
        for i, j in self.pairs:
            kept_CC[i, j] = len(self.policies(self.layers(i, j)))
        alone_OKK = np.zeros((len(self.outers), width, width))
        piped_OKK = np.zeros_like(alone_OKK)
        for n, outer in enumerate(self.outers):
            for start, size in self.blocks(outer):
                alone_OKK[n, start, start + size] = self.ways(outer, size, piped=False)
                piped_OKK[n, start, start + size] = self.ways(outer, size, piped=True)
        # Only the first stage begins with device 0.
        legal_CK = np.outer(np.arange(many) == 0, np.arange(width) == 0)
        legal_CK = legal_CK | np.outer(np.arange(many) > 0, np.arange(width) > 0)
        ways_OCK = kept_CC[:, -1, None] * piped_OKK.sum(axis=2)[:, None, :]
        ways_OCK[:, 0] = kept_CC[0, -1] * alone_OKK.sum(axis=2)
        total = finished = 0.0
        for depth in range(1, self.deepest + 1):
            ways_OCK = ways_OCK * legal_CK
            total += float(ways_OCK.sum())
            if self.space.allows("pp", depth):
                finished += float(ways_OCK[:, 0].sum())
            ways_OCK[:, 0] = 0.0
            ways_OCK = kept_CC @ ways_OCK @ piped_OKK.transpose(0, 2, 1)
        return total, finished
