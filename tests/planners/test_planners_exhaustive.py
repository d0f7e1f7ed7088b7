"""The grid against a naive one, and the prices of planners against ``evaluate``."""

from __future__ import annotations

import random
from itertools import product

import pytest
from descriptions import CLUSTER, JOB, MODEL, measured

import nest
from nest.errors import NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.even import even_configuration
from nest.model.legality import divisors, tensor_degrees
from nest.planners.exhaustive.exhaustive import Exhaustive, Grid, best
from nest.planners.exhaustive.grid import PointTable, in_flight_by_chunk
from nest.planners.prices import PlannerPrices, outside
from nest.schedules.registry import SCHEDULES

MOE = {"experts": 4, "top_k": 2, "ffn": 64}


def instance(seed: int) -> tuple[nest.Model, nest.Cluster, nest.Job, nest.SearchSpace]:
    """A small model on a small network, some of whose strides divide no group."""
    rng = random.Random(seed)
    model = {**MODEL, "layers": rng.choice((2, 3, 4)), "hidden": 256, "ffn": 1024,
             "tied_embeddings": rng.random() < 0.5}
    if rng.random() < 0.4:
        model["moe"] = MOE
    sizes = rng.choice(((2, 2), (3, 2), (4, 2), (2, 3), (6, 2), (4, 3)))
    levels = [{**level, "size": size}
              for level, size in zip(CLUSTER["levels"][:2], sizes, strict=True)]
    memory = rng.choice(("8 GiB", "60 MiB", "30 MiB", "20 MiB"))
    cluster = {**CLUSTER, "levels": levels, "device": {**CLUSTER["device"], "memory": memory}}
    job = {**JOB, "global_batch": rng.choice((4, 6, 8)),
           "stack": {"base": rng.choice(("megatron-core", "fsdp", "megatron-2021")),
                     "receives_all": random.Random(f"{seed} receives").random() < 0.3,
                     "workspace": 0, "fragmentation": 0}}
    bounds = rng.choice((
        {"zero": "0..1"}, {"tp": "1,2", "recompute": "none,full"}, {"ep": "1..2", "zero": "1,3"},
        {"schedule": "gpipe,1f1b", "recompute": "none"}, {"mbs": "1..2", "sp": True},
        {"recompute": "full", "recompute_layers": "1..2", "zero": "0,2"}))
    return (nest.Model.parse(model), nest.Cluster.parse(cluster), nest.Job.parse(job),
            nest.SearchSpace.parse(bounds))


