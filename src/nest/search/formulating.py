"""The steps from a query to its formulation: enumerate, apply rules, price, prune.

Each step is a function from frozen records to a frozen record; bounds are properties of the last
one (:class:`nest.search.tensors.Formulation`). Searches of similar questions share what does not
depend on prices: the cache holds it by what its step reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import Site, StageSetting, settings
from nest.costs.host import kept_away
from nest.costs.imbalance import ALONE
from nest.costs.network.fabric import Fabric, fabric_of
from nest.inputs.offload import Offload
from nest.records import AHEAD, BACK, STATE, rows_of
from nest.records.links import Twins
from nest.records.tables import Blocks
from nest.schedules.registry import SCHEDULES, copies
from nest.search import compiled
from nest.search.cache import Cache, Identity
from nest.search.candidates import Candidates, Listing, Outer, Rows, outers
from nest.search.cut_lists import CutLists
from nest.search.exchanges import Exchanges
from nest.search.expert_pairs import useful_pairs
from nest.search.layer_prices import Grouped, LayerPrices, Map, grouped
from nest.search.layouts import Layouts
from nest.search.lower_bounds import FramePrices, LowerBounds
from nest.search.policies import policies_of, runnable_policies
from nest.search.query import Query
from nest.search.runnable import Pipeline, Runnable, SpacePart, needs_context, runnable_splits
from nest.search.signatures import Signatures, signatures
from nest.search.tensors import Choices, Every, Formulation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Frame:
    """Outer choices and candidates, before any price: the same for clusters of one shape."""

    outers: list[Outer]
    """Those under which some block is legal."""
    every: Listing
    """Their candidates that the job's stack can run."""
    grouped: Grouped
    runnable: Runnable
    lower: LowerBounds | None = None
    """Of similar questions; None: the frame does not last."""
    taken: Cache = field(default_factory=Cache)
    """What is left of the candidates without those that others beat, with its rules."""

    @property
    def extent(self) -> tuple[int, ...]:
        """Grows when the frame does."""
        return (0 if self.lower is None else self.lower.asked,
                *(runnable.extent for _, runnable in self.taken))

    @cached_property
    def verdicts(self) -> Ints:
        """A number for candidates that can be run alike; (C,)."""
        return self.runnable.verdicts


def formulate(
    query: Query, part: SpacePart = SpacePart(), cache: Cache | None = None, each_of: Map = map  # noqa: B008
) -> Formulation:
    """A part of what a query asks for as arrays.

    Parameters
    ----------
    part : default: everything, of stages that may differ.
    cache : of similar questions.
    each_of : see :meth:`nest.search.layer_prices.LayerPrices.filled`.
    """
    cache = Cache() if cache is None else cache
    fabric = fabric_of(query.cluster, Twins(*compiled.load(())[0].routes))
    rates = settings(query.cluster, query.job, kept_away(query.chain, query.offload),
                     query.waits or ALONE)
    choices = enumerated(query, part, cache, fabric, rates)
    layouts = layouts_of(choices, part, cache)
    choices.candidates.price_places(each_of)
    frame = _frame(choices, part, layouts.runnable, cache)
    found = pruned(priced(choices, part, layouts, frame, rates, each_of), frame.verdicts, each_of,
                   frame.taken)
    # Similar questions share numbers of bodies, and pipelines with copies of the model need all.
    if frame.lower is None and all(copies(one.schedule) == 1 for one in part.later):
        found = of_used_bodies(found)
    return found


# ------------------------------------------------------------ enumerate


def signatures_of(query: Query, cache: Cache) -> Signatures:
    """Signatures of a chain; the job's where they tell bytes that are relayed or received, which
    no batch changes."""
    chain, job = query.chain, query.job
    same = chain.is_chain and not job.stack.receives_all
    return cache.of(("signatures", Identity(chain), None if same else job.unchecked(
        global_batch=1)), lambda: signatures(chain, job))


def enumerated(
    query: Query, part: SpacePart, cache: Cache, fabric: Fabric, rates: Sequence[StageSetting]
) -> Choices:
    """Step 1: degrees on blocks, recompute policies and ways of ZeRO."""
    known = signatures_of(query, cache)
    if not _lasts(query, cache):
        return Choices(query, known, *_enumerated(query, part, fabric, rates))
    cluster = query.cluster
    candidates, policies, zeros = cache.of(
        ("candidates", Identity(query.chain), cluster.size, cluster.group_sizes,
         cluster.type_numbers, query.job, query.space, query.offload, part.own),
        lambda: _enumerated(query, part, fabric, None))
    return Choices(query, known, candidates.on(fabric), policies, zeros)


