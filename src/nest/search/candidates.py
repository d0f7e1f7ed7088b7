"""The candidates for a stage: degrees on blocks, under each outer choice.

Shapes: S splits (tp, sp, cp and how cp exchanges), E expert pairs (ep, etp), C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import Site, exchange_of
from nest.costs.distinct import distinct_rows
from nest.costs.network.fabric import Fabric, GroupShapes
from nest.costs.network.placement import strides
from nest.inputs.space import CpComm
from nest.model.legality import cp_problem, divisors, expert_problem, tensor_degrees, tp_problem
from nest.search.exchanges import Exchanges
from nest.search.query import Query
from nest.search.starts import BlockPlaces

Ints = NDArray[np.int64]
FORMS = get_args(CpComm)
"""How cp exchanges, in the order of :attr:`Splits.form`."""


class Outer(NamedTuple):
    """One outer choice, which all stages share."""

    outer_dp: int
    stride: int
    micro_batch: int
    micro_batches: int


class Splits(NamedTuple):
    """Ways to split a sample over devices; arrays of shape (S,)."""

    tp: Ints
    sp: NDArray[np.bool_]
    cp: Ints
    inner: Ints
    """Ranks of cp that exchange by all-to-all; see :class:`nest.costs.choices.Body`."""
    gather: NDArray[np.bool_]

    @property
    def form(self) -> Ints:
        """Index into ``FORMS``."""
        found: Ints = np.select(
            [self.gather, self.inner == 1, self.inner == self.cp], [2, 0, 1], 3)
        return found

    @property
    def width(self) -> Ints:
        """Devices that share a sample."""
        return self.tp * self.cp


class Pairs(NamedTuple):
    """Degrees of experts; arrays of shape (E,). etp 0 stands for tp (models without experts)."""

    ep: Ints
    etp: Ints

    @property
    def width(self) -> Ints:
        """Devices that share the experts."""
        return self.ep * np.maximum(self.etp, 1)


class Rows(NamedTuple):
    """C candidates; int64 arrays of shape (C,). ``split`` and ``pair`` are indices."""

    block: Ints
    start: Ints
    """First device of one place of each class that the block may take."""
    samples: Ints
    """Per-device micro-batch."""
    split: Ints
    pair: Ints

    def take(self, some: Ints | slice) -> Rows:
        """Some of them."""
        return Rows(*(column[some] for column in self))

    def degrees(self, *outer: Ints) -> tuple[Ints, Ints]:
        """Those that differ in more than their places, ``outer`` counted: the first of each, and
        the number of each row's."""
        return distinct_rows(*outer, self.block, self.samples, self.split, self.pair)


