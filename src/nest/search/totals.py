"""What no pipeline of alike stages takes less than: its seconds and bytes in all layers together.

Proofs: docs/proofs.md, Lemma 30 (floor of a question) and Lemma 31 (stages that memory needs).

Shapes: C candidates, U bodies, V states, Z ways of ZeRO, R recompute policies, T layer kinds, Q
pipelines; X = R + 1 choices of recompute: the policies, then full recompute of first layers alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL
from nest.costs.distinct import least_of
from nest.records.problems import Sums
from nest.schedules.chunk import STATE_RESIDENT, STATE_SLOWED
from nest.schedules.registry import SCHEDULES, most_zero
from nest.search import compiled
from nest.search.columns import FIRST, POLICY, ROW, WAY
from nest.search.tensors import Formulation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Shapes:
    """Pipelines, as far as bounds of all layers together know them; arrays (Q,)."""

    pp: Ints
    warm: Floats
    """See ``warm`` of :class:`nest.records.Pipe`."""
    together: Bools
    """Passes run beside each other."""
    legal: Bools

    @cached_property
    def deepest(self) -> int:
        """Most stages of a pipeline."""
        return int(self.pp.max(initial=0))

    @cached_property
    def least_warm(self) -> Floats:
        """(2, D+2, D+2) least ``warm`` of legal pipelines whose passes run by themselves, or beside
        each other, and of so many stages: from .. to .., both included; inf: there is none."""
        return np.stack([self._least_warm(together) for together in (False, True)])

    def _least_warm(self, together: bool) -> Floats:
        by_stages = np.full(self.deepest + 2, np.inf)
        of = self.legal & (self.together == together)
        np.minimum.at(by_stages, self.pp[of], self.warm[of])
        each = np.arange(self.deepest + 2)
        found = np.where(each[:, None] <= each, by_stages, np.inf)
        return np.minimum.accumulate(found, axis=1)


class OpenChoices(NamedTuple):
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
        deepest = shapes.deepest
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
    """Sums over all layers of a formulation, each layer at its least, wherever it is."""

    def __init__(self, f: Formulation) -> None:
        self.formulation = f
        order, whole = f.choices.order, np.array(f.choices.signatures.whole_kinds, dtype=np.int64)
        kinds = len(f.query.chain.kinds)
        pairs, self._counts = np.unique(order * kinds + whole, return_counts=True)
        self._first, self._second = pairs // kinds, pairs % kinds
        used, self._numbers = zip(*(np.unique(numbers, return_inverse=True)
                                    for numbers in (f.listing.body, f.listing.state)), strict=True)
        figures = self._by_kind(*used)
        self._whole = [np.stack([self._summed(one) for one in part]) for part in figures]
        self._bytes = [part[1] for part in figures]
        self._figures = figures if f.listing.rows.start.any() else None  # they take much memory
        first = [n for n, bits in enumerate(f.choices.policies) if bits == FULL]
        self._full = first[0] if first and f.choices.first_layers.any() else -1
        policies = np.arange(len(f.choices.policies))
        self._fast = np.append(policies, policies[:1]) if self._full >= 0 else policies
        self._lean = np.append(policies, self._full) if self._full >= 0 else policies
        """(X,) see ``Sums``."""
        self._ask = compiled.load(("ask",))[0].ask
        self._legal = f.runnable.once("totals", self._allowed)

    @property
    def choices(self) -> int:
        """X."""
        return len(self.formulation.choices.policies) + (self._full >= 0)

    def _by_kind(self, body: Ints, held: Ints) -> tuple[list[Floats], list[Floats]]:
        """Seconds and bytes of a layer of each kind: what bodies add, (U, R, T), and what states
        do, (V, Z, T). Of bodies also what passes beside each other may hide, and what hides it,
        forward and backward: at the most, as less than 0."""
        prices = self.formulation.prices
        ahead, back, state = prices.ahead[body], prices.back[body], prices.state[held]
        apart = prices.apart[body] if len(prices.apart) else prices.apart
        own = [ahead[:, None, :, 1] + back[..., 1], np.ascontiguousarray(back[..., 2])]
        slower = state[..., STATE_SLOWED].sum(axis=3)
        if len(apart):
            free = np.stack([0.0 * back[..., 0] + ahead[:, None, :, 0], back[..., 0]])
            own += [-apart[..., 0], -apart[..., 1], *(-free * (apart[..., 0] > 0.0))]
        return own, [slower, np.ascontiguousarray(state[..., STATE_RESIDENT])]

    def _summed(self, figures: Floats) -> Floats:
        """Sums over all layers of figures by kind, the last axis."""
        first, second = self._first, self._second
        found: Floats
        if np.array_equal(first, second):
            found = figures @ np.bincount(first, self._counts, figures.shape[-1])
        else:
            found = np.minimum(figures[..., first], figures[..., second]) @ self._counts
        return found

    def _of(
        self, axis: int, number: Ints, alike: tuple[Ints, Ints] | None
    ) -> tuple[Ints, Floats, Floats]:
        """Numbers of bodies or states (C,); sums by number; bytes by number and kind. Each is the
        least of those ``alike`` in degrees, by the first ones and the number of each."""
        if alike is None or np.array_equal(number[alike[0]][alike[1]], number):
            return number, self._whole[axis], self._bytes[axis]  # places make no difference
        assert self._figures is not None
        least = [least_of(one[number], alike[1]) for one in self._figures[axis]]
        return np.arange(len(number)), np.stack([self._summed(one) for one in least]), least[1]

    def _sums(self, number: int, shapes: Shapes) -> Sums:
        """What the kernel gets of an outer choice."""
        f = self.formulation
        outer, span, rows = f.outers[number], f.span(number), f.listing.rows
        alike = rows.take(span).degrees() if rows.start[span].any() else None
        bodies, states = (numbers[span] for numbers in self._numbers)
        body, own, kept = self._of(0, bodies, alike)
        state, (slower, held), resident = self._of(1, states, alike)
        row_way, row_policy, way_policy = self._legal
        return Sums(
            own=own, slower=slower, held=held, kept=kept, resident=resident,
            first=self._first, second=self._second, counts=self._counts, body=body, state=state,
            most=np.minimum(outer.stride // rows.block[span], shapes.deepest + 1),
            fast=self._fast, lean=self._lean,
            row_way=row_way[span], row_policy=row_policy[span], way_policy=way_policy,
            warm=shapes.least_warm, deepest=shapes.deepest, copies=f.copies,
            micro_batches=1 if self._lean_orders else outer.micro_batches,
            limit_bytes=max(f.limit, 1.0))

    def questions(self, number: int, shapes: Shapes, limit: float = math.inf) -> OpenChoices:
        """What some pipeline may have that takes less than ``limit`` seconds."""
        sums = self._sums(number, shapes)
        most = len(sums.body) * sums.way_policy.size
        code, (stages, figures) = np.empty(most, np.int64), (
            np.empty((most, 2), np.int64), np.empty((most, 3)))
        count, _ = self._ask(sums, limit, code, figures, stages)
        return OpenChoices(code[:count].copy(), *figures[:count].T.copy(), *stages[:count].T.copy())

    def least(self, number: int, shapes: Shapes) -> float:
        """Least seconds that some pipeline may take; inf: there is none."""
        return float(self._ask(
            self._sums(number, shapes), math.inf, np.empty(0, np.int64), np.empty((0, 3)),
            np.empty((0, 2), np.int64))[1])

    @cached_property
    def _lean_orders(self) -> bool:
        """Whether stages may hold fewer micro-batches than under 1F1B: one at the least, whose
        activations of both chunks a stage holds when it turns round."""
        return any(SCHEDULES[one.schedule].lean for one in self.formulation.part.pipelines)

    @cached_property
    def _zeros(self) -> Bools:
        """(Z,) ways of ZeRO that the schedule of some pipeline may have."""
        names = {one.schedule for one in self.formulation.part.pipelines}
        most = max(map(most_zero, names), default=0)
        zeros = self.formulation.choices.zeros
        return np.array([zero <= most for zero, _ in zeros], dtype=np.bool_)

    def _allowed(self) -> tuple[Bools, Bools, Bools]:
        """What the rules of the stack about two of them allow of all outer choices; (C, Z), (C, X),
        (Z, X)."""
        f, allow = self.formulation, self.formulation.runnable.allow
        row_policy, way_policy = allow(ROW, POLICY), allow(WAY, POLICY).copy()
        policy_first = allow(POLICY, FIRST)
        if self._full >= 0:
            row_policy, way_policy = (np.concatenate([mask, mask[:, self._full, None]], axis=1)
                                      for mask in (row_policy, way_policy))
            way_policy[:, -1] &= policy_first[self._full, 1:].any()
        way_policy[:, :len(policy_first)] &= policy_first[:, 0]
        way_policy[:, :1] &= f.query.space.allows("recompute", "none")  # there may be no policy
        way_policy &= self._zeros[:, None]
        return allow(ROW, WAY) & f.divided, row_policy, way_policy
