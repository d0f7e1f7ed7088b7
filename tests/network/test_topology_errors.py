"""Bad networks end in one message: which file, which place, what was given, what is allowed."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from network_files import ASTRA, GRAPHML, NCCL, NEST, NODE_LINK, SIMAI
from topologies import H100, put

from nest.errors import InputError, LimitError
from nest.inputs.files import LARGEST
from nest.network import graph_of, read_topology
from nest.network.network import load_network
from nest.network.readers import xml_text
from nest.network.topology import MOST_NODES, Draft


def refused(path: Path, **given: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_topology(path, **given)
    message = str(caught.value)
    assert message.startswith((str(path), "device:")), message
    assert len(message) < 1500
    return message


def changed(data: dict, place: str, value: Any) -> dict:
    """Copy with one thing set, or taken away where the value is ``...``."""
    result = copy.deepcopy(data)
    *parents, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    at: Any = result
    for part in parents:
        at = at[part]
    if value is ...:
        del at[last]
    elif isinstance(at, list) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return result


NET = yaml.safe_load(NEST)
LINK = NET["links"][0]


# ---------------------------------------------------------------- NEST


@pytest.mark.parametrize(("place", "value", "says"), [
    ("links.0.bandwidth", ..., "links.0.bandwidth: missing; needed: bytes/s of one cable"),
    ("links.0.bandwidth", 0, "links.0.bandwidth: got 0; allowed: 1 to 1e+18"),
    ("links.0.bandwidth", "5 us", "links.0.bandwidth: got '5 us'; allowed: a number of bytes/s"),
    ("links.0.bandwidth", -1, "links.0.bandwidth: got -1"),
    ("links.0.latency", ..., "links.0.latency: missing"),
    ("links.0.target", "gpu0", "links.0: got a link from 'gpu0' to itself; allowed: links between"),
    ("links.4", LINK, "links.4: got a second link from 'gpu0' to 'sw'; allowed: one for each"),
    ("links.4", {**LINK, "source": "sw", "target": "gpu0", "one_way": True},
     "links.4: got a second link from 'sw' to 'gpu0'"),
    ("links.0.source", "gpu9", "links.0.source: got 'gpu9'; allowed: the name of a node"),
    ("links.0.count", 0, "links.0.count: got 0; allowed: at least 1"),
    ("links.0.speed", 3, "links.0.speed: unknown field"),
    ("links.0", ..., "got a disconnected network: no path both ways between 'gpu0' and the device "
     "'gpu1' (3 nodes are cut off); allowed: paths between all nodes"),
    ("links.2", ..., "got a disconnected network: no path both ways between 'gpu0' and the device "
     "'gpu2' (1 nodes are cut off)"),
    ("nodes.4", {"name": "sw2", "kind": "switch"}, "between 'gpu0' and the switch 'sw2'"),
    ("nodes.1.name", "gpu0", "nodes.1: got the node 'gpu0' twice; allowed: a name of its own"),
    ("nodes.0.kind", "router", "nodes.0.kind: got 'router'; allowed: 'device' or 'switch'"),
    ("nodes.0.kind", ..., "nodes.0.kind: missing"),
    ("nodes.0.device", "h300", "nodes.0.device: got 'h300'; allowed: a name in the catalog"),
    ("nodes.3.device", "h100-sxm", "nodes.3.device: got 'h100-sxm' on a switch; allowed: on dev"),
    ("nodes.0.ramp", 0.1, "nodes.0.ramp: got 0.1 on a device; allowed: on switches"),
    ("device", ..., "nodes.0.device: missing; needed: a type for each device"),
    ("device", "h300", "device: got 'h300'"),
    ("device_types.big", {"name": "big", "memory_bandwidth": "1 TB/s",
                          "peak_flops": {"bf16": "1 TFLOP/s"}},
     "device_types.big.memory: missing; needed: bytes of device memory"),
    ("device_types.big.memory", 0, "device_types.big.memory: got 0"),
    ("nodes", [], "links.0.source: got 'gpu0'; allowed: the name of a node"),
    ("nodes", ..., "nodes: missing"),
    ("nodes", [{"name": "s", "kind": "switch"}], "links.0.source: got 'gpu0'"),
    ("racks", 3, "racks: unknown field"),
])
def test_nest_files(place: str, value: Any, says: str, tmp_path: Path) -> None:
    assert says in refused(put(tmp_path, changed(NET, place, value), "net.json"))


def test_a_network_of_switches_only(tmp_path: Path) -> None:
    data = {"name": "n", "nodes": [{"name": "s", "kind": "switch"}]}
    assert "got no device" in refused(put(tmp_path, data, "net.json"))


def test_too_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"name": "n", "nodes": [1] * (MOST_NODES + 1)}
    says = f"nodes: got {MOST_NODES + 1} entries; allowed: at most {MOST_NODES} entries"
    assert says in refused(put(tmp_path, data, "net.json"))
    monkeypatch.setattr("nest.network.topology.MOST_LINKS", 4)
    path = put(tmp_path, NEST, "net.yaml")
    assert "links: got more than 4; allowed: 4" in refused(path)
    monkeypatch.setattr("nest.network.topology.MOST_NODES", 2)
    assert "nodes: got more than 2; allowed: 2" in refused(path)


def test_figures_that_only_programs_give() -> None:
    draft = Draft("n", "n")
    one, other = draft.device("a", H100), draft.switch("s")
    for bandwidth in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="more than 0 bytes/s"):
            draft.link(one, other, bandwidth, 0.0)
    for latency in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="allowed: 0 s or more"):
            draft.link(one, other, 1.0, latency)


# ---------------------------------------------------------------- files


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.yaml")
    assert "is a folder" in refused(tmp_path)
    assert "is empty" in refused(put(tmp_path, " \n", "empty.json"))
    assert "unknown format" in refused(put(tmp_path, "a,b\n1,2\n", "net.csv"))
    slurm = put(tmp_path, "SwitchName=a Nodes=n[1-4]\nSwitchName=s Switches=a\n", "t.conf")
    assert "topology.conf, which has switches and hosts, but neither devices" in refused(slurm)
    matrix = put(tmp_path, "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\n", "m.txt")
    assert "nvidia-smi topo -m`, which has kinds of paths, but no rates" in refused(matrix)
    assert "is a binary file" in refused(put(tmp_path, b"<a\0>", "net.xml"))
    assert "not UTF-8" in refused(put(tmp_path, b"<\xff>", "net.xml"))
    levels = {"name": "c", "device": "h100-sxm", "levels": []}
    assert "a cluster description with levels" in refused(put(tmp_path, levels, "c.json"))
    assert "allowed: a mapping of fields" in refused(put(tmp_path, "[1]", "list.json"))
    assert "malformed YAML" in refused(put(tmp_path, "a: [", "net.yaml"))
    good = put(tmp_path, NEST, "net.yaml")
    assert "device: got 'h300'" in refused(good, device="h300")
    assert "memory: missing" in refused(good, device={"name": "d"})


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    for name in ("net.xml", "net.graphml", "net.json", "net.txt"):
        path = tmp_path / name
        with path.open("wb") as stream:
            os.truncate(stream.fileno(), 2**30)
        assert f"got {2**30} bytes; allowed: at most {LARGEST} bytes" in refused(path)


# ---------------------------------------------------------------- XML

BOMB = ('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]>'
        "<graphml>&y;</graphml>")
FETCH = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>'


@pytest.mark.parametrize("text", [BOMB, FETCH, '<!DOCTYPE a SYSTEM "http://a/b"><system/>',
                                  '<?xml version="1.0" encoding="cp037"?>' + BOMB[21:]])
def test_document_types_and_entities_are_refused(text: str, tmp_path: Path) -> None:
    assert "line 1: got a document type or an entity" in refused(put(tmp_path, text, "a.xml"))


def test_xml_that_is_malformed_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "line 2: malformed XML: mismatched tag" in refused(
        put(tmp_path, "<a>\n</b>", "a.xml"))
    assert "malformed XML: undefined entity" in refused(put(tmp_path, "<a>&b;</a>", "a.xml"))
    deep = "<a>" * 100 + "</a>" * 100
    assert "nested more than 64 deep; allowed: 64" in refused(put(tmp_path, deep, "a.xml"))
    assert "got XML with the root 'svg'; allowed: graphml or system" in refused(
        put(tmp_path, "<svg/>", "a.svg"))
    monkeypatch.setattr(xml_text, "MOST_ELEMENTS", 5)
    assert "got more than 5 elements; allowed: 5" in refused(put(tmp_path, GRAPHML, "a.graphml"))


@pytest.mark.parametrize(("old", "new", "says"), [
    ('<data key="b">25e9</data>', "", "edge 'b' - 's': bandwidth: missing"),
    ('<data key="b">25e9</data>', '<data key="b">0</data>', "edge 'b' - 's': bandwidth: got '0'"),
    ('<data key="b">25e9</data>', '<data key="q">0</data>', "Bad GraphML data: no key q"),
    ('<data key="l">2e-06</data></edge>', '<data key="l">x</data></edge>', "malformed GraphML"),
    ('<data key="l">2e-06</data></edge>', "</edge>", "edge 'a' - 's': latency: missing"),
    ('<node id="b">', '<node id="a">', "node 'a': given twice"),
    ('<node id="b">', "<node>", "node: id: missing"),
    ('target="s"', 'target="t"', "edge: target: got 't'; allowed: the id of a node"),
    ('<edge source="b"', '<edge source="a"', "edge 'a' - 's': got a second link"),
    ('source="b" target="s"', 'source="b" target="b"', "got a link from 'b' to itself"),
    ('<data key="k">switch</data>', '<data key="k">hub</data>', "node 's': kind: got 'hub'"),
    ("h100-sxm", "h300", "node 'a'.device: got 'h300'"),
    ('<data key="d">h100-sxm</data></node>\n    <node id="s">', '</node><node id="s">',
     "node 'b'.device: missing"),
    ("</graph>", '</graph><graph edgedefault="directed"/>', "got 2 graphs; allowed: one graph"),
    ("</graph>", "<hyperedge/></graph>", "hyperedges"),
    ('attr.type="double"', 'attr.type="number"', "malformed GraphML"),
    ('<edge source="a" target="s">', '<edge source="a" target="s" directed="true">', "directed"),
])
def test_graphml(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in GRAPHML
    assert says in refused(put(tmp_path, GRAPHML.replace(old, new), "net.graphml"))


@pytest.mark.parametrize(("place", "value", "says"), [
    ("nodes.0", 5, "nodes: got"),
    ("nodes", "abc", "nodes: got 'abc'; allowed: a list of mappings"),
    ("nodes.0.id", ..., "nodes.0.id: got None; allowed: text or a whole number"),
    ("nodes.0.id", 7, "nodes: got an id twice"),
    ("nodes.0.id", [1], "nodes.0.id: got [1]"),
    ("nodes.0.kind", ..., "node 'a': kind: missing"),
    ("edges.0.source", "zz", "edges.0.source: got 'zz'; allowed: the id of a node"),
    ("edges.0.bandwidth", 0, "edge 'a' - 's': bandwidth: got 0"),
    ("edges.0.bandwidth", ..., "edge 'a' - 's': bandwidth: missing"),
    ("edges.2", NODE_LINK["edges"][0], "got a second link from 'a' to 's'"),
    ("edges.0.target", "a", "got a link from 'a' to itself"),
    ("edges", [], "got a disconnected network"),
    ("directed", "yes", "directed: got 'yes'; allowed: true or false"),
])
def test_node_link(place: str, value: Any, says: str, tmp_path: Path) -> None:
    assert says in refused(put(tmp_path, changed(NODE_LINK, place, value), "net.json"))


@pytest.mark.parametrize(("old", "new", "says"), [
    ("<gpu ", "<cgpu ", "malformed XML"),
    ('numaid="0"', "", "cpu.numaid: got None; allowed: a whole number"),
    ('numaid="1"', 'numaid="0"', "cpu.numaid: got the node 'cpu0' twice"),
    ('busid="0000:20:00.0" ', "", "pci.busid: missing"),
    ('busid="0000:20:00.0"', 'busid="0000:10:00.0"', "pci '0000:10:00.0': got the bus id inside "
     "itself; allowed: a tree without cycles"),
    ('busid="0000:23:00.0"', 'busid="0000:20:00.0"', "got the bus id twice; allowed: once"),
    ('link_width="16"', 'link_width="wide"', "link_width: got 'wide'; allowed: 0 to 1024"),
    ('sm="90"', "", "gpu.sm: got None; allowed: a whole number"),
    ('dev="1" sm', 'dev="0" sm', "got the node 'gpu0' twice"),
    ('count="5"', 'count="0"', "nvlink.count: got 0; allowed: 1 to 1000"),
    ('count="5"', 'count="many"', "nvlink.count: got 'many'; allowed: a whole number"),
    ('tclass="0x068000"', "", "nvlink.tclass: missing"),
    ('speed="400000"', 'speed="fast"', "net.speed: got 'fast'; allowed: a whole number"),
    ('latency="0.5"', 'latency="-1"', "net0.latency: got '-1'; allowed: microseconds"),
    ('device="0x2330"', 'device="0x9999"', "gpu0.device: got vendor '0x10de', device '0x9999'"),
    ('familyid="6"', 'familyid="six"', "cpu: familyid: got 'six'; allowed: a whole number"),
])
def test_nccl(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in NCCL
    assert says in refused(put(tmp_path, NCCL.replace(old, new), "topo.xml"))


def test_nccl_without_gpus(tmp_path: Path) -> None:
    assert "got no gpu below system/cpu/pci" in refused(
        put(tmp_path, '<system><cpu numaid="0"/></system>', "topo.xml"))


@pytest.mark.parametrize(("old", "new", "says"), [
    ("6 2 1 1 6 H100", "6 2 1 1 6 B100", "line 1: type of GPU: got 'B100'; allowed: A100"),
    ("6 2 1 1 6 H100", "999999999 2 1 1 6 H100", "line 1: number of nodes: got '999999999'"),
    ("6 2 1 1 6 H100", "6 2 1 1 7 H100", "line 8: ends early; needed: source of a link"),
    ("6 2 1 1 6 H100", "6 2 1 1 5 H100", "line 8: links: got '3' after 5 links"),
    ("4 5\n", "4 4\n", "line 2: id of a switch: got 4 twice"),
    ("4 5\n", "4 6\n", "line 2: id of a switch: got '6'; allowed: 0 to 5"),
    ("0 4 2880Gbps", "0 9 2880Gbps", "line 3: target of a link: got '9'; allowed: 0 to 5"),
    ("0 4 2880Gbps", "0 0 2880Gbps", "line 3: got a link from 'gpu0' to itself"),
    ("1 4 2880Gbps", "0 4 2880Gbps", "line 4: got a second link from 'gpu0' to 'nvswitch4'"),
    ("2 5 400Gbps", "0 5 400Gbps", "line 6: got a second link between 0 and 5; allowed: one"),
    ("0 4 2880Gbps", "0 4 0Gbps", "line 3: bandwidth: got '0Gbps'; allowed: 1 to 1e+18"),
    ("0 4 2880Gbps", "0 4 fast", "line 3: bandwidth: got 'fast'"),
    ("0.000025ms 0\n", "soon 0\n", "line 3: latency: got 'soon'"),
    ("0.01\n", "2\n", "line 8: error rate: got '2'; allowed: 0 to 1"),
    ("0.01\n", "\n", "line 8: ends early; needed: error rate of a link"),
    ("3 5 400Gbps", "1 2 400Gbps", "no path both ways between 'gpu0' and the device 'gpu3'"),
])
def test_simai(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in SIMAI
    assert says in refused(put(tmp_path, SIMAI.replace(old, new, 1), "topo"))


@pytest.mark.parametrize(("old", "new", "says"), [
    ("Ring,", "Mesh,", "topology.0: got 'Mesh'; allowed: 'Ring', 'FullyConnected' or 'Switch'"),
    ("2, 3, 4", "2, 3", "npus_count: got 2 entries; allowed: 3, as of topology"),
    ("2, 3, 4", "2, 1, 4", "npus_count.1: got 1; allowed: at least 2"),
    ("2, 3, 4", "2000, 3000, 4", "npus_count: got 24000000 NPUs; allowed: at most 500000"),
    ("200.0", "0", "bandwidth.0: got 0; allowed: more than 0"),
    ("50.0, 500.0", "-1, 500.0", "latency.0: got -1; allowed: at least 0"),
    ("latency:", "delay:", "latency: missing"),
])
def test_astra(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in ASTRA
    path = put(tmp_path, ASTRA.replace(old, new), "net.yml")
    assert says in refused(path, device="h100-sxm")


def test_astra_names_no_device(tmp_path: Path) -> None:
    assert "device: missing; needed: the type of its NPUs" in refused(
        put(tmp_path, ASTRA, "net.yml"))


def test_graphs_of_clusters_that_are_too_large() -> None:
    from nest.inputs import load_cluster

    with pytest.raises(InputError, match="graph of dgx-h100: nodes: got more than 500000"):
        graph_of(load_cluster("dgx-h100", devices=2**19))


def test_a_network_that_is_no_hierarchy_has_a_limit_of_devices():
    """A table of hops between all devices takes memory with their square."""
    with pytest.raises(LimitError, match=r"torus 64x64x32: got 131072 devices in a network that is "
                       r"no hierarchy, .*; allowed: at most 16384, or a network with levels"):
        load_network("torus:dims=64x64x32")
