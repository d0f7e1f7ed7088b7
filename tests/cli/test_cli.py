"""The command line: every command, every exit code, and the same answers as from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from command_line import CLUSTER, JOB, Files, run
from descriptions import MODEL, PROFILE, changed, put

import nest
from nest.cli.main import main
from nest.errors import InfeasibleError, KernelError, LimitError
from nest.inputs import catalog


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def untimed(text: str) -> dict:
    """A plan without what differs from run to run."""
    plan = json.loads(text)
    for name in ("seconds", "compile_seconds", "peak_bytes"):
        plan["search"].pop(name)
    return plan


# ---------------------------------------------------------------- plan


@pytest.mark.kernels
def test_plan_prints_what_the_api_gives(files, capsys):
    out, _ = run(capsys, "plan", *files.words, "--tp", "1..4", "--zero", "0,1", "--json",
                 "--threads", "1")
    found = nest.plan(nest.load_model(files.model), nest.load_cluster(files.cluster),
                      nest.Job(global_batch=16, seq_len=128),
                      nest.SearchSpace(tp="1..4", zero="0,1"), threads=1)
    assert untimed(out) == untimed(found.to_json())
    jsonschema.validate(json.loads(out), nest.Plan.model_json_schema(mode="serialization"))


@pytest.mark.kernels(uncompiled=True)
def test_every_dimension_has_an_option(files, capsys):
    words = {"tp": "1..2", "pp": "1..2", "cp": "1..2", "cp_comm": "p2p", "cp_a2a": "2",
             "zero": "0..1", "shard": "dp", "recompute": "none,selective,full",
             "recompute_modules": "norm+core_attn,norm", "recompute_layers": "2..3",
             "sp": "true", "outer_dp": "1..2", "dp_in": "1..4", "ep": "1", "etp": "1..2",
             "vpp": "1..3", "group": "2..8", "micro_batch": "1..8", "mbs": "1..4",
             "schedule": "gpipe,1f1b",
             "cuda_graphs": "none", "dispatcher": "alltoall", "fused_experts": "false",
             "fp8_attention": "false", "fp8_head": "false", "fp8_gather": "true",
             "tp_overlap": "true", "offload": "none"}
    loss = {"loss": "whole,liger"}
    assert {*words, *loss} == set(nest.SearchSpace.model_fields)
    for bounds, stack in ((words, "megatron-bridge"), (loss, "fsdp")):  # which have the choices
        given = [word for name, text in bounds.items()
                 for word in (f"--{name.replace('_', '-')}", text)]
        out, _ = run(capsys, "plan", *files.words, *given, "--stack", stack, "--json")
        space = json.loads(out)["search"]["space"]
        assert {name: space[name] for name in bounds} == bounds | (
            {"recompute_modules": "core_attn+norm,norm"} if bounds is words else {})


@pytest.mark.kernels(uncompiled=True)
def test_the_best_plans(files, capsys):
    words = ["plan", *files.words, "--cp", "1", "--recompute", "none,full", "--top", "4"]
    plan = json.loads(run(capsys, *words, "--json")[0])
    assert plan["gap"] == 0.0
    times = [plan["step_time_s"], *(a["step_time_s"] for a in plan["alternatives"])]
    assert len(times) == 4
    assert times == sorted(times)
    model, cluster = nest.load_model(files.model), nest.load_cluster(files.cluster)
    for other in plan["alternatives"]:
        way = nest.Configuration.parse(other["configuration"])
        priced = nest.evaluate(model, cluster, nest.Job(global_batch=16, seq_len=128), way)
        assert priced.step_time_s == pytest.approx(other["step_time_s"], rel=1e-9)
        assert other["slower"] == pytest.approx(priced.step_time_s / times[0] - 1)
    out, _ = run(capsys, *words)
    assert "Best plans" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.kernels(uncompiled=True)
def test_a_time_limit_that_is_long_enough_changes_nothing(files, capsys):
    words = ["plan", *files.words, "--cp", "1", "--recompute", "none", "--json"]
    timed = run(capsys, *words, "--time-limit", "1000")[0]
    assert untimed(timed) == untimed(run(capsys, *words)[0])


@pytest.mark.kernels(uncompiled=True)
def test_options_win_over_files(files, capsys):
    job = put(files.folder, {"global_batch": 16, "seq_len": 128, "precision": "bf16"}, "job.yaml")
    space = put(files.folder, {"tp": 4, "pp": 2, "zero": 1}, "space.yaml")
    out, _ = run(capsys, "plan", files.model, files.cluster, "--job", str(job), "--seq-len", "64",
                 "--space", str(space), "--tp", "2", "--stack", "deepspeed", "--json")
    plan = json.loads(out)
    assert plan["inputs"]["job"]["seq_len"] == 64
    assert plan["inputs"]["job"]["global_batch"] == 16
    assert plan["inputs"]["job"]["stack"]["name"] == "deepspeed"
    assert plan["search"]["space"]["pp"] == "2"
    assert {s["tp"] for s in plan["stages"]} == {2}
    assert {s["zero"] for s in plan["stages"]} == {1}


def test_a_job_file_may_leave_to_options_what_is_needed(files, capsys):
    job = put(files.folder, {"seq_len": 128, "optimizer": "sgd"}, "job.yaml")
    out, _ = run(capsys, "evaluate", files.model, files.cluster, "--job", str(job),
                 "--global-batch", "16", "--json")
    assert json.loads(out)["inputs"]["job"]["optimizer"] == "sgd"


@pytest.mark.kernels(uncompiled=True)
def test_plan_of_a_profile(files, capsys):
    profile = str(put(files.folder, PROFILE, "profile.yaml"))
    out, _ = run(capsys, "plan", "--profile", profile, files.cluster, *JOB)
    assert out.startswith("p on c, 8 devices: ")
    assert "MFU" not in out
    _, err = run(capsys, "plan", "--profile", profile, files.model, files.cluster, *JOB, code=2)
    assert "--profile stands for MODEL" in err


@pytest.mark.kernels(uncompiled=True)
def test_output_file_is_the_plan(files, capsys):
    target = files.path("plan.json")
    out, _ = run(capsys, "plan", *files.words, "-o", target)
    assert "tokens/s" in out
    assert os.listdir(files.folder).count("plan.json") == 1
    text = Path(target).read_text(encoding="utf-8")
    assert nest.Plan.parse(json.loads(text)).optimal
    quiet, err = run(capsys, "plan", *files.words, "-o", target, "--quiet")
    assert quiet == err == ""
    assert untimed(text) == untimed(Path(target).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "reason"), [
    ("absent/plan.json", "cannot be written"), (".", "is a folder"),
])
def test_output_that_cannot_be_written(files, capsys, name, reason):
    before = sorted(os.listdir(files.folder))
    out, err = run(capsys, "plan", *files.words, "-o", files.path(name), code=2)
    assert out == ""
    assert reason in err
    assert sorted(os.listdir(files.folder)) == before


@pytest.mark.kernels(uncompiled=True)
def test_nothing_is_written_on_an_error(files, capsys):
    target = files.path("plan.json")
    Path(target).write_text("before", encoding="utf-8")
    run(capsys, "plan", *files.words, "--zero", "7", "-o", target, code=2)
    words = files.infeasible()
    run(capsys, "plan", *words, "-o", target, code=3)
    run(capsys, "evaluate", *words, "-o", target, code=3)
    assert Path(target).read_text(encoding="utf-8") == "before"
    assert not [name for name in os.listdir(files.folder) if name.startswith(".nest-")]


# ---------------------------------------------------------------- evaluate


def test_evaluate_prices_even_cuts(files, capsys):
    words = ("evaluate", *files.words, "--tp", "2", "--pp", "3", "--outer-dp", "1", "--zero", "1",
             "--mbs", "2", "--no-sp", "--recompute", "full", "--json")
    plan = json.loads(run(capsys, *words)[0])
    assert [s["layers"] for s in plan["stages"]] == [[0, 3], [3, 6], [6, 9]]
    assert {(s["tp"], s["sp"], s["zero"], s["recompute"]) for s in plan["stages"]} == {
        (2, False, 1, "full")}
    assert plan["parallelism"]["micro_batch"] == 2
    assert plan["parallelism"]["stride"] == 8
    assert plan["search"] is None


def test_evaluate_takes_every_degree(files, capsys):
    def stages(*words: str) -> tuple[dict, list[dict]]:
        plan = json.loads(run(capsys, "evaluate", *files.words, *words, "--json")[0])
        return plan["parallelism"], plan["stages"]

    _, (one,) = stages("--cp", "2", "--cp-comm", "a2a", "--dp-in", "2", "--zero", "2", "--shard",
                       "dp_in", "--recompute", "selective", "--recompute-modules",
                       "norm+core_attn")
    assert (one["cp"], one["cp_comm"], one["zero"], one["shard"]) == (2, "a2a", 2, "dp_in")
    assert one["recompute_modules"] == ["core_attn", "norm"]
    whole, two = stages("--pp", "2", "--recompute", "full", "--recompute-layers", "2",
                        "--schedule", "gpipe")
    assert whole["schedule"] == "gpipe"
    assert {s["recompute_layers"] for s in two} == {2}
    six = changed(MODEL, "layers", 8)
    path = str(put(files.folder, six, "six.yaml"))
    out, _ = run(capsys, "evaluate", path, files.cluster, *JOB, "--pp", "2", "--vpp", "2", "--json")
    plan = json.loads(out)
    assert (plan["parallelism"]["vpp"], plan["parallelism"]["schedule"]) == (2, "interleaved")
    assert [s["chunks"] for s in plan["stages"]] == [[[0, 3], [5, 7]], [[3, 5], [7, 10]]]


def test_evaluate_takes_a_configuration_file(files, capsys):
    stages = [{"layers": [0, 4], "devices": [0, 2], "tp": 2},
              {"layers": [4, 9], "devices": [2, 4], "dp_in": 2}]
    given = str(put(files.folder, {"micro_batch": 2, "outer_dp": 2, "stages": stages}, "way.yaml"))
    out, _ = run(capsys, "evaluate", *files.words, "--configuration", given, "--json")
    found = nest.evaluate(nest.load_model(files.model), nest.load_cluster(files.cluster),
                          nest.Job(global_batch=16, seq_len=128), nest.load_configuration(given))
    assert json.loads(out) == json.loads(found.to_json())
    _, err = run(capsys, "evaluate", *files.words, "--configuration", given, "--tp", "2", code=2)
    assert "allowed: one of them" in err


def test_what_does_not_fit_is_priced_and_refused(files, capsys):
    words = files.infeasible()
    out, err = run(capsys, "evaluate", *words, "-o", files.path("x.json"),
                   "--json", code=3)
    plan = json.loads(out)
    assert plan["feasible"] is False
    assert plan["problems"][0] in err
    assert main(["evaluate", *words]) == 3
    out = capsys.readouterr().out
    assert out.startswith("DOES NOT FIT\n- stage 0 needs ")
    assert "per step" in out


def test_equal_problems_of_many_stages_are_told_once(files, capsys):
    _, err = run(capsys, "evaluate", files.model, files.cluster, *JOB, "--pp", "4", "--mbs", "5",
                 "--zero", "2", "--stack", "vtrain", code=2)
    assert err.count("zero 2 with a pipeline") == 1
    assert "(and 3 more stages)" in err
    assert "does not divide global_batch 16" in err


# ---------------------------------------------------------------- other commands


def test_lists(capsys):
    for kind in ("models", "clusters", "devices", "stacks"):
        out, _ = run(capsys, "list", kind)
        rows = json.loads(run(capsys, "list", kind, "--json")[0])
        assert rows
        for row in rows:
            assert row["name"] in out
        assert max(map(len, out.splitlines())) <= 80
        assert "…" not in out
    assert {row["name"] for row in json.loads(run(capsys, "list", "stacks", "--json")[0])} == {
        *catalog.names("stacks")}
    levels = next(row for row in json.loads(run(capsys, "list", "clusters", "--json")[0])
                  if row["name"] == "h100-spine-leaf")["levels"]
    assert [level["resolved_bandwidth"] for level in levels] == [900e9, 12.5e9, 12.5e9]


def test_schemas_accept_what_they_describe(files, capsys):
    samples = {"model": MODEL, "cluster": CLUSTER, "profile": PROFILE,
               "job": {"global_batch": 1, "seq_len": 1}, "space": {"tp": "1..8"},
               "configuration": {"micro_batch": 1, "stages": [{"layers": [0, 1],
                                                               "devices": [0, 1]}]}}
    for kind, sample in samples.items():
        schema = json.loads(run(capsys, "schema", kind)[0])
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(sample, schema)
    plan = json.loads(run(capsys, "evaluate", *files.words, "--json")[0])
    jsonschema.validate(plan, json.loads(run(capsys, "schema", "plan")[0]))


def test_version_and_help(capsys):
    assert run(capsys, "--version")[0] == f"nest {nest.__version__}\n"
    bare, _ = run(capsys)
    assert bare == run(capsys, "--help")[0]
    for command in ("plan", "evaluate", "explain", "list", "schema"):
        assert command in bare
        assert "Usage: nest" in run(capsys, command, "-h")[0]


# ---------------------------------------------------------------- exit codes


@pytest.mark.kernels(uncompiled=True)
def test_infeasible_for_programs(files, capsys):
    words = files.infeasible()
    out, err = run(capsys, "plan", *words, "--json", code=3)
    document = json.loads(out)
    assert document["schema"] == "nest.error/1"
    assert document["error"] == "infeasible"
    assert document["nearest"]["bytes_short"] > 0
    assert document["message"] in err


@pytest.mark.parametrize(("error", "code", "words"), [
    (InfeasibleError("no room", {"stage": 3}), 3, "no room"),
    (LimitError("out of time"), 4, "out of time"),
    (KernelError("status 9"), 70, "please report it"),
    (RuntimeError("odd"), 70, "RuntimeError: odd"),
    (KeyboardInterrupt(), 130, "interrupted"),
])
def test_exit_codes(files, capsys, monkeypatch, error, code, words):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("nest.api.plan", fail)
    monkeypatch.delenv("NEST_DEBUG", raising=False)
    _, err = run(capsys, "plan", *files.words, code=code)
    assert words in err
    assert len(err.splitlines()) == 1
    if code not in (70, 130):
        assert json.loads(run(capsys, "plan", *files.words, "--json", code=code)[0])["message"]


def test_debugging_shows_where(files, capsys, monkeypatch):
    monkeypatch.setenv("NEST_DEBUG", "1")
    monkeypatch.setattr("nest.api.plan", None)
    assert main(["plan", *files.words]) == 70
    assert "Traceback" in capsys.readouterr().err


# ---------------------------------------------------------------- as a process


def process(*words: str, **named) -> subprocess.CompletedProcess:
    source = str(Path(nest.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, **named.pop("env", {})}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True,
                          env=environment, timeout=120, **named)


def test_help_imports_nothing_heavy():
    code = ("import sys, nest.cli.main; code = nest.cli.main.main(['--help']); "
            "heavy = {'numpy', 'numba', 'pydantic', 'yaml', 'rich', 'scipy'} & set(sys.modules); "
            "sys.exit(repr(heavy) if heavy else code)")
    done = process("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.kernels(uncompiled=True)
def test_a_reader_that_leaves_early_is_no_error(files):
    source = str(Path(nest.__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-m", "nest.cli.main", "list", "models", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source})
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(60) == 0


@pytest.mark.kernels(uncompiled=True)
def test_pipes_get_plain_text_and_ascii_where_asked(files):
    words = ("-m", "nest.cli.main", "evaluate", *files.words)
    plain = process(*words, env={"PYTHONIOENCODING": "utf-8", "FORCE_COLOR": "1"})
    assert plain.returncode == 0, plain.stderr
    assert "\x1b" not in plain.stdout
    ascii_only = process(*words, env={"PYTHONIOENCODING": "ascii"})
    assert ascii_only.stdout.isascii()
    assert "forward" in ascii_only.stdout
