"""Cuts that pipelines of alike stages may have: any, or those of a list, the lightest first.

They follow from the chain, its job's stack and the pipelines: no price counts here.

Shapes: Q pipelines, N layers, W layouts; others as in ``nest.search.problems``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nest.costs.schedules import SCHEDULES as COSTS
from nest.costs.schedules import Path
from nest.forms.orders import warm_up
from nest.graph import Chain
from nest.graph.layouts import family
from nest.graph.schedules import is_folded, position
from nest.search.runnable import Pipeline, Runnable
from nest.search.signatures import Signatures
from nest.stacks.figures import cut_forms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
LOOPS = ("interleaved", "combined")
"""Those whose forwards before the first backward are those of interleaved 1F1B."""
UNLIKE = ("1f1b", "gpipe")
"""Schedules of stages that may differ; alike ones may be cut anywhere."""
HELD = {"mtp_chunks": "mtp", "vision_chunks": "vision"}
"""Figures of the cuts by the kind of layer that they count."""
LONGEST = 200
"""Layers of a chain up to which the family of cuts is listed; longer ones have even chunks."""
MOST_KINDS = 16
"""Kinds of layers up to which three stages of a layout are looked at first."""
SEEN = 3, 5
"""Stages of a layout that ``Pipelines.seen`` has, and figures of each."""


class Layouts:
    """What cuts the pipelines of a search may have, found when a pipeline is first looked at.

    Parameters
    ----------
    listed : pipelines.
    runnable : what the stack can run.
    own : the space is that of the stack.

    Attributes
    ----------
    free : bool (N+1,) where a pipeline may be cut, by its number, where it may be cut freely.
    first, last : int64 (Q,) its layouts otherwise.
    longest : int64 (Q,) most layers of a chunk that recompute applies to.
    """

    def __init__(
        self, chain: Chain, listed: Sequence[Pipeline], runnable: Runnable, own: bool,
        signatures: Signatures,
    ) -> None:
        self.chain, self.listed, self.own, self.signatures = chain, listed, own, signatures
        self._rules = runnable.about_cuts
        self._order: Ints = np.array(chain.order, dtype=np.int64)
        self._marked: Ints = np.cumsum(
            [0, *(chain.kinds[kind].checkpointed for kind in chain.order)])
        self._lock = Lock()
        self.free: dict[int, Bools] = {}
        self.first = np.full(len(listed), -1)
        self.last = np.full(len(listed), -1)
        self.longest = np.full(len(listed), signatures.longest + 1)
        self.count = 0
        self._stages = SEEN[0] if len(chain.kinds) <= MOST_KINDS else 0
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        none: Ints = np.zeros(0, dtype=np.int64)
        self._known: tuple[Ints, Ints, Floats, Ints] = (
            none, none, np.zeros((0, self._stages, SEEN[1], len(chain.kinds))), none)

    def of(self, chosen: Ints) -> tuple[Ints, Ints, Floats, Ints]:
        """Where each layout begins, its load, what is seen of it, and the cuts of all of them.

        Those of the pipelines ``chosen``, by number, are among them.
        """
        with self._lock:
            for k in chosen.tolist():
                self._add(k)
            return self._arrays()

    def _add(self, k: int) -> None:
        """Note what cuts a pipeline may have."""
        if k in self.free or self.first[k] >= 0:
            return
        chain, pipeline = self.chain, self.listed[k]
        rules = self._rules(pipeline)
        forms = set.intersection({"free"}, *map(set, rules["cuts"])) if rules["cuts"] else {"free"}
        if forms and pipeline.schedule in UNLIKE:
            cut = np.ones(len(chain) + 1, dtype=np.bool_)
            for name, start in HELD.items():
                if any(2 not in allowed for allowed in rules[name]):
                    cut[self._held(start)[1:]] = False
            self.free[k] = cut
            return
        found = self._listed(pipeline, bool(forms), rules)
        # The lightest of the heaviest stages first.
        load: Ints = _layers(chain, found)[:, _positions(pipeline)].sum(axis=2).max(axis=1)
        seen, seconds = self._seen(found, pipeline)
        order = np.lexsort((seconds, load))
        found, load, seen = found[order], load[order], seen[order]
        marked = self._marked
        self.longest[k] = np.diff(marked[found], axis=1).max(initial=0)
        self.first[k], self.last[k] = self.count, self.count + len(found)
        self.count += len(found)
        self._parts.append((found, load, seen))

    def _seen(self, found: Ints, pipeline: Pipeline) -> tuple[Floats, Floats]:
        """``Pipelines.seen`` of layouts; (W,) about how long each takes, in layers of the body."""
        chain, (schedule, p, v) = self.chain, pipeline
        loops = schedule in LOOPS and p > 1
        # Each stage's own layers, and those of the forwards before its first backward.
        sums = np.array([[np.ones(v), _forwards(schedule, s, p, v)] for s in range(p)])
        places = _positions(pipeline)
        layers = _layers(chain, found)[:, places]
        own, ran = np.moveaxis((sums @ layers[:, :, :, None].astype(float))[:, :, :, 0], 2, 0)
        start = np.clip(found[:, :p], *chain.body) - chain.body[0]
        # A forward takes 1, a backward 2, for many micro-batches.
        seconds = 12 * p * own + 2 * start + (-ran if loops else start)
        if not self._stages:
            return (np.zeros((len(found), 0, SEEN[1], len(chain.kinds))), seconds.max(axis=1))
        stages = np.zeros((len(found), SEEN[0]), dtype=np.int64)
        stages[:, 0] = (own * 12 * p * len(chain) + seconds).argmax(axis=1)
        stages[:, 2] = p - 1

        # A single stage has no copies of tied embeddings.
        order = self._order if p > 1 else self.signatures.whole_kinds
        kinds = np.eye(len(chain.kinds))[np.array(order)]
        front = np.concatenate([np.zeros((1, len(chain.kinds))), np.cumsum(kinds, axis=0)])
        at = places[stages]
        rows = np.arange(len(found))[:, None, None]
        begin, end = front[found[rows, at]], front[found[rows, at + 1]]
        held, kept = np.moveaxis(sums[stages] @ (end - begin), 2, 0)
        first, behind = begin[:, :, 0], front[-1] - end[:, :, -1]
        there = (front[-1] - kept, behind) if loops else (first, 0.0 * first)
        # Behind the last backward for weights no other needs to follow.
        after = 0.0 * first if is_split(schedule) else first
        return np.stack([held, *there, after, kept], axis=2), seconds.max(axis=1)

    def _arrays(self) -> tuple[Ints, Ints, Floats, Ints]:
        """Where each layout begins, its load, what is seen of it, and the cuts of all of them."""
        if self._parts:
            begin, load, seen, layouts = self._known
            parts, loads, sights = zip(*self._parts, strict=True)
            sizes = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
            self._known = (
                np.concatenate([begin, len(layouts) + np.cumsum(sizes) - sizes]),
                np.concatenate([load, *loads]), np.concatenate([seen, *sights]),
                np.concatenate([layouts, *(part.ravel() for part in parts)]))
            self._parts = []
        return self._known

    def _held(self, start: str) -> list[int]:
        """Layers of a kind whose name begins so; they follow each other."""
        chain = self.chain
        return [n for n, kind in enumerate(chain.order) if chain.kinds[kind].name.startswith(start)]

    def _listed(self, pipeline: Pipeline, free: bool, rules: dict[str, list[Any]]) -> Ints:
        """(W, pp x vpp + 1) cuts that a pipeline may have: of a family, or of the forms by name."""
        chain, (pp, vpp) = self.chain, pipeline[1:]
        if len(chain) > LONGEST:
            found = _by_form(chain, pp * vpp, even=True)
        else:
            found = family(chain, pp, vpp) if free else _by_form(chain, pp * vpp)
        if not self.own:  # chunks that are as large as each other, but for the ends
            layers = _layers(chain, found)
            found = found[(layers == layers[:, :1]).all(axis=1)]
        for name, start in HELD.items():
            held = self._held(start)
            if held:
                inside = ((found > held[0]) & (found <= held[-1])).sum(axis=1) + 1
                for allowed in rules[name]:
                    found = found[[count in allowed for count in inside.tolist()]]
        if not free:
            whole = np.diff(found, axis=1).tolist()
            found = found[[
                all(cut_forms(own, every) & {*allowed} for allowed in rules["cuts"])
                for own, every in zip(_layers(chain, found).tolist(), whole, strict=True)]]
        return found


def is_split(schedule: str) -> bool:
    """Whether its backwards are in two parts."""
    found = COSTS[schedule]
    return isinstance(found, Path) and found.split


def _positions(pipeline: Pipeline) -> Ints:
    """(p, v) places in the model of the chunks of each stage."""
    schedule, p, v = pipeline
    return np.array([[position(schedule, p, s, n, v) for n in range(v)] for s in range(p)])


def _forwards(schedule: str, s: int, p: int, v: int) -> list[int]:
    """Forwards of each chunk that a stage has begun when its first backward comes.

    Of 2 p micro-batches or more, in groups of p.
    """
    if schedule in UNLIKE or p == 1:
        return [1] * v
    if schedule == "looped-bfs":
        return [2 * p] * v
    if is_folded(schedule):
        return [2 * p - 1 - s, s + 1]
    slope = 2 if schedule in LOOPS else 1
    cycles, rest = divmod(warm_up(s, p, v, 2 * p, p, slope, 0) + 1, p * v)
    return [cycles * p + min(p, max(0, rest - d * p)) for d in range(v)]


def _layers(chain: Chain, cuts: Ints) -> Ints:
    """Layers of the body in each chunk; (W, chunks)."""
    ends = np.clip(cuts, *chain.body)
    return ends[:, 1:] - ends[:, :-1]


def _by_form(chain: Chain, parts: int, even: bool = False) -> Ints:
    """Cuts of the forms of ``nest.describe.capabilities.CUTS``; (W, parts + 1), each once.

    ``even``: only those of chunks that differ by a layer at the most.
    """
    first, last = chain.body
    layers, found = last - first, set()

    def add(sizes: list[int], start: int) -> None:
        cuts = [start + sum(sizes[:n]) for n in range(1, parts)]
        found.add((0, *cuts, len(chain)))

    each, more = divmod(layers, parts)
    larger = [each + 1] * more + [each] * (parts - more)
    add(larger, first)
    add(larger[::-1], first)
    each, more = divmod(len(chain), parts)
    add([each + 1] * more + [each] * (parts - more), 0)
    if parts > 2 and not even:
        for each in range(1, (layers - 2) // (parts - 2) + 1):
            ends = layers - (parts - 2) * each
            for head in range(1, ends):
                add([head, *[each] * (parts - 2), ends - head], first)
    rows = [cuts for cuts in found if all(a < b for a, b in pairwise(cuts))]
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, parts + 1)
