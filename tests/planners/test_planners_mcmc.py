"""Markov-chain Monte Carlo: stationary distribution, proposals, and TopoOpt's topologies."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import permutations

import pytest
from descriptions import CLUSTER, JOB, MODEL

import nest
from nest.errors import InputError, NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.even import even_configuration
from nest.planners.demands import Demands, LevelTraffic
from nest.planners.manual import Manual
from nest.planners.mcmc.mcmc import PENALTY, Mcmc, _Search, metropolis
from nest.planners.mcmc.moves import Proposals
from nest.planners.prices import PlannerPrices, Price, degrees_of, outside
from nest.planners.reconfigurable import (
    DirectLinks,
    ReconfigurablePrices,
    RingTopology,
    build,
    totient_strides,
)

COSTS = (0.0, 0.15, 1.1, 0.2, 2.0, 0.7)


def ring(rng: random.Random, state: int) -> int | None:
    """To a neighbour on a ring of six, or nowhere."""
    return rng.choice(((state + 1) % 6, (state - 1) % 6, None))


def test_the_stationary_distribution_is_boltzmann():
    """Detailed balance: visits of a state are proportional to exp(-beta cost).

    Standard errors from 40 batches of 5,000 steps, which are long against the chain's memory.
    """
    beta, batches, size = 1.5, 40, 5000
    weights = [math.exp(-beta * cost) for cost in COSTS]
    walk = metropolis(0, lambda state: COSTS[state], ring, beta, random.Random(7))
    visits = [Counter(next(walk)[0] for _ in range(size)) for _ in range(batches)]
    for state, weight in enumerate(weights):
        shares = [batch[state] / size for batch in visits]
        mean = sum(shares) / batches
        error = math.sqrt(sum((x - mean) ** 2 for x in shares) / (batches - 1) / batches)
        assert abs(mean - weight / sum(weights)) < 4.0 * error
        assert error < 0.01


def test_balance_between_each_pair():
    """exp(-beta c_i) P(i -> j) = exp(-beta c_j) P(j -> i): as many ways there as back."""
    walk = metropolis(0, lambda state: COSTS[state], ring, 2.0, random.Random(3))
    flow: Counter[tuple[int, int]] = Counter()
    before = 0
    for _ in range(200_000):
        here, cost = next(walk)
        assert cost == COSTS[here]
        flow[before, here] += 1
        before = here
    for a in range(6):
        b = (a + 1) % 6
        assert abs(flow[a, b] - flow[b, a]) < 5.0 * math.sqrt(flow[a, b] + flow[b, a] + 1)
    # Of state 2 (cost 1.1), 1 in 3 proposals goes to state 3 (0.2), all accepted; back exp(-1.8).
    up = flow[3, 2] / sum(n for (a, _), n in flow.items() if a == 3)
    assert up == pytest.approx(math.exp(-2.0 * 0.9) / 3, rel=0.1)


# ---------------------------------------------------------------- proposals


def small(layers: int = 4, **changes: object) -> nest.Model:
    return nest.Model.parse({**MODEL, "layers": layers, "hidden": 256, "ffn": 1024, **changes})


def cluster_with(sizes: tuple[int, ...], memory: str = "4 GiB") -> nest.Cluster:
    levels = [{**level, "size": size}
              for level, size in zip(CLUSTER["levels"], sizes, strict=False)]
    return nest.Cluster.parse({**CLUSTER, "levels": levels, "device": {
        **CLUSTER["device"], "memory": memory}})


def job_of(batch: int) -> nest.Job:
    return nest.Job.parse({**JOB, "global_batch": batch, "stack": {
        "base": "megatron-core", "workspace": 0, "fragmentation": 0}})


def moves_of(model: nest.Model, cluster: nest.Cluster, job: nest.Job,
             space: nest.SearchSpace) -> Proposals:
    chain = chain_of(model)
    return Proposals(chain, cluster, job, space, PlannerPrices(chain, cluster, job))


def key(way: nest.Configuration) -> tuple:
    return (way.outer_dp, way.micro_batch, way.schedule, way.vpp,
            tuple((s.chunks, degrees_of(s)) for s in way.stages))


@pytest.mark.parametrize(("beta", "steps"), [(0.0, 45_000), (1.0, 45_000)])
def test_strategies_are_visited_with_boltzmann_weights(beta, steps):
    """On a space of strategies small enough to list: proposals go there and back alike.

    2 devices, batch 2, 6 layers of which 4 repeat. One replica: a stage on 1 device with 1 or 2
    samples (2), tp 2 with 1 or 2 (2), dp_in 2 (1), two stages with 5 cuts and 1 or 2 samples (10),
    interleaved (1). Two replicas: 1. Together 17.
    """
    cluster, job = cluster_with((2,)), job_of(2)
    space = nest.SearchSpace(zero="0", recompute="none", cp=1, sp=True, schedule=(
        "1f1b", "interleaved"))
    moves = moves_of(small(), cluster, job, space)
    start = even_configuration(small(), cluster, job)
    costs: dict[tuple, float] = {}

    def cost(way: nest.Configuration) -> float:
        return costs.setdefault(key(way), random.Random(str(key(way))).random())

    walk = metropolis(start, cost, moves.propose, beta, random.Random(5))
    visits = [Counter(key(next(walk)[0]) for _ in range(steps // 30)) for _ in range(30)]
    states = set().union(*visits)
    assert len(states) == 17
    total = sum(math.exp(-beta * costs[state]) for state in states)
    far = 0
    for state in states:
        shares = [batch[state] / (steps // 30) for batch in visits]
        mean = sum(shares) / 30
        error = math.sqrt(sum((x - mean) ** 2 for x in shares) / 29 / 30)
        wanted = math.exp(-beta * costs[state]) / total
        assert abs(mean - wanted) < 5.0 * error, state
        far += abs(mean - wanted) > 2.5 * error
    assert far <= 4  # all states with one stage share the slowest mode


class Every:
    """In the place of a random.Random: takes the choices of a path, then the first of each."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.taken = path, []

    def _pick(self, count: int) -> int:
        at = len(self.taken)
        self.taken.append((self.path[at] if at < len(self.path) else 0, count))
        return self.taken[-1][0]

    def choice(self, options):
        return options[self._pick(len(options))]

    def random(self) -> float:
        return (0.25, 0.75)[self._pick(2)]  # moves compare it with a half

    def randrange(self, first: int, stop: int | None = None) -> int:
        return self.choice(range(first) if stop is None else range(first, stop))

    def randint(self, first: int, last: int) -> int:
        return self.choice(range(first, last + 1))

    def sample(self, population, count: int):
        return self.choice(list(permutations(population, count)))


