"""Operator graphs in JSON, node-link and GraphML files, and what refuses bad ones."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from descriptions import message

import nest
from nest.model.capture import from_torch, load_graph

OPERATORS = [
    {"name": "look", "type": "embedding", "bytes": 10.0, "parameters": 40, "output_bytes": 8.0},
    *({"name": f"up{n}", "type": "linear", "flop": 100.0, "bytes": 20.0, "parameters": 6,
       "output_bytes": 8.0, "saved_bytes": 5.0, "block": f"layers.{n}", "shard": "column",
       "inputs": ["look" if n == 0 else f"up{n - 1}"]} for n in range(3)),
    {"name": "head", "type": "linear", "flop": 50.0, "bytes": 5.0, "parameters": 40,
     "output_bytes": 100.0, "inputs": ["up2"]},
]
GRAPH = {"name": "small", "seq_len": 4, "operators": OPERATORS}


def network() -> Any:
    graph = nx.DiGraph(name="small", seq_len=4)
    for op in OPERATORS[::-1]:  # any order of nodes
        fields = {key: value for key, value in op.items() if key not in ("name", "inputs")}
        graph.add_node(op["name"], **fields)
    graph.add_edges_from(
        (source, op["name"]) for op in OPERATORS for source in op.get("inputs", ()))
    return graph


def test_totals_and_blocks_by_hand() -> None:
    graph = load_graph(GRAPH)
    assert (graph.flop, graph.moved, graph.parameters()) == (350.0, 75.0, 98)
    assert [block.name for block in graph.blocks] == [
        "part 1", "layers.0", "layers.1", "layers.2", "part 2"]
    assert graph.repeated == {"layers.0": 3}


def test_the_same_graph_in_all_forms(tmp_path: Path) -> None:
    plain = load_graph(GRAPH)
    (tmp_path / "a.json").write_text(json.dumps(GRAPH))
    (tmp_path / "b.json").write_text(json.dumps(nx.node_link_data(network(), edges="links")))
    (tmp_path / "c.json").write_text(json.dumps(nx.node_link_data(network(), edges="edges")))
    nx.write_graphml(network(), tmp_path / "small.graphml")
    for name in ("a.json", "b.json", "c.json"):
        assert load_graph(tmp_path / name) == plain
    read = load_graph(tmp_path / "small.graphml")
    assert (read.flop, read.parameters(), read.repeated) == (350.0, 98, {"layers.0": 3})
    assert [op.name for op in read.operators] == [op.name for op in plain.operators]
    assert read.seq_len == 4


def test_a_graph_is_priced_to_be_planned() -> None:
    device = nest.load_cluster("dgx-h100").device.replace(
        memory_bandwidth=1e6, memory_efficiency=0.5, launch_overhead=1e-3,
        peak_flops={"bf16": 50e6},
        gemm={"default": {"peak_fraction": 0.5, "m_half": 0, "n_half": 0, "k_half": 0}})
    heavy = [{**op, "flop": 1e3 * op.get("flop", 0.0)} for op in OPERATORS]
    profile = load_graph({**GRAPH, "operators": heavy}).profile(device)
    # 10 bytes at 0.5 MB/s, then 100 kFLOP and 50 kFLOP at 25 MFLOP/s, and 1 ms of launch each.
    ahead = [1e-3 + 2e-5, *3 * [5e-3], 3e-3]
    assert [layer.tp[1].forward for layer in profile.layers] == pytest.approx(ahead)
    assert [layer.tp[1].backward for layer in profile.layers] == pytest.approx(
        [2 * seconds for seconds in ahead])
    assert [layer.output_bytes for layer in profile.layers] == [8.0, 8.0, 8.0, 8.0, 100.0]
    assert profile.layers[1].tp[1].parameter_bytes == 12 and profile.degrees == (1,)
    assert profile.layers[1].tp[1].activation_bytes == 5.0


@pytest.mark.kernels
def test_a_plan_of_a_graph() -> None:
    cluster = nest.load_cluster("dgx-h100", devices=8)
    profile = load_graph(GRAPH).profile(cluster.device)
    plan = nest.plan(profile, cluster, nest.Job(global_batch=8, seq_len=4))
    assert plan.feasible


@pytest.mark.parametrize(("data", "expected"), [
    ({**GRAPH, "operators": []}, "operators: got []; allowed: at least 1 entries"),
    ({**GRAPH, "operators": [{**OPERATORS[0], "flop": float("nan")}]}, "operators.0.flop: got nan"),
    ({**GRAPH, "operators": [{**OPERATORS[0], "flop": 1e300}]}, "flop: got 1e+300; allowed: at m"),
    ({**GRAPH, "operators": [OPERATORS[0]] * 2}, "operators.1.name: got 'look' again"),
    ({**GRAPH, "operators": OPERATORS[1:]}, "operators.0.inputs.0: got 'look'; allowed: an oper"),
    ({**GRAPH, "seq_len": 0}, "seq_len: got 0"),
    ({"directed": False, "nodes": [], "links": []}, "directed: got False; allowed: a directed"),
    ({"directed": True, "nodes": 3, "links": []}, "nodes: got 3; allowed: a list of mappings"),
    ({"directed": True, "nodes": [{"a": 1}], "links": []}, "nodes.0.id: missing"),
    ({"directed": True, "nodes": [{"id": 1}, {"id": 1}], "links": []}, "nodes.1.id: got '1' again"),
    ({"directed": True, "nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]},
     "links.0.target: got 2; allowed: the id of a node"),
    ({"directed": True, "graph": {"seq_len": 1}, "nodes": [{"id": 1}, {"id": 2}],
      "edges": [{"source": 1, "target": 2}, {"source": 2, "target": 1}]},
     "edges: got the cycle 1 -> 2; allowed: none"),
])
def test_a_bad_graph_says_where(data: dict[str, Any], expected: str) -> None:
    assert expected in message(load_graph, data)


def test_hostile_files_end_in_one_message(tmp_path: Path) -> None:
    class Boom:
        def __reduce__(self) -> Any:
            return (sys.exit, (9,))

    files = {
        "a.pkl": pickle.dumps(Boom()),
        "b.json": pickle.dumps(Boom()),
        "c.onnx": pickle.dumps(Boom()),
        "d.graphml": b'<!DOCTYPE x [<!ENTITY a "b">]><graphml><graph edgedefault="directed"/>'
                     b"</graphml>",
        "e.json": b"[" * 100_000,
        "f.json": b'{"name": "x", "seq_len": 1' + b"0" * 5000 + b', "operators": []}',
        "g.yaml": b"a: &a [1]\nb: *a\n",
        "h.graphml": b'<graphml><graph edgedefault="undirected"><node id="a"/></graph></graphml>',
        "i.graphml": b'<graphml><graph edgedefault="directed"><node id="a"/>'
                     b'<edge source="a" target="b"/></graph></graphml>',
        "j.json": b'{"name": "x", "seq_len": NaN, "operators": []}',
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        text = message(load_graph, tmp_path / name)
        assert name in text and len(text.splitlines()) <= 2, text


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "torch is not installed; needed: pip install" in message(from_torch, None, ())
    assert "onnx is not installed; needed: pip install" in message(load_graph, tmp_path / "a.onnx")
