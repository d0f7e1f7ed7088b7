"""Good files of every format."""

from __future__ import annotations

import random
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from network_files import ASTRA, GRAPHML, NCCL, NEST, NODE_LINK, SIMAI
from topologies import A100, H100, check_levels, put

from nest.inputs.files import LARGEST
from nest.network import Routes, Topology, levels_of, parse_generator, read_topology

Links = dict[tuple[str, str], tuple[float, float]]


def links(topology: Topology) -> Links:
    ends = zip(topology.source_E, topology.target_E, strict=True)
    figures = zip(topology.bandwidth_E.tolist(), topology.latency_E.tolist(), strict=True)
    names = topology.nodes
    return {(names[s], names[t]): pair for (s, t), pair in zip(ends, figures, strict=True)}


def both(found: dict[tuple[str, str], tuple[float, float]]) -> Links:
    return {**found, **{(t, s): figures for (s, t), figures in found.items()}}


def same(topology: Topology, expected: Links) -> None:
    found = links(topology)
    assert found.keys() == expected.keys()
    for ends, figures in expected.items():
        np.testing.assert_allclose(found[ends], figures, rtol=1e-12, err_msg=str(ends))


def test_nest(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, NEST, "net.yaml"))
    assert topology.name == "two nodes"
    assert topology.nodes == ("gpu0", "gpu1", "gpu2", "sw")
    assert [topology.types[kind].name for kind in topology.type_V[:3]] == [
        "h100-sxm", "h100-sxm (changed)", "a100-sxm-80gb"]
    assert topology.types[topology.type_V[1]].memory == 94 * 2**30
    assert topology.device_N.tolist() == [0, 1, 2]
    assert topology.number_V.tolist() == [0, 1, 2, -1]
    assert topology.base_time_V.tolist() == [0, 0, 0, 2e-6]
    assert topology.ramp_V[3] == 4.1e-3 and topology.reduces_V.tolist() == [False] * 3 + [True]
    same(topology, {
        **both({("gpu0", "sw"): (50e9, 4e-6), ("gpu1", "sw"): (100e9, 4e-6)}),
        ("sw", "gpu2"): (1e9, 1e-6), ("gpu2", "sw"): (2e9, 1e-6)})


@pytest.mark.parametrize("suffix", ["json", "toml", "txt"])
def test_nest_in_other_languages(suffix: str, tmp_path: Path) -> None:
    data = {
        "name": "n", "nodes": [{"name": n, "kind": "device"} for n in "ab"],
        "links": [{"source": "a", "target": "b", "bandwidth": "1 GB/s", "latency": 0}],
    }
    content: object = data
    if suffix == "toml":
        rows = ['name = "n"', *(f'[[nodes]]\nname = "{n}"\nkind = "device"' for n in "ab")]
        content = "\n".join([*rows, '[[links]]\nsource = "a"\ntarget = "b"\n'
                             'bandwidth = "1 GB/s"\nlatency = 0'])
    topology = read_topology(put(tmp_path, content, f"n.{suffix}"), device="h100-sxm")
    same(topology, both({("a", "b"): (1e9, 0.0)}))
    assert topology.types == (H100,)


def test_a_type_given_besides_is_for_devices_without_one(tmp_path: Path) -> None:
    path = put(tmp_path, NEST, "net.yaml")
    topology = read_topology(path, device=A100)
    assert [topology.types[kind].name for kind in topology.type_V[:3]] == [
        "a100-sxm-80gb", "h100-sxm (changed)", "a100-sxm-80gb"]
    mapping = {"base": "h100-sxm", "memory": "1 TiB"}
    assert read_topology(path, device=mapping).types[0].memory == 2**40


def test_graphml(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, GRAPHML, "net.graphml"))
    assert topology.name == "net" and topology.nodes == ("a", "b", "s")
    assert topology.types == (H100,) and topology.type_V.tolist() == [0, 0, -1]
    same(topology, both({("a", "s"): (50e9, 2e-6), ("b", "s"): (25e9, 2e-6)}))
    again = read_topology(put(tmp_path, GRAPHML, "net.xml"))
    assert links(again) == links(topology)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_what_networkx_writes(kind: type[nx.Graph], tmp_path: Path) -> None:
    graph = kind()
    for name in "ab":
        graph.add_node(name, kind="device", device="h100-sxm", size=3)
    graph.add_node("s", kind="switch")
    for name in "ab":
        graph.add_edge(name, "s", bandwidth=1e9, latency="1 us", colour="red")
        graph.add_edge("s", name, bandwidth=3e9, latency=2e-6)
    directed = graph.is_directed()
    up = (1e9, 1e-6) if directed else (3e9, 2e-6)
    expected = {("a", "s"): up, ("b", "s"): up, ("s", "a"): (3e9, 2e-6), ("s", "b"): (3e9, 2e-6)}
    nx.write_graphml(graph, tmp_path / "g.graphml")
    same(read_topology(tmp_path / "g.graphml"), expected)
    for name in ("edges", "links"):
        data = nx.node_link_data(graph, edges=name)
        same(read_topology(put(tmp_path, data, f"{name}.json")), expected)


