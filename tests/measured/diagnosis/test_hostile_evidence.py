"""Evidence that is cut, wrong or hostile: one clear line each, nothing is run, within bounds."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from simulated_runs import Disturbed, as_sqlite, snapshot_of

import nest
from nest.evaluation.even import even_configuration
from nest.measured.diagnosis import diagnose, kineto, nsight, pickled, snapshot

Make = Callable[[Path], Path]
MARK = "NEST_DIAGNOSE_RAN"


@pytest.fixture(scope="module")
def plan() -> nest.Plan:
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-h100", devices=16)
    job = nest.Job(global_batch=32, seq_len=4096)
    return nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=4, pp=1, zero=1))


class Runs:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f'touch "${MARK}"',)


class Built:
    """Unpickled, it would set a state."""

    def __setstate__(self, state: object) -> None:
        Path(os.environ[MARK]).touch()

    def __getstate__(self) -> object:
        return {"x": 1}


def data(content: bytes, suffix: str) -> Make:
    def make(folder: Path) -> Path:
        path = folder / f"given{suffix}"
        path.write_bytes(content)
        return path
    return make


def trace(value: object) -> Make:
    return data(json.dumps(value).encode(), ".json")


def snap(content: bytes) -> Make:
    return data(content, ".pickle")


def changed(**fields: object) -> Make:
    given = snapshot_of({"parameters": 100})
    given["segments"][0] |= fields
    return snap(pickle.dumps(given))


def base(*commands: str) -> Make:
    def make(folder: Path) -> Path:
        path = folder / "given.sqlite"
        with closing(sqlite3.connect(path)) as found:
            for command in commands:
                found.execute(command)
            found.commit()
        return path
    return make


def cut(folder: Path) -> Path:
    path = base("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)",
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
                "SELECT x + 1 FROM n WHERE x < 20000) SELECT x, x + 1 FROM n")(folder)
    path.write_bytes(path.read_bytes()[:30000])
    return path


def pipe(folder: Path) -> Path:
    path = folder / "given.sqlite"
    os.mkfifo(path)
    return path


EVENT = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}
KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId)"
ROW = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES "
BOMB = gzip.compress(b"[" + b" " * (2**26), 9)
TRACES: dict[str, tuple[Make, str]] = {
    "no file": (lambda folder: folder / "none.json", "no such file"),
    "a folder": (lambda folder: folder, "allowed: .json or .json.gz"),
    "empty": (data(b"", ".json"), "malformed JSON"),
    "cut": (data(b'{"traceEvents": [{"ph": "X", "ts": 1', ".json"), "malformed JSON"),
    "binary": (data(b"\x80\x04\x95\x00\xff", ".json"), "malformed JSON"),
    "nested": (data(b'{"traceEvents": ' + b"[" * 200_000, ".json"), "malformed JSON"),
    "nested events": (data(b'{"traceEvents": [{"args": ' + b'{"a":' * 100_000 + b"1"
                           + b"}" * 100_000 + b"}]}", ".json"), "malformed JSON"),
    "a long number": (data(b'{"traceEvents": [{"ph": "X", "ts": ' + b"9" * 5000 + b"}]}", ".json"),
                      "malformed JSON"),
    "no events": (trace({"a": 1}), "traceEvents: got None"),
    "events as text": (trace({"traceEvents": "all"}), "traceEvents: got 'all'"),
    "events without times": (trace({"traceEvents": [{"ph": "X"}, 5, None, []]}), "no kernel"),
    "NaN": (data(b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "g", "ts": NaN, '
                 b'"dur": 1}]}', ".json"), "no kernel"),
    "huge times": (trace({"traceEvents": [EVENT | {"ts": 1e300}, EVENT | {"dur": -5}]}),
                   "no kernel"),
    "no time": (trace({"traceEvents": [EVENT | {"dur": 0}] * 3}), "no kernel"),
    "arguments as a list": (trace({"traceEvents": [EVENT | {"args": [1]}]}), "args: got [1]"),
    "a list as a correlation": (trace({"traceEvents": [EVENT | {"args": {"correlation": [1]}}]}),
                                "args.correlation: got [1]"),
    "a mapping as a name of a thread": (trace({"traceEvents": [EVENT | {"tid": {}}]}),
                                        "tid: got {}"),
    "cut gzip": (data(gzip.compress(b"[" * 5000)[:-9], ".json.gz"), "cannot be read"),
    "no gzip": (data(b'{"traceEvents": []}', ".json.gz"), "cannot be read"),
    "a zip bomb": (data(BOMB, ".json.gz"), "got more than 1 MiB"),
    "another suffix": (data(b"{}", ".txt"), "allowed: .json or .json.gz"),
    "SQLite without tables": (base("CREATE TABLE a (b)"),
                              "got no table CUPTI_ACTIVITY_KIND_KERNEL"),
    "SQLite with other columns": (base("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (a, b)"),
                                  "got no column end, start"),
    "SQLite without rows": (base(KERNELS), "no kernel"),
    "SQLite with text as times": (base(KERNELS, ROW + "('a', 'b', 0, 0), (NULL, 5, 0, 0)"),
                                  "no kernel"),
    "SQLite with huge times": (base(KERNELS, ROW + "(1, 9223372036854775807, 0, 0), (9, 3, 0, 0)"),
                               "no kernel"),
    "SQLite with a view": (base("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS "
                                "(SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS start, 2 AS end "
                                "FROM n"), "is a view that is no plain table"),
    "SQLite with a virtual table": (base("CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING "
                                         "fts5(start, end)"), "is a table that is no plain table"),
    "cut SQLite": (cut, "cannot be read as SQLite"),
    "text as SQLite": (data(b"SELECT 1;" * 100, ".sqlite"), "is no SQLite file"),
    "a head of SQLite": (data(b"SQLite format 3\0" + b"\xff" * 500, ".sqlite"),
                         "cannot be read as SQLite"),
    "a pipe": (pipe, "is not a regular file"),
}
FIRST = b"\x80\x04"
SNAPSHOTS: dict[str, tuple[Make, str]] = {
    "no snapshot file": (lambda folder: folder / "none.pickle", "no such file"),
    "an empty snapshot": (snap(b""), "is cut or malformed"),
    "a cut snapshot": (snap(pickle.dumps(snapshot_of({"parameters": 5}))[:-40]), "is cut or"),
    "a call": (snap(pickle.dumps({"segments": [Runs()]})), "opcode STACK_GLOBAL at byte"),
    "a call of protocol 0": (snap(pickle.dumps(Runs(), protocol=0)), "opcode GLOBAL at byte"),
    "a state": (snap(pickle.dumps(Built())), "opcode STACK_GLOBAL"),
    "an old instance": (snap(b"(S'touch x'\nios\nsystem\n."), "opcode STRING"),
    "INST": (snap(b"(ios\nsystem\n."), "opcode INST"),
    "OBJ": (snap(FIRST + b"(o."), "opcode OBJ"),
    "REDUCE": (snap(FIRST + b"])R."), "opcode REDUCE at byte 4"),
    "BUILD": (snap(FIRST + b"]}b."), "opcode BUILD"),
    "NEWOBJ": (snap(FIRST + b"])\x81."), "opcode NEWOBJ"),
    "a persistent id": (snap(b"Pmodule\n."), "opcode PERSID"),
    "a persistent value": (snap(FIRST + b"]Q."), "opcode BINPERSID"),
    "an extension": (snap(FIRST + b"\x82\x01."), "opcode EXT1"),
    "bytes": (snap(pickle.dumps({"segments": b"x"})), "opcode SHORT_BINBYTES"),
    "a set": (snap(pickle.dumps({"segments": {1, 2}})), "opcode EMPTY_SET"),
    "a buffer": (snap(FIRST + b"\x97."), "opcode NEXT_BUFFER"),
    "no opcode": (snap(FIRST + b"\xff."), "opcode 0xff"),
    "nested marks": (snap(FIRST + b"(" * 100_000 + b"."), "nested more than 64 deep"),
    "a long text": (snap(FIRST + b"X" + struct.pack("<I", 2**31) + b"a"), "a text of 2147483648"),
    "a long number in a pickle": (snap(FIRST + b"\x8b" + struct.pack("<i", 10**6) + b"\1" * 10**6),
                                  "a number of 1000000 bytes"),
    "a negative length": (snap(FIRST + b"\x8b" + struct.pack("<i", -5) + b"."), "is cut"),
    "an empty stack": (snap(FIRST + b"a."), "is cut or malformed"),
    "no mark": (snap(FIRST + b"]e."), "is cut or malformed"),
    "a missing memo": (snap(FIRST + b"h\x05."), "malformed"),
    "a list as a key": (snap(FIRST + b"}]K\x01s."), "a key is no text"),
    "no segments": (snap(pickle.dumps({"a": 1})), "segments: got None"),
    "a list": (snap(pickle.dumps([1, 2])), "segments: got None"),
    "empty segments": (snap(pickle.dumps({"segments": []})), "got no segment"),
    "a text as a size": (changed(total_size="large"), "segments[0]: total_size: got 'large'"),
    "a negative size": (changed(total_size=-1), "total_size: got -1"),
    "a huge size": (changed(total_size=2**70), "total_size: got"),
    "NaN as a size": (changed(total_size=float("nan")), "total_size: got nan"),
    "blocks as a number": (changed(blocks=3), "segments[0]: blocks: got 3"),
    "a block as a text": (changed(blocks=["a"]), "segments[0].blocks[0]: size: got None"),
    "torch.save": (snap(b"PK\x03\x04" + b"\0" * 100), "is a zip file"),
}
OTHERS: dict[str, tuple[Make, str]] = {
    "no log": (lambda folder: folder / "none.log", "cannot be read"),
    "a log of nothing": (data(b"hello\n" * 50, ".log"), "nothing found that training software"),
    "a packed log": (data(gzip.compress(b"iteration"), ".log"), "is compressed (gzip)"),
}


def line_of(plan: nest.Plan, path: Path, kind: str) -> str:
    began = time.monotonic()
    with pytest.raises(nest.InputError) as caught:
        if kind == "trace":
            diagnose(plan, None, [str(path)])
        elif kind == "snapshot":
            diagnose(plan, memory=[str(path)])
        else:
            diagnose(plan, path)
    assert time.monotonic() - began < 20
    return str(caught.value)


@pytest.mark.parametrize("name", [*TRACES, *SNAPSHOTS, *OTHERS])
def test_one_clear_line(plan: nest.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                        name: str) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "ran"))
    kind = "trace" if name in TRACES else "snapshot" if name in SNAPSHOTS else "log"
    make, said = ({**TRACES, **SNAPSHOTS, **OTHERS})[name]
    if name == "a zip bomb":
        monkeypatch.setattr(kineto, "LARGEST", 2**20)
    found = line_of(plan, make(tmp_path), kind)
    assert said in found
    assert len(found.splitlines()) == 1 and len(found) < 700
    assert not (tmp_path / "ran").exists()
    assert {one.name for one in tmp_path.iterdir()} <= {f"given{suffix}" for suffix in (
        ".json", ".json.gz", ".txt", ".sqlite", ".pickle", ".log")}


def test_the_pickles_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes run a command in `pickle`: the tests above can fail."""
    monkeypatch.setenv(MARK, str(tmp_path / "ran"))
    pickle.loads(pickle.dumps(Runs()))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(("content", "limit", "said"), [
    (FIRST + b"N0" * 5000 + b".", "MOST_OPCODES", "opcodes"),
    (FIRST + b"(" + b"]\x94" * 5000 + b"l.", "MOST_VALUES", "values")])
