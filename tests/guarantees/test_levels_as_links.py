"""Clusters of levels written as graphs: the links give the prices that the levels give.

Exactly so where groups are even and blocks fill their tile, or devices send to their own replicas
only; the rest is worked out by hand at the end.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from linked import arranged, groups, inside, linked, over, places

import nest
from nest.costs.choices import network
from nest.costs.network import collectives
from nest.costs.network.collectives import Group
from nest.costs.network.fabric import fabric_of
from nest.inputs import Cluster, Job, Level

CATALOG = {"dgx-a100": 64, "dgx-b200": 48, "dgx-h100": 32, "dgx-h200": 24, "gb200-nvl64": 128,
           "gb200-nvl72": 144, "h100-spine-leaf": 256, "tpuv4-fat-tree": 96}
ADAPTERS = (
    "spine-leaf:leaves=2,per_leaf=16,node=8",
    "spine-leaf:leaves=3,per_leaf=24,node=8,oversubscription=3",
    "spine-leaf:leaves=5,per_leaf=12,node=6,node_bandwidth=120 GB/s,node_latency=9 us",
    "fat-tree:k=4,node=2,oversubscription=2", "fat-tree:k=6,node=3",
    "nvl-domains:domains=4,size=8,bandwidth=1.6 Tb/s",
    "data-centres:centres=2,fabric=[spine-leaf:leaves=2,per_leaf=16,node=8]",
)
"""Hierarchies in which each device of a node has an adapter of its own."""
DRAWN = 120
NAMES = ("all_reduce", "reduce_scatter", "ring_pass", "all_to_all")
SIZES = np.array([1e3, 1e6, 1e9])


def as_levels(name: str) -> Cluster:
    """A cluster of the catalog; what links cannot do is off."""
    cluster = nest.load_cluster(name, CATALOG[name])
    return cluster.replace(levels=tuple(
        level.replace(in_network_reduction=False) for level in cluster.levels))


def both_kinds(name: str) -> tuple[Cluster, Cluster]:
    """A hierarchy by levels and as links: of the catalog, or generated."""
    if name in CATALOG:
        return as_levels(name), linked(as_levels(name))
    levels, links = nest.load_network(name), arranged(name)
    assert levels.links is None and levels.group_sizes == links.group_sizes
    return levels, links


def same(
    levels: Cluster, links: Cluster, group: Group, twin: Group, names: tuple[str, ...]
) -> None:
    """Prices are equal."""
    rows, nets = np.zeros(len(SIZES), dtype=np.int64), (network(levels), network(links))
    group, twin = group.take(rows), twin.take(rows)
    for name in names:
        function = getattr(collectives, name)
        np.testing.assert_allclose(
            function(SIZES, nets[1], twin), function(SIZES, nets[0], group), rtol=1e-9)


@pytest.mark.parametrize("name", [*CATALOG, *ADAPTERS])
def test_groups_and_pairs_cost_the_same(name: str) -> None:
    (levels, links), rng = both_kinds(name), Random(name)
    fabrics, spanned = (fabric_of(levels), fabric_of(links)), 0
    for at in places(levels, rng, DRAWN):
        (group, replicas), (twin, others) = groups(levels, at), groups(links, at)
        if group.even[0]:
            same(levels, links, group, twin, NAMES)
            spanned += int(group.size[0] > group.inside[0, 0])
        if replicas.even[0] and at.shares_alike:
            same(levels, links, replicas, others, NAMES[:3])
            spanned += int(replicas.size[0] > replicas.inside[0, 0])
        x, y = rng.randrange(at.stride), rng.randrange(at.stride)
        if x != y:
            found = [fabric.pair(x, y, at.outer_dp, at.stride) for fabric in fabrics]
            assert found[1] == pytest.approx(found[0], rel=1e-9)
    assert spanned > 20


@pytest.mark.parametrize(("distance", "size"), [(1, 4), (8, 4), (1, 32), (4, 8), (2, 16)])
def test_all_of_a_block_in_any_replica(distance: int, size: int) -> None:
    levels = as_levels("h100-spine-leaf")
    links = linked(levels)
    for outer, start in ((1, 0), (2, 64), (4, 32), (8, 0)):
        where = (32, distance, size, start, outer, 256 // outer)
        same(levels, links, inside(levels, *where), inside(links, *where), NAMES)


@pytest.mark.kernels
@pytest.mark.parametrize("name", [*CATALOG, *ADAPTERS])
def test_plans_take_as_long(name: str) -> None:
    model, (levels, links) = nest.load_model("bert-large"), both_kinds(name)
    job = Job(global_batch=levels.size, seq_len=512)
    space = nest.SearchSpace(tp="1,2,8", pp="1..4", outer_dp="1,2,4", zero="0,1")
    plan = nest.plan(model, levels, job, space, beyond_stack=True)
    assert nest.plan(model, links, job, space, beyond_stack=True).step_time_s == pytest.approx(
        plan.step_time_s, rel=1e-9)
    assert nest.evaluate(model, links, job, plan.configuration).step_time_s == pytest.approx(
        plan.step_time_s, rel=1e-9)


@pytest.mark.kernels
@pytest.mark.parametrize(("model", "name", "batch"), [
    ("llama2-7b", "dgx-h100", 64), ("mixtral-8x7b", "dgx-a100", 128)])
def test_whole_spaces_too(model: str, name: str, batch: int) -> None:
    levels, job = as_levels(name), Job(global_batch=batch, seq_len=2048)
    found = [nest.plan(nest.load_model(model), cluster, job, beyond_stack=True).step_time_s
             for cluster in (levels, linked(levels))]
    assert found[1] == pytest.approx(found[0], rel=1e-9)


# ---------------------------------------------------------------- where the two differ


def nodes(size: int, count: int, inner: float = 100e9, outer: float = 1e9) -> Cluster:
    """Nodes of devices with a port of ``outer`` bytes/s each; nothing takes a step."""
    return Cluster(name="nodes", device="h100-sxm", levels=(
        Level(name="node", size=size, bandwidth=inner, latency=0.0),
        Level(name="leaf", size=count, bandwidth=outer, latency=0.0)))


def slower(levels: Cluster, group: Group, twin: Group, name: str = "ring_pass") -> float:
    """Seconds by links over seconds by levels, of 1 GB."""
    links = linked(levels)
    function, size = getattr(collectives, name), np.array([1e9])
    return float(function(size, network(links), twin)[0]
                 / function(size, network(levels), group)[0])


def test_reduction_in_the_network_is_for_levels_only() -> None:
    # 8 devices of a node: 2 x 7/8 of the buffer with links, all of it once where switches add.
    levels = nodes(8, 4)
    adds = levels.replace(levels=(
        levels.levels[0].replace(in_network_reduction=True), levels.levels[1]))
    where = (8, 1, 8)
    assert slower(adds, inside(adds, *where), inside(linked(adds), *where),
                  "all_reduce") == pytest.approx(1.75, rel=1e-9)
    assert slower(adds, inside(adds, *where), inside(linked(adds), *where),
                  "all_gather") == pytest.approx(1.0, rel=1e-9)


def test_a_double_tree_takes_as_long() -> None:
    # 7 devices, a byte: 2 x 3 steps of a tree, 2 x 6 of the ring and of the exchange.
    levels = nodes(8, 4)
    levels = levels.replace(levels=(levels.levels[0].replace(latency=1.0), levels.levels[1]))
    links, byte = linked(levels), np.array([1.0])
    found = [float(collectives.all_reduce(byte, network(x), inside(x, 7, 1, 7))[0])
             for x in (levels, links)]
    assert found == pytest.approx([6.0, 6.0], rel=1e-9)


@pytest.mark.parametrize("start", [0, 1, 4])
def test_a_block_that_does_not_fill_its_node_has_its_share_of_the_ports(start: int) -> None:
    # [1, 5) of each of four nodes of 8: devices 0 and 5 to 7 send to their own replicas as well.
    # [0, 4) has [4, 8) beside it.
    levels = nodes(8, 4)
    where = (4, 4, 4, 8, start)
    assert slower(levels, over(levels, *where), over(linked(levels), *where)
                  ) == pytest.approx(1.0, rel=1e-9)


def test_a_tile_that_does_not_fill_the_super_pipeline_has_its_share_of_the_ports() -> None:
    # Two replicas in each of two nodes of 12, blocks of 4 of 6 devices: [0, 4), and 4 and 5.
    levels = nodes(12, 2)
    where = (4, 4, 4, 6)
    assert slower(levels, over(levels, *where), over(linked(levels), *where)
                  ) == pytest.approx(1.0, rel=1e-9)


def test_rings_of_devices_left_over_do_not_close() -> None:
    # Eight nodes of 4, two replicas of 16, the block [4, 7), and 7 as the last of [5, 8). Own ring
    # 4-5-6-20-21-22-4 leaves node 1 once, from 6. 7 would send to 21, which is not left over. One
    # byte over four ports; by levels over three of them.
    levels = nodes(4, 8)
    where = (3, 1, 2, 16, 4)
    assert slower(levels, over(levels, *where), over(linked(levels), *where)
                  ) == pytest.approx(3 / 4, rel=1e-9)


def test_uneven_groups_load_links_less_than_levels_say() -> None:
    # Every sixth of 24 devices in nodes of 8: {0, 6 | 12 | 18}, {1, 7 | 13 | 19}, {2 | 8, 14 | 20}
    # ... leave node 0 from 6, 7, 2, 3, 4 and 5: six bytes over eight ports. By levels the member
    # that is alone in its node counts: one byte over one port.
    levels = nodes(8, 3)
    where = (24, 6, 1, 24)
    group = over(levels, *where)
    assert not group.even[0]
    assert slower(levels, group, over(linked(levels), *where)) == pytest.approx(0.75, rel=1e-9)
