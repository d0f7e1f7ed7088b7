"""Pipelines whose stages are alike: what the kernel gets of them, and the plans that it finds.

Shapes: Q pipelines, N layers, W layouts; others as in ``nest.search.problems``.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL, policy
from nest.costs.schedules import SCHEDULES as COSTS
from nest.costs.schedules import Path
from nest.describe.capabilities import Capabilities
from nest.describe.space import Schedule, SearchSpace
from nest.forms.orders import warm_up
from nest.graph import Chain
from nest.graph.layouts import family
from nest.graph.schedules import chunk_counts, chunks_at, is_folded, most_zero, position
from nest.search.problems import Legal, Pipelines, Rings
from nest.search.runnable import FIRST, PIPELINE, POLICY, ROW, WAY, Pipeline
from nest.search.tables import Degrees
from nest.search.tensors import Builder, distinct_rows
from nest.stacks.check import applies
from nest.stacks.figures import cut_forms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SCHEDULES: tuple[Schedule, ...] = (
    "1f1b", "gpipe", "interleaved", "combined", "zb1p", "interleaved-zb", "zb-v", "dualpipev",
    "looped-bfs")
"""Schedules of alike stages that are searched, by number."""
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
MOST_CUTS = 300
"""Ways to cut one pipeline that are priced at the most; beyond them nothing is proved."""


def pipelines(
    chain: Chain, space: SearchSpace, devices: int, own: bool, rules: Capabilities | None = None
) -> list[Pipeline]:
    """Pipelines of alike stages of a space on so many devices, by stages, schedule and chunks.

    ``own``: the space is that of a stack, of these rules. Else stages under 1F1B and GPipe may
    differ, and are searched elsewhere.
    """
    first, last = chain.body
    found = []
    names: tuple[str, ...] = space.schedules
    if own and space.schedule is None:
        names = tuple(name for name in SCHEDULES if name != "combined")
    names = tuple(name for name in names if _may_run(name, chain, rules))
    for pp in range(1, min(len(chain), devices) + 1):
        if not space.allows("pp", pp):
            continue
        # A single stage has no schedule, but passes may run beside each other.
        alone = [name for name in names if name in UNLIKE][:1]
        for name in names if pp > 1 else [*alone, *(n for n in names if n == "combined")]:
            if name in UNLIKE and not own:
                continue
            found += [Pipeline(name, pp, vpp)
                      for vpp in chunk_counts(name, pp, len(chain) // pp)
                      if space.allows("vpp", vpp)
                      and (own or (last - first) % (pp * vpp) == 0)]
    return found


def _may_run(name: str, chain: Chain, rules: Capabilities | None) -> bool:
    """Whether a schedule may be one that a stack with these rules has, of a model at all."""
    model = chain.model
    if name in UNLIKE:
        return rules is None or name in UNLIKE
    if not chain.is_chain or (is_folded(name) and model is not None and model.tied_embeddings):
        return False
    if name == "combined" and (chain.experts is None or (
            model is not None and model.mtp_layers > 1)):
        return False
    return rules is None or all(
        rule.allowed is None or not applies(rule, {"pp": 2})
        or (name in rule.allowed if "schedule" in rule.fields else
            "pp" not in rule.fields or 2 in rule.allowed)
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
    """Alike stages under the outer choices of a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.listed = builder, builder.pipelines
        listed = self.listed
        self._pp, self._vpp = np.array([(one.pp, one.vpp) for one in listed]).reshape(-1, 2).T
        self._schedule = np.array([SCHEDULES.index(one.schedule) for one in listed])
        self._turns = self._vpp > 1
        names = [one.schedule for one in listed]
        self._split = np.array([_split(name) for name in names], dtype=np.bool_)
        self._together = np.array([name == "combined" for name in names], dtype=np.bool_)
        self._fewest = np.where([name == "dualpipev" for name in names], 2 * self._pp, 1)
        """Micro-batches that a pipeline needs."""
        # What is legal whatever the stack.
        self._zero = np.array([most_zero(name) for name in names], dtype=np.int64)
        self.plain = False
        """Look at pipelines of one chunk a stage alone."""
        self._lock = Lock()
        self._free: dict[int, Bools] = {}
        self._done: dict[int, float] = {}
        """By outer choice the limit below which all listed cuts were searched."""
        self._first = np.full(len(listed), -1)
        self._last = np.full(len(listed), -1)
        self._longest = np.full(len(listed), builder.signatures.longest + 1)
        self._count = 0
        self._stages = SEEN[0] if len(builder.chain.kinds) <= MOST_KINDS else 0
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        none: Ints = np.zeros(0, dtype=np.int64)
        self._known: tuple[Ints, Ints, Floats, Ints] = (
            none, none, np.zeros((0, self._stages, SEEN[1], len(builder.chain.kinds))), none)

    def solve(
        self, kernel: Any, number: int, limit: float, exact: bool, spread: bool
    ) -> tuple[list[AlikePlan], float, int]:
        """Best plan of each pipeline of an outer choice below ``limit`` seconds; what no plan that
        was left out takes less than; how many were priced. Without ``exact`` of free cuts only
        those with the least bound are priced."""
        tables, rings = self.builder.tables(number, False), self.rings(number)
        degrees = Degrees(**{name: getattr(tables, name) for name in Degrees._fields})
        chosen, arrays, legal = self.arrays(number, limit)
        if exact and not spread and limit <= self._done.get(number, 0.0):
            arrays = arrays._replace(last=arrays.first)  # listed cuts are priced
        else:
            self._done[number] = limit
        arrays = arrays._replace(most=MOST_CUTS if exact else 0)
        best, option, cuts, priced, left = kernel(
            degrees, rings, arrays, legal, limit, spread)
        found = []
        for k in np.flatnonzero(best < np.inf).tolist():
            pipeline = self.listed[chosen[k]]
            found.append(AlikePlan(
                float(best[k]), pipeline, int(option[k]),
                tuple(cuts[k, : pipeline.pp * pipeline.vpp + 1].tolist())))
        return found, float(left), int(priced)

    @cached_property
    def bounds(self) -> Any:
        """float64 (outer choices,) least seconds of a step under each; inf: nothing fits."""
        return np.array([bound if bound == np.inf else self._least(number).min(initial=np.inf)
                         for number, bound in enumerate(self.builder.bounds.tolist())])

    def _least(self, number: int) -> Any:
        """float64 (Q,) least seconds of a step of each pipeline; inf: it cannot be run."""
        builder = self.builder
        outer, block = builder.outers[number], builder.rows.block[builder.span(number)]
        # Of blocks that fit so often.
        order = np.argsort(block, kind="stable")
        totals, m = builder.totals(number), outer.micro_batches
        least = np.minimum.accumulate(totals[order])
        fit = np.searchsorted(block[order], outer.stride // self._pp, side="right") - 1
        legal = (fit >= 0) & builder.runnable.piped(outer) & (m >= self._fewest)
        legal &= builder.runnable.groups(m) > 0
        if self.plain:
            legal &= ~self._turns
        found = least[fit]
        if self._together.any():
            less = np.minimum.accumulate((totals - builder.hidden(number))[order])
            found = np.where(self._together, less[fit], found)
        return np.where(legal, found, np.inf) * self._warm(m)

    def _warm(self, m: int) -> Any:
        """float64 (Q,) see ``Pipelines.warm``; docs/proofs.md."""
        once = 1.0 / -np.expm1(self._pp * math.log1p(-1.0 / m)) if m > 1 else 1.0
        found = np.where(self._turns | self._together, np.maximum(1.0, m / self._pp), once)
        return np.where(self._split, m / self._pp, found)

    # ------------------------------------------------------------ arrays

    def rings(self, number: int) -> Rings:
        """Places of the stages under an outer choice, and what they hand over."""
        builder = self.builder
        outer, span, rows = builder.outers[number], builder.span(number), builder.rows
        places = builder.candidates.places(outer)
        block, start = rows.block[span], rows.start[span]
        sizes, size = np.unique(block, return_inverse=True)
        degrees = distinct_rows(block, rows.samples[span], rows.split[span], rows.pair[span])[1]
        most = max(1, min(builder.deepest, outer.stride // int(sizes[0])))
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
        hop = np.array(places.hops(edge.ravel())).reshape(2, *edge.shape)
        wrap = np.array([places.pair(max(k - 1, 0), 0) for k in edge.ravel().tolist()])
        return Rings(
            size=size.astype(np.int64), alike=known[degrees], place=place, hop=hop,
            wrap=np.ascontiguousarray(wrap.T).reshape(2, *edge.shape), both=builder.both,
            handed=outer.micro_batch * builder.boundaries[self._prefixes],
            marked_before=builder.marked)

    def arrays(self, number: int, limit: float) -> tuple[Ints, Pipelines, Legal]:
        """Pipelines of an outer choice that may take less than ``limit``, by number; the arrays."""
        builder, chain = self.builder, self.builder.chain
        outer, span = builder.outers[number], builder.span(number)
        pp, vpp, warm = self._pp, self._vpp, self._warm(outer.micro_batches)
        chosen = np.flatnonzero(self._least(number) < limit)
        with self._lock:
            for k in chosen.tolist():
                self._add(k)
            begin, load, seen, layouts = self._arrays()
        allow, index = builder.runnable.allow, builder.signatures.index

        def picked(axis: int, rows: slice = slice(None)) -> Bools:
            return np.ascontiguousarray(allow(axis, PIPELINE, rows)[:, chosen])

        some = allow(POLICY, FIRST)
        row_pipeline, policy_pipeline = picked(ROW, span), picked(POLICY)
        together = self._together[chosen]
        if together.any():
            pairs = builder.candidates.pairs.ep[builder.rows.pair[span]]
            row_pipeline &= ~together | (pairs[:, None] > 1)
            again = np.array([bits == FULL or bits & policy("", ["moe"]) > 0
                              for bits in builder.policies])
            policy_pipeline &= ~(again[:, None] & together)
        zeros = np.array([zero for zero, _ in builder.zeros])
        first_pipeline = picked(FIRST)
        if FULL in builder.policies:
            first_pipeline[1:] &= some[builder.policies.index(FULL), 1:, None]
        every = np.ones(len(chain) + 1, dtype=np.bool_)
        cuts = self._prefixes
        return chosen, Pipelines(
            schedule=self._schedule[chosen], pp=pp[chosen], vpp=vpp[chosen],
            group=builder.runnable.groups(outer.micro_batches)[chosen], warm=warm[chosen],
            free=np.array([k in self._free for k in chosen.tolist()], dtype=np.bool_),
            first=self._first[chosen], last=self._last[chosen], begin=begin, load=load,
            seen=seen, layouts=layouts,
            cut=np.array([self._free.get(k, every) for k in chosen.tolist()]).reshape(
                -1, len(every)),
            apart=builder.apart, repeated=self._repeated, longest=self._longest[chosen],
            signature=np.ascontiguousarray(index[np.ix_(cuts, cuts)]), order=builder.order,
            whole=np.array(builder.signatures.whole_kinds, dtype=np.int64),
            least_handed=outer.micro_batch * float(
                builder.boundaries[cuts[1:-1]].min() if len(chain) > 1 else 0.0),
            body=np.array(chain.body), chain=chain.is_chain, most=0), Legal(
                row_pipeline=row_pipeline,
                way_pipeline=picked(WAY) & (zeros[:, None] <= self._zero[chosen]),
                policy_pipeline=policy_pipeline, first_pipeline=first_pipeline,
                row_way=allow(ROW, WAY, span), row_policy=allow(ROW, POLICY, span),
                way_policy=allow(WAY, POLICY) & some[:, 0])

    @cached_property
    def _repeated(self) -> Bools:
        return np.array([kind.repeated for kind in self.builder.chain.kinds], dtype=np.bool_)

    @cached_property
    def _prefixes(self) -> Ints:
        """(N+1,) number of the cut behind the first layers of the model's order."""
        downsets = self.builder.signatures.downsets
        number = {mask: n for n, mask in enumerate(downsets)}
        return np.array([number[(1 << n) - 1] for n in range(len(self.builder.chain) + 1)])

    # ------------------------------------------------------------ cuts

    def _add(self, k: int) -> None:
        """Note what cuts a pipeline may have."""
        if k in self._free or self._first[k] >= 0:
            return
        chain, pipeline = self.builder.chain, self.listed[k]
        rules = self.builder.runnable.about_cuts(pipeline)
        forms = set.intersection({"free"}, *map(set, rules["cuts"])) if rules["cuts"] else {"free"}
        if forms and pipeline.schedule in UNLIKE:
            cut = np.ones(len(chain) + 1, dtype=np.bool_)
            for name, start in HELD.items():
                if any(2 not in allowed for allowed in rules[name]):
                    cut[self._held(start)[1:]] = False
            self._free[k] = cut
            return
        found = self._listed(pipeline, bool(forms), rules)
        # The lightest of the heaviest stages first.
        load: Ints = _layers(chain, found)[:, _positions(pipeline)].sum(axis=2).max(axis=1)
        seen, seconds = self._seen(found, pipeline)
        order = np.lexsort((seconds, load))
        found, load, seen = found[order], load[order], seen[order]
        marked = self.builder.marked
        self._longest[k] = np.diff(marked[found], axis=1).max(initial=0)
        self._first[k], self._last[k] = self._count, self._count + len(found)
        self._count += len(found)
        self._parts.append((found, load, seen))

    def _seen(self, found: Ints, pipeline: Pipeline) -> tuple[Floats, Floats]:
        """``Pipelines.seen`` of layouts; (W,) about how long each takes, in layers of the body."""
        chain, (schedule, p, v) = self.builder.chain, pipeline
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
        order = self.builder.order if p > 1 else self.builder.signatures.whole_kinds
        kinds = np.eye(len(chain.kinds))[np.array(order)]
        front = np.concatenate([np.zeros((1, len(chain.kinds))), np.cumsum(kinds, axis=0)])
        at = places[stages]
        rows = np.arange(len(found))[:, None, None]
        begin, end = front[found[rows, at]], front[found[rows, at + 1]]
        held, kept = np.moveaxis(sums[stages] @ (end - begin), 2, 0)
        first, behind = begin[:, :, 0], front[-1] - end[:, :, -1]
        there = (front[-1] - kept, behind) if loops else (first, 0.0 * first)
        # Behind the last backward for weights no other needs to follow.
        after = 0.0 * first if _split(schedule) else first
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
        chain = self.builder.chain
        return [n for n, kind in enumerate(chain.order) if chain.kinds[kind].name.startswith(start)]

    def _listed(self, pipeline: Pipeline, free: bool, rules: dict[str, list[Any]]) -> Ints:
        """(W, pp x vpp + 1) cuts that a pipeline may have: of a family, or of the forms by name."""
        chain, (pp, vpp) = self.builder.chain, pipeline[1:]
        if len(chain) > LONGEST:
            found = _by_form(chain, pp * vpp, even=True)
        else:
            found = family(chain, pp, vpp) if free else _by_form(chain, pp * vpp)
        if not self.builder.own:  # chunks that are as large as each other, but for the ends
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


def _split(schedule: str) -> bool:
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