def test_pickles_are_bounded(monkeypatch: pytest.MonkeyPatch, content: bytes, limit: str, said: str
                             ) -> None:
    monkeypatch.setattr(pickled, limit, 1000)
    with pytest.raises(nest.InputError, match=f"got more than 1,000 {said}"):
        pickled.loads(content, "x")


def test_a_large_index_of_the_memo_takes_no_memory() -> None:
    """`pickle` allocates for each index up to the largest."""
    content = FIRST + b"]r" + struct.pack("<I", 2**32 - 1) + b"."
    assert pickled.loads(content, "x") == []


def test_deep_values_are_let_go() -> None:
    deep = pickled.loads(FIRST + b")" + b"\x85" * 300_000 + b".", "x")
    assert type(deep) is tuple
    del deep


def test_files_are_bounded(plan: nest.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                           ) -> None:
    for module, suffix, kind in ((snapshot, ".pickle", "snapshot"), (nsight, ".sqlite", "trace"),
                                 (kineto, ".json", "trace")):
        monkeypatch.setattr(module, "LARGEST", 100)
        assert "allowed: at most 100" in line_of(
            plan, data(b"x" * 101, suffix)(tmp_path), kind)


def test_a_slow_report_ends(plan: nest.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                            ) -> None:
    run = Disturbed(plan)
    run.step()
    path = as_sqlite(run.trace(tmp_path / "t.json", 0, 0, 20), tmp_path / "t.sqlite")
    monkeypatch.setattr(nsight, "LONGEST", -1.0)
    monkeypatch.setattr(sqlite3, "connect", _impatient(sqlite3.connect))
    assert "interrupted" in line_of(plan, path, "trace")


