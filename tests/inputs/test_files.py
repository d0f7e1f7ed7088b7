"""Files: what is read, what is refused and where, and writing that is all or nothing."""

from __future__ import annotations

import os
import pickle
import re
import stat
import time
from pathlib import Path

import pytest
from descriptions import CLUSTER, DEVICE, JOB, MODEL, message, put

from nest.errors import InputError, OutputError
from nest.inputs import (
    load_cluster,
    load_configuration,
    load_job,
    load_model,
    load_profile,
    load_space,
    load_stack,
    read_description,
    write_text_atomic,
)
from nest.inputs.base import Description
from nest.inputs.files import csv_cell
from nest.measured.profiles.torch_trace import from_trace


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ("", "a.yaml", "is empty"),
        ("   \n# nothing\n", "a.yaml", "got nothing"),
        ("[1, 2]", "a.json", "got [1, 2] (list)"),
        ("just text", "a.yaml", "allowed: a mapping of fields"),
        ("a: 1\na: 2\n", "a.yaml", "line 2, column 1: 'a' is given twice"),
        ("x: {b: 1, b: 2}\n", "a.yaml", "line 1, column 11: 'b' is given twice"),
        ('{"a": 1, "a": 2}', "a.json", "'a' is given twice"),
        ('{"a": NaN}', "a.json", "a: got NaN; allowed: a finite number"),
        ('{"a": [1, {"b c": Infinity}]}', "a.json", "a.1.b c: got Infinity; allowed: a finite"),
        ("a: [1, 2\nb: 3", "a.yaml", "line 2"),
        ("a: &x [1]\nb: *x\n", "a.yaml", "got an alias (*x)"),
        ("a: !!python/object/apply:os.system [ls]", "a.yaml", "got the tag"),
        ("a: !!int ''", "a.yaml", "got the tag 'tag:yaml.org,2002:int'"),
        ("a: " + "1:" * 100_000 + "1", "a.yaml", "allowed: at most 10000"),
        ("[" * 2**19, "a.yaml", "nested more than 64 deep"),
        ("- " * 2**18, "a.yaml", "nested more than 64 deep"),
        ("a: " + "x" * 2**20, "a.yaml", "JSON may be larger"),
        ("a." * 50_000 + "b = 1", "a.toml", "a key has more than 64 parts"),
        ("a = " + "[" * 100 + "]" * 100, "a.toml", "nested more than 64 deep"),
        ("a = " + "[" * 100_000, "a.toml", "nested too deep"),
        ("#" * 2**21, "a.toml", "allowed: 1048576"),
        ("x: {<<: 1}", "a.yaml", "malformed YAML"),
        ("? [a, b]\n: 1\n", "a.yaml", "as a key; allowed: text or a number"),
        ("a: 1\n---\nb: 2\n", "a.yaml", "malformed YAML"),
        ("1: 2\n", "a.yaml", "got 1 as a field name"),
        ('{"a": 1', "a.json", "line 1, column 8: malformed JSON"),
        ("a = 1\na = 2\n", "a.toml", "malformed TOML"),
        ("a = 1", "a.txt", "got suffix '.txt'; allowed: .yaml, .yml, .json, .toml"),
        (b"\x00\x01\x02", "a.yaml", "is a binary file"),
        (b"a: \xff\xfe", "a.yaml", "byte 3 is not UTF-8"),
        ("b: 1\na: " + "9" * 5000, "a.yaml", "line 2: a: got a whole number of 5000 digits"),
        ('{"a": ' + "9" * 5000 + "}", "a.json",
         "line 1: a: got a whole number of 5000 digits; allowed: at most 4300"),
        ("a = " + "9" * 5000, "a.toml", "line 1: a: got a whole number of 5000 digits"),
        ("a: " + "[" * 200 + "]" * 200, "a.yaml", "nested more than 64 deep"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "a.json", "nested too deep"),
        ("a: 0x_", "a.yaml", "line 1, column 4: got '0x_', which cannot be read"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(content, name, expected, tmp_path):
    path = put(tmp_path, content, name)
    text = message(read_description, path)
    assert text.startswith(f"{path}: ")
    assert expected in text


def test_dates_are_text(tmp_path):
    assert read_description(put(tmp_path, "a: 2020-02-31", "a.yaml")) == {"a": "2020-02-31"}
    dates = read_description(put(tmp_path, "a = [2020-02-29, 07:32:00]", "a.toml"))
    assert dates == {"a": ["2020-02-29", "07:32:00"]}


def test_files_that_are_none(tmp_path):
    assert "no such file" in message(load_model, tmp_path / "none.yaml")
    assert "is a folder" in message(load_model, tmp_path)
    (tmp_path / "x.yaml").mkdir()
    assert "is a folder" in message(load_model, tmp_path / "x.yaml")
    folder = tmp_path / "x.yaml"
    assert message(read_description, folder) == f"{folder}: is a folder; allowed: a file"
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "is not a regular file" in message(read_description, tmp_path / "pipe.yaml")
    assert "is not a file name" in message(read_description, "a\0b.yaml")
    assert "cannot be read" in message(read_description, "a" * 5000 + ".yaml")
    for odd in (None, 5, b"x.yaml", ["a"]):
        assert "a name, a path or a mapping" in message(load_model, odd)
    with open(tmp_path / "huge.json", "wb") as stream:
        stream.truncate(17 * 2**20)
    assert "allowed: at most" in message(read_description, tmp_path / "huge.json")


@pytest.mark.parametrize(
    ("load", "given", "found"),
    [
        (load_model, CLUSTER, "a cluster description"),
        (load_model, JOB, "a job description"),
        (load_cluster, MODEL, "a model description"),
        (load_cluster, {"model_type": "llama", "hidden_size": 3}, "a model description"),
        (load_cluster, DEVICE, "a device description"),
        (load_job, CLUSTER, "a cluster description"),
        (load_profile, MODEL, "a model description"),
        (load_configuration, {"schema": "nest.plan/1", "parallelism": {}}, "a plan description"),
    ],
)
def test_a_file_of_the_wrong_kind_is_recognised(load, given, found, tmp_path):
    text = message(load, put(tmp_path, given))
    assert found in text and "allowed: a" in text
    assert len(text.splitlines()) == 1


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_text_atomic(path, "one")
    path.chmod(0o640)
    write_text_atomic(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_text_atomic(path, "three")
    assert path.read_text() == "two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(("given", "cell"), [
    ("=1+1", "'=1+1"), ("-x", "'-x"), ("\t=1", "'\t=1"), ("\r=1", "'\r=1"), ("a=1", "a=1"),
    ("", ""), (-1.5, -1.5), (None, None)])
