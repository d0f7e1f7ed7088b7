"""Print where the gains of a joint search come from, as Markdown: each source switched off alone.

    python bench/gains.py [SUBSTRING] > table.md

One table a cluster. An entry is the step of the best plan with the source switched off over that of
the best plan: what takes the place of the source is searched too, and proved optimal but where a
star says that the time was up, and every plan is priced on the true cluster by ``evaluate``.
docs/gains.md says what each row does. Progress goes to standard error.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from cases import SEQUENCE, SEQUENCES_PER_DEVICE, aligned
from dimensions import shape

import nest
from nest.errors import NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, Configuration, Job, Model, SearchSpace
from nest.inputs.space import LARGEST, MODULES
from nest.model.legality import divisors, tensor_degrees
from nest.planners import planner
from nest.planners.compare import shortage
from nest.planners.prices import PlannerPrices
from nest.search import compiled
from nest.search.branch_and_bound import search_one
from nest.search.progress import Watch
from nest.search.query import Control, Query
from nest.search.solution import SearchResult

MODELS = ("bert-large", "llama2-7b", "llama3-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3")
SECONDS = 30.0
"""After these a search begins no new round (chosen: few on slow networks without levels do)."""
SLOWER = 16
"""How much slower "slow" is outside the node: 25 Gb/s a device instead of 400 (chosen)."""
UNLIMITED = "1 EB"
NOTABLE = 1.02
"""Plans are shown where a step takes so much longer (chosen)."""
GRID: dict[str, Any] = {
    "cp": 1, "shard": "dp", "recompute_modules": "core_attn", "recompute_layers": LARGEST,
}
"""What the planner ``exhaustive`` has one value for."""
MISS = "does not fit"


def clusters() -> dict[str, Cluster]:
    """The clusters, by the head of their table."""
    dgx = nest.load_cluster("dgx-h100", devices=64)
    outside = [level if level.bandwidth is None else level.replace(
        bandwidth=level.bandwidth / SLOWER) for level in dgx.levels[1:]]
    small = nest.load_cluster("dgx-a100", devices=256)
    return {
        "tpuv4-fat-tree, 256 devices": nest.load_cluster("tpuv4-fat-tree", devices=256),
        "h100-spine-leaf, 1,024 devices": nest.load_cluster("h100-spine-leaf", devices=1024),
        f"Slow network: dgx-h100, 64 devices, a {SLOWER}th of the bandwidth outside the node":
            dgx.replace(levels=(dgx.levels[0], *outside)),
        "Small memory: dgx-a100 with 40 GB a device, 256 devices":
            small.replace(device="a100-sxm-40gb"),
    }


# ---------------------------------------------------------------- what is asked


class Answer(NamedTuple):
    """A plan with something switched off."""

    ratio: float | None
    """Its step over that of the best plan; inf: does not fit; None: nothing to switch off."""
    plan: Configuration | None = None
    note: str = ""
    proven: bool = True
    """The time sufficed: no plan that could have been taken instead is better."""

    def __str__(self) -> str:
        if self.ratio is None:
            return "."
        text = f"{self.ratio:.3f}" if self.ratio < math.inf else MISS
        return text if self.proven else f"{text}*"


class Asked:
    """A model, a cluster and a job, with their best plan.

    Parameters
    ----------
    space : what the best plan may be, and all others.
    """

    def __init__(
        self, model: Model, cluster: Cluster, job: Job, space: dict[str, Any] | None = None
    ) -> None:
        self.model, self.cluster, self.job, self.space = model, cluster, job, space or {}
        self.chain = chain_of(model)
        self.whole = self.best(seconds=math.inf).configuration

    def best(
        self, cluster: Cluster | None = None, seconds: float = SECONDS, **bounds: Any
    ) -> SearchResult:
        """The best plan within bounds, on another cluster where one is given."""
        space = SearchSpace.parse({**self.space, **bounds})
        return search_one(Query(self.chain, cluster or self.cluster, self.job, space, True),
                          Control(watch=Watch(seconds)))

    def price(self, plan: Configuration, cluster: Cluster | None = None) -> Plan:
        """A plan on the true cluster, or on another one."""
        return evaluate(self.model, cluster or self.cluster, self.job, plan)

    @cached_property
    def step(self) -> float:
        """Seconds of the best plan."""
        assert self.whole is not None
        return self.price(self.whole).step_time_s

    @cached_property
    def blind(self) -> Configuration:
        """The best plan if devices held anything."""
        device = self.cluster.device.replace(memory=UNLIMITED)
        found = self.best(self.cluster.replace(device=device)).configuration
        assert found is not None
        return found

    def answer(self, plan: Configuration | None, cluster: Cluster | None = None) -> Answer:
        """What a plan takes more than the best one."""
        if plan is None:
            return Answer(math.inf)
        priced = self.price(plan, cluster)
        if not priced.feasible:
            return Answer(math.inf, plan, shortage(priced))
        return Answer(priced.step_time_s / self.step, plan)

    def found(self, found: SearchResult, cluster: Cluster | None = None) -> Answer:
        """The same of what a search found."""
        proven = found.lower_bound >= found.step_time
        return self.answer(found.configuration, cluster)._replace(proven=proven)

    def chosen(self, *names: str) -> list[tuple[Any, ...]]:
        """What the stages of the best plan have in some fields, the most frequent first."""
        assert self.whole is not None
        every = [tuple(getattr(stage, name) for name in names) for stage in self.whole.stages]
        return sorted(dict.fromkeys(every), key=lambda values: -every.count(values))

    def uniform(self, names: tuple[str, ...], ways: Iterable[dict[str, Any]]) -> Answer:
        """The best of the plans whose stages are bounded alike, where the best one's differ."""
        if len(self.chosen(*names)) < 2:
            return Answer(None)
        least, chosen, proven = math.inf, None, True
        for bounds in ways:
            space = SearchSpace.parse({**self.space, **bounds})
            found = search_one(Query(self.chain, self.cluster, self.job, space, True),
                               Control(watch=Watch(SECONDS)), least)
            # A search below a limit that finds nothing proves that the limit is not undercut.
            proven &= found.lower_bound >= min(found.step_time, least) * (1.0 - 1e-9)
            if found.configuration is not None:
                least, chosen = found.step_time, found.configuration
        return self.answer(chosen)._replace(proven=proven)


