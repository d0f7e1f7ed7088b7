"""With a pipeline most software reduces gradients behind the last backward pass."""

from __future__ import annotations

import pytest

import nest
from nest.evaluation.even import even_configuration


@pytest.mark.parametrize(("schedule", "pp", "vpp"), [
    ("1f1b", 1, 1), ("1f1b", 4, 1), ("interleaved", 4, 2), ("zb-v", 4, 2)])
def test_pipelines_hide_no_reduction(schedule: str, pp: int, vpp: int) -> None:
    """As with a share of 0; without a pipeline the share of the stack holds."""
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=64)
    job = nest.Job(global_batch=128, seq_len=4096, stack="megatron-core")
    assert job.stack.late_reduction
    plan = even_configuration(
        model, cluster, job, pp=pp, vpp=vpp, tp=4, zero=1, mbs=1, schedule=schedule)
    late, never, hidden = (
        nest.evaluate(model, cluster, job.replace(stack=job.stack.replace(**more)), plan)
        for more in ({}, {"overlap_grad_reduce": 0.0}, {"late_reduction": False}))
    if pp == 1:
        assert late.step_time_s == hidden.step_time_s < never.step_time_s
    else:
        assert late.step_time_s == never.step_time_s > hidden.step_time_s
        assert nest.simulate(late).step_time_s == pytest.approx(late.step_time_s, rel=2e-2)
        assert nest.simulate(late).step_time_s > nest.simulate(hidden).step_time_s
    assert late.stages[0].grad_sync_s >= hidden.stages[0].grad_sync_s
