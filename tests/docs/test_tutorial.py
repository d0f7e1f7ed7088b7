"""Pages whose commands are run in order, on their own files: they print what the pages show."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from nest.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?:^`([\w.]+)`:\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.kernels
@pytest.mark.parametrize("page", ["tutorial.md", "improve.md"])
def test_the_commands_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "llama-8b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copy(DOCS / "examples" / "run.sh", folder)
    printed, commands = "", 0
    for name, language, body in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if name:
            (folder / name).write_text(body, encoding="utf-8")
        elif language == "sh":
            for line in body.splitlines():
                words = shlex.split(line)
                assert words[0] == "nest"
                assert main(words[1:]) == 0, capsys.readouterr().err
                commands += 1
            printed = capsys.readouterr().out
        else:
            assert language == "text"
            _shown(body.splitlines(), printed.splitlines())
    assert commands == {"tutorial.md": 6, "improve.md": 2}[page]


def _shown(wanted: list[str], printed: list[str]) -> None:
    """Lines of a page are printed one behind the other, but for those it leaves out (...)."""
    at, skip = 0, True
    for line in wanted:
        if line == "...":
            skip = True
            continue
        found = [n for n, other in enumerate(printed[at:], at) if other == line]
        assert found and (skip or found[0] == at), f"{line!r} is not printed behind line {at}"
        at, skip = found[0] + 1, False
