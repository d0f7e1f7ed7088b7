"""Generated networks against closed forms: nodes, links, bisection, diameter, device order."""

from __future__ import annotations

import warnings

import networkx as nx
import numpy as np
import pytest
from topologies import A100, as_networkx

from nest.errors import InputError
from nest.inputs import load_device
from nest.network import Routes, Topology, names_generator, parse_generator
from nest.network.generators.composed import DataCentres, Mixed
from nest.network.generators.direct import FullyConnected, Torus
from nest.network.generators.switched import (
    Dragonfly,
    FatTree,
    NvlDomains,
    RailOptimized,
    SpineLeaf,
)
from nest.network.network import load_network


def counts(topology: Topology) -> tuple[int, int, int]:
    """Devices, switches, cables."""
    devices = len(topology.device_N)
    links = len(topology.source_E)
    assert links % 2 == 0
    return devices, len(topology.nodes) - devices, links // 2


def diameter(topology: Topology) -> int:
    count = len(topology.device_N)
    return int(Routes(topology).hops(*np.indices((count, count)).reshape(2, -1)).max())


def bisection(topology: Topology) -> float:
    """Largest flow from the first half of the devices to the second, bytes/s."""
    graph = as_networkx(topology)
    for (_, _, edge), rate in zip(graph.edges(data=True), _rates(topology, graph), strict=True):
        edge["capacity"] = rate
    half = len(topology.device_N) // 2
    for node in topology.device_N[:half]:
        graph.add_edge("from", int(node))
    for node in topology.device_N[half:]:
        graph.add_edge(int(node), "to")
    return nx.maximum_flow_value(graph, "from", "to")


def _rates(topology: Topology, graph: nx.DiGraph) -> list[float]:
    return [float(topology.bandwidth_E[data["number"]]) for _, _, data in graph.edges(data=True)]


