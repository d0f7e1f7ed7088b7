"""Guarantees G1 to G3 on graphs of links: the planner and ``evaluate`` against the oracle.

``NEST_INSTANCES`` sets how many random graphs, as in ``test_exact.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import linked
import numpy as np
import pytest
from instances import THEMES, Instance
from instances_graphs import NETWORKS, graph_instance
from oracle import price, solve
from oracle_drawn import drawn
from oracle_links import Figures, Seen, arrays, fabric
from oracle_plans import Answer, read_stage
from oracle_prices import Pricer
from oracle_rules import Outer, Spreads
from shared import shared
from test_exact import CHUNKS, CLOSE, INSTANCES, TOP, mismatch, planned, traits, uncompiled, unlike

import nest
from nest.costs.network.collectives import ALGORITHMS, Group, algorithm
from nest.costs.network.placement import aligned, strides
from nest.inputs import Configuration, StageConfiguration

pytestmark = pytest.mark.kernels
SEEN = 400
"""Instances among which every kind of network and of price has to occur."""


@shared
def solved(seed: int) -> Answer:
    x = graph_instance(seed)
    return solve(x.chain, x.cluster, x.job, x.space, top=TOP)


@uncompiled
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_plan_is_the_best_of_all_on_graphs(chunk: int) -> None:
    wrong = [text for seed in range(chunk, INSTANCES, CHUNKS)
             if (text := mismatch(graph_instance(seed), solved(seed)))]
    assert not wrong, "\n".join(wrong[:3])


@pytest.mark.parametrize("chunk", range(8))
def test_alternatives_are_the_next_best_on_graphs(chunk: int) -> None:
    several = 0
    for seed in range(chunk, min(INSTANCES, 120), 8):
        x, best = graph_instance(seed), solved(seed).best
        plan = planned(x, TOP)
        if plan is None:
            assert not best, seed
            continue
        several += len(best) > 1
        found: list[Any] = [plan, *plan.alternatives]
        assert [p.step_time_s for p in found] == pytest.approx(
            [b.seconds for b in best], rel=CLOSE), seed
        for p in plan.alternatives:
            assert unlike(x, p.step_time_s, p.configuration) is None
    assert several


@pytest.mark.parametrize("chunk", range(8))
def test_evaluate_prices_drawn_plans_on_graphs(chunk: int) -> None:
    schedules: set[str] = set()
    for seed in range(chunk, min(INSTANCES, 160), 8):
        x, rng = graph_instance(seed), Random(f"evaluated graph {seed}")
        for _ in range(4):
            configuration = drawn(x, rng)
            if configuration is None:
                continue
            priced = price(x.chain, x.cluster, x.job, configuration)
            plan = nest.evaluate(x.model, x.cluster, x.job, configuration)
            assert plan.step_time_s == pytest.approx(priced.seconds, rel=CLOSE), seed
            assert [s.memory_bytes.total for s in plan.stages] == pytest.approx(
                priced.memory, rel=CLOSE), seed
            assert plan.feasible == priced.fits, seed
            schedules.add(configuration.schedule)
    assert schedules == {"1f1b", "gpipe", "interleaved"}


@pytest.mark.parametrize("chunk", range(4))
def test_each_figure_of_groups_is_that_of_the_oracle(chunk: int) -> None:
    trees = uneven = 0
    for seed in range(chunk, min(INSTANCES, 160), 4):
        cluster, rng = graph_instance(seed).cluster, Random(f"figures {seed}")
        links, sizes, n = fabric(cluster), cluster.group_sizes, cluster.size
        assert links is not None
        for _ in range(6):
            outer = rng.randint(1, n)
            stride = rng.choice(strides(n, outer, sizes))
            start, block = rng.choice([
                (k, a) for a in range(1, stride + 1) for k in range(stride - a + 1)
                if all(aligned(r * stride + k, a, sizes) for r in range(outer))])
            distance = rng.choice([d for d in range(1, block + 1) if block % d == 0])
            size = rng.choice([d for d in range(1, block + 1) if block // distance % d == 0])
            group = linked.inside(cluster, block, distance, size, start, 1, n)
            spread = tuple(group.inside[0].tolist()), bool(group.even[0])
            agree(group, links.inner(start, block, distance, size, spread), spread_too=True)
            inner = rng.choice([d for d in range(1, block + 1) if block % d == 0])
            group = linked.over(cluster, block, inner, outer, stride, start)
            spread = tuple(group.inside[0].tolist()), bool(group.even[0])
            agree(group, links.replicas(
                Outer(outer, 1, stride), start, block, inner, spread), spread_too=False)
            uneven += not spread[1]
            trees += spread[1] and spread[0][-1] > 4
    assert trees > 8 and uneven > 8


def agree(group: Group, figures: Figures, spread_too: bool) -> None:
    """Figures are equal; those of trees where there are any."""
    assert group.paths is not None
    for name, found in group.paths._asdict().items():
        if (spread_too or "spread" not in name) and (group.even[0] or "tree" not in name):
            assert found[0] == pytest.approx(getattr(figures, name), rel=1e-10), name


# ---------------------------------------------------------------- what the instances reach


def test_maxima_occur_on_graphs() -> None:
    seen = [graph_instance(seed) for seed in range(SEEN)]
    links = [x.cluster.links for x in seen if x.cluster.links is not None]
    assert len(links) == SEEN
    assert {x.cluster.name for x in seen} == set(NETWORKS)
    assert {x.theme for x in seen} == set(THEMES)
    assert {x.cluster.size for x in seen} == set(range(2, 13))
    assert {link.switches for link in links} == set(range(7))
    assert {len(x.cluster.levels) for x in seen} == {1, 2, 3}
    assert max(max(link.bandwidth) / min(link.bandwidth) for link in links) > 90
    infeasible = sum(solved(seed).seconds is None for seed in range(SEEN))
    assert 0.02 * SEEN < infeasible < 0.25 * SEEN


PRICES = {
    "uneven dp", "uneven expert_dp", "uneven outer", "rounds", "ring at a level", "rails", "start",
    "places differ", "replicas differ", "hand-overs differ", "directions differ",
    "ring", "hierarchical", "tree", "cp p2p", "cp a2a", "ep 2..", "etp of its own", "tied",
    "odd stride", "irregular stride", "unused devices", "many micro-batches", "shard dp_in",
    "outer_dp 3..", "pp 3..", "vpp 2..", "1f1b", "gpipe", "interleaved",
    *(f"{name} over {network}" for name in ("tp", "dp_in", "outer_dp") for network in NETWORKS),
}
"""What some best plan has to make use of."""


def graph_traits(x: Instance, plan: Configuration) -> Iterator[str]:
    """What of the prices of links a plan makes use of."""
    yield from traits(x, plan)
    outer = Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    choices = [read_stage(stage)[0] for stage in plan.stages]
    pricer = Pricer(x.chain, x.cluster, x.job, [(outer, c) for c in choices], [])
    groups = [pricer.keys[row][-1 - len(Spreads._fields):-1] for row in pricer.row_C]
    for stage, c, own in zip(plan.stages, choices, groups, strict=True):
        yield from group_traits(dict(zip(Spreads._fields, own, strict=True)))
        yield from algorithms(x, stage, pricer, own[Spreads._fields.index("dp")])
        yield from (f"{name} over {x.cluster.name}" for name in ("tp", "dp_in")
                    if getattr(stage, name) > 1)
        for r in range(plan.outer_dp):
            alone = Outer(1, plan.micro_batch, x.cluster.size)
            moved = c._replace(start=r * plan.stride + c.start)
            found = Pricer(x.chain, x.cluster, x.job, [(alone, moved)], []).keys[0]
            if found[-len(own):][:4] != own[:4]:
                yield "replicas differ"
    alike = {c[1:] for c in choices}
    if len({(c[1:], own) for c, own in zip(choices, groups, strict=True)}) > len(alike):
        yield "places differ"
    if plan.outer_dp > 1:
        yield f"outer_dp over {x.cluster.name}"
        if plan.stride > 1 and plan.stride % 2:
            yield "odd stride"
    if plan.pp > 1:
        if any(kind.tied_parameters for kind in x.chain.kinds):
            yield "tied"
        ends = [pricer.between(outer, s.devices[0] - 1, s.devices[0]) for s in plan.stages[1:]]
        if len(set(ends)) > 1:
            yield "hand-overs differ"
        links = fabric(x.cluster)
        assert links is not None
        at = [r * plan.stride + s.devices[0] for s in plan.stages[1:] for r in range(plan.outer_dp)]
        if any(links.pair(k - 1, k) != links.pair(k, k - 1) for k in at):
            yield "directions differ"
    if any(level.base_time or level.ramp for level in x.cluster.levels):
        yield "start"


def group_traits(groups: dict[str, Seen]) -> Iterator[str]:
    """How the groups of a stage lie in the levels."""
    for name, ((inside, even), _) in groups.items():
        if not even:
            yield f"uneven {name}"
            continue
        for low, high in zip((1, *inside[:-1]), inside, strict=True):
            parts = high // low
            if parts > 2:
                yield "ring at a level" if parts & (parts - 1) else "rounds"
            if low > 1 and parts > 1:
                yield "rails"


def algorithms(
    x: Instance, stage: StageConfiguration, pricer: Pricer, holders: Seen
) -> Iterator[str]:
    """The best ways to sum the gradients of each layer of a stage."""
    for kind in x.chain.stage(range(*stage.layers)):
        layer = x.chain.kinds[kind]
        held = layer.measured[stage.tp].parameters if layer.measured else (
            layer.parameters / stage.tp)
        way = algorithm(np.array([4.0 * held]), pricer.network, arrays([holders]), True)
        yield ALGORITHMS[int(way[0])]


def test_every_kind_of_price_is_paid_by_some_best_plan() -> None:
    made: set[str] = set()
    for seed in range(SEEN):
        best = solved(seed).configuration
        if best is not None:
            made.update(graph_traits(graph_instance(seed), best))
    assert made >= PRICES, PRICES - made
