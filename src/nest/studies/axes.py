"""An axis of a study: the values that a field, or several fields together, take; and expressions.

Expressions are arithmetic and logic over the fields of a question, without `eval`:
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
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from nest.errors import InputError, did_you_mean
from nest.inputs.base import Description, Freeze, Name, Number, Problems, Whole, at_most
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


# ---------------------------------------------------------------- axes


MOST_VALUES = 10_000
FARTHEST = 1e100
"""Magnitude of the bounds of a range, and of the inverse of the smallest but 0."""
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\D*)", re.ASCII)


class Choice(NamedTuple):
    """One value of an axis."""

    label: str | int | float | bool | None
    """What tables and figures call it."""
    fields: Mapping[str, Any]
    """What it sets, by dotted paths."""


class Bound(NamedTuple):
    """A number with the text of its unit; "" without one."""

    number: float
    unit: str
    whole: bool


class Axis(Description):
    """Values of a field: a list, a range, or choices that set several fields each."""

    values: Annotated[tuple[Any, ...], Field(min_length=1), at_most(MOST_VALUES)] | None = Field(
        None, description="values of the field, whatever it takes")
    choices: Annotated[dict[Name, Annotated[dict[str, Any], Freeze]], Field(min_length=1), Freeze,
                       at_most(MOST_VALUES)] | None = Field(
        None, description="fields that change together: by the name of a choice, paths and values")
    start: Any = Field(None, alias="from", description="first value of a range, may have a unit")
    to: Any = Field(None, description="last value of a range, of the same unit")
    count: Annotated[Whole, Field(ge=2, le=MOST_VALUES)] | None = Field(
        None, description="number of values, evenly spaced on `scale`")
    step: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="distance of two values, in the unit of `from`")
    times: Annotated[Number, Field(gt=1)] | None = Field(None, description="ratio of two values")
    scale: Literal["linear", "log"] = Field("linear", description="spacing of `count` values, or "
                                            "of samples of a range without values of its own")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ways = [self.values is not None, self.choices is not None, self.start is not None]
        if sum(ways) != 1:
            text = ("got none or several of a list, choices and from; allowed: a list of values, "
                    "a mapping of choices, or from and to with count, step or times")
            raise Problems([("", text)])
        spaced = [name for name in ("count", "step", "times") if getattr(self, name) is not None]
        if self.start is None:
            if self.to is not None or spaced:
                raise Problems([(spaced[0] if spaced else "to",
                                 "got no from; allowed: with from and to")])
            return self
        if len(spaced) > 1:
            raise Problems([(spaced[1], f"got {' and '.join(spaced)}; allowed: one of them")])
        low, high = _bound("from", self.start), _bound("to", self.to)
        if low.unit != high.unit:
            raise Problems([("to", f"got {shorten(self.to)}; allowed: the unit of from, "
                             f"{low.unit or 'none'}")])
        if not low.number < high.number:
            raise Problems([("to", f"got {shorten(self.to)}; allowed: more than from")])
        if (self.scale == "log" or self.times is not None) and low.number <= 0:
            raise Problems([("from", f"got {shorten(self.start)}; allowed: above 0 on scale log")])
        most = 1 + max((high.number - low.number) / self.step if self.step else 0.0,
                       math.log(high.number / low.number, self.times) if self.times else 0.0)
        if most > MOST_VALUES:
            raise Problems([("step", f"got {most:.0f} values; allowed: at most {MOST_VALUES}")])
        return self

    @property
    def continuous(self) -> bool:
        """A range without values of its own, of which only samples can be taken."""
        return self.start is not None and (self.count, self.step, self.times) == (None,) * 3

    def listed(self, name: str) -> tuple[Choice, ...]:
        """All values; empty where it is continuous.

        Parameters
        ----------
        name : of the axis; where there are no choices, the path of its field.
        """
        if self.choices is not None:
            return tuple(Choice(_named(name), fields) for name, fields in self.choices.items())
        values = self.values if self.values is not None else tuple(self._spaced())
        return tuple(Choice(_label(value), {name: value}) for value in values)

    def at(self, name: str, share: float) -> Choice:
        """The value at a share of the range, 0 to 1, of a continuous axis."""
        low, high = _bound("from", self.start), _bound("to", self.to)
        value = _written(_between(low.number, high.number, share, self.scale), low,
                         low.whole and high.whole)
        return Choice(_label(value), {name: value})

    def _spaced(self) -> Iterator[Any]:
        """The values of a range, each once."""
        if self.continuous:
            return
        low, high = _bound("from", self.start), _bound("to", self.to)
        numbers: list[float] = []
        if self.count is not None:
            numbers = [_between(low.number, high.number, place / (self.count - 1), self.scale)
                       for place in range(self.count)]
        while self.count is None:
            place = len(numbers)
            number = (low.number + place * self.step if self.step is not None
                      else low.number * (self.times or 2.0) ** place)
            if number > high.number * (1 + 1e-12):
                break
            numbers.append(number)
        whole = low.whole and high.whole and (self.step is None or self.step.is_integer())
        yield from dict.fromkeys(_written(number, low, whole) for number in numbers)


def _read(value: Any) -> Any:
    """A list, or a mapping of mappings, in the place of the field that it belongs to."""
    if isinstance(value, (list, tuple)):
        return {"values": value}
    if isinstance(value, dict) and value and all(isinstance(one, dict) for one in value.values()):
        return {"choices": {str(name): one for name, one in value.items()}}
    return value


AnyAxis = Annotated[Axis, BeforeValidator(_read, json_schema_input_type=list[Any] | dict[str, Any])]


def _bound(field: str, value: Any) -> Bound:
    number, unit, whole = value, "", isinstance(value, int)
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        number, unit = float(match[1]), match[2].strip()
        whole = match[1].lstrip("+-").isdigit()
    if isinstance(number, (int, float)) and not isinstance(number, bool) and (
            number == 0 or 1 / FARTHEST <= abs(number) <= FARTHEST):
        return Bound(float(number), unit, whole)
    raise Problems([(field, f"got {shorten(value)}; allowed: a number, or a number with a unit, "
                     f"0 or of a magnitude of {1 / FARTHEST:g} to {FARTHEST:g}")])


def _between(low: float, high: float, share: float, scale: str) -> float:
    if share in (0.0, 1.0):
        return (low, high)[int(share)]
    return low * (high / low) ** share if scale == "log" else low + (high - low) * share


def _written(number: float, like: Bound, whole: bool) -> Any:
    """A number in the manner of the bounds: with their unit; whole where these are whole."""
    if like.unit:
        return f"{float(f'{number:.6g}'):.12g} {like.unit}"
    return round(number) if whole else float(f"{number:.12g}")


def _named(name: str) -> str | int | float:
    """The name of a choice as a number where it is one."""
    if not _PLAIN.fullmatch(name):
        return name
    return int(name) if name.lstrip("+-").isdigit() else float(name)


def _label(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, dict):
        return str(value.get("name") or value.get("base") or shorten(value))
    return shorten(value)
