"""Guarantees G4, G5 and G8: same plan every time, more never hurts, and misses that are explained.

G1 to G3 are in ``test_exact.py``, G6 waits for the event simulation, G7 is in ``test_describe*.py``
and ``test_cli*.py``.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from instances import Instance, instance

import nest
from nest.describe import Cluster

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
SEEDS = range(20) if WITHOUT_JIT else range(150)
MODELS = [("bert-large", 512), ("llama2-7b", 4096), ("llama3-70b", 4096), ("mixtral-8x7b", 4096)]


def planned(x: Instance, **changes: object) -> nest.Plan | None:
    """The plan of an instance with a changed cluster or space; None where nothing fits."""
    values = {"cluster": x.cluster, "space": x.space, **changes}
    try:
        return nest.plan(x.model, values["cluster"], x.job, values["space"])
    except (nest.InfeasibleError, nest.InputError):
        return None


def text(plan: nest.Plan) -> str:
    """All of a plan but what the search reports of itself."""
    return plan.model_copy(update={"search": None}).to_json()


# ---------------------------------------------------------------- G4


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_any_number_of_threads_gives_the_same_plan(threads: int) -> None:
    devices = 4 if WITHOUT_JIT else 64
    for name, seq_len in MODELS[: 1 if WITHOUT_JIT else None]:
        model, cluster = nest.load_model(name), nest.load_cluster("dgx-h100", devices=devices)
        job = nest.Job(global_batch=devices, seq_len=seq_len)
        space = nest.SearchSpace(pp="1,2" if WITHOUT_JIT else "1..4")
        one = nest.plan(model, cluster, job, space, threads=1)
        many = nest.plan(model, cluster, job, space, threads=threads)
        assert text(one) == text(many)


def test_two_processes_give_the_same_plan() -> None:
    code = (
        "import nest; p = nest.plan(nest.load_model('llama2-7b'),"
        "nest.load_cluster('dgx-a100', devices=16), nest.Job(global_batch=32, seq_len=2048),"
        "nest.SearchSpace(pp='1..3', zero='0,1'));"
        "print(p.model_copy(update={'search': None}).to_json())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                       env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout


# ---------------------------------------------------------------- G5


def more_memory(cluster: Cluster) -> Cluster:
    device = cluster.device
    return cluster.replace(device=device.replace(memory=1.25 * device.memory))


def faster_memory(cluster: Cluster) -> Cluster:
    device = cluster.device
    return cluster.replace(device=device.replace(memory_bandwidth=1.5 * device.memory_bandwidth))


def more_flops(cluster: Cluster) -> Cluster:
    device = cluster.device
    peaks = {name: 1.5 * peak for name, peak in device.peak_flops.items()}
    return cluster.replace(device=device.replace(peak_flops=peaks))


def wider(level: int) -> Callable[[Cluster], Cluster]:
    def change(cluster: Cluster) -> Cluster:
        levels = list(cluster.levels)
        n = level % len(levels)
        given = levels[n]
        levels[n] = (
            given.replace(bandwidth=2.0 * given.bandwidth)
            if given.bandwidth is not None
            else given.replace(oversubscription=max(1.0, given.oversubscription / 2.0))
        )
        return cluster.replace(levels=tuple(levels))

    return change


@pytest.mark.parametrize(
    "change",
    [more_memory, faster_memory, more_flops, wider(0), wider(1), wider(-1)],
    ids=["memory", "memory bandwidth", "flops", "level 0", "level 1", "outermost level"],
)
def test_more_of_anything_never_slows_a_plan(change: Callable[[Cluster], Cluster]) -> None:
    for seed in SEEDS:
        x = instance(seed)
        before, after = planned(x), planned(x, cluster=change(x.cluster))
        if before is not None:
            assert after is not None, seed
            assert after.step_time_s <= before.step_time_s * (1 + 1e-12), seed


def test_a_larger_space_never_slows_a_plan() -> None:
    compared = 0
    for seed in SEEDS:
        x = instance(seed)
        # Left out, etp means tp or 1: not more than every bound allows.
        bounds = x.space.describe().items()
        given = [name for name, v in bounds if v not in ("any", "1", "1f1b") and name != "etp"]
        before = planned(x)
        if before is None:
            continue
        for name in given:
            after = planned(x, space=x.space.replace(**{name: None}))
            assert after is not None, (seed, name)
            assert after.step_time_s <= before.step_time_s * (1 + 1e-12), (seed, name)
            compared += 1
    assert compared > len(SEEDS) / 4


def test_recomputing_in_front_of_a_long_finish_does_not_pay() -> None:
    """A slower backward hides nothing of what only waits for it."""
    def layer(name: str, forward: float, backward: float, held: float) -> dict[str, object]:
        measured = {"forward": forward, "backward": backward, "parameter_bytes": held,
                    "activation_bytes": 1}
        return {"name": name, "output_bytes": 0, "tp": {1: measured}}

    profile = nest.Profile(name="long finish", layers=[
        layer("u", 10, 20, 1), layer("v", 0.1, 0.2, 1), layer("w", 0.1, 0.1, 50e9)])
    cluster = nest.Cluster(
        name="slow links",
        device={"name": "d", "memory": "10 TB", "memory_bandwidth": "1 EB/s",
                "peak_flops": {"bf16": 1e15}, "launch_overhead": 0},
        levels=[{"name": "a", "size": 6, "bandwidth": "4 GB/s", "latency": 0}],
    )
    job = nest.Job(global_batch=20, seq_len=1, stack={"base": "megatron-2021"})
    space = nest.SearchSpace(pp=3, outer_dp=2, tp=1, zero=0, dp_in=1, micro_batch=1)
    plan = nest.plan(profile, cluster, job, space)
    for policies in itertools.product(("none", "selective", "full"), repeat=3):
        stages = tuple(s.replace(recompute=policy) for s, policy in
                       zip(plan.configuration.stages, policies, strict=True))
        other = nest.evaluate(profile, cluster, job, plan.configuration.replace(stages=stages))
        assert other.step_time_s >= plan.step_time_s * (1 - 1e-12)


# ---------------------------------------------------------------- G8


def cramped(memory: str) -> tuple[nest.Model, Cluster, nest.Job]:
    cluster = nest.load_cluster("dgx-a100", devices=8)
    small = cluster.replace(device=cluster.device.replace(memory=memory))
    return nest.load_model("llama2-7b"), small, nest.Job(global_batch=8, seq_len=4096)


def test_a_miss_says_stage_category_bytes_and_remedy() -> None:
    model, cluster, job = cramped("16 GiB")
    with pytest.raises(nest.InfeasibleError, match=r"nearest miss .* short on stage") as caught:
        nest.plan(model, cluster, job)
    near = caught.value.nearest
    assert near["category"] in ("parameters", "gradients", "optimizer", "activations", "buffers")
    assert near["needs_bytes"] - near["limit_bytes"] == pytest.approx(near["bytes_short"])
    # What it asks for is enough, and little less is not.
    enough = cluster.device.replace(memory=near["memory_bytes"])
    assert nest.plan(model, cluster.replace(device=enough), job).feasible
    less = cluster.device.replace(memory=near["memory_bytes"] / 1.02)
    with pytest.raises(nest.InfeasibleError):
        nest.plan(model, cluster.replace(device=less), job)
    # The plan named is priced, and is short by just that.
    shown = nest.evaluate(model, cluster, job, nest.Configuration(**near["configuration"]))
    over = max(s.memory_bytes.total - s.memory_limit_bytes for s in shown.stages)
    assert over == pytest.approx(near["bytes_short"])


def test_a_bound_that_is_in_the_way_is_named() -> None:
    model, cluster, job = cramped("40 GiB")
    space = nest.SearchSpace(zero=0, tp=1, pp=1, recompute="none")
    with pytest.raises(nest.InfeasibleError) as caught:
        nest.plan(model, cluster, job, space)
    assert any("not bound to" in remedy for remedy in caught.value.nearest["remedies"])


def test_bounds_that_exclude_each_other_are_no_memory_problem() -> None:
    model, cluster, job = cramped("80 GiB")
    with pytest.raises(nest.InfeasibleError, match="exclude each other"):
        nest.plan(model, cluster, job, nest.SearchSpace(tp=4, dp_in=8))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"tp": 3}, r"tp: got 3; tp 3 does not divide heads 32"),
        ({"ep": 2}, r"ep: got 2; only models with experts"),
        ({"pp": 99}, r"pp: got 99"),
        ({"outer_dp": 3}, r"outer_dp: got 3; not a divisor of global_batch 8"),
        ({"micro_batch": 5}, r"micro_batch: got 5; not a divisor"),
    ],
)
def test_a_bound_without_legal_value_is_an_input_error(
    space: dict[str, int], message: str
) -> None:
    model, cluster, job = cramped("80 GiB")
    with pytest.raises(nest.InputError, match=message):
        nest.plan(model, cluster, job, nest.SearchSpace(**space))
