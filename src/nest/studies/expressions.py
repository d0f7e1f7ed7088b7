"""Small arithmetic and logical expressions over the fields of a question, without `eval`.

``job.global_batch % devices == 0 and cluster.levels.spine.bandwidth >= "100 Gb/s"``: names of
sections and axes, fields and entries, numbers, quantities with units as text, ``+ - * / // %``,
comparisons, ``in``, ``and``, ``or``, ``not``, ``A if B else C``, ``min``, ``max``, ``abs``,
``ceil``, ``floor``, ``log2``, ``sqrt``. Arithmetic takes and gives numbers only, up to ``LARGEST``,
so that no expression needs more than milliseconds and a few kilobytes.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from nest.errors import InputError, did_you_mean
from nest.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds, shorten

LONGEST = 1000
"""Characters of an expression: parsing and evaluation then end within milliseconds."""
LARGEST = 1e300
"""Magnitude of a number that arithmetic gives."""
_TWO: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_ONE: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos}
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min, "max": max, "abs": abs, "ceil": math.ceil, "floor": math.floor,
    "log2": math.log2, "sqrt": math.sqrt}
_QUANTITIES = (parse_bytes, parse_bandwidth, parse_seconds, parse_flops)


class Expression:
    """An expression, parsed and checked once.

    Parameters
    ----------
    text : as in the module's docstring.
    names : sections and axes that it may name.

    Raises
    ------
    InputError : no such expression, or a name that is not known.
    """

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        self.text = text
        if len(text) > LONGEST:
            raise self._refused(f"at most {LONGEST} characters")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise self._refused("an expression such as devices <= 1024 and job.seq_len > 4096"
                                ) from None
        self._check(self._tree, names, 0)

    def _refused(self, allowed: str) -> InputError:
        return InputError(f"got {shorten(self.text, 120)}; allowed: {allowed}")

    def _check(self, node: ast.AST, names: tuple[str, ...], depth: int) -> None:
        if depth > 50:
            raise self._refused("50 parts inside one another")
        if isinstance(node, ast.Name) and node.id not in names:
            near = did_you_mean(node.id, names)
            raise InputError(f"got {shorten(self.text, 120)}: the name {node.id} is not known; "
                             f"{near}allowed: {', '.join(names)}")
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            if not known or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
                raise self._refused(f"the functions {', '.join(_FUNCTIONS)}")
            parts: list[ast.AST] = [*node.args]
        else:
            if not isinstance(node, _ALLOWED):
                raise self._refused("names, fields, numbers, text in quotes, + - * / // %, "
                                    "comparisons, in, and, or, not, if else")
            parts = [*ast.iter_child_nodes(node)]
        if isinstance(node, ast.Constant) and isinstance(node.value, (bytes, complex)):
            raise self._refused("numbers and text")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise self._refused("fields that begin with a letter")
        for part in parts:
            if not isinstance(part, (ast.expr_context, ast.operator, ast.unaryop, ast.boolop,
                                     ast.cmpop)) or type(part) in _UNUSABLE:
                self._check(part, names, depth + 1)

    def value(self, names: Mapping[str, Any]) -> Any:
        """The value where the names stand for these descriptions, texts and numbers.

        Raises
        ------
        InputError : a field that is not there, or values that do not go together.
        """
        try:
            return self._value(self._tree, names)
        except InputError:
            raise
        except (ArithmeticError, TypeError, ValueError, LookupError) as error:
            raise InputError(f"{shorten(self.text, 120)}: cannot be worked out "
                             f"({' '.join(str(error).split())[:200]})") from None

    def _value(self, node: ast.AST, names: Mapping[str, Any]) -> Any:
        value = self._value
        match node:
            case ast.Constant():
                return quantity(node.value)
            case ast.Name():
                return names[node.id]
            case ast.Attribute():
                return self._field(value(node.value, names), node.attr)
            case ast.Subscript():
                return self._field(value(node.value, names), value(node.slice, names))
            case ast.BinOp():
                left, right = value(node.left, names), value(node.right, names)
                return _number(_TWO[type(node.op)](_number(left), _number(right)))
            case ast.UnaryOp(op=ast.Not()):
                return not value(node.operand, names)
            case ast.UnaryOp():
                return _ONE[type(node.op)](_number(value(node.operand, names)))
            case ast.BoolOp():
                wanted = isinstance(node.op, ast.Or)
                return next((found for part in node.values
                             if bool(found := value(part, names)) is wanted), not wanted)
            case ast.Compare():
                left = value(node.left, names)
                for op, part in zip(node.ops, node.comparators, strict=True):
                    right = value(part, names)
                    if isinstance(op, _ORDERED) and None in (left, right):
                        raise TypeError("a field without a value takes part in == only")
                    if not _TWO[type(op)](left, right):
                        return False
                    left = right
                return True
            case ast.IfExp():
                return value(node.body if value(node.test, names) else node.orelse, names)
            case ast.Call(func=ast.Name(id=name)):
                given = [value(part, names) for part in node.args]
                entries = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
                return _number(_FUNCTIONS[name](*map(_number, entries)))
            case ast.Tuple() | ast.List():
                return tuple(value(part, names) for part in node.elts)
        raise AssertionError(node)  # nothing else is let through

    def _field(self, owner: Any, name: Any) -> Any:
        """A field of a description, an entry of a list by its number or name, or of a mapping."""
        if isinstance(owner, BaseModel) and name in type(owner).model_fields:
            return _plain(getattr(owner, name))
        if isinstance(owner, tuple) and isinstance(name, int):
            return _plain(owner[name])
        if isinstance(owner, tuple):
            found = [one for one in owner if getattr(one, "name", None) == name]
            if found:
                return found[0]
        if isinstance(owner, Mapping) and name in owner:
            return _plain(owner[name])
        known = (type(owner).model_fields if isinstance(owner, BaseModel) else owner
                 if isinstance(owner, Mapping) else [getattr(one, "name", "") for one in owner]
                 if isinstance(owner, tuple) else ())
        raise InputError(f"{shorten(self.text, 120)}: got no field {shorten(name)}; "
                         f"{did_you_mean(str(name), known)}allowed: "
                         f"{', '.join(filter(None, known)) or 'none here'}")


_ALLOWED = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp,
            ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List)
_UNUSABLE = (ast.Pow, ast.LShift, ast.RShift, ast.BitOr, ast.BitXor, ast.BitAnd, ast.MatMult,
             ast.Invert, ast.Is, ast.IsNot)


def _number(value: Any) -> float:
    """A number that arithmetic may take or has given."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"got {shorten(value)} where a number is needed; text and lists take part "
                        "in comparisons only")
    if not -LARGEST <= value <= LARGEST:
        raise OverflowError(f"a number beyond {LARGEST:g}")
    return value


def _plain(value: Any) -> Any:
    """A set of whole numbers as these; everything else as it is."""
    return tuple(value) if hasattr(value, "ranges") and len(value) <= 10_000 else value


def quantity(value: Any) -> Any:
    """Text with a unit as a number of the unit's SI base; other values as they are."""
    if isinstance(value, str) and value[:1].isdigit() and not value.strip().isdigit():
        for parse in _QUANTITIES:
            try:
                return parse(value)
            except ValueError:
                continue
    return value
