"""The client: errors, patience, tokens, sweeps, against a server that is made up."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nest import InfeasibleError, InputError, Job, LimitError, UnsupportedError
from nest.client import Client, ServerError

Answer = tuple[int, object, dict[str, str]]


class Scripted(BaseHTTPRequestHandler):
    """Answers from a list, and notes what was asked."""

    answers: list[Answer] = []
    asked: list[tuple[str, str, object, str | None]] = []

    def _do(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        data = json.loads(self.rfile.read(size)) if size else None
        self.asked.append((self.command, self.path, data, self.headers.get("Authorization")))
        status, found, more = self.answers.pop(0)
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _do

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Scripted.answers, Scripted.asked = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def refusal(name: str, **more: object) -> dict:
    return {"schema": "nest.error/1", "error": name, "message": f"why {name}",
            "problems": ["one", "two"], **more}


@pytest.mark.parametrize("status, document, kind", [
    (400, refusal("input"), InputError), (422, refusal("infeasible", nearest={"a": 1}),
                                          InfeasibleError),
    (422, refusal("limit"), LimitError), (422, refusal("unsupported"), UnsupportedError),
    (422, refusal("died"), ServerError), (401, refusal("token"), ServerError),
    (404, refusal("input"), ServerError), (500, b"<html>", ServerError), (500, [], ServerError),
])
def test_errors_are_those_of_the_library(url: str, status: int, document: object,
                                         kind: type[Exception]) -> None:
    Scripted.answers = [(status, document, {})]
    with pytest.raises(kind) as error:
        Client(url).plan("bert-large", "dgx-a100", Job(global_batch=8, seq_len=128))
    if kind is InputError:
        assert error.value.problems == ("one", "two")
    if kind is InfeasibleError:
        assert error.value.nearest == {"a": 1}
    if kind is ServerError:
        assert error.value.status == status
        assert pickle.loads(pickle.dumps(error.value)).status == status


def test_a_busy_server_is_asked_again(url: str) -> None:
    Scripted.answers = [(503, refusal("ending"), {"Retry-After": "0"}),
                        (429, refusal("busy"), {"Retry-After": "0"}),
                        (200, {"models": []}, {})]
    assert Client(url, token="secret").catalog() == {"models": []}
    assert [one[3] for one in Scripted.asked] == ["Bearer secret"] * 3


def test_patience_ends(url: str) -> None:
    Scripted.answers = [(503, refusal("ending"), {"Retry-After": "30"})]
    with pytest.raises(ServerError, match="why ending"):
        Client(url, patience=1.0).catalog()
    with pytest.raises(ServerError, match="no answer"):
        Client("http://127.0.0.1:1", patience=0.1).catalog()


def test_questions_are_documents(url: str) -> None:
    Scripted.answers = [(200, {"planners": []}, {})]
    job = Job(global_batch=8, seq_len=128)
    Client(url + "/prefix/").compare("bert-large", {"base": "dgx-a100"}, job, {"tp": 1}, ["nest"])
    method, path, data, token = Scripted.asked[0]
    assert (method, path, token) == ("POST", "/prefix/v1/compare", None)
    assert isinstance(data, dict) and Job.parse(data["job"]) == job
    assert data["planners"] == ["nest"] and data["space"] == {"tp": 1}


def state(name: str, done: int) -> dict:
    return {"id": "x", "state": name, "points": 3, "answered": done, "message": None}


def test_sweeps_are_followed_over_lost_connections(url: str) -> None:
    """The first stream of events ends in the middle."""
    events = f"event: progress\ndata: {json.dumps(state('running', 2))}\n\n".encode()
    Scripted.answers = [
        (202, state("running", 0), {}), (200, state("running", 1), {}), (200, events, {}),
        (200, state("done", 3), {}), (200, {"rows": [{"number": 0}]}, {})]
    told: list[int] = []
    found = Client(url).sweep({"name": "s"}, lambda now: told.append(now["answered"]))
    assert found == [{"number": 0}] and told == [1, 2, 3]


def test_sweeps_are_cancelled_and_fail(url: str) -> None:
    Scripted.answers = [
        (202, state("running", 0), {}), (200, state("running", 1), {}),
        (202, state("cancelling", 1), {}), (200, b"", {}), (200, state("cancelled", 1), {}),
        (200, {"rows": []}, {})]
    assert Client(url).sweep({}, lambda now: now["state"] != "running") == []
    assert ("DELETE", "/v1/sweeps/x", None, None) in Scripted.asked
    Scripted.answers = [(202, state("running", 0), {}),
                        (200, {**state("failed", 1), "message": "full disk"}, {})]
    with pytest.raises(ServerError, match="full disk"):
        Client(url).sweep({})


@pytest.mark.parametrize("url", ["localhost:8316", "ftp://localhost", "http://", "http://a:b"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InputError, match="url: got"):
        Client(url)


def test_many_questions_and_one_for_later(url: str) -> None:
    client = Client(url, patience=0.0)

    def state(name: str, status: int | None = None, answer: object = None) -> Answer:
        return 200, {"id": "a1", "state": name, "status": status, "answer": answer}, {}

    Scripted.answers = [
        (200, {"answers": [{"id": 1}, refusal("input")]}, {}), (202, {"id": "a1"}, {}),
        state("running"), state("running"), state("done", 200, {"plan": 1}),
        state("done", 422, refusal("infeasible")), state("cancelled"), state("cancelled"),
        (404, refusal("input"), {})]
    assert client.batch([{"id": 1}, {"id": 2}])[1]["error"] == "input"
    later = client.submit({"id": 3}, "evaluate")
    assert later.id == "a1" and not later.done()
    with pytest.raises(TimeoutError, match="a1: no answer in 0 s"):
        later.result(timeout=0.0)
    assert later.result() == {"plan": 1}
    with pytest.raises(InfeasibleError):
        later.result()
    later.cancel()
    with pytest.raises(ServerError, match="cancelled"):
        later.result()
    with pytest.raises(ServerError):
        later.result()
    assert Scripted.asked[0][2] == {"to": "plan", "questions": [{"id": 1}, {"id": 2}]}
    assert Scripted.asked[1][2] == {"to": "evaluate", "question": {"id": 3}}
    assert Scripted.asked[6][:2] == ("DELETE", "/v1/questions/a1")
