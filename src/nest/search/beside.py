"""Pipelines whose passes run beside each other (``combined``), as a space of their own.

They are searched behind all others, so that most candidates are left out before what a pass hides
of another one is priced. Proof: docs/proofs.md, Lemma 45 (combined).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from nest.inputs.capabilities import Capabilities
from nest.search.alike import Alike
from nest.search.distinct import least_of
from nest.search.layer_prices import APART
from nest.search.runnable import Pipeline
from nest.search.tensors import Builder

Ints = NDArray[np.int64]
BESIDE = "combined"
"""The schedule."""
SOME = 4096
"""Bodies whose seconds are summed at once, for little memory."""


def beside(
    builder: Builder, pipelines: Sequence[Pipeline], rules: Capabilities | None, limit: float
) -> Builder:
    """A builder of such pipelines, with the outer choices and prices of another one.

    Candidates that another one beats elsewhere stay, unless it beats them here too. Those that take
    ``limit`` seconds or more are left out, and what only they need is not priced.
    """
    other = copy(builder)
    other.floors, other.together = None, True
    other.list_pipelines(pipelines, rules)
    rows, splits, pairs = builder.every[0], builder.candidates.splits, builder.candidates.pairs
    priced = rows.pair[:len(builder.every[2])]  # no recompute policy is left: nothing is priced
    other.take(builder.every, np.flatnonzero(pairs.ep[priced] > 1))
    experts = other.prices.exchange is not None
    if experts and len(other.rows.block):
        other.keep(_quick(other, limit))
        other.keep_bodies()
    other.runnable.look_at(other.rows, splits, pairs)
    if experts and len(other.rows.block):
        if limit < np.inf:
            kept = _near(other, limit)
            other.keep(kept)
            other.runnable.keep(kept)
        other.prices = other.prices.with_parts(other._body)
        other.keep_bodies()
        other.drop_dominated(other.runnable.verdicts)
    other.needs = other._needs()
    other.bounds = other._bounds()
    return other


def _quick(other: Builder, limit: float) -> Ints:
    """The same as :func:`_near` with no more than sums: all all-to-alls are hidden, each layer has
    the fastest start, and there are as many stages as may be."""
    rows, overlap = other.rows, other.job.stack.overlap_ep
    layers = Counter(zip(other.order.tolist(), other.signatures.whole_kinds, strict=True))
    prices, each = other.prices, np.empty(len(other.prices.ahead))
    for begin in range(0, len(each), SOME):
        some = slice(begin, begin + SOME)
        seconds = prices.ahead[some, None, :, 1] + prices.back[some, ..., 1]
        seconds -= overlap * prices.all_to_alls(some).sum(axis=3)
        each[some] = np.asarray(sum(
            many * np.minimum(seconds[..., a], seconds[..., b])
            for (a, b), many in layers.items())).min(axis=1, initial=np.inf)
    outer = other.outer
    least = each[other._body]
    if rows.start.any():
        least = least_of(least, rows.degrees(outer)[1])
    m, stride = np.array([(o.micro_batches, o.stride) for o in other.outers]).T[:, outer]
    deepest = np.minimum(stride // rows.block, max(one.pp for one in other.pipelines))
    found: Ints = np.flatnonzero(m * least < limit * deepest * (1.0 + 1e-9))
    return found


def _near(other: Builder, limit: float) -> Ints:
    """Candidates with which all layers may take less than ``limit``, if passes hide all of the
    all-to-alls that the stack lets them hide."""
    apart = np.zeros((*other.prices.back.shape[:3], APART))
    apart[..., :2] = other.job.stack.overlap_ep * other.prices.all_to_alls()
    other.prices = other.prices.replace(apart=apart)
    alike, found = Alike(other), list[Ints]()
    choices = len(other.zeros) * alike.choices
    for number in range(len(other.outers)):
        span = other.span(number)
        if span.start < span.stop:
            asked = alike.asked(number, limit)
            found.append(span.start + np.unique(asked.code // choices))
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
