"""The search: outer choices best-bound first, each solved exactly below the best plan known.

A draft over a part of the space finds a strong plan first. Then two passes over the outer choices
of the whole space: one keeps a few labels per cell and proves that most outer choices hold nothing
better, the other solves exactly those where the first had to drop labels. Rounds have a fixed
number of outer choices, so that what is pruned, and with it the plan, does not depend on the number
of threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from nest.inputs.capabilities import Capabilities
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.schedules import copies
from nest.search import compiled
from nest.search.alike import Alike, AlikePlan, pipelines
from nest.search.beside import BESIDE, beside
from nest.search.crossed import crossed
from nest.search.cut_lists import CutLists
from nest.search.draft import draft_of
from nest.search.fitting import LARGEST_MEMORY, Fitting, Task
from nest.search.floors import SURE, WIDER
from nest.search.kept import Kept, Same
from nest.search.layouts import UNLIKE
from nest.search.progress import Timeout, Watch
from nest.search.runnable import Pipeline
from nest.search.signatures import Signatures, signatures
from nest.search.solution import TIE, Found, Solution
from nest.search.tensors import Builder
from nest.search.threads import thread_count

FIRST_ROUND, ROUND = 2, 8
"""Outer choices solved under one limit, at first and at most: the number doubles."""
WIDTH = 3
"""Labels per cell in the first pass."""
UNBOUNDED = 1 << 62
ALIKE = "alike"
"""Task of an outer choice: pipelines whose stages are alike, under any schedule."""
FACTORS = (1.25, 1.7, 2.5, np.inf)
"""Limits to try, over the least bound, until a plan is found below one. Best plans of the catalog's
models on 1,024 devices are at 1.1 to 1.6, and below a low limit little is looked at."""
NEAR = 1.05
"""Limit of a draft before these: hundreds of layers that all differ have plans below it."""
BUBBLE = 8
"""About how many micro-batches longer a pipeline of alike stages takes than its bound: those with
many micro-batches are visited earlier."""
SPREADS = (1.01, 1.03, 1.1, 1.3, 2.0, 4.0, np.inf)
"""Limits to try, over the best plan, until as many plans as asked for are found below one."""


def search_one(
    chain: Chain,
    cluster: Cluster,
    job: Job,
    space: SearchSpace,
    threads: int | None = None,
    any_plan: bool = False,
    top: int = 1,
    watch: Watch | None = None,
    below: float = np.inf,
    *,
    beyond_stack: bool = False,
    known: Signatures | None = None,
    offload: str = "none",
    spare_host: bool = False,
    kept: Kept | None = None,
) -> Found:
    """Best configuration of a space with one way of using the memory of hosts.

    Parameters
    ----------
    chain : layers in order.
    threads : number of threads; the result does not depend on it.
    any_plan : stop at the first plan that fits.
    top : how many :func:`~nest.search.solution.distinct` plans to find.
    watch : ends the search early; the best plan so far is returned then.
    below : search only for plans that take fewer seconds per step.
    beyond_stack : search what the job's stack cannot run too, in a part of its own.
    known : signatures of the chain and job.
    offload, spare_host : see :class:`nest.search.tensors.Builder`; the space's ``offload`` does not
        count here, but in :func:`nest.search.offloads.search`.
    kept : what near questions share; the result does not depend on it.

    Returns
    -------
    Found
        ``configuration`` is None when nothing in the space fits, or was found in time.
    """
    rules = None if beyond_stack else job.stack.capabilities
    kernels, compile_seconds = compiled.load(_entries(rules is not None, cluster))
    watch = watch or Watch()
    watch.excuse(compile_seconds)
    watch.begin()
    started = time.perf_counter()
    threads = threads or thread_count()
    counts = np.zeros(3, dtype=np.int64)
    best: Solution | None = None
    others, proved = list[Solution](), True
    pool = ThreadPoolExecutor(threads)
    try:
        known = known or signatures(chain, job)
        kept = Kept() if kept is None else kept
        mixed = bool(cluster.types)
        lists = kept.of(("cuts", Same(chain), Same(known), mixed),
                        lambda: CutLists(chain, known, mixed))
        parts = _parts(chain, space, cluster, job, beyond_stack)
        build = partial(Builder, chain, cluster, job, known=known, offload=offload,
                        spare_host=spare_host, kept=kept, each_of=pool.map, lists=lists)
        run_of = partial(_Run, kernels=kernels, pool=pool, counts=counts, watch=watch)
        *some, whole = [
            build(space, rules=rules, pipelines=_first_of(listed), behind=listed)
            for rules, listed in parts]
        runs = [*(run_of(builder, part=True) for builder in some), run_of(whole)]
        if any_plan:
            for run in runs:
                run.drop_unfit()
            best = next(filter(None, (run.any() for run in reversed(runs))), None)
        else:
            draft = None if whole.own or below < np.inf else draft_of(space, chain)
            early = chain.experts is None and not _even(cluster.size)
            for run in runs:
                if draft is not None and best is None and (early or run.builder is whole):
                    best, draft = run_of(build(draft), part=True).first(), None
                    if best is None:
                        run.drop_unfit()
                run.begin_near(best)
                best = run.best(best, below)
        for builder, (rules, listed) in zip((*some, whole), parts, strict=True):
            for make, later in _behind(listed):
                if any_plan and best is not None:
                    continue
                limit = np.inf if top > 1 else below if best is None else best.step_time
                run = run_of(make(builder, later, rules, limit), part=True)
                runs.append(run)
                if any_plan:
                    best = run.any()
                else:
                    run.begin_near(best)
                    best = run.best(best, below)
        if best is not None and top > 1 and not any_plan:
            for run in runs:
                others, sure = run.others(best, top, others)
                proved = proved and sure
    finally:
        # Nobody waits for a kernel that was stopped: it ends by itself.
        pool.shutdown(wait=False, cancel_futures=True)
    lower = best.step_time if best is not None else np.inf
    bound = min(run.lower_bound() for run in runs)
    return Found(
        lower,
        best.configuration() if best is not None else None,
        lower if bound * TIE >= lower else bound,
        [(other.step_time, other.configuration()) for other in others],
        proved,
        time.perf_counter() - started,
        compile_seconds,
        threads,
        sum(len(run.solved) for run in runs),
        sum(len({n for (n, _), bound in run.bounds.items() if bound >= lower} - run.solved)
            for run in runs),
        int(counts[0]), int(counts[1]), int(counts[2]),
        whole,
    )


def _even(devices: int) -> bool:
    """Whether alike stages can share so many devices; if not, stages that differ gain most."""
    for prime in (2, 3, 5, 7):
        while devices % prime == 0:
            devices //= prime
    return devices == 1


def _entries(own: bool, cluster: Cluster) -> tuple[str, ...]:
    """Kernels that a search needs, of the space of a stack or of everything."""
    return (*compiled.ALIKE, *(() if own else compiled.UNLIKE),
            *(() if cluster.links is None else compiled.LINKS))


def least_memory(
    builder: Builder, threads: int | None, close: float, watch: Watch,
) -> tuple[float, Configuration | None]:
    """Bytes of a device that a plan must be allowed to use, and that plan; None: it found none.

    They are at most ``close`` times too many. Devices of several types all get as many more. Of
    alike stages only those of one chunk are looked at, where the space has any.
    """
    kernels, compile_seconds = compiled.load(_entries(builder.own, builder.cluster))
    watch.excuse(compile_seconds)
    watch.begin()
    pool = ThreadPoolExecutor(threads or thread_count())

    fitting = Fitting(builder, kernels)
    plain = builder.own and any(one.vpp == 1 for one in builder.pipelines)

    def any_within(limit: float) -> Solution | None:
        run = _Run(builder.within(limit), kernels, pool, np.zeros(3, dtype=np.int64), watch)
        run.drop_unfit(fitting)
        return run.any(plain=plain)

    try:
        tasks = [(n, name) for n in np.flatnonzero(np.isfinite(builder.needs)).tolist()
                 for name in _schedules(builder)]
        # Interleaved pipelines have no such bound, but need no less as a rule.
        bounded = [task for task in tasks if task[1] != ALIKE] or tasks
        low, step, found = max(builder.limit, 1.0), close, None
        high = fitting.least(bounded, low, close)
        while found is None and high < LARGEST_MEMORY and not watch.over:
            found = any_within(high)
            if found is None:
                low, high, step = high, step * high, step * step
        # The first bound is close as a rule; behind it the least is between the last two limits.
        step = close if step == close else math.inf
        while found is not None and high > close * low and not watch.over:
            middle = max((low * high) ** 0.5, high / step)
            better = any_within(middle)
            if better is None:
                low = middle
            else:
                found, high, step = better, middle, step * step
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return high, found.configuration() if found is not None else None


def stack_part(builder: Builder) -> Builder | None:
    """What a stack's own space adds to everything, as a space of its own; None: nothing."""
    chain, cluster, job, space = builder.chain, builder.cluster, builder.job, builder.space
    *some, _ = _parts(chain, space, cluster, job, True)
    if builder.own or not some:
        return None
    return Builder(chain, cluster, job, space, builder.signatures, rules=job.stack.capabilities,
                   pipelines=_first_of(some[0][1]), offload=builder.offload)


