"""Lower bounds of the plans of an outer choice, known from questions about better clusters.

More seconds or bytes of any part never shorten a step. So what was proved of prices holds of all
that are no lower, part by part: docs/proofs.md, Lemma 50 (caches).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
SURE = 1.0 + 1e-9
"""What is known counts from so much above a limit on: sums are rounded."""
WIDER = 1.02
"""Limit of what is looked at for later questions, over that of a question (measured: Llama-3-70B
on 1,024 devices takes 2 % longer at a sixteenth of the bandwidth)."""
MOST = 4
"""Questions of one frame whose bounds are kept (chosen)."""


class FramePrices(NamedTuple):
    """All that a search is told of a cluster, a job and a chain whose frame is known."""

    body: Ints
    """Number of the body of each candidate."""
    held: Ints
    """Number of the state."""
    ahead: Floats
    """As in :class:`nest.records.tables.Tables`; seconds that traffic may hide under come first."""
    back: Floats
    state: Floats
    apart: Floats
    links: Floats
    """(2, V) seconds per byte and latency of each level."""
    limit: float
    """Bytes of a device."""

    def no_lower_than(self, other: FramePrices) -> bool:
        """Whether no plan is faster, or fits sooner, than with the other prices."""
        return (
            self.limit <= other.limit and bool((self.links >= other.links).all())
            and np.array_equal(self.body, other.body) and np.array_equal(self.held, other.held)
            and all(a.shape == b.shape for a, b in (
                (self.ahead, other.ahead), (self.back, other.back), (self.state, other.state)))
            and bool((self.ahead[..., 0] <= other.ahead[..., 0]).all())
            and bool((self.ahead[..., 1:] >= other.ahead[..., 1:]).all())
            and bool((self.back[..., 0] <= other.back[..., 0]).all())
            and bool((self.back[..., 1:] >= other.back[..., 1:]).all())
            and bool((self.state >= other.state).all())
            and np.array_equal(self.apart, other.apart))


class KnownBounds(NamedTuple):
    """What is known of the outer choices of a question, which its search adds to."""

    seconds: Floats
    """(outer choices,) no plan takes less."""
    tight: Bools
    """Looking further than asked is not worth it: there is a plan that takes about so long."""
    again: bool
    """Another question of the frame came before."""


class LowerBounds:
    """Lower bounds of the questions of one frame.

    Parameters
    ----------
    count : outer choices.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._known: list[tuple[FramePrices, KnownBounds]] = []
        self.asked = 0
        """Questions, up to those that are kept."""

    def begin(self, prices: FramePrices) -> KnownBounds:
        """What is known at the start of a question."""
        found = KnownBounds(np.zeros(self._count), np.zeros(self._count, dtype=np.bool_),
                      bool(self._known))
        for before, known in self._known:
            found.tight[:] |= known.tight
            if prices.no_lower_than(before):
                np.maximum(found.seconds, known.seconds, out=found.seconds)
        self._known = [*self._known[1 - MOST:], (prices, found)]
        self.asked = len(self._known)
        return found
