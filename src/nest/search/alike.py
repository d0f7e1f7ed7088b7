"""Pipelines whose stages are alike: what the kernel gets of them, and the plans that it finds.

Shapes: Q pipelines, N layers, W layouts; others as in ``nest.records.problems``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL
from nest.inputs.capabilities import Capabilities
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.records import CANDIDATE, EXCHANGED, LINK, PARTS, PIPE, columns, rows_of
from nest.records.problems import Legal, Pipelines, Rings
from nest.records.tables import Degrees
from nest.schedules.path import Path
from nest.schedules.registry import (
    BEYOND,
    SCHEDULES,
    UNLIKE,
    chunk_counts,
    chunks_at,
    copies,
    is_folded,
    is_grouped,
    most_zero,
)
from nest.search.columns import FIRST, PIPELINE, POLICY, ROW, WAY, single
from nest.search.layer_prices import Map
from nest.search.runnable import TIMES, Pipeline, larger_groups
from nest.search.starts import BlockPlaces
from nest.search.tensors import Formulation
from nest.search.totals import OpenChoices, Shapes, Totals
from nest.stacks.figures import Value
from nest.stacks.rules import applies

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NUMBER = {name: number for number, name in enumerate(SCHEDULES)}
"""Of a schedule, for the kernels."""
MOST_CUTS = 300
"""Ways to cut one pipeline that are priced one by one at the most; labels find the best of more."""
SHARES = 8
"""Calls among which outer choices are shared, so that threads have about as much to do."""


def pipelines(
    chain: Chain, space: SearchSpace, devices: int, own: bool, rules: Capabilities | None = None
) -> list[Pipeline]:
    """Pipelines of alike stages of a space on so many devices, by stages, schedule and chunks.

    ``own``: the space is that of a stack, of these rules. Else stages under 1F1B and GPipe may
    differ, and are searched elsewhere.
    """
    first, last = chain.body
    found, larger = list[Pipeline](), larger_groups(rules)
    names: tuple[str, ...] = space.schedules
    if space.schedule is None:
        names = tuple(SCHEDULES) if own else (*names, *BEYOND)
    names = tuple(name for name in names if _may_run(name, chain))
    allowed = _stages_allowed(rules)
    # A single stage has the first schedule that it may. Passes may run beside each other, where the
    # stack knows that of pipelines.
    alone = [name for name in names if name in UNLIKE and allowed(name, 1)][:1]
    alone += [name for name in names if name == "combined"
              and any(allowed(name, pp) for pp in range(2, len(chain) + 1))]
    empty = own and _may_be_empty(rules)
    for pp in range(1, min(len(chain), devices) + 1):
        if not space.allows("pp", pp):
            continue
        for name in names if pp > 1 else alone:
            if not (own if name in UNLIKE else allowed(name, pp)):
                continue
            for vpp in chunk_counts(name, pp, (len(chain) + empty * -(-pp // 4)) // pp):
                if not space.allows("vpp", vpp) or not (
                        own or copies(name) > 1 or (last - first) % (pp * vpp) == 0):
                    continue
                if not is_grouped(name, vpp):
                    found.append(Pipeline(name, pp, vpp))
                elif space.group is not None:
                    found += [Pipeline(name, pp, vpp, group=n)
                              for n in space.group]
                else:
                    found += [Pipeline(name, pp, vpp, times)
                              for times in (TIMES if larger else TIMES[:1])]
    return sorted(found, key=lambda one: (one.times, one.group))  # larger groups seldom gain


def _given(listed: list[Pipeline], m: int) -> dict[str, NDArray[Any]]:
    """``given`` and ``given_from`` of :class:`nest.records.problems.Pipelines`."""
    codes, begin, at = [np.zeros(1, dtype=np.int8)], np.full(len(listed), -1, dtype=np.int64), 1
    for n, one in enumerate(listed):
        path = SCHEDULES[one.schedule]
        if isinstance(path, Path) and path.listed:
            codes.append(_codes(path, one.pp, m, one.vpp))
            begin[n], at = at, at + len(codes[-1])
    return {"given": np.concatenate(codes), "given_from": begin}


@lru_cache(maxsize=64)
def _codes(path: Path, pp: int, m: int, vpp: int) -> NDArray[np.int8]:
    return np.array(path.order(pp, m, vpp).codes, dtype=np.int8)


def _may_run(name: str, chain: Chain) -> bool:
    """Whether a schedule may be one that is searched of a model at all."""
    model = chain.model
    if name in UNLIKE:
        return True
    if not chain.is_chain or (is_folded(name) and model is not None and model.tied_embeddings):
        return False
    return name != "combined" or not (chain.experts is None or (
        model is not None and model.mtp_layers > 1))


def _stages_allowed(rules: Capabilities | None) -> Callable[[str, int], bool]:
    """Whether rules about schedules and stages alone allow a schedule with so many stages."""
    about = [] if rules is None else [
        rule for rule in single(rules.rules)
        if rule.allowed is not None and rule.fields[0] in ("schedule", "pp")
        and {*rule.when} <= {"schedule", "pp"}]

    def allowed(name: str, pp: int) -> bool:
        figures: dict[str, Value] = {"schedule": name, "pp": pp}
        return not any(applies(rule, figures) and figures[rule.fields[0]] not in rule.allowed
                       for rule in about)

    return allowed


def _may_be_empty(rules: Capabilities | None) -> bool:
    """Whether a stack with these rules may have chunks without layers."""
    return rules is None or all(
        rule.when or "empty_chunks" not in rule.fields or rule.allowed is None
        or rule.allowed.largest > 0
        for rule in rules.rules.values())


class AlikePlan(NamedTuple):
    """A plan as the kernel found it."""

    step_time: float
    pipeline: Pipeline
    option: int
    cuts: tuple[int, ...]
    """First layer of each chunk, in the order of the layers, and their number."""

    @property
    def chunks(self) -> list[tuple[tuple[int, int], ...]]:
        """Layers [i, j) of the chunks of each stage."""
        return chunks_at(self.cuts, self.pipeline.pp, self.pipeline.schedule)


class Alike:
    """Alike stages under the outer choices of a formulation."""

    def __init__(self, f: Formulation) -> None:
        self.formulation, self.listed = f, f.part.pipelines
        self._layouts, self._totals = f.layouts, Totals(f)
        self._done: dict[int, float] = {}
        """By outer choice the limit below which all listed cuts were searched."""
        listed = self.listed
        self._pp, self._vpp = np.array(
            [(one.pp, one.vpp) for one in listed], dtype=np.int64).reshape(-1, 2).T
        self._schedule = np.array([NUMBER[one.schedule] for one in listed])
        self._turns = self._vpp > 1
        names = [one.schedule for one in listed]
        self._split = np.array([SCHEDULES[name].split for name in names], dtype=np.bool_)
        self._combined = np.array([name == "combined" for name in names], dtype=np.bool_)
        self._together = self._combined | (f.copies > 1)
        self._fewest = self._pp * [
            SCHEDULES[name].rounds for name in names]
        """Micro-batches that a pipeline needs."""
        # What is legal whatever the stack.
        self._zero = np.array([most_zero(name) for name in names], dtype=np.int64)
        self.plain = False
        """Look at pipelines of one chunk a stage alone."""

    def solve(
        self, kernel: Any, number: int, limit: float, exact: bool, spread: bool
    ) -> tuple[list[AlikePlan], float, int]:
        """Best plan of each pipeline of an outer choice below ``limit`` seconds; what no plan that
        was left out takes less than; how many were priced. Without ``exact`` of free cuts only
        those with the least bound are priced."""
        f, rings = self.formulation, self.rings(number)
        chosen, arrays, legal = self.arrays(number, limit)
        if exact and not spread and limit <= self._done.get(number, 0.0):
            arrays.pipe["last"] = arrays.pipe["first"]  # listed cuts are priced
        else:
            self._done[number] = limit
        if f.copies > 1:
            rings, row = self._with_twins(rings, number, chosen)
            arrays.pipe["row"] = row
        arrays = arrays._replace(most=MOST_CUTS if exact else 0)
        best, option, cuts, priced, left = kernel(
            self.degrees(number), rings, arrays, legal, limit, spread)
        found = []
        for k in np.flatnonzero(best < np.inf).tolist():
            pipeline = self.listed[chosen[k]]
            parts = pipeline.pp * pipeline.vpp // f.copies
            found.append(AlikePlan(
                float(best[k]), pipeline, int(option[k]), tuple(cuts[k, : parts + 1].tolist())))
        return found, float(left), int(priced)

    def bounds(self, each_of: Map = map) -> Floats:
        """(outer choices,) least seconds of a step under each; inf: nothing fits."""
        found: Floats = self.formulation.bounds.copy()

        def fill(some: Ints) -> None:
            for number in some.tolist():
                found[number] = self._totals.least(number, self._shapes(number))

        list(each_of(fill, np.array_split(np.flatnonzero(found < np.inf), SHARES)))
        return found

    @property
    def choices(self) -> int:
        """Choices of recompute of a question; see :mod:`nest.search.totals`."""
        return self._totals.choices

    def asked(self, number: int, limit: float) -> OpenChoices:
        """Choices under an outer choice that may take less than ``limit``."""
        return self._totals.questions(number, self._shapes(number), limit)

    def _shapes(self, number: int) -> Shapes:
        """Pipelines under an outer choice."""
        outer, known = self.formulation.outers[number], self._layouts.shapes
        key = outer.micro_batches, outer.outer_dp, self.formulation.copies, self.plain
        if key not in known:
            known[key] = self._new_shapes(number)
        found: Shapes = known[key]
        return found

    def _new_shapes(self, number: int) -> Shapes:
        outer, runnable = self.formulation.outers[number], self.formulation.runnable
        m = outer.micro_batches
        legal = runnable.piped(outer) & (m >= self._fewest) & (runnable.groups(m) > 0)
        legal &= m % self.formulation.copies == 0
        if self.plain:
            legal &= ~self._turns
        return Shapes(self._pp, self._warm(m), self._together, legal)

    def _warm(self, m: int) -> Any:
        """float64 (Q,) ``Pipe.warm``: docs/proofs.md, Lemma 30 (floor of a question)."""
        once = 1.0 / -np.expm1(self._pp * math.log1p(-1.0 / m)) if m > 1 else 1.0
        found = np.where(self._turns | self._together, np.maximum(1.0, m / self._pp), once)
        return np.where(self._split, m / self._pp, found)

    # ------------------------------------------------------------ arrays

    def degrees(self, number: int) -> Degrees:
        """Prices of an outer choice."""
        f = self.formulation
        return Degrees(
            **f.shared, exchanged=self._exchanged, micro_batches=f.outers[number].micro_batches,
            candidate=columns(CANDIDATE, **f.candidates(number)))

    @cached_property
    def _exchanged(self) -> Any:
        return rows_of(EXCHANGED, self.formulation.prices.exchanged)

    def rings(self, number: int) -> Rings:
        """Places of the stages under an outer choice, and what they hand over."""
        f = self.formulation
        outer, places = f.outers[number], f.choices.candidates.places(f.outers[number])
        size, alike, place, edges, where = f.runnable.once(
            ("places", number), lambda: self._placed(number, places))
        hop = np.array(places.hops(edges))
        wrap = np.array([places.pair(max(k - 1, 0), 0) for k in edges.tolist()]).T
        handed = outer.micro_batch * f.choices.boundaries[self._prefixes]
        return Rings(
            size=size, alike=alike, place=place,
            hop=rows_of(LINK, hop.T[where]), wrap=rows_of(LINK, wrap.T[where]),
            twin=np.zeros(0, LINK), both=f.choices.both,
            handed=handed,
            received=outer.micro_batches * f.query.job.stack.receives_all * handed,
            marked_before=f.choices.marked)

    def _placed(self, number: int, places: BlockPlaces) -> tuple[Ints, ...]:
        """``size``, ``alike`` and ``place`` of :class:`Rings`; devices between stages, and which of
        them each ``hop`` is of."""
        f = self.formulation
        outer, span, rows = f.outers[number], f.span(number), f.listing.rows
        block, start = rows.block[span], rows.start[span]
        sizes, size = np.unique(block, return_inverse=True)
        degrees = rows.take(span).degrees()[1]
        most = max(1, min(f.choices.deepest, outer.stride // int(sizes[0])))
        at = sizes[:, None] * np.arange(most)
        inside = at + sizes[:, None] <= outer.stride
        place = np.full(at.shape, -1, dtype=np.int64)
        classes = np.zeros(len(block), dtype=np.int64)
        for n, one in enumerate(sizes.tolist()):
            place[n, inside[n]] = places.classes(one)[at[n, inside[n]]]
            here = size == n
            classes[here] = places.classes(one)[start[here]]
        known = np.full((int(degrees.max()) + 1, int(classes.max()) + 1), -1, dtype=np.int64)
        known[degrees, classes] = np.arange(len(block))
        # A pipeline ends where no block may lie.
        place[np.minimum.accumulate(place, axis=1) < 0] = -1
        edge = np.minimum(sizes[:, None] * np.arange(most + 1), outer.stride)
        edges, where = np.unique(edge, return_inverse=True)
        return size.astype(np.int64), known[degrees], place[None], edges, where.reshape(edge.shape)

    def _with_twins(self, rings: Rings, number: int, chosen: Ints) -> tuple[Rings, Ints]:
        """Places whose classes tell the ways to the stages that hold the same layers, too; the row
        of each pipeline."""
        f = self.formulation
        span, places = f.span(number), f.choices.candidates.places(f.outers[number])
        sizes, deep = np.unique(f.listing.rows.block[span]).tolist(), rings.place.shape[2]
        rows, row = np.unique(self._pp[chosen], return_inverse=True)
        way = np.full((2, len(rows), len(sizes), deep), np.inf)
        for n, pp in enumerate(rows.tolist()):
            for x, size in enumerate(sizes):
                if rings.place[0, x, pp - 1] >= 0:
                    way[:, n, x, :pp] = places.twins(size, pp)
        found = np.isfinite(way[0])
        each, at = np.unique(way.reshape(2, -1), axis=1, return_inverse=True)
        place = np.where(rings.place < 0, -1, rings.place * each.shape[1] + at.reshape(found.shape))
        for n, pp in enumerate(rows.tolist()):
            place[n, ~found[n, :, :pp].all(axis=1), pp - 1] = -1
        twin = rows_of(LINK, np.where(np.isfinite(each), each, 0.0).T)
        return rings._replace(
            place=place, twin=twin, alike=np.repeat(rings.alike, len(twin), axis=1)), row

    def arrays(self, number: int, limit: float) -> tuple[Ints, Pipelines, Legal]:
        """Pipelines of an outer choice that may take less than ``limit``, by number; the arrays."""
        f, shapes = self.formulation, self._shapes(number)
        asked = self._totals.questions(number, shapes, limit)
        chosen = np.flatnonzero(asked.of_pipelines(shapes) < limit)
        last: dict[Any, tuple[Pipelines, Legal]] = f.runnable.once(("pipelines", number), dict)
        name = self._layouts.mark, chosen.tobytes()
        found = last.get(name) or self._arrays(number, chosen)
        last.clear()  # other questions about the outer choice most often choose the same
        last[name] = found
        pipelines, legal = found
        return chosen, pipelines._replace(
            **self._layouts.of(chosen)._asdict(), pipe=pipelines.pipe.copy(),
            asked=asked.code, floor=asked.floor, apart=rows_of(PARTS, f.prices.apart)), legal

    def _arrays(self, number: int, chosen: Ints) -> tuple[Pipelines, Legal]:
        """What of the arrays has no price; without layouts, which others share."""
        f, chain = self.formulation, self.formulation.query.chain
        outer, span = f.outers[number], f.span(number)
        pp, vpp, shapes = self._pp, self._vpp, self._shapes(number)
        known, allow = self._layouts, f.runnable.allow
        known.of(chosen)

        def picked(axis: int, rows: slice = slice(None)) -> Bools:
            return np.ascontiguousarray(allow(axis, PIPELINE, rows)[:, chosen])

        some = allow(POLICY, FIRST)
        row_pipeline, policy_pipeline = picked(ROW, span), picked(POLICY)
        together = self._combined[chosen]
        if together.any():
            pairs = f.choices.candidates.pairs.ep[f.listing.rows.pair[span]]
            row_pipeline &= ~together | (pairs[:, None] > 1)
            policy_pipeline &= ~((f.prices.again[:, None] > 0) & together)
        zeros = np.array([zero for zero, _ in f.choices.zeros])
        first_pipeline = picked(FIRST)
        if FULL in f.choices.policies:
            first_pipeline[1:] &= some[f.choices.policies.index(FULL), 1:, None]
        same: dict[Any, int] = {}
        base = [same.setdefault(self.listed[k][:3], n) for n, k in enumerate(chosen.tolist())]
        every = np.ones(len(chain) + 1, dtype=np.bool_)
        handed = outer.micro_batch * f.choices.boundaries[self._prefixes[1:-1]]
        alike = not f.query.job.stack.receives_all or bool(np.all(handed == handed[:1]))
        return Pipelines(
            pipe=columns(
                PIPE, schedule=self._schedule[chosen], pp=pp[chosen], vpp=vpp[chosen],
                group=f.runnable.groups(outer.micro_batches)[chosen], row=0, smallest=base,
                warm=shapes.warm[chosen], free=[k in known.free for k in chosen.tolist()],
                first=known.first[chosen], last=known.last[chosen],
                longest=known.longest[chosen], widest=known.widest[chosen]),
            **known.nothing._asdict(),
            **_given([self.listed[k] for k in chosen.tolist()], outer.micro_batches),
            cut=np.array([known.free.get(k, every) for k in chosen.tolist()]).reshape(
                -1, len(every)),
            asked=chosen, floor=shapes.warm, apart=np.zeros(0, PARTS),
            repeated=self._repeated, signature=self._signature, order=f.choices.order,
            whole=np.array(f.choices.signatures.whole_kinds, dtype=np.int64),
            least_handed=float(handed.min() if len(chain) > 1 else 0.0),
            body=np.array(chain.body), grows=chain.is_chain and alike, most=0), Legal(
                row_pipeline=row_pipeline,
                way_pipeline=picked(WAY) & (zeros[:, None] <= self._zero[chosen]),
                policy_pipeline=policy_pipeline, first_pipeline=first_pipeline,
                wide=f.runnable.wide(outer, span, chosen, known.figures))

    @cached_property
    def _signature(self) -> Ints:
        """(N+1, N+1) of the layers between two cuts; that of none is another one."""
        index = self.formulation.choices.signatures.index
        found = np.ascontiguousarray(index[np.ix_(self._prefixes, self._prefixes)])
        np.fill_diagonal(found, found.max() + 1)
        return found

    @cached_property
    def _repeated(self) -> Bools:
        kinds = self.formulation.query.chain.kinds
        return np.array([kind.repeated for kind in kinds], dtype=np.bool_)

    @cached_property
    def _prefixes(self) -> Ints:
        """(N+1,) number of the cut behind the first layers of the model's order."""
        chain, known = self.formulation.query.chain, self.formulation.choices.signatures
        number = {mask: n for n, mask in enumerate(known.downsets)}
        return np.array([number[(1 << n) - 1] for n in range(len(chain) + 1)])
