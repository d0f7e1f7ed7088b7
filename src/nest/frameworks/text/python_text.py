"""Python configurations as text: what a function returns, without running or importing anything.

Understood: constants, lists, tuples and mappings of them, calls (kept as name and arguments),
attributes that are set, ``dataclasses.replace``, functions of the same module without arguments,
and ``if`` of a plain value; what another ``if`` sets is not known. Anything else gives an *unread*
value, which remembers its line and text; it is an error only where the result depends on it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.units import shorten

LONGEST = 2**20
"""Characters of a module."""
DEEPEST = 40
"""Values, or calls of functions, inside one another."""
REPLACE = ("dataclasses.replace", "replace")
"""Functions that return a copy with other fields."""
MOST = 10**5
"""Values that are looked at: functions that call each other twice would take forever."""


class UnknownValue(NamedTuple):
    """A value that the text does not say."""

    line: int
    text: str


class PythonCall:
    """What a call makes: its name, its plain arguments, and fields by name, set later or not.

    ``places`` are the texts of the fields' values, ``call`` that of the call, as nodes of a module.
    """

    def __init__(
        self, name: str, words: list[Any], fields: dict[str, Any], call: ast.Call | None = None,
        places: Mapping[str, ast.expr] | None = None,
    ) -> None:
        self.name = name
        self.words = words
        self.fields = fields
        self.call = call
        self.places = dict(places or {})

    @property
    def line(self) -> int:
        """Of the call."""
        return 0 if self.call is None else self.call.lineno

    @property
    def text(self) -> str:
        """The call, for messages."""
        return f"{self.name}(...)"


class Module:
    """A module of Python.

    Parameters
    ----------
    text : of the module.
    where : its name, for messages.
    ignored : functions whose calls are left out, where nothing takes what they return.

    Raises
    ------
    InputError : not a text of Python, or one that is longer or nested deeper than allowed.
    """

    def __init__(self, text: str, where: str, ignored: Sequence[str] = ()) -> None:
        self.where, self._ignored = where, ignored
        self._seen = 0
        if len(text) > LONGEST:
            raise InputError(f"{where}: got {len(text)} characters; allowed: {LONGEST}")
        try:
            with warnings.catch_warnings():  # escapes in texts that mean nothing
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except SyntaxError as error:
            raise InputError(f"{where}: line {error.lineno}: no Python: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError):
            raise InputError(f"{where}: no Python, or nested too deep") from None
        self.functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        self.imports = dict(_imports(tree))
        self.constants: dict[str, Any] = {}
        for one in tree.body:
            if isinstance(one, (ast.Assign, ast.AnnAssign)):
                self._assign(one, self.constants, 0)

    def returned(self, name: str) -> Any:
        """What a function returns: plain data, :class:`PythonCall` and :class:`UnknownValue`.

        Raises
        ------
        InputError : no such function; more values, or deeper ones, than allowed.
        """
        if name not in self.functions:
            raise InputError(f"{self.where}: no function {shorten(name)}; allowed: "
                             f"{', '.join([*self.functions][:20]) or 'none is there'}")
        return self._returned(self.functions[name], 0)

    # ------------------------------------------------------------ statements

    def _returned(self, function: ast.FunctionDef, depth: int) -> Any:
        return self._body(function.body, {}, depth)[1]

    def _body(
        self, body: list[ast.stmt], names: dict[str, Any], depth: int
    ) -> tuple[bool, Any]:
        """Follow statements: whether they return, and what."""
        for one in body:
            if isinstance(one, ast.Return):
                return True, None if one.value is None else self._value(one.value, names, depth)
            if isinstance(one, (ast.Assign, ast.AnnAssign)):
                self._assign(one, names, depth)
            elif isinstance(one, ast.If):
                done = self._branch(one, names, depth)
                if done[0]:
                    return done
            elif not (isinstance(one, (ast.Import, ast.ImportFrom, ast.Pass, ast.Assert))
                      or (isinstance(one, ast.Expr) and (
                          isinstance(one.value, ast.Constant) or self._ignores(one.value)))):
                self._blur(one, names)
        return False, None

    def _ignores(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and dotted(node.func) in self._ignored

    def _branch(self, one: ast.If, names: dict[str, Any], depth: int) -> tuple[bool, Any]:
        """The branch that a plain value chooses; of others what they set is not known."""
        test = self._value(one.test, names, depth + 1)
        if not isinstance(test, (PythonCall, UnknownValue)):
            return self._body(one.body if test else one.orelse, names, depth + 1)
        for each in (*one.body, *one.orelse):
            if isinstance(each, (ast.Assign, ast.AnnAssign)):
                for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                    self._set(target, _unread(each), names)
            elif not isinstance(each, (ast.Raise, ast.Pass)):
                self._blur(one, names)
        return False, None

    def _assign(self, one: ast.Assign | ast.AnnAssign, names: dict[str, Any], depth: int) -> None:
        if one.value is None:
            return
        value = self._value(one.value, names, depth)
        for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
            self._set(target, value, names, one.value)

    def _set(
        self, target: ast.expr, value: Any, names: dict[str, Any], node: ast.expr | None = None
    ) -> None:
        """``node``: the text of the value; None: it is not the text of this value alone."""
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            place = self._place(target.value, names)
            if place is not None:
                place.fields[target.attr] = value
                place.places.pop(target.attr, None)
                if node is not None:
                    place.places[target.attr] = node
            else:
                self._blur(target, names)
        elif isinstance(target, ast.Tuple):
            for each in target.elts:
                self._set(each, _unread(each), names)
        else:
            self._blur(target, names)

    def _place(self, node: ast.expr, names: dict[str, Any]) -> PythonCall | None:
        """What an attribute is set of; fields that nothing is known of are made."""
        if isinstance(node, ast.Name):
            found = names.get(node.id)
            return found if isinstance(found, PythonCall) else None
        if not isinstance(node, ast.Attribute):
            return None
        above = self._place(node.value, names)
        if above is None:
            return None
        found = above.fields.setdefault(node.attr, PythonCall("", [], {}))
        return found if isinstance(found, PythonCall) else None

    def _blur(self, node: ast.AST, names: dict[str, Any]) -> None:
        """A statement that is not followed: nothing that it names is known behind it."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and not isinstance(
                    names.get(each.id, _unread(each)), UnknownValue):
                names[each.id] = _unread(node)

    # ------------------------------------------------------------ values

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        self._seen += 1
        if depth > DEEPEST or self._seen > MOST:
            line = getattr(node, "lineno", 0)
            raise InputError(f"{self.where}: line {line}: more than {DEEPEST} values inside one "
                             f"another, or {MOST} in all")
        if isinstance(node, ast.Constant):
            return node.value if isinstance(
                node.value, (bool, int, float, str, type(None))) else _unread(node)
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self._value(each, names, depth + 1) for each in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        if isinstance(node, ast.Dict):
            keys = [None if key is None else self._value(key, names, depth + 1)
                    for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return {key: self._value(each, names, depth + 1)
                        for key, each in zip(keys, node.values, strict=True)}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, names, depth + 1)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value
        if isinstance(node, ast.Name):
            return names[node.id] if node.id in names else self.constants.get(
                node.id, _unread(node))
        if isinstance(node, ast.Attribute):
            above = self._value(node.value, names, depth + 1)
            if isinstance(above, PythonCall) and node.attr in above.fields:
                return above.fields[node.attr]
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        return _unread(node)

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        name = dotted(node.func)
        words = [self._value(each, names, depth + 1) for each in node.args]
        fields = {each.arg or "**": self._value(each.value, names, depth + 1)
                  for each in node.keywords}
        places = {each.arg: each.value for each in node.keywords if each.arg}
        if name in self.functions and not words and not fields:
            return self._returned(self.functions[name], depth + 1)
        if name in REPLACE and len(words) == 1:
            base = words[0] if isinstance(words[0], PythonCall) else PythonCall("", [], {})
            return PythonCall(base.name, base.words, {**base.fields, **fields}, node,
                        {**base.places, **places})
        return PythonCall(name or _unread(node.func).text, words, fields, node, places)


