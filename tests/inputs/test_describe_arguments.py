"""Arguments of a wrong type: one message that says what was given and what is expected."""

from __future__ import annotations

import numpy as np
import pytest

import nest

MODEL = nest.load_model("llama2-7b")
CLUSTER = nest.load_cluster("dgx-a100", devices=8)
JOB = nest.Job(global_batch=8, seq_len=512)
WAY = nest.Configuration(micro_batch=8, stages=[{"layers": (0, 34), "devices": (0, 8), "tp": 8}])
PLAN = nest.evaluate(MODEL, CLUSTER, JOB, WAY)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: nest.plan("x", 3, None), r"model: got 'x' \(str\); allowed: a Model or Profile, as"),
    (lambda: nest.plan(MODEL, 3, None), r"cluster: got 3 \(int\); allowed: a Cluster, as"),
    (lambda: nest.plan(MODEL, CLUSTER, None), r"job: got None \(NoneType\); allowed: a Job, as"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, "tp=8"), "space: got 'tp=8'.*a SearchSpace"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, threads="2"), "threads: got '2'; allowed: a whole"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, threads=0), "threads: got 0; allowed: 1 to 1024"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, top=1.5), "top: got 1.5; allowed: a whole number"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, top=0), "top: got 0; allowed: 1 to 100"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, time_limit="x"), "time_limit: got 'x'; allowed: sec"),
    (lambda: nest.plan(MODEL, CLUSTER, JOB, time_limit=float("nan")), "time_limit: got nan"),
    (lambda: nest.evaluate("llama2-7b", CLUSTER, JOB, WAY), "model: got 'llama2-7b'"),
    (lambda: nest.evaluate(MODEL, CLUSTER, JOB, None), "configuration: got None"),
    (lambda: nest.explain(3), r"plan: got 3 \(int\); allowed: a Plan, as nest.plan"),
    (lambda: nest.explain(PLAN, threads="x"), "threads: got 'x'"),
    (lambda: nest.simulate("plan.json"), "plan: got 'plan.json'.*nest.load_plan"),
    (lambda: nest.simulate(PLAN, bucket_bytes="x"), "bucket_bytes: got 'x'"),
    (lambda: nest.load_plan(3), "plan: got 3; allowed: a path or a mapping"),
    (lambda: nest.load_profile(3), "profile: got 3; allowed: a name, a path or a mapping"),
    (lambda: nest.load_network("dgx-a100", without=3), "without: got 3; allowed: a text"),
    (lambda: nest.load_cluster("dgx-a100", devices="64"), "devices: got '64'; allowed: a whole"),
    (lambda: nest.load_cluster("dgx-a100", devices=True), "devices: got True; allowed: a whole"),
])
def test_a_wrong_type_is_told(call, message):
    with pytest.raises(nest.InputError, match=message):
        call()


def test_numbers_of_numpy_are_numbers():
    for whole in (np.int64(64), np.int32(64), 64.0):
        assert nest.load_cluster("dgx-a100", devices=whole).size == 64
    assert nest.load_network("dgx-a100", devices=np.int64(64)).size == 64
    assert nest.simulate(PLAN, bucket_bytes=np.float64(2e8)).step_time_s > 0.0
