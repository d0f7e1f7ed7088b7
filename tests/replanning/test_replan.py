"""The next plan after losses, by the library and by the command."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from command_line import run

from nest import (
    InputError,
    Job,
    Plan,
    Replan,
    evaluate,
    load_cluster,
    load_model,
    load_plan,
    plan,
    replan,
)
from nest.evaluation.evaluate import chain_of
from nest.evaluation.even import even_configuration

BOUNDS = {"tp": 1, "zero": 1, "recompute": "none", "vpp": 1, "schedule": "1f1b"}


@cache
def before() -> Plan:
    from nest import SearchSpace

    cluster = load_cluster("h100-spine-leaf", devices=64)
    return plan(load_model("bert-large"), cluster, Job(global_batch=192, seq_len=512),
                SearchSpace(**BOUNDS))


@pytest.mark.kernels
def test_the_plan_is_that_of_what_is_left() -> None:
    found = replan(before(), "node2")
    cluster = found.plan.inputs.cluster
    assert cluster.size == 56 and len(found.lost) == 8 and not found.idle
    again = plan(before().inputs.model, cluster, before().inputs.job)
    assert found.plan.step_time_s == again.step_time_s
    assert not {rank.name for rank in found.plan.ranks()} & set(found.lost)
    assert all(rank.device // 8 != 2 for rank in found.plan.ranks())


@pytest.mark.kernels
def test_bytes_add_up() -> None:
    moves = replan(before(), ["node2", "node5"]).moves
    each = [one.parameters_bytes + one.optimizer_bytes for one in moves.devices]
    assert moves.total_bytes == pytest.approx(sum(each))
    assert moves.total_bytes == pytest.approx(moves.parameters_bytes + moves.optimizer_bytes)
    assert moves.most_bytes == pytest.approx(max(each, default=0.0))


@pytest.mark.kernels
def test_nodes_return() -> None:
    """The plan of the whole cluster again; devices that were away receive all that they hold."""
    whole = before().inputs.cluster
    once = replan(before(), ["node2"])
    twice = replan(once.plan, ["node2", "node5"], cluster=whole)
    assert twice.plan.inputs.cluster.size == 48
    back = replan(twice.plan, [], cluster=whole)
    assert back.plan.step_time_s == plan(
        before().inputs.model, whole, before().inputs.job).step_time_s
    memory = back.plan.stages[0].memory_bytes
    returned = [one for one in back.moves.devices if one.name.startswith("node2/")]
    assert returned and all(one.parameters_bytes == pytest.approx(memory.parameters)
                            for one in returned)


@pytest.mark.kernels
def test_the_document_is_read_back() -> None:
    found = replan(before(), "node2")
    again = Replan.parse(json.loads(found.to_json()))
    assert again.moves == found.moves and again.plan == found.plan


@pytest.mark.parametrize("without, said", [
    ("node9", "did you mean node7?"), ([], "got nothing"), (3, "a text or a list of texts"),
    ("node0..7", "got all 64 devices"),
])
@pytest.mark.kernels
def test_what_is_not_lost_is_told(without: object, said: str) -> None:
    with pytest.raises(InputError, match="without: ") as error:
        replan(before(), without)
    assert said in str(error.value)


def test_a_plan_of_two_copies_is_refused() -> None:
    model, cluster = load_model("llama3-8b"), load_cluster("dgx-h100", devices=16)
    job = Job(global_batch=8, seq_len=2048)
    twice = evaluate(model, cluster, job, even_configuration(
        model, cluster, job, pp=2, tp=8, schedule="dualpipe"))
    with pytest.raises(InputError, match="schedule dualpipe, of which two stages hold each layer"):
        replan(twice, "node1")


@pytest.mark.kernels
def test_the_command(tmp_path: Path, capsys) -> None:
    file, after = tmp_path / "plan.json", tmp_path / "next.json"
    file.write_text(before().to_json())
    ranks = tmp_path / "ranks.csv"
    out, _ = run(capsys, "replan", str(file), "--without", "node2", "--without", "node5,node6",
                 "-o", str(after), "--ranks", str(ranks))
    lines = out.splitlines()
    assert lines[0] == "Lost         24 devices (of node2, node5, node6); 40 devices left"
    assert all(len(line) <= 80 for line in lines)
    assert load_plan(str(after)).inputs.cluster.size == 40
    assert "node2/" not in ranks.read_text()
    out, _ = run(capsys, "replan", str(after), "--cluster", "h100-spine-leaf", "--devices", "64",
                 "--json")
    found = json.loads(out)
    assert found["schema"].startswith("nest.replan/1") and found["lost"] == []


@pytest.mark.kernels
def test_the_command_refuses(tmp_path: Path, capsys) -> None:
    file = tmp_path / "plan.json"
    file.write_text(before().to_json())
    for words, said in ((("--without", "node99"), "without: got 'node99'"),
                        ((), "--without: missing"), (("--devices", "8"), "--devices: got")):
        _, err = run(capsys, "replan", str(file), *words, code=2)
        assert said in err
    _, err = run(capsys, "replan", "bert-large", "--without", "node1", code=2)
    assert "not a file" in err


@pytest.mark.kernels(uncompiled=True)
def test_the_command_in_small(tmp_path: Path, capsys) -> None:
    file, space = tmp_path / "plan.json", tmp_path / "space.json"
    model = load_model("bert-large").replace(layers=2)
    cluster = load_cluster("h100-spine-leaf", devices=16)
    job = Job(global_batch=48, seq_len=512)
    way = even_configuration(chain_of(model), cluster, job, tp=1, dp_in=8, outer_dp=2)
    file.write_text(evaluate(model, cluster, job, way).to_json())
    space.write_text(json.dumps({**BOUNDS, "pp": 1, "sp": False}))
    out, _ = run(capsys, "replan", str(file), "--without", "node1", "--space", str(space))
    assert out.splitlines()[0] == "Lost         8 devices (of node1); 8 devices left"
    out, _ = run(capsys, "replan", str(file), "--without", "node0", "--space", str(space), "--json")
    assert Replan.parse(json.loads(out)).plan.inputs.cluster.size == 8
