"""The explorer: its page, token, catalog, pages, files, progress and cancelled questions."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for _module in ("fastapi", "httpx", "prometheus_client", "uvicorn"):
    pytest.importorskip(_module)
from fastapi.testclient import TestClient  # noqa: E402
from serving import serving  # noqa: E402

from nest import load_plan  # noqa: E402
from nest.report.web.pages import explorer_page, page  # noqa: E402
from nest.search.progress import Progress  # noqa: E402
from nest.server.app import application  # noqa: E402
from nest.server.followed import FollowedSearch, SearchFile  # noqa: E402
from nest.server.settings import ServerSettings  # noqa: E402

QUESTION = {"model": "bert-large", "cluster": {"base": "dgx-a100", "devices": 8},
            "job": {"global_batch": 64, "seq_len": 512}}
TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 4096}
"""The content of a config.json."""
SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(application(ServerSettings(workers=1, grace=1.0)), "http://localhost") as found:
        yield found


@pytest.fixture(scope="module")
def plan(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/v1/plan", json=QUESTION).json()["plan"]
    return found


def test_the_page_loads_nothing_and_asks_its_own_server_alone(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in
                  answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    text = answer.text
    for kind in ("script", "style"):  # what runs is what the policy names
        inner, = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.findall(r'(?:src|href)="(?!data:,|#)', text.partition("<script>")[0])
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in text
    assert {"nosniff", "no-referrer"} == {
        answer.headers["x-content-type-options"], answer.headers["referrer-policy"]}
    assert client.post("/", json={}).status_code == 405


def test_a_report_may_ask_nobody() -> None:
    assert "connect-src" not in page({"kind": "validation", "title": "</title><script>"})
    assert "</title><script>" not in page({"kind": "validation", "title": "</title><script>"})


def test_the_page_needs_no_token_and_all_that_it_asks_does() -> None:
    app = application(ServerSettings(workers=1, token=SECRET))
    client = TestClient(app, "http://planner.example")  # not started: nothing is planned
    text = client.get("/").text
    assert '"token":true' in text and SECRET not in text
    for path in ("/v1/catalog", "/v1/catalog/models/bert-large", "/v1/questions/x/events"):
        assert client.get(path).status_code == 401
    given = {"Authorization": f"Bearer {SECRET}"}
    assert client.get("/v1/catalog", headers=given).status_code == 200
    assert '"token":false' in explorer_page(False).text


def test_without_a_token_only_names_of_this_machine_have_the_page() -> None:
    client = TestClient(application(ServerSettings(workers=1)), "http://rebound.example")
    assert client.get("/").status_code == 403


def test_the_catalog_tells_an_entry_and_the_limits(client: TestClient) -> None:
    limits = client.get("/v1/catalog").json()["limits"]
    assert (limits["devices"], limits["seconds"]) == (131_072, 60.0)
    found = client.get("/v1/catalog/clusters/DGX-H100").json()
    assert found["fields"]["levels"][0]["link"] == "nvlink4"
    assert found["facts"]["levels"][0]["bandwidth"] == 450e9
    for path in ("clusters/..%2F..%2Fpyproject", "files/x", "clusters/dgx-h10"):
        answer = client.get(f"/v1/catalog/{path}")
        assert answer.status_code == 404 and answer.json()["error"] == "input"
    client.get("/v1/catalog/made-up-section/made-up-name")
    assert "made-up" not in client.get("/metrics").text


def test_pages_of_plans(client: TestClient, plan: dict) -> None:
    whole = client.post("/v1/page", json={"plan": plan}).json()
    assert whole["schema"] == "nest.page/1.0" and whole["page"]["kind"] == "plan"
    assert whole["page"]["title"] == load_plan(plan).headline
    first = client.post("/v1/page", json={"plan": plan, "whole": False}).json()["page"]
    assert first["kind"] == "first" and first["steps"] == whole["page"]["steps"]
    pair = client.post("/v1/page", json={"plan": plan, "other": plan, "names": ["one", "two"]})
    assert pair.json()["page"]["names"] == ["one", "two"]
    for wrong in ({}, {"plan": {"schema": "nest.plan/1"}}, {"plan": plan, "whole": "maybe"},
                  {"plan": "plan.json"}, {"plan": plan, "other": 5}):
        assert client.post("/v1/page", json=wrong).status_code == 400, wrong


def test_files_that_launch_a_plan(client: TestClient, plan: dict) -> None:
    tiny = client.post("/v1/plan", json={**QUESTION, "model": TINY}).json()["plan"]
    found = client.post("/v1/export", json={"plan": tiny}).json()
    assert found["target"] == "megatron" and "torchrun" in found["files"]["launch.sh"]
    assert client.post("/v1/export", json={"plan": plan, "target": "megatrn"}).status_code == 400
    for target in (None, "maxtext"):  # no target trains encoders
        other = client.post("/v1/export", json={"plan": plan, "target": target})
        assert other.status_code == 422 and other.json()["error"] == "unsupported"


def test_events_of_a_question_end_with_its_answer(client: TestClient) -> None:
    asked = client.post("/v1/questions", json={"question": {**QUESTION, "top": 2}}).json()
    with client.stream("GET", f"/v1/questions/{asked['id']}/events") as stream:
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1]["state"] == "done" and events[-1]["answer"]["plan"]["optimal"]
    for one in events[:-1]:
        assert {"plan", "page"} == {*one} or one["seconds"] >= 0.0
    assert client.get("/v1/questions/unknown/events").status_code == 404


def test_a_search_tells_its_best_plan_and_stops_when_asked(tmp_path: Path, plan: dict) -> None:
    best = load_plan(plan)
    file = SearchFile(str(tmp_path))
    with FollowedSearch(file.place) as follow:
        assert file.read() is None
        assert follow(Progress(0.1, 0, 9, None, None, None))
        assert file.read() == {"progress": {"seconds": 0.1, "proved": 0, "total": 9, "gap": None,
                                            "step_time_s": None, "lower_bound_s": None}}
        assert follow(Progress(0.2, 1, 9, best.step_time_s, 0.1, 0.5, lambda: best))
        found = file.read() or {}
        assert found["plan"]["step_time_s"] == best.step_time_s
        assert found["page"]["kind"] == "first"
        # a plan is priced once: another search would have to be better
        assert follow(Progress(0.3, 2, 9, best.step_time_s, 0.1, 0.5, lambda: 1 / 0))
        file.stop()
        assert not follow(Progress(0.4, 2, 9, None, None, None))
    assert not [*tmp_path.iterdir()]


def test_a_cancelled_question_leaves_its_worker_warm() -> None:
    long = {"model": "llama2-7b", "cluster": {"base": "dgx-h100", "devices": 64},
            "job": {"global_batch": 256, "seq_len": 4096}, "search": {"beyond_stack": True}}
    with serving("--workers", "1", "--grace", "0.1") as server:
        server.ask("/v1/plan", QUESTION)
        before = server.workers
        name = server.ask("/v1/questions", {"question": long})[1]["id"]
        stream = server.events(f"/v1/questions/{name}/events")
        assert next(stream)[0] in ("progress", "plan")  # it searches
        assert server.drop(f"/v1/questions/{name}")["state"] == "cancelled"
        assert [*stream][-1][1]["state"] == "cancelled"
        assert server.ask("/v1/plan", {**QUESTION, "id": 2})[0] == 200
        assert server.workers == before
