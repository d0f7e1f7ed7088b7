"""The effect of each resource on a plan, and how much longer simpler plans take.

The price of a resource is the change of the best step time with one per cent more of it: the plan's
own space is searched again. The searches share the remaining time, and no result is worse than the
plan itself, priced under the change. A plan that no search proved optimal is only priced again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from nest.errors import InputError
from nest.evaluation.divisions import even_sizes
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plans import Plan
from nest.explanation.infeasible import worst_stage
from nest.inputs.arguments import need, need_count, need_growth, need_seconds
from nest.inputs.base import Freeze, Written
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.space import IntSet, SearchSpace
from nest.model import Chain
from nest.model.legality import space_problems, tp_problem
from nest.search import compiled
from nest.search.least_memory import least_memory
from nest.search.progress import Watch
from nest.search.query import Control, Query
from nest.search.solution import SearchResult
from nest.search.tensors import Formulation
from nest.search.ways import search

MORE = 1.01
"""Changed amount of a resource over the actual one, unless said otherwise."""
MOST = 10.0
"""Largest such amount."""
SAME = 1e-9
"""Relative difference of step times below which the plan itself stays the best."""
CLOSE = 1.05
"""Accuracy of the least memory at which an alternative fits: it is at most this times too much."""
OWN = 3
"""Parts of the time for a search without a plan to start from."""
TIME_LIMIT = 30.0
"""Seconds for all searches, unless said otherwise."""
NEGLIGIBLE = 1e-4
"""Share of a step below which the effect of a resource is not reported."""

Resource = Literal["memory", "flops", "memory_bandwidth", "bandwidth", "devices"]


class ShadowPrice(Written):
    """The best step time with more, or less, of one resource."""

    resource: Resource
    name: str = Field(description="the resource in words")
    level: str | None = Field(description="of the network, for bandwidth")
    devices: int = Field(description="devices then")
    factor: float = Field(description="changed amount of the resource over the actual one")
    step_time_s: float | None = Field(description="null if there is no plan; see note")
    change_s: float | None = Field(description="step_time_s less that of the plan")
    share: float | None = Field(description="change_s over the step time of the plan")
    changes: str = Field(description="differences from the plan; empty: none")
    proven: bool = Field(description="no plan of the space takes less then")
    note: str = ""


class SimplerPlan(Written):
    """The best plan under simple restrictions."""

    name: str
    bounds: Annotated[dict[str, str], Freeze] = Field(
        description="of the space, in addition to the plan's own"
    )
    step_time_s: float | None = Field(description="null if there is no plan; see note")
    slower: float | None = Field(description="step_time_s / that of the plan, less 1")
    differences_s: Annotated[dict[str, float], Freeze] = Field(
        description="part of breakdown_s: seconds more than in the plan"
    )
    stage: int | None = Field(None, description="that lacks most memory where nothing fits")
    bytes_short: float | None = Field(None, description="what it lacks, where little else would")
    configuration: Configuration | None
    proven: bool = Field(description="no plan within these bounds takes less")
    note: str = ""


class Explanation(Written):
    """Shadow prices and simpler plans of one plan."""

    schema_: Annotated[Literal["nest.explanation/1"], Field(alias="schema")] = "nest.explanation/1"
    step_time_s: float
    method: Literal["solved", "priced"] = Field(
        description="solved: the plan's space was searched again for each resource; priced: the "
        "plan's configuration was priced again, because no search had proved it optimal"
    )
    bottleneck: str = Field(description="what bounds the step, and which resource helps most")
    prices: tuple[ShadowPrice, ...]
    simpler: tuple[SimplerPlan, ...]
    seconds: float = Field(description="duration of the explanation")

    def to_json(self, indent: int | None = 2) -> str:
        """The explanation as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)


