"""The batch of a range that takes the least time per sequence."""

from __future__ import annotations

import json

import pytest
from command_line import run
from descriptions import MODEL as SMALL

import nest
from nest.search.batches import multiples

pytestmark = pytest.mark.kernels
uncompiled = pytest.mark.kernels(uncompiled=True)
MODEL, CLUSTER = nest.load_model("bert-large"), nest.load_cluster("dgx-h100", devices=16)
JOB, SPACE = nest.Job(global_batch=1, seq_len=512), nest.SearchSpace(cp=1, pp="1,2", zero="0,1")


def rate(batch: int, space: nest.SearchSpace = SPACE) -> float:
    job = JOB.replace(global_batch=batch)
    return nest.plan(MODEL, CLUSTER, job, space).step_time_s / batch


@pytest.mark.parametrize("batches", [range(60, 68), range(37, 42), (17, 19, 23), [31]])
def test_no_batch_of_the_range_takes_less(batches):
    plan = nest.plan_batches(MODEL, CLUSTER, JOB, batches, SPACE)
    chosen = plan.inputs.job.global_batch
    rates = {batch: rate(batch) for batch in batches}
    assert rates[chosen] == min(rates.values()) == plan.step_time_s / chosen
    assert plan.optimal


def test_batches_that_a_bound_rules_out_are_left_out():
    plan = nest.plan_batches(MODEL, CLUSTER, JOB, range(60, 68), SPACE.replace(outer_dp=5))
    assert plan.inputs.job.global_batch in (60, 65)
    with pytest.raises(nest.InputError, match="outer_dp"):
        nest.plan_batches(MODEL, CLUSTER, JOB, (61, 62), SPACE.replace(outer_dp=5))


@uncompiled
@pytest.mark.parametrize("batches", [(), range(1, 1002), 64, [0], ["x"]])
def test_batches_that_are_none(batches):
    with pytest.raises(nest.InputError, match="got"):
        nest.plan_batches(MODEL, CLUSTER, JOB, batches, SPACE)


def test_a_range_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "bert-large", "dgx-h100", "--devices", "16", "--seq-len", "512", "--cp", "1",
             "--pp", "1,2", "--zero", "0,1", "--json")
    plan = json.loads(run(capsys, *words, "--global-batch", "60..67")[0])
    assert plan["inputs"]["job"]["global_batch"] == 64
    for text, told in (("60..", "allowed: a whole number"), ("9..8", "got 9..8"),
                       ("1..5000", "1 to 1000 numbers"), ("0..4", "--global-batch: got 0")):
        _, err = run(capsys, *words, "--global-batch", text, code=2)
        assert told in err


@uncompiled
@pytest.mark.parametrize(("devices", "batch", "near"), [
    (96, 256, [288]), (64, 127, [128]), (64, 128, []), (1000, 4096, [4000]), (1024, 100, [96]),
    (72, 512, [504, 576]), (96, 240, []), (7, 1, []), (1, 5, [])])
def test_multiples_of_the_devices_near_a_batch(devices, batch, near):
    assert multiples(devices, batch) == near


@pytest.mark.parametrize("beyond", [False, True])
def test_a_better_batch_is_one(beyond, capsys):
    """The plan is as without it, and the other batch has a plan at least as fast as is said."""
    cluster, job = nest.load_cluster("dgx-h100", devices=16), JOB.replace(global_batch=31)
    plan = nest.plan(MODEL, cluster, job, SPACE, beyond_stack=beyond, near_batches=True)
    without = nest.plan(MODEL, cluster, job, SPACE, beyond_stack=beyond)
    assert plan.configuration == without.configuration
    assert without.better_batch is None
    better = plan.better_batch
    assert better.global_batch == 32
    assert better.faster == pytest.approx(1 - better.step_time_s / 32 / (plan.step_time_s / 31))
    best = nest.plan(MODEL, cluster, job.replace(global_batch=32), SPACE, beyond_stack=beyond,
                     near_batches=True)
    assert best.step_time_s <= better.step_time_s * (1 + 1e-9)
    assert best.better_batch is None
    assert nest.load_plan(plan.as_dict()).better_batch == better


def test_the_report_names_a_better_batch(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "bert-large", "dgx-h100", "--devices", "16", "--seq-len", "512", "--cp", "1",
             "--pp", "1,2", "--zero", "0,1")
    text = " ".join(run(capsys, *words, "--global-batch", "31")[0].split())
    assert "Other batch 32 sequences take at least " in text
    assert "(--global-batch 32)" in text
    assert "Other batch" not in run(capsys, *words, "--global-batch", "32")[0]


@uncompiled
def test_of_a_small_model_too():
    model, cluster = nest.load_model(SMALL), nest.load_cluster("dgx-h100", devices=4)
    job, space = nest.Job(global_batch=1, seq_len=128), nest.SearchSpace(pp=1, cp=1)
    chosen = nest.plan_batches(model, cluster, job, [5, 7, 8], space)
    assert chosen.inputs.job.global_batch == 8
