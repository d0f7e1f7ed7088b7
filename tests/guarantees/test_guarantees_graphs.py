"""Guarantees G4 and G5 on graphs: one plan for all threads; more of a link never slows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from instances import Instance
from instances_graphs import graph_instance
from oracle import solve
from test_guarantees import planned

import nest
from nest.costs.network.fabric import fabric_of
from nest.inputs import Cluster

pytestmark = pytest.mark.kernels
SLOWER, MOST = 1.0 + 1e-12, 1e18
PLANNED = range(22)
SOLVED = range(11)
"""Instances of every theme and every network; of the oracle fewer, that the definition itself
holds."""
Change = tuple[str, float, float]
"""What it is called; times the bandwidth, times the latency."""
CHANGES: tuple[Change, ...] = (
    ("a little wider", 1.1, 1.0), ("wider", 3.0, 1.0), ("no limit", 1e6, 1.0),
    ("faster", 1.0, 0.5), ("at once", 1.0, 0.0))


def better(cluster: Cluster, links: list[int], change: Change) -> Cluster:
    """The same with more of some links."""
    given = cluster.links
    assert given is not None
    _, wide, fast = change
    return cluster.replace(links=given.replace(
        bandwidth=[min(x * wide, MOST) if e in links else x for e, x in enumerate(given.bandwidth)],
        latency=[x * fast if e in links else x for e, x in enumerate(given.latency)]))


def changed(x: Instance) -> Iterator[tuple[str, Cluster]]:
    """Every change of one link, another for each; the slowest link; all of them."""
    rng, given = Random(f"links {x.seed}"), x.cluster.links
    assert given is not None
    for change in CHANGES:
        e = rng.randrange(len(given.source))
        yield f"{change[0]}: link {e}", better(x.cluster, [e], change)
    slowest = min(range(len(given.source)), key=lambda e: given.bandwidth[e])
    yield f"slowest: link {slowest}", better(x.cluster, [slowest], ("wider", 3.0, 0.5))
    yield "all", better(x.cluster, list(range(len(given.source))), ("wider", 1.5, 0.9))


def check(seeds: range, seconds: Callable[[Instance, Cluster], float | None]) -> int:
    """Fail where a change slows the best plan; how many changes made it faster."""
    faster = 0
    for seed in seeds:
        x = graph_instance(seed)
        before = seconds(x, x.cluster)
        for name, cluster in changed(x) if before is not None else ():
            after = seconds(x, cluster)
            assert after is not None, (seed, name)
            assert after <= before * SLOWER, (seed, name)
            faster += after < before
    return faster


@pytest.mark.parametrize("part", range(2))
def test_more_of_a_link_never_slows_a_plan(part: int) -> None:
    def seconds(x: Instance, cluster: Cluster) -> float | None:
        plan = planned(x, cluster=cluster)
        return None if plan is None else plan.step_time_s

    assert check(PLANNED[part::2], seconds) > len(PLANNED[part::2]) // 4


def test_more_of_a_link_never_slows_the_best_of_all_plans() -> None:
    def seconds(x: Instance, cluster: Cluster) -> float | None:
        return solve(x.chain, cluster, x.job, x.space).seconds

    assert check(SOLVED, seconds) > len(SOLVED) // 4


@pytest.mark.parametrize("threads", [2, 8])
def test_any_number_of_threads_gives_the_same_plan_on_graphs(threads: int) -> None:
    for seed in PLANNED[::5]:
        x = graph_instance(seed)
        found = []
        for count in (1, threads):
            fabric_of.cache_clear()  # what one has found out about links must not help the other
            try:
                plan = nest.plan(x.model, x.cluster, x.job, x.space, threads=count,
                                 beyond_stack=True)
            except nest.InfeasibleError as error:
                found.append((str(error), ()))
                continue
            found.append((plan.step_time_s.hex(), (plan.configuration, plan.inputs.cluster.order)))
        assert found[0] == found[1], seed