# ---------------------------------------------------------------- the network


def figures(cluster: Cluster, outermost: bool) -> dict[str, Any]:
    """What a level is like: the innermost or the outermost one that joins devices."""
    joining = [v for v, level in enumerate(cluster.levels) if level.size > 1] or [0]
    like = joining[-1 if outermost else 0]
    level = cluster.levels[like]
    return {"bandwidth": cluster.resolved_bandwidth[like], "latency": level.latency,
            "base_time": level.base_time, "ramp": level.ramp,
            "in_network_reduction": level.in_network_reduction}


def worst(cluster: Cluster) -> dict[str, Any]:
    """What joins two devices that may be anywhere: the worst figures that there are."""
    return {"bandwidth": min(cluster.resolved_bandwidth), "in_network_reduction": False,
            **{name: max(getattr(level, name) for level in cluster.levels)
               for name in ("latency", "base_time", "ramp")}}


def alike(cluster: Cluster, same: dict[str, Any]) -> Cluster:
    """The same groups, with the same figures at all levels: what is legal stays legal."""
    return cluster.replace(levels=tuple(
        level.replace(oversubscription=None, efficiency=1.0, **same) for level in cluster.levels))


def network(asked: Asked, outermost: bool) -> Answer:
    """Planned with the figures of one level everywhere."""
    return asked.found(asked.best(alike(asked.cluster, figures(asked.cluster, outermost))))


# ---------------------------------------------------------------- memory


