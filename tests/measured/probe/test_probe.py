"""Descriptions of a probed cluster: figures come back, what was not measured stays, files are used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from descriptions import put
from network_files import NCCL
from probes import BUFFERS, CONTEXT, GROUPED, LAYER, LINK, TRUE, document, rows, written

import nest
from nest.cli.main import main
from nest.costs.host import LINK_EFFICIENCY
from nest.errors import InputError
from nest.inputs import load_device, load_stack
from nest.measured.calibration.collectives import MeasuredCollective, misfits
from nest.measured.probe.described import describe
from nest.measured.probe.device import SPEEDIEST
from nest.measured.probe.network import SHARE, _reached
from nest.measured.probe.sources import read_evidence

TREE = ("SwitchName=leaf0 Nodes=node[01-32]\nSwitchName=leaf1 Nodes=node[33-64]\n"
        "SwitchName=spine Switches=leaf[0-1]\n")
NVSWITCH = "\n".join(["\t".join(["", *(f"GPU{n}" for n in range(8)), "CPU Affinity"]), *(
    f"GPU{n}\t" + "\t".join("X" if n == m else "NV18" for m in range(8)) + "\t0-51"
    for n in range(8))])


def probed(folder: Path, *words: str) -> dict[str, Any]:
    """Files that `nest probe` writes, by name."""
    assert main(["probe", *words, "-o", str(folder / "mine")]) == 0
    return {path.stem: yaml.safe_load(path.read_text("utf-8"))
            for path in (folder / "mine").iterdir()}


def test_figures_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fit finds what the measurements were made of."""
    files = probed(tmp_path, written(tmp_path, "node01", "node02"))
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    device, true = load_device(str(tmp_path / "mine" / "device.yaml")), load_device("h100-sxm")
    for name, value in TRUE.items():
        assert getattr(device, name) == pytest.approx(value, rel=0.02), name
    for name, value in GROUPED.items():
        assert getattr(device.grouped["default"], name) == pytest.approx(value, rel=0.03), name
    for name in ("peak_fraction", "m_half", "k_half"):
        assert getattr(device.gemm["default"], name) == pytest.approx(
            getattr(true.gemm["default"], name), rel=0.05), name
    assert device.host_link == pytest.approx(LINK / LINK_EFFICIENCY, rel=0.01)
    assert device.memory_reserved == CONTEXT and device.host_memory == 252 * 2**30
    assert files["device"]["base"] == "h100-sxm" and "memory" not in files["device"]
    assert "taken for h100-sxm" in shown
    nvlink, network = nest.load_cluster(str(tmp_path / "mine" / "cluster.yaml")).levels
    known = nest.load_cluster("dgx-h100").levels
    assert nvlink.efficiency == pytest.approx(known[0].efficiency, rel=0.02)
    assert nvlink.latency == pytest.approx(known[0].latency, rel=0.1)
    assert network.bandwidth and network.bandwidth * network.efficiency == pytest.approx(
        50e9 * known[1].efficiency, rel=0.03)
    # Of a device, though groups of 16 ranks share the rate of a node.
    assert network.bandwidth < 1.1 * 50e9 * known[1].efficiency / SHARE
    assert network.latency == pytest.approx(known[1].latency, rel=0.1)
    assert "over 0.6 (chosen" in network.source and "nest probe" in network.source
    stack = load_stack(str(tmp_path / "mine" / "stack.yaml"))
    assert stack.layer_overhead == pytest.approx(LAYER) and stack.workspace == BUFFERS
    assert stack.overlap_slowdown == pytest.approx(0.25) and stack.layer_gap == 0.0
    assert "assumed, as fsdp: overlap_grad_reduce" in stack.source


def test_spread_and_what_was_not_measured_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [row for row in rows(1) if row["part"] in ("products", "bytes")]
    lost = {"part": "attention", "dtype": "bf16", "way": "forward", "why": "no kernel image"}
    path = written(tmp_path, "node01", rows=[*kept, lost], left={"host": 2}, buffer_bytes=0)
    files = probed(tmp_path, path)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Not measured: attention forward bf16: no kernel image" in shown
    assert "No time was left for 2 of host" in shown
    assert "no collectives were measured: the network's figures are assumed" in shown
    known = load_device("h100-sxm")
    device = load_device(str(tmp_path / "mine" / "device.yaml"))
    assert device.attention_fraction == known.attention_fraction
    # Short products tell it, where no row of small kernels does.
    assert device.launch_overhead == pytest.approx(TRUE["launch_overhead"], rel=0.02)
    assert "+- " in files["device"]["source"] and "assumed" in files["cluster"]["levels"][0][
        "source"]
    assert files["stack"]["source"].startswith("nothing: measured by nest probe; assumed, as fsdp")


def test_a_slow_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [{**row, "slowest": 11, "slower": 1.21} for row in rows(2)]
    probed(tmp_path, written(tmp_path, "node01", "node02", rows=slow))
    assert "Rank 11 on node02 is slower than the others: 21 %" in capsys.readouterr().out
    probed(tmp_path, written(tmp_path, "node01", "node02"))
    assert "is slower" not in capsys.readouterr().out


