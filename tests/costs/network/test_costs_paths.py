"""Collectives on graphs of links against closed forms, worked out by hand.

S is the buffer in bytes, B the bytes/s of a link or port, l the seconds of a step. Networks are
those of generators, so that routes, arrangement, prices of patterns and collectives are tried
together; the prices of patterns alone are in ``test_oracle_links.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from linked import arranged, inside, over
from topologies import network as cables

from nest.costs.choices import network
from nest.costs.network.collectives import (
    ALGORITHMS,
    Group,
    algorithm,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    ring_pass,
)
from nest.costs.network.fabric import Fabric, GroupShapes, fabric_of
from nest.costs.network.placement import tile_of
from nest.inputs import Cluster
from nest.network import degrade, parse_generator, without
from nest.network.network import load_network
from nest.search.starts import BlockPlaces

B, L = 10e9, 1e-6
SMALL, MIDDLE, LARGE = 1e2, 1e6, 1e10
SIZES = (SMALL, MIDDLE, LARGE)


def seconds(collective, size: float, cluster: Cluster, group: Group) -> float:
    return float(collective(np.array([size]), network(cluster), group)[0])


def kind(size: float, cluster: Cluster, group: Group) -> str:
    """Algorithm of an all-reduce."""
    return ALGORITHMS[algorithm(np.array([size]), network(cluster), group, True)[0]]


def torus(dims: str) -> Cluster:
    return arranged(f"torus:dims={dims},bandwidth={B},latency={L}")


# ---------------------------------------------------------------- rings


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_ring_of_devices(n: int, size: float) -> None:
    # Everybody sends to the next: 2 (n - 1) steps of S/n over a link of its own. Halving and
    # doubling takes as much latency, 2 (1 + 2 + ... + n/2) = 2 (n - 1) links, and sends far.
    cluster = torus(str(n))
    whole = inside(cluster, n, 1, n)
    expected = 2 * (n - 1) / n * size / B + 2 * (n - 1) * L
    assert seconds(all_reduce, size, cluster, whole) == pytest.approx(expected, rel=1e-9)
    assert kind(size, cluster, whole) == "ring"
    for half in (all_gather, reduce_scatter, ring_pass):
        assert seconds(half, size, cluster, whole) == pytest.approx(expected / 2, rel=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_half_of_a_ring(size: float) -> None:
    # [0, 4) of a ring of 8 is a line. Ring: 3 to 0 goes back over three links, which carry nothing
    # else that way: 2 x 3/4 S/B, 6 steps of 3 l. Halving and doubling: 0-1 and 2-3, then 0-2 and
    # 1-3, of which two share the link 1-2: 2 (1/2 x 1 + 1/4 x 2) S/B, 2 (1 + 2) l.
    cluster = torus("8")
    line = inside(cluster, 4, 1, 4)
    ring, doubling = 1.5 * size / B + 18 * L, 2.0 * size / B + 6 * L
    expected = min(ring, doubling)
    assert seconds(all_reduce, size, cluster, line) == pytest.approx(expected, rel=1e-9)
    assert kind(size, cluster, line) == ("ring" if ring < doubling else "hierarchical")


def test_ring_and_exchange_change_places_where_they_meet() -> None:
    # S/B / 2 = 12 l where they meet: S = 24 l B.
    cluster = torus("8")
    line, meet = inside(cluster, 4, 1, 4), 24 * L * B
    assert kind(0.99 * meet, cluster, line) == "hierarchical"
    assert kind(1.01 * meet, cluster, line) == "ring"


def test_opposite_devices_of_a_ring_all_at_once() -> None:
    # {0, 4}, {1, 5}, {2, 6}, {3, 7} of 8: each of 8 devices sends a byte over 4 links, half either
    # way round: 32 link-bytes on 16 links of one direction, 2 on each. 2 x 1/2 S x 2/B, 2 x 4 l.
    cluster = torus("8")
    opposite = inside(cluster, 8, 4, 2)
    expected = 2 * LARGE / B + 8 * L
    assert seconds(all_reduce, LARGE, cluster, opposite) == pytest.approx(expected, rel=1e-9)


def test_a_tree_takes_few_steps_and_nothing_is_reduced_in_the_network() -> None:
    # 5 devices, 100 bytes: the ring and the exchange take 2 x 4 steps, a tree 2 x 3. Over no link
    # goes more than a half of either tree, but less than a ring takes does not count: 2 S/B.
    cluster = arranged(f"fully-connected:devices=5,bandwidth={B},latency={L}")
    whole = inside(cluster, 5, 1, 5)
    assert seconds(all_reduce, SMALL, cluster, whole) == pytest.approx(
        2 * SMALL / B + 6 * L, rel=1e-9)
    assert kind(SMALL, cluster, whole) == "tree"
    level = cluster.levels[0].replace(in_network_reduction=True)
    adds = cluster.replace(levels=(level,))
    assert seconds(all_reduce, LARGE, adds, whole) == pytest.approx(
        8 / 5 * LARGE / B + 8 * L, rel=1e-9)


# ---------------------------------------------------------------- full bisection


def fat_tree(k: int, changes: str = "") -> Cluster:
    """All ways between devices take ``L``, within an edge switch or not."""
    return arranged(f"fat-tree:k={k},bandwidth={B},latency={L / 2},switch_latency=0{changes}")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [4, 8])
def test_a_full_fat_tree(k: int, size: float) -> None:
    # Every device may send at B to any other one at the same time: n - 1 of n parts of the buffer
    # leave each device twice, in 2 log2 n steps.
    cluster = fat_tree(k)
    n = k**3 // 4
    assert cluster.size == n and cluster.group_sizes == (k // 2, k * k // 4, n)
    whole = inside(cluster, n, 1, n)
    expected = 2 * (n - 1) / n * size / B + 2 * math.log2(n) * L
    assert seconds(all_reduce, size, cluster, whole) == pytest.approx(expected, rel=1e-9)
    assert kind(size, cluster, whole) == "hierarchical"
    spread = (n - 1) / n * size / B + L
    assert seconds(all_to_all, size, cluster, whole) == pytest.approx(spread, rel=1e-9)


@pytest.mark.parametrize(("block", "distance", "n"), [
    (16, 1, 4), (16, 4, 4), (16, 2, 8), (8, 4, 2), (4, 2, 2)])
def test_groups_side_by_side_do_not_slow_each_other_in_a_full_fat_tree(
    block: int, distance: int, n: int
) -> None:
    cluster = fat_tree(4)
    group = inside(cluster, block, distance, n)
    expected = 2 * (n - 1) / n * LARGE / B + 2 * math.log2(n) * L
    assert seconds(all_reduce, LARGE, cluster, group) == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------- all-to-all


@pytest.mark.parametrize(("dims", "load", "hops"), [
    ("4", 1 / 2, 2), ("8", 1, 4), ("4x4", 1 / 2, 4), ("4x8", 1, 6), ("8x8", 1, 8),
    ("4x4x4", 1 / 2, 6), ("2x4", 1 / 2, 3), ("2x2x2", 1 / 2, 3), ("4x2x8", 1, 7),
    ("3x3", 1 / 3, 2), ("5", 3 / 5, 2), ("3x5", 3 / 5, 3)])
def test_all_to_all_on_a_torus(dims: str, load: float, hops: int) -> None:
    # Each device sends S/N to each. All shortest ways take as many links of a dimension, so what
    # its links carry together does not depend on the split; the links of a dimension are alike, so
    # they share it evenly. Of a side k, two devices are apart by k/4 on average if k is even,
    # (k^2 - 1)/(4 k) if odd; N devices with 2 links each: S k/8, S (k^2 - 1)/(8 k) a link. A side
    # of 2 has one link, which half of the peers are behind: S/2. The longest side counts.
    # Bisection of an even side: N/2 devices send S/2 each over 2 N/k links: S k/8.
    cluster = torus(dims)
    whole = inside(cluster, cluster.size, 1, cluster.size)
    expected = load * LARGE / B + hops * L
    assert seconds(all_to_all, LARGE, cluster, whole) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_fully_connected(n: int) -> None:
    # All-to-all: S/n over each link. All-reduce: one link of n - 1 carries what a step sends.
    cluster = arranged(f"fully-connected:devices={n},bandwidth={B},latency={L}")
    whole = inside(cluster, n, 1, n)
    assert seconds(all_to_all, LARGE, cluster, whole) == pytest.approx(
        LARGE / n / B + L, rel=1e-9)
    steps = math.log2(n) if n in (2, 8) else n - 1
    assert seconds(all_reduce, LARGE, cluster, whole) == pytest.approx(
        2 * (n - 1) / n * LARGE / B + 2 * steps * L, rel=1e-9)


# ---------------------------------------------------------------- oversubscribed, slow, failed


def leaves(changes: str = "", times: float = 1.0) -> Cluster:
    """Four leaves of eight under four spines; a leaf has 2 B / ``times`` to each spine."""
    text = (f"spine-leaf:leaves=4,per_leaf=8,spines=4,bandwidth={B},latency={L / 2},"
            f"switch_latency=0,oversubscription={times}")
    topology = parse_generator(text)
    for change in filter(None, changes.split(";")):
        topology = degrade(topology, change) if "=" in change else without(topology, change)
    return arranged(topology)


@pytest.mark.parametrize("times", [1, 2, 4])
def test_an_oversubscribed_spine(times: int) -> None:
    cluster = leaves(times=times)
    assert cluster.group_sizes == (8, 32)
    # Inside a leaf: as ever. 2 x 7/8 S/B, 6 steps.
    leaf = inside(cluster, 8, 1, 8, start=16)
    assert seconds(all_reduce, LARGE, cluster, leaf) == pytest.approx(
        1.75 * LARGE / B + 6 * L, rel=1e-9)
    assert seconds(all_to_all, LARGE, cluster, leaf) == pytest.approx(
        7 / 8 * LARGE / B + L, rel=1e-9)
    # One device of each leaf, eight such groups at once: all that is sent leaves its leaf.
    across = inside(cluster, 32, 8, 4)
    assert seconds(all_reduce, LARGE, cluster, across) == pytest.approx(
        times * 1.5 * LARGE / B + 4 * L, rel=1e-9)
    assert seconds(ring_pass, LARGE, cluster, across) == pytest.approx(
        times * 0.75 * LARGE / B + 3 * L, rel=1e-9)
    # All-to-all of 32: 24 of 32 parts leave the leaf, 31 the device.
    whole = inside(cluster, 32, 1, 32)
    assert seconds(all_to_all, LARGE, cluster, whole) == pytest.approx(
        max(31 / 32, times * 24 / 32) * LARGE / B + L, rel=1e-9)
    # All-reduce of 32. Ring: one of eight sends to another leaf, which has at least 2 B for it, so
    # nothing is slower; nor with eight rings, of an eighth each. Exchange: 7/8 in the leaf, and 3/4
    # of the eighth that is left across. Tree: S/B up and down, as rings do, in 3 + 2 steps each.
    assert seconds(all_reduce, LARGE, cluster, whole) == pytest.approx(
        min(2 * 31 / 32 * LARGE / B + 62 * L, 2 * (7 / 8 + times * 3 / 32) * LARGE / B + 10 * L),
        rel=1e-9)
    assert seconds(all_reduce, SMALL, cluster, whole) == pytest.approx(
        2 * min(7 / 8 + times * 3 / 32, 1.0) * SMALL / B + 10 * L, rel=1e-9)
    assert kind(SMALL, cluster, whole) == ("hierarchical" if times == 1 else "tree")
    assert kind(LARGE, cluster, whole) == ("hierarchical" if times == 1 else "ring")


def test_what_a_collective_takes_besides() -> None:
    # Across leaves 2-fold: 50 us and 0.01 x sqrt(S x 2/B) come once, of the level that is crossed.
    cluster = leaves(times=2)
    before = seconds(all_reduce, LARGE, cluster, inside(cluster, 32, 8, 4))
    starts = cluster.replace(levels=(
        cluster.levels[0].replace(base_time=1.0, ramp=1.0),
        cluster.levels[1].replace(base_time=50e-6, ramp=0.01)))
    after = seconds(all_reduce, LARGE, starts, inside(starts, 32, 8, 4))
    assert after - before == pytest.approx(50e-6 + 0.01 * math.sqrt(LARGE * 2 / B), rel=1e-9)


def test_a_slow_link_slows_those_that_use_it() -> None:
    # A quarter of what a leaf sends goes to each spine, as before: 2 bytes over a link of B instead
    # of 2 B. Groups of devices of the leaves 0 and 1, and all groups of four, take twice as long.
    cluster = leaves("link:leaf0-spine0=0.5")
    for block, start, n, factor in ((16, 0, 2, 2), (16, 16, 2, 1), (32, 0, 4, 2)):
        group = inside(cluster, block, 8, n, start)
        assert seconds(all_reduce, LARGE, cluster, group) == pytest.approx(
            factor * 2 * (n - 1) / n * LARGE / B + 2 * math.log2(n) * L, rel=1e-9)
    leaf = inside(cluster, 8, 1, 8)
    assert seconds(all_reduce, LARGE, cluster, leaf) == pytest.approx(
        1.75 * LARGE / B + 6 * L, rel=1e-9)


def test_a_failed_spine() -> None:
    # Three spines for what four carried: 8/3 bytes over 2 B, 4/3 of 1/B.
    cluster = leaves("spine2")
    across, leaf = inside(cluster, 32, 8, 4), inside(cluster, 8, 1, 8)
    assert seconds(all_reduce, LARGE, cluster, across) == pytest.approx(
        4 / 3 * 1.5 * LARGE / B + 4 * L, rel=1e-9)
    assert seconds(all_reduce, LARGE, cluster, leaf) == pytest.approx(
        1.75 * LARGE / B + 6 * L, rel=1e-9)


def test_a_failed_link_moves_its_traffic_to_the_other_spines() -> None:
    # Leaf 0 has spines 1, 2 and 3 left. What the others send to it takes these three too (spine 0
    # is no shortest way), so between leaf 0 and any other one all is 4/3; leaves 2 and 3 talk as
    # before.
    cluster = leaves("link:leaf0-spine0")
    first, last = inside(cluster, 16, 8, 2), inside(cluster, 16, 8, 2, start=16)
    assert seconds(all_reduce, LARGE, cluster, first) == pytest.approx(
        4 / 3 * LARGE / B + 2 * L, rel=1e-9)
    assert seconds(all_reduce, LARGE, cluster, last) == pytest.approx(
        LARGE / B + 2 * L, rel=1e-9)


# ---------------------------------------------------------------- groups that run at once


def islands(each: int, thin: float) -> Cluster:
    """Two switches of so many devices with a thin cable between them."""
    names = [f"{side}{n}" for side in "ab" for n in range(each)]
    ports = [(name, f"switch {name[0]}", B, L / 2) for name in names]
    return arranged(cables(names, [*ports, ("switch a", "switch b", thin, 0.0)]))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_tensor_parallel_groups_share_a_thin_cable(groups: int) -> None:
    # Each group of two has a device on either side: all groups send S/2 twice over one cable of T.
    thin = B / 5
    cluster = islands(groups, thin)
    pairs = inside(cluster, 2 * groups, groups, 2)
    assert seconds(all_reduce, LARGE, cluster, pairs) == pytest.approx(
        groups * LARGE / thin + 2 * L, rel=1e-9)


def test_replicas_share_it_whichever_block_is_asked_for() -> None:
    # Two replicas, one on each side, four devices each: four groups of two over the cable, be they
    # of one block or of four.
    thin = B / 5
    cluster = islands(4, thin)
    for block, start in ((4, 0), (2, 0), (2, 2), (1, 3)):
        groups = over(cluster, block, block, 2, 4, start)
        assert seconds(all_reduce, LARGE, cluster, groups) == pytest.approx(
            4 * LARGE / thin + 2 * L, rel=1e-9)
    # Tensor-parallel groups inside the replicas do not see the cable.
    group = inside(cluster, 4, 1, 4, outer_dp=2, stride=4)
    assert seconds(all_reduce, LARGE, cluster, group) == pytest.approx(
        1.5 * LARGE / B + 4 * L, rel=1e-9)


def test_one_group_over_all_of_them_uses_it_once() -> None:
    # A ring of four crosses the cable once each way: 3/2 S/T. An exchange halves inside and has two
    # messages of S/4 to send each way, twice: S/B + S/T.
    thin = B / 5
    cluster = islands(2, thin)
    whole = inside(cluster, 4, 1, 4)
    assert seconds(all_reduce, LARGE, cluster, whole) == pytest.approx(
        min(1.5 * LARGE / thin + 6 * L, LARGE / B + LARGE / thin + 4 * L), rel=1e-9)
    assert seconds(ring_pass, LARGE, cluster, whole) == pytest.approx(
        0.75 * LARGE / thin + 3 * L, rel=1e-9)


def test_rails() -> None:
    # Four nodes of eight. Device j of all nodes: over leaf j alone, whatever the spines have.
    text = "rail-optimized:nodes=4,node=8,bandwidth={},latency={},oversubscription={}"
    for times in (1, 8):
        cluster = arranged(text.format(B, L / 2, times))
        rail = over(cluster, 8, 8, 4, 8)
        assert seconds(all_reduce, LARGE, cluster, rail) == pytest.approx(
            1.5 * LARGE / B + 4 * L, rel=1e-9)
        # All 32 have a ring on each of eight rails, S/(8 B), which is more than NVLink takes; every
        # second of them four. A step over NVLink takes 2 us, or 2 l.
        for distance, rings in ((1, 8), (2, 4)):
            group, n = inside(cluster, 32, distance, 32 // distance), 32 // distance
            assert seconds(ring_pass, LARGE, cluster, group) == pytest.approx(
                (n - 1) / n * LARGE / (rings * B) + (n - 1) * 2 * L, rel=1e-9)


@pytest.mark.parametrize(("inner", "rate"), [(100e9, 8 * B), (40e9, 40e9)])
def test_nodes_with_an_adapter_for_each_device(inner: float, rate: float) -> None:
    # Eight rings, each with an adapter of its own, or the circle inside the node; three nodes.
    cluster = arranged(f"spine-leaf:leaves=1,per_leaf=24,node=8,bandwidth={B},latency={L / 2},"
                       f"node_bandwidth={inner},node_latency={L / 2}")
    whole = inside(cluster, 24, 1, 24)
    assert seconds(all_gather, LARGE, cluster, whole) == pytest.approx(
        23 / 24 * LARGE / rate + 23 * L, rel=1e-9)
    assert seconds(ring_pass, LARGE, cluster, whole) == pytest.approx(
        23 / 24 * LARGE / rate + 23 * L, rel=1e-9)
    # Tree: three steps up inside and two across, and down again.
    assert seconds(all_reduce, SMALL, cluster, whole) == pytest.approx(
        2 * SMALL / rate + 10 * L, rel=1e-9)


def test_rings_on_rails_do_without_detours_on_a_torus() -> None:
    # 4 x 4, groups of a row. One ring: from the end of a row to the next in two steps, half over
    # either way, 0 to 3 or down; so a byte over each link along the rows. On rails as much, and a
    # quarter down each column, in steps of one link: all rings take 15 steps.
    cluster = torus("4x4")
    whole = inside(cluster, 16, 1, 16)
    for size in SIZES:
        assert seconds(ring_pass, size, cluster, whole) == pytest.approx(
            15 / 16 * size / B + 15 * L, rel=1e-9)


# ---------------------------------------------------------------- pairs


def test_hand_overs() -> None:
    # A torus of 4 x 4 row by row, groups of a row: all rows send to the next over links of their
    # own, and the last one to the first.
    cluster = torus("4x4")
    fabric = fabric_of(cluster)
    assert fabric.pair(3, 4, 1, 16) == pytest.approx((1 / B, L))
    assert fabric.pair(0, 12, 1, 16) == pytest.approx((1 / B, L))
    assert fabric.pair(15, 0, 1, 16) == pytest.approx((1 / B, L))
    # Two rows on, 0 to 2 and 1 to 3, half up and half down: from row 1 to row 2 goes half of each.
    assert fabric.pair(0, 8, 1, 16) == pytest.approx((1 / B, 2 * L))
    # Replicas of 8 devices: rows 0 to 1 and 2 to 3.
    assert fabric.pair(0, 4, 2, 8) == pytest.approx((1 / B, L))


def test_a_slow_way_back_counts() -> None:
    # Four devices on a ring, of which the link from 1 to 0 has a tenth.
    cluster = torus("4")
    assert cluster.links is not None
    ends = zip(cluster.links.source, cluster.links.target, strict=True)
    slow = cluster.replace(links=cluster.links.replace(
        bandwidth=tuple(B / 10 if end == (1, 0) else B for end in ends)))
    assert fabric_of(slow).pair(0, 1, 1, 4) == pytest.approx((10 / B, L))
    assert fabric_of(slow).pair(2, 3, 1, 4) == pytest.approx((1 / B, L))


# ---------------------------------------------------------------- tiles


def test_prices_do_not_depend_on_which_blocks_were_asked_for_before() -> None:
    """A tile is priced when one of its blocks is asked for; blocks lie in nodes that stay in a row
    of 7, so that those of 2 nodes have two tiles."""
    cluster = load_network("spine-leaf:leaves=2,per_leaf=16,node=4", without="node1")
    assert cluster.group_sizes == (4, 28)
    starts = range(0, 28 - 8 + 1, 4)
    tiles = tile_of(np.array(starts), 8, cluster.group_sizes).tolist()
    assert tiles == [0, 4, 0, 4, 0, 4]

    def asked(fabric: Fabric, start: int) -> tuple[list[float], list[float]]:
        k, block, one, all_ = (np.array([n]) for n in (start, 8, 1, cluster.size))
        over = fabric.over_replicas(k % 12, block, one + one, one * 12, one)
        within = fabric.inside(k, block, one, all_, one, block)
        assert over.paths is not None and within.paths is not None
        return tuple(np.concatenate([np.ravel(figure) for figure in paths]).tolist()
                     for paths in (over.paths, within.paths))

    known = [asked(Fabric(cluster), start) for start in starts]
    fabric = Fabric(cluster)
    assert [asked(fabric, start) for start in [*starts][::-1]] == known[::-1]
    assert len({str(one) for one in known}) > 1


def test_alike_stages_start_at_multiples_of_their_block() -> None:
    cluster = load_network("spine-leaf:leaves=2,per_leaf=16,node=4", without="node1")

    def shapes(block: int) -> GroupShapes:
        return ((1, 4, False),), (block,)

    every, some = (BlockPlaces(1, 28, Fabric(cluster), shapes, alike=alike)
                   for alike in (False, True))
    assert np.flatnonzero(every.allowed(8)).tolist() == [0, 4, 8, 12, 16, 20]
    assert np.flatnonzero(some.allowed(8)).tolist() == [0, 8, 16]
    assert np.flatnonzero(some.allowed(4)).tolist() == [*range(0, 28, 4)]
