"""Which ways of exchanging keys and values over context parallelism are worth listing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nest.costs.activations import gathered_bytes
from nest.costs.choices import Body, Site, StageSetting
from nest.costs.network.fabric import Fabric
from nest.costs.operators import merges, tokens_of
from nest.costs.traffic import context_traffic
from nest.model import Chain, Layer

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Exchanges:
    """Finds ways that another one of the same degrees is no worse than in anything.

    All else of a stage is the same then. A way is left out if another takes no longer, takes no
    longer together with the computing under it, forward and backward, and holds no more, on
    devices of all types: docs/proofs.md, Lemma 18 (exchanges).
    """

    def __init__(self, chain: Chain, fabric: Fabric, settings: Sequence[StageSetting]) -> None:
        self._fabric, self._settings = fabric, settings
        self._layers = list({
            (kind.tokens, ops): kind for kind in chain.kinds
            if (ops := tuple(op for op in kind.operators
                             if op.type in ("attention", "scan")))}.values())

    def worse(self, site: Site, samples: Ints, *degrees: Any, group: Ints) -> Bools:
        """Where another way of the same ``group`` is no worse; groups follow each other; (C,).

        ``degrees`` are tp, cp, inner and gather of :class:`nest.costs.choices.Body`; (C,) each.
        """
        tp, cp, inner, gather = degrees
        one, no = np.ones_like(tp), np.zeros(len(tp), dtype=np.bool_)
        swap = self._fabric.inside(*site, tp, inner, inner > 1)
        ring = self._fabric.inside(*site, tp * inner, cp // inner, cp > inner)
        body = Body(samples, tp, no, cp, inner, gather, one, one, 0 * one, ring, swap, ring, ring,
                    ring)
        figures = np.stack([figure for s in self._settings for layer in self._layers
                            for figure in _figures(layer, body, s)], axis=1)
        worse = np.zeros(len(tp), dtype=np.bool_)
        for away in range(1, int(np.bincount(group).max(initial=1))):
            here = np.flatnonzero(group[away:] == group[:-away])
            first, second = figures[here], figures[here + away]
            below = (first <= second).all(axis=1)
            worse[here + away] |= below
            worse[here] |= (second <= first).all(axis=1) & ~below
        return worse


def _figures(layer: Layer, c: Body, s: StageSetting) -> list[NDArray[np.float64]]:
    """Seconds, and those with the computing under them, and bytes, of each way in a layer."""
    (ahead, back, _), (under, under_back) = context_traffic(layer, c, s)
    kept, live = np.zeros((2, len(c.tp)))
    for op in layer.operators:
        if op.type == "attention":
            if s.machine.stack.wide_ring:
                merged = merges(op, c, s, tokens_of(layer, c, s)[0] / c.tp)
                ahead, back = ahead + merged[0], back + merged[1]
            found = gathered_bytes(op, layer, c, s)
            kept, live = kept + found[0], np.maximum(live, found[1])
    again = back + np.where(c.gather & s.machine.stack.keeps_gathered, ahead, 0.0)
    return [ahead, ahead + under, back, back + under_back, again, again + under_back, kept, live]
