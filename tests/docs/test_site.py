"""The site without building it: its pages, its reference, its notebooks."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import nest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = loaded(DOCS / "site" / "pages.py")


def test_the_reference_has_every_public_name() -> None:
    names = [name for group in PAGES.API.values() for name in group]
    assert sorted(names) == sorted(nest.__all__)
    assert all(PAGES.home_of(name).startswith("nest.") for name in names)
    listed = (DOCS / "releases.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in listed] == []


def test_the_order_of_pages_is_that_of_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    found = {heading: [*map(str, (name for page in pages for name in page.values()))]
             for heading, pages in PAGES.sections(index)}
    assert list(found) == ["Get started", "How to", "Concepts", "Reference", "Results", "Theory"]
    every = [name for names in found.values() for name in names]
    assert len(every) == len(set(every))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= set(every)
    assert {f"notebooks/{path.name}" for path in NOTEBOOKS} <= set(every)


@pytest.mark.parametrize(("make", "wanted"), [
    ("commands_page", ["## nest plan", "## nest sweep show", "`--global-batch`"]),
    ("files_page", ["## plan", "## cluster", "`global_batch`", "whole number", "required",
                    "`gbs_seqs`"]),
    ("catalog_page", ["llama3-70b", "dgx-h100", "h100-sxm", "megatron-core", "schedules 1f1b"]),
    ("support_page", ["megatron-core", "extrapolated"]),
])
def test_generated_pages(make: str, wanted: list[str]) -> None:
    page = getattr(PAGES, make)()
    assert [word for word in wanted if word not in page] == []


def test_links_out_of_the_documents_become_text() -> None:
    class Page:
        class file:
            src_uri = "costs.md"

    page = PAGES.on_page_markdown(
        "[a](../src/nest/units.py) [b](../CONTRIBUTING.md#x) [c](examples/run.sh) [d](read.md)\n"
        "```\n[e](../f)\n```", Page, None, None)
    assert page == "a [b](contributing.md#x) c [d](read.md)\n```\n[e](../f)\n```"


def test_pictures_are_those_that_the_script_draws() -> None:
    draw = loaded(DOCS / "site" / "draw.py")
    for name, made in draw.PICTURES.items():
        assert (DOCS / "site" / f"{name}.svg").read_text(encoding="utf-8") == made(), name


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_print_what_they_show(path: Path) -> None:
    """Every cell again; times of processors differ."""
    names: dict[str, Any] = {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        wanted = "".join("".join(made["text"]) for made in cell["outputs"])
        assert steady(printed.getvalue()) == steady(wanted)
        shown += len(wanted)
    assert 0 < shown < 5000 and path.stat().st_size < 20_000


def steady(text: str) -> list[str]:
    return [line for line in text.splitlines() if not re.match(r"Processor|study-|/", line)]
