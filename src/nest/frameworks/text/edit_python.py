"""A Python configuration with some fields changed, its text kept otherwise; nothing is run.

Only the function that returns the configuration is changed, never one that it calls: others may
call that, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nest.frameworks.text.python_text import REPLACE, Module, PythonCall, dotted

_COMMENT = re.compile(r",?[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)")
_MOST_TIMES = 20
"""Statements that set one field."""


class Code(NamedTuple):
    """A value that no plain data are."""

    text: str
    origin: tuple[str, str] | None = None
    """Module and name that it imports."""


class Section(NamedTuple):
    """The class whose fields are a section."""

    module: str
    name: str
    optional: bool = False
    """It is None where nothing makes it."""


class _Lines:
    """A text, and where the nodes of its tree are in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0, *(one.end() for one in re.finditer("\n", text))]

    def at(self, line: int, column: int) -> int:
        """The position of a line, from 1, and a column in bytes."""
        start = self._lines[line - 1]
        stop = self._lines[line] if line < len(self._lines) else len(self.text)
        row = self.text[start:stop]
        return start + (column if row.isascii() else len(row.encode()[:column].decode()))

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Where a node begins, and the position behind it."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)


class _Text(_Lines):
    """A module with the function that is changed."""

    def __init__(self, text: str, where: str, function: str, ignored: Sequence[str]) -> None:
        super().__init__(text)
        self.module = Module(text, where, ignored)
        self.function = self.module.functions[function]
        self.base = self.module.returned(function)

    def holds(self, node: ast.AST | None) -> bool:
        """Whether a node is in the function."""
        end = self.function.end_lineno or 0
        return node is not None and self.function.lineno <= getattr(node, "lineno", 0) <= end

    def made(self, path: Sequence[str]) -> PythonCall | None:
        """What makes a section."""
        found = self.base
        for part in path:
            found = found.fields.get(part) if isinstance(found, PythonCall) else None
        return found if isinstance(found, PythonCall) else None

    def indent(self, at: int) -> str:
        """Spaces at the beginning of a line."""
        start = self.text.rfind("\n", 0, at) + 1
        row = self.text[start:]
        return row[:len(row) - len(row.lstrip(" \t"))]

    def first(self, at: int) -> bool:
        """Whether nothing else is before a position on its line."""
        return not self.text[self.text.rfind("\n", 0, at) + 1:at].strip()


def edited(
    text: str, given: Mapping[str, Any], taken: Iterable[str], *, where: str, function: str,
    sections: Mapping[str, Section], ignored: Sequence[str] = (),
) -> str:
    """The text of a module whose function returns a configuration with other fields.

    Parameters
    ----------
    text, where : of the module, and its name.
    given : values of fields by their names with dots: plain data, or code with its import.
    taken : names of fields that nothing sets any more.
    function : the function.
    sections : classes of sections that may have to be made.
    ignored : functions whose calls are left out.

    Raises
    ------
    ValueError : the function has no place for a field; names it.
    """
    for name in taken:
        for _ in range(_MOST_TIMES):
            found = _Text(text, where, function, ignored)
            new = _without(found, name)
            if new is None:
                break
            text = new
    for name, value in given.items():
        found = _Text(text, where, function, ignored)
        text = _with(found, name, value, sections)
    return text


def constants_edited(text: str, given: Mapping[str, Any], taken: Iterable[str]) -> str:
    """The text of a module with other values of its constants.

    Raises
    ------
    ValueError : it does not set one of them, or one is to be taken out.
    """
    for name in taken:
        raise ValueError(f"{name}: the module cannot do without it")
    for name, value in given.items():
        found = _Lines(text)
        nodes = [one.value for one in ast.parse(text).body if isinstance(one, ast.Assign)
                 and [getattr(target, "id", "") for target in one.targets] == [name]]
        if not nodes:
            raise ValueError(f"{name}: the module does not set it")
        start, end = found.span(nodes[-1])
        text = text[:start] + _code(value) + text[end:]
    return text


def _with(found: _Text, name: str, value: Any, sections: Mapping[str, Section]) -> str:
    """A text in which a field has a value."""
    *path, last = name.split(".")
    parent = found.made(path)
    node = None if parent is None else parent.places.get(last)
    wanted = sections.get(".".join(path))
    imports = [value.origin] if isinstance(value, Code) and value.origin else []
    if node is not None and found.holds(node):
        start, end = found.span(node)
        text = found.text[:start] + _code(value, found.indent(start)) + found.text[end:]
    elif parent is not None and parent.call is not None and found.holds(parent.call) and (
            _takes_fields(parent.call)):
        text = _keyword(found, parent.call, last, value)
    elif wanted is not None and parent is None and found.base.call is not None and (
            found.holds(found.base.call) and _takes_fields(found.base.call)):
        made = Code(f"{wanted.name}({last}={_code(value)})")
        text = _keyword(found, found.base.call, path[-1], made)
        imports.append((wanted.module, wanted.name))
    else:
        new = _code(value)
        if wanted is not None and wanted.optional and parent is None:
            name, new = ".".join(path), f"{wanted.name}({last}={new})"
            imports.append((wanted.module, wanted.name))
        text = _statement(found, name, new)
    for origin, one in imports:
        text = _imported(text, found.module, origin, one)
    return text


