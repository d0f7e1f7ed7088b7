"""The explorer of `nest serve` in a real browser: answers, cancels, survives, shares, saves."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from serving import Server, serving

for _module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(_module)
import nest  # noqa: E402

LONG = 90_000
"""Milliseconds of an answer, at most: the machine of the tests compiles nothing."""
SMALL = {"model": "bert-large", "cluster": "dgx-a100", "devices": 8, "batch": 64, "seq": 512}
TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 4096}
"""The content of a config.json."""
SECRET = "0123456789abcdef"
REFUSED = "Failed to load resource"
"""What the browser itself says of an answer that is an error."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--workers", "2", "--grace", "0.1") as found:
        yield found


def link(port: int, a: dict | None = None, b: dict | None = None) -> str:
    state = {"a": a or SMALL, "b": b}
    return f"http://127.0.0.1:{port}/#q={quote(json.dumps(state))}"


@contextmanager
def explored(browser: Any, address: str, width: int = 1440, theme: str = "light",
             allowed: str | None = None) -> Iterator[Any]:
    """The page in a tab of its own; what it says or asks for that it should not fails.

    ``allowed``: beginning of messages of the browser that are expected.
    """
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=theme,
                                  accept_downloads=True)
    tab, wrong = context.new_page(), list[str]()
    tab.set_default_timeout(LONG)
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
    own = "/".join(address.split("/")[:3]) + "/"
    tab.on("request", lambda asked: None if asked.url.startswith((own, "blob:", "data:"))
           else wrong.append(asked.url))
    tab.goto(address)
    yield tab
    context.close()
    assert not [one for one in wrong if allowed is None or not one.startswith(allowed)]


def until(tab: Any, script: str, given: Any = None) -> None:
    """Wait for something on the page, whose policy forbids what Playwright's own waiting does."""
    ends = time.monotonic() + LONG / 1000
    while not tab.evaluate(script, given):
        assert time.monotonic() < ends, script
        tab.wait_for_timeout(30)


def proved(tab: Any, letter: str = "a") -> str:
    """Wait for a proved answer and its whole page; the text of its card."""
    tab.locator(f"#card-{letter} .state.good").wait_for()
    return str(tab.locator(f"#card-{letter}").inner_text())


def state_of(tab: Any) -> dict:
    found: dict = tab.evaluate("JSON.parse(decodeURIComponent(location.hash.slice(3)))")
    return found


@pytest.mark.kernels(uncompiled=True)
def test_the_answer_is_that_of_nest_plan(browser, server) -> None:
    with explored(browser, link(server.port)) as tab:
        text = proved(tab)
        tab.locator("#timeline canvas").wait_for()
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Plan (.json)").click()
        plan = nest.load_plan(json.loads(saved.value.path().read_text("utf-8")))
        expected = nest.plan(
            nest.load_model("bert-large"), nest.load_cluster("dgx-a100", devices=8),
            nest.Job(global_batch=64, seq_len=512), threads=1)
        assert saved.value.suggested_filename == "bert-large.json"
        assert plan.step_time_s == expected.step_time_s and plan.optimal
        assert "Proved" in text and "tokens/s" in text
        for part in ("#answer", "#step .bar", "#devices svg", "#memory .bar", "#options tbody tr"):
            assert tab.locator(part).count() >= 1, part
        assert tab.locator("#report").inner_text().count("NaN") == 0


def test_a_change_asks_again_and_the_earlier_question_is_cancelled(browser, server) -> None:
    with explored(browser, link(server.port)) as tab:
        proved(tab)
        cancelled: list[str] = []
        tab.on("request", lambda one: cancelled.append(one.url) if one.method == "DELETE" else None)
        tab.select_option("#ask-model", "llama2-7b")  # seconds without compiled kernels
        until(tab, "/[.] (The rest|.* proved)|Looking for a first plan, /.test("
                              "document.querySelector('#card-a .state').innerText)")
        tab.select_option("#ask-model", "bert-large")
        tab.fill("#ask-batch-exact", "72")
        tab.keyboard.press("Tab")
        until(tab, "document.querySelector('#card-a h2').innerText.includes('72 x')")
        proved(tab)
        assert cancelled and all("/v1/questions/" in one for one in cancelled)
        tab.locator("#report #launch").wait_for()  # the last thing that is asked
        assert server.figure("nest_running") == 0 and server.figure("nest_waiting") == 0
        assert server.figure("nest_worker_deaths") == 0
        assert state_of(tab)["a"]["batch"] == 72


