"""Time and memory of every stage that Piper may form.

Shapes: K kinds of layers, C columns (a way to split over t devices, and d data-parallel ranks),
J cuts that a stage may end at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nest.costs.memory import limit_bytes
from nest.costs.stage import hop
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.planners.flat import (
    Array,
    BodyPrices,
    Cuts,
    Ints,
    LayerSplit,
    flat_network,
    full_allowed,
    most_that_fit,
    replicated,
)

Column = tuple[LayerSplit, int]


class PiperStages:
    """Time-per-sample of stages by micro-batches in flight and recompute.

    A stage of d ranks takes every d-th micro-batch on each: its time-per-sample is
    (compute + hand-overs on both sides) / d + gradient reduction / micro-batches of the step
    (``getAllTPSsForIdealPair`` of the program). Each device holds y = s / d micro-batches, with s
    the sum of D of this stage and all behind it; a stage may run the first r of its layers
    again. The fewest that fit are chosen: what the program's knapsack gives where layers are
    alike. In a graph with branches all layers run again, or none.

    Parameters
    ----------
    columns : ways to split with data-parallel degrees; C of them.
    prices : layers under the ways of the columns; (K, C).
    mbs : samples of a micro-batch.
    common : D, see :class:`nest.planners.piper.piper.Piper`.
    """

    def __init__(
        self, cuts: Cuts, cluster: Cluster, job: Job, space: SearchSpace,
        columns: Sequence[Column], prices: BodyPrices, mbs: int, common: int,
    ) -> None:
        self.cuts, self.space, self.prices, self.common = cuts, space, prices, common
        self.columns, self.limit = columns, limit_bytes(cluster.device, job)
        self.ranks = np.array([d for _, d in columns], dtype=np.int64)
        flat, found = flat_network(cluster), [way for way, _ in columns]
        held = replicated(cuts.chain, flat, job, found, self.ranks.tolist())
        self._resident = np.stack([c.parameters + c.gradients + c.optimizer for c in held])
        self._sync = np.stack([c.sync for c in held]) / (job.global_batch // mbs)
        self._hops = _hops(cuts, flat, job, found, mbs)
        self._none, self._full = (space.allows("recompute", p) for p in ("none", "full"))
        self._extra, self._spared, self._again = self._prefixes()
        self._cache: dict[int, tuple[Array, ...]] = {}

    def _prefixes(self) -> tuple[Array, Array, Ints]:
        """Seconds and bytes of recomputing the layers before each cut, and their number.

        Of shape (J, C) and (J,); empty if the layers are not a chain, or only all of them may run
        again.
        """
        chain, partly = self.cuts.chain, self.space.recompute_layers
        if not (chain.is_chain and self._full and (partly is None or partly.smallest < len(chain))):
            empty = np.zeros((0, len(self.columns)))
            return empty, empty, np.zeros(0, dtype=np.int64)
        order = np.array(chain.order)
        zero = np.zeros((1, len(self.columns)))
        again = np.array([kind.checkpointed for kind in chain.kinds], dtype=np.int64)[order]
        return (np.concatenate([zero, np.cumsum(self.prices.again[order], axis=0)]),
                np.concatenate([zero, np.cumsum(self.prices.spared[order], axis=0)]),
                np.concatenate([[0], np.cumsum(again)]))

    def _base(self, i: int) -> tuple[Array, ...]:
        """Of the stages that begin at cut ``i``, (J, C) each.

        Time-per-sample without recompute, the extra time with recompute of all layers, free bytes
        beside parameters and work without and with recompute, bytes of a micro-batch, and the part
        of them that full recompute saves.
        """
        if i not in self._cache:
            cuts, p = self.cuts, self.prices
            after = cuts.after(i)
            busy = cuts.sums(i, p.forward + p.backward) + self._hops[i] + self._hops[after]
            room = self.limit - cuts.sums(i, self._resident)
            share = self.common / self.ranks
            work, full_work = (share * cuts.largest(i, each) for each in (p.work, p.full_work))
            self._cache[i] = (
                busy / self.ranks + cuts.sums(i, self._sync), cuts.sums(i, p.again) / self.ranks,
                room - work, room - np.maximum(work, full_work),
                cuts.sums(i, p.kept), cuts.sums(i, p.spared))
        return self._cache[i]

    def deepest(self, i: int, limit: float) -> Array:
        """Most micro-batches y with which stages from cut ``i`` on take at most ``limit``; (J, C).

        Zero if a stage takes longer even so. Recompute is used up to the limit.
        """
        base, again, room, full_room, kept, spared = self._base(i)
        found = np.zeros(base.shape)
        if self._none:
            found = np.where(base <= limit, most_that_fit(room, kept), 0.0)
        if not self._full:
            return found
        layers = self.cuts.recomputed(i)
        allowed = full_allowed(self.space, layers)[:, None] & (base + again <= limit)
        found = np.where(allowed, np.maximum(found, most_that_fit(full_room, kept - spared)),
                         found)
        rows = self._partial(i)
        if len(rows):
            more = self._extra[rows] - self._extra[i]
            less = self._spared[rows] - self._spared[i]
            number = self._again[rows] - self._again[i]
            ends = np.searchsorted(number, layers, side="left")[:, None]
            for c in range(base.shape[1]):
                slack = (limit - base[:, c]) * self.ranks[c]
                at = np.searchsorted(more[:, c], slack, side="right")
                at = np.minimum(at, ends[:, 0]) - 1
                many = most_that_fit(full_room[:, c], kept[:, c] - less[np.maximum(at, 0), c])
                found[:, c] = np.where(at >= 0, np.maximum(found[:, c], many), found[:, c])
        return found

    def _partial(self, i: int) -> Ints:
        """Cuts after the first r layers of stages from cut ``i`` on, for each r of the space."""
        if not len(self._again):
            return np.zeros(0, dtype=np.int64)
        number = self._again[i:] - self._again[i]
        rows = i + np.flatnonzero(np.diff(number, prepend=0) > 0)
        given = self.space.recompute_layers
        keep = [given is None or int(n) in given for n in number[rows - i]]
        return np.asarray(rows[np.array(keep, dtype=bool)], dtype=np.int64)

    def time(self, i: int, j: int, column: int, in_flight: int) -> tuple[float, str, int | None]:
        """Least time-per-sample of one stage that fits, its recompute policy and layers."""
        at = int(np.searchsorted(self.cuts.after(i), j))
        base, again, room, full_room, kept, spared = (
            float(part[at, column]) for part in self._base(i))
        if self._none and in_flight * kept <= room:
            return base, "none", None
        layers = int(self.cuts.recomputed(i)[at])
        for row in self._partial(i).tolist():
            number = int(self._again[row] - self._again[i])
            less = float(self._spared[row, column] - self._spared[i, column])
            if number < layers and in_flight * (kept - less) <= full_room:
                more = float(self._extra[row, column] - self._extra[i, column])
                return base + more / int(self.ranks[column]), "full", number
        return base + again, "full", None


def _hops(cuts: Cuts, flat: Cluster, job: Job, found: Sequence[LayerSplit], mbs: int) -> Array:
    """Round trip of a micro-batch at each cut over the flat network; (J, C)."""
    per_byte, latency = 1.0 / flat.resolved_bandwidth[0], flat.levels[0].latency
    hops = np.array([
        [hop(size * mbs, way.tp if way.sp or job.stack.scatter_gather else 1, per_byte, latency,
             job.stack).both for way in found] for size in cuts.bytes.tolist()])
    hops[0] = hops[-1] = 0.0
    return hops
