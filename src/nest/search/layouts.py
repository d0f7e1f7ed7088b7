"""Cuts that pipelines of alike stages may have: any, or those of a list, the lightest first.

They follow from the chain, its job's stack and the pipelines: no price counts here.

Shapes: Q pipelines, N layers, W layouts; others as in ``nest.records.problems``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.model import Chain
from nest.schedules.registry import UNLIKE
from nest.search.columns import Columns
from nest.search.cut_lists import SEEN, CutLists, is_free
from nest.search.runnable import Pipeline, Runnable

Ints = NDArray[np.int64]
Counts = NDArray[np.int16]
Bools = NDArray[np.bool_]


class Listed(NamedTuple):
    """Layouts; see the fields of :class:`nest.records.problems.Pipelines`."""

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
    lists : of the chain; other pipelines may have filled them.
    longest : more layers than any stage has that recompute applies to.

    Attributes
    ----------
    free : bool (N+1,) where a pipeline may be cut, by its number, where it may be cut freely.
    first, last : int64 (Q,) its layouts otherwise.
    mark : equal to itself alone: what names layouts by number holds for these.
    shapes : of the pipelines under an outer choice, by what of it they depend on.
    nothing : no layouts.
    longest : int64 (Q,) most layers of a chunk that recompute applies to.
    widest : int64 (Q,) most layers of the body in a chunk, where layouts are listed.
    """

    def __init__(
        self, chain: Chain, listed: Sequence[Pipeline], runnable: Runnable, own: bool,
        lists: CutLists, longest: int,
    ) -> None:
        self.chain, self.listed, self.own, self._lists = chain, listed, own, lists
        self.runnable = runnable
        self._lock = Lock()
        self.mark = object()
        self.shapes: dict[Hashable, Any] = {}
        self.free: dict[int, Bools] = {}
        self.first = np.full(len(listed), -1)
        self.last = np.full(len(listed), -1)
        self.longest = np.full(len(listed), longest)
        self.widest = np.zeros(len(listed), dtype=np.int64)
        self.count = self._runs = 0
        self._same: dict[int, int] = {}
        """Number of a pipeline by the list of its layouts."""
        self._parts: list[tuple[Any, ...]] = []
        self._cuts: list[Ints] = []
        """Of all layouts, where rules have figures of them."""
        none: Ints = np.zeros(0, dtype=np.int64)
        nothing = np.zeros((0, lists.stages, SEEN[1], len(chain.kinds)), dtype=np.int16)
        self.nothing = self._known = Listed(
            none, none, none, none, nothing, none, nothing, none)
        self._room: list[Any] = [*self._known]
        """Arrays that begin with those of ``_known``."""

    @property
    def extent(self) -> tuple[int, int, int]:
        """Grows when what is known does."""
        return self.count, self.runnable.count, len(self.shapes)

    def of(self, chosen: Ints) -> Listed:
        """Layouts, those of the pipelines ``chosen``, by number, among them."""
        with self._lock:
            for k in chosen.tolist():
                self._add(k)
            return self._arrays()

    @property
    def figures(self) -> Columns:
        """Figures of all layouts that are known, where rules have any; of one where none is."""
        if not self.runnable.asks_layouts:
            return {}
        with self._lock:
            return self._lists.figures(self._cuts or [np.array([[0, len(self.chain)]])])

    def _add(self, k: int) -> None:
        """Note what cuts a pipeline may have."""
        if k in self.free or self.first[k] >= 0:
            return
        chain, pipeline = self.chain, self.listed[k]
        rules = self.runnable.about_cuts(pipeline)
        listed = self.runnable.lists(pipeline) or not all(
            0 in allowed for allowed in rules["empty_chunks"])  # where it is cut freely, none is
        if is_free(rules) and pipeline.schedule in UNLIKE and not listed:
            cut = np.ones(len(chain) + 1, dtype=np.bool_)
            for name, held in self._lists.held.items():
                if any(2 not in allowed for allowed in rules[name]):
                    cut[held[1:]] = False
            self.free[k] = cut
            return
        found = self._lists.of(pipeline, self.own, rules)
        same = self._same.setdefault(id(found), k)
        if same == k:
            self.longest[k], self.widest[k] = found.longest, found.widest
            self.first[k], self.last[k] = self.count, self.count + len(found.cuts)
            if self.runnable.asks_layouts:
                self._cuts.append(found.cuts)
            self._parts.append((
                found.cuts, found.load, found.heaviest, self._runs + found.run, found.seen,
                self.count + found.until, found.least_seen))
            self.count, self._runs = self.count + len(found.cuts), self._runs + len(found.until)
        for one in (self.first, self.last, self.longest, self.widest):
            one[k] = one[same]

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
