"""A PyTorch module as an operator graph, captured by torch.export (PyTorch 2.13).

The module may be on the meta device: nothing is computed, and no weights are needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nest.errors import InputError
from nest.inputs.operator_graph import GraphOperator, OperatorGraph
from nest.units import shorten

_FREE = {"view", "reshape", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
         "select", "alias", "detach", "t", "getitem", "_assert_tensor_metadata", "contiguous",
         "chunk", "split", "split_with_sizes", "unbind", "flatten", "unflatten", "dropout", "to",
         "lift_fresh_copy", "numpy_T", "mT",
         "_assert_scalar", "sym_size", "narrow", "movedim", "view_as"}
"""Operators that move nothing, or, as casts and copies, are fused with their neighbours."""
_PRODUCTS = ("linear", "addmm", "mm", "matmul")
_MASKS = ("le.Tensor", "lt.Tensor", "ge.Tensor", "gt.Tensor", "tril.default", "triu.default")
"""What makes masks of causal attention; those of two-sided attention compare with a number."""


def from_torch(
    module: Any, inputs: Sequence[Any], *, kwargs: Mapping[str, Any] | None = None,
    name: str | None = None, shard: Mapping[str, str] | None = None,
) -> OperatorGraph:
    """Capture the forward of a module as an operator graph.

    Parameters
    ----------
    module : a torch.nn.Module, on the meta device or with weights.
    inputs, kwargs : arguments of its forward, of one sample; tensors of the module's device.
    name : of the graph; default: that of the module's class.
    shard : axis of products by a pattern of their module's path (a regular expression), where the
        one found is wrong or none is: column, row, heads, experts or none.

    Returns
    -------
    OperatorGraph
        With blocks of entries of a ModuleList. Products of one module are found to be sharded by
        column if they lead to a last one of it, which is by row; attention by heads, experts as
        such. The FLOP are those of products and attention; of causal attention half.

    Raises
    ------
    InputError : torch is not installed, an argument is not what it should be, or torch.export
        cannot capture the forward (the message has its reason).
    """
    try:
        import torch
    except ImportError:
        raise InputError("from_torch: torch is not installed; needed: pip install "
                         "'nest-planner[torch]'") from None
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module: got {shorten(module)}; allowed: a torch.nn.Module")
    if not isinstance(inputs, (tuple, list)):
        raise InputError(f"inputs: got {shorten(inputs)}; allowed: a tuple of tensors")
    patterns = [(_pattern(text), axis) for text, axis in (shard or {}).items()]
    try:
        program = torch.export.export(module, tuple(inputs), dict(kwargs or {}), strict=False)
    except Exception as error:  # torch.export raises errors of many classes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"module: {type(module).__name__}: torch.export cannot capture its "
                         f"forward: {reason[:300]}") from None
    found = _Capture(module, program)
    found.walk(program.graph)
    axes = found.axes()
    operators = [
        op.replace(shard=next((axis for text, axis in patterns if text.search(path)),
                              axes.get(op.name, "none")))
        for op, path in zip(found.operators, found.paths, strict=True)]
    first = next((x for x in [*inputs, *(kwargs or {}).values()] if hasattr(x, "shape")), None)
    length = int(first.shape[1]) if first is not None and len(first.shape) > 1 else 1
    element = max((p.element_size() for p in module.parameters()), default=2)
    return OperatorGraph(
        name=name or type(module).__name__, seq_len=length, operators=tuple(operators),
        bytes_per_parameter=element,
        source=f"torch.export of {type(module).__name__}, torch {torch.__version__}")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InputError(f"shard: got {shorten(text)}; allowed: a regular expression ({error})"
                         ) from None


def _size(value: Any) -> int:
    """Elements of a tensor, or of all tensors of a tuple."""
    if isinstance(value, (tuple, list)):
        return sum(_size(item) for item in value)
    return int(math.prod(value.shape)) if hasattr(value, "shape") else 0


def _bytes(value: Any) -> float:
    if isinstance(value, (tuple, list)):
        return sum(_bytes(item) for item in value)
    return float(_size(value) * value.element_size()) if hasattr(value, "shape") else 0.0


def _value(node: Any) -> Any:
    return node.meta.get("val") if hasattr(node, "meta") else node


class _Capture:
    """Operators of an exported program, in order."""

    def __init__(self, module: Any, program: Any) -> None:
        self.operators: list[GraphOperator] = []
        self.paths: list[str] = []
        self.nodes: list[Any] = []
        self._named: dict[Any, str] = {}  # node -> operator that made its value
        self._module = program.graph_module
        shared = dict(module.named_parameters(remove_duplicate=False))
        names = program.graph_signature.inputs_to_parameters
        weights = {node: shared[path] for node, path in names.items() if path in shared}
        self._weights: dict[Any, Any] = {  # node -> parameter that it is, or a view of
            node: weights[node.name] for node in program.graph.nodes if node.name in weights}
        self._weighted: set[str] = set()
        self._counted: set[int] = set()

    def walk(self, graph: Any) -> None:
        """Record the operators of a graph; those of a nested one stand where it is called."""
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            operator = str(getattr(node.target, "__name__", node.target)).split(".")[0]
            if (name := getattr(node.target, "_schema", None)) is not None:
                operator = name.name.split("::")[-1]
            if _value(node) is None and not operator.startswith("wrap"):
                continue
            self._record(node, operator)

    def _record(self, node: Any, operator: str) -> None:
        sources = [s for s in node.all_input_nodes if s in self._named]
        reads = [_value(s) for s in node.all_input_nodes]
        flop = _flop(operator, node)
        own = 0
        for source in node.all_input_nodes:
            parameter = self._weights.get(source)
            if parameter is None:
                continue
            if operator in _FREE:  # a view of a parameter, counted where it is used
                self._weights[node] = parameter
                return
            if id(parameter) not in self._counted:
                self._counted.add(id(parameter))
                own += int(parameter.numel())
        if operator in _FREE:  # stands for what it passes on
            if sources:
                self._named[node] = self._named[sources[0]]
            return
        out = _bytes(_value(node))
        moved = sum(map(_bytes, reads)) + out
        if operator == "embedding":
            moved = 2 * out  # it looks up rows
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"^L\['self'\]\.?", "", stack[-1][0]) if stack else ""
        block = re.match(r"(.*?\.\d+)(?:\.|$)", path)
        name = f"{node.name}" if not path else f"{path}:{node.name}"
        inputs = tuple(dict.fromkeys(self._named[s] for s in sources))
        self._named[node] = name
        if operator in _PRODUCTS and any(s in self._weights for s in node.all_input_nodes):
            self._weighted.add(name[-200:])
        saved = out if flop or operator in ("silu", "gelu", "relu", "mul", "softmax") else 0.0
        self.operators.append(GraphOperator(
            name=name[-200:], type=operator, flop=flop, bytes=moved, parameters=own,
            output_bytes=out, saved_bytes=saved, inputs=tuple(i[-200:] for i in inputs),
            block=block[1] if block else ""))
        self.paths.append(path)
        self.nodes.append(node)

    def axes(self) -> dict[str, str]:
        """Axis of each operator that tensor parallelism can divide."""
        found: dict[str, str] = {}
        groups: dict[str, list[int]] = {}
        for number, op in enumerate(self.operators):
            if op.type == "scaled_dot_product_attention":
                found[op.name] = "heads"
            elif "grouped_mm" in op.type or (
                    op.type in ("bmm", "baddbmm") and op.parameters):
                found[op.name] = "experts"
            elif op.name in self._weighted and op.block:
                groups.setdefault(self.paths[number].rpartition(".")[0], []).append(number)
        for parent, members in groups.items():
            inside = {op.name for op, path in zip(self.operators, self.paths, strict=True)
                      if path.startswith(parent)}
            for number in members:
                ends = self._reached(number, inside)
                if ends:
                    found[self.operators[number].name] = "column"
            for number in members:
                op = self.operators[number]
                if op.name not in found and any(
                        op.name in self._reached(other, inside) for other in members):
                    found[op.name] = "row"
        return found

    def _reached(self, number: int, inside: set[str]) -> set[str]:
        """Linear layers of the same module that an operator's output leads to."""
        reached, ends = {self.operators[number].name}, set()
        for op in self.operators[number + 1:]:
            if op.name in inside and reached.intersection(op.inputs):
                if op.name in self._weighted:
                    ends.add(op.name)
                else:
                    reached.add(op.name)
            elif op.name not in inside and op.block != self.operators[number].block:
                break
        return ends


