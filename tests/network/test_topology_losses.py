"""What is left of a cluster: every pair of devices meets at the level where it met before."""

from __future__ import annotations

import math
import os
from random import Random

import pytest

from nest import InputError, load_cluster, load_network
from nest.inputs import Cluster
from nest.network import graph_of
from nest.network.hierarchy import device_names
from nest.network.losses import left_of

SEEDS = range(int(os.environ.get("NEST_INSTANCES", "200")))


def hierarchy(rng: Random) -> Cluster:
    sizes = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    levels = [{"name": f"tier{chr(97 + v)}", "size": size, "bandwidth": 1e9, "latency": 1e-6 * v}
              for v, size in enumerate(sizes)]
    count = math.prod(sizes)
    least = count - count // sizes[-1] + 1
    some = rng.randint(least, count)
    return Cluster.parse({"name": "c", "device": "h100-sxm", "levels": levels,
                          "devices": some if some < count else None})


def meeting(cluster: Cluster, one: int, other: int) -> int:
    """Number of the level that joins two devices, by their places."""
    return next(v for v, size in enumerate(cluster.group_sizes) if one // size == other // size)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_meet_where_they_met(seed: int) -> None:
    rng = Random(seed)
    cluster = hierarchy(rng)
    names = device_names(cluster)
    lost = rng.sample(range(cluster.size), rng.randint(0, cluster.size - 1))
    left = left_of(cluster, [",".join(names[n] for n in lost)] if lost else [])
    found = left.cluster
    assert found.names is not None
    assert sorted(left.lost) == sorted(names[n] for n in lost)
    assert sorted([*found.names, *left.lost, *left.idle]) == sorted(names)
    place = {name: number for number, name in enumerate(names)}
    before = [place[name] for name in found.names]
    for one in range(found.size):
        for other in range(one):
            assert meeting(found, one, other) == meeting(cluster, before[one], before[other])
    assert list(found.numbers or range(found.size)) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_one_group_that_lost_some_leaves_nothing_idle(seed: int) -> None:
    rng = Random(seed)
    cluster = hierarchy(rng)
    if cluster.size % cluster.group_sizes[0] or cluster.devices is not None:
        cluster = cluster.replace(devices=None)
    inner = cluster.group_sizes[0]
    group = rng.randrange(cluster.size // inner)
    lost = range(group * inner, group * inner + rng.randint(1, inner))
    if len(lost) == cluster.size:
        pytest.skip("nothing is left")
    names = device_names(cluster)
    assert left_of(cluster, [names[n] for n in lost]).idle == ()


def test_few_devices_stay_idle() -> None:
    """Of 128 nodes in leaves of 32: [31, 31, 32, 32] are used as four times 31."""
    cluster = load_cluster("dgx-h100", devices=1024)
    left = left_of(cluster, ["nvlink1", "nvlink50"])
    assert (left.cluster.size, len(left.idle)) == (992, 16)
    assert [(level.size, level.whole) for level in left.cluster.levels] == [
        (8, None), (31, 32), (4, None)]


def test_devices_are_named_as_in_the_graph_of_the_cluster() -> None:
    cluster = load_cluster("h100-spine-leaf", devices=64)
    graph = graph_of(cluster)
    assert list(device_names(cluster)) == [graph.nodes[n] for n in graph.device_N]


def test_a_second_loss_is_named_as_the_first() -> None:
    cluster = load_cluster("h100-spine-leaf", devices=64)
    once = left_of(cluster, ["node1"]).cluster
    twice = left_of(once, ["node2"])
    assert set(twice.cluster.names) == set(left_of(cluster, ["node1..2"]).cluster.names)
    assert twice.cluster.numbers == left_of(cluster, ["node1..2"]).cluster.numbers


def test_groups_of_any_level_are_lost() -> None:
    cluster = load_cluster("h100-spine-leaf", devices=128)
    assert left_of(cluster, ["leaf3"]).lost == left_of(cluster, ["node12..15"]).lost


def test_losses_of_links_are_priced_by_links() -> None:
    cluster = load_network("fat-tree:k=4,device=h100-sxm")
    names = device_names(cluster)
    left = left_of(cluster, [names[0]])
    assert left.cluster.size == 15 and left.lost == (names[0],) and left.idle == ()


@pytest.mark.parametrize("given, said", [
    ("node17", "did you mean node7? allowed: node0 to node7, leaf0 to leaf1, spine0, devices "
     "such as node0/device0, or ranges with .."),
    ("node5..3", "allowed: a range that does not fall"),
    ("", "allowed: names of nodes"),
    ("node0..7", "got all 64 devices; allowed: at least one left"),
])
def test_unknown_parts_are_told(given: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        left_of(load_cluster("h100-spine-leaf", devices=64), [given])
    assert str(error.value).startswith("without: ") and said in str(error.value)