@pytest.mark.parametrize("k", [2, 4, 6])
@pytest.mark.parametrize("narrow", [1, 2])
def test_fat_tree(k: int, narrow: int) -> None:
    topology = FatTree(k=k, oversubscription=narrow).topology()
    hosts = k**3 // 4
    assert counts(topology) == (hosts, 5 * k * k // 4, 3 * hosts)
    assert diameter(topology) == 6
    assert bisection(topology) == pytest.approx(hosts / 2 * 50e9 / narrow)
    degrees = np.bincount(topology.source_E)[topology.type_V < 0]
    assert (degrees == k).all()


@pytest.mark.parametrize(("leaves", "per_leaf", "spines", "node", "narrow"), [
    (4, 6, 3, 1, 1), (2, 8, 4, 4, 2), (6, 4, 1, 2, 1)])
def test_spine_leaf(leaves: int, per_leaf: int, spines: int, node: int, narrow: int) -> None:
    topology = SpineLeaf(leaves=leaves, per_leaf=per_leaf, spines=spines, node=node,
                         oversubscription=narrow, bandwidth="10 GB/s").topology()
    devices = leaves * per_leaf
    more = (devices // node + devices, 2 * devices) if node > 1 else (0, 0)
    expected = (devices, leaves + spines + more[0], devices + leaves * spines + more[1])
    assert counts(topology) == expected
    assert diameter(topology) == (4 if node == 1 else 6)
    assert bisection(topology) == pytest.approx(devices / 2 * 10e9 / narrow)


def test_rail_optimized() -> None:
    topology = RailOptimized(nodes=3, node=4, units=2, spines=2).topology()
    # 24 devices with a port each; 6 node switches, 8 leaves, 2 spines
    assert counts(topology) == (24, 24 + 6 + 8 + 2, 24 + 24 + 24 + 8 * 2)
    assert bisection(topology) == pytest.approx(12 * 50e9)
    routes = Routes(topology)
    # neighbours in a node; on one rail; on two rails over the spine or a neighbour; other unit
    assert routes.hops([0, 0, 0, 0], [1, 4, 5, 12]).tolist() == [2, 4, 6, 6]
    ends = {topology.nodes[t] for s, t in zip(topology.source_E, topology.target_E, strict=True)
            if topology.nodes[s] == "leaf6"}
    assert ends == {"node3/nic2", "node4/nic2", "node5/nic2", "spine0", "spine1"}


@pytest.mark.parametrize(("a", "p", "h"), [(4, 2, 2), (2, 1, 1), (6, 1, 2)])
def test_dragonfly(a: int, p: int, h: int) -> None:
    topology = Dragonfly(a=a, p=p, h=h).topology()
    groups = a * h + 1
    local, across = groups * a * (a - 1) // 2, groups * (groups - 1) // 2
    assert counts(topology) == (a * p * groups, a * groups, a * p * groups + local + across)
    degrees = np.bincount(topology.source_E)[topology.type_V < 0]
    assert (degrees == p + a - 1 + h).all()  # every port is used
    assert diameter(topology) <= 5  # a link to the router, local, global, local, and down
    between = {
        (topology.nodes[s].partition("/")[0], topology.nodes[t].partition("/")[0])
        for s, t in zip(topology.source_E, topology.target_E, strict=True)
        if topology.type_V[s] < 0 and topology.type_V[t] < 0
    }
    assert len({pair for pair in between if pair[0] != pair[1]}) == groups * (groups - 1)


def test_a_dragonfly_with_fewer_groups_has_more_links_for_each_pair() -> None:
    topology = Dragonfly(a=4, p=1, h=2, groups=3).topology()
    # 8 ports for 2 other groups: 4 links a pair
    across = [
        rate for s, t, rate in zip(
            topology.source_E, topology.target_E, topology.bandwidth_E, strict=True)
        if {topology.nodes[n].partition("/")[0] for n in (s, t)} in (
            {"group0", "group1"}, {"group0", "group2"}, {"group1", "group2"})
    ]
    assert sum(across) == 2 * 3 * 4 * 50e9


@pytest.mark.parametrize("dims", [(4,), (3, 5), (4, 4, 4), (2, 4), (2, 2, 2)])
def test_torus(dims: tuple[int, ...]) -> None:
    topology = Torus(dims=dims).topology()
    total = int(np.prod(dims))
    cables = sum(total // 2 if size == 2 else total for size in dims)
    assert counts(topology) == (total, 0, cables)
    assert diameter(topology) == sum(size // 2 for size in dims)
    if dims[0] % 2 == 0:  # cut across the first dimension
        rows = total // dims[0]
        assert bisection(topology) == pytest.approx(rows * (1 if dims[0] == 2 else 2) * 50e9)
    last = dims[-1]
    assert Routes(topology).hops([0] * last, range(last)).tolist() == [
        min(n, last - n) for n in range(last)]


def test_fully_connected() -> None:
    topology = FullyConnected(devices=6, bandwidth="64 GB/s").topology()
    assert counts(topology) == (6, 0, 15)
    assert diameter(topology) == 1
    assert bisection(topology) == pytest.approx(9 * 64e9)
    assert topology.types[0].name == "mi300x"


def test_nvl_domains() -> None:
    topology = NvlDomains(domains=4, size=6, spines=2, oversubscription=2).topology()
    assert counts(topology) == (24, 24 + 4 + 4 + 2, 3 * 24 + 8)
    assert bisection(topology) == pytest.approx(12 * 50e9 / 2)
    assert len(NvlDomains(domains=2).topology().device_N) == 144
    assert topology.nodes[topology.device_N[6]] == "domain1/gpu0"


def test_data_centres() -> None:
    topology = DataCentres(centres=3, bandwidth="10 GB/s", latency="5 ms").topology(
        FatTree(k=4).topology())
    assert counts(topology) == (48, 3 * (20 + 1), 3 * (48 + 4) + 3)
    two = DataCentres(bandwidth="10 GB/s").topology(FatTree(k=4).topology())
    assert bisection(two) == pytest.approx(10e9)
    routes = Routes(topology)
    assert routes.hops(0, 16) == [3 + 1 + 1 + 1 + 3]
    assert routes.latency(0, 16) == pytest.approx([2 * (4e-6 + 2e-6) + 5e-3])
    rings = DataCentres().topology(Torus(dims=4).topology())
    assert counts(rings) == (8, 2, 2 * (4 + 4) + 1)
    nested = parse_generator("data-centres:fabric=[data-centres:centres=3,fabric=[torus:dims=4]]")
    assert len(nested.device_N) == 24


def test_text_means_the_same_as_the_fields() -> None:
    pairs = [
        ("fat-tree:k=4,oversubscription=2,device=a100-sxm-80gb,bandwidth=200 Gb/s",
         FatTree(k=4, oversubscription=2, device=A100, bandwidth=25e9).topology()),
        ("spine-leaf: leaves=2, per_leaf=4, node=2, latency=[2 us]",
         SpineLeaf(leaves=2, per_leaf=4, node=2, latency=2e-6).topology()),
        ("torus:dims=4x3", Torus(dims=(4, 3)).topology()),
        ("torus:dims=4", Torus(dims=4).topology()),
        ("data-centres:centres=2,latency=1 ms,fabric=[fat-tree:k=4,bandwidth=1 GB/s]",
         DataCentres(latency=1e-3).topology(FatTree(k=4, bandwidth=1e9).topology())),
    ]
    for text, expected in pairs:
        found = parse_generator(text)
        assert names_generator(text)
        assert (found.nodes, found.types) == (expected.nodes, expected.types)
        for name in ("type_V", "source_E", "target_E", "bandwidth_E", "latency_E"):
            assert (getattr(found, name) == getattr(expected, name)).all()
    assert not names_generator("h100-spine-leaf") and not names_generator("net.yaml")


@pytest.mark.parametrize(("text", "says"), [
    ("fat-tre:k=4", "network: got 'fat-tre'; did you mean fat-tree? allowed: fat-tree, spine-leaf"),
    ("", "network: got ''; allowed: fat-tree"),
    ("fat-tree", "fat-tree: k: missing; needed: ports of a switch, even"),
    ("fat-tree:k=5", "fat-tree: k: got 5; allowed: an even number"),
    ("fat-tree:k=4.5", "fat-tree: k: got '4.5'; allowed: a whole number"),
    ("fat-tree:k=4,k=6", "fat-tree: 'k': given twice"),
    ("fat-tree:k", "fat-tree: got 'k'; allowed: FIELD=VALUE"),
    ("fat-tree:k=4,oversubscription=0.5", "fat-tree: oversubscription: got '0.5'; allowed: at lea"),
    ("fat-tree:k=4,bandwidth=5 us", "fat-tree: bandwidth: got '5 us'; allowed: a number of bytes"),
    ("fat-tree:k=4,bandwidth=0", "fat-tree: bandwidth: got 0; allowed: 1 to 1e+18"),
    ("fat-tree:k=4,device=h300", "fat-tree: device: got 'h300'; allowed: a name in the catalog"),
    ("fat-tree:k=4,node=3", "fat-tree: node: got 3; allowed: a divisor of the 16 devices"),
    ("fat-tree:k=4,ports=3", "fat-tree: ports: unknown field"),
    ("fat-tree:k=256", "fat-tree: got 4194304 devices; allowed: at most 500000"),
    ("torus:dims=4x", "torus: dims: got '4x'"),
    ("torus:dims=1x4", "torus: dims: got 1; allowed: at least 2"),
    ("torus:dims=2x2x2x2x2x2x2", "torus: dims: got 7 entries; allowed: at most 6"),
    ("torus:dims=[4", "torus: got 'dims=[4'; allowed: as many [ as ]"),
    ("dragonfly:a=2,p=1,h=1,groups=9", "dragonfly: groups: got 9; allowed: 2 to 3 = a h + 1"),
    ("data-centres:centres=2", "data-centres: fabric: missing; needed: the network of one"),
    ("data-centres:centres=1,fabric=[torus:dims=4]", "data-centres: centres: got 1; allowed: at"),
    ("fully-connected:devices=1500", "fully-connected: devices: got 1500; allowed: at most"),
    ("mixed:", "mixed: nodes: missing"),
    ("mixed:8xa100-sxm-80gb,h100-sxm", "mixed: nodes.1: got 'h100-sxm'; allowed: DEVICES x DEVICE"),
    ("mixed:0x8xh100-sxm", "mixed: nodes.0: got '0x8xh100-sxm'; allowed: DEVICES x DEVICE or"),
    ("mixed:8xh100", "mixed: nodes.0: device: got 'h100'; allowed: a name in the catalog; close: "),
    ("mixed:8xv100-sxm2-32gb", "got v100-sxm2-32gb, whose links in a node are not known"),
    ("mixed:8xh100-sxm,link=wifi", "mixed: link: got 'wifi'; allowed: 'nvlink3', 'nvlink4'"),
    ("mixed:999999x8xh100-sxm", "mixed: got 999999x8xh100-sxm; allowed: at most 500000 devices"),
    ("x" * 20_000, "allowed: at most 10000 characters"),
])
def test_bad_text(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_generator(text)
    assert says in str(caught.value)


def test_mixed_nodes_have_the_default_links_of_their_devices() -> None:
    network = parse_generator("mixed:2x4xa100-sxm-80gb, 8xh800, link=roce, bandwidth=200G")
    assert [device.name for device in network.types] == ["a100-sxm-80gb", "h800"]
    assert len(network.device_N) == 16
    rates = {(network.nodes[a], network.nodes[b]): rate for a, b, rate in zip(
        network.source_E, network.target_E, network.bandwidth_E, strict=True)}
    # nominal figures of one direction times the share that collectives reach
    assert rates["node0/gpu3", "node0"] == pytest.approx(300e9 * 0.734)
    assert rates["node2/gpu7", "node2"] == pytest.approx(200e9 * 0.816)
    assert rates["node1/nic0", "leaf"] == pytest.approx(25e9 * 0.87)
    alike = load_network("mixed:2x8xh100-sxm")  # one type: a cluster with levels
    assert alike.links is None and alike.group_sizes == (8, 16)
    assert alike.levels[1].latency == pytest.approx(8e-6)
    assert Mixed(nodes=("8xh100-sxm",), link="efa").topology().nodes[0] == "leaf"


def _inner(text: str, device: str | None = None) -> list[float]:
    given = None if device is None else load_device(device)
    return sorted(set(parse_generator(text, given).bandwidth_E.tolist()))


@pytest.mark.parametrize(("text", "rate"), [
    ("spine-leaf:leaves=1,per_leaf=8,node=8", 450e9),
    ("spine-leaf:leaves=1,per_leaf=8,node=8,device=h800", 200e9),
    ("spine-leaf:leaves=1,per_leaf=8,node=8,device=a100-sxm-80gb", 300e9),
    ("rail-optimized:nodes=1,device=b200-sxm", 900e9),
    ("nvl-domains:domains=1", 900e9), ("nvl-domains:domains=1,size=8,device=h20", 450e9),
    ("torus:dims=2x2", 50e9), ("torus:dims=2x2,device=tpu-v5p", 100e9),
    ("torus:dims=2x2,device=tpu-v5e", 50e9),
    ("fully-connected:devices=8", 64e9), ("fully-connected:devices=8,device=mi355x", 76.5e9),
])
def test_links_of_devices_have_their_rate(text: str, rate: float) -> None:
    """Figures: docs/catalog.md, Links; 6 or 4 links of a TPU and 7 of an MI300X share them."""
    assert rate in _inner(text)
    bare, _, device = text.partition(",device=")
    if device:
        assert _inner(bare, device) == _inner(text)


def test_a_node_of_devices_with_unknown_links_needs_their_rate() -> None:
    text = "spine-leaf:leaves=1,per_leaf=8,device=v100-sxm2-32gb"
    assert _inner(text) == [50e9, 100e9]  # no node: rates of ports, and to 4 spines
    with pytest.raises(InputError, match="node_bandwidth: missing; needed: that of v100-sxm2"):
        parse_generator(f"{text},node=8")
    known = f"{text},node=8,node_bandwidth=150 GB/s,node_latency=2 us"
    assert 150e9 in _inner(known)


def test_another_device_in_a_network_says_what_is_kept() -> None:
    with pytest.warns(UserWarning, match="levels that keep their bandwidth with b200-sxm in the "
                      r"place of h100-sxm: nvlink 450 GB/s, leaf 50 GB/s, spine 50 GB/s; links in "
                      r"a node of b200-sxm: 900 GB/s \(link: nvlink5\)"):
        load_network("dgx-h100", device="b200-sxm")
    with pytest.warns(UserWarning, match="h800 in the place of h100-sxm: leaf 50 GB/s, spine"):
        assert load_network("dgx-h100", device="h800").nominal_bandwidth[0] == 200e9
    with pytest.warns(UserWarning, match="the links keep their rates with h200-sxm in the place"):
        load_network("mixed:8xh100-sxm,8xa100-sxm-80gb", device="h200-sxm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_network("dgx-h100", device="h100-sxm")
        load_network("spine-leaf:leaves=2,per_leaf=8,node=8", device="h800")
