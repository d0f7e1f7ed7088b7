"""Networks as graphs wherever a cluster is asked for: files, generators, failures, ranks."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from pathlib import Path

import network_files
import networkx as nx
import pytest
from command_line import CLUSTER, Files, run
from descriptions import changed, put

import nest
from nest.inputs import Cluster, load_device
from nest.network import Topology, graph_of, parse_generator
from nest.network.readers.format import topology_from

SOURCE = Path(__file__).parents[2] / "src"
LEAVES = "spine-leaf:leaves=2,per_leaf=4,spines=2"

# Two nodes of two GPUs each behind one leaf; the GPUs are numbered across the nodes.
CABLES = [("a", "node0"), ("b", "node1"), ("c", "node0"), ("d", "node1"),
          ("node0", "leaf"), ("node1", "leaf")]


def graph() -> nx.Graph:
    found = nx.Graph()
    for name in "abcd":
        found.add_node(name, kind="device", device="h100-sxm")
    for name in ("node0", "node1", "leaf"):
        found.add_node(name, kind="switch")
    for one, other in CABLES:
        found.add_edge(one, other, bandwidth="100 GB/s", latency="2 us")
    return found


def nest_file() -> dict:
    return {
        "name": "two nodes", "device": "h100-sxm",
        "nodes": [{"name": name, "kind": "device" if len(name) == 1 else "switch"}
                  for name in graph()],
        "links": [{"source": one, "target": other, "bandwidth": "100 GB/s", "latency": "2 us"}
                  for one, other in CABLES],
    }


SIMAI = """\
7 2 2 1 8 H100
4 5 6
0 4 800Gbps 0.001ms 0
2 4 800Gbps 0.001ms 0
1 5 800Gbps 0.001ms 0
3 5 800Gbps 0.001ms 0
0 6 400Gbps 0.002ms 0
1 6 400Gbps 0.002ms 0
2 6 400Gbps 0.002ms 0
3 6 400Gbps 0.002ms 0
"""
ASTRA = {"topology": ["Switch"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}

# By hand: (size, bytes/s of a device, seconds) of each level, and the device order.
# A link of 100 GB/s out of a node of two devices is 50 GB/s each; latencies add up along a way.
TWO_NODES = [(2, 100e9, 4e-6), (2, 50e9, 8e-6)], [0, 2, 1, 3], ["a", "c", "b", "d"]
# NVLinks of 18 x 20.6 GB/s; in the file 2 + 2 GPUs hang from two sockets, but all from one switch.
FORMATS = {
    "nest.yaml": TWO_NODES,
    "nest.json": TWO_NODES,
    "net.graphml": TWO_NODES,
    "node-link.json": TWO_NODES,
    "topo.xml": ([(4, 18 * 20.6e9, 3.4e-6)], None, None),
    "simai.txt": ([(2, 100e9, 2e-6), (2, 50e9, 4e-6)], [0, 2, 1, 3],
                  ["gpu0", "gpu2", "gpu1", "gpu3"]),
    "astra.yaml": ([(4, 50 * 2**30, 1e-6)], None, ["npu0", "npu1", "npu2", "npu3"]),
}


def written(folder: Path, name: str) -> str:
    """A file of one of ``FORMATS``."""
    path = folder / name
    if name == "net.graphml":
        nx.write_graphml(graph(), path)
        return str(path)
    data: dict[str, object] = {
        "nest.yaml": nest_file(), "nest.json": nest_file(),
        "node-link.json": nx.node_link_data(graph(), edges="edges"), "topo.xml": network_files.NCCL,
        "simai.txt": SIMAI, "astra.yaml": ASTRA}
    return str(put(folder, data[name], name))


def figures(cluster: Cluster) -> list[tuple[int, float, float]]:
    rates = zip(cluster.levels, cluster.resolved_bandwidth, strict=True)
    return [(level.size, rate, pytest.approx(level.latency, rel=1e-12)) for level, rate in rates]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def job(files: Files) -> list[str]:
    return ["--global-batch", "48", "--seq-len", "128"]


def evaluated(capsys, *words: str) -> dict:
    return json.loads(run(capsys, "evaluate", *words, "--json")[0])


# ---------------------------------------------------------------- formats and generators


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_a_cluster(files, job, capsys, name):
    path = written(files.folder, name)
    words = ["--device", "h100-sxm"] if name == "astra.yaml" else []
    plan = evaluated(capsys, files.model, path, *job, "--tp", "2", *words)
    cluster = nest.Cluster.parse(plan["inputs"]["cluster"])
    levels, order, names = FORMATS[name]
    assert figures(cluster) == [(size, pytest.approx(rate, rel=1e-12), delay)
                                for size, rate, delay in levels]
    assert cluster.order == (None if order is None else tuple(order))
    assert len(cluster.names) == 4
    assert names is None or cluster.names == tuple(names)
    assert cluster.device.name == "h100-sxm"
    assert cluster == nest.load_network(Path(path), device="h100-sxm" if words else None)


def test_a_generator_is_a_cluster(files, job, capsys):
    plan = evaluated(capsys, files.model, f"{LEAVES},device=a100-sxm-80gb,bandwidth=200 Gb/s", *job)
    cluster = nest.Cluster.parse(plan["inputs"]["cluster"])
    # a leaf's 2 spine links of 4 x 25 / 2 GB/s for 4 devices
    assert figures(cluster) == [(4, 25e9, 8e-6), (2, 25e9, 10e-6)]
    assert (cluster.device.name, cluster.order) == ("a100-sxm-80gb", None)
    assert cluster.names == tuple(f"gpu{n}" for n in range(8))


@pytest.mark.kernels(uncompiled=True)
def test_plan_takes_a_graph(files, job, capsys):
    bounds = ["--cp", "1", "--recompute", "none", "--zero", "0"]
    changes = ["--without", "spine0", "--degrade", "spine1=0.5", "--device", "h200-sxm"]
    out, _ = run(capsys, "plan", files.model, LEAVES, *job, *bounds, *changes, "--json")
    cluster = nest.load_network(LEAVES, without="spine0", degrade="spine1=0.5", device="h200-sxm")
    found = nest.plan(nest.load_model(files.model), cluster,
                      nest.Job(global_batch=48, seq_len=128),
                      nest.SearchSpace(cp=1, recompute="none", zero=0))
    plan = json.loads(out)
    assert plan["optimal"]
    assert plan["step_time_s"] == found.step_time_s
    assert plan["inputs"]["cluster"] == cluster.as_dict()
    # of a leaf's 2 links of 4 x 50 / 2 GB/s one is left, at half: 50 GB/s for 4 devices
    assert cluster.resolved_bandwidth == (50e9, 12.5e9)


def test_a_file_with_levels_stays_a_cluster(files, job, capsys):
    plan = evaluated(capsys, *files.words)
    assert plan["inputs"]["cluster"]["names"] is None
    assert nest.load_network(files.cluster, devices=16) == nest.load_cluster(files.cluster, 16)
    assert nest.load_network("DGX-H100") == nest.load_cluster("dgx-h100")
    both = str(put(files.folder, {**CLUSTER, "nodes": []}, "both.yaml"))
    _, err = run(capsys, "evaluate", files.model, both, *job, code=2)
    assert "nodes: unknown field" in err


def test_a_device_is_given_or_replaced(files, job, capsys):
    nameless = changed(nest_file(), "device", ...)
    path = str(put(files.folder, nameless, "nameless.yaml"))
    _, err = run(capsys, "evaluate", files.model, path, *job, code=2)
    assert "nodes.0" in err and "missing" in err
    unnamed = graph()
    for node in "abcd":
        del unnamed.nodes[node]["device"]
    nx.write_graphml(unnamed, files.path("unnamed.graphml"))
    named = written(files.folder, "net.graphml")
    for given in (path, files.path("unnamed.graphml"), named, LEAVES):
        plan = evaluated(capsys, files.model, given, *job, "--device", "b200-sxm")
        assert plan["inputs"]["cluster"]["device"]["name"] == "b200-sxm"
    nodes = [{**node, "device": "b200-sxm"} if node["name"] == "a" else node
             for node in nest_file()["nodes"]]
    mixed = str(put(files.folder, {**nest_file(), "nodes": nodes}, "mixed.yaml"))
    _, err = run(capsys, "evaluate", files.model, mixed, *job, code=2)
    assert "are of several types in a replica, or of other types in another one" in err
    assert evaluated(capsys, files.model, mixed, *job, "--device", "h100-sxm")["feasible"]


# ---------------------------------------------------------------- failed and slow parts


def test_a_leaf_is_lost(files, job, capsys):
    three = "spine-leaf:leaves=3,per_leaf=4,spines=2"
    words = ["--without", "leaf1", "--without", "gpu4..5,gpu6..7"]
    plan = evaluated(capsys, files.model, three, *job, *words)
    cluster = nest.Cluster.parse(plan["inputs"]["cluster"])
    assert figures(cluster) == [(4, 50e9, 8e-6), (2, 50e9, 10e-6)]
    assert cluster.order == (0, 1, 2, 3, 8, 9, 10, 11)
    assert cluster.names == tuple(f"gpu{n}" for n in cluster.order)
    assert cluster.name == "3 leaves of 4 without leaf1,gpu4..5,gpu6..7"
    assert cluster == nest.load_network(
        parse_generator(three), without=["leaf1", "gpu4..5", "gpu6..7"])


def test_the_last_devices_lost_leave_the_numbers():
    cluster = nest.load_network("spine-leaf:leaves=3,per_leaf=4", without="gpu8..11")
    assert (cluster.size, cluster.order) == (8, None)


def test_a_spine_degraded_and_one_lost(files, job, capsys):
    # 4 spine links of 50 GB/s for 4 devices; one is gone, the others carry half: 18.75 GB/s each
    words = ["--without", "spine0", "--degrade", "spine1=0.5", "--degrade", "spine2..3=0.5"]
    plan = evaluated(capsys, files.model, "spine-leaf:leaves=2,per_leaf=4", *job, *words)
    cluster = nest.Cluster.parse(plan["inputs"]["cluster"])
    assert figures(cluster) == [(4, 50e9, 8e-6), (2, 18.75e9, 10e-6)]
    assert cluster.order is None
    assert cluster.name.endswith("without spine0 degraded by spine1=0.5,spine2..3=0.5")


def test_slow_devices():
    cluster = nest.load_network(LEAVES, degrade="gpu0..7=0.5", device="a100-sxm-80gb")
    whole = load_device("a100-sxm-80gb")
    assert cluster.device.peak_flops["bf16"] == whole.peak_flops["bf16"] / 2


def test_parts_of_a_cluster_with_levels(files, job, capsys):
    words = ["dgx-h100", "--devices", "32", "--device", "h200-sxm", "--without", "nvlink1"]
    plan = evaluated(capsys, files.model, *words, *job)
    cluster = nest.Cluster.parse(plan["inputs"]["cluster"])
    whole = nest.load_cluster("dgx-h100", devices=24)
    assert [level.size for level in cluster.levels] == [level.size for level in whole.levels]
    assert cluster.resolved_bandwidth == pytest.approx(whole.resolved_bandwidth, rel=1e-12)
    assert cluster.order == (*range(8), *range(16, 32))
    assert cluster.names[8] == "nvlink2/device0"
    assert cluster.device.name == "h200-sxm"
    again = nest.load_network(cluster, without="nvlink2/device0..7")
    assert again.order == (*range(8), *range(24, 32))
    assert again.names == cluster.names[:8] + cluster.names[16:]


# ---------------------------------------------------------------- the same as with levels


def as_file(folder: Path, network: Topology, seed: int) -> str:
    """A NEST file of a network with its nodes and links in random order."""
    draw = random.Random(seed)
    nodes = [{"name": name, "kind": "device"} if network.type_V[number] >= 0 else
             {"name": name, "kind": "switch", "base_time": float(network.base_time_V[number]),
              "ramp": float(network.ramp_V[number]),
              "in_network_reduction": bool(network.reduces_V[number])}
             for number, name in enumerate(network.nodes)]
    links = [{"source": network.nodes[network.source_E[link]],
              "target": network.nodes[network.target_E[link]],
              "bandwidth": float(network.bandwidth_E[link]),
              "latency": float(network.latency_E[link]), "one_way": True}
             for link in range(len(network.source_E))]
    for entries in (nodes, links):
        draw.shuffle(entries)
    device = network.types[0].model_dump(mode="json", exclude_unset=True)
    data = {"name": "shuffled", "device": device, "nodes": nodes, "links": links}
    return str(put(folder, data, "shuffled.json"))


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "devices", "model"), [
    ("dgx-h100", 64, "llama2-7b"),
    ("gb200-nvl72", 144, "mixtral-8x7b"),
    ("tpuv4-fat-tree", 64, "bert-large"),
    ("h100-spine-leaf", 128, "llama2-7b"),
])
def test_a_cluster_as_a_graph_gives_the_same_plan(name, devices, model, tmp_path):
    cluster = nest.load_cluster(name, devices=devices)
    network = graph_of(cluster)
    found = nest.load_network(as_file(tmp_path, network, devices))
    assert sorted(found.order) == list(range(devices))
    place = {name: number for number, name in enumerate(network.nodes)}
    numbers = [int(network.number_V[place[name]]) for name in found.names]
    for size in cluster.group_sizes:  # groups stay together
        for start in range(0, devices, size):
            assert len({number // size for number in numbers[start : start + size]}) == 1
    job = nest.Job(global_batch=288, seq_len=512)
    space = nest.SearchSpace(cp=1, recompute="none,full")
    there, here = (nest.plan(nest.load_model(model), each, job, space)
                   for each in (cluster, found))
    assert here.step_time_s == pytest.approx(there.step_time_s, rel=1e-6)
    assert here.configuration == there.configuration
    assert here.optimal


# ---------------------------------------------------------------- plan files, ranks, reports

WAY = {"outer_dp": 2, "micro_batch": 2, "stride": 12, "stages": [
    {"layers": [0, 5], "devices": [0, 8], "tp": 2, "cp": 2, "dp_in": 2},
    {"layers": [5, 9], "devices": [8, 10], "tp": 2}]}


@pytest.fixture
def shuffled(files) -> str:
    """Six nodes of four devices, with devices in any order."""
    cluster = changed(
        json.loads(nest.load_cluster(files.cluster, 24).model_dump_json(exclude_unset=True)),
        "name", "six")
    return as_file(files.folder, graph_of(nest.load_cluster(cluster)), 5)


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_ranks_say_which_device_does_what(files, job, shuffled, capsys):
    way = str(put(files.folder, WAY, "way.yaml"))
    target, ranks = files.path("plan.json"), files.path("ranks.csv")
    run(capsys, "evaluate", files.model, shuffled, *job, "--configuration", way, "-o", target,
        "--ranks", ranks)
    cluster = nest.load_network(shuffled)
    found = rows(ranks)
    assert list(found[0]) == ["rank", "device", "name", "replica", "stage", "tp", "cp", "dp_in",
                              "dp", "ep", "etp", "expert_dp"]
    assert [int(row["rank"]) for row in found] == list(range(20))
    # 24 devices in two super-pipelines of 10, 12 apart: 10, 11, 22 and 23 do nothing
    used = [*range(10), *range(12, 22)]
    assert [row["name"] for row in found] == [cluster.names[place] for place in used]
    assert [int(row["device"]) for row in found] == [cluster.order[place] for place in used]
    # device order in a block: tp fastest, then cp, then dp_in
    expected = [(0, tp, cp, dp) for dp in (0, 1) for cp in (0, 1) for tp in (0, 1)]
    expected += [(1, tp, 0, 0) for tp in (0, 1)]
    assert [tuple(int(row[name]) for name in ("replica", "stage", "tp", "cp", "dp_in"))
            for row in found] == [(replica, *each) for replica in (0, 1) for each in expected]
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in found:
        key = tuple(row[name] for name in ("replica", "stage", "cp", "dp_in"))
        groups.setdefault(key, []).append(cluster.names.index(row["name"]))
    for places in groups.values():
        assert places == list(range(places[0], places[0] + 2))
    again = files.path("again.csv")
    run(capsys, "evaluate", target, "--ranks", again, "-q")
    assert Path(again).read_text() == Path(ranks).read_text()


@pytest.mark.kernels(uncompiled=True)
def test_ranks_of_a_cluster_with_levels(files, capsys):
    ranks = files.path("ranks.csv")
    run(capsys, "plan", *files.words, "--tp", "2", "--pp", "1", "--ranks", ranks, "-q")
    found = rows(ranks)
    assert [row["device"] for row in found] == [str(n) for n in range(8)]
    assert {row["name"] for row in found} == {""}
    assert [row["tp"] for row in found] == ["0", "1"] * 4


def test_no_ranks_without_a_plan_that_fits(files, capsys):
    ranks = files.path("ranks.csv")
    _, err = run(capsys, "evaluate", *files.infeasible(), "--ranks", ranks, code=3)
    assert f"{ranks} is not written" in err
    assert not Path(ranks).exists()
    _, err = run(capsys, "evaluate", *files.words, "--ranks", files.path("no/ranks.csv"), code=2)
    assert "cannot be written" in err


def test_the_order_survives_the_plan_file(files, job, shuffled, capsys):
    target = files.path("plan.json")
    run(capsys, "evaluate", files.model, shuffled, *job, "--tp", "2", "-o", target, "-q")
    cluster = json.loads(Path(target).read_text())["inputs"]["cluster"]
    assert cluster == nest.load_network(shuffled).as_dict()
    assert sorted(cluster["order"]) == list(range(24))
    again = evaluated(capsys, target)
    assert again == json.loads(Path(target).read_text())
    _, err = run(capsys, "evaluate", target, "--without", "leaf0", code=2)
    assert "--without" in err and "a plan file alone" in err


def test_the_report_says_an_order_only_where_there_is_one(files, job, shuffled, capsys):
    out, _ = run(capsys, "evaluate", files.model, written(files.folder, "nest.yaml"), *job)
    text = " ".join(out.split())
    assert "Devices in network order: 0, 2, 1, 3 (--ranks FILE" in text
    out, _ = run(capsys, "evaluate", files.model, "spine-leaf:leaves=3,per_leaf=4", *job,
                 "--without", "gpu4..7,leaf1")
    assert "network order: 0..3, 8..11 (" in " ".join(out.split())
    out, _ = run(capsys, "evaluate", files.model, shuffled, *job)
    last = nest.load_network(shuffled).order[-1]
    assert f", ... {last} (" in " ".join(out.split())
    for given in (LEAVES, files.cluster):
        out, _ = run(capsys, "evaluate", files.model, given, *job)
        assert "in the order of" not in out


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(("given", "words", "message"), [
    (LEAVES, ["--devices", "8"], "devices: got 8 for a graph of 8 devices; allowed: none"),
    ("spine-lef:leaves=2,per_leaf=4", [], "did you mean spine-leaf?"),
    ("spine-leaf:leaves=2", [], "per_leaf: missing"),
    ("dgx-h10", [], "close: dgx-h100"),
    ("cluster-of-mine", [], "or a network to generate (fat-tree, "),
    ("missing.graphml", [], "missing.graphml: no such file"),
    (LEAVES, ["--without", "gpu9"], "without: got 'gpu9'"),
    (LEAVES, ["--without", ""], "without: got ''"),
    (LEAVES, ["--without", "leaf0"], "disconnected"),
    (LEAVES, ["--degrade", "leaf0"], "allowed: PART=FACTOR"),
    ("dgx-h100", ["--without", "node3"], "such as nvlink0/device0"),
    (LEAVES, ["--device", "h10"], "device: got 'h10'"),
])
def test_bad_networks_end_in_one_message(files, job, capsys, given, words, message):
    _, err = run(capsys, "evaluate", files.model, given, *job, *words, code=2)
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.kernels
@pytest.mark.parametrize(("given", "words", "groups"), [
    ("torus:dims=4x4", [], [4, 4]),
    ("rail-optimized:nodes=4,node=4", [], [4, 4]),
    ("data-centres:centres=3,fabric=[spine-leaf:leaves=2,per_leaf=4]", [], [4, 2, 3]),
    (LEAVES, ["--without", "gpu1"], [7]),
    ("spine-leaf:leaves=2,per_leaf=4,node=2", ["--without", "node1/gpu1"], [7]),
    ("spine-leaf:leaves=3,per_leaf=2", ["--without", "link:leaf0-spine0"], [2, 3]),
    (LEAVES, ["--degrade", "link:gpu5-leaf1=0.5"], [4, 2]),
    ("fat-tree:k=4,bandwidth=8 Gb/s,node=2,node_bandwidth=4 Gb/s", [], [2, 2, 4]),
])
def test_other_graphs_are_planned_by_their_links(files, job, capsys, given, words, groups):
    saved = files.path("plan.json")
    words = [*words, "--beyond-stack"]
    out, _ = run(capsys, "plan", files.model, given, *job, *words, "--json", "-o", saved)
    plan = json.loads(out)
    cluster = plan["inputs"]["cluster"]
    assert [level["size"] for level in cluster["levels"]] == groups
    assert cluster["links"]["bandwidth"] and plan["optimal"]
    again = evaluated(capsys, saved)
    assert again["step_time_s"] == plan["step_time_s"]
    kept, _ = run(capsys, "plan", files.model, given, *job, *words, "--json", "--keep-order")
    assert json.loads(kept)["step_time_s"] >= plan["step_time_s"]


@pytest.mark.kernels(uncompiled=True)
def test_a_device_that_is_slow_is_another_type(files, job, capsys):
    out, _ = run(capsys, "plan", files.model, LEAVES, *job, "--degrade", "gpu5=0.5", "--json",
                 "--beyond-stack")
    plan = json.loads(out)
    cluster = plan["inputs"]["cluster"]
    assert [kind["name"] for kind in cluster["types"]] == ["h100-sxm x 0.5"]
    slow = cluster["kinds"].index(1)
    assert (sum(cluster["kinds"]), cluster["names"][slow]) == (1, "gpu5")
    for stage in plan["stages"]:
        assert len({cluster["kinds"][n] for n in range(*stage["devices"])}) == 1


@pytest.mark.parametrize(("field", "value", "message"), [
    ("order", [0, 1, 2], "order: got 3 entries; allowed: 8, as many as devices"),
    ("order", [0, 1, 2, 3, 4, 5, 6, 6], "order: got an entry twice"),
    ("order", [0, 1, 2, 3, 4, 5, 6, -1], "order.7: got -1"),
    ("names", ["a"] * 8, "names: got an entry twice"),
    ("names", ["a", "b"], "names: got 2 entries; allowed: 8"),
])
def test_order_and_names_are_those_of_the_devices(files, job, capsys, field, value, message):
    data = {**nest.load_cluster(files.cluster).as_dict(), field: value}
    _, err = run(capsys, "evaluate", files.model, str(put(files.folder, data, "c.json")), *job,
                 code=2)
    assert message in err


def test_another_number_of_devices_has_no_order():
    cluster = nest.load_network(topology_from(nest_file(), "two.yaml"))
    assert cluster.order is not None
    fewer = cluster.with_devices(2)
    assert (fewer.size, fewer.order, fewer.names) == (2, None, None)
    assert nest.load_cluster(cluster.as_dict(), devices=8).names is None
    template = {**CLUSTER, "order": [3, 2, 1, 0, 4, 5, 6, 7]}  # the outermost size is n
    assert nest.load_cluster(template).order == (3, 2, 1, 0, 4, 5, 6, 7)
    assert nest.load_cluster(template, devices=16).order is None


def test_a_cluster_with_levels_loads_nothing_of_graphs(files):
    code = (f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import nest; "
            f"nest.load_network('dgx-h100', devices=16); nest.load_network({files.cluster!r}); "
            "print(*sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"scipy", "networkx", "nest.network.topology"} & set(done.stdout.split())


def test_a_model_in_the_place_of_the_cluster_is_told(files, job, capsys):
    _, err = run(capsys, "evaluate", files.model, files.model, *job, code=2)
    assert "got a model description" in err
