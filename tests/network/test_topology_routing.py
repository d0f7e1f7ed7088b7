"""Routes against all shortest paths one by one, and what holds of every load."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from topologies import H100, Paths, network, random_network

from nest.errors import LimitError
from nest.network import Routes, Topology, parse_generator, routing
from nest.network.topology import Draft

SMALL = (
    "fat-tree:k=4", "torus:dims=4x3", "torus:dims=2x2x2", "dragonfly:a=2,p=1,h=1",
    "spine-leaf:leaves=2,per_leaf=4,node=2,spines=3", "rail-optimized:nodes=2,node=2",
    "fully-connected:devices=4", "data-centres:fabric=[torus:dims=3]",
)


def messages(draw: random.Random, count: int) -> list[tuple[int, int, float]]:
    return [
        (draw.randrange(count), draw.randrange(count), draw.choice([0.0, 1.0, 2.5, 1e9]))
        for _ in range(draw.randint(1, 12))
    ]


def compare(topology: Topology, draw: random.Random) -> None:
    paths, routes = Paths(topology), Routes(topology)
    count = len(topology.device_N)
    for _ in range(3):
        sent = messages(draw, count)
        found = routes.loads(*zip(*sent, strict=True))
        np.testing.assert_allclose(found, paths.loads(sent), rtol=1e-12, atol=1e-12)
    over: dict[int, tuple[set[int], set[int]]] = {
        link: (set(), set()) for link in range(len(topology.source_E))}
    for a in range(count):
        for b in range(count):
            if a == b:
                continue
            seconds = paths.latencies(a, b)
            np.testing.assert_allclose(routes.latency(a, b), [max(seconds)], rtol=1e-12)
            one, other = (int(node) for node in topology.device_N[[a, b]])
            assert routes.hops(a, b) == [len(paths.between(one, other)[0]) - 1]
            for link in paths.shares(one, other):
                over[link][0].add(a)
                over[link][1].add(b)
    for link, (sources, targets) in over.items():
        assert routes.sources(link).tolist() == sorted(sources)
        assert routes.targets(link).tolist() == sorted(targets)
        smaller = sources if len(sources) <= len(targets) else targets
        assert routes.below(link).tolist() == sorted(smaller)


@pytest.mark.parametrize("text", SMALL)
def test_generated_networks(text: str) -> None:
    compare(parse_generator(text), random.Random(text))


@pytest.mark.parametrize("seed", range(60))
def test_random_networks(seed: int) -> None:
    draw = random.Random(seed)
    try:
        topology = random_network(draw)
    except ValueError:
        return  # disconnected
    compare(topology, draw)


@pytest.mark.parametrize("kept", [0, 2**26])
def test_many_rounds_give_the_same(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "ROUND", 100)
    monkeypatch.setattr(routing, "MOST_KEPT", kept)
    for text in SMALL[:3]:
        compare(parse_generator(text), random.Random(1))


def test_loads_by_hand() -> None:
    # a diamond: d0 - s0 - (s1, s2) - s3 - d1, and d2 at s1
    cables = [("d0", "s0", 1, 1.0), ("s0", "s1", 1, 2.0), ("s0", "s2", 1, 5.0),
              ("s1", "s3", 1, 3.0), ("s2", "s3", 1, 1.0), ("s3", "d1", 1, 1.0),
              ("d2", "s1", 1, 1.0)]
    topology = network(["d0", "d1", "d2"], cables)
    routes = Routes(topology)
    load = routes.loads([0, 2], [1, 1], [8, 1])
    at = {
        (topology.nodes[s], topology.nodes[t]): load[link]
        for link, (s, t) in enumerate(zip(topology.source_E, topology.target_E, strict=True))
    }
    assert at["d0", "s0"] == 8 and at["s0", "s1"] == 4 and at["s0", "s2"] == 4
    assert at["d2", "s1"] == 1 and at["s1", "s3"] == 5 and at["s3", "d1"] == 9
    assert at["s1", "s0"] == at["d1", "s3"] == 0
    assert routes.latency(0, 1) == [1 + 5 + 1 + 1]  # the slower way
    assert routes.latency([0, 2, 1], [1, 1, 1]).tolist() == [8, 5, 0]
    assert routes.hops([0, 2], [1, 1]).tolist() == [4, 3]


def test_hops_decide_not_bandwidth() -> None:
    cables = [("d0", "d1", 1.0, 9.0), ("d0", "s", 1e12, 0.0), ("s", "d1", 1e12, 0.0)]
    routes = Routes(network(["d0", "d1"], cables))
    assert routes.loads([0], [1], [7.0]).tolist() == [7, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("text", SMALL)
def test_loads_conserve_flow(text: str) -> None:
    topology = parse_generator(text)
    count, draw = len(topology.device_N), random.Random(text)
    sent = messages(draw, count)
    load = Routes(topology).loads(*zip(*sent, strict=True))
    nodes = len(topology.nodes)
    out = np.bincount(topology.source_E, weights=load, minlength=nodes)
    into = np.bincount(topology.target_E, weights=load, minlength=nodes)
    expected = np.zeros(nodes)
    for source, target, size in sent:
        expected[topology.device_N[source]] += size
        expected[topology.device_N[target]] -= size
    np.testing.assert_allclose(out - into, expected, atol=1e-6 * max(load.max(), 1.0))


def test_loads_add_up_over_messages() -> None:
    routes = Routes(parse_generator("dragonfly:a=4,p=2,h=2"))
    draw = np.random.default_rng(0)
    sources, targets = draw.integers(0, 72, (2, 300))
    sizes = draw.random(300)
    whole = routes.loads(sources, targets, sizes)
    parts = sum(routes.loads(sources[n::3], targets[n::3], sizes[n::3]) for n in range(3))
    np.testing.assert_allclose(whole, parts, rtol=1e-12)
    assert (whole == routes.loads(sources, targets, sizes)).all()


def test_devices_below_links_by_hand() -> None:
    topology = parse_generator("spine-leaf:leaves=4,per_leaf=3,spines=2")
    routes = Routes(topology)
    link = int(topology.links(*(
        np.array([topology.index[name]]) for name in ("leaf1", "spine0")))[0])
    assert routes.sources(link).tolist() == [3, 4, 5]
    assert routes.targets(link).tolist() == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert routes.below(link).tolist() == [3, 4, 5]


def test_one_device() -> None:
    routes = Routes(network(["a"], [("a", "s", 1.0, 1.0)]))
    assert routes.loads([0], [0], [5.0]).tolist() == [0, 0]
    assert routes.latency(0, 0) == [0]
    assert routes.below(0).tolist() == []
    assert Routes(network(["a"], [])).loads([0], [0], [1.0]).tolist() == []


def test_what_is_asked_is_checked() -> None:
    routes = Routes(network(["a", "b"], [("a", "b", 1.0, 1.0)]))
    for sources, targets, sizes in (([0], [2], [1.0]), ([-1], [0], [1.0]), ([0], [1, 1], [1.0])):
        with pytest.raises(ValueError):
            routes.loads(sources, targets, sizes)
    with pytest.raises(ValueError):
        routes.latency([0, 1], [1])


def test_a_network_that_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOST_BITS", 10)
    routes = Routes(parse_generator("torus:dims=4"))
    with pytest.raises(LimitError, match="8 links and 4 switches"):
        routes.sources(0)


@pytest.mark.parametrize("text", ["fat-tree:k=16", "nvl-domains:domains=14", "torus:dims=16x8x8"])
def test_a_thousand_devices_take_a_second_or_two(text: str) -> None:
    topology = parse_generator(text)
    count = len(topology.device_N)
    ends = np.indices((count, count)).reshape(2, -1)
    routes = Routes(topology)
    start = time.process_time()  # others may use the machine
    load = routes.loads(*ends, np.ones(count**2))
    # about 1 s on an idle core; far more means that something grows that should not
    assert time.process_time() - start < 10
    out = np.bincount(topology.source_E, weights=load)
    assert out[topology.device_N].min() >= count - 1


def test_a_one_way_ring() -> None:
    draft = Draft("ring", "ring")
    nodes = [draft.device(f"d{n}", H100) for n in range(4)]
    for one, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        draft.link(one, other, 1e9, 1.0)
    routes = Routes(draft.build())
    assert routes.latency(1, 0) == [3]
    assert routes.loads([1], [0], [2.0]).tolist() == [0, 2, 2, 2]