def _enumerated(
    query: Query, part: SpacePart, fabric: Fabric, rates: Sequence[StageSetting] | None
) -> tuple[Candidates, list[int], list[tuple[int, int]]]:
    """``rates``: None: what is kept holds for all prices, whichever exchange they make the
    fastest."""
    rules, space = part.rules, query.space
    candidates = Candidates(query, fabric, part.own)
    listed, alone = runnable_splits(query, rules, candidates.splits)
    # Transfers to hosts hide under whole layers: less traffic would make them wait more.
    moves = Offload.of(query.offload).activations
    policies = policies_of(query.chain, space, query.job.stack)
    if rules is not None:
        policies = runnable_policies(policies, rules, query)
    exchanges = Exchanges(query.chain, fabric, rates) if (
        alone and not moves and rates is not None) else None
    # Ranks that divide their samples are less busy than ranks with samples of their own.
    whole = not moves and not query.job.samples and not needs_context(rules, query.chain)
    candidates.list_only(listed, exchanges, whole)
    return candidates, policies, [
        (zero, shard) for zero in range(4) if space.allows("zero", zero)
        for shard, name in enumerate(("dp", "dp_in"))
        if (zero or not shard) and (space.allows("shard", name) or not zero)]


def _lasts(query: Query, cache: Cache) -> bool:
    """Whether other questions get the frame: on levels without experts it has no price."""
    return cache.most > 0 and query.cluster.links is None and query.chain.experts is None


def _key(name: str, choices: Choices, part: SpacePart, *more: Hashable) -> Hashable:
    """What follows from the chain, the job, the space and the pipelines, and ``more``."""
    query = choices.query
    return (name, Identity(query.chain), Identity(choices.signatures), query.job, query.space,
            query.offload, part.own, part.pipelines, *more)


# ------------------------------------------------------------ apply rules


def layouts_of(choices: Choices, part: SpacePart, cache: Cache) -> Layouts:
    """Step 2: cuts of the pipelines that the rules allow; they follow from no price."""
    query, known, longest = choices.query, choices.signatures, choices.signatures.longest
    mixed = bool(query.cluster.types)
    lists = cache.of(("cuts", Identity(query.chain), Identity(known), mixed),
                     lambda: CutLists(query.chain, known, mixed))
    return cache.of(_key("layouts", choices, part), lambda: Layouts(
        query.chain, part.pipelines,
        Runnable(query, part, choices.zeros, choices.policies, longest),
        part.own, lists, longest + 1))


def _frame(choices: Choices, part: SpacePart, runnable: Runnable, cache: Cache) -> Frame:
    """The same of candidates."""
    cluster = choices.query.cluster

    def lasting() -> Frame:
        frame = _framed(choices, part, runnable)
        return replace(frame, lower=LowerBounds(len(frame.outers)))

    if not _lasts(choices.query, cache):
        return _framed(choices, part, runnable)
    return cache.of(_key("frame", choices, part, cluster.size, cluster.group_sizes,
                         cluster.type_numbers), lasting)


def _framed(choices: Choices, part: SpacePart, runnable: Runnable) -> Frame:
    candidates, found, each = choices.candidates, list[Outer](), list[Rows]()
    known: dict[int, dict[int, Bools]] = {}
    for outer in outers(choices.query):
        if outer.micro_batch not in known:
            known[outer.micro_batch] = useful_under(choices, part, runnable, outer.micro_batch)
        some = candidates.rows(outer, known[outer.micro_batch])
        if len(some.block):
            found.append(outer)
            each.append(some)
    first = np.cumsum([0, *(len(one.block) for one in each)])
    none: Ints = np.zeros(0, dtype=np.int64)
    rows = Rows(*(np.concatenate([none, *column]) for column in zip(*each, strict=True))
                ) if each else Rows(*[none] * 5)
    del each, known  # as much memory as the rows
    runnable = runnable.compared(rows, candidates.splits, candidates.pairs)
    allowed = np.flatnonzero(runnable.rows)
    rows, first = rows.take(allowed), np.searchsorted(allowed, first)
    replicas, stride = np.array([(o.outer_dp, o.stride) for o in found]).reshape(-1, 2)[
        np.repeat(np.arange(len(found)), np.diff(first))].T
    alike = grouped(candidates, rows, Site(rows.start, rows.block, replicas, stride),
                    choices.policies, choices.zeros)
    tp, sp, cp = (column[rows.split] for column in candidates.splits[:3])
    every = Listing(
        rows, first, alike.body_of, alike.state_of,
        shards=rows.block // np.where(sp | choices.query.job.stack.scatter_gather, 1, tp),
        relayed=rows.samples / (cp * np.where(sp, tp, 1)),
        hybrid=(replicas > 1) & (rows.block > tp))
    return Frame(found, every, alike, runnable.take(allowed))


