"""`nest doctor`: what is installed, said truly."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from command_line import run

import nest
from nest.cli import doctor
from nest.search import kept_code


def findings(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    out, _ = run(capsys, "doctor", "--json", code=code)
    found = json.JSONDecoder().raw_decode(out)[0]
    return {line["name"]: line for line in found}


def test_versions_threads_and_the_self_test(capsys, monkeypatch) -> None:
    monkeypatch.setenv("NEST_THREADS", "3")
    found = findings(capsys)
    assert found["NEST"]["text"].startswith(nest.__version__)
    assert found["Threads"]["text"].startswith("3 for a search")
    assert found["Self-test"]["text"].startswith("passed: llama2-7b on 16 devices")
    text, _ = run(capsys, "doctor")
    assert max(map(len, text.splitlines())) <= 80 and "Self-test    passed" in text


def test_a_self_test_that_fails_is_a_defect(capsys, monkeypatch) -> None:
    true = nest.simulate

    def slow(plan: nest.Plan) -> Any:
        found = true(plan)
        return found.model_copy(update={"step_time_s": 1.1 * found.step_time_s})

    monkeypatch.setattr(nest, "simulate", slow)
    out, error = run(capsys, "doctor", code=70)
    assert "FAILED" in out and "the self-test failed" in error


def test_extras_are_there_or_named_with_what_they_add(capsys, monkeypatch) -> None:
    def version(name: str) -> str:
        if name in ("fastapi", "ray"):
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor, "version", version)
    found = findings(capsys)
    assert "server (nest serve)" in found["Missing"]["text"]
    assert "ray (studies on Ray clusters)" in found["Missing"]["text"]
    there = set(doctor.EXTRAS) - {"server", "ray"}
    assert set(found["Extras"]["text"].split(", ")) == there


def test_compiled_code_is_counted_where_it_is_kept(capsys, monkeypatch, tmp_path) -> None:
    folder = tmp_path / "nest-planner" / "now"
    for one in (folder, tmp_path / "nest-planner" / "before"):
        one.mkdir(parents=True)
        (one / "code").write_bytes(bytes(2048))
    monkeypatch.setattr(kept_code, "cache_folder", lambda: folder)
    none = findings(capsys)["Kernels"]["text"]
    assert none.startswith(f"0 of {len(kept_code.SECONDS)} are compiled, the first search")
    (folder / "alike").touch()
    found = findings(capsys)
    assert found["Kernels"]["text"].startswith(f"1 of {len(kept_code.SECONDS)} are compiled, last")
    assert f"2 KiB in {folder}" in found["Kernels"]["text"]
    assert found[""]["text"] == "of other versions: 1 folder beside it, 2 KiB, may be removed"
    monkeypatch.setattr(kept_code, "cache_folder", lambda: None)
    assert "no folder can be written" in findings(capsys)["Kernels"]["text"]
