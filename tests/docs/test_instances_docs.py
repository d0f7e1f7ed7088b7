"""What docs/instances.md says of the instances still holds; its example runs and counts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest

import nest
from nest.bench.instance import Instance, Optimum, Solving, layers_of, read_problems
from nest.bench.planned import others
from nest.bench.score import Scored, score
from nest.bench.solving import text_of
from nest.bench.submission import load_submission
from nest.cli.listing import document
from nest.evaluation.evaluate import chain_of
from nest.inputs import load_configuration
from nest.units import format_seconds

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "instances.md").read_text(encoding="utf-8")
PROBLEMS = read_problems()
WAY = load_configuration({"micro_batch": 1, "stages": [{"layers": [0, 1], "devices": [0, 1]}]})


def block(name: str) -> str:
    return re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)[1]


def instance(name: str) -> Instance:
    """A problem with a best configuration that is made up."""
    question = PROBLEMS[name]
    return Instance(
        name=name, question=question, layers=layers_of(chain_of(question.subject)),
        optimum=Optimum(step_time_s=1e-3, proved=False, lower_bound_s=1e-3, gap=0.0,
                        configuration=WAY),
        made=Solving(version="1", command="none", seconds=1.0, time_limit=None))


def scored(path: Path, names: list[str]) -> list[Scored]:
    given, notes = load_submission(str(path), dict.fromkeys(names))
    assert not notes
    return score(given, {name: instance(name) for name in names})


def test_the_example_is_what_the_schema_asks_for_and_counts(tmp_path: Path) -> None:
    data = json.loads(block("example: submission"))
    jsonschema.validate(data, document("submission"))
    (tmp_path / "answers.json").write_text(json.dumps(data))
    names = [one["instance"] for one in data["answers"]]
    assert [one.status for one in scored(tmp_path / "answers.json", names)] == ["ok", "none"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_planner_in_javascript_takes_part(tmp_path: Path) -> None:
    names = ["bert-8", "torus-64", "llama3-70b-1024", "mixed-16", "skips-16-torus"]
    for name in names:
        (tmp_path / f"{name}.json").write_text(text_of(instance(name)))
    subprocess.run(["node", ROOT / "examples" / "planner.mjs", tmp_path, tmp_path / "given"],
                   check=True, timeout=60)
    (tmp_path / "given").rename(tmp_path / "given.json")
    assert [one.status for one in scored(tmp_path / "given.json", names)] == [
        "ok", "ok", "ok", "none", "none"]



def test_every_instance_is_listed() -> None:
    listed = [line.split()[0] for line in block("instances").splitlines()[2:]]
    assert listed == list(PROBLEMS)
    for line, (name, question) in zip(
            block("instances").splitlines()[2:], PROBLEMS.items(), strict=True):
        assert re.search(rf"^{name} +{question.cluster.size:,} {instance(name).kind} ", line)
        assert " proved " in line


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["llama3-8b-256", "llama2-16-4090", "dragonfly-40", "mixed-64"])
def test_best_steps_are_those_of_today(name: str) -> None:
    asked = PROBLEMS[name]
    plan = nest.plan(asked.subject, asked.cluster, asked.job, asked.space, reorder=False,
                     beyond_stack=asked.search.beyond_stack)
    line = next(line for line in block("instances").splitlines() if line.startswith(f"{name} "))
    assert plan.optimal and f" {format_seconds(plan.step_time_s)} proved " in line


def test_the_table_of_planners_has_all_of_them() -> None:
    for name, head in (("planners", 2), ("not counted", 1)):
        listed = [line.split()[0] for line in block(name).splitlines()[head:]]
        assert listed == sorted(others()), name


def test_every_field_and_status_is_described() -> None:
    from nest.bench.score import STATUSES

    for name in (*Instance.model_fields, *STATUSES):
        assert f"`{name.rstrip('_')}" in PAGE, name
