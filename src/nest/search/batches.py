"""A batch near the given one that fits the number of devices better.

A batch with few divisors in common with the devices leaves devices unused, or forces deep
pipelines: 64 devices take more than twice as long for 127 sequences as for 128. Where a batch is
no multiple of the devices, the nearest multiples are searched, in a part of the stack's own space
that is quickly searched and holds good plans. So the batch named is better, not always the best.
"""

from __future__ import annotations

import math
from typing import Any

from nest.evaluation.plans import BetterBatch
from nest.inputs.space import IntSet
from nest.model.legality import divisors, sequence_problem, space_problems
from nest.search.draft import DRAFT, narrowed
from nest.search.query import Control, Query
from nest.search.ways import search

NEAR = 0.125
"""Largest difference from the given batch, as a share of it."""
LEAST = 0.02
"""Least gain per sequence that is worth naming: larger batches always gain a little."""
QUICK: dict[str, Any] = {**DRAFT, "cp": IntSet.of((1, 2, 4, 8)), "mbs": IntSet.of("1..4")}
"""Bounds of the search on dimensions that the space leaves free."""


def multiples(devices: int, batch: int) -> list[int]:
    """Batches near one that are multiples of the devices, or of their largest divisor that has any.

    Returns
    -------
    The nearest one on each side, ascending; none where the batch itself is such a multiple.
    """
    low, high = math.ceil((1.0 - NEAR) * batch), math.floor((1.0 + NEAR) * batch)
    unit = next(n for n in reversed(divisors(devices)) if high // n * n >= low)
    below = batch // unit * unit
    return [] if below == batch else [n for n in (below, below + unit) if low <= n <= high]


def better_batch(query: Query, control: Control, step_time: float) -> BetterBatch | None:
    """The batch of :func:`multiples` that takes the least time per sequence.

    Parameters
    ----------
    step_time : seconds that the best plan known takes for the batch of the query.

    Returns
    -------
    None where none takes at least 2 % less per sequence than that plan.
    """
    chain, cluster, job = query.chain, query.cluster, query.job
    bounds = narrowed(query.space, QUICK, chain)
    now = step_time / job.global_batch
    best, least = None, (1.0 - LEAST) * now
    for batch in multiples(cluster.size, job.global_batch):
        other = job.replace(global_batch=batch)
        if control.watch.over or sequence_problem(chain, other) or any(
                space_problems(chain, cluster, other, bounds)):
            continue
        found = search(Query(chain, cluster, other, bounds), control, below=least * batch)
        if found.configuration is not None:
            least = found.step_time / batch
            best = BetterBatch(global_batch=batch, step_time_s=found.step_time,
                               faster=1.0 - least / now)
    return best
