"""Stages by the layers that they hold: those of one signature cost the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest.errors import LimitError
from nest.inputs.job import Job
from nest.model import Chain, boundary_bytes, relay_bytes

Ints = NDArray[np.int64]
Kinds = tuple[int, ...]
MOST = 126_000
"""Declared limit of the signatures of a chain (chosen: 501 layers that all differ)."""
LOOKED_BACK = 8
"""Layers of the same kind before one behind which the same layers may follow (chosen)."""


@dataclass(frozen=True)
class Signatures:
    """Stages of a chain by the kinds of their layers, in order; L cuts, G signatures.

    A stage lies between two cuts; a cut is the set of layers in front of it (a downset), as bits.
    """

    downsets: tuple[int, ...]
    index: Ints
    """(L+1, L+1): signature of the stage from cut i to cut j, -1 where there is none."""
    part: Ints
    """(G,): the signature without the last layer, of a lower number; -1 for one layer."""
    last: Ints
    """(G,): kind of the last layer."""
    root: Ints
    """(G,): kind of the first layer."""
    second: Ints
    """(G,): kind of the second; -1: none."""
    third: Ints
    """(G,): kind of the third; -1: none."""
    children: Ints
    """(G,): signatures by the one that they extend: those without first, then those of number 0."""
    begin: Ints
    """(G+2,): where those begin that extend none, number 0, 1, ..."""
    before: Ints
    """(G,): the signature without the last layers of one kind; -1: none."""
    depth: Ints
    """(G,): layers."""
    seen: NDArray[np.int32]
    """(rows, T): layers of each kind in front of each cut, then in first parts of all layers."""
    stretch: Ints
    """(G, 2): rows of ``seen`` in front of the layers of the signature, and with them."""
    among: Ints
    """(G, 2): kinds that recompute applies to, by their number among these: first, last + 1."""
    marked: Ints
    """(G,): layers that recompute applies to."""
    way: Ints
    """(G,): row of ``ancestor`` for the signature and those that it extends."""
    ancestor: NDArray[np.int32]
    """(ways, most marked + 1): a first part with this many of those layers; -1: none."""
    relay: NDArray[np.float64]
    """(G,): bytes per sample that a stage keeps for later ones, each micro-batch in flight."""
    received: NDArray[np.float64]
    """(G,): bytes per sample that a stage has buffers for in a step: those of both its cuts."""
    deepest: Ints
    """(G,): most stages from one of the signature to the end; 0: only a part of others."""
    whole: int
    """Signature of all layers."""
    whole_kinds: tuple[int, ...]

    @property
    def cuts(self) -> int:
        """L: the most stages, and the number of the last cut."""
        return len(self.downsets) - 1

    @property
    def longest(self) -> int:
        """Most layers of a stage that recompute applies to."""
        return int(self.marked.max())


def distinct_spans(kinds: Sequence[int]) -> int:
    """Number of different sequences of consecutive layers, by kind.

    Those of a suffix automaton (Blumer et al., Theoretical Computer Science 40, 1985): each of its
    states stands for as many as its longest one is longer than that of its suffix link.
    """
    after: list[dict[int, int]] = [{}]
    link, longest = [-1], [0]
    last = 0
    for kind in kinds:
        state, new = last, len(after)
        after.append({})
        link.append(0)
        longest.append(longest[last] + 1)
        while state >= 0 and kind not in after[state]:
            after[state][kind] = new
            state = link[state]
        if state >= 0:
            known = after[state][kind]
            if longest[known] == longest[state] + 1:
                link[new] = known
            else:
                copy = len(after)
                after.append(dict(after[known]))
                link.append(link[known])
                longest.append(longest[state] + 1)
                link[known] = link[new] = copy
                while state >= 0 and after[state].get(kind) == known:
                    after[state][kind] = copy
                    state = link[state]
        last = new
    return sum(longest[n] - longest[link[n]] for n in range(1, len(after)))


class _Found:
    """Signatures as they are found, each behind the one that it extends."""

    def __init__(self) -> None:
        self.part: list[int] = []
        self.last: list[int] = []
        self.stretch: list[tuple[int, int]] = []
        self.bytes_: list[tuple[float, float]] = []
        """Per sample: relayed, and received."""
        self._sequence: list[int] = []
        """Number of the sequence of kinds of each."""
        self._sequences: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, tuple[float, float]], int] = {}

    def add(
        self, part: int, kind: int, bytes_: tuple[float, float], stretch: tuple[int, int]
    ) -> int:
        """A signature of its own, one layer longer than ``part``; -1: of one layer."""
        self.part.append(part)
        self.last.append(kind)
        self.stretch.append(stretch)
        self.bytes_.append(bytes_)
        return len(self.part) - 1

    def extend(
        self, part: int, kind: int, bytes_: tuple[float, float], stretch: tuple[int, int]
    ) -> int:
        """The same, shared by all with these kinds and bytes."""
        key = (self._sequence[part] if part >= 0 else -1, kind)
        sequence = self._sequences.setdefault(key, len(self._sequences))
        if (sequence, bytes_) not in self._known:
            self._known[sequence, bytes_] = self.add(part, kind, bytes_, stretch)
            self._sequence.append(sequence)
        return self._known[sequence, bytes_]

    def stages(self, chain: Chain, job: Job, cuts: Sequence[int]) -> Ints:
        """``index`` of :class:`Signatures`."""
        if chain.is_chain and not job.stack.receives_all:
            return self._spans(chain.order)
        number, length = {mask: n for n, mask in enumerate(cuts)}, len(cuts) - 1
        rows = [[-1] * (length + 1) for _ in cuts]
        ends = [boundary_bytes(chain, job, cut) if job.stack.receives_all else 0.0 for cut in cuts]
        for i, front in enumerate(cuts[:-1]):
            row = rows[i]
            for j in range(i + 1, length + 1):
                received = ends[i] + ends[j]
                if chain.is_chain:  # each cut holds one layer more than the one before
                    row[j] = self.extend(row[j - 1], chain.order[j - 1], (0.0, received), (i, j))
                    continue
                if front & ~cuts[j]:
                    continue
                top = (cuts[j] & ~front).bit_length() - 1
                shorter = cuts[j] & ~(1 << top)
                before = row[number[shorter]] if shorter != front else -1
                relayed = relay_bytes(chain, job, front, cuts[j])
                row[j] = self.extend(before, chain.order[top], (relayed, received), (i, j))
        return np.array(rows, dtype=np.int64)

    def _spans(self, order: Sequence[int]) -> Ints:
        """The same where kinds alone tell stages apart.

        What a stage has in common with one that begins earlier is known: layers that are alike, or
        that come in a pattern, are looked up once and not for each of L^2 stages.
        """
        kinds, length = np.array(order), len(order)
        index = np.full((length + 1, length + 1), -1, dtype=np.int64)
        begins: dict[int, list[int]] = {}
        for i, kind in enumerate(order):
            known, begin = 0, begins.setdefault(kind, [])
            for k in begin[-LOOKED_BACK:]:
                differ = kinds[i:] != kinds[k : length - (i - k)]
                common = int(differ.argmax()) if differ.any() else length - i
                if common > known:
                    known = common
                    index[i, i + 1 : i + 1 + known] = index[k, k + 1 : k + 1 + known]
            begin.append(i)
            for j in range(i + known + 1, length + 1):
                index[i, j] = self.extend(
                    int(index[i, j - 1]), order[j - 1], (0.0, 0.0), (i, j))
        return index

    def whole(self, chain: Chain, index: Ints, cuts: Sequence[int]) -> Kinds:
        """Add that of all layers, whose kinds are returned: the whole chain holds tied embeddings
        once, and allows any ZeRO stage."""
        kinds, length = chain.stage(range(len(chain))), len(cuts) - 1
        shorter = cuts[-1] & ~(1 << (len(chain) - 1))
        whole = int(index[0, cuts.index(shorter)]) if shorter else -1
        if kinds != chain.order:
            whole = -1
            for n, kind in enumerate(kinds[:-1], start=1):
                whole = self.extend(whole, kind, (0.0, 0.0), (0, length + n))
        index[0, length] = self.add(whole, kinds[-1], (0.0, 0.0), (0, length + len(chain)))
        return kinds


def signatures(chain: Chain, job: Job) -> Signatures:
    """Group the stages of a chain.

    Raises
    ------
    LimitError : too many cuts, or too many stages that differ.
    """
    cuts = chain.downsets()
    stages = distinct_spans(chain.order) if chain.is_chain else 0
    if stages > MOST:
        raise LimitError(
            f"{chain.name}: got {len(chain):,} layers of {len(set(chain.order)):,} different kinds,"
            f" which form {stages:,} different stages; allowed: {MOST:,}, those of 501 layers that "
            "all differ. Describe layers that take about as long as one layer with `repeat`, or "
            "consecutive layers as one")
    found = _Found()
    index = found.stages(chain, job, cuts)
    kinds = found.whole(chain, index, cuts)
    part, length = np.array(found.part), len(cuts) - 1
    deepest = np.zeros(len(part), dtype=np.int64)
    for j in range(length, 0, -1):
        ending = index[:j, j]
        ending = ending[ending >= 0]
        deepest[ending] = np.maximum(deepest[ending], 1 + length - j)
    heads, before, depth, marked, among = _heads(chain, found.part, found.last)
    children = np.argsort(part, kind="stable")
    way, ancestor = _ways(found.part, marked)
    relay, received = np.array(found.bytes_).T.copy()
    return Signatures(
        downsets=cuts, index=index, part=part, last=np.array(found.last), root=heads[:, 0].copy(),
        second=heads[:, 1].copy(), third=heads[:, 2].copy(), children=children,
        begin=np.searchsorted(part[children], np.arange(-1, len(part) + 1)),
        before=np.array(before), depth=np.array(depth), seen=_seen(chain, cuts, kinds),
        stretch=np.array(found.stretch), among=np.array(among), marked=np.array(marked), way=way,
        ancestor=ancestor, relay=relay, received=received, deepest=deepest, whole=len(part) - 1,
        whole_kinds=kinds,
    )


def _heads(
    chain: Chain, part: Sequence[int], last: Sequence[int]
) -> tuple[Ints, list[int], list[int], list[int], list[tuple[int, int]]]:
    """Kinds of the first three layers, ``before``, ``depth``, ``marked`` and ``among`` of
    :class:`Signatures`, each from those of its part."""
    checkpointed = [kind.checkpointed for kind in chain.kinds]
    number_of = np.cumsum([0, *checkpointed]).tolist()
    heads, among = list[Kinds](), list[tuple[int, int]]()
    before_run, depth, marked = [-1] * len(part), list[int](), list[int]()
    for g, (before, kind) in enumerate(zip(part, last, strict=True)):
        head: Kinds = (-1, -1, -1)
        layers, again, low, high = 0, 0, number_of[-1], 0
        if before >= 0:
            head, layers, again, (low, high) = (
                heads[before], depth[before], marked[before], among[before])
            before_run[g] = before_run[before] if last[before] == kind else before
        heads.append((*head[:layers], kind, *head[layers + 1:]) if layers < 3 else head)
        depth.append(layers + 1)
        marked.append(again + checkpointed[kind])
        among.append((min(low, number_of[kind]), max(high, number_of[kind + 1])))
    return np.array(heads), before_run, depth, marked, among


def _seen(chain: Chain, cuts: Sequence[int], kinds: Sequence[int]) -> NDArray[np.int32]:
    """Layers of each kind in front of each cut, and in the first 1, 2, ... of ``kinds``."""
    seen = np.zeros((len(cuts) + len(kinds), len(chain.kinds)), dtype=np.int32)
    order = np.array(chain.order)
    if chain.is_chain:  # each cut holds one layer more than the one before
        np.cumsum(order[:, None] == np.arange(len(chain.kinds)), axis=0, out=seen[1 : len(cuts)])
    for row, cut in enumerate(() if chain.is_chain else cuts):
        members = [n for n in range(cut.bit_length()) if cut >> n & 1]
        seen[row] = np.bincount(order[members], minlength=len(chain.kinds)) if members else 0
    np.cumsum(np.array(kinds)[:, None] == np.arange(len(chain.kinds)), axis=0,
              out=seen[len(cuts):])
    return seen


def _ways(part: list[int], marked: list[int]) -> tuple[Ints, NDArray[np.int32]]:
    """A row for each signature that none extends: its first parts by their marked layers.

    Those that it extends share it: first parts with as many of those layers recompute the same.
    """
    way = [-1] * len(part)
    ancestor, most = list[list[int]](), max(marked)
    for g in range(len(part) - 1, -1, -1):
        if way[g] < 0:
            row, q = [-1] * (most + 1), g
            while q >= 0:
                if row[marked[q]] < 0:
                    row[marked[q]] = q
                if way[q] < 0:
                    way[q] = len(ancestor)
                q = part[q]
            ancestor.append(row)
    return np.array(way), np.array(ancestor, dtype=np.int32)