def test_unknown_hardware_has_rates_that_were_measured(tmp_path: Path) -> None:
    """An H100 PCIe is no h100-sxm: nominal rates are the fastest measured."""
    path = written(tmp_path, "a", device={**document("a")["device"], "name": "NVIDIA H100 PCIe"})
    files = probed(tmp_path, path)
    most = max(2 * row["m"] * row["n"] * row["k"] / row["seconds"] for row in rows(1)
               if row["part"] == "products")
    assert files["device"]["peak_flops"]["bf16"] == pytest.approx(most / SPEEDIEST, rel=0.01)
    assert "nominal rates: the fastest measured over" in files["device"]["source"]
    level = files["cluster"]["levels"][0]
    assert level["name"] == "node" and "the fastest measured" in level["source"]


def test_shapes_of_files_make_the_levels(tmp_path: Path) -> None:
    """The hosts of the whole cluster; measured figures are those of the levels that they cross."""
    tree, matrix = put(tmp_path, TREE, "topology.conf"), put(tmp_path, NVSWITCH, "topo.txt")
    files = probed(tmp_path, written(tmp_path, "node01", "node02"), str(tree), str(matrix))
    nvlink, leaf, spine = files["cluster"]["levels"]
    assert [nvlink["size"], leaf["size"], spine["size"]] == [8, 32, "n"]
    assert files["cluster"]["default_devices"] == 512 and "18 NVLinks" in nvlink["source"]
    assert "fitted" in leaf["source"] and "fitted" not in spine["source"]
    # Below different leaves nothing is measured of a leaf.
    files = probed(tmp_path, written(tmp_path, "node01", "node40"), str(tree))
    nvlink, leaf, spine = files["cluster"]["levels"]
    assert "fitted" not in leaf["source"] and "fitted" in spine["source"]
    assert nest.load_cluster(str(tmp_path / "mine" / "cluster.yaml")).size == 512


def test_a_leaf_that_no_group_ends_at_bounds_no_rate(tmp_path: Path) -> None:
    """The fit of hosts below different leaves has no level of leaves."""
    told = read_evidence([written(tmp_path, "node01", "node40"),
                          str(put(tmp_path, TREE, "topology.conf"))])
    found = describe(told)["cluster"]
    cluster = nest.Cluster.parse(found.data)
    reached, _ = _reached(cluster, told, made=True)
    assert [level.name for level in reached.levels] == ["nvlink", "spine"] and reached.size == 16
    assert reached.levels[1].bandwidth == cluster.nominal_bandwidth[2]


def test_a_network_of_processes_has_the_latency_that_it_takes(tmp_path: Path) -> None:
    """A thousand times that of NVLink: the prior is as wide as what was first seen."""
    level = {"name": "node", "size": 4, "bandwidth": 1e9, "latency": 3e-3}
    true = nest.Cluster.parse({"name": "c", "device": "h100-sxm", "levels": [level]})
    lines = [{"part": "collectives", "collective": "all_reduce", "n_ranks": 4, "n_nodes": 1,
              "message_bytes": size, "seconds": float(np.exp(misfits(true, [
                  MeasuredCollective("all_reduce", 4, 1, float(size), 1.0)])[0]))}
             for size in (2**14, 2**16, 2**18, 2**20, 2**22, 2**24)]
    kept = [row for row in rows(1) if row["part"] in ("products", "bytes")]
    files = probed(tmp_path, written(
        tmp_path, "a", hosts=["a"] * 4, rows=[*kept, *lines], device={
            "kind": "cpu", "name": "CPU with 1 thread a rank", "memory_bytes": 2**33}))
    found = nest.Cluster.parse(files["cluster"]).levels[0]
    assert found.latency == pytest.approx(3e-3, rel=0.1) and found.name == "node"
    assert found.bandwidth and found.bandwidth * found.efficiency == pytest.approx(1e9, rel=0.1)


def test_files_of_other_tools_stand_alone(tmp_path: Path) -> None:
    """Without the program: NCCL's file, nccl-tests, products, and a type of device."""
    xml = put(tmp_path, NCCL, "topo.xml")
    products = tmp_path / "gemm.csv"
    table = [row for row in rows(1) if row["part"] == "products"]
    products.write_text("dtype,m,n,k,latency_s\n" + "\n".join(
        f"bf16,{row['m']},{row['n']},{row['k']},{row['seconds']}" for row in table), "utf-8")
    collectives = tmp_path / "collectives.csv"
    lines = [f"{row['collective']},2,{row['message_bytes']},{1e6 * row['seconds']},1"
             for row in rows(1) if row["part"] == "collectives" and row["n_ranks"] == 2]
    collectives.write_text("collective,n_ranks,message_bytes,latency_us,n_nodes\n"
                           + "\n".join(lines), encoding="utf-8")
    files = probed(tmp_path, str(xml), str(products), str(collectives), "--device", "h100-sxm")
    assert set(files) == {"device", "cluster"}
    assert "products of gemm.csv" in files["device"]["source"]
    assert "collectives of gemm.csv, collectives.csv" in files["cluster"]["levels"][0]["source"]
    # Its levels may be those of the catalog, too.
    files = probed(tmp_path, str(collectives), "--cluster", "dgx-h100")
    assert [level["name"] for level in files["cluster"]["levels"]] == ["nvlink", "leaf", "spine"]


