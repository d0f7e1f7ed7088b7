"""Where nothing fits: proved quickly, and what is said to help does."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

import nest
from nest.search import compiled

pytestmark = pytest.mark.kernels
JOB = nest.Job(global_batch=256, seq_len=4096)


def refused(
    model: str, devices: int, job: nest.Job = JOB, **bounds: object
) -> nest.InfeasibleError:
    where = nest.load_cluster("h100-spine-leaf", devices=devices)
    with pytest.raises(nest.InfeasibleError) as caught:
        nest.plan(nest.load_model(model), where, job, nest.SearchSpace(**bounds))
    return caught.value


def test_the_number_of_devices_named_is_enough():
    near = refused("llama3.1-405b", 8).nearest
    (remedy,) = [text for text in near["remedies"] if "devices instead of" in text]
    count = int(remedy.split()[0].replace(",", ""))
    assert count == 128
    cluster = nest.load_cluster("h100-spine-leaf", devices=count)
    assert nest.plan(nest.load_model("llama3.1-405b"), cluster, JOB).feasible


@pytest.mark.parametrize(("model", "devices"), [("llama3.1-405b", 8), ("deepseek-v3", 128)])
def test_memory_alone_rules_out_nearly_all(model, devices, monkeypatch):
    """What is searched are plans under the changes that are named; it was every limit of memory."""
    kernels, seconds = compiled.load()
    calls = []

    def select(tables, limit, *more):
        calls.append(limit)
        return kernels.select(tables, limit, *more)

    monkeypatch.setattr(compiled, "load", lambda **_: (kernels._replace(select=select), seconds))
    refused(model, devices)
    assert len(calls) < 30


def test_a_value_that_would_do_is_named():
    text = str(refused("llama3-70b", 64, tp="1,2", pp="1..2", zero=0))
    found = re.findall(r"(\w+) not bound to \S+ \((\S+) would do\)", text)
    assert {name for name, _ in found} >= {"pp", "zero"}
    for name, values in found:
        bounds = {"tp": "1,2", "pp": "1..2", "zero": 0, name: values}
        cluster = nest.load_cluster("h100-spine-leaf", devices=64)
        assert nest.plan(nest.load_model("llama3-70b"), cluster, JOB,
                         nest.SearchSpace(**bounds)).feasible


def test_a_larger_batch_is_named_where_samples_are_few():
    one = nest.Job(global_batch=8, seq_len=4096)
    text = str(refused("llama3-70b", 32, one, tp=1, pp=1, cp=1))
    (batch,) = re.findall(r"a global batch of (\d+) instead of 8", text)
    cluster = nest.load_cluster("h100-spine-leaf", devices=32)
    assert nest.plan(nest.load_model("llama3-70b"), cluster, one.replace(global_batch=int(batch)),
                     nest.SearchSpace(tp=1, pp=1, cp=1)).feasible


def test_the_time_limit_ends_the_explanation(monkeypatch):
    """The clock jumps once the search is done: it is proved, and no more is looked for."""
    from nest.explanation import infeasible

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("nest.search.progress.time", SimpleNamespace(
        perf_counter=lambda: clock.now))
    explain = infeasible.explain

    def late(*arguments: object) -> nest.InfeasibleError:
        clock.now = 1.0
        return explain(*arguments)

    monkeypatch.setattr(infeasible, "explain", late)
    where = nest.load_cluster("h100-spine-leaf", devices=8)
    with pytest.raises(nest.InfeasibleError, match="no plan fits, which is proved") as caught:
        nest.plan(nest.load_model("llama3.1-405b"), where, JOB, time_limit=0.5)
    assert caught.value.nearest == {"remedies": []}
