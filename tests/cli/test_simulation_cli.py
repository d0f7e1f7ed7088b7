"""`nest simulate`: text, JSON, trace, and what it refuses."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from command_line import Files, run

import nest
from nest.report.files import trace_text
from nest.report.simulation_text import simulation_text
from nest.simulation.step import Traced

KEYS = ["step_time_s", "closed_form_s", "relative_difference", "peak_memory_bytes", "events"]


@pytest.fixture
def file(tmp_path: Path, capsys) -> str:
    """A plan of two stages and two replicas on eight devices."""
    path = str(tmp_path / "plan.json")
    words = ["evaluate", *Files(tmp_path).words, "--pp", "2", "--tp", "2", "--zero", "1"]
    run(capsys, *words, "-q", "-o", path)
    return path


def test_json(file: str, capsys) -> None:
    out, err = run(capsys, "simulate", file, "--json")
    found = json.loads(out)
    assert list(found)[:5] == KEYS
    assert err == ""
    plan = json.loads(Path(file).read_text(encoding="utf-8"))
    assert found["closed_form_s"] == plan["step_time_s"]
    assert found["relative_difference"] == pytest.approx(
        found["closed_form_s"] / found["step_time_s"] - 1)
    assert found["peak_memory_bytes"] == pytest.approx(
        max(s["memory_bytes"]["total"] for s in plan["stages"]))
    assert isinstance(found["events"], int)
    assert len(found["stages"]) == 2
    assert found["schema"] == "nest.simulation/1"


def test_python_gives_what_the_command_gives(file: str, capsys) -> None:
    from nest.evaluation.plan_file import reread

    out, _ = run(capsys, "simulate", file, "--json")
    found = nest.simulate(reread(file)[0])
    assert isinstance(found, nest.Simulation)
    assert json.loads(found.to_json()) == json.loads(out)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_text(file: str, capsys, monkeypatch, encoding: str) -> None:
    monkeypatch.setattr("nest.cli.output.unicode", lambda: encoding == "utf-8")
    out, err = run(capsys, "simulate", file)
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    out.encode(encoding)
    for words in ("Simulated", "Closed form", "against the simulation", "busy", "idle",
                  "Time of stage", "gradient reduction", "2, all equal"):
        assert words in out


def test_deep_pipelines_are_cut_short(tmp_path: Path) -> None:
    layer = {"forward": 1e-3, "backward": 2e-3, "parameter_bytes": 1e6, "activation_bytes": 1e6}
    profile = nest.Profile.parse({"name": "deep", "layers": [
        {"name": "a", "output_bytes": 1e6, "tp": {"1": layer}, "repeat": 24}]})
    where = nest.load_cluster("dgx-a100", devices=24)
    stages = [nest.StageConfiguration(layers=(n, n + 1), devices=(n, n + 1)) for n in range(24)]
    plan = nest.evaluate(profile, where, nest.Job(global_batch=2, seq_len=8),
                         nest.Configuration(micro_batch=1, stages=stages))
    lines = simulation_text(plan, nest.simulate(plan)).splitlines()
    rows = [line.split()[0] for line in lines if line[:2].strip().isdigit() or line[:2] == ".."]
    assert rows == [*map(str, range(8)), "..", *map(str, range(16, 24))]


# ---------------------------------------------------------------- trace


def test_trace(file: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.json"
    out, err = run(capsys, "simulate", file, "--trace", str(path), "--json")
    found, trace = json.loads(out), json.loads(path.read_text(encoding="utf-8"))
    assert err == ""
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"X", "C", "M"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[1, 0] == "compute"
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["stage 0, replica 0, devices 0..1", "stage 1, replica 0, devices 2..3"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {"F0", "B7", "optimizer", "gradients", "gather parameters", "activations 0",
            "gradient 3"} <= {e["name"] for e in slices}
    assert {(e["pid"], e["tid"]) for e in slices} <= set(names)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(1e6 * found["step_time_s"])
    levels = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert max(levels) == found["peak_memory_bytes"]
    assert trace["otherData"]["micro_batches_left_out"] is None


def test_slices_of_a_stream_do_not_overlap(file: str) -> None:
    from nest.evaluation.plan_file import reread

    traced = Traced(reread(file)[0])
    streams = defaultdict(list)
    for s in traced.record.slices:
        assert s.end >= s.start
        streams[s.stage, s.stream].append((s.start, s.end))
    for times in streams.values():
        times.sort()
        assert all(a[1] <= b[0] + 1e-12 for a, b in zip(times, times[1:], strict=False))


def test_a_large_trace_leaves_micro_batches_out(file: str, tmp_path: Path, capsys, monkeypatch
                                                ) -> None:
    from nest.evaluation.plan_file import reread

    plan = reread(file)[0]
    small = trace_text(plan, Traced(plan, most=40))
    assert json.loads(small)["otherData"]["micro_batches_left_out"] == [2, 5]
    names = {e["name"] for e in json.loads(small)["traceEvents"] if e["ph"] == "X"}
    assert {"F1", "B6", "optimizer"} <= names
    assert not {"F2", "B5"} & names
    monkeypatch.setattr("nest.simulation.step.MOST_SLICES", 40)
    path = tmp_path / "small.json"
    _, err = run(capsys, "simulate", file, "--trace", str(path), "--json")
    assert "micro-batches 2..5 of 8 are left out" in err


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("words", "said"), [
    (["no-such-plan"], "which is not a file; allowed: PLAN.json"),
    (["missing.json"], "missing.json"),
    (["{file}", "--trace", ""], "allowed: a file to write"),
    (["{file}", "--trace", "{folder}"], "is a folder"),
    (["{file}", "--trace", "{folder}/none/trace.json"], "no folder"),
    (["{file}", "--bucket", "many"], "--bucket: got 'many'"),
    (["{file}", "--bucket", "-1 MiB"], "--bucket"),
])
def test_refused(file: str, tmp_path: Path, capsys, words: list[str], said: str) -> None:
    given = [word.format(file=file, folder=tmp_path) for word in words]
    _, err = run(capsys, "simulate", *given, code=2)
    assert said in err
    assert len(err.splitlines()) <= 2


def test_bucket(file: str, capsys) -> None:
    small, large = (json.loads(run(capsys, "simulate", file, "--json", "--bucket", size)[0])
                    for size in ("1 B", "1 TiB"))
    assert small["events"] > large["events"]


def test_edited_plans(file: str, tmp_path: Path, capsys) -> None:
    plan = json.loads(Path(file).read_text(encoding="utf-8"))
    before = json.loads(run(capsys, "simulate", file, "--json")[0])
    plan["stages"][0]["recompute"] = plan["stages"][1]["recompute"] = "full"
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(plan), encoding="utf-8")
    now = json.loads(run(capsys, "simulate", str(edited), "--json")[0])
    assert now["step_time_s"] > before["step_time_s"]
    plan["stages"][0]["layers"] = [0, 2]
    edited.write_text(json.dumps(plan), encoding="utf-8")
    trace = tmp_path / "trace.json"
    _, err = run(capsys, "simulate", str(edited), "--trace", str(trace), code=2)
    assert "stages.1.layers" in err
    assert not trace.exists()
