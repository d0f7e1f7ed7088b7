"""What Alpa's profile of a stage measures: what the stage takes, with all that the stack hides."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import numpy as np
import plain
import pytest
from instances import Instance
from planner_instances import small_instance

from nest.costs.stage import chunk_costs
from nest.evaluation.evaluate import evaluate
from nest.inputs import Configuration, SearchSpace, StageConfiguration
from nest.planners.alpa.inter import Meshes, Option
from nest.planners.alpa.intra import AlpaLayerSeconds, alone
from nest.planners.prices import PlannerPrices
from nest.schedules.chunk import LayerSeconds
from nest.schedules.registry import SCHEDULES

ANY = SearchSpace()
ALONE = SCHEDULES["1f1b"]


def test_a_stage_is_profiled_as_a_whole() -> None:
    """Layers of f = 1, b = 2 s that reduce 3 s and gather 1 s a step; half of computing hides it.

    One layer, 4 micro-batches: 1 s until the parameters are there, 4 x 3 s, 3 s to reduce, 0.5 s
    of optimizer: 16.5 s. Two layers: the second one's parameters come 0.5 s under the first one's
    forward, and 3 + 3 - 1 s of gradients are left: 1.5 + 4 x 6 + 5 + 1 = 31.5 s.
    """
    stack = plain.stack(overlap_grad_reduce=0.5, overlap_param_gather=0.5, overlap_zero3=0.5)
    one = np.ones((1, 1))
    each = AlpaLayerSeconds(free_forward=one, forward=one, free_backward=2 * one, backward=2 * one,
                   gathered=0 * one, regathered=0 * one, scattered=0 * one, sync=3 * one,
                   gather=one, maxima=0 * one, once=0.5 * one)
    found = list(alone(each, np.array([0, 0]), np.array([0, 1]), 4, stack))
    assert [seconds[:, 0].tolist() for seconds in found] == [[16.5 / 4] * 2, [31.5 / 4]]


@pytest.mark.parametrize("seed", range(120))
def test_many_stages_are_profiled_as_one_is(seed: int) -> None:
    """Stages of random layers, side by side as arrays, and one by one with ``chunk_costs``."""
    rng = np.random.default_rng(seed)
    kinds, options, count = rng.integers(1, 4), 3, int(rng.integers(1, 7))
    stack = plain.stack(**{name: float(rng.choice((0.0, 0.5, 0.9, 1.0))) for name in (
        "overlap_zero3", "overlap_grad_reduce", "overlap_param_gather")})
    zero = seed % 3  # what travels: once a step, gradients (ZeRO-2), parameters too (ZeRO-3)
    held = rng.random((kinds, 1)) < 0.8  # kinds of layers that have parameters
    again = bool(rng.integers(2))  # whether the stack gathers them once more before backward
    busy = {"gathered": held * (zero == 2), "regathered": held * (zero == 2) * again,
            "scattered": held * (zero > 0)}
    each = AlpaLayerSeconds(*(
        rng.random((kinds, options)) * rng.integers(1, 4) * busy.get(name, True)
        for name in AlpaLayerSeconds._fields))
    order, batches = rng.integers(0, kinds, count), int(rng.integers(1, 6))
    starts = np.arange(count)
    for n, found in enumerate(alone(each, order, starts, batches, stack), start=1):
        assert found.shape == (count - n + 1, options)
        for first, c in product(range(count - n + 1), range(options)):
            layers = [LayerSeconds(**{
                name: float(getattr(each, name)[kind, c]) for name in LayerSeconds._fields})
                for kind in order[first:first + n]]
            once = float(each.once[order[first:first + n], c].sum())
            one = ALONE.step_time([[chunk_costs(layers, once, 0.0, stack)]], [], batches)
            assert found[first, c] == pytest.approx(one.total / batches, rel=1e-12), (first, n)


@cache
def _drawn(seed: int) -> tuple[Instance, Meshes, int, list[Option]] | None:
    """An instance on at most two levels, its meshes, a micro-batch, options; stack as drawn."""
    x = small_instance(seed, devices=8, cuts=9, batch=12)
    if len(x.cluster.levels) > 2 or 1 in {level.size for level in x.cluster.levels[1:]}:
        return None
    meshes = Meshes(x.chain, x.cluster, x.job, ANY)
    for micro_batch in Random(seed).sample(range(1, 13), 12):
        options = meshes.options(micro_batch) if x.job.global_batch % micro_batch == 0 else []
        if options:
            return x, meshes, micro_batch, options
    return None


def _stage(meshes: Meshes, cuts: tuple[int, int], option: Option, recompute: str
           ) -> StageConfiguration:
    layers = [meshes.cuts.masks[cut].bit_count() for cut in cuts]
    way = option.way
    return StageConfiguration.parse({
        "layers": layers, "devices": (0, option.mesh), "dp_in": option.mesh // way.tp,
        "tp": way.tp, "sp": way.sp, "ep": way.ep, "etp": way.etp, "zero": option.zero,
        "recompute": recompute}, "stage")


@pytest.mark.parametrize("first", range(0, 45, 15))
def test_stages_alone_take_what_their_layers_do_on_any_stack(first: int) -> None:
    """Every stage on its mesh, with what the stack hides: 1/B of a step of that stage."""
    hidden = 0
    for seed in range(first, first + 15):
        drawn = _drawn(seed)
        if drawn is None or drawn[0].job.uneven:  # profiles know no waits for longer samples
            continue
        x, meshes, micro_batch, options = drawn
        batches, rng = x.job.global_batch // micro_batch, Random(seed)
        recompute = rng.choice(("none", "full"))
        table = meshes.table(micro_batch, options, recompute)
        prices = PlannerPrices(x.chain, x.cluster, x.job)
        idle = x.job.stack.replace(
            overlap_zero3=0.0, overlap_grad_reduce=0.0, overlap_param_gather=0.0)
        bare = Meshes(x.chain, x.cluster, x.job.replace(stack=idle), ANY).table(
            micro_batch, options, recompute)
        assert (table.seconds <= bare.seconds * (1.0 + 1e-12)).all(), seed
        hidden += int((table.seconds < bare.seconds * (1.0 - 1e-6)).sum())
        for _ in range(12):
            row, way = rng.randrange(len(table.first)), rng.randrange(len(options))
            cuts = int(table.first[row]), int(table.end[row])
            stage = _stage(meshes, cuts, options[way], recompute)
            plan = Configuration.parse({
                "micro_batch": micro_batch, "stages": [stage], "stride": x.cluster.size}, "plan")
            chunk = prices._stage(plan, stage).chunks[0]
            assert table.seconds[row, way] == pytest.approx(
                ALONE.step_time([[chunk]], [], batches).total / batches, rel=1e-9), (seed, cuts)
    assert hidden > 0


@pytest.mark.parametrize("first", range(0, 45, 15))
def test_one_stage_takes_what_evaluate_says_on_any_stack(first: int) -> None:
    """B micro-batches of one stage on all devices are the step, to the last digits."""
    compared = 0
    for seed in range(first, first + 40):
        drawn = _drawn(seed)
        if drawn is None:
            continue
        x, meshes, micro_batch, options = drawn
        for recompute in ("none", "full"):
            table = meshes.table(micro_batch, options, recompute)
            row = int(np.flatnonzero((table.first == 0) & (table.end == meshes.cuts.last))[0])
            whole = [way for way, o in enumerate(options) if o.mesh == x.cluster.size]
            for way in Random(seed).sample(whole, min(3, len(whole))):
                stage = _stage(meshes, (0, meshes.cuts.last), options[way], recompute)
                plan = evaluate(x.model, x.cluster, x.job, Configuration(
                    micro_batch=micro_batch, stages=(stage,)))
                batches = x.job.global_batch // micro_batch
                assert batches * table.seconds[row, way] == pytest.approx(
                    plan.step_time_s, rel=1e-9), seed
                assert (table.deepest[row, way] >= 1) == plan.feasible, seed
                compared += 1
    assert compared > 10
