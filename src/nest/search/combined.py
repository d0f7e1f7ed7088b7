"""Pipelines whose passes run beside each other (``combined``), as a space of their own.

They are searched behind all others, so that most candidates are left out before what a pass hides
of another one is priced. Proofs: docs/proofs.md, Lemma 45 (combined).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nest.costs.distinct import least_of
from nest.search.alike import Alike
from nest.search.cache import Cache
from nest.search.formulating import of_used_bodies, pruned, renumbered, repriced, ruled
from nest.search.layer_prices import APART, some_bodies
from nest.search.runnable import Pipeline
from nest.search.tensors import Formulation

Ints = NDArray[np.int64]
COMBINED = "combined"
"""The schedule."""


def combined(
    base: Formulation, pipelines: Sequence[Pipeline], limit: float, cache: Cache
) -> Formulation:
    """The formulation of such pipelines, with the outer choices and prices of another one.

    Candidates that another one beats elsewhere stay, unless it beats them here too. Those that take
    ``limit`` seconds or more are left out, and what only they need is not priced.
    """
    f, ep = repriced(base, pipelines, cache), base.choices.candidates.pairs.ep
    pair = f.listing.rows.pair[:len(f.listing.body)]  # none where no recompute policy is left
    f = f.take(np.flatnonzero(ep[pair] > 1))
    if f.prices.exchange is None or not len(f.listing.body):
        return ruled(f)
    f, used = renumbered(f.take(_quick(f, limit)))
    f = ruled(replace(f, prices=f.prices.with_bodies(
        some_bodies(base.every.by_type, used), False)))
    if len(f.listing.body):
        f = f.take(_near(f, limit)) if limit < np.inf else f
        f = of_used_bodies(replace(f, prices=f.prices.with_parts(f.listing.body)))
        f = pruned(f, f.runnable.verdicts)
    return f


def _quick(f: Formulation, limit: float) -> Ints:
    """The same as :func:`_near` with no more than sums: all all-to-alls are hidden, each layer has
    the fastest start, and there are as many stages as may be."""
    rows, least = f.listing.rows, f.every.beside[f.listing.body]
    if rows.start.any():
        least = least_of(least, rows.degrees(f.listing.outer)[1])
    m, stride = f.sites()
    deepest = np.minimum(stride // rows.block, max(one.pp for one in f.part.pipelines))
    found: Ints = np.flatnonzero(m * least < limit * deepest * (1.0 + 1e-9))
    return found


def _near(f: Formulation, limit: float) -> Ints:
    """Candidates with which all layers may take less than ``limit``, if passes hide all of the
    all-to-alls that the stack lets them hide."""
    apart = np.zeros((*f.prices.back.shape[:3], APART))
    apart[..., :2] = f.query.job.stack.overlap_ep * f.prices.all_to_alls()
    alike, found = Alike(replace(f, prices=f.prices.replace(apart=apart))), list[Ints]()
    choices = len(f.choices.zeros) * alike.choices
    for number in range(len(f.outers)):
        span = f.span(number)
        if span.start < span.stop:
            asked = alike.asked(number, limit)
            found.append(span.start + np.unique(asked.code // choices))
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
