"""Hostile logs: one clear line each, in seconds, and nothing of them runs or reaches a terminal."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path

import command_line
import job_logs
import pytest

import nest
from nest.errors import InputError
from nest.measured import logs
from nest.measured.logs.table_row import table


def arguments(**more: object) -> str:
    return job_logs.table({**job_logs.LLAMA, **job_logs.RUN, "padded_vocab_size": 32000, **more})


STEP = job_logs.iteration(1, 2000.0)
DIGITS = "9" * 5000
TITAN = "[titan] 2026-03-01 10:00:00,000 - root - INFO - Running with "
# Name: bytes of the file, and what the one line says.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "nothing found"),
    "NUL": (b"\0" * 100_000, "nothing found"),
    "binary": (bytes(range(256)) * 4000, "nothing found"),
    "a pickle": (b"\x80\x04\x95\x1e\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
                 "nothing found"),
    "gzip": (b"\x1f\x8b" + b"x" * 1000, "is compressed"),
    "zip": (b"PK\x03\x04" + b"x" * 1000, "is compressed"),
    "one gigantic line": (b"iteration " * 2_000_000, "nothing found"),
    "a gigantic line of brackets": ((TITAN + "configs: " + "{" * 3_000_000).encode(),
                                    "nothing found|is not whole"),
    "half of a surrogate": (b"\xed\xa0\x80 iteration 1/ 2 \xff\xfe", "nothing found"),
    "terminal escapes": (f"\x1b]0;owned\x07\x1b[2J{arguments(optimizer=chr(27) + '[31mlion')}"
                         .encode(), "--optimizer"),
    "a number of 5,000 digits": (arguments(num_layers=DIGITS).encode(), "--num-layers"),
    "a batch of 5,000 digits": (arguments(global_batch_size=DIGITS).encode(), "--global-batch"),
    "a negative degree": (arguments(tensor_model_parallel_size=-2).encode(), "--tensor-model"),
    "a degree of zero": (arguments(world_size=0).encode(), "devices"),
    "degrees that are no product": (arguments(world_size=7).encode(), "no multiple"),
    "nan for a size": (arguments(hidden_size="nan").encode(), "--hidden-size"),
    "a list for a size": (arguments(hidden_size=[1, 2]).encode(), "--hidden-size"),
    "an expression": (arguments(hidden_size="__import__('os').system('touch owned')").encode(),
                      "--hidden-size"),
    "an expression in a list": (arguments(
        recompute_modules="[__import__('os').system('touch owned')]").encode(), "recompute"),
    "a nested list": (arguments(recompute_modules="[" * 5000 + "]" * 5000).encode(), "recompute"),
    "a row without a name": (b"------------------------ arguments ------------------------\n"
                             b"   ..... 3\n-------------------- end of arguments ---------------\n",
                             "configuration|num-layers|world_size"),
    "a table cut in the middle": (arguments()[:1500].encode(), "is not whole"),
    "contradictory tables": (f"{arguments()}\n{arguments(num_layers=16)}".encode(), "differ"),
    "a table in a table": (arguments()[:900].encode() + b"\n" + arguments()[:500].encode(),
                           "is not whole"),
    "a million rows": (("------------------------ arguments ------------------------\n"
                        + "".join(f"  a{n} .... 1\n" for n in range(200_000))).encode(),
                       "is not whole: it has more than"),
    "two frameworks": (f"{arguments(num_layers=None)}\n{TITAN}configs: {{\n}}".encode(),
                       "--num-layers"),
    "JSON with keys twice": ((TITAN + 'configs: {\n"training": {},\n"training": {}\n}').encode(),
                             "is not whole"),
    "JSON with a large number": ((TITAN + 'configs: {\n"training": {"seq_len": ' + DIGITS + "}\n}"
                                  ).encode(), "is not whole|digits"),
    "a dict that is a call": ((TITAN + "args: {'a': __import__('os').system('touch owned')}"
                               ).encode(), "is not whole|no configuration"),
    "YAML with a tag": (b"------- Task Configuration -------\nmodel: !!python/object/apply:os."
                        b"system ['touch owned']\n----------------------------------\n",
                        "is not whole"),
    "YAML with aliases": (b"------- Task Configuration -------\na: &a [x,x,x]\nb: &b [*a,*a,*a]\n"
                          b"model: *b\n----------------------------------\n", "is not whole"),
    "a thousand tables": ((arguments()[:400] + "\n").encode() * 3000, "is not whole"),
    "MaxText of unknown names": (b"".join(b"Config param a%d: x\n" % n for n in range(50_000)),
                                 "ici_|devices|allowed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_clear_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, says = HOSTILE[name]
    file = tmp_path / "train.log"
    file.write_bytes(data)
    began = time.process_time()
    with pytest.raises(InputError, match=says) as told:
        nest.read(file)
    assert time.process_time() - began < 20
    lines = str(told.value).splitlines()
    assert len(lines) <= 9 and all(len(line) < 700 for line in lines)
    assert all("train.log" in line for line in lines if not line.startswith("and "))
    assert {*tmp_path.iterdir()} == {file}


@pytest.mark.parametrize("text", [
    "nan", "-nan", "inf", "-5.0", "0.0", "0", DIGITS, f"1e{DIGITS}", "1e999", "0x10", "1_000", "٣",
    "--", "1.2.3", "5.0e", "\N{SUPERSCRIPT TWO}"])
def test_times_that_are_none_are_counted_and_left_out(tmp_path: Path, text: str) -> None:
    file = tmp_path / "train.log"
    good = "\n".join(job_logs.iteration(n, 2000.0 + n) for n in range(2, 8))
    file.write_text(f"{STEP.replace('2000.0', text)}\n{good}\n", encoding="utf-8")
    found = logs.read(file)
    assert found.step_time_s == pytest.approx(2.005) and len(found.steps) == 5, found.steps
    note = next(note for note in found.notes if "no positive numbers" in note)
    assert note.startswith("1 times of steps") and len(note) < 200


def test_memory_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text("\n".join([
        STEP, *(job_logs.MEMORY.format(0, word, word) for word in ("nan", DIGITS, "-3", "1e999")),
        "CUDA out of memory. Tried to allocate nan GiB.", job_logs.MEMORY.format(1, "5.0", "6.0"),
        f"CUDA out of memory. Tried to allocate {DIGITS} GiB."]), encoding="utf-8")
    found = logs.read(file)
    assert found.allocated_by_rank == {1: 5 * 2**20}
    assert found.verdict == "out_of_memory"


def test_cells_are_no_formulas_and_names_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "=cmd|'!A1.log"
    file.write_text("[titan] CUDA capacity: =HYPER\u202e\x07\x0bLINK(A) with 79.10GiB memory\n"
                    f"{arguments()}\n{STEP}\n", encoding="utf-8")
    found = logs.read(file)
    assert found.device == "=HYPERLINK(A)"
    made = found.settings
    text = table(found, made.model, made.job, made.configuration, made.devices, "+x")
    cells = next(csv.DictReader(io.StringIO(text)))
    assert not [cell for cell in cells.values() if cell[:1] in "=+-@"]
    said = command_line.run(capsys, "read", str(file), "-o", str(tmp_path / "job"))
    assert "\x1b" not in "".join(said)


def test_the_command_says_one_line_and_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "terminal escapes", "a table cut in the middle", "contradictory tables"):
        file = tmp_path / "train.log"
        file.write_bytes(HOSTILE[name][0])
        _, err = command_line.run(capsys, "read", str(file), "-o", str(tmp_path / "job"), code=2)
        assert err.startswith("nest: error: ")
        assert len(err.splitlines()) == 1 and "\x1b" not in err
        assert not (tmp_path / "job").exists()
