"""Alpa's operator clustering: layers of a model merged into those that stages may be cut between.

arXiv:2201.12023, section 5.2, and ``cluster_jaxpr_by_cost`` of its authors' program
(alpa-projects/alpa, alpa/pipeline_parallel/layer_construction.py).
"""

from __future__ import annotations

import math

import numpy as np

from nest.planners.flat import Array

MOST_LAYERS = 128
"""Clusters at most (chosen: time and memory grow with their third power)."""
IMBALANCE = 0.5
"""A cluster may exceed the average by this share (``DEFAULT_EPS`` of the program)."""


def clusters(work: Array, received: Array) -> tuple[int, ...]:
    """Cuts between clusters, from 0 to the number of layers.

    As many clusters as layers with at least half of the average work, so that embeddings join a
    neighbour; fewer if these cannot be balanced.

    Parameters
    ----------
    work : compute of each layer, in any unit.
    received : bytes that cross the cut before each layer.
    """
    heavy = int((2.0 * work >= work.mean()).sum())
    for count in range(min(max(heavy, 1), MOST_LAYERS), 1, -1):
        found = merge(work, received, count, IMBALANCE)
        if found is not None:
            return found
    return 0, len(work)


def merge(work: Array, received: Array, count: int, imbalance: float) -> tuple[int, ...] | None:
    """Cuts between exactly ``count`` clusters; None: no such clusters are balanced.

    The most bytes that a cluster receives are minimised, and among equals the variance of work:
    G(k, r) = min over i of max(G(i - 1, r - 1), C(i, k)) where work(i..k) is at most (1 +
    imbalance) of the average, or i..k is one layer.
    """
    layers, average = len(work), float(work.sum()) / count
    total = np.concatenate([[0.0], np.cumsum(work)])
    most = np.full((count + 1, layers + 1), np.inf)
    spread = np.full((count + 1, layers + 1), np.inf)
    came = np.zeros((count + 1, layers + 1), dtype=np.int64)
    most[0, 0] = spread[0, 0] = 0.0
    for r in range(1, count + 1):
        for k in range(r, layers + 1):
            starts = np.arange(k)
            held = total[k] - total[:k]
            legal = (held <= (1.0 + imbalance) * average) | (starts == k - 1)
            bytes_ = np.where(legal, np.maximum(most[r - 1, :k], received[:k]), np.inf)
            deviation = spread[r - 1, :k] + (held - average) ** 2
            best = int(np.lexsort((deviation, bytes_))[0])
            if math.isfinite(bytes_[best]):
                most[r, k], spread[r, k], came[r, k] = bytes_[best], deviation[best], best
    if not math.isfinite(most[count, layers]):
        return None
    cuts = [layers]
    for r in range(count, 0, -1):
        cuts.append(int(came[r, cuts[-1]]))
    return tuple(reversed(cuts))