def proposals(moves: Proposals, way: nest.Configuration) -> dict[tuple, tuple[float, object]]:
    """The exact probability of every proposal, but those that stay."""
    found: dict[tuple, tuple[float, object]] = {}
    path: list[int] = []
    while True:
        every = Every(path)
        other = moves.propose(every, way)  # type: ignore[arg-type]
        if other is not None and key(other) != key(way):
            share = math.prod(1 / count for _, count in every.taken)
            found[key(other)] = (found.get(key(other), (0.0, other))[0] + share, other)
        taken = every.taken
        while taken and taken[-1][0] == taken[-1][1] - 1:
            taken.pop()
        if not taken:
            return found
        path = [number for number, _ in taken]
        path[-1] += 1


@pytest.mark.parametrize(("devices", "batch", "changes", "bounds"), [
    ((4,), 4, {}, {"schedule": "1f1b", "recompute": "none", "pp": "1,2"}),
    ((2,), 2, {}, {"recompute_modules": "core_attn,norm", "zero": "0", "pp": "1,2"}),
    ((4,), 4, {"moe": {"experts": 4, "top_k": 2, "ffn": 64}}, {
        "schedule": "1f1b,gpipe", "recompute": "none", "zero": "1", "cp": "1"}),
    ((2, 3), 6, {}, {"recompute": "none", "zero": "0,1", "cp": "1", "pp": "1..4"}),
    ((4, 2), 8, {}, {}),
])
def test_a_change_is_as_likely_as_its_reverse(devices, batch, changes, bounds):
    """Exactly, by taking every choice in turn: from random strategies and from uniform ones."""
    cluster, job, rng = cluster_with(devices), job_of(batch), random.Random(batch)
    model, space = small(4, **changes), nest.SearchSpace.parse(bounds)
    moves = moves_of(model, cluster, job, space)
    starts = []
    for pp in (1, 2):
        expert = Manual().choose(chain_of(model), cluster, job, nest.SearchSpace.parse(
            {**bounds, "pp": pp}))
        starts += [expert, *(way for _, way in rng.sample(
            sorted(proposals(moves, expert).values(), key=lambda x: str(key(x[1]))), 2))]
    plain = even_configuration(model, cluster, job, tp=2, sp=False,
                               etp=1 if changes else None, zero=moves.ways[-1][0])
    if moves.prices.legal(plain) and outside(space, chain_of(model), plain) is None:
        starts.append(plain)
    way = starts[0]
    for _ in range(150):
        way = moves.propose(rng, way) or way
    compared = 0
    for start in [*starts, way]:
        there = sorted(proposals(moves, start).items(), key=str)
        for _, (share, other) in rng.sample(there, min(6, len(there))):
            back = proposals(moves, other)
            assert key(start) in back, (key(start), key(other))
            assert back[key(start)][0] == pytest.approx(share, rel=1e-12)
            compared += 1
    assert compared > 30


