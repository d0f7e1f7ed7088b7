"""Keep the configurations of a stage that some plan could want.

Shapes: F fields of ``nest.costs.layer.Sums``, T layer kinds, N configurations, G signatures, P
prices, O options kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nest._kernels import CACHE

# Fields of ``nest.costs.layer.Sums``, in its order; a test compares them.
FORWARD, BACKWARD, SYNC, GATHER, EXPOSED, RESIDENT, ACTIVATIONS, WORK, BUFFERS = range(9)


class Candidates(NamedTuple):
    """Arrays of one outer choice; the fields of :class:`nest.tensors.Tables`."""

    layers: np.ndarray
    price: np.ndarray
    shards: np.ndarray
    forbidden: np.ndarray
    counts: np.ndarray
    part: np.ndarray
    last: np.ndarray
    whole: int
    limit_bytes: float
    micro_batches: int
    most_in_flight: int


# The helpers below index whole arrays: a slice in an inner loop costs more than its work.


@njit(cache=CACHE, nogil=True)
def _fold(t, n, g, totals):
    """Fill ``totals[g]`` with the F fields of a stage of signature g under configuration n."""
    part = t.part[g]
    if part >= 0:
        kind = t.last[g]
        for f in range(WORK):
            totals[g, f] = totals[part, f] + t.layers[n, kind, f]
        for f in range(WORK, BUFFERS + 1):
            totals[g, f] = max(totals[part, f], t.layers[n, kind, f])
        return
    for f in range(BUFFERS + 1):
        totals[g, f] = 0.0
    for kind in range(t.counts.shape[1]):
        layers = t.counts[g, kind]
        if layers:
            for f in range(WORK):
                totals[g, f] += layers * t.layers[n, kind, f]
            for f in range(WORK, BUFFERS + 1):
                totals[g, f] = max(totals[g, f], t.layers[n, kind, f])


@njit(cache=CACHE, nogil=True)
def _stage(t, totals, g, limit, out):
    """Fill ``out`` with forward, backward, finish, in flight; False when it is no option.

    The formulas of :func:`nest.costs.stage.stage_costs`.
    """
    if t.micro_batches * (totals[g, FORWARD] + totals[g, BACKWARD]) >= limit:
        return False
    resident = totals[g, RESIDENT] + totals[g, WORK] + totals[g, BUFFERS]
    activations = totals[g, ACTIVATIONS]
    if resident + activations > t.limit_bytes:
        return False
    held = t.most_in_flight
    if resident + held * activations > t.limit_bytes:
        held = int((t.limit_bytes - resident) / activations)
        # The quotient is rounded: settle by the sum that the limit is checked with.
        while resident + held * activations > t.limit_bytes:
            held -= 1
        while resident + (held + 1) * activations <= t.limit_bytes:
            held += 1
    out[0], out[1] = totals[g, FORWARD], totals[g, BACKWARD]
    out[2] = max(0.0, totals[g, SYNC]) + totals[g, EXPOSED] + max(0.0, totals[g, GATHER])
    out[3] = held
    return True


@njit(cache=CACHE, nogil=True)
def _keep(kept, who, g, count, new, n):
    """Add an option of g unless dominated, drop those it dominates; the new count."""
    for o in range(count):
        if (kept[g, o, 0] <= new[0] and kept[g, o, 1] <= new[1] and kept[g, o, 2] <= new[2]
                and kept[g, o, 3] >= new[3] and kept[g, o, 4] >= new[4]):
            return count
    left = 0
    for o in range(count):
        if not (new[0] <= kept[g, o, 0] and new[1] <= kept[g, o, 1] and new[2] <= kept[g, o, 2]
                and new[3] >= kept[g, o, 3] and new[4] >= kept[g, o, 4]):
            if left != o:
                for f in range(5):
                    kept[g, left, f] = kept[g, o, f]
                who[g, left] = who[g, o]
            left += 1
    for f in range(5):
        kept[g, left, f] = new[f]
    who[g, left] = n
    return left + 1


@njit(cache=CACHE, nogil=True)
def select(t, limit):
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in forward, backward, finish, micro-batches in
    flight that fit, and shards; of equal ones the first stays. Those that alone take ``limit``
    seconds a step, or hold no micro-batch, are no options.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    number : int64 (O,), configuration of each option.
    forward, backward, finish : float64 (O,)
    in_flight : int64 (O,)
    shards : float64 (O,)
    """
    N, G = len(t.price), len(t.counts)
    prices = t.price[-1] + 1
    first = np.zeros((prices, G + 1), np.int64)
    # Signatures by the one that they extend; those that extend none come first.
    children = np.argsort(t.part)
    begin = np.searchsorted(t.part[children], np.arange(-1, G + 1))
    roots = begin[1]
    stack = np.empty(G, np.int64)
    options = np.empty((1024, 5))
    who = np.empty(1024, np.int64)
    total = 0
    new = np.empty(5)
    lo = 0
    for p in range(prices):
        hi = lo
        while hi < N and t.price[hi] == p:
            hi += 1
        found = np.empty((G, hi - lo, 5))
        found_who = np.empty((G, hi - lo), np.int64)
        count = np.zeros(G, np.int64)
        totals = np.empty((G, BUFFERS + 1))
        for n in range(lo, hi):
            new[4] = t.shards[n]
            waiting = roots
            stack[:roots] = children[:roots]
            while waiting:
                waiting -= 1
                g = stack[waiting]
                _fold(t, n, g, totals)
                if not _stage(t, totals, g, limit, new):
                    continue
                if g == t.whole or not t.forbidden[n]:
                    count[g] = _keep(found, found_who, g, count[g], new, n)
                # More layers take more time and memory: where a part fails, none follows.
                for x in range(begin[g + 1], begin[g + 2]):
                    stack[waiting] = children[x]
                    waiting += 1
        for g in range(G):
            first[p, g] = total
            while total + count[g] > len(options):
                more = np.empty((2 * len(options), 5))
                more[:total] = options[:total]
                options = more
                more_who = np.empty(2 * len(who), np.int64)
                more_who[:total] = who[:total]
                who = more_who
            for o in range(count[g]):
                # Insertion keeps the order of configurations among equal times.
                y = total + o
                t_new = found[g, o, 0] + found[g, o, 1]
                while y > total and options[y - 1, 0] + options[y - 1, 1] > t_new:
                    options[y] = options[y - 1]
                    who[y] = who[y - 1]
                    y -= 1
                options[y] = found[g, o]
                who[y] = found_who[g, o]
            total += count[g]
        first[p, G] = total
        lo = hi
    k = options[:total]
    return (first, who[:total].copy(), k[:, 0].copy(), k[:, 1].copy(), k[:, 2].copy(),
            k[:, 3].astype(np.int64), k[:, 4].copy())