class Listing(NamedTuple):
    """C candidates of all outer choices, and what is known of each; arrays of shape (C,)."""

    rows: Rows
    first: Ints
    """(outer choices + 1,) where those of each begin."""
    body: Ints
    """Number of its body in the prices of layers."""
    state: Ints
    """Number of its state."""
    shards: Ints
    """Pieces of what it hands over that travel side by side."""
    relayed: NDArray[np.float64]
    """Bytes on a device of a byte per sample that a stage passes on."""
    hybrid: NDArray[np.bool_]
    """HSDP is not the same as sharding over all."""

    def take(self, some: Ints) -> Listing:
        """Some of them, by number, ascending."""
        first: Ints = np.searchsorted(some, self.first)
        return Listing(self.rows.take(some), first, self.body[some], self.state[some],
                       self.shards[some], self.relayed[some], self.hybrid[some])

    @property
    def outer(self) -> Ints:
        """Number of the outer choice of each candidate."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def outers(query: Query) -> list[Outer]:
    """Outer choices of a space, by outer_dp, stride and micro_batch."""
    found, cluster, job, space = [], query.cluster, query.job, query.space
    for outer_dp in divisors(job.global_batch):
        if outer_dp > cluster.size or not space.allows("outer_dp", outer_dp):
            continue
        for stride in strides(cluster.size, outer_dp, cluster.group_sizes):
            for size in divisors(job.global_batch // outer_dp):
                if space.allows("micro_batch", size):
                    count = job.global_batch // outer_dp // size
                    found.append(Outer(outer_dp, stride, size, count))
    return found


class Candidates:
    """Lists candidates.

    Parameters
    ----------
    alike : all stages of a pipeline are, see :class:`nest.search.starts.BlockPlaces`.

    Attributes
    ----------
    splits, pairs : what their ``split`` and ``pair`` refer to; legal for the model and the job.
    """

    def __init__(self, query: Query, fabric: Fabric, alike: bool = False) -> None:
        self.query, self.chain, self.cluster = query, query.chain, query.cluster
        self.job, self.space = query.job, query.space
        self.fabric, self._alike = fabric, alike
        self.splits = self._splits()
        self.pairs = self._pairs()
        self._exchanges: Exchanges | None = None
        self._open: dict[tuple[int, int], NDArray[np.bool_]] = {}
        """(S,) splits to list, by samples and dp_in."""
        self._places: dict[tuple[int, int], BlockPlaces] = {}
        self._base: Candidates | None = None

    def on(self, fabric: Fabric) -> Candidates:
        """The same in another network, by levels of the same sizes; what has no price is shared."""
        other = copy(self)
        other.fabric, other._places, other._base = fabric, {}, self
        return other

    @property
    def extent(self) -> int:
        """Grows when what is known does."""
        return len(self._places)

    def _splits(self) -> Splits:
        chain, job, space, size = self.chain, self.job, self.space, self.cluster.size
        experts = chain.experts is not None
        contexts = divisors(math.gcd(*chain.lengths(job.seq_len))) if chain.model else (1,)
        found = []
        for tp in tensor_degrees(chain, size):
            if not space.allows("tp", tp):
                continue
            if not experts and not (space.allows("etp", tp) and space.allows("ep", 1)):
                continue
            for sp in (True, False) if tp > 1 else (False,):
                if tp > 1 and not space.allows("sp", sp):
                    continue
                for cp in contexts:
                    if tp * cp > size or not space.allows("cp", cp):
                        continue
                    if tp_problem(chain, job, tp, sp, cp):
                        continue
                    found += [(tp, sp, cp, *exchange_of(name, cp, part))
                              for name, part in self._ways(cp)
                              if not cp_problem(chain, job, cp, name, tp, part)]
        tp_, sp_, cp_, inner, gather = np.array(found, dtype=np.int64).reshape(-1, 5).T
        return Splits(tp_, sp_.astype(bool), cp_, inner, gather.astype(bool))

    def _ways(self, cp: int) -> list[tuple[str, int]]:
        """Ways in which cp may exchange, as ``cp_comm`` and ``cp_a2a``."""
        if cp == 1:
            return [("p2p", 1)]
        space = self.space
        both = [("a2a+p2p", part) for part in divisors(cp)[1:-1] if space.allows("cp_a2a", part)]
        every = [("p2p", 1), ("a2a", 1), ("all_gather", 1), *both]
        return [(name, part) for name, part in every if space.allows("cp_comm", name)]

    def list_only(
        self, listed: NDArray[np.bool_], exchanges: Exchanges | None, divides: bool
    ) -> None:
        """Leave out all other splits; and those that ``exchanges`` finds worse than another.

        ``divides``: leave out those that divide samples too, where ranks may take whole ones.
        """
        space, batch = self.space, self.job.global_batch
        keys = [(samples, dp_in) for dp_in in divisors(batch) if space.allows("dp_in", dp_in)
                for samples in divisors(batch // dp_in) if space.allows("mbs", samples)
                if space.allows("micro_batch", samples * dp_in)]
        left = np.tile(listed, (len(keys), 1))
        if divides:
            self._leave_out_divided(keys, left)
        if exchanges is not None and not self.fabric.by_links:
            self._leave_out_worse(keys, left, exchanges)
        self._open = dict(zip(keys, left, strict=True))
        # On links the places of blocks tell, which outer choices differ in.
        self._exchanges = exchanges if self.fabric.by_links else None

    def _leave_out_divided(self, keys: list[tuple[int, int]], left: NDArray[np.bool_]) -> None:
        """Of ``left``, (keys, S), splits that divide what could be whole: docs/proofs.md, Lemma 17
        (whole samples)."""
        s, space, degrees = self.splits, self.space, self.splits.tp * 2 + self.splits.sp
        whole = np.isin(degrees, degrees[left.all(axis=0) & (s.cp == 1)])
        for cp in np.unique(s.cp[s.cp > 1]).tolist():
            here = [n for n, (samples, dp_in) in enumerate(keys)
                    if samples % cp == 0 and space.allows("dp_in", dp_in * cp)
                    and space.allows("mbs", samples // cp)]
            left[np.ix_(here, whole & (s.cp == cp))] = False

    def _leave_out_worse(
        self, keys: list[tuple[int, int]], left: NDArray[np.bool_], exchanges: Exchanges
    ) -> None:
        """Of ``left``, (keys, S), what another exchange beats; inside blocks all places are alike.
        """
        key, split = np.nonzero(left & (self.splits.cp > 1))
        if not len(key):
            return
        samples, dp_in = np.array(keys, dtype=np.int64)[key].T
        block = dp_in * self.splits.width[split]
        fits = np.flatnonzero(block <= self.cluster.size)
        worse = fits[self._compared(
            exchanges, Site.alone(block[fits]), samples[fits], split[fits], key[fits])]
        left[key[worse], split[worse]] = False

    def _compared(
        self, exchanges: Exchanges, site: Site, samples: Ints, split: Ints, key: Ints
    ) -> NDArray[np.bool_]:
        """Where a split is worse than another with the same key and degrees, which are in a row."""
        s = self.splits
        columns = (key, s.tp[split], s.sp[split], s.cp[split])
        changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
        group = np.concatenate([[0], np.cumsum(changes)])
        several = np.flatnonzero(np.bincount(group)[group] > 1)
        worse = np.zeros(len(split), dtype=np.bool_)
        if len(several):
            mine = split[several]
            worse[several] = exchanges.worse(
                site.take(several), samples[several], *(column[mine] for column in (
                    s.tp, s.cp, s.inner, s.gather)),
                group=np.cumsum([0, *(np.diff(group[several]) != 0)]))
        return worse

    def _kept(
        self, outer: Outer, samples: int, dp_in: int, legal: NDArray[np.bool_]
    ) -> Ints:
        """Of the legal splits those to list."""
        split = np.flatnonzero(legal)
        if self._exchanges is None or not len(split):
            return split
        # Places differ: a split that is worse at each of them.
        block = dp_in * self.splits.width[split]
        starts = [self.places(outer).representatives(size) for size in block.tolist()]
        counts = np.array([len(each) for each in starts])
        row = np.repeat(np.arange(len(split)), counts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        order = np.lexsort((row, nth, block[row]))  # splits of equal blocks at one place in a row
        row = row[order]
        site = Site(np.concatenate(starts)[order], block[row],
                    np.full(len(row), outer.outer_dp), np.full(len(row), outer.stride))
        worse = self._compared(self._exchanges, site, np.full(len(row), samples), split[row],
                               nth[order])
        times: Ints = np.bincount(row[worse], minlength=len(split))
        kept: Ints = split[times < np.maximum(counts, 1)]
        return kept

    def _pairs(self) -> Pairs:
        moe, space, size = self.chain.experts, self.space, self.cluster.size
        found = [(1, 0)]
        if moe is not None:
            found = [(ep, etp) for etp in divisors(moe.ffn) for ep in divisors(moe.experts)
                     if ep * etp <= size and space.allows("ep", ep) and space.allows("etp", etp)
                     and not expert_problem(self.chain, ep, etp)]
        ep, etp = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return Pairs(ep, etp)

    def places(self, outer: Outer) -> BlockPlaces:
        """Places of blocks under an outer choice."""
        key = outer.outer_dp, outer.stride
        if key not in self._places:
            self._places[key] = self._base.places(outer).on(self.fabric) if self._base else (
                BlockPlaces(*key, self.fabric, self.shapes, self._alike))
        return self._places[key]

    def shapes(self, block: int) -> GroupShapes:
        """Shapes of the groups in a block of a size."""
        fits = block % self.splits.width == 0
        pairs = {(1, 1)} | {(max(int(etp), 1), int(ep)) for ep, etp, width in
                            zip(*self.pairs, self.pairs.width, strict=True) if block % width == 0}
        inside, inner = set(), {block}
        for tp, cp, part in {(int(tp), int(cp), int(part)) for tp, _, cp, part, _ in
                             np.stack(self.splits)[:, fits].T}:
            inside |= {(1, tp, False), (tp, part, part > 1), (tp * part, cp // part, cp > part),
                       (tp, block // tp, False)}
            inner.add(tp)
        for etp, ep in pairs:
            experts = ep * etp
            inside |= {(1, etp, False), (etp, ep, ep > 1), (experts, block // experts, False)}
            inner.add(experts)
        return tuple(sorted(inside)), tuple(sorted(inner))

    def blocks(self, micro_batch: int) -> Ints:
        """Block sizes over which a micro-batch may be spread, for any replicas; ascending."""
        found = np.multiply.outer(np.array(divisors(micro_batch)), self.splits.width)
        return np.unique(found[found <= self.cluster.size])

    def _legal(self, outer: Outer) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
        """Samples of a device, dp_in, and splits that fit and may be listed, (S,)."""
        space = self.space
        for dp_in in divisors(outer.micro_batch):
            samples = outer.micro_batch // dp_in
            if dp_in > outer.stride or not (
                    space.allows("dp_in", dp_in) and space.allows("mbs", samples)):
                continue
            block = dp_in * self.splits.width
            legal = (block <= outer.stride) & self._open[samples, dp_in]
            for g in self.cluster.group_sizes:
                legal &= (block <= g) | (block % g == 0)
            yield samples, dp_in, legal

    def price_places(self, each_of: Callable[..., Iterable[None]]) -> None:
        """Price in threads, of networks of links, what :meth:`rows` asks for one by one."""
        if not self.fabric.by_links:
            return
        sites: dict[int, Ints] = {}
        asked = {(places := self.places(outer), size)
                 for outer in outers(self.query)
                 for _, dp_in, legal in self._legal(outer)
                 for size in (dp_in * self.splits.width[legal]).tolist()}
        for places, size in asked:
            sites[size] = np.union1d(sites.get(size, []), places.sites(size)).astype(np.int64)
        # The largest groups first: they take longest.
        self.fabric.fill(sorted(
            ((sites[size], (size, *shape)) for size in sites for shape in self.shapes(size)[0]),
            key=lambda group: -group[1][2]), each_of)

    def rows(self, outer: Outer, useful: dict[int, NDArray[np.bool_]]) -> Rows:
        """Candidates of an outer choice, by block and start, then by split and pair.

        ``useful`` says for each block which pairs to take; (E,).
        """
        places, parts = self.places(outer), []
        for samples, dp_in, legal in self._legal(outer):
            block = dp_in * self.splits.width
            fitting = self._kept(outer, samples, dp_in, legal)
            row, pair = np.nonzero([useful[size] for size in block[fitting].tolist()] or [[]])
            split = fitting[row]
            parts.append(np.stack([block[split], np.full_like(split, samples), split, pair]))
        if not any(part.size for part in parts):
            return Rows(*np.zeros((5, 0), dtype=np.int64))
        block, samples_, split, pair = np.concatenate(parts, axis=1)
        sizes, size = np.unique(block, return_inverse=True)
        starts = [places.representatives(one) for one in sizes.tolist()]
        counts = np.array([len(each) for each in starts])
        times = counts[size]
        at = np.repeat(np.arange(len(block)), times)
        nth = np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
        start = np.concatenate(starts)[(np.cumsum(counts) - counts)[size[at]] + nth]
        order = np.lexsort((pair[at], split[at], start, block[at]))
        at = at[order]
        return Rows(block[at], start[order], samples_[at], split[at], pair[at])