def _impatient(connect: Callable[..., sqlite3.Connection]) -> Callable[..., Any]:
    """Ask after every instruction, for the report of the test is small."""
    class Often(sqlite3.Connection):
        def set_progress_handler(self, handler: Any, n: int) -> None:  # type: ignore[override]
            super().set_progress_handler(handler, 1)

    return lambda *given, **named: connect(*given, **named, factory=Often)


def test_odd_but_readable_evidence(plan: nest.Plan, tmp_path: Path) -> None:
    """Names and ranks of any kind do no harm."""
    events = [EVENT | {"name": name, "ts": n, "args": {"correlation": n, "stream": stream,
                                                       "Process Group Description": group}}
              for n, (name, stream, group) in enumerate((
                  (None, None, None), ("\x1b[2J" * 50, -1, 5), ("nccl" * 100, 2**80, ["a"][0]),
                  ("ncclDevKernel_AllReduce", True, "x" * 10**5)))]
    path = trace({"distributedInfo": {"rank": "all"}, "traceEvents": events})(tmp_path)
    found = diagnose(plan, None, [str(path)])
    assert found.sources[1].rank is None and found.measured_s == pytest.approx(4e-6)
    assert "\x1b" not in found.report()
    assert any("less than half" in note for note in found.notes)


@pytest.mark.parametrize(("given", "said"), [
    ({}, "log: got none"), ({"traces": ["x.json"] * 65}, "traces: got 65"),
    ({"memory": ["x"] * 65}, "memory: got 65"), ({"learned": "none.yaml", "traces": ["x.json"]},
                                                 "none.yaml"),
    ({"traces": [5]}, "traces: got"), ({"log": 5}, "log: got")])
def test_wrong_arguments(plan: nest.Plan, given: dict[str, Any], said: str) -> None:
    with pytest.raises(nest.InputError) as caught:
        diagnose(plan, **given)
    assert str(caught.value).startswith(said)