def dotted(node: ast.expr) -> str:
    """A name with dots; empty: it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that a module imports, and where from."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            yield from ((each.asname or each.name, each.name) for each in one.names)
        elif isinstance(one, ast.ImportFrom):
            yield from ((each.asname or each.name, f"{one.module or ''}.{each.name}")
                        for each in one.names)


def _unread(node: ast.AST) -> UnknownValue:
    try:
        text = ast.unparse(node)
    except (RecursionError, ValueError):
        text = "an expression"
    return UnknownValue(getattr(node, "lineno", 0), text)


def fields_of(made: PythonCall, where: str, start: str = "") -> dict[str, Any]:
    """Fields by their names with dots, those of fields included.

    A call without known meaning, which is the value of a field,
    is there as :class:`PythonCall` under the
    field's own name, too.

    Raises
    ------
    InputError : fields inside one another without end.
    """
    if start.count(".") > DEEPEST:
        raise InputError(f"{where}: fields more than {DEEPEST} deep")
    found: dict[str, Any] = {}
    for name, value in made.fields.items():
        if isinstance(value, PythonCall):
            if value.name:
                found[start + name] = value
            found |= fields_of(value, where, f"{start}{name}.")
        else:
            found[start + name] = value
    return found


def not_read(value: object, where: str) -> InputError:
    """The error that what a function returns is no configuration, or is not understood."""
    if not isinstance(value, UnknownValue):
        return InputError(f"{where}: the function returns no configuration that is understood, and "
                          "nothing is executed")
    return InputError(f"{where}: line {value.line}: {shorten(value.text, 100)} is not understood, "
                      "and nothing is executed; allowed: fields, or names and calls of this file")
