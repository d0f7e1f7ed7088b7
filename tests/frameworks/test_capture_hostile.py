"""Hostile scripts in `nest capture`: one clear line each, nothing started, nothing left behind."""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from command_line import run

from nest.errors import InputError
from nest.frameworks.capture.recording import capture

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
RUN = "torchrun pretrain_gpt.py --num-layers 7"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write where they are started; stand-ins have a folder for temporary files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "made"))


def refused(folder: Path, text: str | bytes, *command: str, time_limit: float = 4.0) -> str:
    """The one line of a script that is refused, soon; nothing of it runs on."""
    path = folder / "run.sh"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    begun = time.monotonic()
    with pytest.raises(InputError) as caught:
        capture(command or ["bash", str(path)], time_limit=time_limit)
    assert time.monotonic() - begun < time_limit + 8.0
    assert not os.listdir(folder / "made"), "stand-ins are left"
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 700, message
    assert not [one for one in running() if str(path) in one], "a process is left"
    return message


def running() -> list[str]:
    """Command lines of all processes."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("text", "wanted"), [
    # no end
    ("while :; do :; done", "more than 4 s; allowed: --time-limit SECONDS"),
    ("sleep 1000", "more than 4 s"), ("while sleep 0.01; do :; done", "more than 4 s"),
    ("f() { f; }; f", "starts no program|more than 4 s"), ("exec sleep 1000", "more than 4 s"),
    ("trap '' TERM INT HUP; while :; do sleep 1; done", "more than 4 s"),
    ("cat", "starts no program"), ("read X; echo $X", "starts no program"),
    ("setsid sleep 1000 & sleep 1000", "more than 4 s"),
    (f"while :; do {RUN}; done", "more than (4 s|1000 programs)"),
    # floods
    ("yes", "prints more than 64 MiB"), ("yes >&2", "prints more than 64 MiB"),
    ("cat /dev/zero", "prints more than 64 MiB"),
    ("head -c 3000000 /dev/urandom >&2", "starts no program .*it said"),
    (f"{RUN} $(head -c 120000 /dev/zero | tr '\\0' x) $(head -c 120000 /dev/zero | tr '\\0' y) "
     "$(head -c 120000 /dev/zero | tr '\\0' z)", "1000 programs, or one with more than"),
    # processes
    ("for i in $(seq 600); do sleep 1000 & done; wait", "starts more than 500 processes"),
    ("g() { [ $1 -gt 9 ] && return; g $(($1+1)) & g $(($1+1)) & wait; sleep 9; }; g 0",
     "starts more than 500 processes|more than 4 s"),
    # its parents
    ("kill -9 $PPID; exit", "ended by signal"),
    ("kill -9 0", "ended by signal"), ("kill -9 $$", "exit code 137"),
    ("kill -TERM -$(ps -o pgid= $$ | tr -d ' ')", "ended by signal|starts no program"),
    # the stand-ins
    ("D=$(dirname $(dirname $(command -v torchrun))); echo x > $D/records/1; torchrun x",
     "changes the stand-ins"),
    ("D=$(dirname $(dirname $(command -v torchrun))); torchrun x; for f in $D/records/*; do "
     "head -c 99 /dev/urandom > $f; done", "changes the stand-ins"),
    ("D=$(dirname $(dirname $(command -v torchrun))); torchrun x; for f in $D/records/*; do "
     "echo '{\"words\": 3}' > $f; done", "changes the stand-ins"),
    ("D=$(dirname $(dirname $(command -v torchrun))); torchrun x; for f in $D/records/*; do "
     "head -c 9000000 /dev/zero > $f; done", "changes the stand-ins|more than"),
    ("D=$(dirname $(dirname $(command -v torchrun))); rm -rf $D", "changes the stand-ins"),
    ("D=$(dirname $(dirname $(command -v torchrun))); echo '[' > $D/table.json; torchrun x",
     "changes the stand-ins"),
    ("D=$(dirname $(dirname $(command -v torchrun))); torchrun x; for f in $D/records/*; do "
     "printf '%9999s' | tr ' ' '[' > $f; done", "changes the stand-ins"),
    # no script, or none that starts anything
    ("", "starts no program"), ("exit 7", r"starts no program .*\(exit code 7\)"),
    ("if then", "starts no program .*syntax error"), ("((((", "starts no program"),
    (f"env -i PATH=/usr/bin:/bin sh -c '{RUN}'", "starts no program.*not found"),
    (f"export -n PATH; unset PATH BASH_ENV; sh -c '{RUN}'", "starts no program"),
    ("#!/usr/bin/env zsh\nexit 1", "starts no program"),
])
def test_hostile_scripts_end_in_one_line(text: str, wanted: str, tmp_path: Path) -> None:
    message = refused(tmp_path, text + "\n")
    assert re.search(wanted, message), message
    assert "run.sh" in message


@pytest.mark.parametrize("data", [
    b"\x7fELF" + bytes(range(256)) * 9, random.Random(3).randbytes(5000), b"\0" * 4096,
    b"\xff\xfe" + b"a\0" * 99,
    "\u202etorchrun\u202d".encode(), b"\r\n" * 500, b"'" * 999, b"$(" * 9999])
def test_binary_garbage(data: bytes, tmp_path: Path) -> None:
    assert "starts no program" in refused(tmp_path, data)


@pytest.mark.parametrize("command", [
    ["bash", "/nonexistent/run.sh"], ["bash"], ["bash", "-c", "exit 3"], ["/"], ["bash", "a\0b"],
    [""], ["bash", "x" * 5000], ["true"]])
def test_commands_that_are_none(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        capture(command, time_limit=4.0)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 700


@pytest.mark.parametrize("evil", [
    "$(touch {0})", "`touch {0}`", "; touch {0}", "' ; touch {0} ; '", "\" ; touch {0} ; \"",
    "\n touch {0} \n", "| touch {0}", "\\'; touch {0}", "$'\\n'touch {0}"])
def test_recorded_words_are_never_run(
    evil: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by the stand-ins nor by what reads the document."""
    mark = tmp_path / "owned"
    word = evil.format(mark)
    found = capture(["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", "--num-layers", "7",
                     "--save", word, word])
    assert found.launches[0].words[-1] == word
    path = tmp_path / "captured.json"
    path.write_text(found.to_json(), encoding="utf-8")
    run(capsys, "read", str(path), "-o", str(tmp_path / "job"), code=2)
    assert not mark.exists()


def test_bash_expands_no_name_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It expands the value of BASH_ENV: Bash Reference Manual 5.2, section 6.2."""
    folder = tmp_path / "a $(touch owned)"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    (folder / "run.sh").write_text(f"{RUN}\n", encoding="utf-8")
    with pytest.raises(InputError, match="for temporary files; allowed: TMPDIR=FOLDER of letters"):
        capture(["bash", str(folder / "run.sh")])
    assert not (tmp_path / "owned").exists() and os.listdir(folder) == ["run.sh"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert capture(["bash", str(folder / "run.sh")]).launches[0].words[-1] == "7"
