"""Questions, answers and errors as documents; streams of them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from command_line import CLUSTER, TIGHT
from descriptions import MODEL

import nest
from nest import api
from nest.cli.listing import document
from nest.cli.main import main
from nest.questions import Answer, Failure, Question, failure, read_question
from nest.questions.question import id_of

JOB = {"global_batch": 16, "seq_len": 128}
QUESTION = {"schema": "nest.question/1.0", "model": {**MODEL, "layers": 7}, "cluster": CLUSTER,
            "job": JOB}
SOURCE = str(Path(nest.__file__).parents[1])


def said(question: dict) -> str:
    with pytest.raises(nest.InputError) as caught:
        read_question(question)
    return str(caught.value)


@pytest.mark.parametrize("cluster, devices", [
    ("dgx-h100", 1024), ({"base": "dgx-h100", "devices": 24}, 24),
    ({"base": "dgx-h100", "devices": 16, "device": "a100-sxm-80gb"}, 16),
    ({"base": "dgx-h100", "devices": 24, "filling": 6}, 24),
    ({"base": "fat-tree:k=4,device=h100-sxm", "without": "gpu3"}, 15),
    ("fat-tree:k=4,device=h100-sxm", 16), (CLUSTER, 8)])
def test_clusters_of_every_form_are_read_and_written_in_full(cluster, devices):
    found, notes = read_question({**QUESTION, "cluster": cluster})
    assert found.cluster.size == devices and not notes
    assert read_question(json.dumps(found.as_dict()))[0] == found


@pytest.mark.parametrize("model", [
    "llama3-8b", {"base": "llama3-8b", "layers": 4},
    {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
     "intermediate_size": 512, "vocab_size": 1000}])
def test_models_of_every_form(model):
    found = read_question({**QUESTION, "model": model})[0]
    assert found.subject.layers in (4, 32)


def test_what_is_not_known_is_ignored_with_a_note_within_a_major_version():
    found, notes = read_question({
        **QUESTION, "schema": "nest.question/1.7", "hurry": True, "job": {**JOB, "colour": 1}})
    assert {*notes} == {"question: hurry: unknown field, ignored",
                        "question: job.colour: unknown field, ignored"}
    assert found == read_question(QUESTION)[0].unchecked(schema_="nest.question/1.7")
    assert "schema: got 'nest.question/2'" in said({**QUESTION, "schema": "nest.question/2"})
    assert read_question({name: QUESTION[name] for name in ("model", "cluster", "job")})[0]


@pytest.mark.parametrize("change, expected", [
    ({"model": "/etc/passwd"}, "question: model: got '/etc/passwd'; allowed: a name in the"),
    ({"cluster": "/etc/passwd"}, "question: cluster: got '/etc/passwd'; allowed: a name in the"),
    ({"cluster": {"base": "dgx-h100", "without": "node9"}}, "question: cluster: without: got"),
    ({"cluster": {"base": 3}}, "question: cluster.base: got 3"),
    ({"model": {"base": "llama3-8b", "heads": "x"}}, "question: model.heads: got 'x'"),
    ({"model": None}, "question: model: got neither of model and profile"),
    ({"job": {"global_batch": 0}}, "question: job.seq_len: missing"),
    ({"top": 101}, "question: top: got 101"), ({"id": True}, "question: id"),
    ({"search": {"time_limit": -1}}, "question: search.time_limit: got -1")])
def test_each_problem_names_its_field(change, expected):
    assert expected in said({**QUESTION, **change})


def test_schemas_accept_what_is_read_and_written():
    for given in (QUESTION, {**QUESTION, "id": 3, "cluster": "dgx-h100", "model": "llama3-8b"},
                  read_question(QUESTION)[0].as_dict()):
        jsonschema.validate(given, document("question"))
    for error in (nest.InputError("no"), nest.InfeasibleError("no", {"stage": 1}), OSError("no")):
        written = json.loads(failure(error, "x").to_json())
        jsonschema.validate(written, document("error"))
        assert Failure.parse(written).id == "x"


@pytest.mark.parametrize("text", ["null", "1", '"x"', "true", "[]"])
def test_a_document_that_is_no_object_is_bad_input(text, monkeypatch, capsys):
    assert "question: got" in said(text) and "allowed: a JSON object" in said(text)
    code, out, _ = told(monkeypatch, capsys, ["ask"], f"{text}\n")
    assert code == 0 and json.loads(out)["error"] == "input"


def test_ids_of_what_is_no_question():
    assert [id_of(data) for data in ({"id": 3}, {"id": "x"}, {"id": True}, {"id": "x" * 201},
                                     {"id": 10**30}, [3])] == [3, "x", None, None, None, None]


def told(monkeypatch, capsys, words: list[str], text: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.kernels(uncompiled=True)
def test_a_stream_is_answered_in_order_whatever_it_holds(monkeypatch, capsys):
    lines = [json.dumps({**QUESTION, "id": 1, "hurry": 1}), "nonsense", "", "[1]",
             json.dumps({**QUESTION, "id": "two", "job": 3}), b"\xff".decode("latin-1"),
             json.dumps({**QUESTION, "id": "schön"})]
    lines.append(json.dumps({**QUESTION, "id": 3, "source": "x" * 10**4}))
    lines.append(json.dumps({**QUESTION, "id": 4, "search": {"beyond_stack": True}}))
    monkeypatch.setattr("nest.inputs.files.LARGEST", 9000)
    code, out, _ = told(monkeypatch, capsys, ["ask"], "\n".join(lines) + "\n")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and out.isascii()
    assert [one.get("id") for one in answers] == [
        1, None, None, "two", None, "schön", None, 4]
    assert [one["schema"].split("/")[0].removeprefix("nest.") for one in answers] == [
        "answer", *["error"] * 4, "answer", "error", "answer"]
    assert answers[0]["notes"] == ["line 1: hurry: unknown field, ignored"]
    found = Answer.parse(answers[0]).plan
    again = nest.plan(found.inputs.model, found.inputs.cluster, found.inputs.job)
    assert found.configuration == again.configuration
    assert found.step_time_s == again.step_time_s
    jsonschema.validate(answers[0], document("answer"))


HOSTILE = [
    rb'{"id":"\ud800","model":"bert-large"}', rb'{"id":5,"cluster":"a\udfffb"}', rb'{"\udc80":1}',
    rb'{"id":"x","job":{"stack":{"source":"\ud83d"}}}', b"[" * 200_000, b'{"a":' * 200_000,
    b'{"id":' + b"9" * 5000 + b"}", b'{"id":1e400}', b'{"id":NaN}', b'{"id":-Infinity,"id":1}',
    b'{"id":123456789012345678901234567890}', rb'{"id":"\u0000","model":"\u0000"}',
    b"\x00\x01", b"\xff\xfe{}", b"\xed\xa0\x80", b'"' + b"x" * 100_000 + b'"', b"nul", b"{}",
    b'{"schema":"nest.question/1.\xd9\xa3"}',
    b'{"id":true,"model":{"base":{"base":"/etc/passwd"}}}',
    b'{"' + b"k" * 100_000 + b'":1,"cluster":{"levels":[1e308]},"job":{"global_batch":1e308}}',
]
"""Lines that are no questions, one kind each."""


@pytest.mark.kernels(uncompiled=True)
def test_a_stream_outlives_every_line(monkeypatch, capsysbinary):
    good = json.dumps({**QUESTION, "id": "last"}).encode()
    text = b"\n".join([*HOSTILE, good]) + b"\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["ask"]) == 0
    answers = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert len(answers) == len(HOSTILE) + 1 and answers[-1]["plan"]
    for one in answers[:-1]:
        assert one["error"] == "input" and "defect" not in one["message"], one
        jsonschema.validate(one, document("error"))


class Speechless(Exception):
    """An error whose text fails."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [
    nest.InputError("\ud800 is no text", ("\udfff",)), ValueError("\udc80"), Speechless(),
    nest.InfeasibleError("no", {"stage": 1, "short": float("inf")}), MemoryError(),
    OSError(3, "a")])
