"""What no pipeline of alike stages takes less than: its seconds and bytes in all layers together.

Proofs: ``docs/proofs.md``, "Alike stages".

Shapes: C candidates, U bodies, V states, Z ways of ZeRO, R recompute policies, T layer kinds, Q
pipelines; X = R + 1 choices of recompute: the policies, then full recompute of first layers alone.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL
from nest.costs.distinct import distinct_rows
from nest.forms.chunk import STATE_RESIDENT, STATE_SLOWED
from nest.graph.schedules import most_zero
from nest.search.distinct import least_of
from nest.search.runnable import FIRST, POLICY, ROW, WAY
from nest.search.tensors import Builder

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Shapes(NamedTuple):
    """Pipelines, as far as bounds of all layers together know them; arrays (Q,)."""

    pp: Ints
    warm: Floats
    """See ``nest.search.problems.Pipelines.warm``."""
    together: Bools
    """Passes run beside each other."""
    legal: Bools


class Questions(NamedTuple):
    """Degrees, way of ZeRO and recompute that some pipeline may have under an outer choice, n of
    them, in ascending order of their codes."""

    code: Ints
    """(n,) (candidate x Z + way) x X + choice of recompute."""
    floor: Floats
    """(n,) no pipeline takes less."""
    seconds: Floats
    """(n,) of a micro-batch in all layers."""
    less: Floats
    """(n,) the same where passes run beside each other."""
    least: Ints
    """(n,) stages that hold all layers, at the least."""
    most: Ints
    """(n,) stages that there is room for."""

    def of_pipelines(self, shapes: Shapes) -> Floats:
        """(Q,) least seconds of a step of each pipeline; inf: it cannot be run."""
        deepest = int(shapes.pp.max(initial=0))
        found = np.empty((2, deepest + 2, deepest + 2))
        found[:] = np.inf
        at = np.minimum(self.least, deepest + 1), np.minimum(self.most, deepest + 1)
        for way, seconds in enumerate((self.seconds, self.less)):
            np.minimum.at(found[way], at, seconds)
        np.minimum.accumulate(found, axis=1, out=found)
        found = np.minimum.accumulate(found[:, :, ::-1], axis=2)[:, :, ::-1]
        seconds = found[shapes.together.astype(np.int64), shapes.pp, shapes.pp]
        return np.where(shapes.legal, seconds * shapes.warm, np.inf)


class Totals:
    """Sums over all layers of a builder, each layer at its least, wherever it is."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        order, whole = builder.order, np.array(builder.signatures.whole_kinds, dtype=np.int64)
        kinds = len(builder.chain.kinds)
        pairs, self._counts = np.unique(order * kinds + whole, return_counts=True)
        self._first, self._second = pairs // kinds, pairs % kinds
        self._whole = [{name: self._summed(one) for name, one in {id(x): x for x in part}.items()}
                       for part in self._by_kind]
        first = [n for n, bits in enumerate(builder.policies) if bits == FULL]
        self._full = first[0] if first and builder.first_layers.any() else -1

    @property
    def choices(self) -> int:
        """X."""
        return len(self.builder.policies) + (self._full >= 0)

    @cached_property
    def _by_kind(self) -> tuple[list[Floats], list[Floats]]:
        """Seconds and bytes of a layer of each kind: what bodies add, (U, R, T), and what states
        do, (V, Z, T). Of bodies also what passes beside each other may hide, and what hides it,
        forward and backward: at the most, as less than 0."""
        prices = self.builder.prices
        ahead, back, state, apart = prices.ahead, prices.back, prices.state, prices.apart
        own, slower = [ahead[:, None, :, 1] + back[..., 1], back[..., 2]], state[..., STATE_SLOWED:]
        if len(apart):
            free = np.stack([0.0 * back[..., 0] + ahead[:, None, :, 0], back[..., 0]])
            own += [-apart[..., 0], -apart[..., 1], *(-free * (apart[..., 0] > 0.0))]
        return own, [slower.sum(axis=3), state[..., STATE_RESIDENT]]

    def _summed(self, figures: Floats) -> Floats:
        """Sums over all layers of figures by kind, the last axis."""
        first, second = self._first, self._second
        found: Floats
        if np.array_equal(first, second):
            found = figures @ np.bincount(first, self._counts, figures.shape[-1])
        else:
            found = np.minimum(figures[..., first], figures[..., second]) @ self._counts
        return found

    def _of(self, axis: int, number: Ints, same: Ints | None) -> list[Floats]:
        """(C, ...) sums of bodies or states, at the least of those of the ``same`` degrees."""
        found = []
        for figures in self._by_kind[axis]:
            if same is None:
                found.append(self._whole[axis][id(figures)][number])
                continue
            found.append(self._summed(least_of(figures[number], same)))
        return found

    def questions(self, number: int, shapes: Shapes, limit: float = math.inf) -> Questions:
        """What some pipeline may have that takes less than ``limit`` seconds."""
        builder = self.builder
        outer, span, rows = builder.outers[number], builder.span(number), builder.rows
        block, start = rows.block[span], rows.start[span]
        same = None
        if start.any():
            same = distinct_rows(block, rows.samples[span], rows.split[span], rows.pair[span])[1]
        body, state = builder.numbers(number)
        figures, slower = self._of(0, body, same), self._of(1, state, same)
        seconds, held = (own[:, None, :] + more[:, :, None] for own, more in zip(
            figures, slower, strict=False))
        less = seconds
        if len(figures) > 2:
            away, back, busy, back_busy = figures[2:]
            less = seconds + (np.maximum(away, back_busy) + np.maximum(back, busy))[:, None, :]
        if self._full >= 0:  # seconds without recompute, bytes with all of it
            seconds, less = (
                np.concatenate([x, x[:, :, :1]], axis=2) for x in (seconds, less))
            held = np.concatenate([held, held[:, :, self._full, None]], axis=2)
        deepest = int(shapes.pp.max(initial=0))
        least = np.ceil(held * (builder.copies * (1.0 - 1e-9) / max(builder.limit, 1.0))).clip(
            1, deepest + 1).astype(np.int64)
        most = np.minimum(outer.stride // block, deepest + 1)[:, None, None]
        floor = _least_warm(shapes, deepest, False)[least, most] * seconds
        if shapes.together.any():
            floor = np.minimum(floor, _least_warm(shapes, deepest, True)[least, most] * less)
        kept = np.flatnonzero((floor < limit) & self._legal(number))
        row = kept // (floor.shape[1] * floor.shape[2])
        floor, seconds, less = (x.reshape(-1)[kept] for x in (floor, seconds, less))
        return Questions(kept, floor, seconds, less, least.reshape(-1)[kept], most[row, 0, 0])

    @cached_property
    def _zeros(self) -> Bools:
        """(Z,) ways of ZeRO that the schedule of some pipeline may have."""
        names = {one.schedule for one in self.builder.pipelines}
        most = max(map(most_zero, names), default=0)
        return np.array([zero <= most for zero, _ in self.builder.zeros], dtype=np.bool_)

    def _legal(self, number: int) -> Bools:
        """(C, Z, X) what the rules of the stack about two of them allow."""
        builder = self.builder
        allow, span = builder.runnable.allow, builder.span(number)
        row_policy, way_policy = allow(ROW, POLICY, span), allow(WAY, POLICY)
        way_policy &= allow(POLICY, FIRST)[:, 0]
        if self._full >= 0:
            row_policy, way_policy = (np.concatenate([mask, mask[:, self._full, None]], axis=1)
                                      for mask in (row_policy, way_policy))
        way_policy[:, 0] &= builder.space.allows("recompute", "none")
        way_policy &= self._zeros[:, None]
        found: Bools = (allow(ROW, WAY, span) & builder.divided(number))[:, :, None]
        return found & row_policy[:, None, :] & way_policy


def _least_warm(shapes: Shapes, deepest: int, together: bool) -> Floats:
    """Least ``warm`` of legal pipelines of so many stages: from .. to .., both included; inf: none.

    Passes run ``together`` or do not.
    """
    by_stages = np.full(deepest + 2, np.inf)
    of = shapes.legal & (shapes.together == together)
    np.minimum.at(by_stages, shapes.pp[of], shapes.warm[of])
    each = np.arange(deepest + 2)
    found = np.where(each[:, None] <= each, by_stages, np.inf)
    return np.minimum.accumulate(found, axis=1)
