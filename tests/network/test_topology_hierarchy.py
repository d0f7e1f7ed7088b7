"""Graphs that are hierarchies, both ways, and graphs that are none."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topologies import A100, H100, check_levels, network, random_network

import nest
from nest.evaluation.even import even_configuration
from nest.inputs import Cluster, Level, catalog, load_cluster
from nest.network import Routes, Topology, graph_of, levels_of, parse_generator, without
from nest.network.topology import Draft

BASE = {"name": "c", "device": H100}


def levels(topology: Topology) -> list[tuple[int, float, float]]:
    found = levels_of(topology)
    assert found is not None
    shown = zip(found.cluster.levels, found.cluster.resolved_bandwidth, strict=True)
    return [(level.size, rate, level.latency) for level, rate in shown]


def same_levels(topology: Topology, expected: list[tuple[int, float, float]]) -> None:
    """Sizes, and resolved bandwidths and latencies to twelve digits."""
    np.testing.assert_allclose(levels(topology), expected, rtol=1e-12)


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_catalog_clusters_come_back_from_their_graphs(name: str) -> None:
    whole = load_cluster(name)
    inner = whole.size // whole.levels[-1].size
    for devices in (1, 2, whole.levels[0].size, inner, 3 * inner, whole.size):
        cluster = load_cluster(name, devices=devices)
        found = levels_of(graph_of(cluster))
        assert found is not None
        assert found.order_N.tolist() == list(range(devices))
        again = found.cluster
        shown = [v for v, level in enumerate(cluster.levels) if level.size > 1] or [0]
        kept = [cluster.levels[v] for v in shown]
        assert [level.size for level in again.levels] == [level.size for level in kept]
        assert [level.name for level in again.levels] == [level.name for level in kept]
        rates = [cluster.resolved_bandwidth[v] for v in shown]
        np.testing.assert_allclose(again.resolved_bandwidth, rates, rtol=1e-12)
        for one, other in zip(again.levels, kept, strict=True):
            np.testing.assert_allclose(one.latency, other.latency, rtol=1e-12)
            assert (one.base_time, one.ramp) == (other.base_time, other.ramp)
            assert one.in_network_reduction == other.in_network_reduction


FIGURES = st.fixed_dictionaries({
    "size": st.integers(1, 5),
    "bandwidth": st.floats(1e6, 1e12),
    "latency": st.just(0.0) | st.floats(1e-12, 1e-3),
    "efficiency": st.floats(0.1, 1),
    "base_time": st.sampled_from([0.0, 1e-5]),
    "ramp": st.sampled_from([0.0, 4.1e-3]),
    "in_network_reduction": st.booleans(),
})


@settings(max_examples=150, deadline=None)
@given(given=st.lists(FIGURES, min_size=1, max_size=4))
def test_any_cluster_comes_back_from_its_graph(given: list[dict]) -> None:
    tiers = [Level(name=f"l{n}x", **figures) for n, figures in enumerate(given)]
    cluster = Cluster(**BASE, levels=tiers)
    found = levels_of(graph_of(cluster))
    assert found is not None
    assert found.order_N.tolist() == list(range(cluster.size))
    shown = [v for v, level in enumerate(tiers) if level.size > 1] or [0]
    assert len(found.cluster.levels) == len(shown)
    for position, v in enumerate(shown):
        level, was = found.cluster.levels[position], tiers[v]
        assert (level.name, level.size) == (was.name, was.size)
        rate = found.cluster.resolved_bandwidth[position]
        np.testing.assert_allclose(rate, cluster.resolved_bandwidth[v], rtol=1e-12)
        np.testing.assert_allclose(level.latency, was.latency, rtol=1e-12)
        assert (level.base_time, level.ramp) == (was.base_time, was.ramp)
        assert level.in_network_reduction == was.in_network_reduction


@pytest.mark.parametrize("delays", [(1e-6, 5e-6, 9e-6), (5e-6, 1e-6, 3e-6), (9e-6, 5e-6, 1e-6)])
def test_a_graph_carries_what_its_cluster_says(delays: tuple[float, ...]) -> None:
    rates = (8e9, 4e9, 1e9)
    tiers = [
        Level(name=name, size=2, bandwidth=rate, latency=delay)
        for name, rate, delay in zip("xyz", rates, delays, strict=True)
    ]
    graph = graph_of(Cluster(**BASE, levels=tiers))
    found = levels_of(graph)
    assert found is not None
    check_levels(graph, found, random.Random(0))
    # by hand, for rising latencies: 8 + 4 + 2 + 1 nodes; 8 + 4 + 2 cables
    if delays[0] < delays[1] < delays[2]:
        assert (len(graph.nodes), len(graph.source_E)) == (15, 28)


def test_names_that_numbers_would_run_into_are_replaced() -> None:
    tiers = [
        Level(name=name, size=2, bandwidth=1e9, latency=1e-6) for name in ("L", "L1", "L11")
    ]
    graph = graph_of(Cluster(**BASE, levels=tiers))
    assert len(set(graph.nodes)) == 15
    assert levels(graph) == [(2, 1e9, 1e-6)] * 3


# ---------------------------------------------------------------- worked by hand


def test_a_node_behind_a_leaf_and_a_spine() -> None:
    # 2 leaves x 2 nodes x 2 devices; a node's link of 30 GB/s is shared by 2 devices, a leaf's
    # 2 spine links of 10 GB/s each by 4: 15 GB/s and 5 GB/s a device
    cables = []
    for d in range(8):
        cables.append((f"d{d}", f"node{d // 2}", 100e9, 1e-6))
    for n in range(4):
        cables.append((f"node{n}", f"leaf{n // 2}", 30e9, 2e-6))
    for leaf in range(2):
        for spine in range(2):
            cables.append((f"leaf{leaf}", f"spine{spine}", 10e9, 3e-6))
    graph = network([f"d{d}" for d in range(8)], cables)
    same_levels(graph, [
        (2, 100e9, 2e-6), (2, 15e9, 6e-6), (2, 5e9, 12e-6)])
    found = levels_of(graph)
    assert [level.name for level in found.cluster.levels] == ["node", "leaf", "spine"]
    check_levels(graph, found, random.Random(1))


def test_device_order_follows_the_groups() -> None:
    order = [3, 0, 6, 1, 4, 7, 2, 5]
    cables = [(f"d{d}", f"node{d // 2}", 4e9, 0.0) for d in range(8)]
    cables += [(f"node{n}", f"leaf{n // 2}", 4e9, 0.0) for n in range(4)]
    cables += [(f"leaf{n}", "spine", 4e9, 0.0) for n in range(2)]
    graph = network([f"d{d}" for d in order], cables)
    found = levels_of(graph)
    names = [graph.nodes[graph.device_N[n]] for n in found.order_N]
    # d3 is given first, so its node and leaf come first; in a node, the device given first
    assert names == ["d3", "d2", "d0", "d1", "d6", "d7", "d4", "d5"]


def test_the_slower_direction_counts() -> None:
    draft = Draft("n", "n")
    switch = draft.switch("s")
    for number in range(3):
        device = draft.device(f"d{number}", H100)
        draft.link(device, switch, 5e9, 1e-6)
        draft.link(switch, device, 2e9, 3e-6)
    same_levels(draft.build(), [(3, 2e9, 4e-6)])


def test_two_devices_and_two_leaves_without_a_switch_between() -> None:
    pair = network(["a", "b"], [("a", "b", 3e9, 4e-6)])
    assert levels(pair) == [(2, 3e9, 4e-6)]
    cables = [(f"d{d}", f"leaf{d // 3}", 9e9, 1e-6) for d in range(6)]
    graph = network([f"d{d}" for d in range(6)], [*cables, ("leaf0", "leaf1", 6e9, 5e-6)])
    same_levels(graph, [(3, 9e9, 2e-6), (2, 2e9, 7e-6)])
    check_levels(graph, levels_of(graph), random.Random(2))


def test_ports_beside_a_faster_network_in_the_node() -> None:
    text = "spine-leaf:leaves=2,per_leaf=8,node=4,spines=3,oversubscription=2"
    graph = parse_generator(text)
    # a port of 50 GB/s; 3 spine links of 8 x 50 / (3 x 2) GB/s for 8 devices: 25 GB/s
    same_levels(graph, [
        (4, 450e9, 2e-6), (2, 50e9, 8e-6), (2, 25e9, 10e-6)])
    check_levels(graph, levels_of(graph), random.Random(3))


def test_one_leaf_for_each_node_joins_nothing_more() -> None:
    graph = parse_generator("nvl-domains:domains=3,size=4,spines=2")
    same_levels(graph, [(4, 900e9, 2.8e-6), (3, 50e9, 10e-6)])
    check_levels(graph, levels_of(graph), random.Random(4))


def test_a_direct_link_beside_a_spine() -> None:
    # the direct link is one shorter, so the spine carries nothing: 6 GB/s for 3 devices
    cables = [(f"d{d}", f"leaf{d // 3}", 9e9, 1e-6) for d in range(6)]
    cables += [("leaf0", "leaf1", 6e9, 4e-6), ("leaf0", "s", 6e9, 2e-6), ("leaf1", "s", 6e9, 2e-6)]
    same_levels(
        network([f"d{d}" for d in range(6)], cables), [(3, 9e9, 2e-6), (2, 2e9, 6e-6)])


def test_one_device() -> None:
    assert levels(network(["a"], [("a", "s", 3e9, 4e-6)])) == [(1, 3e9, 8e-6)]
    assert levels_of(network(["a"], [])) is None


def test_links_that_carry_nothing_do_not_count() -> None:
    # adapters that lead nowhere; then a second, longer way that no shortest path takes
    cables = [(f"d{d}", "s", 9e9, 1e-6) for d in range(4)]
    dead = [*cables, ("d0", "nic", 1e9, 0.0), ("nic", "net", 1e9, 0.0)]
    names = [f"d{d}" for d in range(4)]
    assert levels(network(names, dead)) == [(4, 9e9, 2e-6)]
    slot = [(f"d{d}", f"slot{d}", 1e9, 0.0) for d in range(4)]
    slow = [*cables, *slot, *((f"slot{d}", f"cpu{d // 2}", 1e9, 0.0) for d in range(4)),
            ("cpu0", "cpu1", 1e9, 0.0)]
    assert levels(network(names, slow)) == [(4, 9e9, 2e-6)]


# ---------------------------------------------------------------- random hierarchies


def clos(draw: random.Random, devices: list[str], tag: str, ports: int) -> list:
    """Cables of a random even plane over some devices: a row of ports, then several tiers."""
    cables, below = [], [[name] for name in devices]  # top nodes of each unit
    for tier in range(ports):
        rate = draw.choice([1e9, 3e9])
        for unit in below:
            above = f"{tag}port{tier}.{unit[0]}"
            cables.append((unit[0], above, rate, 1e-6))
            unit[0] = above
    tier = 0
    while len(below) > 1:
        sizes = [n for n in range(2, len(below) + 1) if len(below) % n == 0]
        size, count = draw.choice(sizes), draw.randint(1, 2)
        rate, delay = draw.choice([1e9, 2e9, 5e9]), draw.choice([0.0, 1e-6, 7e-6])
        full = draw.random() < 0.5
        groups = [below[n : n + size] for n in range(0, len(below), size)]
        below = []
        for number, group in enumerate(groups):
            planes = 1 if full else len(group[0])
            above = [f"{tag}t{tier}g{number}s{n}" for n in range(planes * count)]
            for unit in group:
                for place, node in enumerate(unit):
                    chosen = above if full else above[place * count : (place + 1) * count]
                    cables += [(node, switch, rate, delay) for switch in chosen]
            below.append(above)
        tier += 1
    return cables


def random_hierarchy(draw: random.Random) -> Topology:
    """A random even network, in two planes now and then, with its devices in any order."""
    count = draw.choice([2, 4, 6, 8, 12])
    names = [f"d{n}" for n in range(count)]
    cables = clos(draw, names, "x", draw.randint(0, 2))
    if count % 2 == 0 and draw.random() < 0.4:
        inner = draw.choice([n for n in (2, 3, 4) if count % n == 0])
        layers = 4  # more ports than tiers inside
        cables = clos(draw, names, "y", layers)
        for start in range(0, count, inner):
            for name in names[start : start + inner]:
                cables.append((name, f"node{start // inner}", 50e9, 1e-6))
        groups = levels_of(network(names, [c for c in cables if "node" not in c[1]]))
        assert groups is not None
        sizes = groups.cluster.group_sizes
        if any(size % inner and inner % size for size in sizes):
            return random_hierarchy(draw)  # the node would straddle groups
    draw.shuffle(names)
    return network(names, cables)


@pytest.mark.parametrize("seed", range(40))
def test_random_hierarchies_are_recognised(seed: int) -> None:
    draw = random.Random(seed)
    graph = random_hierarchy(draw)
    found = levels_of(graph)
    assert found is not None
    check_levels(graph, found, draw)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("figure", ["bandwidth_E", "latency_E"])
def test_one_link_that_differs_spoils_it(seed: int, figure: str) -> None:
    draw = random.Random(seed)
    graph = random_hierarchy(draw)
    count = len(graph.device_N)
    ends = np.indices((count, count)).reshape(2, -1)
    link = draw.choice(np.flatnonzero(Routes(graph).loads(*ends, np.ones(count**2))))
    names = ("name", "nodes", "types", "type_V", "source_E", "target_E", "bandwidth_E",
             "latency_E", "base_time_V", "ramp_V", "reduces_V")
    parts = {name: getattr(graph, name) for name in names}
    changed = parts[figure].copy()
    changed[link] = changed[link] * 0.5 + 1e-7
    assert levels_of(Topology(**{**parts, figure: changed})) is None


@pytest.mark.parametrize("seed", range(150))
def test_what_is_recognised_among_random_networks_is_a_hierarchy(seed: int) -> None:
    draw = random.Random(seed)
    try:
        graph = random_network(draw, 6)
    except ValueError:
        return  # disconnected
    found = levels_of(graph)
    if found is not None and len(found.order_N) > 1:
        check_levels(graph, found, draw)


# ---------------------------------------------------------------- what is none


@pytest.mark.parametrize("text", [
    "torus:dims=4x4", "torus:dims=5", "fully-connected:devices=3", "dragonfly:a=2,p=2,h=1",
    "rail-optimized:nodes=4,node=4",  # peers of a rail are nearer than others of the unit
    "data-centres:centres=3,fabric=[spine-leaf:leaves=2,per_leaf=4]",  # a link for each pair
    "spine-leaf:leaves=4,per_leaf=6,node=4",  # nodes straddle leaves
])
def test_other_networks_are_none(text: str) -> None:
    assert levels_of(parse_generator(text)) is None


def test_ties_between_two_planes_are_none() -> None:
    # both ways between a and b take two links, so traffic is split between a fast and a slow one
    names = [f"d{n}" for n in range(4)]
    cables = [(name, f"fast{n // 2}", 9e9, 0.0) for n, name in enumerate(names)]
    assert levels_of(network(names, [*cables, *((n, "slow", 1e9, 0.0) for n in names)])) is None


def test_an_outer_network_that_is_faster_is_none() -> None:
    # a cluster's resolved bandwidth never grows outwards
    names = [f"d{n}" for n in range(4)]
    cables = [(name, f"node{n // 2}", 1e9, 0.0) for n, name in enumerate(names)]
    for name in names:
        cables += [(name, f"nic{name}", 5e9, 0.0), (f"nic{name}", "leaf", 5e9, 0.0)]
    assert levels_of(network(names, cables)) is None


def test_groups_of_different_size_or_figures_are_none() -> None:
    cables = [(f"d{d}", f"leaf{d // 3}", 9e9, 0.0) for d in range(5)]
    cables += [(f"leaf{n}", "spine", 9e9, 0.0) for n in range(2)]
    assert levels_of(network([f"d{d}" for d in range(5)], cables)) is None
    draft = Draft("n", "n")
    spine = draft.switch("spine")
    for leaf in range(2):
        switch = draft.switch(f"leaf{leaf}", ramp=1e-3 * leaf)
        draft.cable(switch, spine, 1e9, 0.0)
        for number in range(2):
            draft.cable(draft.device(f"d{leaf}{number}", H100), switch, 1e9, 0.0)
    assert levels_of(draft.build()) is None


def test_switches_that_reach_their_parts_unevenly_are_none() -> None:
    # every leaf has 3 links up, every part 6, but a spine reaches one part over 2 and one over 1
    reach = {"s0": "a0 a1 b0", "s1": "a0 a1 b1", "s2": "a0 b0 b1", "s3": "a1 b0 b1"}
    cables = [(leaf, spine, 1e9, 0.0) for spine, some in reach.items() for leaf in some.split()]
    cables += [(f"{part}d{n}", f"{part}{leaf}", 1e9, 0.0)
               for part in "ab" for n in range(2) for leaf in range(2)]
    names = [f"{part}d{n}" for part in "ab" for n in range(2)]
    assert levels_of(network(names, cables)) is None


def test_two_types_of_device_are_none() -> None:
    draft = Draft("n", "n")
    switch = draft.switch("s")
    for name, device in (("a", H100), ("b", A100)):
        draft.cable(draft.device(name, device), switch, 1e9, 0.0)
    assert levels_of(draft.build()) is None


def test_a_link_without_a_way_back_is_none() -> None:
    draft = Draft("ring", "ring")
    nodes = [draft.device(f"d{n}", H100) for n in range(3)]
    for one, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        draft.link(one, other, 1e9, 0.0)
    assert levels_of(draft.build()) is None


def test_failures_leave_a_smaller_hierarchy_or_none() -> None:
    graph = graph_of(load_cluster("h100-spine-leaf", devices=128))
    gone = without(graph, "node0..3,leaf0")
    same_levels(gone, [(8, 900e9, 3.4e-6), (4, 12.5e9, 14e-6), (3, 12.5e9, 16e-6)])
    assert levels_of(without(graph, "node3")) is None
    assert levels_of(without(graph, "node3/device5")) is None


# ---------------------------------------------------------------- the same prices


@pytest.mark.parametrize(("name", "devices"), [("dgx-h100", 512), ("h100-spine-leaf", 64)])
def test_a_recognised_graph_costs_what_its_cluster_does(name: str, devices: int) -> None:
    """Resolved bandwidths, latencies, base times and ramps are all that prices take of levels."""
    cluster = load_cluster(name, devices=devices)
    found = levels_of(graph_of(cluster))
    assert found is not None
    model, job = nest.load_model("llama3-8b"), nest.Job(global_batch=512, seq_len=4096)
    steps = []
    for one in (cluster, found.cluster):
        configuration = even_configuration(model, one, job, pp=4, tp=8, mbs=1, zero=1)
        steps.append(nest.evaluate(model, one, job, configuration).step_time_s)
    assert steps[1] == pytest.approx(steps[0], rel=1e-12)