def _code(value: Any, indent: str = "") -> str:
    """A value as Python; lists in a list take a line each."""
    if isinstance(value, Code):
        return value.text
    if isinstance(value, list) and any(isinstance(one, list) for one in value):
        return "[\n" + "".join(f"{indent}    {one!r},\n" for one in value) + f"{indent}]"
    return repr(value)


def _takes_fields(call: ast.Call) -> bool:
    """Whether arguments of a call are fields: of a class, or of a copy."""
    name = dotted(call.func)
    return name in REPLACE or name.rpartition(".")[2][:1].isupper()


def _keyword(found: _Text, call: ast.Call, name: str, value: Any) -> str:
    """A text with one more argument at the end of a call."""
    text = found.text
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if not given:
        end = found.span(call)[1] - 1
        return f"{text[:end]}{name}={_code(value)}{text[end:]}"
    start, end = max(map(found.span, given))
    rest = _COMMENT.match(text, end)
    indent = found.indent(start)
    if rest is None or not found.first(start):  # another one, or the end of the call, is behind it
        return f"{text[:end]}, {name}={_code(value, indent)}{text[end:]}"
    comma = "" if rest[0].startswith(",") else ","
    return (f"{text[:end]}{comma}{rest[0]}{indent}{name}={_code(value, indent)},\n"
            f"{text[rest.end():]}")


def _statement(found: _Text, name: str, code: str) -> str:
    """A text that sets a field before its function returns."""
    last = found.function.body[-1]
    if not (isinstance(last, ast.Return) and isinstance(last.value, ast.Name)):
        raise ValueError(f"{name}: the function {found.function.name}() has no place for it; "
                         f"allowed: it there, with any value, or a last line that returns a name")
    start = found.text.rfind("\n", 0, found.span(last)[0]) + 1
    row = f"{found.indent(start)}{last.value.id}.{name} = {code}\n"
    return found.text[:start] + row + found.text[start:]


def _without(found: _Text, name: str) -> str | None:
    """A text that does not set a field in one place; None: nothing in the function does."""
    *path, last = name.split(".")
    parent = found.made(path)
    node = None if parent is None else parent.places.get(last)
    if parent is None or last not in parent.fields:
        return None
    if node is None or not found.holds(node):
        raise ValueError(f"{name}: another function than {found.function.name}() sets it")
    if parent.call is not None and found.holds(parent.call):
        given: list[ast.expr | ast.keyword] = [*parent.call.args, *parent.call.keywords]
        for n, one in enumerate(given):
            if isinstance(one, ast.keyword) and one.value is node:
                return _argument_out(found, given, n)
    for statement in ast.walk(found.function):
        if isinstance(statement, ast.Assign) and statement.value is node:
            start = found.text.rfind("\n", 0, found.span(statement)[0]) + 1
            behind = found.text.find("\n", found.span(statement)[1])
            return found.text[:start] + found.text[len(found.text) if behind < 0 else behind + 1:]
    raise ValueError(f"{name}: the place that sets it is not found")


def _argument_out(found: _Text, given: Sequence[ast.expr | ast.keyword], n: int) -> str:
    """A text without an argument: its line, or what is between it and its neighbour."""
    text = found.text
    start, end = found.span(given[n])
    rest = _COMMENT.match(text, end)
    if rest is not None and found.first(start):
        return text[:text.rfind("\n", 0, start) + 1] + text[rest.end():]
    if n + 1 < len(given):
        return text[:start] + text[found.span(given[n + 1])[0]:]
    return text[:found.span(given[n - 1])[1] if n else start] + text[end:]


def _imported(text: str, module: Module, origin: str, name: str) -> str:
    """A text that imports a name."""
    if name in module.imports:
        if not module.imports[name].endswith(f".{name}"):
            raise ValueError(f"{name}: it is {module.imports[name]} here; allowed: {origin}.{name}")
        return text
    tree = ast.parse(text)
    there = [one for one in tree.body if isinstance(one, (ast.Import, ast.ImportFrom))]
    if not there and ast.get_docstring(tree) is not None:
        there = tree.body[:1]  # type: ignore[assignment]
    at = 0
    for _ in range(there[-1].end_lineno or 0 if there else 0):
        at = text.find("\n", at) + 1
    return f"{text[:at]}from {origin} import {name}\n{text[at:]}"
