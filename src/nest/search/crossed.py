"""Pipelines whose stages hold two copies of the model together (DualPipe), as a space of their own.

They are searched behind all others, so that most candidates are left out before they are priced.
Proof: docs/proofs.md, Lemma 46 (DualPipe).

Shapes: C candidates, R recompute policies, T layer kinds, Q pipelines; others as in
``nest.search.tensors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import product

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import Way
from nest.costs.zero import state_costs
from nest.forms.chunk import STATE_RESIDENT
from nest.inputs.capabilities import Capabilities
from nest.model.schedules import RULES
from nest.search.cut_lists import body_layers
from nest.search.distinct import least_of
from nest.search.layer_prices import EXCHANGED, LayerPrices
from nest.search.runnable import Pipeline
from nest.search.tensors import Builder

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COPIES = 2


def crossed(
    builder: Builder, pipelines: Sequence[Pipeline], rules: Capabilities | None, limit: float
) -> Builder:
    """A builder of such pipelines, with the outer choices and prices of another one.

    Candidates that another one beats elsewhere stay: it need not beat them here. Those that take
    ``limit`` seconds or more are left out, and what only they need is not priced.
    """
    other = copy(builder)
    other.copies, other.floors = COPIES, None
    other.list_pipelines(pipelines, rules)
    other.take(builder.every, np.arange(len(builder.every[2])))  # no bodies: nothing is priced
    if len(other.rows.block):
        least = _Least(other)
        if limit < np.inf:
            other.take(builder.every, least.near(limit))
        other.prices = _with_states(other)
        if limit < np.inf:
            other.keep(np.flatnonzero(least.floors(limit) < limit))
        other.prices = other.prices.with_parts(other._body)
    other.runnable.look_at(other.rows, builder.candidates.splits, builder.candidates.pairs)
    other.needs = other._needs()
    other.bounds = other._bounds()
    return other


def _with_states(other: Builder) -> LayerPrices:
    """Prices with the states of layers that two stages hold, and what these exchange."""
    prices = other.prices
    held = np.zeros_like(prices.state)
    exchanged = np.zeros((*held.shape[:3], EXCHANGED))
    for n, _, _, states, state in prices.by_type:
        own = np.isin(states, other._held)
        state = state.take(np.flatnonzero(own))
        for kind, layer in enumerate(other.chain.kinds if own.any() else ()):
            # A way costs its seconds per byte and its latency, each so many times.
            ways = {way: state_costs(layer, state._replace(twin=Way(*(
                np.full(len(state.tp), float(x)) for x in way))), prices.settings[n])
                for way in ((0, 0), (1, 0), (0, 1))}
            held[states[own], :, kind] = prices.state_of(ways[0, 0], n)
            for column, (name, way) in enumerate(product(("sync", "gather"), ((1, 0), (0, 1)))):
                exchanged[states[own], :, kind, column] = (
                    getattr(ways[way], name) - getattr(ways[0, 0], name))
    return prices.replace(state=held, exchanged=exchanged)


class _Least:
    """What steps take at the least: no all-to-all of experts counts that another pass may hide."""

    def __init__(self, other: Builder) -> None:
        self.other, (begin, end), prices = other, other.chain.body, other.prices
        seconds = prices.ahead[:, None, :, 1] + prices.back[..., 1]
        if prices.exchange is not None:
            seconds = seconds - other.job.stack.overlap_ep * prices.all_to_alls().sum(axis=3)
        inside = np.unique(other.order[begin:end])
        self._whole = np.array(other.signatures.whole_kinds, dtype=np.int64)
        ends = [*self._whole[:begin], *self._whole[end:]]
        self._each, self._kept = (
            figure[..., inside].min(axis=2) for figure in (seconds, prices.back[..., 2]))
        self._outside, self._many = seconds[..., ends].sum(axis=2), end - begin

    def _outers(self) -> tuple[Ints, Ints, Ints]:
        """Of each candidate the number of its outer choice, micro-batches and stride; (C,)."""
        outer = self.other.outer
        micro_batches, stride = np.array(
            [(o.micro_batches, o.stride) for o in self.other.outers]).T[:, outer]
        return outer, micro_batches, stride

    def near(self, limit: float) -> Ints:
        """Candidates with which all layers take less than ``limit``, on as many stages as there are
        at the most."""
        rows, (outer, micro_batches, stride) = self.other.rows, self._outers()
        alone = (self._many * self._each + self._outside).min(axis=1)[self.other._body]
        if rows.start.any():
            alone = least_of(alone, rows.degrees(outer)[1])
        deepest = np.minimum(stride // rows.block, max(one.pp for one in self.other.pipelines))
        found: Ints = np.flatnonzero((deepest > 1) & (
            micro_batches * alone < limit * (1.0 + 1e-9) * np.maximum(deepest, 1)))
        return found

    def floors(self, limit: float) -> Floats:
        """(C,) least seconds of a step, whatever ZeRO and recompute; inf: nothing fits, or it takes
        ``limit`` or more.

        A stage takes half of the micro-batches through all layers that it holds, the first one
        through both ends of the model too. Before its first backward it runs pp - 1 - s forwards of
        the part that is nearer to an end, and s + 1 of the other one, s counted from that end.
        """
        other, (outer, micro_batches, stride) = self.other, self._outers()
        few = [n for n, (zero, _) in enumerate(other.zeros) if zero < 2]
        held = other.prices.state[..., STATE_RESIDENT][:, few].min(axis=1, initial=np.inf)
        fixed = COPIES * held[:, self._whole].sum(axis=1)
        figures = [self._each[other._body], self._kept[other._body], self._outside[other._body],
                   fixed[other._held][:, None]]
        if other.rows.start.any():
            same = other.rows.degrees(outer)[1]
            figures = [least_of(figure, same) for figure in figures]
        found, alone = np.full(len(outer), np.inf), self._many * figures[0] + figures[2]
        for k, one in enumerate(other.pipelines):
            pp, part = one.pp, np.arange(one.pp)
            at = np.flatnonzero((micro_batches >= RULES[one.schedule].rounds * pp)
                                & (micro_batches % COPIES == 0) & (other.rows.block * pp <= stride)
                                & (micro_batches * alone.min(axis=1) < limit * pp))
            if not len(at):
                continue
            each, kept, outside, held = (figure[at] for figure in figures)
            known, layouts = other.layouts.of(np.array([k])), other.layouts
            parts = body_layers(other.chain, known.layouts[
                known.begin[layouts.first[k]:layouts.last[k], None] + np.arange(pp + 1)])
            own = parts + parts[:, ::-1]
            holds = parts @ (2 * np.where(2 * part < pp, pp - 1 - part, pp - part))
            for front, inner, so_many in zip(
                    own[:, 0], own[:, 1:-1].max(axis=1, initial=0), holds, strict=True):
                time = np.maximum(front * each + outside, inner * each)
                time = np.maximum(time, COPIES / pp * alone[at])
                fits = held + so_many * kept <= other.limit * (1.0 + 1e-9) * pp
                time = np.where(fits, time, np.inf).min(axis=1) * micro_batches[at] / COPIES
                found[at] = np.minimum(found[at], time)
        return found * (1.0 - 1e-9)
