"""Exported scripts, run by bash with programs that only say how they were started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

STUB = """#!/usr/bin/env bash
{ printf '%s\\0' "$@"; printf '\\1\\0'; env -0; } > "$STARTED/$$"
"""


class Started(NamedTuple):
    """A program as a script started it."""

    words: list[str]
    """Of torchrun, those behind the program."""
    variables: dict[str, str]
    launcher: dict[str, int]
    """Numbers that torchrun was given."""


def run_script(
    files: Mapping[str, str], variables: Mapping[str, str], *words: str
) -> tuple[subprocess.CompletedProcess[str], list[Started]]:
    """Run a script of some files with variables and nothing else."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "two words"
        folder.mkdir()
        programs, started = Path(name) / "bin", Path(name) / "started"
        programs.mkdir()
        started.mkdir()
        for program in ("torchrun", "python"):
            (programs / program).write_text(STUB, encoding="utf-8")
            (programs / program).chmod(0o755)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["bash", str(folder / "launch.sh"), *words], capture_output=True, text=True,
            check=False, timeout=60, env={"PATH": f"{programs}:{os.environ['PATH']}",
                                          "STARTED": str(started), **variables})
        found = [_started(file.read_text(encoding="utf-8")) for file in started.iterdir()]
    return done, found


def launched(
    files: Mapping[str, str], node: int, given: Mapping[str, str] | None = None
) -> list[Started]:
    """Processes on a node; variables: made-up data, where none are given."""
    variables = {"MOCK_DATA": "1"} if given is None else given
    done, found = run_script(files, {**variables, "NODE": str(node), "MASTER_ADDR": "first"})
    assert done.returncode == 0 and found, done.stderr
    return found


def _started(text: str) -> Started:
    words, _, variables = text.partition("\1\0")
    given = words.split("\0")[:-1]
    at = next(n for n, word in enumerate(given) if word.endswith(".py") or word == "-m")
    pairs = zip(given[:at:2], given[1:at:2], strict=True)
    return Started(
        given[at + 1:], dict(one.split("=", 1) for one in variables.split("\0") if one),
        {name: int(value) for name, value in pairs if value.isdigit()})
