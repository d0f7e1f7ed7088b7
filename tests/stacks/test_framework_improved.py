"""Files that `nest improve` changed are taken by the frameworks' own parsers, and say the plan.

Skipped as ``test_framework_plans.py``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from framework_plans import PYTHON, judged, runnable
from launches import launched

import nest

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))
from improved import DEEPSPEED, MEGATRON, TITAN, TOML  # noqa: E402

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(
    not PYTHON or "NEST_FRAMEWORK_ARGUMENTS" not in os.environ,
    reason="NEST_FRAMEWORKS or NEST_FRAMEWORK_ARGUMENTS is not set")]
LACKING = ("--no-rope-fusion", "--no-gradient-accumulation-fusion")
"""What needs kernels that are not installed here."""
GIVEN = {"MOCK_DATA": "1", "DATA_PATH": "data", "TOKENIZER": "tokenizer", "CHECKPOINT": "saved",
         "LR": "1e-4", "TRAIN_ITERS": "10"}
"""What scripts ask for: exported ones, and those that are written anew."""
SPACES: tuple[dict[str, Any], ...] = ({}, {"pp": 4})
"""Bounds of the plans that are asked for."""


def improved(folder: Path, name: str, text: str, **more: Any) -> list[nest.Improvement]:
    """A file of 16 devices with the best plan of each space."""
    path, found = folder / name, []
    path.write_text(text, encoding="utf-8")
    cluster = nest.load_cluster("dgx-h100", devices=16)
    for bounds in SPACES:
        one = nest.improve(path, cluster, nest.SearchSpace(**bounds), in_place=True, **more)
        assert one.plan is not None and not one.refused, one.report()
        found.append(one)
    return found


def degrees(found: nest.Improvement) -> dict[str, Any]:
    """What a plan says of a launch."""
    assert found.plan is not None
    way, batch = found.plan.configuration, found.plan.inputs.job.global_batch
    stage, samples = way.stages[0], way.micro_batch // way.stages[0].dp_in
    dp = way.outer_dp * stage.dp_in
    return {"dp": dp, "tp": stage.tp, "pp": way.pp, "cp": stage.cp, "zero": stage.zero,
            "recompute": stage.recompute, "micro_batches": batch // (dp * samples),
            "vpp": way.vpp}


def test_scripts_of_megatron(tmp_path: Path) -> None:
    """Exported ones, whose nodes have lists, and one of a user's own."""
    found, asked = improved(tmp_path, "run.sh", MEGATRON), []
    for number, case in enumerate(runnable("megatron-core", 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in (case.files or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        one = nest.improve(folder / "launch.sh", case.cluster)
        found += [one] if one.files else []
    for one in found:
        files = {"launch.sh" if name.endswith(".sh") else name: text
                 for name, text in one.files.items()}
        started = launched(files, 0, GIVEN)[0]
        assert one.plan is not None
        asked.append({
            "flags": [*started.words, *LACKING], "world": one.plan.parallelism.devices_used,
            "variables": {name: value for name, value in started.variables.items()
                          if name == "CUDA_DEVICE_MAX_CONNECTIONS"}})
    answers = judged("arguments", asked, "framework_launch")
    for one, answer in zip(found, answers, strict=True):
        assert not answer["refused"], (answer["refused"], one.arguments)
        wanted = degrees(one)
        assert {name: answer[name] for name in ("vpp", "micro_batches")} == {
            name: wanted[name] for name in ("vpp", "micro_batches")}


def test_modules_of_torchtitan(tmp_path: Path) -> None:
    found = improved(tmp_path, "run.py", TITAN)
    answers = judged("module", [{"exported": one.files["run.py"], "config": "llama3_8b"}
                                for one in found], "framework_launch")
    policies = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
    for one, answer in zip(found, answers, strict=True):
        wanted = degrees(one)
        assert not answer["refused"], (answer["refused"], one.files)
        assert answer["policy"] == policies[wanted["recompute"]]
        assert answer["degrees"] == [wanted[name] for name in ("tp", "pp", "cp")]
        assert len(answer["modules"] or [0]) == wanted["pp"] * wanted["vpp"]


@pytest.mark.skipif("NEST_FRAMEWORK_TOML" not in os.environ,
                    reason="NEST_FRAMEWORK_TOML is not set")
def test_tomls_of_torchtitan(tmp_path: Path) -> None:
    found = improved(tmp_path, "run.toml", TOML)
    answers = judged("toml", [{"toml": one.files["run.toml"], "world": 16,
                               "dp": degrees(one)["dp"]} for one in found], "framework_launch")
    for one, answer in zip(found, answers, strict=True):
        wanted = degrees(one)
        assert not answer["refused"], (answer["refused"], one.files)
        assert answer["mode"] == wanted["recompute"]
        assert answer["steps"] == (1 if wanted["pp"] > 1 else wanted["micro_batches"])
        assert len(answer["modules"] or [0]) == wanted["pp"] * wanted["vpp"]


def test_jsons_of_deepspeed(tmp_path: Path) -> None:
    """By themselves, where the program divides no layers."""
    name, cluster = "ds.json", nest.load_cluster("dgx-h100", devices=16)
    (tmp_path / name).write_text(DEEPSPEED, encoding="utf-8")
    found = [nest.improve(tmp_path / name, cluster, nest.SearchSpace(**bounds), model="llama3-8b",
                          seq_len=8192) for bounds in ({}, {"tp": 2}, {"zero": 3}, {"zero": 1})]
    answers = judged("json", [{"settings": json.loads(one.files[name]), "world": 16,
                               "dp": degrees(one)["dp"]} for one in found], "framework_launch")
    for one, answer in zip(found, answers, strict=True):
        wanted = degrees(one)
        assert not answer["refused"], (answer["refused"], one.files)
        assert (answer["micro_batches"], answer["zero"]) == (
            wanted["micro_batches"], wanted["zero"])