def test_sliders_and_levels_change_the_question(browser, server) -> None:
    with explored(browser, link(server.port)) as tab:
        proved(tab)
        before = tab.locator("#card-a .big").inner_text()
        tab.locator("#ask-rate").focus()
        for _ in range(4):
            tab.keyboard.press("ArrowLeft")
        until(tab, "before => document.querySelector('#card-a .state.good') && "
                              "document.querySelector('#card-a .big').innerText !== before",
                              before)
        tab.locator("summary", has_text="The question as JSON").click()
        tab.locator("summary", has_text="Levels of the network").click()
        assert tab.locator(".drawing svg rect").count() >= 8
        tab.fill("#ask-level-0-size", "4")
        tab.keyboard.press("Tab")
        until(tab, "document.querySelector('#question pre').innerText.includes("
                              "'\"size\": 4')")
        assert '"bandwidth": "75 GB/s"' in tab.locator("#question pre").inner_text()
        proved(tab)
        assert state_of(tab)["a"]["levels"][0]["size"] == 4


def test_a_dimension_is_fixed_by_a_click(browser, server) -> None:
    with explored(browser, link(server.port), allowed=REFUSED) as tab:
        proved(tab)
        tab.locator("#ask-free-tp").click()
        field = tab.locator("#ask-bound-tp")
        until(tab, "document.activeElement.id === 'ask-bound-tp'")
        field.fill("2")
        tab.keyboard.press("Enter")
        until(tab, "document.querySelector('#card-a [role=progressbar]')")
        proved(tab)
        until(tab, "[...document.querySelectorAll('#answer .chips li')].some((one) => "
                              "/^Tensor parallel\\s+2/.test(one.innerText))")
        field.fill("0")
        tab.keyboard.press("Enter")
        problem = tab.locator("#card-a .problems button")
        problem.wait_for()
        assert "allowed: 1 to" in problem.inner_text()
        assert tab.locator("#ask-bound-tp").get_attribute("aria-invalid") == "true"
        problem.click()
        assert field.evaluate("node => node === document.activeElement")
        tab.get_by_role("button", name="Leave tensor parallel open again").click()
        proved(tab)
        assert state_of(tab)["a"]["space"] == {}


def test_a_pasted_model_is_read_and_a_bad_one_told(browser, server) -> None:
    pasted = {**SMALL, "model": "...", "modelText": "<img src=x onerror=alert(1)>"}
    with explored(browser, link(server.port, pasted)) as tab:
        problem = tab.locator("#card-a .problems li")
        problem.wait_for()
        assert "model: got" in problem.inner_text() and "<img src=x" in problem.inner_text()
        tab.fill("#ask-model-text", json.dumps(TINY))
        tab.locator("#ask-batch").focus()
        proved(tab)
        assert "a pasted model" in tab.locator("#card-a h2").inner_text()


