"""`-m fast`: an answer in two minutes that has something of each room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from slow_files import SLOW

HERE = Path(__file__).parent
ROOMS = sorted({path.relative_to(HERE).parts[0] for path in HERE.rglob("test_*.py")
                if path.parent != HERE} - {"examples"})
"""Folders of tests; examples are whole searches."""
FAST = [path for path in HERE.rglob("test_*.py") if path.name not in SLOW]


def has_quick_tests(path: Path) -> bool:
    """Whether a file has a test that no mark, its own or that of the file, calls slow."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_file = [node.value for node in tree.body if isinstance(node, ast.Assign)
               and ast.unparse(node.targets[0]) == "pytestmark"]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [text for text in map(ast.unparse, [*node.decorator_list, *of_file])
                     if "mark.kernels" in text or text == "uncompiled"]
            if not marks or "uncompiled" in marks[0]:
                return True
    return False


def test_slow_files_exist() -> None:
    """A file that has another name now is fast, whatever it takes."""
    assert {path.name for path in HERE.rglob("test_*.py")} >= SLOW


@pytest.mark.parametrize("room", ROOMS)
def test_fast_tests_look_at_each_room(room: str) -> None:
    assert any(has_quick_tests(path) for path in FAST if path.is_relative_to(HERE / room))


def test_the_mark_selects_fast_tests() -> None:
    files = ["test_limits.py", "cli/test_options.py", "search/test_fitting.py"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "fast", "--collect-only",
         *(str(HERE / name) for name in files)],
        capture_output=True, text=True, timeout=120, cwd=HERE.parent).stdout
    assert {line.partition("::")[0] for line in found.splitlines() if "::" in line} == {
        "tests/test_limits.py", "tests/cli/test_options.py"}