def explain(
    plan: Plan, *, threads: int | None = None, time_limit: float = TIME_LIMIT, more: float = MORE
) -> Explanation:
    """Find the effect of each resource on a plan, and how much longer simpler plans take.

    Parameters
    ----------
    plan : as :func:`nest.plan` or :func:`nest.evaluate` gives it.
    threads : number of threads.
    time_limit : seconds for all searches together, without compiling; unfinished results are not
        ``proven``.
    more : changed amount of each resource over the actual one; devices change by as many whole
        groups of the outermost level, at least one.

    Raises
    ------
    InputError
        ``search.space`` is not a search space, or the time limit is not above 0, or ``more`` is not
        above 1.
    """
    need("plan", plan, (Plan,), "nest.plan, nest.evaluate or nest.load_plan")
    need_growth("more", more, MOST)
    need_seconds("time_limit", time_limit)
    threads = None if threads is None else need_count("threads", threads)
    solver = _Solver(plan, threads)
    changes, simple = list(_changed(plan.inputs.cluster, more)), list(solver.restrictions())
    compiled.load()
    started = time.perf_counter()
    solver.begin(time_limit, OWN * len(simple) + solver.proved * sum(c.parts for c in changes))
    simpler = [solver.simpler(name, bounds) for name, bounds in simple]
    even = solver.even_cuts()
    # The longest searches come first: the others get the time that they leave.
    order = sorted(range(len(changes)), key=lambda n: -changes[n].parts)
    priced = {n: solver.price(changes[n]) for n in order}
    prices = tuple(priced[n] for n in range(len(changes)))
    return Explanation(
        step_time_s=plan.step_time_s,
        method="solved" if solver.proved else "priced",
        bottleneck=_bottleneck(plan, prices, more),
        prices=prices,
        simpler=(*simpler, *([even] if even else [])),
        seconds=time.perf_counter() - started,
    )


def priced(plan: Plan, more: float = MORE) -> tuple[ShadowPrice, ...]:
    """The effect of each resource on a plan that stays as it is: priced again, nothing is searched.

    Parameters
    ----------
    plan, more : as for :func:`explain`.
    """
    solver = _Solver(plan, None)
    return tuple(solver.unchanged(change) for change in _changed(plan.inputs.cluster, more))


class _Change(NamedTuple):
    """A cluster with more or less of one resource."""

    resource: Resource
    name: str
    level: str | None
    factor: float
    cluster: Cluster

    @property
    def parts(self) -> int:
        """Parts of the time for its search."""
        return OWN if self.factor < 1.0 else 1


def _changed(cluster: Cluster, more: float) -> Iterator[_Change]:
    levels = cluster.levels

    def sized(field: str, grown: Callable[[Any], Any]) -> Cluster:
        device, *types = (each.replace(**{field: grown(getattr(each, field))})
                          for each in cluster.device_types)
        return cluster.replace(device=device, types=types)

    yield _Change("flops", "device FLOP/s", None, more, sized(
        "peak_flops", lambda peaks: {dtype: more * peak for dtype, peak in peaks.items()}))
    yield _Change("memory", "device memory", None, more, sized("memory", lambda x: more * x))
    yield _Change("memory_bandwidth", "memory bandwidth", None, more,
                  sized("memory_bandwidth", lambda x: more * x))
    links = cluster.links
    if links is not None:
        wider_links = links.replace(bandwidth=[more * rate for rate in links.bandwidth])
        yield _Change("bandwidth", "bandwidth of all links", None, more,
                      cluster.replace(links=wider_links))
    for number, level in enumerate(levels if links is None else ()):
        # An oversubscribed level would follow those below: fix all bandwidths first.
        bandwidth = list(cluster.nominal_bandwidth)
        bandwidth[number] *= more
        wider = tuple(other.replace(oversubscription=None, bandwidth=given)
                      for other, given in zip(levels, bandwidth, strict=True))
        yield _Change("bandwidth", f"{level.name} bandwidth", level.name, more,
                      cluster.replace(levels=wider))
    group = cluster.group_sizes[-2] if len(levels) > 1 else 1
    step = group * max(1, round((more - 1.0) * cluster.size / group))
    for count in (cluster.size + step, cluster.size - step):
        try:
            resized = cluster.with_devices(count)
        except InputError:  # above NEST's limit, or none left
            continue
        yield _Change("devices", f"{count:,} devices", None, count / cluster.size, resized)


