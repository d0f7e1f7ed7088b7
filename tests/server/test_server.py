"""The addresses of a server: answers, errors, tokens, limits, sweeps, figures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
from fastapi.testclient import TestClient  # noqa: E402

from nest import InputError, __version__, load_plan, plan  # noqa: E402
from nest.questions import read_question  # noqa: E402
from nest.server.app import application  # noqa: E402
from nest.server.schema import openapi  # noqa: E402
from nest.server.settings import TOKEN, ServerSettings, token_of  # noqa: E402

QUESTION = {"model": "bert-large", "cluster": {"base": "dgx-a100", "devices": 8},
            "job": {"global_batch": 64, "seq_len": 512}}
STUDY = {**QUESTION, "name": "lengths", "axes": {"job.seq_len": [128, 256, 384, 512]}}
SECRET = "0123456789abcdef"
LOCAL = "http://localhost"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(application(ServerSettings(workers=1, grace=1.0)), LOCAL) as found:
        yield found


def error(answer: Any, status: int, name: str | None = None) -> dict:
    assert answer.status_code == status, answer.text[:500]
    found = answer.json()
    assert found["schema"] == "nest.error/1" and found["message"] and found["problems"]
    assert name is None or found["error"] == name
    return found


@pytest.mark.kernels
def test_plans_are_those_of_nest_plan(client: TestClient) -> None:
    answer = client.post("/v1/plan", json={**QUESTION, "id": 7})
    assert answer.status_code == 200, answer.text[:500]
    found = answer.json()
    question, _ = read_question(QUESTION)
    expected = plan(question.subject, question.cluster, question.job, threads=1)
    assert found["id"] == 7 and found["plan"]["step_time_s"] == expected.step_time_s
    assert load_plan(found["plan"]).configuration == expected.configuration


def figure(client: TestClient, name: str) -> float:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_kept_answers_are_given_the_name_of_their_question(client: TestClient) -> None:
    client.post("/v1/plan", json=QUESTION)
    before = figure(client, 'nest_cached_total{what="question"}')
    found = client.post("/v1/plan", json={**QUESTION, "id": "other"}).json()
    assert found["id"] == "other"
    assert figure(client, 'nest_cached_total{what="question"}') == before + 1
    again = figure(client, 'nest_cached_total{what="request"}')
    assert client.post("/v1/plan", json={**QUESTION, "id": "other"}).json() == found
    assert figure(client, 'nest_cached_total{what="request"}') == again + 1


def test_a_plan_document_is_priced_and_planned_again(client: TestClient) -> None:
    found = client.post("/v1/plan", json=QUESTION).json()["plan"]
    again = client.post("/v1/evaluate", json=found).json()["plan"]
    assert again["step_time_s"] == found["step_time_s"]
    next_ = client.post("/v1/replan", json={"plan": found, "without": ["nvlink0/device3"]})
    assert next_.status_code == 200, next_.text[:500]
    assert next_.json()["plan"]["inputs"]["cluster"]["devices"] == 7
    error(client.post("/v1/replan", json={"plan": found, "without": ["node7"]}), 400, "input")


def test_planners_are_compared(client: TestClient) -> None:
    answer = client.post("/v1/compare", json={**QUESTION, "planners": ["nest", "manual"]})
    assert [one["planner"] for one in answer.json()["planners"]] == ["nest", "manual"]


@pytest.mark.parametrize("data, said", [
    ({}, "cluster: missing"), ({**QUESTION, "model": "bert"}, "bert-large"),
    ({**QUESTION, "cluster": {"base": "dgx-a100", "devices": 10**6}}, "allowed: 131072"),
    ({**QUESTION, "job": {"global_batch": "many", "seq_len": 1}}, "global_batch"),
])
def test_bad_questions_are_told(client: TestClient, data: dict, said: str) -> None:
    assert said in error(client.post("/v1/plan", json=data), 400, "input")["message"]


def test_what_fits_nowhere_is_told(client: TestClient) -> None:
    found = error(client.post("/v1/plan", json={**QUESTION, "model": "gpt3-175b"}), 422,
                  "infeasible")
    assert found["nearest"]


def test_other_addresses_methods_and_types(client: TestClient) -> None:
    error(client.get("/v1/nothing"), 404)
    error(client.get("/healthz/", follow_redirects=False), 404)
    error(client.get("/v1/plan"), 405)
    error(client.post("/v1/plan", content="{}", headers={"content-type": "text/plain"}), 415)
    error(client.post("/v1/plan", content=b"x" * (4 * 2**20 + 1),
                      headers={"content-type": "application/json"}), 413)
    error(client.get("/v1/catalog", headers={"host": "evil.example"}), 403)
    assert client.get("/v1/catalog", headers={"host": "LocalHost:8316"}).status_code == 200
    twice = [("host", "evil.example"), ("host", "localhost")]
    error(client.get("/v1/catalog", headers=twice), 400)
    for kind in ("application/JSON", "Application/json; charset=UTF-8"):
        error(client.post("/v1/plan", content="{}", headers={"content-type": kind}), 400)


def test_a_client_that_hangs_up_is_no_defect(client: TestClient) -> None:
    """Nothing is raised, which would be logged with its place and counted as status 500."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    for path in ("/v1/plan", "/v1/sweeps"):
        asyncio.run(client.app({  # type: ignore[arg-type]
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
            "headers": headers}, receive, send))
    assert [one["status"] for one in sent if "status" in one] == [400, 400]


