"""What may fit at all, by a lower bound on memory: cheap, and asked only where no plan is found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from nest.search.compiled import Kernels
from nest.search.tensors import Formulation

Node = tuple[int, str]
"""An outer choice and a schedule."""
LARGEST_MEMORY = 1e20
"""Bytes of a device that no plan needs."""


class Fitting:
    """Bounds of memory for the nodes of a formulation."""

    def __init__(self, f: Formulation, kernels: Kernels) -> None:
        self.formulation, self.kernels = f, kernels
        self._arrays: dict[Node, tuple[Any, ...]] = {}
        self._short: dict[Node, float] = {}
        """Largest limit known to be too low."""

    def may_fit(self, node: Node, limit: float) -> bool:
        """Whether a pipeline may fit where a plan may use ``limit`` bytes; False: none does.

        Interleaved pipelines and graphs have the bound of the formulation alone.
        """
        if limit <= self._short.get(node, -math.inf):
            return False
        # Sums in another order than those of the search must not end on the other side.
        fits = self._may_fit(node, limit * (1.0 + 1e-9))
        if not fits:
            self._short[node] = limit
        return fits

    def _may_fit(self, node: Node, limit: float) -> bool:
        number, schedule = node
        if self.formulation.needs[number] > limit:
            return False
        if schedule == "alike" or not self.formulation.query.chain.is_chain:
            return True
        if node not in self._arrays:
            f = self.formulation
            unit, sizes, _, price = f.positions(number)
            self._arrays[node] = (
                f.tables(number, schedule == "gpipe"), f.choices.signatures.index,
                sizes // unit, price, f.choices.depths)
        tables, *rest = self._arrays[node]
        return bool(self.kernels.may_fit(tables._replace(limit_bytes=limit), *rest))

    def least(self, nodes: Iterable[Node], low: float, close: float) -> float:
        """Bytes at which some node may fit, at most ``close`` times too many; inf: at none.

        Not below ``low``.
        """
        best = math.inf
        for node in sorted(nodes, key=lambda node: float(self.formulation.needs[node[0]])):
            if not self.may_fit(node, best / close):
                continue  # it needs the best at the least, or almost
            under, best = low, min(best, LARGEST_MEMORY)
            while best > close * under:
                middle = (under * best) ** 0.5
                if self.may_fit(node, middle):
                    best = middle
                else:
                    under = middle
        return best
