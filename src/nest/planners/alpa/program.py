"""The integer program of Alpa's intra-operator pass (arXiv:2201.12023, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from nest.errors import KernelError
from nest.planners.flat import Array

LARGEST = 1e4
"""The largest cost after scaling for HiGHS (chosen: its gap of 1e-6 is then 1e-10 of it)."""


class Edge(NamedTuple):
    """A tensor from one node to another."""

    source: int
    target: int
    cost: Array
    """Resharding where source and target take strategies a and b; shape (A, B)."""


def solve(nodes: Sequence[Array], edges: Sequence[Edge]) -> list[int]:
    """The strategies with the least cost of all nodes and edges.

    Parameters
    ----------
    nodes : costs of the strategies of each node, finite.
    edges : costs of resharding between two of them.

    Notes
    -----
    Choices of a node are binary and sum up to one. The product of two choices is a variable of
    its own; those of an edge sum up to either choice, so they need not be binary. Nodes without
    edges take their cheapest strategy.
    """
    linked = {node for edge in edges for node in (edge.source, edge.target)}
    chosen = [int(np.argmin(cost)) for cost in nodes]
    if not linked:
        return chosen
    starts = np.cumsum([0, *(len(cost) for cost in nodes)])
    first = starts[-1] + np.cumsum([0, *(edge.cost.size for edge in edges)])
    entries: list[tuple[int, int, float]] = []
    right: list[float] = []
    for node in range(len(nodes)):
        entries += [(len(right), v, 1.0) for v in range(starts[node], starts[node + 1])]
        right.append(1.0)
    for edge, begin in zip(edges, first, strict=False):
        both = begin + np.arange(edge.cost.size).reshape(edge.cost.shape)
        for node, rows in ((edge.source, both), (edge.target, both.T)):
            for choice, row in enumerate(rows):
                entries += [(len(right), int(v), 1.0) for v in row]
                entries.append((len(right), int(starts[node]) + choice, -1.0))
                right.append(0.0)
    lines, columns, values = zip(*entries, strict=True)
    cost = np.concatenate([*nodes, *(edge.cost.ravel() for edge in edges)])
    matrix = coo_array((values, (lines, columns)), shape=(len(right), len(cost))).tocsr()
    whole = np.zeros(len(cost))
    whole[: starts[-1]] = 1
    found = milp(cost * (LARGEST / max(float(np.abs(cost).max()), 1e-300)), integrality=whole,
                 bounds=Bounds(0.0, 1.0), constraints=LinearConstraint(matrix, right, right),
                 options={"mip_rel_gap": 0.0})
    if found.x is None:
        raise KernelError(f"the integer program was not solved: {found.message}")
    return [int(np.argmax(found.x[a:b])) for a, b in zip(starts, starts[1:], strict=False)]
