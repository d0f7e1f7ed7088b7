"""The browser of all pages: Debian's Chromium as .ci/browser installs it, or NEST_BROWSER."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("NEST_BROWSER") or shutil.which("chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; .ci/browser installs it")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed; .ci/browser installs it")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def barriers() -> Callable[[Any], list[tuple[str, str]]]:
    """What axe finds that keeps people out of a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright",
                              reason="axe is not installed; .ci/browser installs it")
    return lambda tab: [(one["id"], one["nodes"][0]["html"][:200])
                        for one in axe.Axe().run(tab).response["violations"]]
