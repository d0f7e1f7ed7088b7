"""Alpa's integer program, clustering and dynamic program, each against listing everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import plain
import pytest
from instances import instance
from planner_instances import small_instance

from nest.costs.network.placement import aligned
from nest.errors import NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.inputs import Cluster, Job, SearchSpace
from nest.planners import planner
from nest.planners.alpa.inter import AlpaPipeline, Inter, Meshes, StageTable, submeshes
from nest.planners.alpa.intra import (
    AlpaProduct,
    AlpaTraffic,
    Edge,
    Mesh,
    add_path,
    merge,
    products,
    shard,
    solve,
)

ANY = SearchSpace()


def network(*sizes: int, **changes: object) -> Cluster:
    return Cluster(name="c", device=plain.device(**changes), levels=[
        {"name": f"l{n}", "size": size, "bandwidth": 100e9 / 10**n, "latency": 1e-6}
        for n, size in enumerate(sizes)])


# ---------------------------------------------------------------- the integer program


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_integer_program_equals_listing(first: int) -> None:
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 5, rng.integers(2, 6)).tolist()
        scale = 10.0 ** rng.integers(-6, 3)
        nodes = [scale * rng.random(size) for size in sizes]
        edges = [Edge(a, b, scale * rng.random((sizes[a], sizes[b])) * rng.integers(0, 3))
                 for a, b in itertools.combinations(range(len(sizes)), 2) if rng.random() < 0.6]

        def cost(chosen: tuple[int, ...], nodes: list[np.ndarray] = nodes,
                 edges: list[Edge] = edges) -> float:
            return float(sum(node[c] for node, c in zip(nodes, chosen, strict=True))
                         + sum(e.cost[chosen[e.source], chosen[e.target]] for e in edges))

        least = min(cost(chosen) for chosen in itertools.product(*map(range, sizes)))
        assert cost(tuple(solve(nodes, edges))) == pytest.approx(least, rel=1e-9), seed


def test_megatron_products_follow_each_other() -> None:
    """Query, key and value, the core, the output; up and down."""
    layer = chain_of(plain.model()).kinds[1]
    h, ff, tokens = plain.H, plain.FF, 64
    assert products(layer, tokens) == [
        [AlpaProduct(tokens * h, tokens * 3 * h, False), AlpaProduct(0.0, 0.0, True),
         AlpaProduct(tokens * h, tokens * h, False)],
        [AlpaProduct(tokens * h, tokens * ff, False), AlpaProduct(tokens * ff, tokens * h, False)],
    ]


def test_the_ends_take_token_numbers_and_give_logits() -> None:
    chain = chain_of(plain.model())
    h, v, tokens = plain.H, plain.V, 64
    assert products(chain.kinds[0], tokens) == [[AlpaProduct(0.0, tokens * h, False)]]
    assert products(chain.kinds[-1], tokens) == [[AlpaProduct(tokens * h, tokens * v, False)]]


def test_the_program_finds_the_split_of_megatron() -> None:
    """First product by columns, second by rows, the residual whole: one sum each way.

    X is h wide, the product between ff. All-reduces move 2 (n-1)/n of h forward (of the output)
    and backward (of the gradient of X); anything else gathers the product between, 4 h wide.
    """
    view, job = network(8), Job(global_batch=8, seq_len=64, stack=plain.stack())
    for path in products(chain_of(plain.model()).kinds[1], job.seq_len):
        traffic = AlpaTraffic(view, job, Mesh(batch=1, operators=8, samples=8), 1.0)
        nodes: list[np.ndarray] = [np.zeros(1), np.zeros(2)]
        edges: list[Edge] = []
        add_path(nodes, edges, path, traffic)
        chosen = solve(nodes, edges)
        first, last = chosen[2], chosen[-1]
        assert (first, last, chosen[1]) == (0, 2, 0)
        cost = sum(float(node[c]) for node, c in zip(nodes, chosen, strict=True)) + sum(
            float(e.cost[chosen[e.source], chosen[e.target]]) for e in edges)
        size = 8 * 64 * plain.H * 2
        assert cost == pytest.approx(2 * (2 * 7 / 8 * size / 100e9 + 2 * 3 * 1e-6), rel=1e-9)


def test_parameters_are_replicated_unless_that_is_forbidden() -> None:
    """ZeRO-3 moves half as much again as one all-reduce."""
    chain, job = chain_of(plain.model()), Job(global_batch=8, seq_len=64, stack=plain.stack())
    mesh = Mesh(batch=4, operators=2, samples=1)
    for replicate in (True, False):
        chosen = shard(chain, network(8), job, mesh, [(1, 2)], replicate)
        assert chosen.parameters is not replicate


@pytest.mark.parametrize(("ffn", "samples", "pair"), [(24000, 1, (8, 1)), (2, 1000, (1, 1))])
def test_experts_are_dealt_out_where_that_is_less_traffic(
    ffn: int, samples: int, pair: tuple[int, int]
) -> None:
    """Gradients of large experts cost more than their tokens, those of small ones less.

    On 4 x 2 devices each expert is on one device alone with ep 8, and nothing is left to reduce.
    """
    chain = chain_of(plain.mixture(experts=8, ffn=ffn))
    job = Job(global_batch=4 * samples, seq_len=64, stack=plain.stack())
    mesh = Mesh(batch=4, operators=2, samples=samples)
    pairs = [(1, 2), (2, 1), (4, 2), (8, 1), (1, 1)]
    assert shard(chain, network(8), job, mesh, pairs, True).pair == pair


# ---------------------------------------------------------------- clustering


def _runs(layers: int, count: int) -> Iterator[tuple[int, ...]]:
    for inner in itertools.combinations(range(1, layers), count - 1):
        yield (0, *inner, layers)


@pytest.mark.parametrize("seed", range(200))
def test_clustering_equals_listing(seed: int) -> None:
    rng = Random(seed)
    layers = rng.randint(2, 8)
    count = rng.randint(1, layers)
    work = np.array([rng.choice((0.1, 1.0, rng.random())) for _ in range(layers)])
    received = np.array([rng.choice((1.0, 2.0, 3.0)) for _ in range(layers)])
    average = work.sum() / count
    legal = []
    for cuts in _runs(layers, count):
        held = [work[a:b].sum() for a, b in itertools.pairwise(cuts)]
        if all(w <= 1.5 * average or b - a == 1
               for w, (a, b) in zip(held, itertools.pairwise(cuts), strict=True)):
            legal.append(max(received[a] for a in cuts[:-1]))
    found = merge(work, received, count, 0.5)
    assert (found is None) == (not legal)
    if found is not None:
        assert len(found) == count + 1 and found[0] == 0 and found[-1] == layers
        assert max(received[a] for a in found[:-1]) == min(legal)


def test_of_equal_clusters_the_most_even_are_taken() -> None:
    # Six layers of 1 in three: 2, 2, 2, though 3, 2, 1 keeps within 1.5 x 2 too.
    assert merge(np.ones(6), np.ones(6), 3, 0.5) == (0, 2, 4, 6)


def test_an_embedding_joins_the_first_layer() -> None:
    model, job = plain.model(layers=6, vocab=64), Job(global_batch=2, seq_len=64)
    job = job.replace(stack=job.stack.replace(layer_gap=0.0))  # else it takes as long as they do
    meshes = Meshes(chain_of(model), network(2), job, ANY)
    spans = meshes.cuts.spans(range(meshes.cuts.last + 1))
    assert spans[0] == (0, 2)


# ---------------------------------------------------------------- the dynamic program


def _table(rng: Random, cuts: int, meshes: list[int]) -> StageTable:
    pairs = [(i, j) for i in range(cuts) for j in range(i + 1, cuts + 1)]
    ways = [mesh for mesh in meshes for _ in range(rng.randint(1, 2))]
    work = [rng.uniform(0.2, 2.0) for _ in range(cuts)]
    values = (1.0, 2.0, 3.0) if rng.random() < 0.3 else None  # ties
    wild = rng.random() < 0.5
    seconds = [[rng.choice(values) if values else rng.random() if wild else
                sum(work[i:j]) / mesh ** rng.uniform(0.5, 1.0) for mesh in ways]
               for i, j in pairs]
    deepest = [[rng.choice((0, 1, 2, 3, 9, 9)) for _ in ways] for _ in pairs]
    first, end = np.array(pairs).T
    return StageTable(first, end, np.array(ways), np.array(seconds), np.array(deepest, dtype=float))


def _listed(
    table: StageTable, cuts: int, devices: int, starts: dict[int, np.ndarray], batches: int,
    depths: set[int],
) -> float:
    """Least sum(t) + (B - 1) max(t) of all stages and meshes that cover the devices."""
    row = {(int(i), int(j)): n for n, (i, j) in enumerate(zip(table.first, table.end,
                                                             strict=True))}
    least = math.inf
    for count in depths:
        for path in _runs(cuts, count):
            for ways in itertools.product(range(len(table.mesh)), repeat=count):
                place, legal, times = 0, True, []
                for n, way in enumerate(ways):
                    r = row[path[n], path[n + 1]]
                    legal &= bool(place in starts[int(table.mesh[way])])
                    legal &= bool(table.deepest[r, way] >= count - n)
                    times.append(float(table.seconds[r, way]))
                    place += int(table.mesh[way])
                if legal and place == devices:
                    least = min(least, sum(times) + (batches - 1) * max(times))
    return least


SHAPES = [((4,), [1, 2, 4]), ((2, 2), [1, 2, 4]), ((2, 3), [1, 2, 4, 6]), ((3,), [1, 2, 3]),
          ((4, 2), [1, 2, 4, 8]), ((2, 2, 2), [1, 2, 4, 8])]


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_the_dynamic_program_equals_listing(first: int) -> None:
    found = 0
    for seed in range(first, first + 40):
        rng = Random(seed)
        sizes, meshes = SHAPES[seed % len(SHAPES)]
        devices, cuts = math.prod(sizes), rng.randint(1, 4)
        groups = tuple(itertools.accumulate(sizes, int.__mul__))
        starts = {mesh: np.array([s for s in range(devices - mesh + 1)
                                  if aligned(s, mesh, groups)]) for mesh in meshes}
        table, batches = _table(rng, cuts, meshes), rng.choice((1, 2, 5, 100))
        depths = set(range(1, cuts + 1)) if rng.random() < 0.8 else {rng.randint(1, cuts)}
        result = Inter(table, cuts, devices, starts, batches, sorted(depths)).best()
        least = _listed(table, cuts, devices, starts, batches, depths)
        assert (result.seconds if result else math.inf) == pytest.approx(least, rel=1e-9), seed
        if result:
            found += 1
            _check(result, cuts, devices, table)
    assert found >= 10


def _all_limits(table: StageTable, cuts: int, devices: int, starts: dict[int, np.ndarray],
                batches: int) -> float:
    """The same by F of section 5.2 for every limit, as the authors' program does it."""
    rows = list(zip(table.first.tolist(), table.end.tolist(), strict=True))
    least = math.inf
    for limit in sorted({float(t) for t in table.seconds.ravel()}):
        f = {(0, cuts, devices): 0.0}
        for s in range(1, cuts + 1):
            for r, (i, j) in enumerate(rows):
                for way, mesh in enumerate(table.mesh.tolist()):
                    t = float(table.seconds[r, way])
                    if t > limit or table.deepest[r, way] < s:
                        continue
                    for start in starts[mesh].tolist():
                        rest = f.get((s - 1, j, start + mesh), math.inf)
                        f[s, i, start] = min(f.get((s, i, start), math.inf), t + rest)
        total = min(f.get((s, 0, 0), math.inf) for s in range(1, cuts + 1))
        least = min(least, total + (batches - 1) * limit)
    return least


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_leaving_limits_out_changes_nothing(first: int) -> None:
    starts = {mesh: np.arange(0, 8, mesh) for mesh in (2, 4, 8)}
    for seed in range(first, first + 20):
        rng = Random(seed)
        cuts, batches = rng.randint(4, 6), rng.choice((2, 5, 20, 100))
        table = _table(rng, cuts, [2, 4, 8])
        result = Inter(table, cuts, 8, starts, batches).best()
        least = _all_limits(table, cuts, 8, starts, batches)
        assert (result.seconds if result else math.inf) == pytest.approx(least, rel=1e-9), seed


