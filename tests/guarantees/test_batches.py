"""The batch of a range that takes the least time per sequence."""

from __future__ import annotations

import json

import pytest
from command_line import run

import nest

pytestmark = pytest.mark.kernels
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


@pytest.mark.parametrize("batches", [(), range(1, 1002), 64, [0], ["x"]])
def test_batches_that_are_none(batches):
    with pytest.raises(nest.InputError, match="got"):
        nest.plan_batches(MODEL, CLUSTER, JOB, batches, SPACE)


def test_a_range_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "bert-large", "dgx-h100", "--devices", "16", "--seq-len", "512", "--cp", "1",
             "--pp", "1,2", "--zero", "0,1", "--json")
    plan = json.loads(run(capsys, *words, "--global-batch", "60..67")[0])
    assert plan["inputs"]["job"]["global_batch"] == 64
    for text, told in (("60..", "allowed: a whole number"), ("9..8", "got an empty range"),
                       ("1..5000", "1 to 1000 numbers"), ("0..4", "global_batch: got 0")):
        _, err = run(capsys, *words, "--global-batch", text, code=2)
        assert told in err
