"""A single stage under 1F1B and under GPipe: priced and simulated."""

from __future__ import annotations

import pytest

import nest
from nest.evaluation.even import even_configuration


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_one_stage_of_gpipe_and_of_1f1b(zero: int, micro_batches: int) -> None:
    """The same passes in another order, which tells with ZeRO-3 alone: in front of a forward behind
    a backward the network still scatters gradients. The simulation finds both times."""
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=8)
    job = nest.Job(global_batch=8 * micro_batches, seq_len=4096, stack="torchtitan")
    times = {}
    for name in ("1f1b", "gpipe"):
        way = even_configuration(model, cluster, job, dp_in=8, mbs=1, zero=zero, schedule=name,
                                 recompute="full")
        plan = nest.evaluate(model, cluster, job, way)
        times[name] = plan.step_time_s
        assert nest.simulate(plan).step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)
    if zero == 3 and micro_batches > 1:
        assert 1e-3 < times["1f1b"] / times["gpipe"] - 1.0 < 1e-2
    else:
        assert times["1f1b"] == pytest.approx(times["gpipe"], rel=1e-12)