def _check(result: AlpaPipeline, cuts: int, devices: int, table: StageTable) -> None:
    """Stages follow each other, and cover layers and devices exactly."""
    layer = place = 0
    for stage in result.stages:
        assert (stage.cuts[0], stage.start) == (layer, place)
        layer, place = stage.cuts[1], place + int(table.mesh[stage.way])
    assert (layer, place) == (cuts, devices)


def test_a_limit_and_a_tolerance_are_kept() -> None:
    rng = Random(1)
    starts = {m: np.arange(0, 4, m) for m in (1, 2, 4)}
    for _ in range(40):
        table = _table(rng, 4, [1, 2, 4])
        best = Inter(table, 4, 4, starts, 7).best()
        if best is None:
            continue
        assert Inter(table, 4, 4, starts, 7).best(best.seconds) is None
        near = Inter(table, 4, 4, starts, 7, tolerance=0.1).best()
        assert near is not None and near.seconds <= best.seconds / 0.9


# ---------------------------------------------------------------- meshes and prices


@pytest.mark.parametrize(("sizes", "found"), [
    ((8, 4), [1, 2, 4, 8, 16, 24, 32]), ((8,), [1, 2, 4, 8]), ((6, 2), [1, 2, 6, 12]),
    ((1, 4), [1, 2, 3, 4])])
