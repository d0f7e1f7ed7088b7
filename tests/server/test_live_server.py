"""A server as a process: many clients, killed workers, its end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Server, serving

from nest.studies.store import FILE, Store

for module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(module)

CLIENTS = 50


def question(batch: int, model: str = "bert-large") -> dict:
    return {"model": model, "cluster": {"base": "dgx-a100", "devices": 64},
            "job": {"global_batch": batch, "seq_len": 512}}


def test_fifty_clients_and_killed_workers() -> None:
    with serving("--workers", "2") as server, ThreadPoolExecutor(CLIENTS) as clients:
        asked = [clients.submit(server.ask, "/v1/plan", question(64 + 8 * (n % 25)))
                 for n in range(CLIENTS)]
        time.sleep(1.0)
        for pid in server.workers[:1]:
            os.kill(pid, signal.SIGKILL)
        assert [one.result(120)[0] for one in asked] == [200] * CLIENTS
        again = [clients.submit(server.ask, "/v1/plan", question(64 + 8 * (n % 25)))
                 for n in range(CLIENTS)]
        assert [one.result(60)[1]["plan"]["step_time_s"] for one in again] == [
            one.result()[1]["plan"]["step_time_s"] for one in asked]
        assert server.figure("nest_workers") == 2


def test_what_is_not_answered_at_the_end_is_handed_back() -> None:
    """With a grace of a moment all questions come back; none is left without a word."""
    with serving("--workers", "1", "--grace", "0.1") as server, ThreadPoolExecutor(8) as clients:
        server.ask("/v1/plan", question(64))
        long = {**question(512, "deepseek-v3"), "cluster": {"base": "dgx-h100", "devices": 4096},
                "search": {"beyond_stack": True}}
        asked = [clients.submit(server.ask, "/v1/plan", {**long, "id": n, "top": 1 + n})
                 for n in range(4)]
        time.sleep(1.5)
        server.end()
        for number, one in enumerate(asked):
            status, found, retry = one.result(30)
            assert status == 503 and found["error"] == "ending" and retry
            assert found["question"]["id"] == number


def test_what_runs_at_the_end_is_answered() -> None:
    with serving("--workers", "1", "--grace", "60") as server:
        server.ask("/v1/plan", question(64))
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(server.ask(
            "/v1/plan", {**question(4096, "llama3-70b"), "cluster": {
                "base": "h100-spine-leaf", "devices": 1024}})[0]))
        thread.start()
        time.sleep(0.4)
        server.end()
        thread.join(60)
        assert found == [200]


def test_answers_in_a_file_are_those_of_the_next_server(tmp_path: Path) -> None:
    options = "--workers", "1", "--store", str(tmp_path / "kept.db")
    with serving(*options) as server:
        first = server.ask("/v1/plan", question(64))[1]
    with serving(*options) as server:
        again = server.ask("/v1/plan", {**question(64), "id": "b"})[1]
        assert again == {**first, "id": "b"}
        assert server.figure('nest_cached_total{what="question"}') == 1


def test_a_port_in_use_is_told() -> None:
    with serving("--workers", "1") as server:
        other = subprocess.run(
            [sys.executable, "-m", "nest", "serve", "--port", str(server.port)],
            capture_output=True, text=True, timeout=60)
        assert other.returncode == 2
        assert "where nothing can listen" in other.stderr and "Traceback" not in other.stderr


POINTS = 30
LONG = {**question(512, "llama2-7b"), "name": "long", "axes": {
    "cluster.levels.0.bandwidth": {"from": "100 GB/s", "to": "900 GB/s", "count": POINTS}}}


def followed(server: Server, name: str, answered: int) -> dict:
    """The state of a sweep once it has so many answers, or is over."""
    while True:
        found = server.get(f"/v1/sweeps/{name}")
        if found["answered"] >= answered or found["state"] not in ("running", "cancelling"):
            return found
        time.sleep(0.05)


@pytest.mark.parametrize("grace", ["60", "0.05"])
def test_a_sweep_that_runs_at_the_end_goes_on_afterwards(tmp_path: Path, grace: str) -> None:
    """What is answered is stored, what is not is asked by the next server; nothing is lost."""
    with serving("--workers", "2", "--grace", grace, "--folder", str(tmp_path)) as server:
        name = server.ask("/v1/sweeps", LONG)[1]["id"]
        before = followed(server, name, 5)
        assert before["state"] == "running" and 5 <= before["answered"] < POINTS
    with Store(str(tmp_path / FILE)) as store:
        stored = {key: json.loads(text) for key, text in store.all_answers()}
        assert before["answered"] <= len(stored) < POINTS
        assert {one["status"] for one in stored.values()} == {"ok"}
        # no question is taken any more: this process could ask each of the others
        assert all(store.claim(row.question) for row in store.rows(store.latest()[0])
                   if row.status is None)
    base = sqlite3.connect(tmp_path / FILE)
    assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    base.close()
    with serving("--workers", "2", "--folder", str(tmp_path)) as server:
        found = server.get(f"/v1/sweeps/{name}")
        assert (found["state"], found["name"]) == ("interrupted", "long")
        assert len(stored) <= found["answered"] < POINTS and "POST" in found["message"]
        assert [one["id"] for one in server.get("/v1/sweeps")["sweeps"]] == [name]
        rows = server.get(f"/v1/sweeps/{name}/points")["rows"]
        assert sum(row["status"] == "ok" for row in rows) == len(stored)
        assert server.ask("/v1/sweeps", LONG)[1]["id"] == name
        after = followed(server, name, POINTS + 1)
        assert (after["state"], after["points"]) == ("done", POINTS)
        assert after["asked"] == POINTS - len(stored)
    with serving("--workers", "1", "--folder", str(tmp_path)) as server:
        assert server.get(f"/v1/sweeps/{name}")["state"] == "done"
    with Store(str(tmp_path / FILE), reads=True) as store:
        now = dict(store.all_answers())
        assert len(now) == POINTS
        assert all(json.loads(now[key]) == one for key, one in stored.items())


def test_a_server_says_when_its_workers_are_ready(tmp_path: Path) -> None:
    """While kernels are compiled, or loaded, it lives and is not ready."""
    seen = []
    with serving("--workers", "1", "--grace", "0.1") as server:
        for _ in range(2400):
            found = server.get("/readyz")
            assert server.get("/healthz")["status"] == "ok"
            seen.append(found.get("error", found.get("status")))
            if seen[-1] == "ready":
                break
            time.sleep(0.05)
    assert {*seen[:-1]} == {"starting"} and seen[-1] == "ready"


def test_the_process_of_a_sweep_dies_alone() -> None:
    with serving("--workers", "1", "--grace", "0.1") as server:
        server.ask("/v1/plan", question(64))  # all workers are there
        before = {*server.workers}
        name = server.ask("/v1/sweeps", LONG)[1]["id"]
        followed(server, name, 1)
        own, = {*server.workers} - before
        os.kill(own, signal.SIGKILL)
        assert followed(server, name, POINTS + 1)["state"] == "failed"
        assert server.ask("/v1/plan", question(72))[0] == 200
        assert {*server.workers} == before
        assert server.ask("/v1/sweeps", LONG)[0] == 202  # goes on
