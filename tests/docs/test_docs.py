"""What the documents say still holds: examples load, commands exist, tables agree."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import nest
from nest.evaluation.plans import Plan
from nest.inputs import load_device, load_stack

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
                    *ROOT.glob("README.md")])
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\w+) -->\n```(\w+)\n(.*?)```", FORMATS, re.DOTALL)
LOADERS: dict[str, Any] = {
    "model": nest.load_model, "cluster": nest.load_cluster, "device": load_device,
    "job": nest.load_job, "stack": load_stack, "space": nest.load_space,
    "configuration": nest.load_configuration, "profile": nest.load_profile,
}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# ---------------------------------------------------------------- examples


def test_every_kind_of_file_has_an_example() -> None:
    assert {kind for kind, _, _ in EXAMPLES} == {*LOADERS, "error"}
    fenced = len(re.findall(r"^```(?:yaml|json)$", FORMATS, re.MULTILINE))
    assert fenced == len(EXAMPLES)


@pytest.mark.parametrize(
    ("kind", "language", "body"), [e for e in EXAMPLES if e[0] in LOADERS],
    ids=[f"{kind}-{language}" for kind, language, _ in EXAMPLES if kind in LOADERS])
def test_examples_load(kind: str, language: str, body: str, tmp_path: Path) -> None:
    path = tmp_path / f"given.{language}"
    path.write_text(body, encoding="utf-8")
    LOADERS[kind](path)


def test_the_examples_work_together(tmp_path: Path) -> None:
    given = {}
    for kind, language, body in EXAMPLES:
        if kind in LOADERS:
            path = tmp_path / f"{kind}.{language}"
            path.write_text(body, encoding="utf-8")
            given[kind] = path
    cluster = nest.load_cluster(given["cluster"], devices=8)
    assert nest.load_cluster(given["cluster"]).size == 256
    profile = nest.load_profile(ROOT / "docs" / "examples" / "profile.yaml")
    configuration = nest.load_configuration(given["configuration"])
    job = nest.load_job(given["job"])
    assert nest.evaluate(profile, cluster, job, configuration).step_time_s > 0


def test_the_example_plan_loads_and_has_every_field() -> None:
    path = ROOT / "docs" / "examples" / "plan.json"
    plan = Plan.parse(json.loads(text(path)), path.name)
    assert plan.inputs.profile is not None
    again = nest.evaluate(
        plan.inputs.profile, plan.inputs.cluster, plan.inputs.job, plan.configuration)
    assert again.parallelism == plan.parallelism
    assert list(json.loads(again.to_json())) == list(json.loads(text(path)))


def fields(cls: type[BaseModel]) -> Iterator[str]:
    """Fields that `nest schema` does not describe."""
    for name, field in cls.model_fields.items():
        if not field.description:
            yield field.alias or name


def classes_of_a_plan() -> list[type[BaseModel]]:
    from nest.evaluation import plans

    return [plans.Plan, plans.Parallelism, plans.Stage, plans.StageTime, plans.StageMemory,
            plans.Breakdown, plans.SearchReport, plans.Inputs]


@pytest.mark.parametrize("cls", classes_of_a_plan(), ids=lambda cls: cls.__name__)
def test_every_field_of_a_plan_is_described(cls: type[BaseModel]) -> None:
    described = FORMATS[FORMATS.index("## Plan"):FORMATS.index("## Error")]
    assert [name for name in fields(cls) if not re.search(rf"\b{name}\b", described)] == []


@pytest.mark.parametrize(
    "cls", [nest.Model, nest.Level, nest.Device, nest.Job, nest.Stack, nest.SearchSpace,
            nest.Configuration, nest.StageConfiguration, nest.Profile],
    ids=lambda cls: cls.__name__)
def test_every_field_of_a_file_is_mentioned(cls: type[BaseModel]) -> None:
    missing = [name for name in fields(cls)
               if name != "source" and not re.search(rf"\b{name}\b", FORMATS)]
    assert not missing


def test_the_error_document() -> None:
    body = next(body for kind, _, body in EXAMPLES if kind == "error")
    document = json.loads(body)
    assert document["schema"] == "nest.error/1"
    assert (document["error"], document["code"]) == ("infeasible", 3)
    source = text(ROOT / "src" / "nest" / "explanation" / "infeasible.py")
    assert [key for key in document["nearest"] if f'"{key}"' not in source] == []


def test_the_model_types_are_those_of_the_reader() -> None:
    from nest.inputs.huggingface.config import MODEL_TYPES

    block = FORMATS.partition("<!-- model types -->\n```text\n")[2].partition("```")[0]
    assert block.replace("\n", " ").strip() == ", ".join(MODEL_TYPES)


# ---------------------------------------------------------------- glossary


def test_the_glossary_has_every_dimension_and_every_count_of_a_search() -> None:
    page = text(ROOT / "docs" / "glossary.md")
    wanted = (*nest.SearchSpace.model_fields, "cell", "label", "transition", "tile", "rail",
              "stride", "place class", "bubble", "activation memory", "option", "outer choice")
    assert [name for name in wanted if not re.search(rf"\b{name}\b", page)] == []


# ---------------------------------------------------------------- commands


def commands() -> list[tuple[str, str]]:
    """Every `nest ...` in a shell block or in backticks, with its document."""
    found = []
    for path in DOCUMENTS:
        body = text(path)
        blocks = re.findall(r"```(?:sh|console|bash)\n(.*?)```", body, re.DOTALL)
        lines = [line.strip().lstrip("$ ") for block in blocks
                 for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`(nest [^`]+)`", re.sub(r"```.*?```", "", body, flags=re.DOTALL))
        found += [(path.name, line) for line in lines if line.startswith("nest ")]
    return sorted(set(found))


@cache
def program() -> Any:
    """All commands and their options."""
    from typer.main import get_command

    from nest.cli.main import app

    return get_command(app)


@pytest.mark.parametrize(("document", "line"), commands(), ids=lambda x: str(x)[:60])
def test_commands_exist(document: str, line: str) -> None:
    words = shlex.split(line.split("#")[0].split("|")[0].split(">")[0])[1:]
    group = program()
    options = {name for option in group.params for name in option.opts}
    if words and not words[0].startswith("-"):
        assert words[0] in group.commands, f"{document}: {line}"
        command = group.commands[words[0]]
        if words[0] == "sweep" and words[1] not in command.commands:
            words.insert(1, "run")
        for word in words[1:]:
            command = getattr(command, "commands", {}).get(word, command)
        options = {name for option in command.params
                   for name in (*option.opts, *option.secondary_opts)}
    words = words[:words.index("--")] if "--" in words else words  # of another program
    given = {word.split("=")[0] for word in words if word.startswith("-") and word != "-"}
    assert given <= options | {"--help", "-h"}, f"{document}: {line}"


# ---------------------------------------------------------------- all pages


def test_documents_hold_no_paths_of_a_machine() -> None:
    for path in DOCUMENTS:
        assert not re.search(r"/(?:root|home|tmp|work)/", text(path)), path.name


def test_the_readme_stays_short() -> None:
    assert len(text(ROOT / "README.md").split()) < 1000


def test_the_index_names_every_page() -> None:
    index = text(ROOT / "docs" / "README.md")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == {*re.findall(r"\]\(([\w-]+\.md)\)", index)}


def words_of(body: str) -> int:
    """Words that have a letter or a digit; rules of tables, signs and dashes do not count."""
    return sum(1 for word in body.split() if re.search(r"\w", word))


def by_hand(path: Path) -> str:
    """A page without commands, examples and output, and without what a named command writes."""
    made = re.compile(r"^<!-- python [^>]*-->.*?(?=^<!-- by hand -->|\Z)", re.DOTALL | re.MULTILINE)
    return made.sub("", re.sub(r"^```.*?^```", "", text(path), flags=re.DOTALL | re.MULTILINE))


def test_all_pages_together_stay_short() -> None:
    site = [path for path in DOCUMENTS if path.parent.name == "docs"]
    assert sum(words_of(by_hand(path)) for path in site) <= 41_500
    assert sum(words_of(text(path)) for path in DOCUMENTS) <= 56_500


RESULTS = ("accuracy", "evaluation", "planners", "instances", "gains", "dimensions", "jobs",
           "recipes", "scripts", "speed")


def test_pages_of_results_stay_short() -> None:
    assert sum(words_of(by_hand(ROOT / "docs" / f"{name}.md")) for name in RESULTS) <= 8_000
