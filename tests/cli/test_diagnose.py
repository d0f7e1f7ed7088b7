"""`nest diagnose`: what a user sees of a slow run, and the document."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import jsonschema
import pytest
from simulated_runs import Disturbed, snapshot_of

import nest
from nest.cli.listing import document
from nest.cli.main import main
from nest.evaluation.even import even_configuration


@pytest.fixture(scope="module")
def run() -> Disturbed:
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-h100", devices=16)
    job = nest.Job(global_batch=32, seq_len=4096)
    plan = nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=4, pp=1, zero=1))
    return Disturbed(plan, tp=2.0)


@pytest.fixture
def files(run: Disturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(run.plan.to_json(), encoding="utf-8")
    run.log(Path("train.log"))
    run.trace(Path("rank0.json"), 0, 0)
    Path("rank0.pickle").write_bytes(pickle.dumps(snapshot_of({"activations": 60 * 2**30})))


ALL = ["diagnose", "plan.json", "train.log", "--trace", "rank0.json", "--memory", "rank0.pickle"]


@pytest.mark.usefixtures("files")
def test_the_first_lines_say_what_is_slow_and_what_to_try(
    capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The run is 13.5 % slower: 1.244 s a step, priced 1.096 s")
    assert lines[1].startswith("Largest cause: exposed tensor-parallel traffic, 148 ms a step")
    assert lines[2].startswith("Try") and "nvidia-smi topo -m" in lines[2]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "From the priced step to the measured one" in text and "Memory of rank 0" in text


@pytest.mark.usefixtures("files")
def test_the_document_is_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, document("diagnosis"))
    assert found["schema"] == "nest.diagnosis/1"
    assert {"name", "seconds", "evidence", "advice"} == {*found["causes"][0]}
    assert found["priced_s"] + sum(one["seconds"] for one in found["causes"]) == pytest.approx(
        found["measured_s"], rel=1e-12)
    assert nest.Diagnosis.parse(found).to_json() == nest.Diagnosis.parse(
        json.loads(nest.Diagnosis.parse(found).to_json())).to_json()


@pytest.mark.usefixtures("files")
def test_what_was_learned_is_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    assert main(["learn", "plan.json:1.3", "-o", "mine.yaml"]) == 0
    jsonschema.validate(yaml.safe_load(Path("mine.yaml").read_text()), document("learned"))
    capsys.readouterr()
    assert main(["diagnose", "plan.json", "train.log", "--learned", "mine.yaml"]) == 0
    assert "unexplained" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_python_gives_the_same(run: Disturbed) -> None:
    found = nest.diagnose(run.plan, "train.log", ["rank0.json"])
    assert repr(found) == f"<Diagnosis: {found.headline}>"
    assert str(found).startswith(found.headline) and found.causes[0].name == "tp"


@pytest.mark.parametrize(("words", "said"), [
    (["diagnose", "none.json", "train.log"], "none.json: no such file"),
    (["diagnose", "plan.json"], "needed: at least one"),
    (["diagnose", "plan.json", "--trace", "none.json"], "none.json: no such file"),
    (["diagnose", "train.log", "train.log"], "train.log")])
@pytest.mark.usefixtures("files")
def test_errors_are_one_message(words: list[str], said: str, capsys: pytest.CaptureFixture[str]
                                ) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert said in err and not out and "Traceback" not in err
