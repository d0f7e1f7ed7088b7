"""The search: outer choices best-bound first, each solved exactly below the best plan known.

Two passes over the outer choices. The first keeps a few labels a cell, which finds a strong plan
and proves most outer choices to hold nothing better; the second solves exactly those where the
first had to drop labels. Rounds have a fixed number of outer choices, so that what is pruned, and
with it the plan, does not depend on the number of threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nest import compiled
from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job
from nest.describe.space import SearchSpace
from nest.graph import Chain
from nest.tensors import Builder

ROUND = 8
"""Outer choices solved under one limit."""
WIDTH = 3
"""Labels a cell keeps in the first pass."""
UNBOUNDED = 1 << 62
FACTORS = (1.5, 2.0, 4.0, np.inf)
"""Limits to try, over the least bound, until a plan is found below one."""
SLOWEST = 8.0
"""The same where any plan will do: without a limit, what is hopelessly slow takes long to list."""


class Found(NamedTuple):
    """What a search found and what it took."""

    step_time: float
    """Seconds; inf when nothing fits."""
    configuration: Configuration | None
    seconds: float
    compile_seconds: float
    threads: int
    solved: int
    """Outer choices that a kernel worked on."""
    pruned: int
    """Outer choices that a bound ruled out."""
    cells: int
    labels: int
    transitions: int


class _Best(NamedTuple):
    step_time: float
    number: int
    unit: int
    stages: Any
    options: Any


def thread_count() -> int:
    """Threads to use: ``NEST_THREADS``, else ``NUMBA_NUM_THREADS``, else all processors."""
    for name in ("NEST_THREADS", "NUMBA_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def search(
    chain: Chain,
    cluster: Cluster,
    job: Job,
    space: SearchSpace,
    threads: int | None = None,
    any_plan: bool = False,
) -> Found:
    """Best configuration of a space.

    Parameters
    ----------
    chain : layers in order.
    threads : outer choices solved side by side; the result does not depend on it.
    any_plan : stop at the first plan that fits and takes at most ``SLOWEST`` times the bound.

    Returns
    -------
    Found
        ``configuration`` is None when nothing in the space fits.
    """
    kernels, compile_seconds = compiled.load()
    started = time.perf_counter()
    builder = Builder(chain, cluster, job, space)
    threads = threads or thread_count()
    run = _Run(builder, kernels, any_plan)
    with ThreadPoolExecutor(threads) as pool:
        best = run.best(pool.map)
    configuration = run.configuration(best) if best is not None else None
    return Found(
        best.step_time if best is not None else np.inf,
        configuration,
        time.perf_counter() - started,
        compile_seconds,
        threads,
        len(run.solved),
        len(builder.outers) - len(run.solved),
        *(int(x) for x in run.counts[:3]),
    )


class _Run:
    """One search over the outer choices of a builder."""

    def __init__(self, builder: Builder, kernels: compiled.Kernels, any_plan: bool) -> None:
        self.builder, self.kernels, self.any_plan = builder, kernels, any_plan
        self.order = np.argsort(builder.bounds, kind="stable")
        self.solved: set[int] = set()
        self.counts = np.zeros(4, dtype=np.int64)

    def best(self, spread: Callable[..., Iterable[Any]]) -> _Best | None:
        """Best plan of all outer choices, or None."""
        bounds = self.builder.bounds
        finite = [int(n) for n in self.order if bounds[n] < np.inf]
        if not finite:
            return None
        least = bounds[finite[0]]
        if self.any_plan:
            # Whether the rest fits depends on the cell alone: one label a cell will do.
            return self._pass(finite, SLOWEST * least, 1, spread)[0]
        for factor in FACTORS:
            best, unsure = self._pass(finite, factor * least, WIDTH, spread)
            limit = best.step_time if best is not None else factor * least
            best = self._pass(unsure, limit, UNBOUNDED, spread)[0] or best
            if best is not None:
                return best
        return None

    def _pass(
        self, numbers: list[int], limit: float, width: int, spread: Callable[..., Iterable[Any]]
    ) -> tuple[_Best | None, list[int]]:
        """Solve outer choices in rounds; the best below ``limit``, and those left unsure."""
        best: _Best | None = None
        unsure = []
        for start in range(0, len(numbers), ROUND):
            wave = [n for n in numbers[start : start + ROUND] if self.builder.bounds[n] < limit]
            results = list(spread(lambda n, now=limit: self._solve(n, now, width), wave))
            for number, (found, counts) in zip(wave, results, strict=True):
                self.counts += counts
                self.solved.add(number)
                if counts[3]:
                    unsure.append(number)
                if found is not None and found.step_time < limit:
                    best, limit = found, found.step_time
            if best is not None and self.any_plan:
                break
        return best, unsure

    def _solve(self, number: int, limit: float, width: int) -> tuple[_Best | None, Any]:
        tables = self.kernels.Candidates(*self.builder.tables(number))
        options = self.kernels.select(tables, limit)
        if not len(options[1]):
            return None, np.zeros(4, dtype=np.int64)
        unit, arrays = self.builder.problem(number, options)
        value, stages, counts = self.kernels.solve(self.kernels.Problem(*arrays), limit, width)
        found = _Best(value, number, unit, stages, options) if value < limit else None
        return found, counts

    def configuration(self, best: _Best) -> Configuration:
        """The plan of a solution, in devices and degrees."""
        builder = self.builder
        outer = builder.outers[best.number]
        stages = []
        for start, stop, position, option in best.stages.tolist():
            row, zero, policy = builder.configuration(best.number, int(best.options[1][option]))
            first = position * best.unit
            stages.append(StageConfiguration(
                layers=(start, stop), devices=(first, first + row.block),
                dp_in=row.block // row.tp, tp=row.tp, sp=row.sp, ep=row.ep, etp=row.etp,
                zero=zero, recompute=policy,
            ))
        return Configuration(outer_dp=outer.outer_dp, stride=outer.stride,
                             micro_batch=outer.micro_batch, stages=tuple(stages))
