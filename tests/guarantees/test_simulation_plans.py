"""The closed forms against the simulation, on varied plans; memory; a large plan.

``pytest -s`` prints the errors by family.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from simulated_plans import CLUSTERS, EVEN, Case, cases, cluster, model, spread

import nest
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.simulation import Simulation, simulate

CLOSE = 0.02
COUNT = 200
SCHEDULES = ("1f1b", "gpipe", "interleaved")


@cache
def simulated() -> tuple[tuple[Case, Simulation], ...]:
    return tuple((case, simulate(case.plan)) for case in cases(1, COUNT))


def errors(pairs: Iterable[tuple[Case, Simulation]]) -> np.ndarray:
    return np.array([found.relative_difference for _, found in pairs])


def table(pairs: Iterable[tuple[Case, Simulation]]) -> str:
    """Errors in per cent, by family."""
    families: dict[str, list[float]] = defaultdict(list)
    for case, found in pairs:
        families[case.family].append(100 * found.relative_difference)
        families["all"].append(100 * found.relative_difference)
    lines = [f"{'':25}  plans  median    95th   least    most  over 2 %"]
    for name in sorted(families, key=lambda name: (name == "all", name)):
        each = np.array(families[name])
        size = np.abs(each)
        lines.append(f"{name:25} {len(each):6} {np.median(size):7.2f} "
                     f"{np.percentile(size, 95):7.2f} {each.min():7.2f} {each.max():7.2f} "
                     f"{100 * np.mean(size > 100 * CLOSE):8.1f} %")
    return "\n".join(lines)


def test_plans_are_varied() -> None:
    pairs = simulated()
    print("\n" + table(pairs))
    assert len(pairs) == COUNT
    plans = [case.plan for case, _ in pairs]
    assert {p.inputs.cluster.name for p in plans} == {cluster(name, 64).name for name in CLUSTERS}
    assert {c.zero for c, _ in pairs} == {0, 1, 2, 3}
    for schedule in SCHEDULES:
        assert sum(c.schedule == schedule for c, _ in pairs) > 25
        assert sum(c.schedule == schedule and not c.even for c, _ in pairs) > 6
    assert {1, 2, 40, 128} <= {p.parallelism.micro_batches for p in plans}
    assert any(s.time_s.handover > s.time_s.forward for p in plans for s in p.stages)
    assert any(s.shard == "dp_in" and s.zero == 3 for p in plans for s in p.stages)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("zero", range(4))
def test_even_stages_are_nearly_exact(schedule: str, zero: int) -> None:
    """Two per cent is asked for; the most is 0.06 %."""
    some = [(c, s) for c, s in simulated() if c.even and (c.schedule, c.zero) == (schedule, zero)]
    assert some
    off = errors(some)
    assert np.all(np.abs(off) <= 0.001), f"{off.min():+.2%} to {off.max():+.2%}"


def test_errors_do_not_grow() -> None:
    """Over all plans; the figures are those of docs/simulation.md with some room."""
    off = np.abs(errors(simulated()))
    assert np.median(off) < 1e-6
    assert np.percentile(off, 95) < 0.0005
    assert np.mean(off <= CLOSE) > 0.99
    assert off.max() < 0.04
    busy = np.abs(errors((c, s) for c, s in simulated() if c.zero > 1))
    assert busy.max() < 0.008


def test_interleaved_plans_are_exact() -> None:
    """Where no ZeRO traffic runs beside passes: that of the pipeline is followed pass by pass."""
    some = [(c, s) for c, s in simulated() if c.zero < 2 and c.schedule == "interleaved"]
    assert len(some) > 20
    assert np.abs(errors(some)).max() < 1e-9


# ---------------------------------------------------------------- memory


def test_peak_memory_is_what_evaluate_says() -> None:
    for _, found in simulated():
        for stage in found.stages:
            assert stage.peak_memory_bytes == pytest.approx(
                stage.closed_form_memory_bytes, rel=1e-9)
        assert found.peak_memory_bytes == max(s.peak_memory_bytes for s in found.stages)


# ---------------------------------------------------------------- parts of a plan


def large() -> Plan:
    """1,024 devices, 16 stages, 512 micro-batches."""
    subject, where = model("llama3-70b"), cluster("h100-spine-leaf", 1024)
    job = nest.Job(global_batch=4096, seq_len=4096)
    return nest.evaluate(subject, where, job, even_configuration(subject, where, job, pp=16, tp=8))


def test_events_of_a_large_plan() -> None:
    found = simulate(large())
    # All replicas are alike. Passes: 16 stages of 512 micro-batches there and back, and, because
    # gradients are reduced layer by layer, 82 layers instead of 16 chunks at the end; 82 transfers;
    # messages over 15 links there and back.
    assert found.events == 16 * 512 * 2 + (82 - 16) + 82 + 15 * 512 * 2
    assert found.step_time_s == pytest.approx(found.closed_form_s, rel=0.001)


def test_seconds_of_a_stage_add_up() -> None:
    for case, found in simulated()[:40]:
        assert found.closed_form_s == case.plan.step_time_s
        for stage in found.stages:
            assert sum(stage.time_s.model_dump().values()) == pytest.approx(found.step_time_s)


def test_the_slowest_replica_counts() -> None:
    """Stages of 3 devices on nodes of 4: hand-overs cross nodes in some replicas only."""
    where = nest.Cluster.parse({
        "name": "odd", "device": "h100-sxm", "levels": [
            {"name": "node", "size": 4, "bandwidth": "100 GB/s", "latency": "5 us"},
            {"name": "leaf", "size": 4, "bandwidth": "1 GB/s", "latency": "10 us"}]})
    subject = model("small")
    job = nest.Job(global_batch=24, seq_len=512)
    way = nest.Configuration(micro_batch=1, outer_dp=3, stride=3, stages=[
        nest.StageConfiguration(layers=(0, 7), devices=(0, 1)),
        nest.StageConfiguration(layers=(7, 14), devices=(1, 2))])
    found = simulate(nest.evaluate(subject, where, job, way))
    # Devices 0 and 1, 3 and 4, 6 and 7: the second replica crosses.
    first, second, third = found.replicas_s
    assert first == third < second == found.step_time_s
    assert found.replica == 1
    assert found.relative_difference == pytest.approx(0, abs=CLOSE)


def test_a_graph_with_branches() -> None:
    layer = {"forward": 1e-3, "backward": 2e-3, "parameter_bytes": 1e6, "activation_bytes": 1e6}
    profile = nest.Profile.parse({"name": "branches", "layers": [
        {"name": "a", "output_bytes": 1e9, "tp": {"1": layer}},
        {"name": "b", "inputs": [], "output_bytes": 2e9, "tp": {"1": layer}, "repeat": 2},
        {"name": "c", "inputs": ["a", "b"], "output_bytes": 0, "tp": {"1": layer}}]})
    where = cluster("dgx-a100", 8)
    # In their order, a's output passes the stage of b: it is handed on and held there.
    for order, cuts in ((None, (0, 1, 3, 4)), ((1, 2, 0, 3), (0, 2, 4))):
        stages = [nest.StageConfiguration(layers=(cuts[n], cuts[n + 1]), devices=(n, n + 1))
                  for n in range(len(cuts) - 1)]
        way = nest.Configuration(micro_batch=1, order=order, stages=stages)
        one, some = (simulate(nest.evaluate(
            profile, where, nest.Job(global_batch=m, seq_len=8), way)) for m in (1, 8))
        assert one.relative_difference == pytest.approx(0, abs=1e-3)
        for stage in some.stages:
            assert stage.peak_memory_bytes == pytest.approx(
                stage.closed_form_memory_bytes, rel=1e-9)


def test_larger_buckets_are_reduced_later() -> None:
    some = [c.plan for c, _ in simulated() if c.zero == 0 and c.plan.parallelism.outer_dp > 1]
    later = []
    for plan in some[:40]:
        by_layer, by_stage = (simulate(plan, bucket_bytes=size) for size in (0.0, 1e15))
        assert by_stage.events < by_layer.events
        later.append(by_stage.step_time_s / by_layer.step_time_s - 1)
    assert min(later) > -1e-12
    assert max(later) > 0.01


@pytest.mark.parametrize("size", [-1.0, float("nan")])
def test_bad_buckets(size: float) -> None:
    with pytest.raises(InputError, match="bucket_bytes: got .*; allowed: 0 bytes or more"):
        simulate(simulated()[0][0].plan, bucket_bytes=size)


def test_an_edited_plan_that_is_not_legal() -> None:
    plan = next(c.plan for c, _ in simulated()
                if c.plan.parallelism.pp > 1 and c.schedule == "1f1b")
    stages = (plan.stages[0].model_copy(update={"layers": (0, 1), "chunks": ((0, 1),)}),
              *plan.stages[1:])
    with pytest.raises(InputError, match="layers"):
        simulate(plan.model_copy(update={"stages": stages}))


def test_spread_is_what_even_means() -> None:
    even = next(c for c, _ in simulated() if c.even and c.plan.parallelism.pp > 1)
    times = [s.time_s.total - s.time_s.handover for s in even.plan.stages]
    assert max(times) < (1 + EVEN) * min(times)
    assert spread(even.plan) == max(times) / min(times) - 1