def repaired(
    asked: Asked, stages: tuple[int | None, ...], policies: tuple[str, ...]
) -> Answer:
    """The same, where it does not fit, with a smaller micro-batch and the same on all stages.

    Parameters
    ----------
    stages : of ZeRO; None: what each has.
    policies : recompute, of all layers.
    """
    plan = asked.blind
    if asked.price(plan).feasible:
        return Answer(None)
    prices = PlannerPrices(asked.chain, asked.cluster, asked.job)
    ways = []
    for zero, policy, size in product(stages, policies, divisors(plan.micro_batch)):
        changes: dict[str, Any] = {
            "recompute": policy, "recompute_modules": (), "recompute_layers": None}
        if zero is not None:
            changes |= {"zero": zero, "shard": "dp"}
        ways.append(plan.replace(micro_batch=size, stages=tuple(
            stage.replace(**changes) for stage in plan.stages)))
    priced = [(prices.price(way), way) for way in ways if prices.legal(way)]
    fitting = [(price.step_time, way) for price, way in priced if price.excess == 0.0]
    missed = [(price.excess, way) for price, way in priced]
    return asked.answer(min(fitting or missed, key=lambda pair: pair[0], default=(0, None))[1])


def deepened(asked: Asked) -> Answer:
    """The same, where it does not fit the best of its degrees with as many stages or more.

    What a device does with a sample stays (tp, cp, ep, etp), and so does ZeRO; stages and their
    cuts, replicas, micro-batches up to that size, and whether all layers are recomputed are
    searched.
    """
    plan = asked.blind
    if asked.price(plan).feasible:
        return Answer(None)
    names = ("tp", "cp", "ep", "zero") + (("etp",) if asked.chain.experts else ())
    bounds: dict[str, Any] = {
        name: sorted({getattr(stage, name) for stage in plan.stages}) for name in names}
    largest = max(plan.micro_batch // stage.dp_in for stage in plan.stages)
    return asked.found(asked.best(
        **bounds, mbs=f"1..{largest}", shard=sorted({stage.shard for stage in plan.stages}),
        pp=f"{plan.pp}..{LARGEST}", recompute=["none", "full"], recompute_layers=LARGEST))


# ---------------------------------------------------------------- stages


def grid(asked: Asked) -> Answer:
    """The planner ``exhaustive`` over the search, both in what that planner has one value for."""
    bounds = {**asked.space, **GRID, **({"etp": 1} if asked.chain.experts else {})}
    free = asked.best(seconds=math.inf, **bounds).configuration
    if free is None:
        return Answer(math.inf)
    space = SearchSpace.parse(bounds)
    try:
        plan = planner("exhaustive").plan(asked.model, asked.cluster, asked.job, space)
    except NoPlanError as error:
        return Answer(math.inf, None, str(error))
    if not plan.feasible:
        return Answer(math.inf, plan.configuration, shortage(plan))
    return Answer(plan.step_time_s / asked.price(free).step_time_s, plan.configuration)


def one_tp(asked: Asked) -> Answer:
    """The same tensor-parallel degree on all stages."""
    first = [tp for (tp,) in asked.chosen("tp")]
    every = dict.fromkeys((*first, *tensor_degrees(asked.chain, asked.cluster.size)))
    return asked.uniform(("tp",), ({"tp": tp} for tp in every))


def one_ep(asked: Asked) -> Answer:
    """The same expert-parallel degree on all stages."""
    experts = asked.chain.experts
    first = [ep for (ep,) in asked.chosen("ep")]
    every = dict.fromkeys((*first, *divisors(experts.experts if experts else 1)))
    return asked.uniform(("ep",), ({"ep": ep} for ep in every))


def one_zero(asked: Asked) -> Answer:
    """The same ZeRO stage over the same ranks on all stages."""
    first = [(zero, shard) for zero, shard in asked.chosen("zero", "shard")]
    every = dict.fromkeys((*first, (0, "dp"), *((zero, shard) for zero in (1, 2, 3)
                                                for shard in ("dp", "dp_in"))))
    return asked.uniform(("zero", "shard"), ({"zero": zero, "shard": shard}
                                             for zero, shard in every))


def one_recompute(asked: Asked) -> Answer:
    """The same recompute on all stages: none, the same modules, or all layers."""
    modules = [name for name in MODULES if name in asked.chain.modules]
    combinations = ["+".join(name for n, name in enumerate(modules) if bits >> n & 1)
                    for bits in range(1, 1 << len(modules))]
    ways: list[dict[str, Any]] = [
        {"recompute": "none"},
        *({"recompute": "selective", "recompute_modules": text} for text in combinations),
        {"recompute": "full", "recompute_layers": LARGEST}]
    return asked.uniform(("recompute", "recompute_modules", "recompute_layers"), ways)


# ---------------------------------------------------------------- places


def anywhere(asked: Asked, again: bool) -> Answer:
    """The best plan, or the best one for it, where rank order says nothing about the network."""
    place = alike(asked.cluster, worst(asked.cluster))
    if again:
        return asked.found(asked.best(place), place)
    return asked.answer(asked.whole, place)


def outside(asked: Asked) -> Answer:
    """No data parallelism inside a block: replicas of the pipeline alone."""
    if asked.chosen("dp_in") == [(1,)]:
        return Answer(None)
    return asked.found(asked.best(dp_in=1))


def inside(asked: Asked) -> Answer:
    """No replicas of the pipeline: all data parallelism inside its blocks."""
    assert asked.whole is not None
    return Answer(None) if asked.whole.outer_dp == 1 else asked.found(asked.best(outer_dp=1))


SWITCHES: dict[str, Callable[[Asked], Answer]] = {
    "network: innermost figures": lambda asked: network(asked, False),
    "network: outermost figures": lambda asked: network(asked, True),
    "memory: no limit": lambda asked: asked.answer(asked.blind),
    "then all recomputed": lambda asked: repaired(asked, (None,), ("full",)),
    "then more ZeRO": lambda asked: repaired(asked, (1, 2, 3), ("none", "full")),
    "then more stages": deepened,
    "stages: even (`exhaustive`)": grid,
    "stages: one tp": one_tp,
    "stages: one ep": one_ep,
    "stages: one ZeRO": one_zero,
    "stages: one recompute": one_recompute,
    "places: scattered": lambda asked: anywhere(asked, False),
    "places: scattered, replanned": lambda asked: anywhere(asked, True),
    "places: tp-cp-dp-pp": inside,
    "places: tp-cp-pp-dp": outside,
}
"""What is switched off, and the plan that takes its place."""


# ---------------------------------------------------------------- the tables


def answers(asked: Asked) -> dict[str, Answer]:
    """All switches; where nothing fits at all, none of them."""
    if asked.whole is None:
        return dict.fromkeys(SWITCHES, Answer(math.inf))
    return {name: switch(asked) for name, switch in SWITCHES.items()}


def print_table(title: str, cluster: Cluster, models: Iterable[str]) -> None:
    """One column a model, one row a switch; below them the plans."""
    columns = {}
    for name in models:
        started = time.perf_counter()
        job = Job(global_batch=SEQUENCES_PER_DEVICE * cluster.size, seq_len=SEQUENCE[name],
                  memory_margin=0.0)
        # What a stack's own space adds to everything is none of these sources.
        job = job.replace(stack=job.stack.replace(capabilities=None))
        asked = Asked(nest.load_model(name), cluster, job)
        columns[name] = asked, answers(asked)
        print(f"{name}, {title}: {time.perf_counter() - started:.0f} s", file=sys.stderr,
              flush=True)
    if not columns:
        return
    steps = [f"{asked.step:.4g}" if asked.whole else MISS for asked, _ in columns.values()]
    print(f"## {title}\n")
    print(aligned([
        ("", *columns), ("step, s", *steps),
        *((switch, *(str(found[switch]) for _, found in columns.values()))
          for switch in SWITCHES)]))
    print("\nThe best plans, and others that take 2 % more or do not fit:\n")
    for name, (asked, found) in columns.items():
        if asked.whole is not None:
            experts = asked.chain.experts is not None
            print(f"- {name}: {shape(asked.whole, experts)}")
            for switch, answer in found.items():
                if answer.ratio and answer.ratio >= NOTABLE and answer.plan:
                    note = f"; {answer.note}" if answer.note else ""
                    print(f"  - {switch}, {answer}: {shape(answer.plan, experts)}{note}")
    print(flush=True)


def main() -> None:
    part = sys.argv[1] if sys.argv[1:] else ""
    compiled.load()
    for title, cluster in clusters().items():
        print_table(title, cluster, [name for name in MODELS if part in f"{name}, {title}"])


if __name__ == "__main__":
    main()