def test_node_link(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, NODE_LINK, "net.json"))
    assert topology.nodes == ("a", "7", "s")
    same(topology, both({("a", "s"): (50e9, 2e-6), ("7", "s"): (25e9, 2e-6)}))
    bare = {"nodes": NODE_LINK["nodes"], "links": NODE_LINK["edges"]}
    assert links(read_topology(put(tmp_path, bare, "bare.json"))) == links(topology)


def test_nccl(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, NCCL, "topo.xml"))
    assert [topology.nodes[node] for node in topology.device_N] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert topology.types == (H100,)
    expected: Links = {}
    for gpu in range(4):
        # 18 NVLinks of 20.6 GB/s; 16 lanes of 240 x 100 Mb/s: 48 GB/s
        expected[f"gpu{gpu}", "nvswitch"] = (370.8e9, 1.7e-6)
        expected[f"gpu{gpu}", f"pci/0000:2{gpu}:00.0"] = (5000e9, 0.0)
        expected[f"pci/0000:2{gpu}:00.0", f"pci/0000:1{gpu // 2}:00.0"] = (48e9, 2.85e-6)
    for cpu in range(2):
        expected[f"pci/0000:1{cpu}:00.0", f"cpu{cpu}"] = (48e9, 0.0)
        expected[f"pci/0000:4{cpu}:00.0", f"pci/0000:1{cpu}:00.0"] = (48e9, 2.85e-6)
        expected[f"pci/0000:4{cpu}:00.0", f"net{cpu}"] = (50e9, 7.5e-6)
    expected["cpu0", "cpu1"] = (22e9, 0.0)  # model 143 = 0x8F, Sapphire Rapids
    same(topology, both(expected))
    # NVLink is the shortest way: one level of four
    found = levels_of(topology)
    assert found is not None and found.cluster.resolved_bandwidth == pytest.approx((370.8e9,))
    assert [(level.size, level.latency) for level in found.cluster.levels] == [(4, 3.4e-6)]


def test_nccl_without_nvswitches(tmp_path: Path) -> None:
    """GPUs linked in pairs by NVLink, pairs over the CPUs; targets that are not visible."""
    text = NCCL
    for gpu in range(4):
        old = text[text.index(f'<gpu dev="{gpu}"'):].partition("</gpu>")[0]
        new = old[: old.index("<nvlink")]
        new += f'<nvlink target="0000:2{gpu ^ 1}:00.0" count="4" tclass="0x030200"/>'
        new += f'<nvlink target="0000:2{gpu ^ 1}:00.0" count="2"/>'
        new += '<nvlink target="0000:99:00.0" count="2" tclass="0x030200"/>'
        text = text.replace(old, new)
    found = links(read_topology(put(tmp_path, text, "topo.xml")))
    assert found["gpu0", "gpu1"] == found["gpu3", "gpu2"] == pytest.approx((6 * 20.6e9, 3.4e-6))
    assert ("gpu0", "gpu2") not in found and ("gpu0", "nvswitch") not in found


def test_nccl_of_two_hosts(tmp_path: Path) -> None:
    inner = NCCL.removeprefix('<system version="1">').removesuffix("</system>")
    other = inner.replace('host_hash="0x1"', 'host_hash="0x2"')
    topology = read_topology(put(tmp_path, f"<system>{inner}{other}</system>", "topo.xml"))
    assert [topology.nodes[node] for node in topology.device_N[[0, 4]]] == [
        "host0/gpu0", "host1/gpu0"]
    found = links(topology)
    assert ("host0/cpu0", "host1/cpu0") not in found  # they meet in the NVSwitches
    assert ("host0/gpu0", "nvswitch") in found and ("host1/gpu3", "nvswitch") in found
    assert levels_of(topology).cluster.levels[0].size == 8


