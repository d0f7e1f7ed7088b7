"""Pages in a real browser: no error, no request, every figure drawn, and usable by everybody."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from report_plans import PLANS, STUDY, catalog_runs, plan_of
from simulated_runs import Disturbed, snapshot_of

from nest import diagnose
from nest.measured.validation import price, read, score
from nest.planners.compare import ComparedPlan
from nest.report.web.compared import pair_document
from nest.report.web.diagnosed import diagnosis_document
from nest.report.web.document import facts, plan_document
from nest.report.web.pages import page as html_of
from nest.report.web.planners import comparison_document
from nest.report.web.validated import validation_document
from nest.studies.sweep import load_study, sweep

READY_MS = 2000
"""In which a page must stand (asked)."""
PAPER = 700
"""Pixels of A4 between its margins of 12 mm, at 96 a 25.4 mm."""


@cache
def _document(name: str) -> dict:
    plan = plan_of(name)
    return plan_document(plan, facts(plan), "PLAN.json", ("megatron", {"launch.sh": "run"})).data()


def opened(browser: Any, folder: Path, document: dict, width: int = 1440, theme: str = "light"
           ) -> tuple[Any, list[str]]:
    """A page, and everything that it says or asks for that it should not."""
    file = folder / "page.html"
    file.write_text(html_of(document), "utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    wrong: list[str] = []
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
    tab.on("request", lambda asked: None if asked.url == file.as_uri() else wrong.append(asked.url))
    tab.goto(file.as_uri())
    return tab, wrong


def paints(tab: Any, selector: str = "canvas") -> int:
    """Different colours of a canvas, of every 50th pixel."""
    return tab.evaluate("""selector => { const c = document.querySelector(selector);
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
        for (let n = 0; n < d.length; n += 200) seen.add(d[n] + ',' + d[n+1] + ',' + d[n+2]);
        return seen.size; }""", selector)


@pytest.mark.parametrize("name", PLANS)
def test_every_figure_is_drawn(browser, folder, name: str) -> None:
    tab, wrong = opened(browser, folder, _document(name))
    assert int(tab.evaluate("document.documentElement.dataset.ready")) < READY_MS
    stages = len(plan_of(name).stages)
    assert paints(tab) >= 5
    for stage in range(stages):
        assert tab.locator(f"#devices svg .stage{stage}").count() >= 1
    assert tab.locator("#step .waterfall .bar").count() == len(_document(name)["steps"]) + 1
    assert tab.locator("#memory .bar").count() == stages
    assert tab.locator("#memory path.curve").get_attribute("d").count("L") > 5
    assert tab.locator("#links .bar .part").count() >= 1
    assert tab.locator("#options tbody tr").count() >= 1
    assert tab.locator("#resources tbody tr").count() >= 4
    assert tab.locator("#launch pre").count() >= 2
    assert (tab.locator("#devices svg .idle").count() > 0) == (name == "idle")
    assert not wrong
    tab.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(browser, folder, barriers, width: int, theme: str) -> None:
    for name in ("hundreds", "torus"):
        tab, wrong = opened(browser, folder, _document(name), width, theme)
        assert not barriers(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
        assert not wrong
        tab.close()


def test_terms_explain_themselves(browser, folder) -> None:
    tab, _ = opened(browser, folder, _document("hundreds"))
    term = tab.locator("dfn", has_text="Tensor parallel").first
    term.hover()
    assert "matrices are split" in tab.locator("#tip").inner_text()
    tab.mouse.move(5, 5)
    assert tab.locator("#tip").is_hidden()
    term.focus()
    assert tab.locator("#tip").is_visible()
    tab.keyboard.press("Escape")
    assert tab.locator("#tip").is_hidden()
    tab.locator("#step .bar .track").first.hover()
    assert "Shorter with" in tab.locator("#tip").inner_text()
    tab.locator("#devices svg g[data-tip]").first.hover()
    assert "stage 0" in tab.locator("#tip").inner_text()
    tab.close()


def test_the_timeline_zooms_to_one_pass(browser, folder) -> None:
    tab, wrong = opened(browser, folder, _document("hundreds"))
    state = tab.locator("#timeline [aria-live]")
    whole = state.inner_text()
    assert "zoom" not in whole
    tab.get_by_role("button", name="One pass, by layer").click()
    assert "zoom" in state.inner_text() and paints(tab) >= 5
    canvas = tab.locator("#timeline canvas")
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] / 2, "y": 35})
    assert "layers" in tab.locator("#tip").inner_text()
    canvas.focus()
    tab.keyboard.press("Home")
    assert state.inner_text() == whole
    for _ in range(4):
        tab.keyboard.press("+")
    near = state.inner_text()
    assert "zoom 8 x" in near
    tab.keyboard.press("ArrowRight")
    assert state.inner_text() != near
    tab.keyboard.press("ArrowDown")
    assert "tage 0" in state.inner_text()
    tab.keyboard.press("Home")
    canvas.click(position={"x": 200, "y": 35})
    assert "framed: micro-batch" in state.inner_text()
    tab.mouse.move(box["x"] + 600, box["y"] + 40)
    tab.keyboard.press("+")
    before = state.inner_text()
    tab.mouse.down()
    tab.mouse.move(box["x"] + 300, box["y"] + 40)
    tab.mouse.up()
    assert state.inner_text() != before
    assert not wrong
    tab.close()


def test_themes_and_print(browser, folder) -> None:
    tab, wrong = opened(browser, folder, _document("eight"), theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = tab.evaluate(ground)
    tab.get_by_role("button", name="Light / dark").click()
    assert tab.evaluate(ground) != dark and paints(tab) >= 5
    assert len(tab.pdf()) > 20_000
    tab.emulate_media(media="print")
    assert tab.locator("nav").is_hidden() and tab.locator("#assumed").is_visible()
    assert not wrong
    tab.close()


@pytest.fixture(scope="module")
def others(folder: Path) -> dict[str, dict]:
    """A page of two plans, of a study, a validation, a diagnosis and a comparison."""
    plans = plan_of("eight"), plan_of("zero bubble")
    (folder / "runs.csv").write_text(catalog_runs(12), "utf-8")
    (folder / "study.json").write_text(json.dumps(STUDY), "utf-8")
    done = sweep(load_study(str(folder / "study.json")), folder=str(folder / "answers"))
    slow = Disturbed(plans[0], computing=1.5)
    slow.log(folder / "train.log")
    slow.trace(folder / "rank0.json", 0, 0)
    (folder / "rank0.pickle").write_bytes(pickle.dumps(snapshot_of({"activations": 2**34})))
    diagnosis = diagnose(plans[0], str(folder / "train.log"), [str(folder / "rank0.json")],
                         [str(folder / "rank0.pickle")])
    compared = [ComparedPlan(name, plan, None, 1.0) for name, plan in zip("ab", plans, strict=True)]
    return {
        "diagnosis": diagnosis_document(diagnosis, "train.log"),
        "comparison": comparison_document([*compared, ComparedPlan("c", None, "no plan", 0.1)]),
        "pair": pair_document(plans, tuple(plan_document(one, facts(one)) for one in plans),
                              ("a.json", "b.json")).data(),
        "study": done.document(),
        "validation": validation_document(score(price(read(str(folder / "runs.csv")))), "runs")}


FILLED = {"pair": ("#why .bar", "#rows tr", "#step .waterfall", "#timeline canvas", "#memory .bar",
                   "#devices svg .stage1"),
          "study": ("#best tbody tr", "#front circle.strong", "#heat .cell", "#heat .empty",
                    "#effects .bar"),
          "diagnosis": ("#answer .waterfall .bar", "#causes .cause li", "#parts tbody tr",
                        "#memory .bar", "#sources li"),
          "comparison": ("#answer .bar .part", "#rows tbody tr.refused", "#steps .strip span",
                         "#plans tbody tr.short"),
          "validation": ("#sure dd", "#parity circle", "#groups tbody tr", "#refused p")}
"""What each page has at least one of."""


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("kind", FILLED)
def test_other_pages_stand_as_well(
    browser, folder, others, barriers, kind: str, width: int
) -> None:
    for theme in ("light", "dark"):
        tab, wrong = opened(browser, folder, others[kind], width, theme)
        for selector in FILLED[kind]:
            assert tab.locator(selector).count() >= 1, selector
        assert not barriers(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert not wrong
        tab.close()


@pytest.mark.parametrize("name", ["hundreds", "torus"])
def test_paper_holds_all_figures(browser, folder, name: str) -> None:
    """Nothing is wider than a page, no page is nearly empty, and a dark screen prints light."""
    pymupdf = pytest.importorskip("pymupdf", reason=".ci/browser installs it")
    tab, wrong = opened(browser, folder, _document(name), theme="dark")
    for event in ("beforeprint", "afterprint"):  # the figures themselves, as wide as paper
        tab.evaluate("name => dispatchEvent(new Event(name))", event)
        wide = tab.evaluate("[...document.querySelectorAll('#page svg, #page canvas')].map("
                            "(one) => one.getBoundingClientRect().width)")
        assert (max(wide) <= PAPER) == (event == "beforeprint")
    with pymupdf.open(stream=tab.pdf(format="A4", prefer_css_page_size=True)) as printed:
        text = [page.get_text() for page in printed]
        for page in printed:
            corner = page.get_pixmap(dpi=20).pixel(1, 1)
            assert corner == (255, 255, 255)
            right = max((block[2] for block in page.get_text("blocks")), default=0.0)
            assert right <= page.rect.width - 20.0
    assert all(len(one) > 150 for one in text[:-1])
    for words in ("What to run", "Where the step goes", "GiB", "What was assumed"):
        assert any(words in one for one in text)
    assert not any("Drag to move" in one or "Zoom in" in one for one in text)
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not wrong
    tab.close()


def test_hostile_names_stay_text(browser, folder) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"

    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: one if name == "kind" else poisoned(one) for name, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one) for one in value]
        plain = isinstance(value, str) and not value.startswith("#") and value != "plan"
        return f"{value} {hostile}" if plain else value

    tab, wrong = opened(browser, folder, poisoned(_document("eight")))
    assert tab.locator("img").count() == 0
    assert hostile in tab.locator("h1").inner_text()
    tab.locator("#step .bar .track").first.hover()
    assert not wrong
    tab.close()
