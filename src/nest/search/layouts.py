"""Cuts that pipelines of alike stages may have: any, or those of a list, the lightest first.

They follow from the chain, its job's stack and the pipelines: no price counts here.

Shapes: Q pipelines, N layers, W layouts; others as in ``nest.search.problems``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.schedules import SCHEDULES as COSTS
from nest.costs.schedules import Path
from nest.graph import Chain
from nest.graph.layouts import family
from nest.graph.schedules import copies, placement, position
from nest.search.runnable import Pipeline, Runnable
from nest.search.signatures import Signatures
from nest.stacks.figures import cut_forms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Counts = NDArray[np.int16]
Bools = NDArray[np.bool_]
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


class Listed(NamedTuple):
    """Layouts; see the fields of :class:`nest.search.problems.Pipelines`."""

    begin: Ints
    load: Ints
    heaviest: Ints
    run: Ints
    seen: Counts
    until: Ints
    least_seen: Counts
    layouts: Ints


class Layouts:
    """What cuts the pipelines of a search may have, found when a pipeline is first looked at.

    Parameters
    ----------
    listed : pipelines.
    runnable : what the stack can run of them; it knows no candidates.
    own : the space is that of the stack.

    Attributes
    ----------
    free : bool (N+1,) where a pipeline may be cut, by its number, where it may be cut freely.
    first, last : int64 (Q,) its layouts otherwise.
    longest : int64 (Q,) most layers of a chunk that recompute applies to.
    widest : int64 (Q,) most layers of the body in a chunk, where layouts are listed.
    """

    def __init__(
        self, chain: Chain, listed: Sequence[Pipeline], runnable: Runnable, own: bool,
        signatures: Signatures,
    ) -> None:
        self.chain, self.listed, self.own, self.signatures = chain, listed, own, signatures
        self._runnable = runnable
        self._order: Ints = np.array(chain.order, dtype=np.int64)
        self._marked: Ints = np.cumsum(
            [0, *(chain.kinds[kind].checkpointed for kind in chain.order)])
        self._held = {name: [n for n, kind in enumerate(chain.order)
                             if chain.kinds[kind].name.startswith(start)]
                      for name, start in HELD.items()}
        """Layers of the kinds of ``HELD``; those of one follow each other."""
        self._lock = Lock()
        self.free: dict[int, Bools] = {}
        self.first = np.full(len(listed), -1)
        self.last = np.full(len(listed), -1)
        self.longest = np.full(len(listed), signatures.longest + 1)
        self.widest = np.zeros(len(listed), dtype=np.int64)
        self.count = self._runs = 0
        self._alike: dict[Any, int] = {}
        """Number of a pipeline by what its layouts follow from."""
        self._stages = SEEN[0] if len(chain.kinds) <= MOST_KINDS else 0
        self._parts: list[tuple[Any, ...]] = []
        kinds = np.eye(len(chain.kinds), dtype=np.int16)
        self._front = [np.pad(kinds[order].T, ((0, 0), (1, 0))).cumsum(axis=1, dtype=np.int16)
                       for order in (self._order, [*signatures.whole_kinds])]
        """(T, N+1) layers by kind in front of each cut: as they are, and where a stage holds all
        that share a table of the vocabulary, once."""
        none: Ints = np.zeros(0, dtype=np.int64)
        nothing = np.zeros((0, self._stages, SEEN[1], len(chain.kinds)), dtype=np.int16)
        self._known = Listed(none, none, none, none, nothing, none, nothing, none)
        self._room: list[Any] = [*self._known]
        """Arrays that begin with those of ``_known``."""

    @property
    def extent(self) -> tuple[int, int]:
        """Grows when what is known does."""
        return self.count, self._runnable.count

    @property
    def runnable(self) -> Runnable:
        """A copy, which may learn of candidates."""
        return self._runnable.copy()

    def of(self, chosen: Ints) -> Listed:
        """Layouts, those of the pipelines ``chosen``, by number, among them."""
        with self._lock:
            for k in chosen.tolist():
                self._add(k)
            return self._arrays()

    def _add(self, k: int) -> None:
        """Note what cuts a pipeline may have."""
        if k in self.free or self.first[k] >= 0:
            return
        chain, pipeline = self.chain, self.listed[k]
        rules = self._runnable.about_cuts(pipeline)
        forms = set.intersection({"free"}, *map(set, rules["cuts"])) if rules["cuts"] else {"free"}
        if forms and pipeline.schedule in UNLIKE:
            cut = np.ones(len(chain) + 1, dtype=np.bool_)
            for name, held in self._held.items():
                if any(2 not in allowed for allowed in rules[name]):
                    cut[held[1:]] = False
            self.free[k] = cut
            return
        key = placement(pipeline.schedule), pipeline.pp, pipeline.vpp, bool(forms), repr(rules)
        same = self._alike.setdefault(key, k)
        if same == k:
            found = self._listed(pipeline, bool(forms), rules)
            self.longest[k] = np.diff(self._marked[found], axis=1).max(initial=0)
            self.widest[k] = body_layers(chain, found).max(initial=0)
            self.first[k], self.last[k] = self.count, self.count + len(found)
            if len(found):
                self._sort(found, pipeline)
        for one in (self.first, self.last, self.longest, self.widest):
            one[k] = one[same]

    def _sort(self, found: Ints, pipeline: Pipeline) -> None:
        """Add layouts, the lightest of the heaviest stages first, in runs (``Pipelines.run``)."""
        load, heaviest, seconds, seen = self._seen(found, pipeline)
        own = seen[:, :1, :3].reshape(len(found), -1)
        stage = _same(np.column_stack([heaviest, own]))
        least = np.full(len(found), np.iinfo(np.int64).max)
        np.minimum.at(least, stage, seconds)
        order = np.lexsort((seconds, stage, least[stage], load))
        begin = np.flatnonzero(np.diff(stage[order], prepend=-1))
        until = np.append(begin[1:], len(found))
        self._parts.append((
            found[order], load[order], heaviest[order],
            np.repeat(self._runs + np.arange(len(begin)), until - begin), seen[order],
            self.count + until, np.minimum.reduceat(seen[order], begin, axis=0)))
        self.count, self._runs = self.count + len(found), self._runs + len(begin)

    def _seen(self, found: Ints, pipeline: Pipeline) -> tuple[Ints, Ints, Ints, Counts]:
        """Of layouts ``load``, ``heaviest`` and ``seen`` of ``Pipelines``; before the last (W,)
        about how long each takes, in thirds of a layer of the body."""
        chain, p, places = self.chain, pipeline.pp, _positions(pipeline)
        short: Counts = found.astype(np.int16)
        own: Ints = body_layers(chain, short)[:, places].sum(axis=2)
        # A forward takes 1, a backward 2, for many micro-batches.
        seconds: Ints = 12 * p * own + 3 * (np.clip(short[:, :p], *chain.body) - chain.body[0])
        heaviest: Ints = (own * 12 * p * len(chain) + seconds).argmax(axis=1)
        seen = np.zeros((len(found), self._stages, SEEN[1], len(chain.kinds)), dtype=np.int16)
        once = p == 1 or copies(pipeline.schedule) > 1
        front, rows = self._front[int(once)], np.arange(len(found))[:, None]
        for n, at in enumerate((places[heaviest], places[0], places[p - 1])[:self._stages]):
            begin, end = (front.take(found[rows, at + x] if n == 0 else found[:, at + x], axis=1)
                          for x in (0, 1))
            chunks = end - begin
            last = chunks[:, :, -1] if pipeline.vpp > 1 else 0
            for x, layers in enumerate((
                    chunks.sum(axis=2, dtype=np.int16) - last, chunks[:, :, 0], last,
                    begin[:, :, 0], front[:, -1:] - end[:, :, -1])):
                seen[:, n, x] = layers.T if x != 2 or pipeline.vpp > 1 else 0
        return own.max(axis=1), heaviest, seconds.max(axis=1), seen

    def _arrays(self) -> Listed:
        """All layouts that are known."""
        if self._parts:
            known: Any = self._known
            columns: list[Any] = [*zip(*self._parts, strict=True)]
            parts, rest = columns[0], columns[1:]
            sizes = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
            begin = len(known.layouts) + np.cumsum(sizes) - sizes
            more = [[begin], *rest, [part.ravel() for part in parts]]
            # Of what is known nothing is moved: a kernel may be reading it.
            self._room = [_extended(room, len(old), new)
                          for room, old, new in zip(self._room, known, more, strict=True)]
            self._known = Listed(*(
                room[:len(old) + sum(map(len, new))]
                for room, old, new in zip(self._room, known, more, strict=True)))
            self._parts = []
        return self._known

    def _listed(self, pipeline: Pipeline, free: bool, rules: dict[str, list[Any]]) -> Ints:
        """(W, parts + 1) cuts that a pipeline may have: of a family, or of the forms by name."""
        chain, pp, twice = self.chain, pipeline.pp, copies(pipeline.schedule) > 1
        vpp = 1 if twice else pipeline.vpp
        if len(chain) > LONGEST or (twice and not self.own):
            found = _by_form(chain, pp * vpp, even=True)
        else:
            found = family(chain, pp, vpp) if free else _by_form(chain, pp * vpp)
        if twice:  # what shares a table of the vocabulary is on the stages of both ends
            for n, kind in enumerate(chain.order):
                if chain.kinds[kind].tied_parameters:
                    found = found[(found[:, 1] > n) | (found[:, -2] <= n)]
        elif not self.own:  # chunks that are as large as each other, but for the ends
            layers = body_layers(chain, found)
            found = found[(layers == layers[:, :1]).all(axis=1)]
        for name, held in self._held.items():
            if held:
                inside = ((found > held[0]) & (found <= held[-1])).sum(axis=1) + 1
                legal = [count for count in np.unique(inside).tolist()
                         if all(count in allowed for allowed in rules[name])]
                found = found[np.isin(inside, legal)]
        if not free:
            whole = np.diff(found, axis=1).tolist()
            found = found[[
                all(cut_forms(own, every) & {*allowed} for allowed in rules["cuts"])
                for own, every in zip(body_layers(chain, found).tolist(), whole, strict=True)]]
        return found


def _same(rows: Ints) -> Ints:
    """A number for each row, equal where rows are; (W,)."""
    each = np.ascontiguousarray(rows, dtype=np.int16)
    found: Ints = np.unique(each.view(f"V{2 * each.shape[1]}")[:, 0], return_inverse=True)[1]
    return found


def _extended(room: Any, used: int, more: Sequence[Any]) -> Any:
    """An array with ``more`` behind the rows of ``room`` that are used: itself, or one that is
    twice as large as it must be, so that growing seldom copies."""
    size = used + sum(map(len, more))
    if size > len(room):
        larger = np.empty((2 * size, *room.shape[1:]), dtype=room.dtype)
        larger[:used] = room[:used]
        room = larger
    np.concatenate(more, out=room[used:size])
    return room


def is_split(schedule: str) -> bool:
    """Whether its backwards are in two parts."""
    found = COSTS[schedule]
    return isinstance(found, Path) and found.split


def _positions(pipeline: Pipeline) -> Ints:
    """(p, v) places in the model of the chunks of each stage."""
    schedule, p, v = pipeline[:3]
    return np.array([[position(schedule, p, s, n, v) for n in range(v)] for s in range(p)])


def body_layers(chain: Chain, cuts: Any) -> Any:
    """Layers of the body in each chunk; (W, chunks)."""
    ends = np.clip(cuts, *chain.body)
    return ends[:, 1:] - ends[:, :-1]


def _by_form(chain: Chain, parts: int, even: bool = False) -> Ints:
    """Cuts of the forms of ``nest.describe.capabilities.CUTS``; (W, parts + 1), each once.

    ``even``: only those of chunks that differ by a layer at the most.
    """
    first, last = chain.body
    layers, found = last - first, set()

    def add(sizes: list[int], start: int, whole: bool = False) -> None:
        cuts = [start + sum(sizes[:n]) for n in range(1, parts)]
        found.add((0, *cuts, len(chain)))
        if not whole:  # chunks without layers of the body divide those in front or behind
            low, high = sum(c <= first for c in cuts), sum(c >= last for c in cuts)
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
