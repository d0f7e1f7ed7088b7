"""A plan file priced again: as written, edited, and edited so that it cannot be."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from command_line import Files, run
from descriptions import MODEL, changed, put

from nest.errors import InputError
from nest.evaluation.plan_file import reprice


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def plan(files, capsys) -> dict:
    """Two stages of two devices, two replicas."""
    out, _ = run(capsys, "evaluate", *files.words, "--pp", "2", "--tp", "2", "--json")
    return json.loads(out)


def again(folder: Path, data: dict) -> dict:
    found, _ = reprice(str(put(folder, data, "edited.json")))
    return json.loads(found.to_json())


def refusal(folder: Path, data: object) -> str:
    with pytest.raises(InputError) as caught:
        reprice(str(put(folder, data, "edited.json")))
    text = str(caught.value)
    assert all(line.split(": ")[0].endswith("edited.json") for line in text.splitlines())
    return text


def edited(plan: dict, **changes: object) -> dict:
    """Copy with fields set; `a__0__b` stands for a.0.b."""
    for path, value in changes.items():
        plan = changed(plan, path.replace("__", "."), value)
    return plan


@pytest.mark.parametrize("words", [
    ["llama2-7b", "dgx-a100", "--devices", "8", "--tp", "8"],
    ["deepseek-v3", "dgx-h100", "--devices", "256", "--ep", "32", "--pp", "8", "--zero", "1"],
    ["bert-large", "tpuv4-fat-tree", "--devices", "64", "--pp", "4"],
])
def test_a_plan_survives_its_file(words, tmp_path, capsys):
    from nest.cli.main import main

    batch = ["--global-batch", "64", "--seq-len", "512", "--json"]
    assert main(["evaluate", *words, *batch]) in (0, 3)
    found = json.loads(capsys.readouterr().out)
    assert again(tmp_path, found) == found


@pytest.mark.kernels(uncompiled=True)
def test_a_searched_plan_survives_but_for_the_search(files, capsys):
    target = files.path("plan.json")
    run(capsys, "plan", *files.words, "-o", target)
    found = json.loads(Path(target).read_text(encoding="utf-8"))
    out, _ = run(capsys, "evaluate", target, "--json")
    assert json.loads(out) == {
        **found, "search": None, "optimal": False, "lower_bound_s": None, "gap": None}
    text, _ = run(capsys, "evaluate", target, "--details")
    assert "none: only this configuration was priced" in text


def test_virtual_stages_and_other_orders_survive(files, capsys):
    model = {**MODEL, "kind": "encoder-decoder", "encoder_layers": 2, "layers": 2}
    order = [0, 4, 1, 2, 3, 5, 6, 7]  # embedding of the decoder before the encoder's layers
    way = {"micro_batch": 1, "outer_dp": 4, "order": order, "stages": [
        {"layers": [0, 2], "devices": [0, 1]}, {"layers": [2, 8], "devices": [1, 2]}]}
    path, given = (str(put(files.folder, *x)) for x in ((model, "both.yaml"), (way, "way.yaml")))
    both = ["evaluate", path, *files.words[1:], "--configuration", given]
    turns = ["evaluate", str(put(files.folder, {**MODEL, "layers": 8}, "eight.yaml")),
             *files.words[1:], "--pp", "2", "--vpp", "4", "--tp", "2"]
    for words in (both, turns):
        found = json.loads(run(capsys, *words, "--json")[0])
        assert again(files.folder, found) == found
    assert found["parallelism"]["schedule"] == "interleaved"
    text, _ = run(capsys, *both, "--details")
    assert re.search(r"^0 +0,4 +0 ", text, re.MULTILINE)
    assert "4 embedding of the decoder" in " ".join(text.split())
    back = edited(found, stages__0__chunks=[[0, 2], [3, 4], [5, 6], [6, 8]])
    assert "chunks.3: got" in refusal(files.folder, back)


def test_derived_figures_are_ignored(plan, tmp_path):
    odd = edited(plan, step_time_s=1e9, stages__0__time_s__forward=7, mfu=..., problems=["x"],
                 stages__1__memory_bytes=..., bottleneck="nothing", breakdown_s=...)
    assert again(tmp_path, odd) == plan


@pytest.mark.parametrize(("changes", "says"), [
    ({"step_time_s": "x"}, "step_time_s: got 'x'; allowed: a number"),
    ({"step_time_s": -1}, "step_time_s: got -1; allowed: more than 0"),
    ({"step_time_s": float("nan")}, "step_time_s: got NaN; allowed: a finite number"),
    ({"stages__0__time_s": "nonsense"}, "stages.0.time_s: got 'nonsense'; allowed: a mapping"),
    ({"stages__1__memory_bytes__total": None}, "stages.1.memory_bytes.total: got None"),
    ({"bottleneck": 7}, "bottleneck: got 7; allowed: text"),
    ({"search": 3}, "search: got 3; allowed: a mapping"),
])
def test_derived_figures_of_a_wrong_type_are_refused(plan, tmp_path, changes, says):
    assert f"edited.json: {says}" in refusal(tmp_path, edited(plan, **changes))


def test_other_cuts_are_priced(plan, tmp_path):
    moved = edited(plan, stages__0__layers=[0, 3], stages__1__layers=[3, 9])
    found = again(tmp_path, moved)
    assert [s["layers"] for s in found["stages"]] == [[0, 3], [3, 9]]
    assert found["step_time_s"] != plan["step_time_s"]


def test_other_degrees_are_priced(plan, tmp_path):
    for number, change in enumerate((
        {"tp": 1, "dp_in": 2, "sp": False, "etp": ...}, {"zero": 1}, {"recompute": "full"},
        {"sp": False}, {"recompute": "selective"},
        {"recompute": "full", "recompute_layers": 2},
        {"tp": 1, "dp_in": 2, "sp": False, "etp": ..., "zero": 1, "shard": "dp_in"},
        {"tp": 1, "cp": 2, "sp": False, "etp": ...},
    )):
        way = edited(plan, parallelism__micro_batch=2, **{
            f"stages__0__{name}": value for name, value in change.items()})
        found = again(tmp_path, way)
        base = again(tmp_path, edited(plan, parallelism__micro_batch=2))
        assert found["step_time_s"] != base["step_time_s"], number
        for name, value in change.items():
            if value is not ...:
                assert found["stages"][0][name] == value


def test_fewer_stages_are_priced_and_noted(plan, files, capsys):
    whole = copy.deepcopy(plan)
    whole["stages"] = [{"layers": [0, 9], "devices": [0, 4], "tp": 4}]
    path = str(put(files.folder, whole, "edited.json"))
    out, err = run(capsys, "evaluate", path, "--json")
    found = json.loads(out)
    assert found["parallelism"]["pp"] == 1
    assert found["stages"][0]["etp"] == 4
    assert err == (f"nest: note: {path}: parallelism.pp: 2 in the file, 1 by its stages, "
                   "which counts\n")


def test_replicas_and_batch_are_priced(plan, tmp_path):
    single = edited(plan, parallelism__outer_dp=1, replicas=[0], parallelism__micro_batch=4)
    found = again(tmp_path, single)
    assert found["replicas"] == [0]
    assert found["parallelism"]["micro_batches"] == 4
    free = edited(plan, replicas=..., parallelism__stride=4)
    assert again(tmp_path, free)["replicas"] == [0, 4]
    follow = edited(plan, parallelism__stride=...)
    assert again(tmp_path, follow) == plan


def test_another_schedule_is_priced(plan, tmp_path):
    base = edited(plan, parallelism__micro_batch=2)
    flat = again(tmp_path, edited(base, parallelism__schedule="gpipe"))
    assert flat["parallelism"]["schedule"] == "gpipe"
    assert [s["in_flight"] for s in flat["stages"]] == [4, 4]
    assert flat["step_time_s"] >= again(tmp_path, base)["step_time_s"]


def test_edited_inputs_are_priced(plan, files, capsys):
    slow = edited(plan, inputs__cluster__device__peak_flops={"bf16": "1 TFLOP/s"})
    assert again(files.folder, slow)["step_time_s"] > plan["step_time_s"]
    large, _, *job = files.infeasible()
    out, _ = run(capsys, "evaluate", large, files.cluster, *job, "--tp", "4", "--json")
    tight = edited(json.loads(out), inputs__cluster__device__memory="1.6 GiB")
    path = str(put(files.folder, tight, "tight.json"))
    out, _ = run(capsys, "evaluate", path, "--json", code=3)
    assert not json.loads(out)["feasible"]


REFUSED = [
    ({"stages__0__layers": [0, 3]}, "stages.1.layers: got [4, 9); allowed: to start at 3"),
    ({"stages__0__layers": [1, 4]}, "stages.0.layers"),
    ({"stages__0__layers": [4, 4]}, "stages.0.layers: got [4, 4)"),
    ({"stages__0__layers": [0]}, "stages.0.layers"),
    ({"stages__1__layers": [4, 8]}, "stages.1.layers: end at 8; allowed: 9"),
    ({"stages__1__layers": [4, 400]}, "stages.1.layers: end at 400"),
    ({"stages__1__devices": [3, 5]}, "stages.1.devices"),
    ({"stages__1__devices": [2, 6], "stages__1__dp_in": 2, "parallelism__micro_batch": 2},
     "straddle a group"),
    ({"stages__0__tp": 4}, "stages.0: dp_in 1 x tp 4 x cp 1 does not fill the block of 2"),
    ({"stages__0__dp_in": 2, "stages__0__tp": 1}, "stages.0: dp_in 2 does not divide micro_batch"),
    ({"stages__0__sp": "maybe"}, "stages.0.sp"),
    ({"stages__0__etp": 1}, "stages.0: etp 1"),
    ({"stages__0__ep": 2}, "stages.0: ep 2"),
    ({"stages__0__cp": 2}, "stages.0"),
    ({"stages__0__zero": 5}, "stages.0.zero: got 5; allowed: at most 3"),
    ({"stages__0__recompute": "some"}, "stages.0.recompute: got 'some'"),
    ({"stages__0__devices": ...}, "stages.0.devices: missing"),
    ({"stages": []}, "stages: got []; allowed: at least 1"),
    ({"stages": 3}, "stages: got 3"),
    ({"stages": ["x"]}, "stages.0"),
    ({"parallelism__micro_batch": 3}, "does not divide global_batch 16"),
    ({"parallelism__micro_batch": 0}, "parallelism.micro_batch: got 0"),
    ({"parallelism__outer_dp": 4, "replicas": ...}, "the last replica ends at device 16"),
    ({"parallelism__outer_dp": 1}, "replicas: got 2 first devices; allowed: 1"),
    ({"parallelism__stride": 2}, "replicas.1: got 4; allowed: 2"),
    ({"parallelism__stride": 2, "replicas": [0, 2]}, "stages use 4 devices"),
    ({"parallelism__vpp": 2, "parallelism__schedule": "1f1b"}, "vpp: got 2 with schedule 1f1b"),
    ({"parallelism__schedule": "zigzag"}, "parallelism.schedule: got 'zigzag'"),
    ({"parallelism__schedule": "interleaved"}, "interleaved needs vpp and pp above 1"),
    ({"parallelism__order": [0, 1]}, "order: allowed: each of the layers 0 to 8"),
    ({"parallelism__order": [*range(8), 10**9]}, "parallelism.order"),
    ({"stages__0__cp_comm": "a2a"}, "stages.0: cp_comm a2a needs cp above 1"),
    ({"stages__0__cp_comm": "ring"}, "stages.0.cp_comm: got 'ring'"),
    ({"stages__0__shard": "dp_in"}, "stages.0: shard dp_in needs zero above 0"),
    ({"stages__0__recompute_modules": ["norm"]}, "stages.0.recompute_modules: got norm"),
    ({"stages__0__recompute_layers": 2}, "stages.0.recompute_layers: got 2"),
    ({"stages__0__chunks": [[0, 2], [2, 4]]}, "chunks: several chunks need the schedule"),
    ({"stages__0__chunks": [[0, 2], [2, 3]]}, "stages.0.chunks"),
    ({"parallelism__global_batch": 32}, "parallelism.global_batch: got 32; allowed: 16"),
    ({"parallelism": ...}, "parallelism: missing"),
    ({"replicas": [0, 3]}, "replicas.1: got 3; allowed: 4"),
    ({"replicas": [4, 0]}, "replicas.0: got 4; allowed: 0"),
    ({"replicas": [0, 3], "parallelism__stride": ...}, "straddle a group"),
    ({"replicas": [4, 0], "parallelism__stride": ...}, "replicas.0: got 4"),
    ({"inputs": ...}, "inputs: missing"),
    ({"inputs__model": None}, "inputs: got neither of model and profile"),
    ({"inputs__job__seq_len": -1}, "inputs.job.seq_len: got -1"),
    ({"inputs__cluster__levels": []}, "inputs.cluster.levels"),
    ({"schema": "nest.plan/9"}, "schema: got 'nest.plan/9'; allowed: \"nest.plan/1.2\""),
    ({"schema": "nest.plan/1."}, "schema: got 'nest.plan/1.'"),
    ({"schema": "nest.plan/11"}, "schema: got 'nest.plan/11'"),
    ({"schema": ...}, "schema: missing"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_refused_edits_say_why(plan, tmp_path, changes, reason):
    assert reason in refusal(tmp_path, edited(plan, **changes))


def test_broken_files(files, capsys):
    for data, reason in (
        ('{"schema": "nest.plan/1", ', "malformed JSON"), ("", "is empty"), ("[]", "a mapping"),
        (b"\x00\x01", "binary"), ({"schema": "nest.plan/1"}, "parallelism: missing"),
    ):
        path = str(put(files.folder, data, "edited.json"))
        out, err = run(capsys, "evaluate", path, code=2)
        assert out == ""
        assert "edited.json" in err
        assert reason in err
    _, err = run(capsys, "evaluate", files.model, code=2)
    assert "model.yaml: schema: missing" in err
    path = str(put(files.folder, {"schema": "nest.plan/1"}, "edited.json"))
    _, err = run(capsys, "evaluate", path, "--tp", "2", code=2)
    assert "--tp" in err


def test_a_layout_is_priced_and_written(tmp_path, capsys) -> None:
    words = ["evaluate", "llama2-7b", "dgx-h100", "--devices", "16", "--global-batch", "16",
             "--seq-len", "512", "--pp", "4", "--tp", "4", "--layout", "Et*4|(t*5|)*4t*4|,tt|tt,L"]
    path = str(tmp_path / "plan.json")
    out, _ = run(capsys, *words, "--details", "-o", path)
    assert "Layout       Et*4|(t*5|)*4t*4|tt|ttL\n" in out
    data = json.loads(Path(path).read_text())
    assert data["layout"] == "Et*4|(t*5|)*4t*4|tt|ttL"
    assert data["parallelism"]["vpp"] == 2
    out, _ = run(capsys, "evaluate", path, "--json")
    assert json.loads(out)["step_time_s"] == data["step_time_s"]
    _, err = run(capsys, *words[:-1], "Et*32|L", code=2)
    assert "--layout: got 2 chunks; allowed: a multiple of pp 4" in err
