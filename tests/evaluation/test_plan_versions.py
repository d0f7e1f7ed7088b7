"""Plan files of past and of later versions are read."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import nest
from nest.evaluation.plan_file import reread
from nest.evaluation.plans import SCHEMA, SCHEMAS, Plan

PAST = sorted((Path(__file__).parent / "plans").glob("*.json"))
"""As each version wrote them: 1.0 while it grew, named after what was new."""
NOW = Path(__file__).parents[2] / "docs" / "examples" / "plan.json"


@pytest.mark.parametrize("path", [*PAST, NOW], ids=lambda path: path.stem)
def test_plans_of_every_version_are_read(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    plan, notes = reread(path)
    assert [note for note in notes if "unknown" in note] == []
    stages = [(tuple(s["layers"]), tuple(s["devices"]), s["tp"]) for s in data["stages"]]
    assert [(s.layers, s.devices, s.tp) for s in plan.stages] == stages
    assert plan.schema_ == SCHEMA
    assert len(PAST) >= 4


def later(data: dict[str, Any]) -> dict[str, Any]:
    """A plan of a later minor version: each part has a field more; maps keep their keys."""
    keep = {name: value for name, value in data.items() if name not in ("schema", "inputs")}
    keep["stages"] = [{**stage, "time_s": {**stage["time_s"], "lost": 0.0}, "new": [1]}
                      for stage in data["stages"]]
    keep["parallelism"] = {**data["parallelism"], "new": {}}
    inputs = {name: value and {**value, "new": "x"} for name, value in data["inputs"].items()}
    return {**keep, "schema": "nest.plan/1.27", "inputs": {**inputs, "new": None}, "new": True}


@pytest.mark.parametrize("path", [*PAST, NOW], ids=lambda path: path.stem)
def test_fields_of_later_versions_are_ignored_and_named(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    known, _ = reread(data)
    plan, notes = reread(later(data))
    assert plan == known
    named = {note.split(": ")[1] for note in notes if "unknown field, ignored" in note}
    assert {"new", "parallelism.new", "stages.0.new", "inputs.new", "inputs.job.new",
            "inputs.cluster.new"} <= named


def test_a_typo_in_an_edited_plan_is_named() -> None:
    data = json.loads(NOW.read_text(encoding="utf-8"))
    data["stages"][0]["zeroo"] = 1
    with pytest.warns(UserWarning, match=r"plan: stages.0.zeroo: unknown field, ignored; did you "
                                         r"mean zero\?"):
        nest.load_plan(data)


def test_what_people_write_has_no_unknown_fields() -> None:
    for load, data in ((nest.load_cluster, {"name": "c", "speed": 1}),
                       (nest.load_job, {"global_batch": 8, "seq_len": 8, "new": 1})):
        with pytest.raises(nest.InputError, match="unknown field"):
            load(data)


def test_load_plan_gives_the_plan_that_was_written(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = nest.load_plan(NOW)
        path = tmp_path / "plan.json"
        path.write_text(plan.to_json(), encoding="utf-8")
        assert nest.load_plan(str(path)) == nest.load_plan(plan) == plan
    assert plan.search is not None


def test_the_schema_allows_additions() -> None:
    """A program that checks plans by the schema takes those of later minor versions."""
    import jsonschema

    schema = Plan.model_json_schema(mode="serialization")
    data = json.loads(NOW.read_text(encoding="utf-8"))
    data |= {"schema": "nest.plan/1.27", "new": 1}
    data["stages"][0]["new"] = 1
    jsonschema.validate(data, schema)
    assert re.match(SCHEMAS, SCHEMA)
    data["schema"] = "nest.plan/2"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)