def useful_under(
    choices: Choices, part: SpacePart, runnable: Runnable, micro_batch: int
) -> dict[int, Bools]:
    """Expert pairs worth trying, by block."""
    compare = not (
        Offload.of(choices.query.offload).activations  # transfers hide under whole layers
        or runnable.names(("ep", "etp", "expert_ranks"), but="combined"))
    schedules = part.schedules | {one.schedule for one in part.later}
    return useful_pairs(choices.candidates, choices.policies, micro_batch, compare,
                        "combined" in schedules, _in_parts(schedules))


def _in_parts(schedules: set[str]) -> bool:
    """Whether some schedule divides backwards into two parts."""
    return any(SCHEDULES[name].parts for name in schedules)


# ------------------------------------------------------------ price


def priced(
    choices: Choices, part: SpacePart, layouts: Layouts, frame: Frame,
    rates: Sequence[StageSetting],
    each_of: Map,
) -> Formulation:
    """Step 3: prices of all layers under all candidates."""
    query, candidates, every = choices.query, choices.candidates, frame.every
    prices = LayerPrices(query, rates, choices.policies, choices.zeros).filled(
        frame.grouped, candidates.fabric, _in_parts(part.schedules), each_of)
    beside: Floats = np.zeros(0)
    if any(one.schedule == "combined" for one in part.later):
        beside = prices.least_beside(Counter(zip(
            choices.order.tolist(), choices.signatures.whole_kinds, strict=True)))
    known = None
    if frame.lower is not None and part.own:
        known = frame.lower.begin(FramePrices(
            every.body, every.state, prices.ahead, prices.back, prices.state, prices.apart,
            np.stack(candidates.fabric.rates), prices.limit))
    return Formulation(query, part, choices, layouts, frame.runnable, frame.outers, every,
                       Every(every, prices.by_type, beside), prices, prices.limit, known)


def repriced(
    base: Formulation, pipelines: Sequence[Pipeline], cache: Cache, copies: int = 1
) -> Formulation:
    """The same for other pipelines: all candidates, as they are numbered; rules follow."""
    part = base.part._replace(pipelines=tuple(pipelines))
    layouts = layouts_of(base.choices, part, cache)
    return replace(base, part=part, layouts=layouts, runnable=layouts.runnable,
                   listing=base.every.listing, known=None, copies=copies)


def ruled(f: Formulation) -> Formulation:
    """The same, with candidates compared with the rules for its pipelines."""
    return replace(f, runnable=f.runnable.compared(
        f.listing.rows, f.choices.candidates.splits, f.choices.candidates.pairs))


# ------------------------------------------------------------ prune


def pruned(
    f: Formulation, verdict: Ints, each_of: Map = map, taken: Cache | None = None
) -> Formulation:
    """Step 4: without candidates that another of the same block beats whatever layers it holds.

    ``verdict``: a number for candidates that can be run alike. One is no reason to leave out
    another that the software can run where it cannot run the first. ``taken``: of questions with
    the same candidates.
    """
    listing = f.listing
    if not len(listing.body):
        return f
    by, begin, degrees = f.runnable.once("blocks", lambda: _blocks(listing, verdict))
    ahead, back = f.prices.compared(f.together)
    left = compiled.load(("undominated",))[0].undominated(Blocks(
        ahead=rows_of(AHEAD, ahead), back=rows_of(BACK, back),
        state=rows_of(STATE, f.prices.state), body=listing.body[by],
        held=listing.state[by], shards=listing.shards[by], relayed=listing.relayed[by],
        hybrid=listing.hybrid[by], overlaps=f.choices.overlaps[0], begin=begin,
        choices=degrees), each_of)
    some = np.sort(by[np.flatnonzero(left)])
    if taken is None:
        return f.take(some)
    listing, runnable = taken.of(some.tobytes(), lambda: (
        listing.take(some), f.runnable.take(some)))
    return replace(f, listing=listing, runnable=runnable)


def _blocks(listing: Listing, verdict: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows by block, where each block begins, and how many degrees it has."""
    rows, outer = listing.rows, listing.outer
    # Rows of a block come by start, and at each start with the same degrees.
    by = np.lexsort((np.arange(len(outer)), verdict, rows.block, outer))
    changes = np.any([np.diff(column[by]) for column in (outer, rows.block, verdict)], axis=0)
    begin = np.array([0, *np.flatnonzero(changes) + 1, len(outer)])
    starts = np.cumsum([0, *(changes | (np.diff(rows.start[by]) != 0))])
    return by, begin, np.bincount(starts)[starts[begin[:-1]]]


def of_used_bodies(f: Formulation) -> Formulation:
    """The same without prices of bodies that no candidate has."""
    f, used = renumbered(f)
    return replace(f, prices=f.prices.of_bodies(used))


def renumbered(f: Formulation) -> tuple[Formulation, Ints]:
    """The same with numbers of the bodies among those that candidates have; (n,) those."""
    used, body = np.unique(f.listing.body, return_inverse=True)
    return replace(f, listing=f.listing._replace(body=body)), used
