"""A tree of branch and bound: outer choices best-bound first, each solved below the incumbent.

Two passes visit the outer choices: one keeps a few labels per cell and proves that most outer
choices hold nothing better, the other solves exactly those where the first had to drop labels.
Rounds have a fixed number of outer choices, so that what is pruned, and with it the plan, does not
depend on the number of threads.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from nest.schedules.registry import UNLIKE
from nest.search import compiled
from nest.search.alike import Alike, AlikePlan
from nest.search.fitting import Fitting, Node
from nest.search.lower_bounds import SURE, WIDER
from nest.search.progress import Timeout, Watch
from nest.search.solution import TIE, Solution
from nest.search.tensors import Formulation

FIRST_ROUND, ROUND = 2, 8
"""Outer choices solved under one limit, at first and at most: the number doubles."""
WIDTH = 3
"""Labels per cell in the first pass."""
UNBOUNDED = 1 << 62
ALIKE = "alike"
"""Node of an outer choice: pipelines whose stages are alike, under any schedule."""
FACTORS = (1.3, 1.7, 2.5, np.inf)
"""Limits to try, over the least bound, until a plan is found below one. Best plans of the catalog's
models on 1,024 devices are at 1.1 to 1.6, many at 1.26 to 1.3, and below a low limit little is
looked at."""
NEAR = 1.05
"""Limit of a draft before these: hundreds of layers that all differ have plans below it."""
BUBBLE = 8
"""About how many micro-batches longer a pipeline of alike stages takes than its bound: those with
many micro-batches are visited earlier."""
SPREADS = (1.01, 1.03, 1.1, 1.3, 2.0, 4.0, np.inf)
"""Limits to try, over the best plan, until as many plans as asked for are found below one."""


class Workers(NamedTuple):
    """What all trees of a search share."""

    kernels: compiled.Kernels
    pool: Executor
    watch: Watch
    counts: Any
    """int64 (3,) cells, labels and transitions so far."""


def schedules_of(f: Formulation) -> list[str]:
    """Nodes of each outer choice: schedules of stages that may differ, and alike stages."""
    differ = not f.part.own and f.copies == 1
    unlike = [name for name in f.query.space.schedules
              if name in UNLIKE and differ and f.query.space.allows("vpp", 1)
              and any(f.query.may_be(name, pp) for pp in np.flatnonzero(f.choices.depths).tolist())]
    return [*unlike, *([ALIKE] if f.part.pipelines else [])]


def _fastest(found: dict[Any, Solution], known: Solution | None) -> Solution | None:
    """The first plan that takes no longer than the best but for ``TIE``; the known one is ahead.

    Which of them are found depends on the limits that outer choices were solved under; which one is
    first does not (docs/planner.md).
    """
    plans = [*([known] if known is not None else []), *found.values()]
    least = min((plan.step_time for plan in plans), default=np.inf)
    return next((plan for plan in plans if plan.step_time <= least * TIE), None)


class Tree:
    """The outer choices of a formulation, under each schedule, as the nodes of a search."""

    def __init__(self, f: Formulation, workers: Workers, part: bool = False) -> None:
        self.formulation, self.part = f, part
        self.kernels, self.pool, self.watch, self.counts = workers
        self.solved: set[int] = set()
        schedules = schedules_of(f)
        self.alike = Alike(f) if f.part.pipelines else None
        self.bounds = {
            (n, schedule): float(bound) for schedule in schedules for n, bound in enumerate(
                self.alike.bounds(self.pool.map) if self.alike and schedule == ALIKE
                else f.bounds)
            if bound < np.inf}
        self.nodes = sorted(self.bounds, key=lambda node: (self.bounds[node] * (
            1.0 + f.part.own * BUBBLE / f.outers[node[0]].micro_batches), node))
        self.least = min(self.bounds.values(), default=np.inf)
        self.open = dict(self.bounds)
        """Lower bound of each node's plans, without the found ones."""
        self.known = np.inf
        """Step time of the best plan known."""
        self.incumbent: Solution | None = None
        """The best plan of this tree, or that it began with."""

    def sort_near(self, known: Solution | None) -> None:
        """Visit the outer choices closest to a good plan's first: they lower the limit."""
        if known is not None:
            best = known.formulation.outers[known.number]

            def distance(node: Node) -> float:
                outer = self.formulation.outers[node[0]]
                return max(abs(math.log(outer.outer_dp / best.outer_dp)),
                           abs(math.log(outer.micro_batch / best.micro_batch)))

            self.nodes.sort(key=distance)

    def prune_by_memory(self, fitting: Fitting | None = None) -> None:
        """Leave out the nodes of which memory rules out all plans; ``fitting``: what is known."""
        fitting = fitting or Fitting(self.formulation, self.kernels)
        fit = list(self.pool.map(lambda node: self.watch.over or fitting.may_fit(
            node, self.formulation.limit), self.nodes))
        for node, may in zip(self.nodes, fit, strict=True):
            if not may:
                self.bounds[node] = self.open[node] = np.inf
        self.nodes = [node for node in self.nodes if self.bounds[node] < np.inf]

    def pruned(self, limit: float) -> set[int]:
        """Outer choices that their bounds rule out."""
        return {n for (n, _), bound in self.bounds.items() if bound >= limit} - self.solved

    def lower_bound(self) -> float:
        """Lower bound of all plans except the found ones."""
        return min(self.open.values(), default=np.inf)

    def first(self) -> Solution | None:
        """A good plan, not always the best."""
        found: dict[Any, Solution] = {}
        for factor in (NEAR, *FACTORS):
            try:
                found, _ = self._pass(self.nodes, factor * self.least, 1)
            except Timeout as timeout:
                found = timeout.args[0]
            if found or self.watch.over:
                break
            if factor == FACTORS[0]:
                self.prune_by_memory()
        return _fastest(found, None)

    def any(self, plain: bool = False) -> Solution | None:
        """Any plan: whether the rest fits depends on the cell alone, so one label is enough.

        ``plain``: of alike stages only those of one chunk, which need no more as a rule.
        """
        nodes = sorted(self.nodes, key=lambda node: float(self.formulation.needs[node[0]]))
        if self.alike is not None:
            self.alike.plain = plain
        try:
            found, _ = self._pass(nodes, np.inf, 1, stop=True)
        except Timeout as timeout:
            found = timeout.args[0]
        return next(iter(found.values()), None)

    def best(self, known: Solution | None, below: float) -> Solution | None:
        """Best plan of all outer choices ``below`` a limit, or None; ``known`` is one of them."""
        limits = [factor * self.least for factor in FACTORS]
        self.known, self.incumbent = known.step_time if known is not None else below, known
        if known is not None or below < np.inf:
            limits = [known.step_time if known is not None else below]
        for number, limit in enumerate(limits):
            if number == 1:
                self.prune_by_memory()
            found: dict[Any, Solution] = {}
            try:
                found, unsure = self._pass(self.nodes, limit, WIDTH)
                known = _fastest(found, known)
                limit = known.step_time if known is not None else limit
                found, _ = self._pass(unsure, limit, UNBOUNDED)
            except Timeout as timeout:
                found = timeout.args[0]
            known = _fastest(found, known)
            if known is not None or self.watch.over:
                break
        return known

    def others(
        self, best: Solution, top: int, known: list[Solution]
    ) -> tuple[list[Solution], bool]:
        """The ``top`` - 1 next best distinct plans, ``known`` ones included, and whether the time
        sufficed to prove it."""
        found: dict[Any, Solution] = {}
        proved = True
        for factor in SPREADS:
            limit = factor * best.step_time
            try:
                found, _ = self._pass(
                    self.nodes, limit, UNBOUNDED, top=top, others=(best, *known))
            except Timeout as timeout:
                found, proved = timeout.args[0] or found, False
                break
            if sum(one.step_time < limit for one in found.values()) >= top:
                break
        found.pop(best.key, None)
        ranked = sorted(found.values(), key=lambda x: (x.step_time, x.key))
        return ranked[: top - 1], proved

    def _pass(
        self, nodes: list[Node], limit: float, width: int, stop: bool = False,
        top: int = 1, others: tuple[Solution, ...] = (),
    ) -> tuple[dict[Any, Solution], list[Node]]:
        """Solve outer choices in rounds; the best of each key below ``limit``, and the unproven
        ones.

        With ``top`` 1 the limit falls to the best found, else to the ``top``-th best, those that
        are known, ``others``, included.
        """
        found: dict[Any, Solution] = {one.key: one for one in others}
        unsure = []
        size = FIRST_ROUND
        start = 0
        while start < len(nodes):
            if self.watch.over:
                raise Timeout(found)
            wave = [node for node in nodes[start : start + size] if self.bounds[node] < limit]
            now = limit
            self._tell()
            results = self.watch.results(
                [self.pool.submit(self._solve, node, now, width, top > 1) for node in wave],
                self._tell)
            if results is None:
                raise Timeout(found)
            for node, (solutions, dropped, counts) in zip(wave, results, strict=True):
                self.counts += counts
                self.solved.add(node[0])
                if dropped < np.inf:
                    unsure.append(node)
                self.open[node] = max(self.open[node], min(now, dropped))
                for solution in solutions:
                    key = node if top == 1 else solution.key
                    known = found.get(key)
                    if known is None or solution.step_time < known.step_time:
                        found[key] = solution
            ranked = sorted(x.step_time for x in found.values())
            best = min(found.values(), key=lambda one: one.step_time, default=None)
            if best is not None and best.step_time < self.known:
                self.known, self.incumbent = best.step_time, best
                self._tell()
            if len(ranked) >= top:
                limit = min(limit, ranked[top - 1] * (1.0 if top == 1 else 1.0 + 1e-9))
            if stop and found:
                break
            start, size = start + size, min(2 * size, ROUND)
        return found, unsure

    def _tell(self) -> None:
        """Report how far the run is."""
        found = None if self.incumbent is None else self.incumbent.plan
        if self.part:  # a bound of a part of the space is none of the space
            self.watch.report(0, 0, self.known, 0.0, found)
        else:
            proved = sum(bound >= self.known for bound in self.open.values())
            self.watch.report(proved, len(self.open), self.known, self.lower_bound(), found)

    def _solve(
        self, node: Node, limit: float, width: int, spread: bool
    ) -> tuple[list[Solution], float, Any]:
        f, kernels, (number, schedule) = self.formulation, self.kernels, node
        if schedule == ALIKE:
            return self._alike(number, limit, width == UNBOUNDED, spread)
        tables = f.tables(number, schedule == "gpipe")
        ends, wanted = kernels.useful(f.spans(number), limit, tables)
        options = kernels.select(tables, wanted, limit)
        if not len(options[1]):
            return [], np.inf, np.zeros(3, dtype=np.int64)
        unit, problem = f.problem(number, ends, options, schedule == "gpipe")
        best, stages, dropped, counts = kernels.solve(problem, limit, width, spread)
        solutions, row = [], 0
        for depth, value in enumerate(best.tolist()):
            if value < np.inf:
                solutions.append(Solution(value, f, number, schedule, 1, [
                    (start, stop, position * unit, int(options[1][option]))
                    for start, stop, position, option in stages[row : row + depth].tolist()
                ]))
                row += depth
        return solutions, dropped, counts[:3]

    def _rules_out(self, number: int, limit: float) -> bool:
        """Whether no plan of an outer choice takes less than ``limit``, by what is known of it.

        Where near questions are asked, it is worth looking a little further for those to come.
        """
        if self.formulation.known is None:
            return False
        assert self.alike is not None
        seconds, tight, again = self.formulation.known
        if (again and self.known < np.inf and not tight[number]
                and seconds[number] < limit * SURE):
            wider = limit * WIDER
            self._learn(number, wider, *self.alike.solve(
                self.kernels.alike, number, wider, False, False)[:2])
            tight[number] = seconds[number] < limit * SURE
        return bool(seconds[number] >= limit * SURE)

    def _learn(self, number: int, limit: float, found: list[AlikePlan], left: float) -> None:
        """Note what no plan of an outer choice takes less than; nothing where cuts were left."""
        if self.formulation.known is not None and left == np.inf:
            known = self.formulation.known.seconds
            least = min((plan.step_time for plan in found), default=limit)
            known[number] = max(known[number], min(least, limit))

    def _alike(
        self, number: int, limit: float, exact: bool, spread: bool
    ) -> tuple[list[Solution], float, Any]:
        assert self.alike is not None
        f, solutions = self.formulation, []
        if not exact and not spread and self._rules_out(number, limit):
            return [], np.inf, np.zeros(3, dtype=np.int64)
        found, left, priced = self.alike.solve(
            self.kernels.alike, number, limit, exact, spread)
        if not spread:
            self._learn(number, limit, found, left)
        for plan in found:
            block = f.degrees(number, plan.option)["block"]
            p = plan.pipeline
            solutions.append(Solution(
                plan.step_time, f, number, p.schedule, p.vpp,
                [(0, 0, s * block, plan.option) for s in range(p.pp)], plan))
        return solutions, left, np.array([0, 0, priced])
