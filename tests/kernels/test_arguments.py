"""What enters compiled code is a record with names, not a row of arguments."""

from __future__ import annotations

import ast
from pathlib import Path

import nest

MOST = 9
INNER = {"_extend", "_offer_policy", "borders"}
"""Of inner loops, where a record would go through memory."""


def test_no_kernel_takes_many_arguments() -> None:
    folder = Path(nest.__file__).parent
    found = {
        node.name for part in ("_kernels", "costs/network", "search")
        for file in sorted((folder / part).glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and len(node.args.args) > MOST}
    assert found <= INNER