def test_submeshes(sizes: tuple[int, ...], found: list[int]) -> None:
    assert submeshes(network(*sizes)) == found


@pytest.mark.parametrize("seed", range(60))
def test_stages_cost_what_evaluate_says_on_a_two_level_network(seed: int) -> None:
    """Time of a micro-batch without its hand-over, 1/B of what it does once a step, and memory.

    Where computing hides nothing, by the figures that ``evaluate`` prints: with ZeRO-3 gathers and
    scatters at the ends of a step count with each micro-batch already.
    """
    x = small_instance(seed, devices=8, cuts=9, batch=12)
    stack = x.job.stack.replace(
        overlap_zero3=0.0, overlap_grad_reduce=0.0, overlap_param_gather=0.0)
    x = replace(x, job=x.job.replace(stack=stack))
    if len(x.cluster.levels) > 2 or 1 in {level.size for level in x.cluster.levels[1:]}:
        return
    meshes = Meshes(x.chain, x.cluster, x.job, ANY)
    try:
        plan = planner("alpa").plan(x.model, x.cluster, x.job, ANY)
    except NoPlanError:
        return
    options = meshes.options(plan.parallelism.micro_batch)
    table = meshes.table(plan.parallelism.micro_batch, options, plan.stages[0].recompute)
    spans = meshes.cuts.spans(range(meshes.cuts.last + 1))
    edges = [first for first, _ in spans] + [spans[-1][1]]
    for number, stage in enumerate(plan.stages):
        i, j = (edges.index(layer) for layer in stage.layers)
        row = next(r for r in range(len(table.first))
                   if (table.first[r], table.end[r]) == (i, j))
        way = next(n for n, o in enumerate(options) if (o.mesh, o.zero) == (
            stage.devices[1] - stage.devices[0], stage.zero) and o.way == (
            stage.tp, stage.sp, stage.ep, stage.etp))
        time = stage.time_s
        once = stage.finish_s + (
            -stage.grad_sync_s if stage.zero == 3 else stage.param_wait_s)
        assert table.seconds[row, way] == pytest.approx(
            time.total - time.handover + once / plan.parallelism.micro_batches, rel=1e-9)
        assert table.deepest[row, way] >= plan.parallelism.pp - number
    assert plan.feasible or not x.chain.is_chain