@pytest.mark.parametrize("asked", ["\ud800", True, 10**30, [], "x" * 201, "schön", 7, None])
def test_an_error_document_is_made_of_anything(error, asked):
    found = json.loads(failure(error, asked).to_json())
    jsonschema.validate(found, document("error"))
    assert found.get("id") == (asked if asked in ("schön", 7) else None)


@pytest.mark.kernels(uncompiled=True)
def test_one_question_from_standard_input(monkeypatch, capsys, tmp_path):
    code, out, err = told(monkeypatch, capsys, ["plan", "-"], json.dumps({**QUESTION, "hurry": 1}))
    assert code == 0 and "hurry: unknown field" in err
    path = tmp_path / "plan.json"
    path.write_text(out)
    assert nest.load_plan(path).optimal
    code, out, _ = told(monkeypatch, capsys, ["plan", "-"], json.dumps(
        {**QUESTION, "cluster": TIGHT, "job": {**JOB, "memory_margin": 0},
         "model": {**MODEL, "hidden": 2048, "ffn": 8192}}))
    assert code == 3 and json.loads(out)["error"] == "infeasible"
    code, out, err = told(monkeypatch, capsys, ["plan", "-", "--tp", "2"], "{}")
    assert code == 2 and "got - with --tp" in err


@pytest.mark.kernels(uncompiled=True)
def test_a_stream_answers_before_the_next_question_and_ends_with_its_reader():
    child = subprocess.Popen(
        [sys.executable, "-m", "nest", "ask"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE, "NEST_THREADS": "1"})
    line = (json.dumps({**QUESTION, "id": 1}) + "\n").encode()
    for _ in range(2):
        child.stdin.write(line)
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["id"] == 1
    child.stdout.close()
    child.stdin.write(line)
    child.stdin.flush()
    assert child.wait(60) == 0 and b"Traceback" not in child.stderr.read()
    child.stdin.close()


def test_ctrl_c_ends_a_stream_cleanly():
    child = subprocess.Popen(
        [sys.executable, "-m", "nest", "ask"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    child.stdin.write(b"no question\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["error"] == "input"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert child.stderr.read() == b"nest: interrupted\n"
    child.stdin.close()


def test_a_question_is_asked_as_it_says(monkeypatch):
    """As a document and by arguments it is the same, for the search too."""
    given, asked = Question.parse({
        **QUESTION, "search": {"beyond_stack": True, "reorder": False}, "top": 2}), []
    monkeypatch.setattr(api, "_planned", lambda *asked_for: asked.append(asked_for))
    nest.Planner().answer(given, threads=3)
    nest.Planner().plan(given.subject, given.cluster, given.job, given.space, threads=3, top=2,
                   beyond_stack=True, reorder=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tops'"):
        nest.Planner().plan(given.subject, given.cluster, given.job, tops=2)
    assert asked[0][0] == asked[1][0] == given
    assert asked[0][1].threads == asked[1][1].threads == 3
