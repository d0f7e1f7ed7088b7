"""Where the seconds of a step go."""

from __future__ import annotations

from random import Random

import pytest
from instances import instance
from instances_graphs import graph_instance
from random_plans import random_plan

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.inputs import Model, load_cluster
from nest.inputs.job import Job

QWEN = Model(name="qwen2.5-72b", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=29568,
             vocab=152064, gated=True, tied_embeddings=False, norm="rmsnorm", bias=False)


@pytest.mark.parametrize("draw", [instance, graph_instance])
def test_no_part_of_a_step_is_negative(draw):
    """Of random plans: parts are 0 or more, add up to the step, and one stage has no bubble."""
    seen = set()
    for seed in range(22):
        x, rng = draw(seed), Random(f"parts {seed}")
        for _ in range(25):
            try:
                plan = evaluate(x.model, x.cluster, x.job, random_plan(rng, x))
            except InputError:
                continue
            parts = plan.breakdown_s.model_dump()
            assert min(parts.values()) >= 0.0, (seed, plan.configuration)
            assert sum(parts.values()) == pytest.approx(plan.step_time_s, rel=1e-12, abs=0.0)
            assert plan.parallelism.pp > 1 or parts["bubble"] == 0.0
            seen.add((plan.parallelism.schedule, plan.parallelism.pp > 1, plan.stages[0].zero))
    assert {schedule for schedule, *_ in seen} == {"1f1b", "gpipe", "interleaved"}
    assert {("1f1b", False, zero) for zero in range(4)} <= seen


def test_the_last_micro_batch_waits_for_less_traffic():
    """ZeRO at pp 1: its seconds are those that the pipeline takes longer than its compute."""
    cluster, job = load_cluster("dgx-a100", devices=64), Job(global_batch=64, seq_len=4096)
    plan = evaluate(QWEN, cluster, job, even_configuration(
        QWEN, cluster, job, tp=4, outer_dp=1, dp_in=16, mbs=1, zero=3, recompute="full"))
    assert plan.parallelism.micro_batches == 4
    assert 0.0 < plan.breakdown_s.zero < 4 * plan.stages[0].time_s.zero
    assert plan.breakdown_s.bubble == 0.0
