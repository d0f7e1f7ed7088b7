"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import nest

FOLDER = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.kernels
def test_a_scheduler_plans_as_nodes_fail_and_return(capsys) -> None:
    scheduler = example("scheduler")
    cluster = nest.load_cluster("h100-spine-leaf", devices=32)
    job = nest.Job(global_batch=96, seq_len=512)
    model = nest.load_model("bert-large")
    first = nest.plan(model, cluster, job)
    training = scheduler.Training(cluster, first)
    scheduler.follow(training, ["fail:node1", "fail:node3", "return:node1"])
    assert training.lost == {"node3"} and not training.waits
    assert {name.partition("/")[0] for name in training.plan.inputs.cluster.names} == {
        "node0", "node1", "node2"}
    scheduler.follow(training, ["return:node3"])
    assert training.plan.step_time_s == first.step_time_s
    assert len(capsys.readouterr().out.splitlines()) == 4
    with pytest.raises(nest.InputError):
        training.change("node1")


@pytest.mark.kernels
def test_a_scheduler_waits_where_nothing_fits() -> None:
    scheduler = example("scheduler")
    cluster = nest.load_cluster("h100-spine-leaf", devices=32)
    plan = nest.plan(nest.load_model("llama2-7b"), cluster,
                     nest.Job(global_batch=32, seq_len=4096))
    training = scheduler.Training(cluster, plan)
    space = nest.SearchSpace(tp=1, pp=1, zero=0)  # as if too little memory were left
    training.replan = lambda *given, **more: nest.replan(*given, space=space, **more)
    assert training.change("fail:node0") is None
    assert training.waits and training.lost == {"node0"}
    training.replan = nest.replan
    assert training.change("return:node0") is not None and not training.waits


@pytest.mark.kernels
def test_an_outer_search_over_clusters() -> None:
    pytest.importorskip("optuna")
    design = example("cluster_design")
    found = design.search(nest.load_model("bert-large"),
                          nest.Job(global_batch=512, seq_len=512), trials=6)
    done = [trial for trial in found.trials if trial.value is not None]
    assert len(done) == 6 and found.best_value == max(trial.value for trial in done)
    again = design.cluster(found.best_trial)
    assert found.best_value == pytest.approx(
        found.best_trial.user_attrs["tokens_per_s"] * 3600 / design.money_per_hour(again))
