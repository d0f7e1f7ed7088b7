"""An ONNX model as an operator graph (extra `onnx`; shapes by its own inference)."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.inputs.files import read_bytes
from nest.inputs.operator_graph import GraphOperator, OperatorGraph
from nest.units import shorten

LARGEST = 2**31  # bytes; protobuf has no larger messages
_FREE = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Shape", "Constant", "Slice",
         "Split", "Expand", "Flatten", "Cast", "Dropout", "ConstantOfShape")
_BYTES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2, 17: 1, 18: 1, 19: 1, 20: 1}
"""Bytes of an element by the type's number in onnx.proto (TensorProto.DataType)."""


def from_onnx(path: str | os.PathLike[str]) -> OperatorGraph:
    """Read an ONNX model; external weights are not opened, and no node is run.

    Raises
    ------
    InputError : onnx is not installed, the file is not an ONNX model, or a shape of a product is
        not known (the model has symbolic dimensions).
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    try:
        import onnx
        from onnx import shape_inference
    except ImportError:
        raise InputError(f"{where}: onnx is not installed; needed: pip install "
                         "'nest-planner[onnx]'") from None
    data = read_bytes(path, LARGEST)
    try:
        model = onnx.load_from_string(data)
        model = shape_inference.infer_shapes(model)
    except Exception as error:  # protobuf and onnx raise errors of many classes
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: is not an ONNX model ({reason})") from None
    if not model.graph.node:
        raise InputError(f"{where}: is not an ONNX model (it has no nodes)")
    return _graph(model.graph, where, Path(path).stem)


def _graph(graph: Any, where: str, name: str) -> OperatorGraph:
    shapes: dict[str, tuple[int, ...]] = {}
    element: dict[str, int] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        element[value.name] = _BYTES.get(tensor.elem_type, 4)
        if all(dims):
            shapes[value.name] = tuple(dims)
    weights = {item.name: int(math.prod(item.dims)) for item in graph.initializer}
    for item in graph.initializer:
        shapes[item.name] = tuple(item.dims)
        element[item.name] = _BYTES.get(item.data_type, 4)
    counted: set[str] = set()
    made: dict[str, str] = {}
    operators = []
    for number, node in enumerate(graph.node):
        title = node.name or f"{node.op_type}_{number}"
        if title in made.values():
            title = f"{title}_{number}"
        own = [x for x in node.input if x in weights and x not in counted]
        if node.op_type in _FREE:
            source = next((made[x] for x in node.input if x in made), None)
            if source is not None:
                made |= dict.fromkeys(node.output, source)
            continue
        counted.update(own)
        out = sum(_bytes(x, shapes, element) for x in node.output)
        moved = out + sum(_bytes(x, shapes, element) for x in node.input)
        flop = _flop(node, shapes, f"{where}: {title}")
        block = re.match(r"(.*?[./]\d+)(?:[./]|$)", title.lstrip("/"))
        operators.append(GraphOperator(
            name=title[-200:], type=node.op_type, flop=flop, bytes=moved, output_bytes=out,
            parameters=sum(weights[x] for x in own), saved_bytes=out if flop else 0.0,
            inputs=tuple(dict.fromkeys(made[x][-200:] for x in node.input if x in made)),
            block=block[1] if block else ""))
        made |= dict.fromkeys(node.output, title)
    first = next((shapes[x.name] for x in graph.input if x.name in shapes), (1, 1))
    widths = [element[name] for name in weights]
    return OperatorGraph(
        name=name[:200] or "onnx", seq_len=first[1] if len(first) > 1 else 1,
        operators=tuple(operators), bytes_per_parameter=max(widths, default=4),
        source=f"ONNX, {len(graph.node)} nodes")


def _bytes(name: str, shapes: dict[str, tuple[int, ...]], element: dict[str, int]) -> float:
    return float(math.prod(shapes[name]) * element.get(name, 4)) if name in shapes else 0.0


def _flop(node: Any, shapes: dict[str, tuple[int, ...]], where: str) -> float:
    """FLOP of products and convolutions."""
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        return 0.0
    for name in (node.input[0], node.input[1], node.output[0]):
        if name not in shapes:
            raise InputError(f"{where}: the shape of {shorten(name)} is not known; allowed: a "
                             "model with fixed sizes (export it without dynamic axes)")
    out, left, right = (math.prod(shapes[node.output[0]]), shapes[node.input[0]],
                        shapes[node.input[1]])
    if node.op_type == "MatMul":
        return 2.0 * out * left[-1]
    if node.op_type == "Gemm":
        turned = any(item.name == "transA" and item.i for item in node.attribute)
        return 2.0 * out * left[0 if turned else -1]
    return 2.0 * out * math.prod(right) / right[0]
