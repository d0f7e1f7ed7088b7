"""Collective times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nest.costs.network.collectives import (
    ALGORITHMS,
    Group,
    Network,
    algorithm,
    all_gather,
    all_reduce,
    all_to_all,
    dispatch,
    point_to_point,
    reached,
    reduce_scatter,
    ring_pass,
)

GB = 1e9


def network(
    bandwidth: list[float], latency: list[float], reduces: list[bool] | None = None
) -> Network:
    flags = reduces or [False] * len(bandwidth)
    return Network(np.array(bandwidth), np.array(latency), np.array(flags))


def group(*inside: int, even: bool = True) -> Group:
    return Group(np.array([inside], dtype=np.int64), np.array([even]))


def bytes_of(size: float) -> np.ndarray:
    return np.array([size])


FLAT = network([100 * GB], [5e-6])
# 100 GB/s inside a node, 10 GB/s a device between nodes.
NODES = network([100 * GB, 10 * GB], [2e-6, 10e-6])


def test_all_reduce_of_three() -> None:
    # 2 x 2/3 of 1 GB at 100 GB/s, 4 steps of 5 us: ring and hierarchy are the same.
    seconds = all_reduce(bytes_of(GB), FLAT, group(3))
    assert seconds == pytest.approx([2 * 2 / 3 * 0.01 + 4 * 5e-6])
    assert ALGORITHMS[algorithm(bytes_of(GB), FLAT, group(3), True)[0]] == "ring"


def test_all_reduce_of_four() -> None:
    # 2 x 3/4 of 1 GB at 100 GB/s = 15 ms. A ring takes 6 steps, halving and doubling 4.
    seconds = all_reduce(bytes_of(GB), FLAT, group(4))
    assert seconds == pytest.approx([0.015 + 4 * 5e-6])
    assert seconds < 0.015 + 6 * 5e-6
    assert ALGORITHMS[algorithm(bytes_of(GB), FLAT, group(4), True)[0]] == "hierarchical"
    # With groups that are not even there is only the ring.
    assert all_reduce(bytes_of(GB), FLAT, group(4, even=False)) == pytest.approx([0.01503])


def test_gather_and_scatter_are_half_of_it() -> None:
    for function in (all_gather, reduce_scatter):
        assert function(bytes_of(GB), FLAT, group(4)) == pytest.approx([0.0075 + 2 * 5e-6])


def test_small_messages_take_the_tree() -> None:
    # 5 devices, 100 bytes: ring and hierarchy 8 steps = 40 us; tree 2 x ceil(log2 5) = 6 steps
    # and 2 x 100 bytes / 100 GB/s = 2 ns.
    seconds = all_reduce(bytes_of(100.0), FLAT, group(5))
    assert seconds == pytest.approx([6 * 5e-6 + 2e-9], rel=1e-12)
    assert ALGORITHMS[algorithm(bytes_of(100.0), FLAT, group(5), True)[0]] == "tree"


def test_two_levels() -> None:
    # Two nodes of two. Scatter inside: 1/2 GB at 100 GB/s = 5 ms, one step of 2 us; the half that
    # is left, again halved, between nodes: 1/4 GB at 10 GB/s = 25 ms, one step of 10 us.
    # A ring would send 3/4 GB over two devices' shares, 20 GB/s: 37.5 ms.
    seconds = reduce_scatter(bytes_of(GB), NODES, group(2, 4))
    assert seconds == pytest.approx([0.005 + 2e-6 + 0.025 + 10e-6])
    assert all_reduce(bytes_of(GB), NODES, group(2, 4)) == pytest.approx([0.060 + 24e-6])


def test_one_in_each_node() -> None:
    # 4 devices in 4 nodes: nothing moves inside; 3/4 GB at 10 GB/s, 2 steps of 10 us.
    assert reduce_scatter(bytes_of(GB), NODES, group(1, 4)) == pytest.approx([0.075 + 20e-6])


def test_uneven_nodes() -> None:
    # 3 devices, two in one node and one in the other: one share of the link between nodes.
    # Ring: 2/3 GB at 10 GB/s and 2 steps of 10 us.
    seconds = reduce_scatter(bytes_of(GB), NODES, group(1, 3, even=False))
    assert seconds == pytest.approx([2 / 3 * 0.1 + 20e-6])


def test_reduction_in_the_network() -> None:
    # 8 devices: 2 x 7/8 GB becomes 1 GB at 100 GB/s, in 2 steps instead of 6.
    nvls = network([100 * GB], [5e-6], [True])
    assert all_reduce(bytes_of(GB), nvls, group(8)) == pytest.approx([0.01 + 2 * 5e-6])
    # It does not help a gather.
    assert all_gather(bytes_of(GB), nvls, group(8)) == pytest.approx([7 / 8 * 0.01 + 3 * 5e-6])
    # Between nodes only: inside 2 x 1/2 GB at 100 GB/s and 2 steps; then 1/2 GB, once, at 10 GB/s.
    sharp = network([100 * GB, 10 * GB], [2e-6, 10e-6], [False, True])
    seconds = all_reduce(bytes_of(GB), sharp, group(2, 16))
    assert seconds == pytest.approx([0.01 + 2 * 2e-6 + 0.05 + 2 * 10e-6])


def test_all_to_all() -> None:
    # Two nodes of two, 1 GB each: 1/2 GB goes to the other node at 10 GB/s = 50 ms, while all
    # that leaves a device, 3/4 GB, takes 7.5 ms at 100 GB/s.
    assert all_to_all(bytes_of(GB), NODES, group(2, 4)) == pytest.approx([0.05 + 10e-6])
    assert all_to_all(bytes_of(GB), FLAT, group(4)) == pytest.approx([0.0075 + 5e-6])


def test_a_torus() -> None:
    # 4 x 4 with 100 GB/s along an axis. All 16 use both axes: 15/16 of 1 GB at 200 GB/s. A row of
    # 4 has one: 3/4 at 100 GB/s; 8 are one axis and a half: 7/8 at 150 GB/s.
    torus = Network(
        np.array([100 * GB]), np.array([0.0]), np.array([False]), axes=np.array([2.0]),
        sizes=np.array([16.0]))
    for members, seconds in ((16, 15 / 16 / 200), (4, 3 / 4 / 100), (8, 7 / 8 / 150)):
        assert all_gather(bytes_of(GB), torus, group(members)) == pytest.approx([seconds])
    # A byte of an all-to-all goes over n/4 links of a ring of n: one of the axes' 4, two of 8.
    assert all_to_all(bytes_of(GB), torus, group(16)) == pytest.approx([15 / 16 / 100])
    ring = Network(torus.bandwidth, torus.latency, torus.in_network, axes=np.array([1.0]),
                   sizes=np.array([8.0]))
    assert all_to_all(bytes_of(GB), ring, group(8)) == pytest.approx([2 * 7 / 8 / 100])


def test_ring_pass() -> None:
    # Four blocks of 1/4 GB pass three neighbours. At 100 GB/s 7.5 ms, three steps of 5 us.
    assert ring_pass(bytes_of(GB), FLAT, group(4)) == pytest.approx([0.0075 + 3 * 5e-6])
    # Two nodes of two, which drive two shares of 10 GB/s each: 37.5 ms, steps of 10 us.
    assert ring_pass(bytes_of(GB), NODES, group(2, 4)) == pytest.approx([0.0375 + 3 * 10e-6])
    # One in each of four nodes: 75 ms.
    assert ring_pass(bytes_of(GB), NODES, group(1, 4)) == pytest.approx([0.075 + 3 * 10e-6])


def test_alone_or_empty_is_free() -> None:
    for function in (all_reduce, all_gather, all_to_all, ring_pass):
        assert function(bytes_of(GB), NODES, group(1, 1)) == [0.0]
    assert all_reduce(bytes_of(0.0), NODES, group(2, 4)) == [0.0]
    assert ALGORITHMS[algorithm(bytes_of(0.0), NODES, group(2, 4), True)[0]] == "none"


def test_point_to_point() -> None:
    assert point_to_point(GB, NODES, 0) == pytest.approx(0.01 + 2e-6)
    assert point_to_point(GB, NODES, 1) == pytest.approx(0.1 + 10e-6)


def test_many_groups_at_once() -> None:
    several = Group(np.array([[1, 1], [2, 2], [2, 4], [1, 4]]), np.array([True] * 4))
    sizes = np.array([GB, GB, GB, 2 * GB])
    one_by_one = [
        all_reduce(sizes[n : n + 1], NODES, several.take(np.array([n])))[0] for n in range(4)
    ]
    assert all_reduce(sizes, NODES, several) == pytest.approx(one_by_one)
    assert several.size.tolist() == [1, 2, 4, 4]


def test_better_links_are_never_slower() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        levels = int(rng.integers(1, 5))
        bandwidth = np.minimum.accumulate(10 ** rng.uniform(9, 12, levels))
        latency = 10 ** rng.uniform(-7, -4, levels)
        reduces = rng.random(levels) < 0.3
        members = group(*np.cumprod(rng.integers(1, 6, levels)).tolist(), even=rng.random() < 0.7)
        size = bytes_of(10 ** rng.uniform(0, 10))
        faster = bandwidth * np.where(rng.random(levels) < 0.5, 1.0, rng.uniform(1, 3, levels))
        sooner = latency * np.where(rng.random(levels) < 0.5, 1.0, rng.random(levels))
        for function in (all_reduce, all_gather, all_to_all, ring_pass):
            before = function(size, Network(bandwidth, latency, reduces), members)
            after = function(size, Network(faster, sooner, reduces), members)
            assert after <= before * (1 + 1e-12)


def test_a_base_time_and_a_ramp_come_once() -> None:
    # 1 GB through 100 GB/s takes 10 ms, of which the root is 0.1: 0.01 x 0.1 = 1 ms, and 50 us.
    slow = FLAT.bandwidth, FLAT.latency, FLAT.in_network
    rising = Network(*slow, np.array([50e-6]), np.array([0.01]))
    for collective in (all_reduce, all_gather, reduce_scatter, all_to_all):
        before = collective(bytes_of(GB), FLAT, group(4))
        assert collective(bytes_of(GB), rising, group(4)) == pytest.approx(before + 1.05e-3)
    assert all_reduce(bytes_of(GB), rising, group(1)) == [0.0]
    # Levels one after another in a hierarchy: each has its own, of what its rails carry.
    two = Network(NODES.bandwidth, NODES.latency, NODES.in_network, np.array([50e-6, 70e-6]),
                  np.array([0.01, 0.02]))
    before, after = (all_gather(bytes_of(GB), net, group(4, 8)) for net in (NODES, two))
    added = 50e-6 + 0.01 * 0.01**0.5 + 70e-6 + 0.02 * (1 / 40) ** 0.5
    assert after - before == pytest.approx([added])


# ---------------------------------------------------------------- dispatch of tokens


def test_a_token_reaches_parts_that_hold_its_experts() -> None:
    # Two experts at random on two parts: both with probability 1/2. On four: 1 + 3/4.
    assert reached(np.array([2.0, 4.0]), 2, 1, 1) == pytest.approx([1.5, 1.75])
    # Of 8 groups on 8 parts a token uses 4: 4 (1 - (3/4)^8). On 16 parts each group is on two.
    assert reached(np.array([8.0, 16.0]), 8, 8, 4) == pytest.approx(
        [4 * (1 - 0.75**8), 8 * (1 - 0.875**8)])
    assert reached(np.array([2.0]), 8, 8, 4) == pytest.approx([2 * (1 - 0.5**8)])


def test_dispatch_sends_a_token_once_to_each_node() -> None:
    # Two nodes of four: (G - 1)(1 - (1 - 1/G)^k) of 1 GB leave the node at 10 GB/s, for k 2.
    found = dispatch(bytes_of(GB), 2, (1, 1), NODES, group(4, 8), np.inf)
    assert found == pytest.approx([0.75 / 10 + 10e-6])
    # All-to-all sends a copy for each expert.
    assert all_to_all(bytes_of(2 * GB), NODES, group(4, 8)) == pytest.approx([1.0 / 10 + 10e-6])
    # Inside a node once to each device: 4 (1 - (3/4)^2) x 3/4 GB at 100 GB/s.
    alone = dispatch(bytes_of(GB), 2, (1, 1), NODES, group(4, 4), np.inf)
    assert alone == pytest.approx([4 * (1 - 0.75**2) * 0.75 / 100 + 2e-6])
    # Or as fast as the device handles them, 5 GB/s.
    slow = dispatch(bytes_of(GB), 2, (1, 1), NODES, group(4, 4), 5 * GB)
    assert slow == pytest.approx([4 * (1 - 0.75**2) * 0.75 / 5 + 2e-6])
    assert dispatch(bytes_of(GB), 2, (1, 1), NODES, group(1, 1), 1.0) == pytest.approx([0.0])
