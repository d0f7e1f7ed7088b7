"""Piper's dynamic program against listing every pipeline, under its own assumptions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from random import Random

import numpy as np
import plain
import pytest
from instances import Instance, instance
from planner_instances import small_instance

from nest.costs.choices import FULL, Site, bodies, setting, states
from nest.costs.layer import body_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import aligned
from nest.costs.stage import hop
from nest.costs.zero import state_costs
from nest.errors import NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.inputs import Cluster, Job, Profile, SearchSpace
from nest.model import boundary_bytes
from nest.model.legality import divisors
from nest.planners import planner
from nest.planners.flat import Cuts, LayerSplit, body_prices, flat_network, ways
from nest.planners.piper import Piper, PiperPipeline, PiperStages

ANY = SearchSpace()


class Listing:
    """Every pipeline of an instance, each stage priced layer by layer."""

    def __init__(self, x: Instance) -> None:
        self.chain, self.cluster, self.job = x.chain, x.cluster, x.job
        self.flat, self.limit = flat_network(x.cluster), limit_bytes(x.cluster.device, x.job)
        self.cuts, self.ways = x.chain.downsets(), ways(x.chain, x.cluster, x.job, ANY)

    @cache  # noqa: B019
    def layer(
        self, kind: int, way: LayerSplit, mbs: int, policy: int
    ) -> tuple[float, float, float]:
        """Seconds of a micro-batch, bytes kept of it, bytes within the layer."""
        one = np.array([1])
        columns = [np.array([v]) for v in (mbs, way.tp, way.sp, 1, 1, False, way.ep, way.etp)]
        site = Site.alone(np.array([way.tp]))
        body = bodies(fabric_of(self.cluster), site, *columns, recompute=policy * one)
        c = body_costs(self.chain.kinds[kind], body, setting(self.cluster, self.job))
        seconds = (c.forward + c.tp_forward + c.ep_forward + c.backward + c.recompute
                   + c.tp_backward + c.ep_backward)
        return float(seconds[0]), float(c.activations[0]), float(c.work[0])

    @cache  # noqa: B019
    def held(self, kind: int, way: LayerSplit, d: int) -> tuple[float, float]:
        """Bytes of parameters and their like; seconds of gradient reduction."""
        one, site = np.array([1]), Site.alone(np.array([way.tp * d]))
        state = states(fabric_of(self.flat), site, way.tp * one, way.ep * way.etp * one, 0 * one,
                       0 * one)
        c = state_costs(self.chain.kinds[kind], state, setting(self.flat, self.job))
        return float((c.parameters + c.gradients + c.optimizer)[0]), float(c.sync[0])

    def hop(self, cut: int, way: LayerSplit, mbs: int) -> float:
        if cut in (0, self.cuts[-1]):
            return 0.0
        lanes = way.tp if way.sp or self.job.stack.scatter_gather else 1
        size = boundary_bytes(self.chain, self.job, cut) * mbs
        return hop(size, lanes, 1.0 / self.flat.resolved_bandwidth[0],
                   self.flat.levels[0].latency, self.job.stack).both

    @cache  # noqa: B019
    def stage(
        self, before: int, after: int, way: LayerSplit, d: int, mbs: int, y: int, share: int
    ) -> float:
        """Least time-per-sample with y micro-batches held; ``share``: D / d."""
        inside = after & ~before
        kinds = self.chain.stage([n for n in range(len(self.chain)) if inside >> n & 1])
        marked = [n for n, kind in enumerate(kinds) if self.chain.kinds[kind].checkpointed]
        held = sum(self.held(kind, way, d)[0] for kind in kinds)
        sync = sum(self.held(kind, way, d)[1] for kind in kinds)
        numbers = range(len(marked) + 1) if self.chain.is_chain else {0, len(marked)}
        least = math.inf
        for r in numbers:
            layers = [self.layer(kind, way, mbs, FULL if n in marked[:r] else 0)
                      for n, kind in enumerate(kinds)]
            # What lives within a layer: of the stage's largest, as if any could be run again.
            work = max(self.layer(kind, way, mbs, policy)[2] for kind in kinds
                       for policy in ((0, FULL) if r else (0,)))
            if held + share * work + y * sum(kept for _, kept, _ in layers) <= self.limit:
                seconds = sum(layer[0] for layer in layers)
                seconds += self.hop(before, way, mbs) + self.hop(after, way, mbs)
                least = min(least, seconds / d + sync / (self.job.global_batch // mbs))
        return least

    def shapes(self, common: int) -> Iterator[tuple[list[int], list[tuple[LayerSplit, int]]]]:
        """Cuts and columns of all pipelines on consecutive aligned blocks."""
        columns = [(way, d) for way in self.ways for d in divisors(common)]

        def grow(
            path: list[int], chosen: list[tuple[LayerSplit, int]], start: int
        ) -> Iterator[tuple[list[int], list[tuple[LayerSplit, int]]]]:
            if path[-1] == self.cuts[-1]:
                yield path, chosen
                return
            for way, d in columns:
                size = way.tp * d
                if start + size <= self.cluster.size and aligned(
                        start, size, self.cluster.group_sizes):
                    for cut in self.cuts:
                        if cut != path[-1] and cut & path[-1] == path[-1]:
                            yield from grow([*path, cut], [*chosen, (way, d)], start + size)

        return grow([0], [], 0)

    def best(self) -> float:
        """Least seconds of a step."""
        least = math.inf
        for mbs in divisors(self.job.global_batch):
            batches = self.job.global_batch // mbs
            for common in divisors(batches):
                for path, chosen in self.shapes(common):
                    p = len(chosen)
                    if p * common > batches:
                        continue
                    longest = max(
                        self.stage(path[n], path[n + 1], way, d, mbs, (p - n) * common // d,
                                   common // d)
                        for n, (way, d) in enumerate(chosen))
                    least = min(least, longest * batches)
        return least


def small(seed: int) -> Instance:
    return small_instance(seed, devices=6, cuts=7, batch=8)


@cache
def chosen(seed: int, pp: int | None = None) -> tuple[PiperPipeline, float, int] | None:
    x = small(seed)
    return Piper().best(x.chain, x.cluster, x.job, SearchSpace(pp=pp))


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_the_program_equals_listing(first: int) -> None:
    for seed in range(first, first + 20):
        x = small(seed)
        found, least = chosen(seed), Listing(x).best()
        assert (math.inf if found is None else found[1]) == pytest.approx(least, rel=1e-9), seed


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_stages_cost_and_hold_what_listing_says(first: int) -> None:
    """Also with fewer ranks than the micro-batch is made for, and more micro-batches held."""
    for seed in range(first, first + 10):
        x, rng = small(seed), Random(seed)
        listing, cuts = Listing(x), Cuts(x.chain, x.job, x.chain.downsets())
        common, n = x.job.global_batch, x.cluster.size
        columns = [(way, d) for way in listing.ways for d in divisors(common) if way.tp * d <= n]
        if not columns:
            continue
        found = [way for way, _ in columns]
        prices = body_prices(x.chain, x.cluster, x.job, found, [1] * len(found))
        stages = PiperStages(cuts, x.cluster, x.job, ANY, columns, prices, 1, common)
        for i, c in itertools.product(range(cuts.last), range(len(columns))):
            way, d = columns[c]
            y = rng.randint(1, 6)
            for at, j in enumerate(cuts.after(i).tolist()):
                least = listing.stage(cuts.masks[i], cuts.masks[j], way, d, 1, y, common // d)
                if least < math.inf:
                    assert stages.time(i, j, c, y)[0] == pytest.approx(least, rel=1e-9)
                    assert stages.deepest(i, least * (1 + 1e-9))[at, c] >= y
                    assert stages.deepest(i, least * (1 - 1e-9))[at, c] < y
                else:
                    assert stages.deepest(i, 1e9)[at, c] < y


def test_instances_are_not_all_alike() -> None:
    found = [pipeline for seed in range(80) if (pipeline := chosen(seed))]
    assert len(found) >= 25
    stages = [p.stages for p, _, _ in found]
    assert sum(len(s) > 1 for s in stages) >= 8
    assert sum(len({stage.column for stage in s}) > 1 for s in stages) >= 3
    assert sum(len({stage.column[1] for stage in s}) > 1 for s in stages) >= 1
    assert any(stage.recompute == "full" for s in stages for stage in s)
    assert any(stage.recompute_layers for s in stages for stage in s)


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("seed", range(30))
def test_plans_are_legal_and_within_the_space(seed: int) -> None:
    x = instance(seed)
    try:
        plan = planner("piper").plan(x.model, x.cluster, x.job, x.space)
    except NoPlanError:
        return
    assert evaluate(x.model, x.cluster, x.job, plan.configuration).step_time_s == plan.step_time_s
    assert x.space.allows("pp", plan.parallelism.pp)
    assert x.space.allows("micro_batch", plan.parallelism.micro_batch)
    for stage in plan.stages:
        assert x.space.allows("mbs", plan.parallelism.micro_batch // stage.dp_in)
        for name in ("tp", "dp_in", "ep", "etp", "zero", "recompute"):
            assert x.space.allows(name, getattr(stage, name)), name
        if stage.recompute_layers:
            assert x.space.allows("recompute_layers", stage.recompute_layers)


@pytest.mark.parametrize("seed", range(8))
def test_a_number_of_stages_can_be_asked_for(seed: int) -> None:
    x = small(seed)
    free = chosen(seed)
    found = [chosen(seed, n) for n in range(1, len(x.chain) + 1)]
    least = min((f[1] for f in found if f), default=math.inf)
    assert least == pytest.approx(free[1] if free else math.inf, rel=1e-9)
    for n, f in enumerate(found, 1):
        assert f is None or len(f[0].stages) == n


def test_a_stage_of_four_equal_layers_by_hand() -> None:
    """Four layers of 1 s + 2 s a sample, 2 devices, 4 samples, no traffic.

    mbs 1: two stages of two layers, d = 1: 2 x 3 s a sample, 24 s a step. One stage on both
    devices, d = 2: 4 x 3 s / 2: the same. On one device it would be 48 s.
    """
    layer = {"forward": 1.0, "backward": 2.0, "parameter_bytes": 0.0, "activation_bytes": 1e9}
    profile = Profile(name="p", layers=[
        {"name": "a", "output_bytes": 0.0, "repeat": 4, "tp": {1: layer}}])
    cluster = Cluster(name="c", device=plain.device(memory="5 GB"), levels=[
        {"name": "n", "size": 2, "bandwidth": 1e12, "latency": 0.0}])
    job = Job(global_batch=4, seq_len=64, stack=plain.stack(), memory_margin=0)
    found = Piper().best(chain_of(profile), cluster, job, ANY)
    assert found is not None
    assert found[1] == pytest.approx(24.0, rel=1e-9)
    # 3.9 GB. Two stages: the first holds two micro-batches of two layers, 4 GB; with the first
    # layer run again 2 x 1 GB and 1 GB within it, in 6 s + 1 s. One stage on both devices holds
    # 4 GB of one micro-batch; with two layers run again 2 + 1 GB, in (12 + 2) s / 2. 28 s both.
    tight = cluster.replace(device=plain.device(memory="3.9 GB"))
    found = Piper().best(chain_of(profile), tight, job, ANY)
    assert found is not None
    assert found[1] == pytest.approx(28.0, rel=1e-9)
    # With 4 GB both keep everything.
    wide = cluster.replace(device=plain.device(memory="4 GB"))
    found = Piper().best(chain_of(profile), wide, job, ANY)
    assert found is not None and found[1] == pytest.approx(24.0, rel=1e-9)


def test_nothing_fits_says_so() -> None:
    cluster = Cluster(name="tiny", device=plain.device(memory="1 MB"), levels=[
        {"name": "n", "size": 2, "bandwidth": 1e9, "latency": 0.0}])
    with pytest.raises(NoPlanError, match="piper: no stages of the space fit"):
        planner("piper").plan(plain.model(), cluster, Job(global_batch=2, seq_len=64), ANY)
