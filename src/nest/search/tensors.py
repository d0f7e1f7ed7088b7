"""Dense arrays for the kernels; `alike` adds those of identical stages alone.

Shapes: L cuts, K positions of one super-pipeline (device numbers in steps that all usable block
sizes share), B block sizes, P prices (block size x class of places), C candidates (degrees on a
block), U bodies and V states (see :mod:`nest.costs.layer`; many candidates share one), R recompute
policies, Z ways of ZeRO, G signatures, T layer kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL, exchange_named, policy
from nest.costs.stage import hop
from nest.inputs.space import MODULES
from nest.model import boundary_bytes
from nest.records import AHEAD, BACK, STATE, rows_of
from nest.records.problems import Problem, Spans
from nest.records.tables import Tables
from nest.schedules.chunk import STATE_RESIDENT
from nest.schedules.registry import SCHEDULES
from nest.search.candidates import Candidates, Listing, Outer
from nest.search.layer_prices import LayerPrices, OfType
from nest.search.layouts import Layouts
from nest.search.lower_bounds import KnownBounds
from nest.search.query import Query
from nest.search.runnable import Runnable, SpacePart
from nest.search.signatures import Signatures

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MOST = 1 << 40


@dataclass(frozen=True, eq=False)
class Choices:
    """What there is to choose under every outer choice, and what follows from the layers alone."""

    query: Query
    signatures: Signatures
    candidates: Candidates
    policies: list[int]
    """Recompute policies, as :func:`nest.costs.choices.policy`."""
    zeros: list[tuple[int, int]]
    """ZeRO stages, and how each shards (1: dp_in)."""

    @cached_property
    def depths(self) -> Bools:
        """(L+1,) numbers of stages."""
        return np.array([d > 0 and any(self.query.may_be(name, d) for name in SCHEDULES)
                         for d in range(self.signatures.cuts + 1)])

    @cached_property
    def deepest(self) -> int:
        """Most stages of a plan."""
        return int(np.flatnonzero(self.depths).max(initial=0))

    @cached_property
    def first_layers(self) -> Bools:
        """(most layers of a stage + 1,) see ``Tables.first_layers``."""
        layers = self.query.space.recompute_layers
        return np.array([bool(r) and (layers is None or r in layers)
                         for r in range(self.signatures.longest + 1)])

    @cached_property
    def overlaps(self) -> Floats:
        """(2, 3) of the stack; see ``Tables.overlaps``."""
        each = (self.query.job.stack.of_stages(stages) for stages in (1, 2))
        return np.array([
            (s.overlap_zero3, s.overlap_grad_reduce, s.overlap_param_gather) for s in each])

    @cached_property
    def order(self) -> Ints:
        """(N,) kind of each layer."""
        return np.array(self.query.chain.order, dtype=np.int64)

    @cached_property
    def marked(self) -> Ints:
        """(N+1,) layers in front of each cut that recompute applies to."""
        kinds = self.query.chain.kinds
        return np.cumsum([0, *(kinds[kind].checkpointed for kind in self.query.chain.order)])

    @cached_property
    def both(self) -> float:
        """Ways that a hand-over counts."""
        return hop(1.0, 1.0, 1.0, 0.0, self.query.job.stack).both

    @cached_property
    def boundaries(self) -> Floats:
        """Bytes per sample handed over at each cut; 0 at both ends."""
        inner, query = self.signatures.downsets[1:-1], self.query
        return np.array([0.0, *(boundary_bytes(query.chain, query.job, d) for d in inner), 0.0])

    def summed(self, each: Floats) -> float:
        """Sum over all layers of a figure of each kind."""
        counts = np.bincount(self.signatures.whole_kinds, minlength=len(each))
        return float(counts[counts > 0] @ each[counts > 0])


class Every(NamedTuple):
    """All candidates, before some were pruned, and what prices their bodies once more."""

    listing: Listing
    by_type: list[OfType]
    beside: Floats
    """(U,) least seconds of a micro-batch in all layers, wherever they are, if passes hide all
    all-to-alls of experts; none unless such pipelines follow."""


@dataclass(frozen=True, eq=False)
class Formulation:
    """A part of the space as arrays: what there is under all outer choices, priced and bounded.

    :mod:`nest.search.formulating` makes it in steps.
    """

    query: Query
    part: SpacePart
    choices: Choices
    layouts: Layouts
    """Cuts of the pipelines of the part."""
    runnable: Runnable
    """What the stack can run of the candidates."""
    outers: list[Outer]
    """Outer choices under which some block is legal."""
    listing: Listing
    """Candidates that are left."""
    every: Every
    prices: LayerPrices
    """Of the bodies of ``listing``, where nothing that follows needs those of ``every``."""
    limit: float
    """Bytes of a device that a plan may use."""
    known: KnownBounds | None = None
    """Lower bounds of similar questions; None: none is kept."""
    copies: int = 1
    """Of the model, that the stages of a pipeline hold together; ``prices.state`` is of one."""

    @property
    def together(self) -> bool:
        """Whether passes may run beside each other."""
        return "combined" in self.part.schedules

    @cached_property
    def needs(self) -> Floats:
        """(outer choices,) bytes of a device at the least: all layers, each at its least bytes x
        devices, over the devices of a super-pipeline."""
        result, listing = np.full(len(self.outers), np.inf), self.listing
        if not len(listing.body):
            return result
        # Of a stage, buffers and work count once, what is kept and held for each layer.
        kept = self.prices.back[:, :, :, 2].min(axis=1)
        own = self.prices.state[:, :, :, STATE_RESIDENT].min(axis=1)
        for n, outer in enumerate(self.outers):
            span = self.span(n)
            if span.start == span.stop:
                continue
            each = kept[listing.body[span]] + own[listing.state[span]]
            spread = (listing.rows.block[span, None] * each).min(axis=0)
            result[n] = self.copies * self.choices.summed(spread) / outer.stride
        return result

    @cached_property
    def least(self) -> Floats:
        """(outer choices, T) least seconds of a step that a layer of each kind takes."""
        found = np.full((len(self.outers), len(self.query.chain.kinds)), np.inf)
        for n in np.flatnonzero(self.needs <= self.limit * (1.0 + 1e-9)).tolist():
            found[n] = (self._alone(self.span(n)) * self.weight(n)[:, None]).min(axis=0)
        return found

    @cached_property
    def bounds(self) -> Floats:
        """(outer choices,) least step seconds; inf: nothing fits.

        A step of stages with t seconds a micro-batch on a of K devices takes m max(t) at the least,
        so the sum of t m a / K: each layer at its best, where it alone fits.
        """
        found = np.full(len(self.outers), np.inf)
        for n in np.flatnonzero(self.needs <= self.limit * (1.0 + 1e-9)).tolist():
            found[n] = self.choices.summed(self.least[n])
        return found

    def _alone(self, span: slice) -> Floats:
        """(C, T) least seconds of a micro-batch in a layer of each kind; inf: it does not fit."""
        seconds, kept, held = self.prices.least
        body, state = self.listing.body[span], self.listing.state[span]
        return np.where(kept[body] + held[state] <= self.limit, seconds[body], np.inf)

    def within(self, limit: float) -> Formulation:
        """The same for devices of which a plan may use ``limit`` bytes."""
        return replace(self, limit=limit, known=None)  # what is known is of the devices as they are

    def sites(self) -> tuple[Ints, Ints]:
        """(C,) micro-batches and stride of the outer choice of each candidate."""
        m, stride = np.array([(o.micro_batches, o.stride) for o in self.outers]).T[
            :, self.listing.outer]
        return m, stride

    def take(self, some: Ints) -> Formulation:
        """The same of some of the candidates that are left."""
        return replace(self, listing=self.listing.take(some), runnable=self.runnable.take(some))

    def weight(self, number: int) -> Floats:
        """(C,) seconds of a step for each of a micro-batch on each candidate's block."""
        outer, block = self.outers[number], self.listing.rows.block[self.span(number)]
        return outer.micro_batches * block / outer.stride

    def span(self, number: int) -> slice:
        """Rows of an outer choice."""
        return slice(int(self.listing.first[number]), int(self.listing.first[number + 1]))

    # ------------------------------------------------------------ one outer choice

    @property
    def divided(self) -> Bools:
        """(C, Z) ways of ZeRO that differ: where HSDP is the same as sharding over all, one."""
        shard = np.array([shard for _, shard in self.choices.zeros], dtype=np.bool_)
        return self.listing.hybrid[:, None] | ~shard

    def degrees(self, number: int, option: int) -> dict[str, Any]:
        """Degrees, ZeRO and recompute of an option of outer choice ``number``.

        ``option`` is (row x Z + zero) x R + policy, times (most layers + 1), plus first layers.
        """
        rest, layers = divmod(option, self.choices.signatures.longest + 1)
        rest, chosen = divmod(rest, len(self.choices.policies))
        row, way = divmod(rest, len(self.choices.zeros))
        row += int(self.listing.first[number])
        split, pair = int(self.listing.rows.split[row]), int(self.listing.rows.pair[row])
        s, e = self.choices.candidates.splits, self.choices.candidates.pairs
        tp, cp, block = int(s.tp[split]), int(s.cp[split]), int(self.listing.rows.block[row])
        cp_comm, cp_a2a = exchange_named(cp, int(s.inner[split]), bool(s.gather[split]))
        zero, shard = self.choices.zeros[way]
        bits = self.choices.policies[chosen]
        modules = tuple(name for name in MODULES if bits != FULL and bits & policy("", [name]))
        return {
            "block": block, "dp_in": block // (tp * cp), "tp": tp, "sp": bool(s.sp[split]),
            "cp": cp, "cp_comm": cp_comm, "cp_a2a": cp_a2a, "ep": int(e.ep[pair]),
            "etp": int(e.etp[pair]) or tp, "zero": zero, "shard": ("dp", "dp_in")[shard],
            "recompute": "full" if bits == FULL else "selective" if bits else "none",
            "recompute_modules": modules, "recompute_layers": layers or None,
        }

    @cached_property
    def shared(self) -> dict[str, Any]:
        """What kernels get of all outer choices: fields of ``Degrees`` and of ``Tables``."""
        choices, stack = self.choices, self.query.job.stack
        layers = self.query.space.recompute_layers
        return {
            "ahead": rows_of(AHEAD, self.prices.ahead), "back": rows_of(BACK, self.prices.back),
            "state": rows_of(STATE, self.prices.state),
            "shard": np.array([shard for _, shard in choices.zeros], dtype=np.int64),
            "forbidden": np.array([z not in stack.zero_with_pipeline for z, _ in choices.zeros]),
            "full": choices.policies.index(FULL) if FULL in choices.policies else -1,
            "first_layers": choices.first_layers,
            "most_layers": MOST if layers is None else layers.largest,
            "relay": choices.signatures.relay,
            # Sums in another order than ``evaluate``'s must not end on the other side.
            "limit_bytes": self.limit * (1.0 - 1e-12),
            "overlaps": choices.overlaps[1], "overlaps_alone": choices.overlaps[0],
        }

    def candidates(self, number: int) -> dict[str, Any]:
        """Those of outer choice ``number``, as kernels get them."""
        span, listing = self.span(number), self.listing
        return {"body": listing.body[span], "held": listing.state[span],
                "shards": listing.shards[span], "relayed": listing.relayed[span]}

    def tables(self, number: int, gpipe: bool) -> Tables:
        """Arrays from which the options of outer choice ``number`` are selected."""
        outer, choices = self.outers[number], self.choices
        g, most = choices.signatures, min(outer.micro_batches, max(choices.deepest, 1))
        cap = np.where(g.deepest > 0, outer.micro_batches if gpipe else
                       np.minimum(g.deepest, most), 0)
        return Tables(
            **self.shared, **self.candidates(number), price=self._prices(number)[0],
            weight=self.weight(number), hybrid=self.listing.hybrid[self.span(number)],
            keep_none=self.query.space.allows("recompute", "none"),
            last=g.last, part=g.part, seen=g.seen, stretch=g.stretch, among=g.among,
            marked=g.marked, way=g.way, ancestor=g.ancestor,
            kinds=np.flatnonzero([kind.checkpointed for kind in self.query.chain.kinds]),
            received=outer.micro_batches * outer.micro_batch * g.received,
            cap=cap.astype(np.int64), whole=g.whole,
            micro_batches=outer.micro_batches, least=self.least[number],
            root=g.root, second=g.second, third=g.third,
            children=g.children, begin=g.begin, before=g.before, depth=g.depth, gpipe=gpipe,
        )

    def _prices(self, number: int) -> tuple[Ints, dict[tuple[int, int], int]]:
        """(C,) number of the block size and class of places of each row, and those numbers."""
        span, rows = self.span(number), self.listing.rows
        places, block = self.choices.candidates.places(self.outers[number]), rows.block[span]
        classes = np.zeros(len(block), dtype=np.int64)
        for size in np.unique(block).tolist():
            here = block == size
            classes[here] = places.classes(size)[rows.start[span][here]]
        keys = block * (int(classes.max()) + 1) + classes
        _, first, number_of = np.unique(keys, return_index=True, return_inverse=True)
        names = {(int(block[f]), int(classes[f])): n for n, f in enumerate(first)}
        return number_of.astype(np.int64), names

    def positions(
        self, number: int, rows: Ints | None = None
    ) -> tuple[int, Ints, Ints, Ints]:
        """Devices per position, block sizes of ``rows``, first device of each position, prices.

        Default: all rows. The prices are (B, K+1); -1: no block may start there.
        """
        outer = self.outers[number]
        places, (_, prices) = self.choices.candidates.places(outer), self._prices(number)
        block = self.listing.rows.block[self.span(number)]
        sizes = np.unique(block if rows is None else block[rows])
        unit = math.gcd(*sizes.tolist())
        starts = np.arange(0, outer.stride + 1, unit)
        return unit, sizes, starts, np.stack(
            [places.prices(size, starts, prices) for size in sizes.tolist()])

    def spans(self, number: int) -> Spans:
        """Least seconds of the stages of an outer choice, by layers and block alone."""
        outer, span, g = self.outers[number], self.span(number), self.choices.signatures
        unit, sizes, starts, price = self.positions(number)
        order, prices = self.choices.order, self._prices(number)[0]
        begins = np.searchsorted(prices, np.arange(prices[-1] + 1))
        alone = np.minimum.reduceat(self._alone(span), begins)[:, order]
        fits = np.isfinite(alone)
        seconds, last = np.zeros((2, len(begins), len(order) + 1))
        np.cumsum(np.where(fits, alone, 0.0), axis=1, out=seconds[:, 1:])
        # The first layer that does not fit, from each on.
        last[:, -1] = len(order)
        last[:, :-1] = np.where(fits, len(order), np.arange(len(order)))
        last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
        return Spans(
            micro_batches=outer.micro_batches, sizes=sizes // unit, price=price,
            share=starts / outer.stride, seconds=seconds,
            fits=np.ascontiguousarray(last.astype(np.int64)),
            work=np.cumsum([0.0, *self.least[number][order]]),
            signature=g.index, part=g.part, whole=g.whole, chain=self.query.chain.is_chain)

    def problem(
        self, number: int, ends: Ints, options: tuple[Any, ...], gpipe: bool
    ) -> tuple[int, Problem]:
        """Devices per position, and the arrays of an outer choice.

        ``ends`` is what ``_kernels.spans.useful`` returned, ``options`` what
        ``_kernels.options.select`` did; block sizes without an option are left out.
        """
        outer = self.outers[number]
        first, degrees, table = options
        choices = self.choices
        each = len(choices.zeros) * len(choices.policies) * (choices.signatures.longest + 1)
        unit, sizes, starts, price = self.positions(number, np.unique(degrees // each))
        per_byte, latency = self.choices.candidates.places(outer).hops(starts)
        return unit, Problem(
            micro_batches=outer.micro_batches,
            sizes=sizes // unit,
            lanes=sizes,
            price=price,
            signature=self.choices.signatures.index,
            gpipe=gpipe,
            ends=ends,
            first=first,
            option=table,
            hop_bytes=outer.micro_batch * self.choices.boundaries,
            hop_per_byte=per_byte,
            hop_latency=latency,
            both=self.choices.both,
            depths=self.choices.depths,
        )