def test_simai(tmp_path: Path) -> None:
    for name in ("topo.txt", "HPN_7.0", "topo"):
        topology = read_topology(put(tmp_path, SIMAI, name))
        assert topology.nodes == (
            "gpu0", "gpu1", "gpu2", "gpu3", "nvswitch4", "switch5",
            "gpu0/port5", "gpu2/port5", "gpu1/port5", "gpu3/port5")
        assert topology.types == (H100,)
        expected = {(f"gpu{n}/port5", "switch5"): (50e9, 5e-7) for n in range(4)}
        expected |= {(f"gpu{n}", f"gpu{n}/port5"): (50e9, 0.0) for n in range(4)}
        expected |= {(f"gpu{n}", "nvswitch4"): (360e9, 2.5e-8) for n in range(2)}
        same(topology, both(expected))
        assert Routes(topology).hops([0, 0], [1, 2]).tolist() == [2, 4]  # NVSwitch; switch
    assert read_topology(put(tmp_path, SIMAI, "topo"), device="h200-sxm").types[0].name == (
        "h200-sxm")
    other = SIMAI.replace("H100\n4 5", "A100 2\n4\n5")
    assert read_topology(put(tmp_path, other, "topo")).types == (A100,)
    bare = SIMAI.replace("6 2 1 1 6", "6 2 0 2 6")
    topology = read_topology(put(tmp_path, bare, "topo"))
    assert topology.nodes == ("gpu0", "gpu1", "gpu2", "gpu3", "switch4", "switch5")


def test_astra(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, ASTRA, "net.yml"), device="h100-sxm")
    assert len(topology.device_N) == 24
    giga = 2.0**30
    expected: Links = {}
    for n in range(24):
        a, b = n % 2, n // 2 % 3
        if a == 0:
            expected[f"npu{n}", f"npu{n + 1}"] = (200 * giga, 50e-9)
        for other in range(b + 1, 3):
            expected[f"npu{n}", f"npu{n + 2 * (other - b)}"] = (100 * giga, 500e-9)
        expected[f"npu{n}", f"dimension2.switch{n % 6}"] = (50 * giga, 2000e-9)
    same(topology, both(expected))
    ring = ASTRA.replace("2, 3, 4", "5, 3, 4")
    found = links(read_topology(put(tmp_path, ring, "net.yml"), device=H100))
    assert {target for source, target in found if source == "npu0"} >= {"npu1", "npu4"}
    single = "topology: [Switch]\nnpus_count: [8]\nbandwidth: [50]\nlatency: [500]\n"
    one = read_topology(put(tmp_path, single, "one.yaml"), device=H100)
    level = levels_of(one).cluster.levels[0]
    assert (level.size, level.bandwidth) == (8, 50 * giga)
    assert level.latency == pytest.approx(1e-6, rel=1e-12)


def test_a_hierarchy_in_a_file_is_recognised(tmp_path: Path) -> None:
    graph = parse_generator("spine-leaf:leaves=2,per_leaf=4,node=2,spines=2")
    nodes = [{"id": name, "kind": "device" if kind >= 0 else "switch",
              **({"device": "h100-sxm"} if kind >= 0 else {})}
             for name, kind in zip(graph.nodes, graph.type_V, strict=True)]
    edges = [{"source": s, "target": t, "bandwidth": w, "latency": seconds}
             for (s, t), (w, seconds) in links(graph).items()]
    data = {"directed": True, "nodes": nodes, "edges": edges}
    read = read_topology(put(tmp_path, data, "net.json"))
    assert links(read) == links(graph)
    found, known = levels_of(read), levels_of(graph)
    assert found.cluster.levels == known.cluster.levels
    check_levels(read, found, random.Random(0))


def test_large_files_are_read_in_time(tmp_path: Path) -> None:
    count = 4000
    nodes = [{"name": f"d{n}", "kind": "device"} for n in range(count)]
    nodes.append({"name": "s", "kind": "switch"})
    rows = [{"source": f"d{n}", "target": "s", "bandwidth": "1 GB/s", "latency": "1 us"}
            for n in range(count)]
    path = put(tmp_path, {"name": "n", "nodes": nodes, "links": rows}, "n.json")
    assert path.stat().st_size < LARGEST
    assert len(read_topology(path, device=H100).source_E) == 2 * count
