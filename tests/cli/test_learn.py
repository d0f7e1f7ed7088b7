"""`nest learn`, `nest next` and `--learned`: the loop, and what is refused."""

from __future__ import annotations

from pathlib import Path

import job_logs
import pytest
from typer.testing import CliRunner

import nest
from nest.cli.main import app, main
from nest.evaluation.even import even_configuration
from nest.inputs.files import yaml_text
from nest.measured.learning import observed, unlearned


@pytest.fixture(scope="module")
def plan() -> nest.Plan:
    """A plan of a small model on a node."""
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-a100", devices=8)
    job = nest.Job(global_batch=32, seq_len=2048, stack="unknown")
    return nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=2, pp=2, zero=1))


@pytest.fixture
def file(plan: nest.Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    return path


def test_one_run_changes_the_next_price(plan: nest.Plan, file: Path, tmp_path: Path) -> None:
    measured, target = 1.5 * plan.step_time_s, tmp_path / "mine.yaml"
    assert main(["learn", f"{file}:{measured}", "-o", str(target)]) == 0
    stack = nest.load_learned(target).taught()
    inputs = plan.inputs
    again = nest.evaluate(inputs.model, inputs.cluster, inputs.job.replace(stack=stack),
                          plan.configuration)
    assert plan.step_time_s < again.step_time_s
    assert again.step_time_s == pytest.approx(measured, rel=0.1)
    assert again.confidence is not None
    assert again.confidence.low_s < measured < again.confidence.high_s
    assert unlearned(again).step_time_s == plan.step_time_s


def test_what_was_learned_is_read_back_and_counts_again(
    plan: nest.Plan, file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "mine.yaml"
    main(["learn", f"{file}:9.5", "-o", str(target)])
    found = nest.learn([str(target), f"{file}:oom"])
    assert [one.verdict for one in found.observations] == ["ran", "out of memory"]
    assert found.observations[0].seconds == 9.5
    assert found.observations[0].step_s == pytest.approx(plan.step_time_s)


def test_causes_add_up_to_the_price(plan: nest.Plan) -> None:
    told = observed(plan, "x")
    assert told.step_s == pytest.approx(plan.step_time_s, rel=1e-12)
    assert told.activations + told.states == pytest.approx(
        max(stage.memory_bytes.total for stage in plan.stages))


def test_a_log_teaches(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text(job_logs.LOGS["megatron"], encoding="utf-8")
    found = nest.learn([str(file)], gpu="h100")
    told = found.observations[0]
    assert told.verdict == "ran" and told.seconds == nest.read(file).log.step_time_s
    assert found.devices == ("h100-sxm",) and found.stack.name.startswith("megatron-core")
    assert told.step_s == pytest.approx(nest.learn([str(file)], gpu="h100", stack=found.stack)
                                        .observations[0].step_s)


@pytest.mark.parametrize(("words", "said"), [
    (["learn", "none.json:3"], "none.json"),
    (["learn", "PLAN:fast"], "allowed: the seconds of a step"),
    (["learn", "PLAN:-3"], "allowed: the seconds of a step"),
    (["learn", "PLAN:3", "-o", "mine.txt"], "a name that ends in .yaml"),
    (["learn", "PLAN"], "observations"),
    (["next", "llama2-7b", "dgx-a100", "--global-batch", "8", "--seq-len", "512"], "--learned"),
    (["next", "llama2-7b", "dgx-a100", "--learned", "x.yaml", "--runs", "0"], "1 to 20"),
    (["plan", "llama2-7b", "dgx-a100", "--global-batch", "8", "--seq-len", "512", "--stack",
      "unknown", "--learned", "x.yaml"], "allowed: one of them"),
    (["evaluate", "llama2-7b", "dgx-a100", "--global-batch", "8", "--seq-len", "512", "--learned",
      "PLAN"], "observations"),
])
def test_what_is_not_usable_is_refused_in_one_message(
    words: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("PLAN", str(file)) for word in words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in " ".join(lines) and "Traceback" not in " ".join(lines)


@pytest.mark.parametrize(("field", "value"), [
    ("degrees", [1.0]), ("sizes", [1.0, 2.0]), ("compute", 0.0), ("states", -1.0),
    ("seconds", 0.0), ("tp", float("inf"))])
def test_a_damaged_file_is_refused(
    plan: nest.Plan, tmp_path: Path, field: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    target, told = tmp_path / "mine.yaml", observed(plan, "x", "ran", 9.0).model_dump(mode="json")
    data = {"schema": "nest.learned/1", "stack": plan.inputs.job.stack.as_dict(), "devices": ["a"],
            "precisions": ["bf16"], "experts": False, "observations": [{**told, field: value}]}
    target.write_text(yaml_text(data), encoding="utf-8")
    assert main(["learn", str(target)]) == 2
    said = capsys.readouterr().err
    assert f"mine.yaml: observations.0.{field}" in said and "stack" not in said


def test_help_is_there() -> None:
    for name in ("learn", "next"):
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
