"""Results on a full disk, and errors as documents."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Files, run

import nest
from nest.cli import output
from nest.cli.main import main as cli
from nest.errors import OutputError
from nest.inputs.files import write_text_atomic

FULL = "/dev/full"
NO_SPACE = os.strerror(errno.ENOSPC)
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="a device of Linux")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def full(files: Files, name: str) -> str:
    """A file on a full disk, with the suffix of a name."""
    os.symlink(FULL, files.path(name))
    return files.path(name)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files grow to so many bytes only, as on a disk that fills while one is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---------------------------------------------------------------- nothing is lost


@needs_full
@pytest.mark.kernels(uncompiled=True)
def test_a_plan_that_cannot_be_written_is_printed(files, capsys):
    target, ranks, picture = full(files, "p.json"), files.path("r.csv"), full(files, "m.svg")
    words = ["plan", *files.words, "--cp", "1", "--recompute", "none", "-o", target]
    out, err = run(capsys, *words, "--ranks", ranks, "--map", picture, code=74)
    assert "tokens/s" in out
    assert f"{target}: cannot be written ({NO_SPACE})" in err
    assert f"{picture}: cannot be written ({NO_SPACE})" in err
    assert Path(ranks).read_text(encoding="utf-8").startswith("rank,")
    assert "tokens/s" in run(capsys, *words, "--quiet", code=74)[0]
    out, _ = run(capsys, *words, "--json", code=74)
    assert nest.Plan.parse(json.loads(out)).optimal


@needs_full
def test_every_writer_prints_what_it_cannot_write(files, capsys):
    plan, chart = files.path("plan.json"), full(files, "c.png")
    run(capsys, "evaluate", *files.words, "-o", plan)
    gemm = Path(files.path("gemm.csv"))
    gemm.write_text("dtype,m,n,k,latency_us\n" + "\n".join(
        f"bfloat16,{m},{n},{k},{(2 * m * n * k / 5e14 + 4e-6) * 1e6}"
        for m in (512, 1024, 4096) for n in (1024, 4096) for k in (1024, 8192)), encoding="utf-8")
    for words, shown in (
        (["evaluate", *files.words, "-o", full(files, "e.json")], "tokens/s"),
        (["simulate", plan, "--trace", full(files, "t.json")], "per step"),
        (["validate", "--group", "simumax_b200", "-o", full(files, "v.csv")], "runs"),
        (["validate", "--group", "simumax_b200", "--plot", full(files, "v.svg")], "runs"),
        (["compare", *files.words, "--planners", "zero", "--chart", chart], "zero"),
        (["calibrate", "gemm", str(gemm), "--device", "h100-sxm", "-o", full(files, "d.yaml")],
         "h100"),
    ):
        out, err = run(capsys, *words, code=74)
        assert shown in out, words
        assert f"{words[-1]}: cannot be written ({NO_SPACE})" in err


def test_a_file_is_whole_or_as_before(tmp_path):
    target = tmp_path / "plan.json"
    target.write_text("before", encoding="utf-8")
    with largest_file(1000), pytest.raises(OutputError, match="plan.json: cannot be written"):
        write_text_atomic(target, "x" * 5000)
    assert target.read_text(encoding="utf-8") == "before"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_pictures_are_whole_or_as_before(files, capsys):
    picture = Path(files.path("map.png"))
    picture.write_bytes(b"before")
    with largest_file(1000):
        out, err = run(capsys, "evaluate", *files.words, "--map", str(picture), code=74)
    assert "tokens/s" in out
    assert "map.png: cannot be written" in err
    assert picture.read_bytes() == b"before"
    assert not [name for name in os.listdir(files.folder) if name.startswith(".nest")]


def test_what_cannot_be_written_is_named_once_the_rest_is(capsys):
    done = []

    def fail() -> None:
        raise OutputError("a: cannot be written")

    with pytest.raises(OutputError, match="a: cannot be written") as told:
        output.deliver(lambda: "text", fail, lambda: done.append("b"), quiet=True)
    assert told.value.printed
    assert done == ["b"]
    assert capsys.readouterr().out == "text\n"


# ---------------------------------------------------------------- errors as documents


@pytest.mark.parametrize("words", [
    ["plan", "no-such-model", "dgx-a100"],
    ["plan", "llama2-7b", "dgx-a100", "--top", "some"],
    ["evaluate", "llama2-7b", "dgx-a100", "--devices", "8", "--global-batch", "8", "--seq-len",
     "512", "--tp", "5"],
    ["compare", "llama2-7b", "dgx-a100", "--planners", "none"],
    ["explain", "no-such-plan.json"],
    ["simulate", "no-such-plan.json"],
    ["validate", "no-such-table.csv"],
    ["list", "cars"],
    ["calibrate", "collectives", "no.csv", "--cluster", "dgx-a100"],
    ["bench", "paper", "--models", "none"],
    ["plan", "--no-such-option"],
], ids=lambda words: " ".join(words[:2]))
def test_bad_input_is_a_document(capsys, words):
    out, err = run(capsys, *words, "--json", code=2)
    document = json.loads(out)
    assert {name: document[name] for name in ("schema", "error", "code")} == {
        "schema": "nest.error/1", "error": "input", "code": 2}
    assert document["problems"]
    assert document["message"].splitlines()[0] in err
    assert "nearest" not in document
    assert run(capsys, *words, code=2)[0] == ""


def test_every_problem_is_an_entry(files, capsys):
    out, _ = run(capsys, "plan", *files.words, "--zero", "x", "--tp", "x", "--json", code=2)
    assert len(json.loads(out)["problems"]) == 2


def test_a_defect_is_a_document(files, capsys, monkeypatch):
    monkeypatch.setattr("nest.api.plan", None)
    document = json.loads(run(capsys, "plan", *files.words, "--json", code=70)[0])
    assert (document["error"], document["code"]) == ("defect", 70)


@needs_full
@pytest.mark.parametrize("words", [["--help"], ["explain", "--help"], ["list", "models"]])
def test_help_on_a_full_disk(words):
    with open(FULL, "w", encoding="utf-8") as stream:
        done = subprocess.run([sys.executable, "-m", "nest", *words], stdout=stream, text=True,
                              stderr=subprocess.PIPE, timeout=120, check=False)
    assert done.returncode == 74
    assert done.stderr == f"nest: error: standard output: cannot be written ({NO_SPACE})\n"


def test_a_message_gives_a_terminal_no_commands(tmp_path, capsys):
    script = tmp_path / "job.sh"
    script.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 "
                      "--a\x1b[2J\x1b]0;b\x07 1\n")
    assert cli(["read", str(script), "-o", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert r"--a\x1b[2J" in told and "\x1b" not in told