def _flop(operator: str, node: Any) -> float:
    """FLOP forward of products, attention and convolutions; others are priced by their bytes."""
    values = [_value(argument) for argument in node.args]
    out = _value(node)
    if operator in ("linear", "mm", "bmm", "matmul") or "grouped_mm" in operator:
        return float(2 * _size(out) * int(values[0].shape[-1]))
    if operator in ("addmm", "baddbmm"):
        return float(2 * _size(out) * int(values[1].shape[-1]))
    if operator == "einsum":
        tensors = node.args[1]
        terms = str(node.args[0]).replace(" ", "").split("->")[0].split(",")
        sizes = {letter: size for term, tensor in zip(terms, tensors, strict=True)
                 for letter, size in zip(term, _value(tensor).shape, strict=True)
                 if term.isalpha()}
        return 2.0 * math.prod(int(size) for size in sizes.values()) if len(terms) > 1 else 0.0
    if operator.startswith("conv"):
        weight = values[1]
        return float(2 * _size(out) * _size(weight) / int(weight.shape[0]))
    if operator == "scaled_dot_product_attention":
        query, key, value = values[:3]
        pairs = _size(query) // int(query.shape[-1]) * int(key.shape[-2])
        causal = bool(node.kwargs.get("is_causal") or (len(node.args) > 5 and node.args[5]))
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        half = 0.5 if causal or (mask is not None and _ordered(mask)) else 1.0
        return 2.0 * half * float(pairs) * int(query.shape[-1] + value.shape[-1])
    return 0.0


def _ordered(mask: Any) -> bool:
    """Whether a mask comes from a comparison of positions, as that of causal attention."""
    seen, stack = set(), [mask]
    while stack:
        node = stack.pop()
        if node in seen or not hasattr(node, "all_input_nodes"):
            continue
        seen.add(node)
        if str(node.target).endswith(_MASKS):
            return True
        stack += node.all_input_nodes
    return False
