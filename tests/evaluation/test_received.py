"""Buffers for what a stage of PyTorch's pipelines receives of all micro-batches, by hand."""

from __future__ import annotations

import pytest

import nest
from nest.evaluation.even import even_configuration

HANDED = 8192 * 4096 * 2 / 2
"""Bytes of a micro-batch of one sequence on a device of tp 2."""


@pytest.mark.parametrize(("schedule", "vpp", "received"), [
    # 16 micro-batches: inputs, but for the first stage, and gradients, but for the last.
    ("1f1b", 1, [16, 32, 32, 16]),
    ("interleaved", 2, [48, 64, 64, 48]),
    # The first and the last chunk are on the first rank. The last rank hands over to itself.
    ("zb-v", 2, [32, 64, 64, 64]),
    # Each copy of the model gets half of them.
    ("dualpipe", 2, [16, 32, 32, 16]),
])
def test_received_of_a_step(schedule: str, vpp: int, received: list[int]) -> None:
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=64)
    job = nest.Job(global_batch=128, seq_len=8192, stack="torchtitan-eager")
    configuration = even_configuration(
        model, cluster, job, pp=4, vpp=vpp, tp=2, dp_in=1, zero=1, mbs=1, schedule=schedule)
    found = []
    for flag in (True, False):
        one = job.replace(stack=job.stack.replace(receives_all=flag))
        found.append(nest.evaluate(model, cluster, one, configuration))
    for many, stage, less in zip(received, *(plan.stages for plan in found), strict=True):
        bytes_, before = stage.memory_bytes, less.memory_bytes
        assert bytes_.buffers - before.buffers == pytest.approx(many * HANDED)
        assert bytes_.total - before.total == pytest.approx(many * HANDED)
    assert found[0].step_time_s == found[1].step_time_s