@pytest.mark.parametrize("seed", range(4))
def test_what_is_proposed_is_legal_in_the_space_and_priced_alike(seed):
    rng = random.Random(seed)
    model = small(6, moe={"experts": 4, "top_k": 2, "ffn": 64}) if seed % 2 else small(6)
    cluster, job = cluster_with((4, 3)), job_of(24)
    space = nest.SearchSpace.parse([{}, {"zero": "0..1", "ep": "1..2"}, {"tp": "1,2", "pp": "1..4"},
                                    {"recompute": "none,full", "mbs": "1..4"}][seed])
    moves = moves_of(model, cluster, job, space)
    way = Manual().choose(chain_of(model), cluster, job, space)
    seen = set()
    for number in range(2500):
        found = moves.propose(rng, way)
        if found is None:
            continue
        way = found
        seen.add(key(way))
        if number % 25 == 0:
            plan = evaluate(model, cluster, job, way)  # which raises where it is not legal
            price = moves.prices.price(way)
            assert price.step_time == pytest.approx(plan.step_time_s, rel=1e-9)
            assert outside(space, chain_of(model), way) is None
            assert plan.configuration == way
    assert len(seen) > 100
    assert {len(stages) for *_, stages in seen} >= {1, 2}


def test_every_dimension_is_reached():
    """From the expert's strategies to others in each dimension of the space.

    Alone, chance prefers strategies whose stages differ, of which there are most: it starts anew.
    """
    model = small(8, moe={"experts": 4, "top_k": 2, "ffn": 64})
    cluster, job, rng = cluster_with((4, 4)), job_of(16), random.Random(2)
    moves = moves_of(model, cluster, job, nest.SearchSpace(schedule=("1f1b", "interleaved",
                                                                     "gpipe")))
    starts = [Manual().choose(chain_of(model), cluster, job, nest.SearchSpace(pp=pp))
              for pp in (1, 2)]
    found: dict[str, set] = {}
    for step in range(6000):
        if step % 100 == 0:
            way = starts[step // 100 % 2]
        way = moves.propose(rng, way) or way
        for name in ("tp", "cp", "cp_comm", "cp_a2a", "dp_in", "ep", "etp", "zero", "shard", "sp",
                     "recompute", "recompute_modules", "recompute_layers"):
            found.setdefault(name, set()).update(getattr(s, name) for s in way.stages)
        for name in ("outer_dp", "micro_batch", "vpp", "schedule", "pp"):
            found.setdefault(name, set()).add(getattr(way, name))
        found.setdefault("mixed", set()).add(len({degrees_of(s) for s in way.stages}) > 1)
        longest = max(b - a for a, b in (s.layers for s in way.stages))
        found.setdefault("uneven", set()).add(longest > 10 / way.pp + 2)
    assert {name for name, values in found.items() if len(values) < 2} == set()


def test_every_module_that_layers_have_is_recomputed():
    model = small(4, moe={"experts": 4, "top_k": 2, "ffn": 64, "shared_ffn": 64, "every": 2})
    cluster, job, rng = cluster_with((2,)), job_of(4), random.Random(1)
    named = ("core_attn+mlp", "norm", "moe")
    for space, sets in ((nest.SearchSpace(recompute="selective"), None),
                        (nest.SearchSpace(recompute="selective", recompute_modules=named), named)):
        moves, seen = moves_of(model, cluster, job, space), set()
        way = even_configuration(model, cluster, job, recompute="selective",
                                 recompute_modules=("norm",))
        for _ in range(1500):
            way = moves.propose(rng, way) or way
            seen |= {"+".join(stage.recompute_modules) for stage in way.stages}
        found = {module for modules in seen for module in modules.split("+")}
        assert found == ({"core_attn", "mlp", "norm", "moe"} if sets else {
            "core_attn", "norm", "mlp_act", "moe", "mlp", "shared_experts"})
        assert sets is None or seen == {*sets}


# ---------------------------------------------------------------- the planner


def test_same_seed_same_plan_and_no_worse_than_its_starts():
    model, cluster, job = small(6), cluster_with((4, 3)), job_of(48)
    space = nest.SearchSpace()
    plans = [Mcmc(seed=seed, proposals=600).plan(model, cluster, job, space) for seed in (4, 4, 5)]
    assert plans[0] == plans[1]
    expert = Manual().plan(model, cluster, job, space).step_time_s
    for plan in plans:
        assert plan.feasible and plan.step_time_s <= expert


@pytest.mark.kernels
def test_more_proposals_find_what_the_search_proves():
    model, cluster, job = small(5), cluster_with((8,)), job_of(16)
    # A stack without rules: no chunks of unequal size, which the planner does not propose.
    job = job.replace(stack=job.stack.replace(capabilities=None))
    space = nest.SearchSpace.parse({"cp": 1, "recompute": "none", "shard": "dp", "pp": "2..4",
                                    "schedule": "1f1b,interleaved"})
    best = nest.plan(model, cluster, job, space)
    found = Mcmc(proposals=6000).plan(model, cluster, job, space)
    expert = Manual().plan(model, cluster, job, space)
    assert best.step_time_s * (1 - 1e-9) <= found.step_time_s <= best.step_time_s * 1.01
    assert found.step_time_s < 0.99 * expert.step_time_s


def test_memory_is_a_penalty_and_fitting_comes_first():
    """1 ms for each MB that a device lacks; what fits wins even where it is slower."""
    assert abs(1e6 * PENALTY - 1e-3) < 1e-12
    model, job = small(8, hidden=1024, heads=16, ffn=4096), job_of(24)
    tight = cluster_with((4, 3), "300 MiB")
    data_parallel = even_configuration(model, tight, job)
    assert not evaluate(model, tight, job, data_parallel).feasible
    plan = Mcmc(proposals=1500).plan(model, tight, job, nest.SearchSpace())
    assert plan.feasible
    hopeless = Mcmc(proposals=300).plan(
        model, cluster_with((4, 3), "4 MiB"), job, nest.SearchSpace())
    assert not hopeless.feasible and "short" in hopeless.problems[0]


def test_a_cheaper_strategy_that_does_not_fit_is_not_the_best():
    """One byte short costs 1 ns: the chain goes there, but takes what fits home."""
    chain, cluster, job = chain_of(small()), cluster_with((4,)), job_of(8)

    def price(way: nest.Configuration) -> Price:
        fits = all(stage.zero for stage in way.stages)
        return Price(2.0, 0.0) if fits else Price(1.0, 1.0)

    search = _Search(Mcmc(beta=1.0), chain, cluster, job, nest.SearchSpace(), price)
    rng = random.Random(1)
    best = search.run(rng, 600, search.starts(rng))
    assert all(stage.zero for stage in best.stages)


def test_nothing_to_start_from_and_bad_options():
    with pytest.raises(NoPlanError, match="to start from"):
        Mcmc().plan(small(), cluster_with((4,)), job_of(8), nest.SearchSpace(tp=4, cp=3))
    with pytest.raises(InputError, match="proposals: got 0; allowed: 1 to 1000000"):
        Mcmc(proposals=0)
    with pytest.raises(InputError, match=r"beta: got -1\.0; allowed: 0 or more"):
        Mcmc(beta=-1.0)


# ---------------------------------------------------------------- topology


def test_strides_are_prime_and_near_a_geometric_sequence():
    """16 members, 4 permutations: 1, 2, 4, 8 become the odd 1, 3, 5, 7 (the nearest left)."""
    assert totient_strides(16, 1) == [1]
    assert totient_strides(16, 4) == [1, 3, 5, 7]
    assert totient_strides(12, 2) == [1, 5]  # prime to 12: 1, 5, 7, 11; sqrt(12) = 3.5
    assert totient_strides(2, 3) == [1, 1, 1]  # parallel links
    for members in range(2, 20):
        for stride in totient_strides(members, 4):
            assert math.gcd(stride, members) == 1


def test_rings_get_rings():
    """One all-reduce over 4 places with 2 links each: both directions round, half of it each."""
    demands = Demands({(0, 1, 2, 3): 8.0}, {})
    topology = build(demands, [range(4)], 2)
    assert topology.rings == {(0, 1, 2, 3): [1, 3]}
    assert topology.links == Counter({(a, (a + d) % 4): 1 for a in range(4) for d in (1, 3)})
    assert topology.load(demands) == (4.0, 1)


def test_links_are_shared_by_bytes_and_pairs_are_matched():
    """Rings 4 x 3 = 12 bytes, pairs 12: of 4 links 2 each; the heavier pair is matched first."""
    demands = Demands({(0, 1, 2, 3): 3.0}, {(0, 1): 5.0, (1, 0): 1.0, (2, 3): 2.0, (0, 2): 4.0})
    topology = build(demands, [range(4)], 4)
    assert len(topology.rings[0, 1, 2, 3]) == 2
    for place in range(4):
        assert sum(n for (a, _), n in topology.links.items() if a == place) <= 4
        assert sum(n for (_, b), n in topology.links.items() if b == place) <= 4
    ringed = Counter({(a, (a + d) % 4): 1 for a in range(4) for d in (1, 3)})
    matched = topology.links - ringed
    # Round 1: 0-1 and 2-3 weigh 6 + 2, against 4 of 0-2; halved to 3 and 1: round 2 takes 0-2.
    assert matched == Counter({(0, 1): 1, (1, 0): 1, (2, 3): 1, (3, 2): 1, (0, 2): 1, (2, 0): 1})


def test_what_is_unconnected_gets_a_ring_over_all():
    demands = Demands({(0, 1): 4.0, (2, 3): 4.0}, {})
    topology = build(demands, [range(4)], 2)
    assert set(topology.links) >= {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert topology.rings == {(0, 1): [1], (2, 3): [1]}


def test_paths_are_forwarded():
    """A ring 0 -> 1 -> 2 -> 3: 0 to 3 passes three links, which also carry 3's 10 bytes to 1."""
    topology = RingTopology(Counter({(a, (a + 1) % 4): 1 for a in range(4)}), {})
    assert topology.paths(0, 3) == [(0, 1), (1, 2), (2, 3)]
    assert topology.load(Demands({}, {(0, 3): 6.0, (3, 1): 10.0})) == (16.0, 3)


def test_demands_by_hand():
    """2 stages of tp 4, 3 replicas, nodes of 4: gradients between replicas, hand-overs in them."""
    model, cluster, job = small(4, tied_embeddings=False), cluster_with((4, 6)), job_of(6)
    way = even_configuration(model, cluster, job, pp=2, tp=4, zero=0)
    found = LevelTraffic(chain_of(model), cluster, job, 1).of(way)
    # Stage s of replica r is node 2 r + s. Gradients: 2 x 4 bytes x parameters / tp x 2/3 for each
    # of 4 groups. Parameters of stage 0: embedding 100 x 256, 2 layers of 4 h h + 3 h ffn + 2 h.
    layer = 4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256
    assert found.rings[0, 2, 4] == pytest.approx(
        8 * (2 * layer + 100 * 256) * 2 / 3, rel=5e-3)
    assert set(found.rings) == {(0, 2, 4), (1, 3, 5)}
    # Hand-over: 2 micro-batches of 1 sample of 128 tokens x 256 x 2 bytes, each way.
    assert found.pairs == {(a, b): pytest.approx(2 * 128 * 256 * 2)
                           for r in range(3) for a, b in ((2 * r, 2 * r + 1), (2 * r + 1, 2 * r))}
    half = LevelTraffic(chain_of(model), cluster, job, 1).of(
        even_configuration(model, cluster, job, pp=2, tp=4, zero=1))
    assert half.rings[0, 2, 4] == pytest.approx(0.75 * found.rings[0, 2, 4])  # 4 + 2 of 8 bytes


def test_tensor_parallelism_and_experts_across_nodes_are_demands():
    model = small(4, moe={"experts": 4, "top_k": 2, "ffn": 64}, heads=8)
    cluster, job = cluster_with((2, 2)), job_of(4)
    traffic = LevelTraffic(chain_of(model), cluster, job, 1)
    wide = even_configuration(model, cluster, job, tp=4, etp=1, zero=0)
    # 8 x tokens x h x 2 bytes a layer, both nodes send a half: 4 layers, 4 micro-batches. Experts
    # are held by all 4 devices: 4 layers x 4 experts x 3 x 256 x 64 parameters, 8 bytes, a half.
    assert traffic.of(wide).rings[0, 1] == pytest.approx(
        4 * 4 * 8 * 128 * 256 * 2 / 2 + 4 * 4 * 3 * 256 * 64 * 8 / 2)
    spread = even_configuration(model, cluster, job, ep=4, etp=1, dp_in=4)
    # Each of 2 devices of a node sends 4 x tokens x top_k x h x 2 bytes, half of them away.
    assert traffic.of(spread).pairs[0, 1] == pytest.approx(4 * 4 * 128 * 2 * 256 * 2 * 2 / 2)


def test_effective_figures():
    """3 replicas exchange with one link each: a ring; the switch would do as well."""
    model, cluster, job = small(4), cluster_with((4, 6)), job_of(6)
    way = even_configuration(model, cluster, job, pp=2, tp=4, zero=0)
    fabric = ReconfigurablePrices(chain_of(model), cluster, job, DirectLinks(1, 3))
    assert fabric.figures(way) == (1.0, 1)  # a full switch until links are set
    assert fabric.price(way).step_time == pytest.approx(
        evaluate(model, cluster, job, way).step_time_s, rel=1e-9)
    assert fabric.rebuild(way) and not fabric.rebuild(way)
    share, hops = fabric.figures(way)
    demands = LevelTraffic(chain_of(model), cluster, job, 1).of(way)
    load, _ = fabric.topology.load(demands)
    assert share == pytest.approx(max(demands.sent().values()) / (3 * load)) and 0 < share < 1
    changed = fabric.cluster_for(way)
    assert changed.resolved_bandwidth[1] == pytest.approx(share * cluster.resolved_bandwidth[1])
    assert changed.resolved_bandwidth[0] == cluster.resolved_bandwidth[0]
    assert changed.levels[1].latency == pytest.approx(hops * cluster.levels[1].latency)
    exact = evaluate(model, changed, job, way).step_time_s
    assert exact <= fabric.price(way).step_time * (1 + 1e-9)  # the share is rounded down
    other = even_configuration(model, cluster, job, tp=2, zero=0, outer_dp=6)
    assert fabric.figures(other)[0] < 1.0  # its rings have no links of their own


@pytest.mark.parametrize("degree", [1, 3])
def test_alternating(degree):
    """The plan is priced on the topology's figures, and no worse than the expert's with links."""
    model, cluster, job = small(6), cluster_with((2, 6)), job_of(12)
    links = DirectLinks(1, degree)
    plan = Mcmc(proposals=900, links=links).plan(model, cluster, job, nest.SearchSpace())
    used = plan.inputs.cluster
    assert plan.feasible and "direct links" in used.name
    assert used.resolved_bandwidth[1] <= cluster.resolved_bandwidth[1]
    fabric = ReconfigurablePrices(chain_of(model), cluster, job, links)
    fabric.rebuild(plan.configuration)
    again = evaluate(model, fabric.cluster_for(plan.configuration), job, plan.configuration)
    assert again.step_time_s == plan.step_time_s
    expert = Manual().choose(chain_of(model), cluster, job, nest.SearchSpace())
    fabric.rebuild(expert)
    assert plan.step_time_s <= evaluate(
        model, fabric.cluster_for(expert), job, expert).step_time_s * (1 + 1e-9)
    assert plan == Mcmc(proposals=900, links=links).plan(model, cluster, job, nest.SearchSpace())


def test_links_that_the_cluster_does_not_have():
    for links, message in ((DirectLinks(2, 4), "level: got 2; allowed: 0 to 1"),
                           (DirectLinks(1, 0), "degree: got 0; allowed: 1 or more")):
        with pytest.raises(InputError, match=message):
            Mcmc(links=links).plan(small(), cluster_with((2, 2)), job_of(4), nest.SearchSpace())
    with pytest.raises(InputError, match="joins 1"):
        DirectLinks(1, 2).check(cluster_with((2, 1)))
