"""Pipelines whose stages hold two copies of the model together (DualPipe), as a space of their own.

They are searched behind all others, so that most candidates are left out before they are priced.
Proof: docs/proofs.md, Lemma 46 (DualPipe).

Shapes: C candidates, R recompute policies, T layer kinds, Q pipelines; others as in
``nest.search.tensors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import Way
from nest.costs.distinct import least_of
from nest.costs.zero import state_costs
from nest.schedules.chunk import STATE_RESIDENT
from nest.schedules.registry import SCHEDULES
from nest.search.cache import Cache
from nest.search.cut_lists import body_layers
from nest.search.formulating import repriced, ruled
from nest.search.layer_prices import EXCHANGED, LayerPrices
from nest.search.runnable import Pipeline
from nest.search.tensors import Formulation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COPIES = 2


def dualpipe(
    base: Formulation, pipelines: Sequence[Pipeline], limit: float, cache: Cache
) -> Formulation:
    """The formulation of such pipelines, with the outer choices and prices of another one.

    Candidates that another one beats elsewhere stay: it need not beat them here. Those that take
    ``limit`` seconds or more are left out, and what only they need is not priced.
    """
    f = repriced(base, pipelines, cache, COPIES)
    f = f.take(np.arange(len(f.listing.body)))  # no bodies: nothing is priced
    if len(f.listing.body):
        least = _Least(f)
        if limit < np.inf:
            f = f.take(least.near(f, limit))
        f = replace(f, prices=_with_states(f))
        if limit < np.inf:
            f = f.take(np.flatnonzero(least.bounds(f, limit) < limit))
        f = replace(f, prices=f.prices.with_parts(f.listing.body))
    return ruled(f)


def _with_states(f: Formulation) -> LayerPrices:
    """Prices with the states of layers that two stages hold, and what these exchange."""
    prices = f.prices
    held = np.zeros_like(prices.state)
    exchanged = np.zeros((*held.shape[:3], EXCHANGED))
    for n, _, _, states, state in prices.by_type:
        own = np.isin(states, f.listing.state)
        state = state.take(np.flatnonzero(own))
        for kind, layer in enumerate(f.query.chain.kinds if own.any() else ()):
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

    def __init__(self, f: Formulation) -> None:
        (begin, end), prices, choices = f.query.chain.body, f.prices, f.choices
        seconds = prices.beside()
        inside = np.unique(choices.order[begin:end])
        self._whole = np.array(choices.signatures.whole_kinds, dtype=np.int64)
        ends = [*self._whole[:begin], *self._whole[end:]]
        self._each, self._kept = (
            figure[..., inside].min(axis=2) for figure in (seconds, prices.back[..., 2]))
        self._outside, self._many = seconds[..., ends].sum(axis=2), end - begin

    def near(self, f: Formulation, limit: float) -> Ints:
        """Candidates with which all layers take less than ``limit``, on as many stages as there are
        at the most."""
        rows, (micro_batches, stride) = f.listing.rows, f.sites()
        alone = (self._many * self._each + self._outside).min(axis=1)[f.listing.body]
        if rows.start.any():
            alone = least_of(alone, rows.degrees(f.listing.outer)[1])
        deepest = np.minimum(stride // rows.block, max(one.pp for one in f.part.pipelines))
        found: Ints = np.flatnonzero((deepest > 1) & (
            micro_batches * alone < limit * (1.0 + 1e-9) * np.maximum(deepest, 1)))
        return found

    def bounds(self, f: Formulation, limit: float) -> Floats:
        """(C,) least seconds of a step, whatever ZeRO and recompute; inf: nothing fits, or it takes
        ``limit`` or more.

        A stage takes half of the micro-batches through all layers that it holds, the first one
        through both ends of the model too. Before its first backward it runs pp - 1 - s forwards of
        the part that is nearer to an end, and s + 1 of the other one, s counted from that end.
        """
        rows, (micro_batches, stride) = f.listing.rows, f.sites()
        few = [n for n, (zero, _) in enumerate(f.choices.zeros) if zero < 2]
        held = f.prices.state[..., STATE_RESIDENT][:, few].min(axis=1, initial=np.inf)
        fixed = COPIES * held[:, self._whole].sum(axis=1)
        figures = [*(figure[f.listing.body] for figure in (self._each, self._kept, self._outside)),
                   fixed[f.listing.state][:, None]]
        if rows.start.any():
            same = rows.degrees(f.listing.outer)[1]
            figures = [least_of(figure, same) for figure in figures]
        found, alone = np.full(len(stride), np.inf), self._many * figures[0] + figures[2]
        for k, one in enumerate(f.part.pipelines):
            pp, part = one.pp, np.arange(one.pp)
            at = np.flatnonzero((micro_batches >= SCHEDULES[one.schedule].rounds * pp)
                                & (micro_batches % COPIES == 0) & (rows.block * pp <= stride)
                                & (micro_batches * alone.min(axis=1) < limit * pp))
            if not len(at):
                continue
            each, kept, outside, held = (figure[at] for figure in figures)
            known, layouts = f.layouts.of(np.array([k])), f.layouts
            parts = body_layers(f.query.chain, known.layouts[
                known.begin[layouts.first[k]:layouts.last[k], None] + np.arange(pp + 1)])
            own = parts + parts[:, ::-1]
            holds = parts @ (2 * np.where(2 * part < pp, pp - 1 - part, pp - part))
            for front, inner, so_many in zip(
                    own[:, 0], own[:, 1:-1].max(axis=1, initial=0), holds, strict=True):
                time = np.maximum(front * each + outside, inner * each)
                time = np.maximum(time, COPIES / pp * alone[at])
                fits = held + so_many * kept <= f.limit * (1.0 + 1e-9) * pp
                time = np.where(fits, time, np.inf).min(axis=1) * micro_batches[at] / COPIES
                found[at] = np.minimum(found[at], time)
        return found * (1.0 - 1e-9)