def test_names_health_and_description(client: TestClient) -> None:
    assert "llama3-70b" in client.get("/v1/catalog").json()["models"]
    assert client.get("/readyz").json()["status"] == "ready"
    assert client.get("/healthz").json() == {"status": "ok", "version": __version__}
    found = client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    assert {"/v1/plan", "/v1/evaluate", "/v1/compare", "/v1/replan", "/v1/sweeps"} <= set(
        found["paths"])
    operations = [one["operationId"] for path in found["paths"].values()
                  for one in path.values() if isinstance(one, dict)]
    assert len(set(operations)) == len(operations) == 24
    names = set(found["components"]["schemas"])
    used = {part.split('"')[0] for part in json.dumps(found).split("#/components/schemas/")[1:]}
    assert used <= names


@pytest.mark.parametrize("path, operation", [
    ("plan", "plan"), ("evaluate", "evaluate"), ("compare", "compare"), ("batch", "batch"),
    ("questions", "submit"), ("sweeps", "startSweep")])
def test_examples_are_answered(client: TestClient, path: str, operation: str) -> None:
    found = openapi()
    post = found["paths"][f"/v1/{path}"]["post"]
    body = post["requestBody"]["content"]["application/json"]
    assert post["operationId"] == operation
    jsonschema.validate(body["example"], {**body["schema"], "components": found["components"]})
    assert client.post(f"/v1/{path}", json=body["example"]).status_code in (200, 202)


def test_numbers_have_minima() -> None:
    schemas = openapi()["components"]["schemas"]
    for name, field, least in (("Job", "global_batch", 1), ("Question", "top", 1),
                               ("Model", "layers", 1), ("Sample", "seed", 0)):
        assert schemas[name]["properties"][field]["minimum"] == least
    for text in ("ge", "gt", "le", "lt", "min_length", "max_length"):
        assert f'"{text}": ' not in json.dumps(openapi())


def test_many_questions_in_one_request(client: TestClient) -> None:
    asked = [{**QUESTION, "id": 1}, {**QUESTION, "id": 2, "model": "bert"},
             {**QUESTION, "id": 3, "model": "gpt3-175b"}, {**QUESTION, "id": 1, "top": 2}]
    answer = client.post("/v1/batch", json={"questions": asked})
    found = answer.json()
    assert answer.status_code == 200 and found["schema"] == "nest.batch/1.0"
    assert [one["id"] for one in found["answers"]] == [1, 2, 3, 1]
    assert [one.get("error") for one in found["answers"]] == [None, "input", "infeasible", None]
    assert found["answers"][0] == client.post("/v1/plan", json=asked[0]).json()
    for bad in ({"questions": []}, {"questions": [3]}, {"questions": asked, "to": "sweeps"}, {},
                {"questions": [asked[0]] * 1001}):
        error(client.post("/v1/batch", json=bad), 400, "input")


def test_questions_are_asked_for_later(client: TestClient) -> None:
    started = client.post("/v1/questions", json={"question": {**QUESTION, "id": "later"}})
    assert started.status_code == 202, started.text
    place = started.headers["location"]
    found = client.get(f"{place}?wait=60").json()
    assert (found["state"], found["status"], found["to"]) == ("done", 200, "plan")
    assert found["answer"] == client.post("/v1/plan", json={**QUESTION, "id": "later"}).json()
    place = client.post("/v1/questions", json={
        "question": {**QUESTION, "model": "gpt3-175b"}}).headers["location"]
    found = client.get(f"{place}?wait=60").json()
    assert (found["status"], found["answer"]["error"]) == (422, "infeasible")
    error(client.post("/v1/questions", json={"question": {}}), 400, "input")
    error(client.post("/v1/questions", json=QUESTION), 400, "input")
    error(client.get("/v1/questions/none"), 404)
    error(client.delete("/v1/questions/none"), 404)
    error(client.get(f"{place}?wait=long"), 400)