def test_two_questions_stand_side_by_side_and_a_link_holds_both(browser, server) -> None:
    with explored(browser, link(server.port)) as tab:
        proved(tab)
        tab.get_by_role("button", name="Compare with a second question").click()
        tab.fill("#ask-batch-exact", "128")
        tab.keyboard.press("Tab")
        until(tab, "document.querySelector('#card-b h2').innerText.includes('128 x')")
        proved(tab, "b")
        tab.locator("#why .bar").first.wait_for()
        assert tab.locator("#rows tbody tr").count() > 5
        address = tab.url
        tab.get_by_role("button", name="Plan A").click()
        tab.locator("#report #launch").wait_for()
    with explored(browser, address) as again:
        again.locator("#why .bar").first.wait_for()
        assert "64 x 512" in again.locator("#card-a h2").inner_text()
        assert "128 x 512" in again.locator("#card-b h2").inner_text()
        again.get_by_role("button", name="Question B").click()
        again.get_by_role("button", name="Remove B").click()
        again.locator("#report #launch").wait_for()
        assert state_of(again)["b"] is None


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(browser, server, barriers, width: int, theme: str) -> None:
    with explored(browser, link(server.port, SMALL, {**SMALL, "batch": 128}), width, theme) as tab:
        tab.locator("#why .bar").first.wait_for()
        tab.locator("summary", has_text="Levels of the network").click()
        tab.locator("#ask-free-pp").click()
        tab.get_by_role("button", name="Study ...").click()
        assert not barriers(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.locator("#card-b .state.good").wait_for()
        tab.keyboard.press("Tab")


def test_keys_alone_ask_and_walk(browser, server) -> None:
    with explored(browser, link(server.port)) as tab:
        proved(tab)
        tab.keyboard.press("Tab")
        assert tab.locator(".skip").evaluate("node => node === document.activeElement")
        address = tab.url
        tab.keyboard.press("Enter")
        assert tab.url == address  # the link still holds the question
        tab.locator("#ask-devices").focus()
        tab.keyboard.press("ArrowLeft")
        until(tab, "document.querySelector('#card-a h2').innerText.includes('on 4 ')")
        proved(tab)
        nav = tab.locator("#report nav a", has_text="Memory")
        nav.focus()
        tab.keyboard.press("Enter")
        assert tab.locator("#memory").evaluate("node => node === document.activeElement")


def test_files_of_the_launch_and_of_a_study(browser, server) -> None:
    tiny = {**SMALL, "model": "...", "modelText": json.dumps(TINY)}
    with explored(browser, link(server.port, tiny)) as tab:
        proved(tab)
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Launch files (.zip)").click()
        with zipfile.ZipFile(io.BytesIO(saved.value.path().read_bytes())) as files:
            assert files.testzip() is None
            assert any("torchrun" in files.read(name).decode() for name in files.namelist())
        tab.get_by_role("button", name="Study ...").click()
        tab.fill("#axis-devices", "4, 8")
        tab.fill("#axis-batch", "64")
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Study file (.json)").click()
        study = json.loads(saved.value.path().read_text("utf-8"))
        assert study["axes"] == {"cluster.devices": [4, 8], "job.global_batch": [64]}
        tab.get_by_role("button", name="Ask it here").click()
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Answers (.csv)").click()
        assert saved.value.path().read_text("utf-8").count("\n") == 3
        tab.locator("#best tbody tr").first.wait_for()


def test_a_token_is_asked_for_and_kept_in_the_tab(browser, monkeypatch) -> None:
    monkeypatch.setenv("NEST_TOKEN", SECRET)
    with serving("--workers", "1", "--grace", "0.1") as server, explored(
            browser, link(server.port), allowed=REFUSED) as tab:
        tab.fill("#token", "not the right one")
        tab.keyboard.press("Enter")
        tab.locator("dialog .wrong").wait_for()
        tab.fill("#token", SECRET)
        tab.keyboard.press("Enter")
        proved(tab)
        assert tab.evaluate("localStorage.length") == 0 and SECRET not in tab.url
        tab.reload()
        proved(tab)  # of the session
        assert tab.context.cookies() == []


def test_a_restarted_server_is_asked_again(browser) -> None:
    with serving("--workers", "1", "--grace", "0.1") as first:
        port = first.port
        with explored(browser, link(port), allowed=REFUSED) as tab:
            proved(tab)
            first.end()
            assert first.process.wait(60) == 0
            tab.fill("#ask-batch-exact", "80")
            tab.keyboard.press("Tab")
            tab.locator("#card-a .state.warn", has_text="asking again").wait_for()
            with serving("--workers", "1", "--grace", "0.1", port=port):
                proved(tab)
                assert "80 x 512" in tab.locator("#card-a h2").inner_text()
                tab.locator("#report #launch").wait_for()


def test_hostile_links_and_names_stay_text(browser, server) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    for state in ({"a": {**SMALL, "cluster": hostile, "model": hostile, "stack": hostile}},
                  {"a": {"levels": [{"name": hostile, "size": hostile}, 5, None], "space": 7,
                         "devices": "many", "batch": None}, "b": [1]},
                  hostile):
        address = f"http://127.0.0.1:{server.port}/#q={quote(json.dumps(state))}"
        with explored(browser, address, allowed=REFUSED) as tab:
            tab.locator("#card-a .problems li, #card-a .state").first.wait_for()
            assert tab.locator("img").count() == 0
    with explored(browser, f"http://127.0.0.1:{server.port}/#q=%7B%22a", allowed=REFUSED) as tab:
        tab.locator("#card-a").wait_for()
