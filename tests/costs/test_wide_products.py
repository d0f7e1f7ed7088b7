"""Products of wide models are slower in training on some devices."""

from __future__ import annotations

import pytest

import nest
from nest.evaluation.even import even_configuration


@pytest.mark.parametrize(("model", "device", "slower"), [
    ("gpt3-175b", "b200", True), ("llama3-70b", "b200", False), ("gpt3-175b", "h100", False)])
def test_products_of_wide_models(model: str, device: str, slower: bool) -> None:
    """Of 12,288 on both sides, as in GPT-3; Llama-3 70B has 8,192 on one."""
    loaded = nest.load_model(model)
    cluster = nest.load_cluster({"b200": "dgx-b200", "h100": "dgx-h100"}[device], devices=64)
    job = nest.Job(global_batch=64, seq_len=2048, stack="megatron-core")
    plan = even_configuration(loaded, cluster, job, pp=8, tp=8, zero=1, mbs=1)
    known = dict(job.stack.devices)
    even = job.stack.replace(devices={
        name: rates.replace(wide_derate=1.0) for name, rates in known.items()})
    found = (nest.evaluate(loaded, cluster, job, plan).step_time_s
             / nest.evaluate(loaded, cluster, job.replace(stack=even), plan).step_time_s)
    assert 1.03 < found < 1 / 0.92 if slower else found == 1.0