@pytest.mark.parametrize("seed", range(30))
def test_plans_are_legal_and_within_the_space(seed: int) -> None:
    x = instance(seed)
    try:
        plan = planner("alpa").plan(x.model, x.cluster, x.job, x.space)
    except NoPlanError:
        return
    assert evaluate(x.model, x.cluster, x.job, plan.configuration).step_time_s == plan.step_time_s
    assert plan.parallelism.devices_used == x.cluster.size
    assert x.space.allows("pp", plan.parallelism.pp)
    assert x.space.allows("micro_batch", plan.parallelism.micro_batch)
    for stage in plan.stages:
        assert x.space.allows("mbs", plan.parallelism.micro_batch // stage.dp_in)
        for name in ("tp", "dp_in", "ep", "etp", "zero", "recompute"):
            assert x.space.allows(name, getattr(stage, name)), name


def test_parameters_are_sharded_where_memory_asks_for_it() -> None:
    model = plain.model(layers=4)
    job = Job(global_batch=4, seq_len=64, stack=plain.stack(), memory_margin=0)
    space = SearchSpace(tp=1, pp=1, micro_batch=4, recompute="none")
    roomy = planner("alpa").plan(model, network(4), job, space)
    assert {stage.zero for stage in roomy.stages} == {1}
    held = roomy.stages[0].memory_bytes.total
    tight = planner("alpa").plan(model, network(4, memory=0.9 * held), job, space)
    assert {stage.zero for stage in tight.stages} == {3}


def test_nothing_fits_says_so() -> None:
    with pytest.raises(NoPlanError, match="alpa: no stages and meshes of the space cover the 2"):
        planner("alpa").plan(plain.model(), network(2, memory="1 MB"),
                             Job(global_batch=2, seq_len=64), ANY)