class _Solver:
    """Searches around one plan within a time limit."""

    def __init__(self, plan: Plan, threads: int | None) -> None:
        inputs = plan.inputs
        self.plan, self.subject, self.threads = plan, inputs.subject, threads
        self.chain: Chain = chain_of(inputs.subject)
        self.cluster: Cluster = inputs.cluster
        self.job: Job = inputs.job
        self.proved = plan.search is not None and plan.optimal
        self.within = bool(plan.runnable) if plan.search is None else plan.search.within_stack
        self.space = SearchSpace()
        if plan.search is not None:
            self.space = SearchSpace.parse(plan.search.space, "search.space")

    def begin(self, seconds: float, parts: int) -> None:
        """Start the time limit."""
        self.deadline, self.parts = time.perf_counter() + seconds, parts

    def search(
        self, cluster: Cluster, space: SearchSpace, parts: int, below: float = math.inf
    ) -> SearchResult:
        """One search for plans faster than ``below``, in its parts of the remaining time."""
        left = max(self.deadline - time.perf_counter(), 0.0) * parts / max(self.parts, 1)
        self.parts -= parts
        return search(Query(self.chain, cluster, self.job, space, not self.within),
                      Control(self.threads, Watch(left)), below)

    # ------------------------------------------------------------ resources

    def price(self, change: _Change) -> ShadowPrice:
        """The best step time under a change."""
        best, note = self._again(change)
        proven = False
        if self.proved:
            known = best[0] if best else math.inf
            found = self.search(change.cluster, self.space, change.parts, known)
            proven = found.lower_bound >= min(found.step_time, known)
            note = "nothing fits" if proven else "no plan found in time"
            if found.configuration is not None and (
                    best is None or found.step_time < best[0] * (1.0 - SAME)):
                best = found.step_time, found.configuration
        return self._effect(change, best, proven, note)

    def unchanged(self, change: _Change) -> ShadowPrice:
        """The step time of the plan itself under a change."""
        best, note = self._again(change)
        return self._effect(change, best, False, note)

    def _again(self, change: _Change) -> tuple[tuple[float, Configuration] | None, str]:
        """Seconds of the plan itself under a change, and the plan; or why there are none."""
        try:
            again = evaluate(self.subject, change.cluster, self.job, self.plan.configuration)
        except InputError:
            return None, "the plan needs more devices"
        if again.feasible or not self.plan.feasible:
            return (again.step_time_s, self.plan.configuration), ""
        return None, "the plan does not fit then"

    def _effect(
        self, change: _Change, best: tuple[float, Configuration] | None, proven: bool, note: str
    ) -> ShadowPrice:
        now = self.plan.step_time_s
        return ShadowPrice(
            resource=change.resource, name=change.name, level=change.level, factor=change.factor,
            devices=change.cluster.size,
            step_time_s=best[0] if best else None,
            change_s=best[0] - now if best else None,
            share=best[0] / now - 1.0 if best else None,
            changes=_differences(self.plan.configuration, best[1]) if best else "",
            proven=proven,
            note="" if best else note,
        )

    # ------------------------------------------------------------ simpler plans

    def restrictions(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Simpler ways to train, by name, as bounds of the space."""
        if not self.proved:
            yield "best plan", {}
        widest = min(self.cluster.levels[0].size, self.cluster.size)
        for tp in range(widest, 1, -1):
            if any(tp_problem(self.chain, self.job, tp, sp) is None for sp in (True, False)):
                yield f"tp {tp} everywhere", {"tp": IntSet.of(tp)}
                break
        one = IntSet.of(1)
        flat = {"pp": one, "vpp": None, "schedule": ("1f1b",)}
        yield "no pipeline", flat
        data = {**flat, "tp": one, "sp": None, "cp": one, "cp_comm": None, "cp_a2a": None,
                "ep": one, "etp": one}
        yield "ZeRO-3 only", {**data, "zero": IntSet.of(3)}
        yield "data parallel, full recompute", {
            **data, "zero": IntSet.of("0,1"), "recompute": ("full",), "recompute_layers": None}

    def simpler(self, name: str, bounds: dict[str, Any]) -> SimplerPlan:
        """The best plan within bounds."""
        space = self.space.replace(**bounds)
        shown = {key: text for key, text in space.describe().items()
                 if key in bounds and bounds[key] is not None}
        if self.proved and self._within(bounds):
            self.parts -= OWN
            return self._compared(name, shown, self.plan, True, "this plan")
        problems = space_problems(self.chain, self.cluster, self.job, space)
        if problems:
            self.parts -= OWN
            return _none(name, shown, True, "not legal: " + problems[0])
        found = self.search(self.cluster, space, OWN)
        proven = bool(found.lower_bound >= found.step_time)
        if found.configuration is not None:
            priced = evaluate(self.subject, self.cluster, self.job, found.configuration)
            return self._compared(name, shown, priced, proven, "")
        if not proven:
            return _none(name, shown, False, "no plan found in time")
        near = self._nearest(found.formulation)
        if near is None:
            why = "the stack cannot run such a plan" if self.within else "no such plan is legal"
            return _none(name, shown, True, why)
        return _short(name, shown, near, "does not fit")

    def even_cuts(self) -> SimplerPlan | None:
        """The plan with its layers cut evenly, where its blocks are equal and its cuts are not."""
        way, chain = self.plan.configuration, self.chain
        first, last = chain.body
        blocks = {s.devices[1] - s.devices[0] for s in way.stages}
        if not 1 < way.pp <= last - first or len(blocks) > 1 or way.vpp > 1 or way.order:
            return None
        sizes = even_sizes(last - first, way.pp)
        cuts = [0, *(first + sum(sizes[: s + 1]) for s in range(way.pp - 1)), len(chain)]
        spans = list(zip(cuts, cuts[1:], strict=False))
        if spans == [s.layers for s in way.stages]:
            return None
        even = way.replace(stages=tuple(
            stage.replace(layers=span, chunks=(span,))
            for stage, span in zip(way.stages, spans, strict=True)))
        priced = evaluate(self.subject, self.cluster, self.job, even)
        if self.within and priced.runnable is False:
            return _none("even cuts", {}, True, "the stack cannot run such a plan")
        if not priced.feasible:
            return _short("even cuts", {}, priced, "does not fit")
        return self._compared("even cuts", {}, priced, True, "")

    def _within(self, bounds: dict[str, Any]) -> bool:
        """Whether the plan lies within bounds."""
        p = self.plan.parallelism
        for name, allowed in bounds.items():
            holders = [p] if hasattr(p, name) else self.plan.stages
            if allowed is not None and any(getattr(x, name) not in allowed for x in holders):
                return False
        return True

    def _compared(
        self, name: str, bounds: dict[str, str], priced: Plan, proven: bool, note: str
    ) -> SimplerPlan:
        mine, other = self.plan.breakdown_s.model_dump(), priced.breakdown_s.model_dump()
        return SimplerPlan(
            name=name, bounds=bounds, step_time_s=priced.step_time_s,
            slower=priced.step_time_s / self.plan.step_time_s - 1.0,
            differences_s={cause: other[cause] - mine[cause] for cause in mine},
            configuration=priced.configuration, proven=proven, note=note,
        )

    def _nearest(self, f: Formulation) -> Plan | None:
        """A plan that lacks little memory; None where none is legal."""
        watch = Watch(self.deadline - time.perf_counter())
        found = least_memory(f, Control(self.threads, watch), CLOSE)[1]
        return None if found is None else evaluate(self.subject, self.cluster, self.job, found)


def _none(name: str, bounds: dict[str, str], proven: bool, note: str) -> SimplerPlan:
    return SimplerPlan(name=name, bounds=bounds, step_time_s=None, slower=None, differences_s={},
                       configuration=None, proven=proven, note=note)


def _short(name: str, bounds: dict[str, str], priced: Plan, why: str) -> SimplerPlan:
    """Plans that do not fit, by the one that lacks fewest bytes."""
    stage, over = worst_stage(priced)
    text = next(x for x in priced.problems if x.startswith(f"stage {stage} "))
    return _none(name, bounds, True, f"{why}: {text}").replace(
        stage=stage, bytes_short=over, configuration=priced.configuration)


def _bottleneck(plan: Plan, prices: tuple[ShadowPrice, ...], more: float) -> str:
    """What bounds the step, and which resource helps most."""
    gains = [p for p in prices if p.resource != "devices" and p.share is not None]
    best = min(gains, key=lambda p: p.share or 0.0, default=None)
    share = f"{100 * (more - 1.0):.3g}%"
    if best is None or best.share is None or best.share > -NEGLIGIBLE:
        return f"{plan.bottleneck}; {share} more of any single resource has almost no effect"
    return (f"{plan.bottleneck}; of all resources, {share} more {best.name} "
            f"helps most ({100 * best.share:+.2f}%)")


_OUTER = ("outer_dp", "micro_batch", "pp", "vpp", "schedule")
_DEGREES = ("dp_in", "tp", "sp", "cp", "cp_comm", "cp_a2a", "ep", "etp", "zero", "shard")


def _differences(before: Configuration, after: Configuration) -> str:
    """Differences of two configurations, in a few words."""
    found = [f"{name} {getattr(before, name)} -> {getattr(after, name)}" for name in _OUTER
             if getattr(before, name) != getattr(after, name)]
    deep = before.pp == after.pp

    def differ(*names: str) -> bool:
        # Stages of pipelines of different depth do not correspond: compare the sets of values.
        mine, other = (
            [tuple(getattr(stage, name) for name in names) for stage in way.stages]
            for way in (before, after))
        return mine != other if deep else set(mine) != set(other)

    other = ["blocks"] if _blocks(before) != _blocks(after) else []
    dense = all(stage.etp == stage.tp for way in (before, after) for stage in way.stages)
    other += [name for name in _DEGREES if differ(name) and not (dense and name == "etp")]
    other += ["recompute"] if differ("recompute", "recompute_modules", "recompute_layers") else []
    other += ["cuts"] if deep and differ("layers") else []
    return ", ".join(found + ([f"other {', '.join(other)}"] if other else []))


def _blocks(way: Configuration) -> set[int]:
    return {stage.devices[1] - stage.devices[0] for stage in way.stages}
