"""fp8 with delayed scaling reduces maxima over all devices of a stage after each pass."""

from __future__ import annotations

import numpy as np
import pytest

import nest
from nest.costs.choices import Site, network
from nest.costs.network.collectives import all_reduce
from nest.costs.network.fabric import fabric_of
from nest.costs.zero import MAXIMA
from nest.evaluation.even import even_configuration


@pytest.mark.parametrize(("schedule", "pp", "vpp", "zero"), [
    ("1f1b", 1, 1, 1), ("1f1b", 4, 1, 0), ("interleaved", 4, 2, 1), ("gpipe", 2, 1, 2),
    ("zb-v", 4, 2, 1), ("1f1b", 1, 1, 3)])
def test_every_pass_of_a_chunk_waits(schedule: str, pp: int, vpp: int, zero: int) -> None:
    model = nest.load_model("llama3-8b")
    cluster = nest.load_cluster("dgx-h100", devices=64)
    job = nest.Job(global_batch=128, seq_len=4096, precision="fp8-delayed", stack="megatron-core")
    plan = even_configuration(
        model, cluster, job, pp=pp, vpp=vpp, tp=2, zero=zero, mbs=1, schedule=schedule)
    bare = job.replace(stack=job.stack.replace(reduces_maxima=False))
    delayed, current, without = (nest.evaluate(model, cluster, one, plan)
                                 for one in (job, job.replace(precision="fp8"), bare))
    assert without.step_time_s == current.step_time_s
    # A stage of 64 / pp devices, all of its replicas included, whose places differ by nothing.
    block = 64 // pp // plan.outer_dp
    site = Site(*(np.array([n]) for n in (0, block, plan.outer_dp, plan.stride)))
    group = fabric_of(cluster).over_replicas(*site, np.array([1]))
    assert group.size.tolist() == [64 // pp]
    each, = 2 * all_reduce(np.array([MAXIMA]), network(cluster), group)
    assert each > 2e-5
    assert [stage.time_s.maxima for stage in delayed.stages] == pytest.approx(pp * [vpp * each])
    m = delayed.parallelism.micro_batches
    longer = delayed.step_time_s - current.step_time_s
    if zero < 2:  # else waits for ZeRO traffic change, too
        assert m * vpp * each <= longer * (1 + 1e-9) <= (m * vpp + pp) * each
    assert delayed.breakdown_s.maxima == pytest.approx(m * vpp * each)
    assert sum(delayed.breakdown_s.model_dump().values()) == pytest.approx(delayed.step_time_s)
    assert (current.breakdown_s.maxima, current.stages[0].time_s.maxima) == (0.0, 0.0)
    run = [nest.simulate(one).step_time_s for one in (delayed, current)]
    assert run[0] - run[1] == pytest.approx(longer, rel=0.02)
    assert run[0] == pytest.approx(delayed.step_time_s, rel=0.02)


def test_other_software_reduces_none() -> None:
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=16)
    for stack in ("fsdp", "maxtext"):
        jobs = [nest.Job(global_batch=64, seq_len=4096, precision=precision, stack=stack)
                for precision in ("fp8", "fp8-delayed")]
        plans = [nest.evaluate(model, cluster, job, even_configuration(
            model, cluster, job, tp=1, zero=3, mbs=1)) for job in jobs]
        assert plans[0].step_time_s == plans[1].step_time_s
