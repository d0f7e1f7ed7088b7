"""`nest export`: files that appear together, folders and plans that are refused, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import Files, run

import nest
from nest.errors import InputError, OutputError
from nest.frameworks.target import write_folder

TWO = {"a": "1\n", "b": "2\n"}


@pytest.fixture
def plan(tmp_path, capsys) -> str:
    """Two nodes of four devices."""
    out, _ = run(capsys, "evaluate", *Files(tmp_path).words, "--tp", "4", "--json")
    (tmp_path / "plan.json").write_text(out, encoding="utf-8")
    return str(tmp_path / "plan.json")


def entries(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_a_plan_is_exported(plan, tmp_path, capsys):
    folder = tmp_path / "out"
    out, err = run(capsys, "export", plan, "--to", "megatron", "-o", str(folder))
    assert (out, err) == (f"{folder / 'launch.sh'}\n", "")
    assert entries(folder) == nest.export(nest.load_plan(plan), "megatron")
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder_with_files_is_refused_unless_forced(plan, tmp_path, capsys):
    folder = tmp_path / "out"
    folder.mkdir()
    words = ["export", plan, "--to", "megatron", "-o", str(folder)]
    run(capsys, *words)  # an empty one is taken
    (folder / "launch.sh").write_text("mine", encoding="utf-8")
    (folder / "notes").write_text("mine", encoding="utf-8")
    _, err = run(capsys, *words, code=2)
    assert "is not empty" in err and "--force" in err
    assert entries(folder) == {"launch.sh": "mine", "notes": "mine"}
    run(capsys, *words, "--force")
    assert entries(folder)["notes"] == "mine" and "torchrun" in entries(folder)["launch.sh"]


@pytest.mark.parametrize("folder", ["", "plan.json", "none/out", "a\0b"])
def test_no_folder_to_write(plan, tmp_path, capsys, folder):
    place = folder and str(tmp_path / folder)
    _, err = run(capsys, "export", plan, "--to", "megatron", "-o", place, code=2)
    assert err.startswith("nest: error: --output: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cluster.yaml", "model.yaml", "plan.json"]


def test_what_cannot_be_launched_leaves_nothing(tmp_path, capsys):
    files = Files(tmp_path)
    out, _ = run(capsys, "evaluate", *files.words, "--tp", "4", "--zero", "3", "--json")
    plan = tmp_path / "plan.json"
    plan.write_text(out, encoding="utf-8")
    _, err = run(capsys, "export", str(plan), "--to", "megatron", "-o", files.path("out"), code=3)
    assert err.startswith("nest: error: megatron cannot launch this plan:\n  zero 3: ")
    assert not Path(files.path("out")).exists()


@pytest.mark.parametrize(("words", "wanted"), [
    (["--to", "megatorn"], "--to: got 'megatorn'; did you mean megatron? allowed: megatron"),
    (["--to", "megatron", "--gpus-per-node", "16"],
     "--gpus-per-node: got 16; allowed: at most the 8 devices of the plan"),
    (["--to", "megatron", "--gpus-per-node", "0"], "--gpus-per-node: got 0; allowed: 1 to"),
    (["--to", "megatron", "--gpus-per-node", "3"], "--gpus-per-node: got 3; allowed: a divisor"),
])
def test_words_that_are_refused(plan, tmp_path, capsys, words, wanted):
    _, err = run(capsys, "export", plan, *words, "-o", str(tmp_path / "out"), code=2)
    assert wanted in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"schema": "nest.plan/1.1"})])
def test_files_that_are_no_plans(tmp_path, capsys, text):
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    _, err = run(capsys, "export", str(tmp_path / "plan.json"), "--to", "megatron", "-o",
                 str(tmp_path / "out"), code=2)
    assert "plan.json" in err and not (tmp_path / "out").exists()
    run(capsys, "export", "llama2", "--to", "megatron", "-o", str(tmp_path / "out"), code=2)


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, there):
    folder, real = tmp_path / "out", open
    if there:
        folder.mkdir()
        (folder / "a").write_text("old", encoding="utf-8")

    def full(path, *rest, **more):
        if str(path).endswith("b"):
            raise OSError(28, "No space left on device")
        return real(path, *rest, **more)

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OutputError, match="cannot be written .No space left"):
        write_folder(str(folder), TWO, force=True)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if there else [])
    assert not there or entries(folder) == {"a": "old"}


def test_files_are_checked_again_when_they_are_written(tmp_path):
    write_folder(str(tmp_path / "out"), TWO)
    assert entries(tmp_path / "out") == TWO
    with pytest.raises(InputError, match="is not empty"):
        write_folder(str(tmp_path / "out"), TWO)
