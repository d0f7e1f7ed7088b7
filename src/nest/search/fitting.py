"""What may fit at all, by a lower bound on memory: cheap, and asked only where no plan is found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from nest.search.compiled import Kernels
from nest.search.tensors import Builder

Task = tuple[int, str]
"""An outer choice and a schedule."""
LARGEST_MEMORY = 1e20
"""Bytes of a device that no plan needs."""


class Fitting:
    """Bounds of memory for the tasks of a builder."""

    def __init__(self, builder: Builder, kernels: Kernels) -> None:
        self.builder, self.kernels = builder, kernels
        self._arrays: dict[Task, tuple[Any, ...]] = {}
        self._short: dict[Task, float] = {}
        """Largest limit known to be too low."""

    def may_fit(self, task: Task, limit: float) -> bool:
        """Whether a pipeline may fit where a plan may use ``limit`` bytes; False: none does.

        Interleaved pipelines and graphs have the bound of the builder alone.
        """
        if limit <= self._short.get(task, -math.inf):
            return False
        # Sums in another order than those of the search must not end on the other side.
        fits = self._may_fit(task, limit * (1.0 + 1e-9))
        if not fits:
            self._short[task] = limit
        return fits

    def _may_fit(self, task: Task, limit: float) -> bool:
        number, schedule = task
        if self.builder.needs[number] > limit:
            return False
        if schedule == "alike" or not self.builder.chain.is_chain:
            return True
        if task not in self._arrays:
            unit, sizes, _, price = self.builder.positions(number)
            self._arrays[task] = (
                self.builder.tables(number, schedule == "gpipe"), self.builder.signatures.index,
                sizes // unit, price, self.builder.depths)
        tables, *rest = self._arrays[task]
        return bool(self.kernels.may_fit(tables._replace(limit_bytes=limit), *rest))

    def least(self, tasks: Iterable[Task], low: float, close: float) -> float:
        """Bytes at which some task may fit, at most ``close`` times too many; inf: at none.

        Not below ``low``.
        """
        best = math.inf
        for task in sorted(tasks, key=lambda task: float(self.builder.needs[task[0]])):
            if not self.may_fit(task, best / close):
                continue  # it needs the best at the least, or almost
            under, best = low, min(best, LARGEST_MEMORY)
            while best > close * under:
                middle = (under * best) ** 0.5
                if self.may_fit(task, middle):
                    best = middle
                else:
                    under = middle
        return best
