"""Cuts that are listed for pipelines of one shape: of a family, or of named forms.

They follow from the chain and from what rules allow of cuts, and come with the lightest of the
heaviest stages first.

Shapes: W layouts, p stages, T layer kinds, N layers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.model import Chain
from nest.model.layouts import family
from nest.schedules.registry import copies, placement, position
from nest.search import compiled
from nest.search.columns import LAYOUT, Column, Columns
from nest.search.runnable import HELD, Pipeline
from nest.search.signatures import Signatures
from nest.stacks.figures import cut_forms

Ints = NDArray[np.int64]
Counts = NDArray[np.int16]
LONGEST = 200
"""Layers of a chain up to which the family of cuts is listed; longer ones have even chunks."""
MOST_KINDS = 16
"""Kinds of layers up to which three stages of a layout are looked at first."""
UNLIKE = ("1f1b", "gpipe")
"""Schedules of stages that may differ; alike ones may be cut anywhere."""
MOST_WAYS = 10_000
"""Ways that are listed at the most: to divide what is in front of the body and behind it among
chunks without its layers, which a form has up to here (those of a tower among more chunks than the
body has layers are without number), and to cut a chain anywhere."""
SEEN = 3, 5
"""Stages of a layout that ``Pipelines.seen`` has, and figures of each."""


class CutList(NamedTuple):
    """Layouts of one shape; ``run`` and ``until`` count from 0, other fields are those of
    :class:`nest.records.problems.Pipelines`."""

    cuts: Ints
    """(W, chunks + 1) first layer of each chunk, in the order of the layers, and their number."""
    load: Ints
    heaviest: Ints
    run: Ints
    seen: Counts
    until: Ints
    least_seen: Counts
    longest: int
    """Most layers of a chunk that recompute applies to."""
    widest: int
    """Most layers of the body in a chunk."""


class CutLists:
    """Lists of cuts, each made when it is first asked for; ``mixed``: devices of several types.

    Attributes
    ----------
    stages : of a layout, that are looked at first.
    """

    def __init__(self, chain: Chain, signatures: Signatures, mixed: bool = False) -> None:
        self.chain, self.mixed = chain, mixed
        self.stages = SEEN[0] if len(chain.kinds) <= MOST_KINDS else 0
        self._marked: Ints = np.cumsum(
            [0, *(chain.kinds[kind].checkpointed for kind in chain.order)])
        self.held = {name: [n for n, kind in enumerate(chain.order)
                            if chain.kinds[kind].name.startswith(start)]
                     for name, start in HELD.items()}
        """Layers of the kinds of ``HELD``; those of one follow each other."""
        kinds = np.eye(len(chain.kinds), dtype=np.int16)
        self._front = [
            np.ascontiguousarray(
                np.pad(kinds[[*order]].T, ((0, 0), (1, 0))).cumsum(axis=1, dtype=np.int16))
            for order in (chain.order, signatures.whole_kinds)]
        """(T, N+1) layers by kind in front of each cut: as they are, and where a stage holds all
        that share a table of the vocabulary, once."""
        self._known: dict[Hashable, CutList] = {}

    @property
    def extent(self) -> int:
        """Grows when what is known does."""
        return len(self._known)

    def of(self, pipeline: Pipeline, own: bool, rules: dict[str, list[Any]]) -> CutList:
        """Cuts of a pipeline that rules (``Runnable.about_cuts``) allow; ``own``: the space is that
        of a stack."""
        forms = [] if is_free(rules) else rules["cuts"]
        legal = {name: [count for count in range(1, len(held) + 1)
                        if all(count in allowed for allowed in rules[name])]
                 for name, held in self.held.items()}
        unlike = pipeline.schedule in UNLIKE
        # Stages that are cut freely are never empty.
        most = 1 if unlike else pipeline.pp * pipeline.vpp
        legal["empty_chunks"] = [count for count in range(most)
                                 if all(count in allowed for allowed in rules["empty_chunks"])]
        key = (placement(pipeline.schedule), unlike, pipeline.pp, pipeline.vpp, own,
               repr((forms, legal)))
        found = self._known.get(key)
        if found is None:  # threads that make one at once get the same one
            found = self._known.setdefault(key, self._sorted(
                self._listed(pipeline, own, forms, legal), pipeline))
        return found

    def _listed(
        self, pipeline: Pipeline, own: bool, forms: list[Any], legal: dict[str, list[int]]
    ) -> Ints:
        """(W, chunks + 1) cuts: of the forms by name, or where there are none, anywhere or of a
        family."""
        chain, pp, twice = self.chain, pipeline.pp, copies(pipeline.schedule) > 1
        vpp = 1 if twice else pipeline.vpp
        if own and not forms and any_cuts(chain, pipeline):
            found = np.array([(0, *inner, len(chain))
                              for inner in combinations(range(1, len(chain)), pp - 1)],
                             dtype=np.int64).reshape(-1, pp + 1)
        elif len(chain) > LONGEST or (twice and not own):
            found = _by_form(chain, pp * vpp, even=True)
        else:
            found = _by_form(chain, pp * vpp) if forms else family(
                chain, pp, vpp, self.mixed)
        if twice:  # what shares a table of the vocabulary is on the stages of both ends
            for n, kind in enumerate(chain.order):
                if chain.kinds[kind].tied_parameters:
                    found = found[(found[:, 1] > n) | (found[:, -2] <= n)]
        elif not own:  # chunks that are as large as each other, but for the ends
            layers = body_layers(chain, found)
            found = found[(layers == layers[:, :1]).all(axis=1)]
        for name, held in self.held.items():
            if held:
                found = found[np.isin(_holding(found, held), legal[name])]
        found = found[np.isin(_empty(found), legal["empty_chunks"])]
        if forms:
            whole = np.diff(found, axis=1).tolist()
            found = found[[
                all(cut_forms(body, every) & {*allowed} for allowed in forms)
                for body, every in zip(body_layers(chain, found).tolist(), whole, strict=True)]]
        return found

    def figures(self, cuts: list[Ints]) -> Columns:
        """Figures of layouts that rules may have."""
        forms = [cut_forms(body, every) for found in cuts for body, every in zip(
            body_layers(self.chain, found).tolist(), np.diff(found, axis=1).tolist(), strict=True)]
        words = list(dict.fromkeys(forms))
        return {
            "cuts": Column.of(LAYOUT, [words.index(one) for one in forms], words),
            "empty_chunks": Column.of(LAYOUT, np.concatenate([_empty(found) for found in cuts])),
            **{name: Column.of(LAYOUT, np.concatenate([_holding(found, held) for found in cuts]))
               for name, held in self.held.items() if held}}

    def _sorted(self, found: Ints, pipeline: Pipeline) -> CutList:
        """A list of layouts, the lightest of the heaviest stages first, in runs
        (``Pipelines.run``)."""
        schedule, p, v = pipeline[:3]
        once = p == 1 or copies(schedule) > 1
        load, heaviest, seconds, stage = np.zeros((4, len(found)), dtype=np.int64)
        seen = np.zeros(
            (len(found), self.stages, SEEN[1], len(self.chain.kinds)), dtype=np.int16)
        places = np.array([[position(schedule, p, s, n, v) for n in range(v)] for s in range(p)])
        compiled.load(("see",))[0].see(
            found, places, self._front[int(once)], np.array(self.chain.body), load, heaviest,
            seconds, stage, seen)
        each, stage = np.unique(stage, return_inverse=True)
        least = np.full(len(each), np.iinfo(np.int64).max)
        np.minimum.at(least, stage, seconds)
        order = np.lexsort((seconds, stage, least[stage], load))
        begin = np.flatnonzero(np.diff(stage[order], prepend=-1))
        until = np.append(begin[1:], len(found))[:len(begin)]
        seen = seen[order]
        return CutList(
            found[order], load[order], heaviest[order],
            np.repeat(np.arange(len(begin)), until - begin), seen, until,
            np.minimum.reduceat(seen, begin, axis=0) if len(begin) else seen,
            int(np.diff(self._marked[found], axis=1).max(initial=0)),
            int(body_layers(self.chain, found).max(initial=0)))


def _holding(cuts: Ints, held: list[int]) -> Ints:
    """(W,) chunks with some of the layers ``held``, which follow each other."""
    found: Ints = ((cuts > held[0]) & (cuts <= held[-1])).sum(axis=1) + 1
    return found


def _empty(cuts: Ints) -> Ints:
    """(W,) chunks without layers."""
    found: Ints = (np.diff(cuts, axis=1) == 0).sum(axis=1)
    return found


def any_cuts(chain: Chain, pipeline: Pipeline) -> bool:
    """Whether a list has all cuts of a pipeline that may be cut anywhere."""
    return (pipeline.schedule in UNLIKE
            and math.comb(len(chain) - 1, pipeline.pp - 1) <= MOST_WAYS)


def is_free(rules: dict[str, list[Any]]) -> bool:
    """Whether rules allow any form of cuts."""
    return all("free" in allowed for allowed in rules["cuts"])


def body_layers(chain: Chain, cuts: Any) -> Any:
    """Layers of the body in each chunk; (W, chunks)."""
    ends = np.clip(cuts, *chain.body)
    return ends[:, 1:] - ends[:, :-1]


def _by_form(chain: Chain, parts: int, even: bool = False) -> Ints:
    """Cuts of the forms of ``nest.inputs.capabilities.CUTS``; (W, parts + 1), each once.

    ``even``: only those of chunks that differ by a layer at the most.
    """
    first, last = chain.body
    layers, found = last - first, set()

    def add(sizes: list[int], start: int, whole: bool = False) -> None:
        cuts = [start + sum(sizes[:n]) for n in range(1, parts)]
        found.add((0, *cuts, len(chain)))
        if not whole:  # chunks without layers of the body divide those in front or behind
            low, high = sum(c <= first for c in cuts), sum(c >= last for c in cuts)
            if math.comb(first, low) * math.comb(len(chain) - last, high) > MOST_WAYS:
                return
            inner = [c for c in cuts if first < c < last]
            found.update((0, *front, *inner, *behind, len(chain))
                         for front in combinations(range(1, first + 1), low)
                         for behind in combinations(range(last, len(chain)), high))

    each, more = divmod(layers, parts)
    larger = [each + 1] * more + [each] * (parts - more)
    add(larger, first)
    add(larger[::-1], first)
    each, more = divmod(len(chain), parts)
    add([each + 1] * more + [each] * (parts - more), 0, whole=True)
    if parts > 2 and not even:
        for each in range(1, (layers - 2) // (parts - 2) + 1):
            ends = layers - (parts - 2) * each
            for head in range(1, ends):
                add([head, *[each] * (parts - 2), ends - head], first)
    rows = [cuts for cuts in found if all(a < b for a, b in pairwise(cuts))]
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, parts + 1)