HARD = {"model": "deepseek-v3", "cluster": {"base": "dgx-h100", "devices": 4096},
        "job": {"global_batch": 4096, "seq_len": 4096}, "search": {"beyond_stack": True}}


def test_questions_that_nobody_waits_for_are_given_up(client: TestClient) -> None:
    """The only worker is free at once, and answers others."""
    client.post("/v1/plan", json=QUESTION)  # the worker is ready
    place = client.post("/v1/questions", json={"question": HARD}).headers["location"]
    for _ in range(100):
        if figure(client, "nest_running"):
            break
        time.sleep(0.05)
    assert client.get(f"{place}?wait=0.1").json()["state"] == "running"
    assert client.delete(place).json()["state"] == "cancelled"
    begun = time.monotonic()
    assert client.post("/v1/plan", json={**QUESTION, "top": 5}).status_code == 200
    assert time.monotonic() - begun < 40
    assert client.get(place).json() == client.delete(place).json()


def test_sweeps_are_followed_read_and_asked_once(client: TestClient) -> None:
    started = client.post("/v1/sweeps", json=STUDY)
    assert started.status_code == 202, started.text
    place = started.headers["location"]
    with client.stream("GET", f"{place}/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in events.iter_lines() if line]
    assert lines[-2] == "event: end"
    assert json.loads(lines[-1].removeprefix("data: "))["state"] == "done"
    rows = client.get(f"{place}/points").json()["rows"]
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert len(client.get(f"{place}/points?format=csv").text.splitlines()) == 5
    assert client.post("/v1/sweeps", json=STUDY).json()["state"] == "done"
    ids = [one["id"] for one in client.get("/v1/sweeps").json()["sweeps"]]
    assert ids.count(place.rpartition("/")[2]) == 1
    error(client.get(f"{place}/points?format=xml"), 400)


def test_sweeps_are_cancelled(client: TestClient) -> None:
    long = {**STUDY, "name": "long", "axes": {"job.seq_len": [*range(128, 513)]}}
    place = client.post("/v1/sweeps", json=long).headers["location"]
    assert client.delete(place).json()["state"] in ("cancelling", "cancelled")
    with client.stream("GET", f"{place}/events") as events:
        last = [line for line in events.iter_lines() if line][-1]
    found = json.loads(last.removeprefix("data: "))
    assert found["state"] == "cancelled" and found["answered"] < 385
    error(client.get("/v1/sweeps/none"), 404)
    error(client.delete("/v1/sweeps/none"), 404)
    error(client.post("/v1/sweeps", json={**STUDY, "model": "/etc/hostname"}), 400)


def test_a_token_is_asked_for() -> None:
    with TestClient(application(ServerSettings(workers=1, token=SECRET, grace=1.0)),
                    LOCAL) as client:
        error(client.get("/v1/catalog"), 401)
        error(client.get("/v1/catalog", headers={"authorization": "Bearer wrong"}), 401)
        for right in (f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER  {SECRET}"):
            assert client.get("/v1/catalog", headers={"authorization": right}).status_code == 200
        for wrong in (f"Basic {SECRET}", SECRET, f"Bearer {SECRET.upper()}", "Bearer ", ""):
            error(client.get("/v1/catalog", headers={"authorization": wrong}), 401)
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("given", [
    {"host": "0.0.0.0"}, {"host": "::"}, {"host": "example.org"}, {"token": "short"},
    {"token": "with spaces in the token"}, {"port": 70000}, {"workers": -1}, {"seconds": 0.0},
])
def test_settings_that_are_not_allowed(given: dict) -> None:
    with pytest.raises(InputError, match="allowed: "):
        ServerSettings(**given)


def test_tokens_come_from_a_file_or_the_environment(tmp_path, monkeypatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setenv(TOKEN, "of the environment")
    assert token_of(str(file)) == SECRET
    assert token_of(None) == "of the environment"
    with pytest.raises(InputError, match="token-file"):
        token_of(str(tmp_path / "none"))
    assert ServerSettings(host="::1").local and ServerSettings(host="localhost").local
    assert not ServerSettings(host="0.0.0.0", token=SECRET).local
