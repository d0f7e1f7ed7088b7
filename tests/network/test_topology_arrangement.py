"""Orders and groups of the devices of any network."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from linked import shuffled
from topologies import H100, network, random_network

from nest.network import Arrangement, Routes, Topology, arrangements, parse_generator, without
from nest.network.arrangement import MOST_IDLE, MOST_LEVELS
from nest.network.topology import Draft

GENERATED = (
    "fat-tree:k=4", "spine-leaf:leaves=3,per_leaf=8,node=4", "rail-optimized:nodes=3,node=4",
    "dragonfly:a=2,p=2,h=1", "torus:dims=4x4", "torus:dims=2x3x4", "torus:dims=11",
    "fully-connected:devices=7", "nvl-domains:domains=2,size=6",
    "data-centres:centres=2,fabric=[spine-leaf:leaves=2,per_leaf=4,node=2]")


def names(found: Arrangement) -> list[str]:
    """What the devices of a cluster are called, in its order."""
    assert found.cluster.names is not None
    return list(found.cluster.names)


def check(topology: Topology) -> list[Arrangement]:
    """Each arrangement is the same network, most of its devices, once each, in equal groups."""
    found, count = list(arrangements(topology)), len(topology.device_N)
    hops = Routes(topology).hop_matrix()
    figures = sorted(zip(topology.bandwidth_E, topology.latency_E, strict=True))
    for each in found:
        order, cluster = each.order_N.tolist(), each.cluster
        assert len(set(order)) == len(order) == cluster.size >= (1 - MOST_IDLE) * count
        assert set(order) <= set(range(count))
        assert math.prod(level.size for level in cluster.levels) == len(order)
        assert len(cluster.levels) <= MOST_LEVELS
        assert cluster.order == (None if order == list(range(count)) else tuple(order))
        assert names(each) == [topology.nodes[topology.device_N[n]] for n in order]
        there = Topology.of_links(cluster)
        assert (Routes(there).hop_matrix() == hops[np.ix_(order, order)]).all()
        assert sorted(zip(there.bandwidth_E, there.latency_E, strict=True)) == figures
        assert len(there.nodes) == len(topology.nodes)
    assert len({tuple(each.order_N) for each in found}) == len(found)
    return found


def groups(found: Arrangement, level: int) -> set[frozenset[str]]:
    """Devices of each group of a level, by name."""
    size, called = found.cluster.group_sizes[level], names(found)
    return {frozenset(called[k : k + size]) for k in range(0, len(called), size)}


# ---------------------------------------------------------------- any network


@pytest.mark.parametrize("text", GENERATED)
def test_generated_networks(text: str) -> None:
    check(parse_generator(text))
    check(shuffled(parse_generator(text), 1))


@pytest.mark.parametrize("seed", range(60))
def test_random_networks(seed: int) -> None:
    """Links of one direction too: hops there and back differ."""
    check(random_network(random.Random(seed), 14))


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    draw = random.Random(f"graph {seed}")
    count = draw.randint(2, 24)
    graph = nx.gnm_random_graph(count, draw.randint(0, 3 * count), seed=seed)
    graph.add_edges_from((n, draw.randrange(n)) for n in range(1, count))
    devices = [f"n{n}" for n in graph if n == 0 or draw.random() < 0.7]
    check(network(devices, [(f"n{a}", f"n{b}", 1e9, 1e-6) for a, b in graph.edges if a != b]))


def test_the_same_network_gives_the_same_arrangements() -> None:
    for text in GENERATED:
        one, other = (list(arrangements(parse_generator(text))) for _ in range(2))
        assert [each.order_N.tolist() for each in one] == [each.order_N.tolist() for each in other]
        assert [each.cluster for each in one] == [each.cluster for each in other]


def test_a_single_device() -> None:
    (found,) = arrangements(parse_generator("fully-connected:devices=1"))
    assert found.cluster.size == 1 and found.cluster.links is None


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("seed", range(8))
def test_a_fat_tree_with_a_failed_link_and_shuffled_numbers(seed: int) -> None:
    """Devices of an edge switch come back as a group, and those of a pod."""
    whole = parse_generator("fat-tree:k=4")
    links = ("link:edge0-aggregation0", "link:edge3-aggregation3", "link:aggregation2-core1",
             "link:edge6-aggregation7")
    found = check(shuffled(without(whole, links[seed % 4]), seed))[0]
    assert found.cluster.group_sizes[:2] == (2, 4)
    for level, size in ((0, 2), (1, 4)):
        assert groups(found, level) == {
            frozenset(f"gpu{n}" for n in range(k, k + size)) for k in range(0, 16, size)}


@pytest.mark.parametrize("seed", range(4))
def test_nodes_and_leaves_of_shuffled_numbers(seed: int) -> None:
    text = "spine-leaf:leaves=3,per_leaf=8,node=4,oversubscription=3"
    found = check(shuffled(parse_generator(text), seed))[0]
    assert found.cluster.group_sizes == (4, 8, 24)
    nodes = {frozenset(f"node{n}/gpu{k}" for k in range(4)) for n in range(6)}
    assert groups(found, 0) == nodes
    assert groups(found, 1) == {
        frozenset(f"node{n}/gpu{k}" for n in (leaf, leaf + 1) for k in range(4))
        for leaf in (0, 2, 4)}


def test_nodes_on_rails() -> None:
    """Neighbours on a rail are nearer than others of another node, those of a node nearest."""
    found = check(shuffled(parse_generator("rail-optimized:nodes=3,node=4"), 5))[0]
    assert found.cluster.group_sizes == (4, 12)
    assert groups(found, 0) == {
        frozenset(f"node{n}/gpu{k}" for k in range(4)) for n in range(3)}


def test_islands_of_unequal_size() -> None:
    """Switches of 4, 4 and 8 devices: groups of 4, of which two are under one switch."""
    sizes = {"a": 4, "b": 4, "c": 8}
    devices = [f"{side}{n}" for side, size in sizes.items() for n in range(size)]
    cables = [(name, f"sw{name[0]}", 1e9, 1e-6) for name in devices]
    cables += [("swa", "swb", 1e9, 1e-6), ("swb", "swc", 1e9, 1e-6)]
    found = check(network(devices, cables))[0]
    assert found.cluster.group_sizes[0] == 4
    assert all(len({name[0] for name in group}) == 1 for group in groups(found, 0))


def test_devices_that_do_not_agree_form_no_group() -> None:
    """In a line the middle one is nearest to both ends, which are nearest to the middle alone."""
    lines = [(f"{side}0", f"{side}{n}", 1e9, 1e-6) for side in "ab" for n in (1, 2)]
    far = [("a0", "s", 1e9, 1e-6), ("s", "t", 1e9, 1e-6), ("t", "b0", 1e9, 1e-6)]
    for found in check(network([f"{side}{n}" for side in "ab" for n in range(3)], [*lines, *far])):
        assert found.cluster.group_sizes == (6,)


# ---------------------------------------------------------------- orders


@pytest.mark.parametrize("dims", ["4x4", "2x3x4", "3x5", "4x2x2x3", "5x4"])
def test_a_snake_goes_from_neighbour_to_neighbour(dims: str) -> None:
    topology = parse_generator(f"torus:dims={dims}")
    found, hops = check(topology), Routes(topology).hop_matrix()
    assert found[0].order_N.tolist() == list(range(len(hops)))
    snake = found[1].order_N.tolist()
    assert all(hops[a, b] == 1 for a, b in pairwise(snake))
    # Lines of the last dimension first: they are the innermost groups.
    last = int(dims.split("x")[-1])
    assert found[1].cluster.levels[0].size == last
    assert all(snake[k] // last == snake[k + last - 1] // last for k in range(0, len(snake), last))


def test_a_torus_of_shuffled_numbers_gets_near_devices_together() -> None:
    """Some order has its neighbours nearer than the numbers have."""
    topology = shuffled(parse_generator("torus:dims=4x8"), 3)
    hops = Routes(topology).hop_matrix()
    apart = [sum(int(hops[a, b]) for a, b in pairwise(each.order_N.tolist()))
             for each in check(topology)]
    assert len(apart) > 1 and min(apart[1:]) < 0.6 * apart[0]


def test_a_ring_of_shuffled_numbers() -> None:
    topology = shuffled(parse_generator("torus:dims=12"), 0)
    hops = Routes(topology).hop_matrix()
    best = min(sum(int(hops[a, b]) for a, b in pairwise(each.order_N.tolist()))
               for each in check(topology))
    assert best <= 20  # 11 on the ring, 30 to 35 at random


# ---------------------------------------------------------------- failures


def test_a_failed_node_leaves_the_others_as_they_are() -> None:
    topology = without(parse_generator("spine-leaf:leaves=4,per_leaf=8,node=4"), "node3")
    found = check(topology)[0]
    assert found.cluster.levels[0].size == 4 and found.cluster.size == 28


def test_a_failed_device_takes_its_node_where_that_is_little() -> None:
    """Three of 15 devices may idle, so nodes of 4 stay; 7 of 15 may not: groups of 7 are left."""
    text = "spine-leaf:leaves=1,per_leaf={},node={}"
    all_, found, *_ = check(without(parse_generator(text.format(16, 4)), "node2/gpu2"))
    assert (all_.cluster.group_sizes, found.cluster.group_sizes) == ((15,), (4, 12))
    assert not any(name.startswith("node2/") for name in names(found))
    all_, found, *_ = check(without(parse_generator(text.format(16, 8)), "node1/gpu2"))
    assert (all_.cluster.group_sizes, found.cluster.group_sizes) == ((15,), (7, 14))
    found = check(without(parse_generator(text.format(72, 8)), "node1/gpu2"))[0]
    assert found.cluster.group_sizes == (8, 64)


# ---------------------------------------------------------------- levels


def test_levels_say_what_links_give() -> None:
    # Nodes of 4 at 450 GB/s, 1 us a way; rails of 50 GB/s, 4 us a way.
    found = next(arrangements(parse_generator("rail-optimized:nodes=3,node=4,oversubscription=4")))
    assert [level.bandwidth for level in found.cluster.levels] == pytest.approx([450e9, 50e9])
    assert [level.latency for level in found.cluster.levels] == pytest.approx([2e-6, 8e-6])
    # A ring of 16 in groups of 8: all that send 8 devices on, half of it either way round, are 4 on
    # each link.
    ring = next(arrangements(parse_generator("torus:dims=16,bandwidth=40 GB/s,latency=1 us")))
    assert ring.cluster.group_sizes == (8, 16)
    assert [level.bandwidth for level in ring.cluster.levels] == pytest.approx([40e9, 10e9])
    assert [level.latency for level in ring.cluster.levels] == pytest.approx([1e-6, 8e-6])


def test_base_times_are_those_of_the_switches_of_a_level() -> None:
    """What collectives take besides inside a node is not that of the switch between nodes."""
    draft = Draft("two nodes", "net")
    top = draft.switch("top", "", 9e-6, 0.3)
    for n in range(2):
        node = draft.switch(f"node{n}", "", 2e-6, 0.1)
        draft.cable(node, top, 1e9, 1e-6)
        for k in range(4):
            draft.cable(draft.device(f"node{n}/gpu{k}", H100), node, 4e9, 1e-6)
    levels = next(arrangements(draft.build())).cluster.levels
    assert [level.size for level in levels] == [4, 2]
    assert [level.base_time for level in levels] == [2e-6, 9e-6]
    assert [level.ramp for level in levels] == [0.1, 0.3]
    # One device of each node has 4 GB/s to its switch; four share 1 GB/s between switches.
    assert [level.bandwidth for level in levels] == pytest.approx([4e9, 0.25e9])
