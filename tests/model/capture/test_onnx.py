"""ONNX models; runs where onnx is installed (`.ci/models`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from descriptions import message

from nest.model.capture import load_graph

onnx = pytest.importorskip("onnx")


def build(path: Path, length: object = 4) -> Path:
    helper, tensor = onnx.helper, onnx.TensorProto
    nodes, last = [], "x"
    weights = []
    for n in range(2):
        for part, (depth, width) in (("up", (8, 32)), ("down", (32, 8))):
            name = f"/layers.{n}/{part}"
            weights.append(helper.make_tensor(f"{name}.w", tensor.FLOAT, (depth, width),
                                              b"\0" * depth * width * 4, raw=True))
            nodes.append(helper.make_node("MatMul", [last, f"{name}.w"], [f"{name}.y"], name=name))
            last = f"{name}.y"
        nodes.append(helper.make_node("Relu", [last], [f"r{n}"], name=f"/layers.{n}/relu"))
        last = f"r{n}"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", tensor.FLOAT, (1, length, 8))],
        [helper.make_tensor_value_info(last, tensor.FLOAT, (1, length, 8))], weights)
    onnx.save(helper.make_model(graph), path)
    return path


def test_an_onnx_model_by_hand(tmp_path: Path) -> None:
    graph = load_graph(build(tmp_path / "small.onnx"))
    assert graph.flop == 2 * 2 * (2 * 4 * 8 * 32)
    assert graph.parameters() == 2 * 2 * 8 * 32
    assert (graph.seq_len, graph.bytes_per_parameter, graph.name) == (4, 4, "small")
    assert [block.name for block in graph.blocks] == ["layers.0", "layers.1"]
    assert graph.repeated == {"layers.0": 2}
    first = graph.operators[0]
    assert first.bytes == 4 * (4 * 8 + 8 * 32 + 4 * 32) and first.output_bytes == 4 * 4 * 32


def test_bad_onnx_files(tmp_path: Path) -> None:
    text = message(load_graph, build(tmp_path / "a.onnx", "tokens"))
    assert "the shape of 'x' is not known; allowed: a model with fixed sizes" in text
    (tmp_path / "b.onnx").write_bytes(b"\x80\x04nothing")
    assert "b.onnx: is not an ONNX model" in message(load_graph, tmp_path / "b.onnx")
    assert "no such file" in message(load_graph, tmp_path / "c.onnx").lower()