def test_no_cell_of_csv_is_a_formula(given: object, cell: object) -> None:
    assert csv_cell(given) == cell


def test_writing_where_it_cannot_be_done(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        write_text_atomic(tmp_path / "no" / "plan.json", "x")
    assert "is a folder" in message(write_text_atomic, tmp_path, "x")
    assert "cannot be written" in message(write_text_atomic, tmp_path / "a\0b", "x")
    assert "cannot be written" in message(write_text_atomic, tmp_path / "s", "\ud800")
    assert list(tmp_path.iterdir()) == []
    write_text_atomic("/dev/null", "x")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_text_atomic(link, "x")
    assert link.is_symlink() and (tmp_path / "target").read_text() == "x"


def test_a_value_of_any_length_leaves_a_short_message(tmp_path: Path) -> None:
    long = "9" * 5000
    alias = tmp_path / "alias.yaml"
    alias.write_text(f"a: *{long}\n", encoding="utf-8")
    assert "got an alias (*999" in message(read_description, alias)
    for text in (message(read_description, alias), str(InputError(f"before {long} behind")),
                 InputError("all", (f"before {long} behind",)).problems[0]):
        assert len(text) < 2100
    cut = str(InputError(f"before {long} behind\nnext"))
    assert cut.startswith("before 999")
    assert cut.endswith("9 behind\nnext")


def test_a_pipe_is_no_file_of_any_kind(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz", "a.yaml"):
        os.mkfifo(tmp_path / name)
    for read in (lambda path: from_trace(path, load_model("gpt2-xl"), ["Block"], 16),
                 read_description):
        assert "is not a regular file" in message(read, tmp_path / "a.json")
    assert "is not a regular file" in message(
        lambda path: from_trace(path, load_model("gpt2-xl"), ["Block"], 16),
        tmp_path / "a.json.gz")


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="a folder of Unix")
def test_a_pipe_of_the_process_is_written() -> None:
    reading, writing = os.pipe()
    write_text_atomic(f"/dev/fd/{writing}", "text")
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        assert stream.read() == "text"


def test_many_problems_leave_a_short_message(tmp_path: Path) -> None:
    path = put(tmp_path, {f"key_number_{n}": 1 for n in range(20_000)})
    for load in (load_model, load_cluster, load_stack, load_space):
        with pytest.raises(InputError) as caught:
            load(path)
        text = str(caught.value)
        assert len(text) < 8000
        assert re.search(r"and \d+ more problems$", text)
    many = InputError("", tuple(f"line {n} {'x' * 1000}" for n in range(100)))
    assert many.problems[-1] == "and 93 more lines"
    assert pickle.loads(pickle.dumps(many)).problems == many.problems
    assert len(str(InputError("\n".join(many.problems[:1] * 100)))) < 8100


def test_many_fields_of_a_later_version_are_left_out_at_once() -> None:
    class Known(Description):
        a: int
        inner: dict[str, int] = {}

    before = time.process_time()
    found, notes = Known.parse_known({"a": 1, **{f"k{n}": 1 for n in range(40_000)}}, "x")
    assert time.process_time() - before < 5.0
    assert found == Known(a=1)
    assert len(notes) == 51
    assert notes[-1] == "x: and 39950 more unknown fields, ignored"
