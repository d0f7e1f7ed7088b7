"""Requests are read, limited and answered; no request of any kind raises."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from random import Random

import pytest

from nest import evaluate
from nest.errors import InputError, OutputError
from nest.inputs import load_configuration
from nest.questions import Answer, read_question
from nest.server.service import OVERHEAD, ReplyCache
from nest.server.work import (
    ENDPOINTS,
    Limits,
    Read,
    ReadStudy,
    Reply,
    answer,
    read,
    read_study,
)

LIMITS = Limits(devices=1024, layers=100, seconds=60.0)
QUESTION = {"model": "bert-large", "cluster": {"base": "dgx-a100", "devices": 8},
            "job": {"global_batch": 64, "seq_len": 512}}
WAY = {"outer_dp": 8, "micro_batch": 8, "stages": [
    {"layers": [0, 26], "devices": [0, 1], "dp_in": 1, "tp": 1}]}
STUDY = {"model": "bert-large", "cluster": {"base": "dgx-a100", "devices": 8},
         "job": {"global_batch": 64, "seq_len": 512}, "axes": {"job.seq_len": [128, 256, 512]}}


def text(data: object) -> bytes:
    return json.dumps(data).encode()


def error(reply: object, status: int = 400) -> dict:
    assert isinstance(reply, Reply) and reply.status == status, reply
    found = json.loads(reply.body)
    assert found["schema"] == "nest.error/1" and found["message"] and found["problems"]
    return found


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'"text"', b"{}",
                                  b'{"model": 3, "cluster": [], "job": null}', b"[" * 100_000])
def test_what_is_no_question_is_told(endpoint: str, body: bytes) -> None:
    error(read(endpoint, body, LIMITS))
    error(answer(endpoint, body, LIMITS))


def test_equal_questions_have_one_key() -> None:
    one = read("plan", text({**QUESTION, "id": "a"}), LIMITS)
    other = read("plan", text({**QUESTION, "id": 2, "space": {}, "top": 1}), LIMITS)
    third = read("plan", text({**QUESTION, "top": 2}), LIMITS)
    assert isinstance(one, Read) and isinstance(other, Read) and isinstance(third, Read)
    assert one.key == other.key != third.key
    assert (one.id, other.id, third.id) == ("a", 2, None)


def test_answers_are_given_the_name_of_their_question() -> None:
    found = read("plan", text({**QUESTION, "id": "a", "colour": 1}), LIMITS)
    assert isinstance(found, Read)
    named = json.loads(found.named(b'{"schema": "nest.answer/1.0"}'))
    assert named["id"] == "a" and "colour" in named["notes"][0]
    assert found._replace(id=None, notes=()).named(b"{}") == b"{}"


@pytest.mark.parametrize("change, said", [
    ({"cluster": {"base": "dgx-a100", "devices": 2048}}, "got 2048 devices; allowed: 1024"),
    ({"model": {"base": "bert-large", "layers": 200}}, "got 200 layers; allowed: 100"),
    ({"cluster": "/etc/hostname"}, "allowed"), ({"model": "/etc/hostname"}, "allowed"),
    ({"model": "bert-lage"}, "bert-large"),
])
def test_limits_and_names(change: dict, said: str) -> None:
    assert said in error(read("plan", text({**QUESTION, **change}), LIMITS))["message"]


def test_searches_are_limited_in_time() -> None:
    """The limit is part of the key; a question may ask for less, not for more."""
    keys = [read("plan", text({**QUESTION, "search": search}), LIMITS).key
            for search in ({}, {"time_limit": 60}, {"time_limit": 3600}, {"time_limit": 5})]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_configurations_are_priced_as_by_evaluate() -> None:
    reply = answer("evaluate", text({**QUESTION, "configuration": WAY}), LIMITS)
    assert reply.status == 200 and reply.lasting, reply.body[:500]
    found = json.loads(reply.body)
    question, _ = read_question(QUESTION)
    expected = evaluate(question.subject, question.cluster, question.job, load_configuration(WAY))
    assert found["plan"]["step_time_s"] == expected.step_time_s
    assert Answer.model_validate_json(reply.body).schema_ == "nest.answer/1.0"
    again = answer("evaluate", text(found["plan"]), LIMITS)
    assert json.loads(again.body)["plan"]["step_time_s"] == expected.step_time_s


def test_plans_that_are_illegal_are_told() -> None:
    way = {**WAY, "outer_dp": 7}
    error(answer("evaluate", text({**QUESTION, "configuration": way}), LIMITS))
    error(read("evaluate", text(QUESTION), LIMITS))


@pytest.mark.kernels(uncompiled=True)
def test_plans_are_those_of_nest_plan() -> None:
    small = {**QUESTION, "space": {"tp": 1, "pp": 1, "zero": 1, "recompute": "none"}}
    reply = answer("plan", text(small), LIMITS)
    assert reply.status == 200 and reply.lasting, reply.body[:500]
    import nest

    question, _ = read_question(small)
    plan = nest.plan(question.subject, question.cluster, question.job, question.space)
    assert json.loads(reply.body)["plan"]["step_time_s"] == plan.step_time_s


@pytest.mark.kernels(uncompiled=True)
def test_what_does_not_fit_names_the_nearest_miss() -> None:
    large = {**QUESTION, "model": "gpt3-175b", "space": {"tp": 1, "pp": 1, "zero": 0}}
    found = error(answer("plan", text(large), LIMITS), 422)
    assert found["error"] == "infeasible" and found["nearest"]


def test_planners_are_named() -> None:
    found = error(read("compare", text({**QUESTION, "planners": ["nets"]}), LIMITS))
    assert "did you mean nest?" in found["message"]
    error(read("compare", text({**QUESTION, "planners": []}), LIMITS))


# ---------------------------------------------------------------- studies


def test_studies_are_read_and_limited_in_time() -> None:
    found = read_study(text(STUDY), LIMITS)
    assert isinstance(found, ReadStudy)
    assert json.loads(found.text)["search"]["time_limit"] == 60.0
    assert read_study(text({**STUDY, "search": {"time_limit": 1e6}}), LIMITS) == found


@pytest.mark.parametrize("change", [
    {"model": "FILE"}, {"cluster": "FILE"}, {"model": {"base": "FILE"}},
    {"axes": {"model": ["bert-large", "FILE"]}}, {"axes": {"cluster": {"values": ["FILE"]}}},
    {"axes": {"which": {"a": {"model": "FILE"}}}},
    {"model": {"base": {"base": "FILE"}}}, {"cluster": {"base": {"base": {"base": "FILE"}}}},
    {"axes": {"model": [{"base": {"base": "FILE"}}]}},
    {"axes": {"which": {"a": {"cluster": {"base": {"base": "FILE"}}}}}},
    {"cluster": "mixed:8xFILE"},
    {"axes": {"which": {"choices": {"a": {"cluster": {"base": "FILE"}}}}}},
])
def test_studies_read_no_file_of_the_server(change: dict, tmp_path: Path) -> None:
    file = tmp_path / "secret.yaml"
    file.write_text("base: bert-large\nsecret: 1\n")
    said = error(read_study(text(
        {**STUDY, **json.loads(json.dumps(change).replace("FILE", str(file)))}), LIMITS))
    assert "secret" not in said["message"].replace("secret.yaml", "")
    assert "allowed: " in said["message"]


@pytest.mark.parametrize("axes", [{"search.time_limit": [1, 1e6]}, {"search": [{}]},
                                  {"x": {"a": {"search.time_limit": 1e6}}}])
def test_studies_do_not_change_the_time(axes: dict) -> None:
    assert "the server limits the time" in error(
        read_study(text({**STUDY, "axes": axes}), LIMITS))["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"axes": 3}', b'{"axes": {"a": 3}}',
                                  b'{"search": 3, "axes": {}}'])
def test_what_is_no_study_is_told(body: bytes) -> None:
    error(read_study(body, LIMITS))


# ---------------------------------------------------------------- answers


def test_answers_used_last_are_kept_within_their_bytes() -> None:
    kept = ReplyCache(3 * (OVERHEAD + 100))
    for name in "abc":
        kept.keep(name, Reply(200, name.encode() * 100))
    assert kept.get("a") is not None
    kept.keep("d", Reply(200, b"d" * 100))
    assert [kept.get(name) is not None for name in "abcd"] == [True, False, True, True]
    kept.keep("large", Reply(200, b"x" * 10_000))
    assert kept.get("large") is None and len(kept) == 3
    assert kept.held <= 3 * (OVERHEAD + 100)


def test_answers_in_a_file_outlive_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, reply = str(tmp_path / "kept.db"), Reply(422, b'{"error": "infeasible"}', True)
    for most in (10**6, 0):  # with and without room in memory
        kept = ReplyCache(most, file)
        kept.store("a", reply)
        kept.keep("b", reply)
        assert kept.get("a") == reply
        kept.close()
        again = ReplyCache(most, file)
        assert again.get("a") == reply and again.get("b") is None
        with monkeypatch.context() as other:
            other.setattr("nest.server.service.VERSION", "0.0.0")
            assert ReplyCache(most, file).get("a") is None
        again.close()

    def full(*_: object) -> None:
        raise OutputError("kept.db: cannot be written (the disk is full)")

    kept = ReplyCache(10**6, file)
    monkeypatch.setattr("nest.studies.store.Store.add", full)
    kept.store("c", reply)
    assert kept.get("c") == reply and "the disk is full" in caplog.text
    monkeypatch.setattr("nest.studies.store.Store.status", full)
    assert kept.get("d") is None
    kept.close()
    (tmp_path / "other.db").write_text("x" * 1000)
    with pytest.raises(InputError, match=r"other\.db"):
        ReplyCache(10**6, str(tmp_path / "other.db"))


# ---------------------------------------------------------------- made-up requests

JUNK = (None, True, -1, 0, 10**30, 1e308, float("inf"), float("nan"), "", "x" * 300, "\x00", "n",
        [], [[]], {}, {"base": "h100-sxm"}, {"base": 3}, "1e400", "-5 GB/s", ["a", "a"])
WHOLE = {
    "plan": {**QUESTION, "id": "a", "top": 2, "near_batches": True,
             "search": {"time_limit": 1, "beyond_stack": True},
             "space": {"tp": "1,2", "pp": "1..4", "zero": 1}},
    "evaluate": {**QUESTION, "configuration": WAY},
    "compare": {**QUESTION, "planners": ["nest", "manual"]},
    "replan": {"plan": {"schema": "nest.plan/1.1"}, "without": ["a"], "cluster": "dgx-a100",
               "space": {"tp": 1}, "beyond_stack": True},
}


def spoilt(rng: Random, data: object) -> object:
    """The data with a value, at any depth, replaced by something else, or a field more."""
    if isinstance(data, (dict, list)) and data and rng.random() < 0.85:
        found = copy.copy(data)
        place = rng.choice(list(found) if isinstance(found, dict) else range(len(found)))
        found[place] = spoilt(rng, found[place])
        if isinstance(found, dict) and rng.random() < 0.1:
            found[rng.choice(("extra", "schema", "", "base"))] = rng.choice(JUNK)
        return found
    return rng.choice(JUNK)


@pytest.mark.parametrize("endpoint", [*WHOLE, "study"])
def test_spoilt_requests_are_told(endpoint: str) -> None:
    rng = Random(endpoint)
    for _ in range(int(os.environ.get("NEST_INSTANCES", "150"))):
        data = spoilt(rng, STUDY if endpoint == "study" else WHOLE[endpoint])
        body = text(data)
        found = read_study(body, LIMITS) if endpoint == "study" else read(endpoint, body, LIMITS)
        if isinstance(found, Reply):
            error(found)
        elif endpoint in ("evaluate", "replan"):  # which do not search here
            reply = answer(endpoint, body, LIMITS)
            assert reply.status < 500, (data, reply)
