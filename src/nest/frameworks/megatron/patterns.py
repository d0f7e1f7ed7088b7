"""Python expressions of lists, as Megatron's arguments take them: `([0]*3+[1]*58)`, never run."""

from __future__ import annotations

import ast

from nest.errors import InputError
from nest.units import shorten

MOST = 10**4
"""Layers."""


def layer_pattern(value: object, layers: int, name: str, *, last_full: bool = False) -> list[int]:
    """0 or 1 for each layer.

    Parameters
    ----------
    value : a whole number N, or the text of an expression.
    last_full : what N means: of N layers the last is 0 and the others are 1; else the first is 1
        and the others are 0. Source: NVIDIA/Megatron-LM@core_v0.16.1, line 583 of
        GPT's layer specifications (experts), and is_layer_window_attention (windows).

    Raises
    ------
    InputError : no such value, or not one for each layer.
    """
    if isinstance(value, int):
        if value < 1:
            raise InputError(f"--{name}: got {shorten(value)}; allowed: at least 1")
        if last_full:
            return [int((n + 1) % value != 0) for n in range(layers)]
        return [int(n % value == 0) for n in range(layers)]
    found: object = None
    if isinstance(value, str) and len(value) <= 10**5:
        try:
            found = _evaluated(ast.parse(value.strip(), mode="eval").body, 0)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found = None
    if not isinstance(found, list) or not all(one in (0, 1) for one in found):
        raise InputError(f"--{name}: got {shorten(value)}; allowed: a whole number, or a list of 0 "
                         "and 1 such as ([0]*3+[1]*58)")
    if len(found) != layers:
        raise InputError(f"--{name}: got {len(found)} entries; allowed: {layers}, one for each "
                         "layer")
    return found


def _evaluated(node: ast.expr, depth: int) -> list[int] | int:
    if depth > 50:
        raise ValueError
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MOST:
        return node.value
    if isinstance(node, ast.List):
        found = [_evaluated(each, depth + 1) for each in node.elts]
        if all(isinstance(each, int) for each in found):
            return found  # type: ignore[return-value]
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left, depth + 1), _evaluated(node.right, depth + 1)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            if len(left) + len(right) <= MOST:
                return left + right
        elif isinstance(node.op, ast.Mult) and isinstance(left, list) != isinstance(right, list):
            items, times = (left, right) if isinstance(left, list) else (right, left)
            assert isinstance(items, list) and isinstance(times, int)
            if times >= 0 and len(items) * times <= MOST:
                return items * times
    raise ValueError