def test_a_stack_that_runs_speak_for_keeps_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = probed(tmp_path, written(tmp_path, "a"), "--stack", "torchtitan")
    assert files["stack"] == {"base": "torchtitan"}
    assert "measured runs speak for its figures" in capsys.readouterr().out


@pytest.mark.kernels(uncompiled=True)
def test_files_are_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probed(tmp_path, written(tmp_path, "node01"))
    words = ["plan", "llama2-7b", str(tmp_path / "mine" / "cluster.yaml"), "--stack",
             str(tmp_path / "mine" / "stack.yaml"), "--global-batch", "64", "--seq-len", "4096",
             "--pp", "1", "--tp", "1"]
    assert main(words) == 0
    assert "device h100-sxm (probed)" in " ".join(capsys.readouterr().out.split())


def test_the_program_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "probe.py"
    assert main(["probe", "--write", str(path)]) == 0
    text = path.read_text("utf-8")
    compile(text, "probe.py", "exec")
    assert "import nest" not in text and "from nest" not in text
    assert "torchrun --nnodes 2" in capsys.readouterr().out


BAD: list[tuple[Any, str]] = [
    ("", "is empty"), ("{", "malformed JSON"), ({"rows": []}, "has no config and results"),
    (document("a", schema="nest.probe/2"), "schema"), (document("a", rows=[]), "no measurement"),
    (document("a", hosts=[]), "hosts"), (document("a", device={"kind": "tpu"}), "device.kind"),
    (document("a", rows=[{"part": "products", "seconds": 1.0, "dtype": "bf16", "m": 4, "n": 4}]),
     "k: got none; needed: a value for products"),
    (document("a", rows=[{"part": "products", "seconds": -1.0}]), "seconds"),
    (document("a", rows=[{"part": "products", "seconds": float("nan")}]), "NaN"),
    (document("a", rows=[{"part": "magic"}]), "part"),
    (document("a", rows=[{"part": "bytes", "seconds": 1, "kernel": "c", "bytes": 1e30}]), "bytes"),
    (document("a", rows=[{"part": "bytes", "why": "x" * 5000}]), "why"),
    ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><system>&b;</system>',
     "a document type or an entity"),
    ("<system>", "malformed XML"), ("<system><cpu/></system>", "numaid"), ("<a/>", "the root 'a'"),
    ("<system>" * 80 + "</system>" * 80, "nested more than 64"),
    (TREE + "SwitchName=spine Nodes=x", "twice"), ("SwitchName=a Nodes=[", "ranges"),
    ('Ca\t1 "H-0000000000000001"\t\t# "a"\n[1](f) what', "allowed: a port"),
    (NVSWITCH.replace("NV18", "NV9999"), "got 'NV9999'"),
    ("dtype,m,n,k,latency_us\nbf16,1,2,3\n", "got 4 cells"),
    ("# all_reduce_perf\n#  size  time  algbw  busbw  #wrong\n 1024 x y z w\n", "time"),
    ("just text\n", "column collective is missing"), ("\u0001\u0002,\u0003\n1,2", "missing")]


@pytest.mark.parametrize(("content", "told"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_read_is_one_message(
    content: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.json" if isinstance(content, dict) else tmp_path / "given.txt"
    path.write_text(json.dumps(content) if isinstance(content, dict) else content, "utf-8")
    assert main(["probe", str(path), "--device", "h100-sxm"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("nest: error: ") and told in shown and "Traceback" not in shown
    assert "given" in shown and len(shown) < 2000


def test_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    matrix = str(put(tmp_path, NVSWITCH, "topo.txt"))
    with pytest.raises(InputError, match="needed: --device NAME"):
        describe(read_evidence([matrix]))
    tree = str(put(tmp_path, TREE, "topology.conf"))
    with pytest.raises(InputError, match="no file says how many devices a node has"):
        describe(read_evidence([tree]), device="h100-sxm")
    with pytest.raises(InputError, match="a second file of its kind"):
        read_evidence([tree, tree])
    small = str(put(tmp_path, "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n", "small.txt"))
    with pytest.raises(InputError, match="got 2 devices a node, and 8 in"):
        read_evidence([matrix, small])
    unknown = written(tmp_path, "a", rows=[row for row in rows(1) if row["part"] == "host"],
                      device={**document("a")["device"], "name": "Some GPU"})
    with pytest.raises(InputError, match="which the catalog lacks, without products"):
        describe(read_evidence([unknown]))
    for words in ([], ["--write", "probe.txt"], ["--write", "probe.py", matrix],
                  [matrix, "--ranks", "0"]):
        assert main(["probe", *words]) == 2
