"""Dense arrays for the kernels; `alike` adds those of identical stages alone.

Shapes: L cuts, K positions of one super-pipeline (device numbers in steps that all usable block
sizes share), B block sizes, P prices (block size x class of places), C candidates (degrees on a
block), U bodies and V states (see :mod:`nest.costs.layer`; many candidates share one), R recompute
policies, Z ways of ZeRO, G signatures, T layer kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import (
    FULL,
    exchange_named,
    policy,
)
from nest.costs.network.fabric import fabric_of
from nest.costs.network.records import Twins
from nest.costs.schedules import SCHEDULES
from nest.costs.stage import hop
from nest.forms.chunk import STATE_RESIDENT
from nest.inputs.capabilities import Capabilities
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.offload import Offload
from nest.inputs.space import MODULES, SearchSpace
from nest.model import Chain, boundary_bytes
from nest.search import compiled
from nest.search.candidates import Candidates
from nest.search.cut_lists import CutLists
from nest.search.exchanges import Exchanges
from nest.search.expert_pairs import useful_pairs
from nest.search.floors import Known, Prices
from nest.search.frame import Frame, firsts
from nest.search.kept import Kept, Same
from nest.search.layer_prices import LayerPrices, Map
from nest.search.layouts import Layouts
from nest.search.policies import policies_of, runnable_policies
from nest.search.problems import Problem, Spans
from nest.search.runnable import Pipeline, Runnable, needs_context, runnable_splits
from nest.search.signatures import Signatures, signatures
from nest.search.tables import Blocks, Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
T = TypeVar("T")

MOST = 1 << 40


class Builder:
    """Costs of everything that the space allows, for all outer choices at once.

    Parameters
    ----------
    chain, cluster, job, space : what is planned.
    known : signatures of the same chain and job: they take more memory than all else.
    rules : what the training software can run; default: everything.
    pipelines : those of alike stages that are searched.
    offload : what is kept in the memory of the hosts.
    spare_host : count bytes on a host as so many of a device that no plan fills the host: too many,
        so that plans that fit may be left out.
    kept : what near questions share; None: nothing.
    behind : pipelines of alike stages that are searched later, with its prices.
    each_of : see :meth:`nest.search.layer_prices.LayerPrices.fill`.
    lists : of cuts, which builders of one chain share.

    Attributes
    ----------
    own : the space is that of the job's stack: stages are alike.
    outers : outer choices under which some block is legal.
    bounds : float64 (len(outers),), least step seconds of each; inf: nothing fits. A step of
        stages with t seconds a micro-batch on a of K devices takes m max(t) at the least, so
        the sum of t m a / K: each layer at its best, where it alone fits. Bytes are bounded alike:
        all layers, each at its least bytes x devices, over the K devices.
    needs : float64 (len(outers),), those bytes of a device at the least.
    copies : of the model, that the stages of a pipeline hold together; ``state`` is of one.
    prices : of layers, of all candidates.
    every : all candidates, where those of each outer choice begin, and their ``columns``.
    """

    copies = 1

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace,
        known: Signatures | None = None, *, rules: Capabilities | None = None,
        pipelines: Sequence[Pipeline] = (), offload: str = "none", spare_host: bool = False,
        kept: Kept | None = None, behind: Sequence[Pipeline] = (), each_of: Map = map,
        lists: CutLists | None = None,
    ) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.offload, self.spare_host = offload, spare_host
        self.own, self.kept = rules is not None, Kept() if kept is None else kept
        schedules = {one.schedule for one in pipelines}
        self.together = "combined" in schedules
        self._schedules = schedules | {one.schedule for one in behind}
        self.signatures = known or signatures(chain, job)
        self.lists = lists or CutLists(chain, self.signatures, bool(cluster.types))
        fabric = fabric_of(cluster, Twins(*compiled.load(())[0].routes))
        self.candidates = Candidates(chain, cluster, job, space, fabric, self.own)
        listed, alone = runnable_splits(rules, chain, job, offload, self.candidates.splits)
        # Transfers to hosts hide under whole layers: less traffic would make them wait more.
        moves = Offload.of(offload).activations
        self.policies = policies_of(chain, space)
        if rules is not None:
            self.policies = runnable_policies(self.policies, rules, chain, job, offload)
        self.zeros = [
            (zero, shard) for zero in range(4) if space.allows("zero", zero)
            for shard, name in enumerate(("dp", "dp_in"))
            if (zero or not shard) and (space.allows("shard", name) or not zero)
        ]
        prices = LayerPrices(chain, cluster, job, self.policies, self.zeros, offload, spare_host)
        self.limit = prices.limit
        # A frame that is kept holds for all prices, whichever exchange they make the fastest.
        self.candidates.list_only(listed, Exchanges(chain, fabric, prices.settings)
                                  if alone and not moves and not self._keeps_frame else None,
                                  not moves and not needs_context(rules, chain))
        self.depths = np.array(
            [d > 0 and space.allows("pp", d) for d in range(self.signatures.cuts + 1)]
        )
        self.list_pipelines(pipelines, rules)
        self.candidates.price_places(each_of)
        self.frame = self._frame()
        self.outers, self._first, self.rows = (
            self.frame.outers, self.frame.first, self.frame.rows)
        self.runnable = self.frame.runnable
        outer_dp, stride = np.array([(o.outer_dp, o.stride) for o in self.outers]).reshape(
            -1, 2)[self.outer].T
        self._body, self._held = prices.fill(self.candidates, self.rows, outer_dp, stride, any(
            SCHEDULES[name].parts for name in schedules), each_of)
        self.prices = prices
        self.floors: Known | None = None
        """See :meth:`nest.search.floors.Floors.begin`; None: nothing is kept."""
        if self._keeps_frame and self.own:
            self.floors = self.frame.floors.begin(Prices(
                self._body, self._held, prices.ahead, prices.back, prices.state, prices.apart,
                np.stack(fabric.rates), self.limit))
        self.every = (self.rows, self._first, *self._describe())
        self.drop_dominated(self.frame.verdicts, each_of)
        self.needs = self._needs()
        self.bounds = self._bounds()

    def list_pipelines(
        self, pipelines: Sequence[Pipeline], rules: Capabilities | None
    ) -> None:
        """Search these pipelines; their layouts follow from no price."""
        self.pipelines = pipelines
        self.layouts = self._of_shape("layouts", lambda: Layouts(
            self.chain, pipelines, Runnable(
                rules, self.chain, self.job, pipelines, self.zeros, self.policies,
                self.signatures.longest, self.offload),
            self.own, self.lists, self.signatures.longest + 1))
        self.runnable = self.layouts.runnable

    def _frame(self) -> Frame:
        """Outer choices and candidates."""
        c, cluster = self.candidates, self.cluster

        def make() -> Frame:
            return Frame(c, self._useful, self.runnable)

        if not self._keeps_frame:
            return make()
        return self._of_shape("frame", make, cluster.size, cluster.group_sizes, c.choice)

    @property
    def _keeps_frame(self) -> bool:
        """Whether other questions get its frame: on levels without experts it has no price."""
        by_links, experts = self.candidates.fabric.by_links, self.chain.experts
        return self.kept.most > 0 and not by_links and experts is None

    def _of_shape(self, name: str, make: Callable[[], T], *more: Hashable) -> T:
        """What follows from the chain, the job, the space and the pipelines, and ``more``."""
        return self.kept.of((
            name, Same(self.chain), Same(self.signatures), self.job, self.space, self.offload,
            self.own, tuple(self.pipelines), *more), make)

    def _useful(self, micro_batch: int) -> dict[int, Bools]:
        """Expert pairs worth trying, by block."""
        compare = not (
            Offload.of(self.offload).activations  # transfers hide under whole layers
            or self.runnable.names(("ep", "etp", "expert_ranks"), but="combined"))
        return useful_pairs(
            self.candidates, self.policies, micro_batch, compare, "combined" in self._schedules,
            any(SCHEDULES[name].parts for name in self._schedules))

    def _describe(self) -> tuple[Any, ...]:
        """``columns``, found for the first time."""
        rows = self.rows
        tp, sp, cp = (column[rows.split] for column in self.candidates.splits[:3])
        replicas = np.array([o.outer_dp for o in self.outers], dtype=np.int64)
        self._shards = rows.block // np.where(sp | self.job.stack.scatter_gather, 1, tp)
        self._relayed = rows.samples / (cp * np.where(sp, tp, 1))
        self._hybrid = (replicas[self.outer] > 1) & (rows.block > tp)
        return self.columns

    def drop_dominated(self, verdict: Ints, each_of: Map = map) -> None:
        """Leave out rows that another of the same block beats whatever layers it holds, and that
        can be run where it can (``verdict``, a number for rows that can be run alike)."""
        rows = self.rows
        if not len(self._body):
            return
        outer = self.outer
        # Rows of a block come by start, and at each start with the same degrees. One is no reason
        # to leave out another that the software can run where it cannot run the first.
        by = np.lexsort((np.arange(len(outer)), verdict, rows.block, outer))
        changes = np.any([np.diff(column[by]) for column in (outer, rows.block, verdict)], axis=0)
        begin = np.array([0, *np.flatnonzero(changes) + 1, len(outer)])
        starts = np.cumsum([0, *(changes | (np.diff(rows.start[by]) != 0))])
        choices = np.bincount(starts)[starts[begin[:-1]]]
        ahead, back = self.prices.compared(self.together)
        kept = compiled.load(("undominated",))[0].undominated(Blocks(
            ahead=ahead, back=back, state=self.prices.state, body=self._body[by],
            held=self._held[by], shards=self._shards[by], relayed=self._relayed[by],
            hybrid=self._hybrid[by], overlaps=self._overlaps, begin=begin, choices=choices),
            each_of)
        kept = np.sort(by[np.flatnonzero(kept)])
        self.keep(kept)
        self.runnable.keep(kept)

    @property
    def columns(self) -> tuple[Any, ...]:
        """What is known of each candidate besides ``rows``; (C,) each."""
        return self._body, self._held, self._shards, self._relayed, self._hybrid

    def take(self, every: tuple[Any, ...], kept: Ints) -> None:
        """Candidates, where those of each outer choice begin, and ``columns``: some of these."""
        rows, first, *columns = every
        self.rows, self._first = rows.take(kept), firsts(first, kept)
        self._body, self._held, self._shards, self._relayed, self._hybrid = (
            column[kept] for column in columns)

    @property
    def outer(self) -> Ints:
        """(C,) number of the outer choice of each candidate."""
        return np.repeat(np.arange(len(self.outers)), np.diff(self._first))

    def keep(self, kept: Ints) -> None:
        """Some of the candidates that are left."""
        self.take((self.rows, self._first, *self.columns), kept)

    def keep_bodies(self) -> None:
        """Forget the prices of bodies that no candidate has."""
        used, self._body = np.unique(self._body, return_inverse=True)
        self.prices = self.prices.of_bodies(used)

    @cached_property
    def _overlaps(self) -> Floats:
        """(3,) of the stack; see ``Tables.overlaps``."""
        s = self.job.stack
        return np.array([s.overlap_zero3, s.overlap_grad_reduce, s.overlap_param_gather])

    def _needs(self) -> Floats:
        """Least bytes of a device under each outer choice; see ``needs``."""
        result = np.full(len(self.outers), np.inf)
        if not len(self._body):
            return result
        # Of a stage, buffers and work count once, what is kept and held for each layer.
        kept = self.prices.back[:, :, :, 2].min(axis=1)
        own = self.prices.state[:, :, :, STATE_RESIDENT].min(axis=1)
        for n, outer in enumerate(self.outers):
            span = self.span(n)
            if span.start == span.stop:
                continue
            each = kept[self._body[span]] + own[self._held[span]]
            spread = (self.rows.block[span, None] * each).min(axis=0)
            result[n] = self.copies * self._all(spread) / outer.stride
        return result

    def _bounds(self) -> Floats:
        """Least seconds of all layers under each outer choice; see ``bounds``."""
        result = np.full(len(self.outers), np.inf)
        self.least = np.full((len(self.outers), len(self.chain.kinds)), np.inf)
        for n in np.flatnonzero(self.needs <= self.limit * (1.0 + 1e-9)).tolist():
            self.least[n] = (self._alone(self.span(n)) * self.weight(n)[:, None]).min(axis=0)
            result[n] = self._all(self.least[n])
        return result

    def _all(self, each: Floats) -> float:
        """Sum over all layers of a figure of each kind."""
        counts = np.bincount(self.signatures.whole_kinds, minlength=len(each))
        return float(counts[counts > 0] @ each[counts > 0])

    def _alone(self, span: slice) -> Floats:
        """(C, T) least seconds of a micro-batch in a layer of each kind; inf: it does not fit."""
        seconds, kept, held = self.prices.least
        body, state = self._body[span], self._held[span]
        return np.where(kept[body] + held[state] <= self.limit, seconds[body], np.inf)

    def within(self, limit: float) -> Builder:
        """The same for devices of which a plan may use ``limit`` bytes."""
        other = copy(self)
        other.limit = limit
        other.floors = None  # they are of the limit that the devices have
        other.bounds = other._bounds()
        return other

    def weight(self, number: int) -> Floats:
        """(C,) seconds of a step for each of a micro-batch on each candidate's block."""
        outer, block = self.outers[number], self.rows.block[self.span(number)]
        return outer.micro_batches * block / outer.stride

    def span(self, number: int) -> slice:
        """Rows of an outer choice."""
        return slice(int(self._first[number]), int(self._first[number + 1]))

    # ------------------------------------------------------------ one outer choice

    def divided(self, number: int) -> Bools:
        """(C, Z) ways of ZeRO that differ: where HSDP is the same as sharding over all, one."""
        shard = np.array([shard for _, shard in self.zeros], dtype=np.bool_)
        return self._hybrid[self.span(number), None] | ~shard

    @cached_property
    def first_layers(self) -> Bools:
        """(most layers of a stage + 1,) see ``Tables.first_layers``."""
        layers = self.space.recompute_layers
        return np.array([bool(r) and (layers is None or r in layers)
                         for r in range(self.signatures.longest + 1)])

    @cached_property
    def deepest(self) -> int:
        """Most stages of a plan."""
        return int(np.flatnonzero(self.depths).max(initial=0))

    def degrees(self, number: int, option: int) -> dict[str, Any]:
        """Degrees, ZeRO and recompute of an option of outer choice ``number``.

        ``option`` is (row x Z + zero) x R + policy, times (most layers + 1), plus first layers.
        """
        rest, layers = divmod(option, self.signatures.longest + 1)
        rest, chosen = divmod(rest, len(self.policies))
        row, way = divmod(rest, len(self.zeros))
        row += int(self._first[number])
        split, pair = int(self.rows.split[row]), int(self.rows.pair[row])
        s, e = self.candidates.splits, self.candidates.pairs
        tp, cp, block = int(s.tp[split]), int(s.cp[split]), int(self.rows.block[row])
        cp_comm, cp_a2a = exchange_named(cp, int(s.inner[split]), bool(s.gather[split]))
        zero, shard = self.zeros[way]
        bits = self.policies[chosen]
        modules = tuple(name for name in MODULES if bits != FULL and bits & policy("", [name]))
        return {
            "block": block, "dp_in": block // (tp * cp), "tp": tp, "sp": bool(s.sp[split]),
            "cp": cp, "cp_comm": cp_comm, "cp_a2a": cp_a2a, "ep": int(e.ep[pair]),
            "etp": int(e.etp[pair]) or tp, "zero": zero, "shard": ("dp", "dp_in")[shard],
            "recompute": "full" if bits == FULL else "selective" if bits else "none",
            "recompute_modules": modules, "recompute_layers": layers or None,
        }

    def tables(self, number: int, gpipe: bool) -> Tables:
        """Arrays from which the options of outer choice ``number`` are selected."""
        outer, span = self.outers[number], self.span(number)
        g, stack = self.signatures, self.job.stack
        most = min(outer.micro_batches, max(self.deepest, 1))
        cap = np.where(g.deepest > 0, outer.micro_batches if gpipe else
                       np.minimum(g.deepest, most), 0)
        layers = self.space.recompute_layers
        return Tables(
            ahead=self.prices.ahead, back=self.prices.back, state=self.prices.state,
            body=self._body[span], held=self._held[span], price=self._prices(number)[0],
            weight=self.weight(number),
            shards=self._shards[span], relayed=self._relayed[span], hybrid=self._hybrid[span],
            shard=np.array([shard for _, shard in self.zeros], dtype=np.int64),
            forbidden=np.array([z not in stack.zero_with_pipeline for z, _ in self.zeros]),
            keep_none=self.space.allows("recompute", "none"),
            full=self.policies.index(FULL) if FULL in self.policies else -1,
            first_layers=self.first_layers,
            most_layers=MOST if layers is None else layers.largest,
            last=g.last, part=g.part, seen=g.seen, stretch=g.stretch, among=g.among,
            marked=g.marked, way=g.way, ancestor=g.ancestor,
            kinds=np.flatnonzero([kind.checkpointed for kind in self.chain.kinds]),
            relay=g.relay, received=outer.micro_batches * outer.micro_batch * g.received,
            cap=cap.astype(np.int64), whole=g.whole,
            # Sums in another order than ``evaluate``'s must not end on the other side.
            limit_bytes=self.limit * (1.0 - 1e-12),
            micro_batches=outer.micro_batches, least=self.least[number],
            overlaps=self._overlaps, root=g.root, second=g.second, third=g.third,
            children=g.children, begin=g.begin, before=g.before, depth=g.depth, gpipe=gpipe,
        )

    def _prices(self, number: int) -> tuple[Ints, dict[tuple[int, int], int]]:
        """(C,) number of the block size and class of places of each row, and those numbers."""
        span = self.span(number)
        places, block = self.candidates.places(self.outers[number]), self.rows.block[span]
        classes = np.zeros(len(block), dtype=np.int64)
        for size in np.unique(block).tolist():
            here = block == size
            classes[here] = places.classes(size)[self.rows.start[span][here]]
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
        places, (_, prices) = self.candidates.places(outer), self._prices(number)
        block = self.rows.block[self.span(number)]
        sizes = np.unique(block if rows is None else block[rows])
        unit = math.gcd(*sizes.tolist())
        starts = np.arange(0, outer.stride + 1, unit)
        return unit, sizes, starts, np.stack(
            [places.prices(size, starts, prices) for size in sizes.tolist()])

    def spans(self, number: int) -> Spans:
        """Least seconds of the stages of an outer choice, by layers and block alone."""
        outer, span, g = self.outers[number], self.span(number), self.signatures
        unit, sizes, starts, price = self.positions(number)
        order, prices = self.order, self._prices(number)[0]
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
            signature=g.index, part=g.part, whole=g.whole, chain=self.chain.is_chain)

    def problem(
        self, number: int, ends: Ints, options: tuple[Any, ...], gpipe: bool
    ) -> tuple[int, Problem]:
        """Devices per position, and the arrays of an outer choice.

        ``ends`` is what ``_kernels.spans.useful`` returned, ``options`` what
        ``_kernels.options.select`` did; block sizes without an option are left out.
        """
        outer = self.outers[number]
        first, degrees, held, shards, table = options
        each = len(self.zeros) * len(self.policies) * (self.signatures.longest + 1)
        unit, sizes, starts, price = self.positions(number, np.unique(degrees // each))
        per_byte, latency = self.candidates.places(outer).hops(starts)
        return unit, Problem(
            micro_batches=outer.micro_batches,
            sizes=sizes // unit,
            lanes=sizes,
            price=price,
            signature=self.signatures.index,
            gpipe=gpipe,
            ends=ends,
            first=first,
            option=table,
            held=held,
            shards=shards,
            hop_bytes=outer.micro_batch * self.boundaries,
            hop_per_byte=per_byte,
            hop_latency=latency,
            both=self.both,
            depths=self.depths,
        )

    @cached_property
    def order(self) -> Ints:
        """(N,) kind of each layer."""
        return np.array(self.chain.order, dtype=np.int64)

    @cached_property
    def marked(self) -> Ints:
        """(N+1,) layers in front of each cut that recompute applies to."""
        kinds = self.chain.kinds
        return np.cumsum([0, *(kinds[kind].checkpointed for kind in self.chain.order)])

    @cached_property
    def both(self) -> float:
        """Ways that a hand-over counts."""
        return hop(1.0, 1.0, 1.0, 0.0, self.job.stack).both

    @cached_property
    def boundaries(self) -> Floats:
        """Bytes per sample handed over at each cut; 0 at both ends."""
        inner = self.signatures.downsets[1:-1]
        return np.array([0.0, *(boundary_bytes(self.chain, self.job, d) for d in inner), 0.0])
