"""No function takes a long row of arguments by position: a record with names, or by keyword."""

from __future__ import annotations

import ast
from pathlib import Path

import nest

MOST = 9
INNER = {"extend", "_offer_policy", "borders", "longest_path", "step_seconds", "_see", "_ruled_out"}
"""Of inner loops, where a record would go through memory."""


def test_no_function_takes_many_arguments_by_position() -> None:
    folder = Path(nest.__file__).parent
    found = {
        node.name for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and len(node.args.args) > MOST}
    assert found <= INNER
