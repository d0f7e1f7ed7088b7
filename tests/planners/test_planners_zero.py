"""ZeRO and FSDP: data parallelism only, against trying everything."""

from __future__ import annotations

from itertools import product

import pytest
from descriptions import CLUSTER, JOB, MODEL

import nest
from nest.errors import NoPlanError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.model.legality import divisors
from nest.planners.zero import Zero, shardings

MODEL_ = nest.Model.parse({**MODEL, "layers": 4, "hidden": 512, "heads": 8, "ffn": 2048})
WIDE = nest.Job.parse({**JOB, "global_batch": 48, "seq_len": 256, "stack": {
    "base": "fsdp", "workspace": 0, "fragmentation": 0}})


def cluster_with(memory: str) -> nest.Cluster:
    """24 devices: nodes of 4, leaves of 8."""
    return nest.Cluster.parse({**CLUSTER, "device": {**CLUSTER["device"], "memory": memory}})


def everything(cluster: nest.Cluster, job: nest.Job) -> dict[tuple, nest.Plan]:
    """Every stage over all devices, nodes or leaves, with each micro-batch and recompute."""
    found = {}
    for zero, dp_in, mbs, again in product(
            (1, 2, 3), (24, 8, 4), divisors(job.global_batch // 24), ("none", "selective", "full")):
        way = even_configuration(
            MODEL_, cluster, job, dp_in=dp_in, outer_dp=24 // dp_in, mbs=mbs, zero=zero,
            shard="dp" if dp_in == 24 else "dp_in", recompute=again)
        found[zero, dp_in, again, mbs] = evaluate(MODEL_, cluster, job, way)
    return found


@pytest.mark.parametrize("memory", [500, 80, 60, 45, 30])
def test_the_fastest_of_all_that_fit(memory):
    """Recompute counts only where a stage fits without it for no micro-batch."""
    cluster = cluster_with(f"{memory} MiB")
    plan = Zero().plan(MODEL_, cluster, WIDE, nest.SearchSpace())
    tried = everything(cluster, WIDE)
    best = []
    for zero, dp_in in product((1, 2, 3), (24, 8, 4)):
        for again in ("none", "selective", "full"):
            found = [p for (z, d, a, _), p in tried.items()
                     if (z, d, a) == (zero, dp_in, again) and p.feasible]
            if found:
                best.append(min(p.step_time_s for p in found))
                break
    assert plan.feasible == bool(best)
    if best:
        assert plan.step_time_s == pytest.approx(min(best), rel=1e-9)
    s = plan.stages[0]
    assert (plan.parallelism.pp, s.tp, s.cp, s.ep) == (1, 1, 1, 1)
    assert plan.parallelism.devices_used == 24


def test_less_memory_asks_for_more_sharding():
    """Stage 1 shards the optimizer, 2 also gradients, 3 also parameters."""
    stages = [Zero().plan(MODEL_, cluster_with(f"{memory} MiB"), WIDE,
                          nest.SearchSpace(recompute="none")).stages[0].zero
              for memory in (500, 100, 60)]
    assert stages == sorted(stages) and stages[0] == 1 and stages[-1] == 3


def test_the_largest_micro_batch_unless_a_smaller_one_is_faster():
    cluster = cluster_with("4 GiB")
    job = WIDE.replace(global_batch=24 * 16)
    plan = Zero().plan(MODEL_, cluster, job, nest.SearchSpace(zero=3, shard="dp"))
    times = {}
    for mbs in divisors(16):
        way = even_configuration(MODEL_, cluster, job, dp_in=24, mbs=mbs, zero=3)
        times[mbs] = evaluate(MODEL_, cluster, job, way).step_time_s
    assert plan.parallelism.micro_batch == 24 * min(times, key=lambda mbs: (times[mbs], -mbs))
    assert times[16] < times[1]  # ZeRO-3 gathers for every micro-batch


def test_recompute_only_where_nothing_fits_without():
    """Products that need many rows: more samples at once would be faster, even recomputing."""
    slow = {"default": {"peak_fraction": 0.9, "m_half": 20000, "n_half": 1, "k_half": 1}}
    tight = cluster_with("70 MiB")
    tight = tight.replace(device=tight.device.replace(gemm=slow))
    job = WIDE.replace(global_batch=24 * 16, memory_margin=0)
    space = nest.SearchSpace(zero=3, shard="dp")
    plan = Zero().plan(MODEL_, tight, job, space)
    full = Zero().plan(MODEL_, tight, job, nest.SearchSpace(zero=3, shard="dp", recompute="full"))
    assert plan.feasible and full.feasible
    assert plan.stages[0].recompute == "none" and full.step_time_s < plan.step_time_s
    assert full.parallelism.micro_batch > plan.parallelism.micro_batch


def test_hybrid_sharding_stays_inside_a_group():
    found = list(shardings(cluster_with("4 GiB"), WIDE, nest.SearchSpace()))
    assert {(s.dp_in, s.outer_dp) for s in found if s.hybrid} == {(4, 6), (8, 3)}
    assert {s.dp_in * s.outer_dp for s in found} == {24}
    assert {s.zero for s in found} == {1, 2, 3}
    plan = Zero().plan(MODEL_, cluster_with("4 GiB"), WIDE, nest.SearchSpace(shard="dp_in"))
    assert plan.stages[0].shard == "dp_in" and plan.stages[0].dp_in in (4, 8)


def test_a_batch_that_does_not_divide_leaves_devices_idle():
    plan = Zero().plan(MODEL_, cluster_with("4 GiB"), WIDE.replace(global_batch=20),
                       nest.SearchSpace())
    assert plan.parallelism.devices_used == 20


def test_what_does_not_fit_is_shown_and_what_is_not_allowed_is_no_plan():
    plan = Zero().plan(MODEL_, cluster_with("10 MiB"), WIDE, nest.SearchSpace())
    assert not plan.feasible and "short" in plan.problems[0]
    tried = everything(cluster_with("10 MiB"), WIDE)
    assert plan.stages[0].memory_bytes.total == pytest.approx(
        min(p.stages[0].memory_bytes.total for p in tried.values()))
    for space in (nest.SearchSpace(zero=0), nest.SearchSpace(pp="2..4"), nest.SearchSpace(tp=2)):
        with pytest.raises(NoPlanError, match="no data-parallel configuration"):
            Zero().plan(MODEL_, cluster_with("4 GiB"), WIDE, space)