def _parts(
    chain: Chain, space: SearchSpace, cluster: Cluster, job: Job, beyond_stack: bool
) -> list[tuple[Capabilities | None, list[Pipeline]]]:
    """Rules, and pipelines of alike stages, of each part that is searched; the widest comes last.

    Everything holds the stack's own space: what the search of unlike stages and equal chunks
    lacks of it is a part of its own.
    """
    rules = job.stack.capabilities
    every = (None, [one for one in pipelines(chain, space, cluster.size, False)
                    if copies(one.schedule) == 1 or job.optimizer != "muon"])
    if rules is None:
        return [every]
    own = pipelines(chain, space, cluster.size, True, rules)
    if not beyond_stack:
        return [(rules, own)]
    more = [one for one in own
            if one.schedule not in UNLIKE or one.schedule not in space.schedules]
    return [(rules, more), every] if more else [every]


def _first_of(listed: list[Pipeline]) -> list[Pipeline]:
    """Pipelines that are searched first; the others are left out faster behind them."""
    one = [pipeline for pipeline in listed if copies(pipeline.schedule) == 1]
    return [pipeline for pipeline in one if pipeline.schedule != BESIDE] or one


def _behind(
    listed: list[Pipeline]
) -> list[tuple[Callable[..., Builder], list[Pipeline]]]:
    """What is searched behind them, and what makes its builder."""
    first = {*_first_of(listed)}
    rest = [pipeline for pipeline in listed if pipeline not in first]
    found = ((beside, [one for one in rest if one.schedule == BESIDE]),
             (crossed, [one for one in rest if one.schedule != BESIDE]))
    return [(make, pipelines) for make, pipelines in found if pipelines]


