"""The import table of CONTRIBUTING.md: what lies above never imports what lies below."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "nest"

# Rows of the table, top to bottom. A part imports parts of the rows above its own, and itself.
ROWS = (
    ("errors", "limits", "texts", "units"),
    ("plugins",),
    ("schedules",),
    ("records",),
    ("inputs",),
    ("network",),
    ("model",),
    ("stacks",),
    ("costs",),
    ("evaluation",),
    ("simulation",),
    ("measured",),
    ("_kernels",),
    ("search",),
    ("explanation",),
    ("questions",),
    ("api",),
    ("replanning",),
    ("planners",),
    ("report",),
    ("frameworks",),
    ("studies",),
    ("client",),
    ("server",),
    ("bench",),
    ("cli",),
    ("__main__",),
)
ROW = {part: number for number, row in enumerate(ROWS) for part in row}


def names() -> list[str]:
    """Dotted names of all modules of the package."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("nest", *path.relative_to(SOURCE).with_suffix("").parts)
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


MODULES = names()


def part(module: str) -> str:
    """The row entry of a module: the file or folder right below the package."""
    return module.split(".")[1] if "." in module else ""


def source(module: str) -> Path:
    place = SOURCE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def imported(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}: relative import"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in MODULES else str(node.module)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")) and isinstance(node.args[0], ast.Constant):
        yield str(node.args[0].value)


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a module imports, anywhere in its text."""
    tree = ast.parse(source(module).read_text(encoding="utf-8"))
    return frozenset(name for node in ast.walk(tree) for name in imported(node, module))


def own(module: str) -> set[str]:
    return {name for name in imports(module) if name == "nest" or name.startswith("nest.")}


def reached(module: str) -> set[str]:
    """Modules of the package that a module imports, directly or through others."""
    found: set[str] = set()
    left = [module]
    while left:
        for name in own(left.pop()) - found:
            found.add(name)
            left.append(name)
    return found


@pytest.mark.parametrize("module", [name for name in MODULES if name != "nest"])
def test_imports_run_upwards_only(module: str) -> None:
    assert part(module) in ROW, f"{module} has no row in the table"
    wrong = [
        name for name in own(module) - {"nest"}
        if part(name) != part(module) and ROW[part(name)] >= ROW[part(module)]
    ]
    assert not wrong


def test_no_module_imports_itself_through_others() -> None:
    """No circles, inside folders either; a package's face is left out, it hands names on."""
    circles = [module for module in MODULES if module != "nest" and module in reached(module)]
    assert not circles


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(ast.parse(source(module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) == "_kernels"])
def test_kernels_know_numpy_numba_and_the_schedules_only(module: str) -> None:
    roots = {name if name.startswith("nest") else name.split(".")[0] for name in imports(module)}
    inside = {name for name in roots if part(name) in ("_kernels", "schedules", "records")}
    allowed = {"__future__", "collections", "contextlib", "functools", "os", "types", "typing",
               "numpy", "numba"}
    assert roots - inside <= allowed


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) == "schedules"])
def test_schedules_are_plain_python(module: str) -> None:
    """The kernels compile them, and the folder of compiled code is named after them."""
    outside = {name for name in imports(module) if part(name) != "schedules"}
    assert outside <= {"__future__", "bisect", "collections.abc", "dataclasses", "functools",
                       "itertools", "math", "typing"}


def test_only_one_file_knows_the_kernels() -> None:
    """They are loaded by name, with a cache of compiled code of their own."""
    for module in MODULES:
        if part(module) != "_kernels" and module != "nest.search.compiled":
            assert not {name for name in own(module) if part(name) == "_kernels"}, module
            assert "numba" not in {name.split(".")[0] for name in imports(module)}, module


def test_evaluation_shares_costs_and_schedules_with_the_search_and_nothing_else() -> None:
    used = {part(name) for name in reached("nest.evaluation.evaluate")} - {""}
    assert used == {"costs", "inputs", "errors", "schedules", "model", "limits", "evaluation",
                    "stacks", "network", "texts", "units", "plugins", "records"}  # no prices


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) == "planners"])
def test_planners_choose_without_the_search(module: str) -> None:
    assert not {part(name) for name in own(module)} & {"_kernels", "search"}


def test_the_table_is_the_one_that_contributing_prints() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| `")]
    places = []
    for row in ROWS:
        for name in row:
            found = [n for n, line in enumerate(table)
                     if any(f"`{name}{end}" in line.split("|")[1] for end in ("`", "/"))]
            assert found, f"{name} is not in the table"
            places.append(found[0])
    assert places == sorted(places)


def loaded_by(statement: str) -> set[str]:
    """Modules that a new interpreter holds after a statement."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); {statement}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"],
        capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_nest_loads_nothing_heavy() -> None:
    heavy = {"numba", "numpy", "pydantic", "yaml", "rich", "typer", "matplotlib"}
    assert not loaded_by("import nest") & heavy


def test_matplotlib_is_loaded_for_pictures_only() -> None:
    commands = "import nest.cli.main; nest.cli.main.main(['--help'])"
    modules = "import nest.cli.compare, nest.cli.measured, nest.report.validation_text"
    for statement in (commands, modules, "import nest.report.comparison_text"):
        assert "matplotlib" not in {name.split(".")[0] for name in loaded_by(statement)}
    drawn = "from nest.report.comparison_text import comparison_figure; comparison_figure((), '')"
    loaded = loaded_by(drawn)
    assert "matplotlib.figure" in loaded and "matplotlib.pyplot" not in loaded


def test_evaluate_loads_no_compiler() -> None:
    loaded = loaded_by("import nest; nest.evaluate; nest.load_model('bert-large')")
    assert "numpy" in loaded
    assert not loaded & {"numba", "nest.search.branch_and_bound", "nest._kernels"}
