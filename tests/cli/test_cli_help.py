"""Help with examples, `python -m nest`, completion of a shell, and near names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

import nest
from nest.cli.examples import EXAMPLES
from nest.cli.main import main

SOURCE = str(Path(nest.__file__).parents[1])


def child(*words: str, **variables: str) -> str:
    """Output of a process of Python."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": SOURCE, **variables}).stdout


def commands(*words: str) -> list[str]:
    """Words of all subcommands."""
    text = child("-m", "nest", *words, "--help")
    names = re.findall(r"^  ([a-z]+)  ", text[text.index("Commands:"):], re.MULTILINE)
    return [" ".join([*words, name]) for name in names]


def test_every_command_has_examples():
    every = [*commands(), *commands("calibrate"), *commands("bench"),
             *commands("sweep"), *commands("profile")]
    assert set(every) == set(EXAMPLES)


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_are_of_this_version(command, capsys):
    """They are in the help, within 80 columns, and their options exist."""
    text = run(capsys, *command.split(), "--help")[0]
    assert max(map(len, text.splitlines())) <= 80
    for line in EXAMPLES[command]:
        assert f"  {line}\n" in text
        words = shlex.split(line)[1:]
        if words[0] == "sweep" and words[1] not in ("show", "least", "curve"):
            words.insert(1, "run")
        group = words[0] in ("calibrate", "bench", "sweep", "profile")
        known = run(capsys, *words[:2 if group else 1], "--help")[0]
        for word in words:
            assert not word.startswith("-") or re.search(rf"{word}\b", known)


@pytest.mark.parametrize("words", [(), ("calibrate",), ("bench",), ("sweep",), ("profile",)])
def test_summaries_of_commands_are_whole_in_80_columns(words):
    text = child("-m", "nest", *words, "--help", COLUMNS="80")
    listed = text[text.index("Commands:"):].split("Examples:")[0]
    assert "..." not in listed and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", ["evaluate", "list", "schema"])
def test_an_example_runs(command, capsys):
    assert main(shlex.split(EXAMPLES[command][0])[1:]) in (0, 3)
    assert capsys.readouterr().out


def test_python_runs_the_package():
    assert child("-m", "nest", "--version") == f"nest {nest.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_words(shell):
    assert "_NEST_COMPLETE" in child(
        "-m", "nest", _NEST_COMPLETE=f"source_{shell}", _TYPER_COMPLETE_ARGS="nest ")
    given = {"COMP_WORDS": "nest pl", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "nest pl",
             "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "plan" in child("-m", "nest", _NEST_COMPLETE=f"complete_{shell}", **given)
    given |= {"COMP_WORDS": "nest plan --glob", "COMP_CWORD": "2",
              "_TYPER_COMPLETE_ARGS": "nest plan --glob"}
    found = child("-m", "nest", _NEST_COMPLETE=f"complete_{shell}", **given)
    assert "--global-batch" in found


@pytest.mark.parametrize(("words", "near"), [
    (["plna", "x"], "plan"),
    (["plan", "--presicion", "x"], "--precision"),
    (["plan", "llama2_7b", "dgx-a100"], "llama2-7b"),
    (["plan", "llama2-7b", "dgxa100"], "dgx-a100"),
    (["plan", "llama2-7b", "fat-tre:k=4"], "did you mean fat-tree?"),
    (["plan", "llama2-7b", "dgx-a100", "--device", "h100sxm"], "h100-sxm"),
    (["plan", "llama2-7b", "dgx-a100", "--stack", "megatron", "--global-batch", "8", "--seq-len",
      "8"], "megatron-core"),
    (["list", "model"], "did you mean models?"),
    (["schema", "clusters"], "did you mean cluster?"),
    (["compare", "llama2-7b", "dgx-a100", "--planners", "alpha"], "did you mean alpa?"),
    (["calibrate", "gem"], "gemm"),
])
def test_near_names_are_offered(words, near, capsys):
    assert near in run(capsys, *words, code=2)[1]