def _schedules(builder: Builder) -> list[str]:
    """Tasks of each outer choice: schedules of stages that may differ, and alike stages."""
    differ = not builder.own and builder.copies == 1
    unlike = [name for name in builder.space.schedules
              if name in UNLIKE and differ and builder.space.allows("vpp", 1)]
    return [*unlike, *([ALIKE] if builder.pipelines else [])]


def _fastest(found: dict[Any, Solution], known: Solution | None) -> Solution | None:
    """The first plan that takes no longer than the best but for ``TIE``; the known one is ahead.

    Which of them are found depends on the limits that outer choices were solved under; which one is
    first does not (docs/planner.md).
    """
    plans = [*([known] if known is not None else []), *found.values()]
    least = min((plan.step_time for plan in plans), default=np.inf)
    return next((plan for plan in plans if plan.step_time <= least * TIE), None)


class _Run:
    """One search over the outer choices of a builder."""

    def __init__(
        self, builder: Builder, kernels: compiled.Kernels, pool: Executor, counts: Any,
        watch: Watch, part: bool = False,
    ) -> None:
        self.builder, self.kernels, self.pool = builder, kernels, pool
        self.counts, self.watch, self.part = counts, watch, part
        self.solved: set[int] = set()
        schedules = _schedules(builder)
        self.alike = Alike(builder) if builder.pipelines else None
        self.bounds = {
            (n, schedule): float(bound) for schedule in schedules for n, bound in enumerate(
                self.alike.bounds(pool.map) if self.alike and schedule == ALIKE
                else builder.bounds)
            if bound < np.inf}
        self.tasks = sorted(self.bounds, key=lambda task: (self.bounds[task] * (
            1.0 + builder.own * BUBBLE / builder.outers[task[0]].micro_batches), task))
        self.least = min(self.bounds.values(), default=np.inf)
        self.open = dict(self.bounds)
        """Lower bound of each task's plans, without the found ones."""
        self.known = np.inf
        """Step time of the best plan known."""

    def begin_near(self, known: Solution | None) -> None:
        """Visit the outer choices closest to a good plan's first: they lower the limit."""
        if known is not None:
            best = known.builder.outers[known.number]

            def distance(task: Task) -> float:
                outer = self.builder.outers[task[0]]
                return max(abs(math.log(outer.outer_dp / best.outer_dp)),
                           abs(math.log(outer.micro_batch / best.micro_batch)))

            self.tasks.sort(key=distance)

    def drop_unfit(self, fitting: Fitting | None = None) -> None:
        """Leave out the tasks of which memory rules out all plans; ``fitting``: what is known."""
        fitting = fitting or Fitting(self.builder, self.kernels)
        fit = list(self.pool.map(lambda task: self.watch.over or fitting.may_fit(
            task, self.builder.limit), self.tasks))
        for task, may in zip(self.tasks, fit, strict=True):
            if not may:
                self.bounds[task] = self.open[task] = np.inf
        self.tasks = [task for task in self.tasks if self.bounds[task] < np.inf]

    def lower_bound(self) -> float:
        """Lower bound of all plans except the found ones."""
        return min(self.open.values(), default=np.inf)

    def first(self) -> Solution | None:
        """A good plan, not always the best."""
        found: dict[Any, Solution] = {}
        for factor in (NEAR, *FACTORS):
            try:
                found, _ = self._pass(self.tasks, factor * self.least, 1)
            except Timeout as timeout:
                found = timeout.args[0]
            if found or self.watch.over:
                break
            if factor == FACTORS[0]:
                self.drop_unfit()
        return _fastest(found, None)

    def any(self, plain: bool = False) -> Solution | None:
        """Any plan: whether the rest fits depends on the cell alone, so one label is enough.

        ``plain``: of alike stages only those of one chunk, which need no more as a rule.
        """
        tasks = sorted(self.tasks, key=lambda task: float(self.builder.needs[task[0]]))
        if self.alike is not None:
            self.alike.plain = plain
        try:
            found, _ = self._pass(tasks, np.inf, 1, stop=True)
        except Timeout as timeout:
            found = timeout.args[0]
        return next(iter(found.values()), None)

    def best(self, known: Solution | None, below: float) -> Solution | None:
        """Best plan of all outer choices ``below`` a limit, or None; ``known`` is one of them."""
        limits = [factor * self.least for factor in FACTORS]
        self.known = known.step_time if known is not None else below
        if known is not None or below < np.inf:
            limits = [known.step_time if known is not None else below]
        for number, limit in enumerate(limits):
            if number == 1:
                self.drop_unfit()
            found: dict[Any, Solution] = {}
            try:
                found, unsure = self._pass(self.tasks, limit, WIDTH)
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
                    self.tasks, limit, UNBOUNDED, top=top, others=(best, *known))
            except Timeout as timeout:
                found, proved = timeout.args[0] or found, False
                break
            if sum(one.step_time < limit for one in found.values()) >= top:
                break
        found.pop(best.key, None)
        ranked = sorted(found.values(), key=lambda x: (x.step_time, x.key))
        return ranked[: top - 1], proved

    def _pass(
        self, tasks: list[Task], limit: float, width: int, stop: bool = False,
        top: int = 1, others: tuple[Solution, ...] = (),
    ) -> tuple[dict[Any, Solution], list[Task]]:
        """Solve outer choices in rounds; the best of each key below ``limit``, and the unproven
        ones.

        With ``top`` 1 the limit falls to the best found, else to the ``top``-th best, those that
        are known, ``others``, included.
        """
        found: dict[Any, Solution] = {one.key: one for one in others}
        unsure = []
        size = FIRST_ROUND
        start = 0
        while start < len(tasks):
            if self.watch.over:
                raise Timeout(found)
            wave = [task for task in tasks[start : start + size] if self.bounds[task] < limit]
            now = limit
            self._tell()
            results = self.watch.results(
                [self.pool.submit(self._solve, task, now, width, top > 1) for task in wave],
                self._tell)
            if results is None:
                raise Timeout(found)
            for task, (solutions, dropped, counts) in zip(wave, results, strict=True):
                self.counts += counts
                self.solved.add(task[0])
                if dropped < np.inf:
                    unsure.append(task)
                self.open[task] = max(self.open[task], min(now, dropped))
                for solution in solutions:
                    key = task if top == 1 else solution.key
                    known = found.get(key)
                    if known is None or solution.step_time < known.step_time:
                        found[key] = solution
            ranked = sorted(x.step_time for x in found.values())
            self.known = min([self.known, *ranked[:1]])
            if len(ranked) >= top:
                limit = min(limit, ranked[top - 1] * (1.0 if top == 1 else 1.0 + 1e-9))
            if stop and found:
                break
            start, size = start + size, min(2 * size, ROUND)
        return found, unsure

    def _tell(self) -> None:
        """Report how far the run is."""
        if self.part:  # a bound of a part of the space is none of the space
            self.watch.report(0, 0, self.known, 0.0)
        else:
            proved = sum(bound >= self.known for bound in self.open.values())
            self.watch.report(proved, len(self.open), self.known, self.lower_bound())

    def _solve(
        self, task: Task, limit: float, width: int, spread: bool
    ) -> tuple[list[Solution], float, Any]:
        builder, kernels, (number, schedule) = self.builder, self.kernels, task
        if schedule == ALIKE:
            return self._alike(number, limit, width == UNBOUNDED, spread)
        tables = builder.tables(number, schedule == "gpipe")
        ends, wanted = kernels.useful(builder.spans(number), limit, tables)
        options = kernels.select(tables, wanted, limit)
        if not len(options[1]):
            return [], np.inf, np.zeros(3, dtype=np.int64)
        unit, problem = builder.problem(number, ends, options, schedule == "gpipe")
        best, stages, dropped, counts = kernels.solve(problem, limit, width, spread)
        solutions, row = [], 0
        for depth, value in enumerate(best.tolist()):
            if value < np.inf:
                solutions.append(Solution(value, builder, number, schedule, 1, [
                    (start, stop, position * unit, int(options[1][option]))
                    for start, stop, position, option in stages[row : row + depth].tolist()
                ]))
                row += depth
        return solutions, dropped, counts[:3]

    def _rules_out(self, number: int, limit: float) -> bool:
        """Whether no plan of an outer choice takes less than ``limit``, by what is known of it.

        Where near questions are asked, it is worth looking a little further for those to come.
        """
        if self.builder.floors is None:
            return False
        assert self.alike is not None
        floors, tight, again = self.builder.floors
        if (again and self.known < np.inf and not tight[number]
                and floors[number] < limit * SURE):
            wider = limit * WIDER
            self._learn(number, wider, *self.alike.solve(
                self.kernels.alike, number, wider, False, False)[:2])
            tight[number] = floors[number] < limit * SURE
        return bool(floors[number] >= limit * SURE)

    def _learn(self, number: int, limit: float, found: list[AlikePlan], left: float) -> None:
        """Note what no plan of an outer choice takes less than; nothing where cuts were left."""
        if self.builder.floors is not None and left == np.inf:
            floors = self.builder.floors.seconds
            least = min((plan.step_time for plan in found), default=limit)
            floors[number] = max(floors[number], min(least, limit))

    def _alike(
        self, number: int, limit: float, exact: bool, spread: bool
    ) -> tuple[list[Solution], float, Any]:
        assert self.alike is not None
        builder, solutions = self.builder, []
        if not exact and not spread and self._rules_out(number, limit):
            return [], np.inf, np.zeros(3, dtype=np.int64)
        found, left, priced = self.alike.solve(
            self.kernels.alike, number, limit, exact, spread)
        if not spread:
            self._learn(number, limit, found, left)
        for plan in found:
            block = builder.degrees(number, plan.option)["block"]
            p = plan.pipeline
            solutions.append(Solution(
                plan.step_time, builder, number, p.schedule, p.vpp,
                [(0, 0, s * block, plan.option) for s in range(p.pp)], plan))
        return solutions, left, np.array([0, 0, priced])
