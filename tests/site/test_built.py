"""The built site, in Chromium: search finds, nothing is requested elsewhere, phones fit.

`.ci/site` builds it, and names its folder in NEST_SITE.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SITE = os.environ.get("NEST_SITE", "")
pytestmark = pytest.mark.skipif(not SITE, reason="runs in .ci/site, which builds the site")
PAGES = ("index.html", "tutorial.html", "parallelism.html", "reference/support-matrix.html",
         "reference/errors.html", "reference/api.html", "reference/commands.html",
         "reference/fields.html", "reference/entries.html", "notebooks/first-plan.html",
         "accuracy.html", "proofs.html")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=shutil.which("chromium"),
                                       args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_pages_fit_and_ask_nobody(browser, address, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    page.on("request", lambda one: None if one.url.startswith((address, "data:", "blob:"))
            else wrong.append(one.url))
    for name in PAGES:
        page.goto(address + name)
        page.wait_for_selector("h1")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert (wide <= 1, wrong) == (True, []), name
    page.close()


@pytest.mark.parametrize(("words", "wanted"), [
    ("place class", "glossary.html"), ("bubble", "schedules.html"),
    ("after a loss of nodes", "replanning.html"),
    ("load_network", "reference/api.html"), ("memory_margin", "reference/fields.html"),
])
def test_search_finds(browser, address, words, wanted):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address + "index.html")
    page.press(".md-search__input", "End")
    page.type(".md-search__input", words)  # the page looks at keys, not at the text alone
    page.wait_for_selector(".md-search-result__link", timeout=90_000)
    page.wait_for_timeout(500)
    found = page.eval_on_selector_all(
        ".md-search-result__link", "all => all.map(one => one.href)")
    page.close()
    assert any(wanted in one for one in found), found


def test_every_page_is_in_the_search() -> None:
    index = json.loads((Path(SITE) / "search" / "search_index.json").read_text())
    places = {one["location"].partition("#")[0] for one in index["docs"]}
    built = {str(path.relative_to(SITE)) for path in Path(SITE).rglob("*.html")} - {"404.html"}
    assert built - places <= {"index.html"} and len(built) > 45


def test_pages_name_no_machine() -> None:
    for path in Path(SITE).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(?:root|home|tmp|work)/\w", text), path.name


def test_docstrings_have_meanings_where_numpydoc_has_types() -> None:
    place = Path(__file__).parents[2] / "docs" / "site" / "docstrings.py"
    spec = importlib.util.spec_from_file_location("docstrings", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.with_meanings(
        "One.\n\nParameters\n----------\na, b : what.\n    More.\n\nReturns\n-------\nA text\n")
    assert "a\n    what.\nb\n    what.\n    More." in made and "**Returns**\n\nA text" in made