def naive(model, cluster, job, space) -> tuple[float | None, float | None, int]:
    """Least seconds that fit and least bytes short, one point after another; and the points."""
    chain, size = chain_of(model), cluster.size
    prices = PlannerPrices(chain, cluster, job)
    first, last = chain.body
    fits, short, points = [], [], 0
    experts = (1,) if chain.experts is None else divisors(chain.experts.experts)
    ways = [("1f1b", 1), ("gpipe", 1), *(("interleaved", v) for v in range(2, last - first + 1))]
    for tp, pp, ep in product(tensor_degrees(chain, size), range(1, last - first + 1), experts):
        if size % (tp * pp):
            continue
        dp = max(d for d in range(1, size // (tp * pp) + 1) if job.global_batch % d == 0)
        for etp in (tp,) if chain.experts is None else {1, tp}:
            inner = next(d for d in range(1, ep * etp + 1) if d * tp % (ep * etp) == 0)
            for dp_in, mbs, zero, again, sp, (schedule, vpp) in product(
                    {dp, inner}, divisors(job.global_batch // dp), range(4),
                    ("none", "selective", "full"), {True, False} if tp > 1 else {False}, ways):
                if dp % dp_in or (last - first) % (pp * vpp) and vpp > 1:
                    continue
                way = even_configuration(
                    chain, cluster, job, tp=tp, pp=pp, ep=ep, etp=etp, dp_in=dp_in,
                    outer_dp=dp // dp_in, mbs=mbs, zero=zero, recompute=again, sp=sp, vpp=vpp,
                    schedule=schedule)
                if (not prices.legal(way) or outside(space, chain, way) is not None
                        or schedule not in space.schedules):
                    continue
                points += 1
                price = prices.price(way)
                if price.excess == 0.0:
                    fits.append(price.step_time)
                else:
                    short.append(max(worst(evaluate(model, cluster, job, way)), 0.0)
                                 if not fits else 0.0)
    return min(fits, default=None), min(short, default=None), points


def worst(plan: nest.Plan) -> float:
    """Most bytes that a device lacks."""
    return max(s.memory_bytes.total - s.memory_limit_bytes for s in plan.stages)


@pytest.mark.parametrize("seed", range(12))
def test_no_point_of_a_naive_grid_is_better(seed):
    model, cluster, job, space = instance(seed)
    fits, short, points = naive(model, cluster, job, space)
    if not points:
        with pytest.raises(NoPlanError, match="no uniform tp, pp, dp and ep"):
            Exhaustive().plan(model, cluster, job, space)
        return
    grid = Grid(chain_of(model), cluster, job, space)
    plan = evaluate(model, cluster, job, grid.configuration(best(grid)))
    assert grid.points == points
    assert plan == Exhaustive().plan(model, cluster, job, space)
    assert plan.feasible == (fits is not None)
    if fits is not None:
        assert plan.step_time_s == pytest.approx(fits, rel=1e-9)
    else:
        assert worst(plan) == pytest.approx(short, rel=1e-9)


@pytest.mark.parametrize(("sizes", "kind"), [((4, 3), {}), ((6, 2), {"moe": MOE}),
                                             ((2, 2), {"kind": "encoder-decoder"})])
def test_points_cost_what_they_cost_alone(sizes, kind):
    """Every row of the arrays, also where replicas lie differently in groups, and of a graph."""
    more = {"encoder_layers": 2, "relative_positions": 32} if "kind" in kind else {}
    model = nest.Model.parse({**MODEL, "layers": 3, "hidden": 256, **kind, **more})
    levels = [{**level, "size": size}
              for level, size in zip(CLUSTER["levels"][:2], sizes, strict=True)]
    cluster = nest.Cluster.parse({**CLUSTER, "levels": levels})
    job = nest.Job.parse({**JOB, "global_batch": 4,
                          "stack": {"base": "megatron-core", "workspace": 0}})
    grid = Grid(chain_of(model), cluster, job, nest.SearchSpace(zero="0,2", recompute="none,full"))
    compared, near, places = 0, 0, set()
    for pp in range(1, 4):
        layouts = grid.layouts(pp)
        rows = grid.rows(layouts)
        if not rows:
            continue
        table = PointTable(grid, pp, layouts, rows)
        places |= {place for s in range(pp) for place in table._places(s)}
        for schedule, vpp in grid.ways(pp):
            stages = table.stages(vpp)
            bound, memory = table.bound(stages), table.memory(stages, schedule, vpp)
            for row in range(0, len(rows), 3):
                if schedule == "interleaved" and table.micro_batches[row] % pp:
                    continue
                point = table._point(row, schedule, vpp)
                plan = evaluate(model, cluster, job, grid.configuration(point))
                assert grid.price(point).step_time == pytest.approx(plan.step_time_s, rel=1e-9)
                assert bound[row] <= plan.step_time_s * (1 + 1e-12)
                near += bound[row] > 0.8 * plan.step_time_s
                for s, stage in enumerate(plan.stages):
                    assert memory[row, s] == pytest.approx(stage.memory_bytes.total, rel=1e-9)
                compared += 1
    assert compared > 30
    assert near > compared / 2
    assert len(places) > 1 or sizes != (4, 3)


def test_activations_in_flight_by_chunk():
    """As the order of passes has it, also where micro-batches are too few to fill the pipeline."""
    rng = random.Random(3)
    for p, v, groups in product((2, 3, 4), (2, 3), (1, 2, 4)):
        for s in range(p):
            kept = [rng.random() for _ in range(v)]
            most = float((in_flight_by_chunk(s, p, groups * p, v) @ kept).max())
            held = SCHEDULES["interleaved"].held(kept, s, p, groups * p)
            assert most == pytest.approx(held, rel=1e-12)


def test_instances_are_varied():
    kinds = [instance(seed) for seed in range(12)]
    assert {model.moe is None for model, *_ in kinds} == {True, False}
    assert any(6 in cluster.group_sizes for _, cluster, *_ in kinds)


def test_a_profile_and_a_graph():
    tp = {"tp": {str(t): {"forward": 1 / t, "backward": 2 / t, "parameter_bytes": 3e6,
                          "activation_bytes": 4e6} for t in (1, 2)}}
    layers = [{**measured("a"), **tp, "repeat": 4}]
    profile = nest.Profile.parse({"name": "p", "layers": layers})
    _, cluster, job, _ = instance(1)
    cluster = cluster.replace(device=cluster.device.replace(memory="8 GiB"))
    for space in (nest.SearchSpace(), nest.SearchSpace(zero=0)):
        plan = Exhaustive().plan(profile, cluster, job, space)
        assert plan.feasible
        assert plan.step_time_s == pytest.approx(naive(profile, cluster, job, space)[0], rel=1e-9)
    seeing = nest.load_model("llava1.5-7b")
    large = nest.load_cluster("dgx-h100", devices=16)
    wide = nest.Job(global_batch=16, seq_len=1024)
    plan = Exhaustive().plan(seeing, large, wide, nest.SearchSpace(tp="4", mbs=1, zero="0,1"))
    assert plan.feasible
    assert plan.step_time_s == pytest.approx(naive(
        seeing, large, wide, nest.SearchSpace(tp="4", mbs=1, zero="0,1"))[0], rel=1e-9)


def test_a_thousand_devices_in_bounded_points():
    """The size that the docstring states."""
    model = nest.load_model("llama3-70b")
    cluster = nest.load_cluster("h100-spine-leaf", devices=1024)
    grid = Grid(chain_of(model), cluster, nest.Job(global_batch=4096, seq_len=4096),
                nest.SearchSpace())
    point = best(grid)
    assert point is not None and 10_000 < grid.points < 60_000


@pytest.mark.parametrize("name", ["llama2-7b", "mixtral-8x7b", "t5-11b"])
def test_prices_are_those_of_evaluate(name):
    model, cluster = nest.load_model(name), nest.load_cluster("h100-spine-leaf", devices=96)
    job = nest.Job(global_batch=192, seq_len=512)
    chain = chain_of(model)
    prices = PlannerPrices(chain, cluster, job)
    seen, rng = 0, random.Random(1)
    for pp, tp, cp, zero, again, vpp, ep, mbs, shard in product(
            (1, 3, 4), (1, 8), (1, 2), (0, 1, 3), ("none", "full"), (1, 2), (1, 4), (1, 2),
            ("dp", "dp_in")):
        if rng.random() < 0.85:
            continue
        try:
            way = even_configuration(
                chain, cluster, job, pp=pp, tp=tp, cp=cp, zero=zero, recompute=again, vpp=vpp,
                ep=ep, etp=1 if chain.experts else None, mbs=mbs, shard=shard,
                dp_in=2 if shard == "dp_in" else None)
            plan = evaluate(model, cluster, job, way)
        except nest.InputError:
            continue
        seen += 1
        assert prices.legal(way)
        price = prices.price(way)
        assert price.step_time == pytest.approx(plan.step_time_s, rel=1e-9)
        short = way.outer_dp * sum(
            max(0.0, s.memory_bytes.total - s.memory_limit_bytes) * (s.devices[1] - s.devices[0])
            for s in plan.stages)
        assert price.excess == pytest.approx(short, rel=1e-6, abs=1.0)
        assert (price.excess == 0.0) == plan.feasible
    assert seen > 20
