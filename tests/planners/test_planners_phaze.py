"""Phaze's dynamic program against listing every pipeline, under its own assumptions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import plain
import pytest
from instances import Instance, instance
from planner_instances import small_instance

from nest.costs.choices import FULL, Site, bodies, setting, states
from nest.costs.layer import body_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import aligned, strides
from nest.costs.stage import hop
from nest.costs.zero import state_costs
from nest.errors import NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.inputs import Cluster, Job, SearchSpace
from nest.model import boundary_bytes
from nest.model.legality import divisors
from nest.planners import planner
from nest.planners.flat import LayerSplit, flat_network, two_level_network, ways
from nest.planners.phaze import PhazeChoice, PhazePipelines, deepest_pipeline

ANY = SearchSpace()


# ---------------------------------------------------------------- the flat view


def test_the_flat_network_has_the_bandwidth_of_the_outermost_level() -> None:
    # Levels of 8 at 900, 4 at 12.5 and 4 at 50 GB/s: a message to the far end passes the 12.5.
    cluster = Cluster(name="c", device=plain.device(), levels=[
        {"name": "node", "size": 8, "bandwidth": 900e9, "latency": 1e-6},
        {"name": "leaf", "size": 4, "bandwidth": 12.5e9, "latency": 2e-6, "efficiency": 0.8},
        {"name": "spine", "size": 4, "bandwidth": 50e9, "latency": 3e-6},
    ])
    flat, two = flat_network(cluster), two_level_network(cluster)
    assert flat.group_sizes == (128,)
    assert flat.resolved_bandwidth == (10e9,)
    assert flat.levels[0].latency == 3e-6
    assert two.group_sizes == (8, 128)
    assert two.resolved_bandwidth == (900e9, 10e9)


def test_levels_of_one_group_are_not_the_network() -> None:
    cluster = Cluster(name="c", device=plain.device(), levels=[
        {"name": "chip", "size": 1, "bandwidth": 900e9, "latency": 1e-6},
        {"name": "node", "size": 4, "bandwidth": 100e9, "latency": 2e-6},
        {"name": "rack", "size": 1, "bandwidth": 1e9, "latency": 3e-6},
    ])
    assert flat_network(cluster).resolved_bandwidth == (100e9,)
    assert two_level_network(cluster).group_sizes == (4,)


# ---------------------------------------------------------------- listing


class Listing:
    """Every pipeline of an instance, each stage priced layer by layer."""

    def __init__(self, x: Instance) -> None:
        self.chain, self.cluster, self.job = x.chain, x.cluster, x.job
        self.flat = flat_network(x.cluster)

    def paths(self) -> Iterator[tuple[int, ...]]:
        """Growing downsets from none to all."""
        cuts = self.chain.downsets()

        def grow(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if path[-1] == cuts[-1]:
                yield path
            for cut in cuts:
                if cut != path[-1] and cut & path[-1] == path[-1]:
                    yield from grow((*path, cut))

        return grow((0,))

    @cache  # noqa: B019
    def layer(self, kind: int, way: LayerSplit, mbs: int, policy: int) -> dict[str, float]:
        one = np.array([1])
        columns = [np.array([v]) for v in (mbs, way.tp, way.sp, 1, 1, False, way.ep, way.etp)]
        site = Site.alone(np.array([way.tp]))
        body = bodies(fabric_of(self.cluster), site, *columns, recompute=policy * one)
        c = body_costs(self.chain.kinds[kind], body, setting(self.cluster, self.job))
        return {
            "forward": float((c.forward + c.tp_forward + c.ep_forward)[0]),
            "backward": float((c.backward + c.recompute + c.tp_backward + c.ep_backward)[0]),
            "kept": float(c.activations[0]), "work": float(c.work[0]),
        }

    @cache  # noqa: B019
    def held(self, kind: int, way: LayerSplit, ranks: int) -> tuple[float, float]:
        """Bytes of parameters and their like; seconds of gradient reduction on the flat network."""
        one, site = np.array([1]), Site.alone(np.array([way.tp * ranks]))
        state = states(fabric_of(self.flat), site, way.tp * one, way.ep * way.etp * one, 0 * one,
                       0 * one)
        c = state_costs(self.chain.kinds[kind], state, setting(self.flat, self.job))
        return float((c.parameters + c.gradients + c.optimizer)[0]), float(c.sync[0])

    def kinds(self, before: int, after: int) -> tuple[int, ...]:
        inside = after & ~before
        return self.chain.stage([n for n in range(len(self.chain)) if inside >> n & 1])

    @cache  # noqa: B019
    def transfer(self, cut: int, way: LayerSplit, mbs: int) -> float:
        """One way."""
        if cut in (0, self.chain.downsets()[-1]):
            return 0.0
        lanes = way.tp if way.sp or self.job.stack.scatter_gather else 1
        size = boundary_bytes(self.chain, self.job, cut) * mbs
        return hop(size, lanes, 1.0 / self.flat.resolved_bandwidth[0],
                   self.flat.levels[0].latency, self.job.stack).both / 2.0

    @cache  # noqa: B019
    def load(self, before: int, after: int, way: LayerSplit, mbs: int, again: bool,
             s: int) -> float:
        """Seconds of a stage that s - 1 others follow; infinite where it does not fit."""
        kinds = self.kinds(before, after)
        into, out = self.transfer(before, way, mbs), self.transfer(after, way, mbs)
        none = [self.layer(kind, way, mbs, 0) for kind in kinds]
        full = [self.layer(kind, way, mbs, FULL) for kind in kinds]
        held = sum(self.held(kind, way, 1)[0] for kind in kinds)
        limit = limit_bytes(self.cluster.device, self.job)

        def fits(layers: list[dict[str, float]]) -> bool:
            kept = sum(layer["kept"] for layer in layers)
            return held + max(layer["work"] for layer in layers) + s * kept <= limit

        ahead, back = (sum(layer[k] for layer in none) for k in ("forward", "backward"))
        if (not again or s == 1) and fits(none):
            return into + ahead + out + back
        if not again or not fits(full):
            return math.inf
        return into + ahead + max(sum(layer["backward"] for layer in full) - back, out) + back

    def best(self) -> float:
        least, n = math.inf, self.cluster.size
        found = list(self.paths())
        for mbs, way, again in itertools.product(
                divisors(self.job.global_batch), ways(self.chain, self.cluster, self.job, ANY),
                (False, True)):
            for path in found:
                p = len(path) - 1
                slowest = max(self.load(*path[k:k + 2], way, mbs, again, p - k) for k in range(p))
                for d in divisors(self.job.global_batch // mbs):
                    if slowest < math.inf and self.room(d, p, way.tp, n):
                        sync = sum(self.held(k, way, d)[1] for k in self.kinds(*path[:2]))
                        m = self.job.global_batch // mbs // d
                        least = min(least, slowest * (m + p - 1) + sync)
        return least

    @cache  # noqa: B019
    def room(self, d: int, p: int, tp: int, n: int) -> bool:
        sizes = self.cluster.group_sizes
        return d * p * tp <= n and any(
            p * tp <= stride and all(aligned(r * stride + k * tp, tp, sizes)
                                     for r in range(d) for k in range(p))
            for stride in strides(n, d, sizes))


def small(seed: int) -> Instance:
    return small_instance(seed, devices=6, cuts=8, batch=8)


@cache
def chosen(seed: int) -> PhazeChoice | None:
    x = small(seed)
    return PhazePipelines(x.chain, x.cluster, x.job, ANY).best()


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_the_program_equals_listing(first: int) -> None:
    for seed in range(first, first + 20):
        x = small(seed)
        choice = chosen(seed)
        least = Listing(x).best()
        got = math.inf if choice is None else choice.seconds
        assert got == pytest.approx(least, rel=1e-9), seed


def test_most_instances_have_a_pipeline() -> None:
    found = [chosen(seed) for seed in range(80)]
    assert sum(choice is not None for choice in found) >= 25
    assert sum(choice is not None and len(choice.path) > 2 for choice in found) >= 8
    assert any(choice is not None and "full" in choice.recompute for choice in found)


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("seed", range(40))
def test_plans_are_legal_and_within_the_space(seed: int) -> None:
    x = instance(seed)
    try:
        plan = planner("phaze").plan(x.model, x.cluster, x.job, x.space)
    except NoPlanError:
        return
    assert evaluate(x.model, x.cluster, x.job, plan.configuration).step_time_s == plan.step_time_s
    assert x.space.allows("pp", plan.parallelism.pp)
    assert x.space.allows("outer_dp", plan.parallelism.outer_dp)
    assert len({(stage.tp, stage.dp_in, stage.zero) for stage in plan.stages}) == 1
    for stage in plan.stages:
        for name in ("tp", "dp_in", "ep", "etp", "zero", "recompute"):
            assert x.space.allows(name, getattr(stage, name)), name


def test_its_count_is_that_of_evaluate_where_its_assumptions_hold() -> None:
    """On a flat network, one stage, and nothing hidden: m (f + b) + the reduction."""
    cluster = Cluster(name="c", device=plain.device(), levels=[
        {"name": "n", "size": 4, "bandwidth": 1e9, "latency": 1e-6}])
    job = Job(global_batch=8, seq_len=64, optimizer="sgd",
              stack=plain.stack(overlap_grad_reduce=0.0))
    space = SearchSpace(pp=1, tp=1, outer_dp=4, recompute="none")
    model = plain.model()
    plan = planner("phaze").plan(model, cluster, job, space)
    choice = PhazePipelines(chain_of(model), cluster, job, space).best()
    assert choice is not None
    update = plan.stages[0].finish_s - plan.stages[0].grad_sync_s
    assert plan.step_time_s - update == pytest.approx(choice.seconds, rel=1e-9)


def test_strides_that_straddle_a_group_leave_less_room() -> None:
    # Groups of 4 in 12 devices, 2 replicas, blocks of 2: strides are 6 or 4. With 6, replica 1
    # begins at device 6 and its first block is [6, 8), its third [10, 12); all lie in one group.
    cluster = Cluster(name="c", device=plain.device(), levels=[
        {"name": "node", "size": 4, "bandwidth": 1e9, "latency": 0.0},
        {"name": "rack", "size": 3, "bandwidth": 1e9, "latency": 0.0}])
    assert deepest_pipeline(cluster, 2, 2) == (6, 3)
    # Blocks of 4: with 6 replica 1 straddles at once; with 4 there is room for one block.
    assert deepest_pipeline(cluster, 2, 4) == (4, 1)
    # Blocks of 3 fit a group once: [3, 6) straddles.
    assert deepest_pipeline(cluster, 1, 3) == (12, 1)


def test_nothing_fits_says_so() -> None:
    cluster = Cluster(name="tiny", device=plain.device(memory="1 MB"), levels=[
        {"name": "n", "size": 2, "bandwidth": 1e9, "latency": 0.0}])
    with pytest.raises(NoPlanError, match="phaze: no width, depth and micro-batch"):
        planner("phaze").plan(plain.model(), cluster, Job(global_batch=2, seq_len=64), ANY)


def test_a_space_without_its_values_says_so() -> None:
    cluster = Cluster(name="c", device=plain.device(), levels=[
        {"name": "n", "size": 2, "bandwidth": 1e9, "latency": 0.0}])
    with pytest.raises(NoPlanError, match="knows zero 0 only, and the space allows 1..3"):
        planner("phaze").plan(plain.model(), cluster, Job(global_batch=2, seq_len=64),
                              SearchSpace(zero="1..3"))
