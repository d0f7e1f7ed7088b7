"""The oracle on graphs of links: collectives and whole plans by hand, and its two definitions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from fabrics import THIN, Row, both, links_of, one
from instances_graphs import NETWORKS, graph_instance, without_links
from oracle import price, solve
from oracle_drawn import drawn
from oracle_links import Figures, Seen, arrays, fabric
from oracle_plain import plain_parts, plain_price
from oracle_prices import Pricer
from oracle_rules import Outer
from plain import device, model, stack

from nest.costs.network.collectives import (
    Network,
    algorithm,
    all_reduce,
    all_to_all,
    reduce_scatter,
    ring_pass,
)
from nest.inputs import Cluster, Configuration, Job, Profile, SearchSpace
from nest.model import Chain, build_chain, profile_chain


def test_collectives_over_links() -> None:
    # Levels of 2 and 2; start 0.1 + 0.5 sqrt(V / B) s at level 0, 0.2 s at level 1.
    network = Network(np.array([1e9, 1e9]), np.zeros(2), np.array([True, True]),
                      np.array([0.1, 0.2]), np.array([0.5, 0.0]))
    seen = Seen(((2, 4), True), Figures(
        (0.25, 0.5), (1.0, 2.0), 0.5, 3.0, 0.25, 4.0, 0.75, 4.0, 1.0, 9.0))
    group, size = arrays([seen]), np.array([16.0])
    start = 0.1 + 0.5 * 2.0, 0.2
    # Hierarchy: half of 16 bytes at level 0 and 1 s, half of them at 0.5 s a byte and 2 s.
    tiers = 8 * 0.25 + 1.0 + 8 * 0.5 + 2.0 + sum(start)
    assert reduce_scatter(size, network, group) == pytest.approx(tiers)
    assert all_reduce(size, network, group) == pytest.approx(2 * 9.0 + sum(start))
    # Ring: 3/4 of 16 bytes at 0.5 s and 3 x 3 s: 15 s; longer, so far. Rings on rails: 12 x 0.75 +
    # 3 x 4 = 21 s, but 5 s with 1/4 s and 2/3 s.
    assert ring_pass(size, network, group) == pytest.approx([15.0])
    railed = arrays([seen._replace(figures=seen.figures._replace(
        rails_per_byte=0.25, rails_latency=2 / 3))])
    assert ring_pass(size, network, railed) == pytest.approx([5.0])
    assert reduce_scatter(size, network, railed) == pytest.approx([5.0 + start[0]])
    cheap = arrays([seen._replace(figures=seen.figures._replace(ring_latency=0.5))])
    assert reduce_scatter(size, network, cheap) == pytest.approx([6.0 + 1.5 + start[0]])
    assert algorithm(size, network, cheap, False) == [1]
    # All-to-all: 16 bytes at 0.25 s and 4 s.
    assert all_to_all(size, network, group) == pytest.approx([8.0 + start[0]])
    # No reduction in the network, though the levels say there is one: four members send 24 bytes
    # of 16, in twice two steps. The tree: 32 bytes at 1 s and twice 9 s, or at 0.5 s and twice 3 s.
    four = Network(np.array([1e9]), np.zeros(1), np.array([True]))
    figures = Figures((1.0,), (2.0,), 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0)
    flat = arrays([Seen(one(4), figures)])
    assert all_reduce(size, four, flat) == pytest.approx([24.0 + 2 * 2 * 2.0])
    figures = figures._replace(tree_per_byte=0.5, tree_latency=3.0)
    flat = arrays([Seen(one(4), figures)])
    assert all_reduce(size, four, flat) == pytest.approx([16.0 + 2 * 3.0])
    assert algorithm(size, four, flat, True) == [3]
    assert reduce_scatter(size, four, flat) == pytest.approx([12.0 + 2 * 2.0])
    assert all_reduce(size, four, arrays([Seen(((4,), False), figures)])) == pytest.approx(
        [2 * (12.0 + 3 * 9.0)])
    uneven = arrays([seen._replace(spread=((2, 4), False))])
    assert all_reduce(size, network, uneven) == pytest.approx([2 * 15.0 + start[0]])


# ---------------------------------------------------------------- whole plans


def chain_of(count: int, held: float = 0.0) -> Chain:
    """Layers of 1 s and 2 s that hand on 8 bytes a sample."""
    return profile_chain(Profile(name="chain", bytes_per_parameter=2, layers=[{
        "name": "layer", "output_bytes": 8.0, "repeat": count, "tp": {
            1: {"forward": 1.0, "backward": 2.0, "parameter_bytes": held,
                "activation_bytes": 0.0}}}]))


def cluster_of(sizes: tuple[int, ...], rows: Sequence[Row], switches: int = 0) -> Cluster:
    return Cluster(
        name="graph", device=device(memory=1e3, memory_bandwidth=10.0),
        levels=[{"name": f"level {n}", "size": size, "bandwidth": 1.0, "latency": 9.0}
                for n, size in enumerate(sizes)],
        links={"switches": switches, **links_of(rows)})


def job_of(batch: int) -> Job:
    return Job(global_batch=batch, seq_len=1, optimizer="sgd", stack=stack())


def test_hand_overs_of_a_plan() -> None:
    # Four stages of 3 s on two pairs of devices; 8 bytes take 2 s and 2 s of latency inside a pair,
    # 16 s and 5 s across: two bytes of two devices share the thin link. There and back.
    plan = Configuration(micro_batch=1, stride=4, stages=[
        {"layers": (n, n + 1), "devices": (n, n + 1)} for n in range(4)])
    cluster = cluster_of((2, 2), THIN, 2)
    found = price(chain_of(4), cluster, job_of(1), plan)
    assert found.seconds == pytest.approx(4 * 3.0 + 2 * (4.0 + 21.0 + 4.0))
    # Two replicas of two stages: 2 x 3 s and one hand-over inside a pair.
    plan = Configuration(outer_dp=2, micro_batch=1, stride=2, stages=[
        {"layers": (2 * n, 2 * n + 2), "devices": (n, n + 1)} for n in range(2)])
    assert price(chain_of(4), cluster, job_of(2), plan).seconds == pytest.approx(12.0 + 2 * 4.0)


def test_interleaved_hands_over_round_the_ring() -> None:
    # 8 bytes/s there and 4 bytes/s back, 0.5 s; the slower way counts both ways: 2 x 2.5 s for each
    # of two rounds to the second device, and from its first chunk to the second one of the first.
    plan = Configuration(micro_batch=1, stride=2, vpp=2, schedule="interleaved", stages=[
        {"layers": (0, 3), "chunks": ((0, 1), (2, 3)), "devices": (0, 1)},
        {"layers": (1, 4), "chunks": ((1, 2), (3, 4)), "devices": (1, 2)}])
    cluster = cluster_of((2,), [(0, 1, 8.0, 0.5), (1, 0, 4.0, 0.5)])
    found = price(chain_of(4), cluster, job_of(2), plan)
    assert found.seconds == pytest.approx(15.0 + 3 * 5.0)


def test_gradients_of_a_plan() -> None:
    # 10 parameters, 40 bytes of gradients, summed over 4 devices: ring 2 x (3/4 x 40 x 1 + 3 x 5);
    # hierarchy 2 x (20 x 0.25 + 2 + 20 x 1 + 5) s. Then 14 bytes of each at 10 bytes/s.
    plan = Configuration(outer_dp=2, micro_batch=2, stride=2, stages=[
        {"layers": (0, 1), "devices": (0, 2), "dp_in": 2}])
    found = price(chain_of(1, held=20.0), cluster_of((2, 2), THIN, 2), job_of(4), plan)
    assert found.seconds == pytest.approx(3.0 + 2 * 32.0 + 14.0)


def test_copies_of_a_tied_embedding() -> None:
    # Gradients of 1,000 x 32 parameters, 4 bytes each, half of them on each of tp 2. Devices 0 and
    # 3 of a replica talk with their neighbours beside them: 2 s a byte, 5 s once each way.
    chain = build_chain(model(tied_embeddings=True))
    stages = [{"layers": (0, 1), "devices": (0, 2), "tp": 2, "etp": 2},
              {"layers": (1, len(chain)), "devices": (2, 4), "tp": 2, "etp": 2}]
    plan = Configuration(micro_batch=1, stride=4, stages=stages)
    job = Job(global_batch=1, seq_len=64, stack=stack())
    runs, _ = plain_parts(chain, cluster_of((2, 2), THIN, 2), job, plan)
    assert [run.total("tied") for stage in runs for run in stage] == pytest.approx(
        2 * [1000 * 32 / 2 * 4 * 2.0 + 2 * 5.0])
    # One device at a time has nobody else.
    alone = Pricer(chain, cluster_of((2, 2), THIN, 2), job, [], [])
    assert alone.between(Outer(4, 1, 1), 0, 0) == (0.0, 0.0)


def test_a_star_is_one_level() -> None:
    # 4 bytes/s and 0.25 s to the switch and from it are a level of 4 bytes/s and 0.5 s, where all
    # groups are powers of two (a tree is no faster than halving and doubling then).
    rows = [r for n in range(8) for r in both(n, 8, 4.0, 0.25)]
    star = cluster_of((8,), rows, switches=1)
    level = without_links(star).replace(
        levels=[star.levels[0].replace(bandwidth=4.0, latency=0.5)])
    space = SearchSpace(dp_in="1,2,4,8", outer_dp="1,2,4,8", pp="1,2", recompute="none")
    chain = chain_of(4, held=20.0)
    one_level, graph_ = (solve(chain, x, job_of(8), space, top=9) for x in (level, star))
    assert one_level.plans == graph_.plans
    for a, b in zip(one_level.best, graph_.best, strict=True):
        assert a.key == b.key
        assert a.seconds == pytest.approx(b.seconds, rel=1e-11)


def test_levels_of_a_graph_price_nothing() -> None:
    changed = 0
    for seed in range(12):
        x = graph_instance(seed)
        levels = [level.replace(bandwidth=7.0, latency=3.0, in_network_reduction=True)
                  for level in x.cluster.levels]
        answer = solve(x.chain, x.cluster, x.job, x.space)
        other = solve(x.chain, x.cluster.replace(levels=levels), x.job, x.space)
        assert (answer.seconds, answer.plans) == (other.seconds, other.plans), seed
        alone = solve(x.chain, without_links(x.cluster), x.job, x.space)
        changed += alone.seconds != answer.seconds
    assert changed > 6


# ---------------------------------------------------------------- random plans


def test_prices_of_drawn_plans_on_graphs() -> None:
    seen: set[str] = set()
    for seed in range(88):
        x, rng = graph_instance(seed), Random(f"drawn graph {seed}")
        for _ in range(3):
            plan = drawn(x, rng)
            if plan is None:
                continue
            seen |= {plan.schedule, x.cluster.name}
            priced = price(x.chain, x.cluster, x.job, plan)
            parts = plain_parts(x.chain, x.cluster, x.job, plan)
            m = x.job.global_batch // (plan.outer_dp * plan.micro_batch)
            seconds, memory = plain_price(plan, m, *parts)
            assert priced.seconds == pytest.approx(seconds, rel=1e-12), (seed, plan)
            assert priced.memory == pytest.approx(memory, rel=1e-12), (seed, plan)
    assert seen == {"1f1b", "gpipe", "interleaved", *NETWORKS}


def test_every_pair_of_devices_is_joined() -> None:
    # All that leaves a device for another one arrives there.
    for seed in range(0, 88, 3):
        x = fabric(graph_instance(seed).cluster)
        assert x is not None
        for i in range(x.devices):
            for j in set(range(x.devices)) - {i}:
                share, _ = x.route(i, j)
                flow = [0.0] * len(x.leaving)
                for e, part in share.items():
                    flow[x.ends[e][0]] -= part
                    flow[x.ends[e][1]] += part
                wanted = [0.0] * len(flow)
                wanted[i], wanted[j] = -1.0, 1.0
                assert flow == pytest.approx(wanted), (seed, i, j)
