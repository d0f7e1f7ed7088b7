"""Runs whose causes are known: simulated steps, disturbed, written as logs and traces."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import job_logs
import numpy as np
import pytest
from simulated_runs import Disturbed, as_sqlite

import nest
from nest.evaluation.even import even_configuration
from nest.measured.diagnosis import Diagnosis, diagnose
from nest.measured.diagnosis.steps import divided
from nest.measured.diagnosis.timeline import (
    KINDS,
    DeviceWork,
    HostSpan,
    PlanDegrees,
    RankGroup,
    kinds_of,
    timeline,
)

RANKS = (0, 1, 2, 9)
FLAT, PIPELINE = {"tp": 4, "pp": 1, "zero": 1}, {"tp": 2, "pp": 2, "zero": 1}
_plans: dict[str, nest.Plan] = {}


def plan(degrees: dict[str, int]) -> nest.Plan:
    key = str(degrees)
    if key not in _plans:
        model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-h100", devices=16)
        job = nest.Job(global_batch=32, seq_len=4096)
        _plans[key] = nest.evaluate(model, cluster, job, even_configuration(
            model, cluster, job, **degrees))
    return _plans[key]


def diagnosed(tmp_path: Path, run: Disturbed, ranks: tuple[int, ...] = RANKS, steps: int = 6,
              slow: int = 1) -> tuple[Diagnosis, float]:
    """The diagnosis of a run, and the seconds that its causes cost."""
    usual = Disturbed(run.plan).step()
    mean = run.log(tmp_path / "train.log")
    stages = {one.rank: one.stage for one in run.plan.ranks()}
    traces = [str(run.trace(tmp_path / f"rank{rank}.json", rank, stages[rank], steps, rank == slow))
              for rank in ranks]
    found = diagnose(run.plan, tmp_path / "train.log", traces)
    assert found.measured_s == pytest.approx(mean, abs=1e-4)
    assert found.explained_s == pytest.approx(found.measured_s, rel=1e-12)
    return found, mean - usual


def seconds(found: Diagnosis, name: str) -> float:
    return sum(one.seconds for one in found.causes if one.name == name)


@pytest.mark.parametrize("degrees", [FLAT, PIPELINE], ids=["flat", "pipeline"])
@pytest.mark.parametrize(("name", "what"), [
    ("computing", {"computing": 1.3}), ("tp", {"tp": 2.0}), ("dp", {"reduction": 3.0}),
    ("data", {"data": 0.5, "every": 4})])
def test_one_cause_is_named_first_with_its_size(
    tmp_path: Path, degrees: dict[str, int], name: str, what: dict[str, Any]
) -> None:
    found, truth = diagnosed(tmp_path, Disturbed(plan(degrees), **what))
    assert found.causes[0].name == name
    assert found.causes[0].seconds == pytest.approx(truth, rel=0.04)
    assert all(abs(one.seconds) < 0.05 * truth for one in found.causes[1:])
    assert found.causes[0].evidence and found.causes[0].advice
    assert f"{truth:.1f}"[:2] in found.report() and "Largest cause" in found.report()


@pytest.mark.parametrize("degrees", [FLAT, PIPELINE], ids=["flat", "pipeline"])
def test_gaps_of_the_host(tmp_path: Path, degrees: dict[str, int]) -> None:
    found, truth = diagnosed(tmp_path, Disturbed(plan(degrees), gap=0.004))
    assert found.causes[0].name == "gaps"
    assert found.causes[0].seconds == pytest.approx(truth, rel=0.12)  # the bubble grows besides
    assert seconds(found, "gaps") + seconds(found, "pp") == pytest.approx(truth, rel=0.06)
    assert any("had not launched" in text for text in found.causes[0].evidence)


def test_a_straggler_is_named_with_its_rank(tmp_path: Path) -> None:
    found, truth = diagnosed(tmp_path, Disturbed(plan(FLAT), straggler=1.3), slow=2)
    first = found.causes[0]
    assert (first.name, first.seconds) == ("stragglers", pytest.approx(truth, rel=0.03))
    assert "rank 2" in first.evidence[0] and "1.30 times" in first.evidence[0]
    assert all(abs(one.seconds) < 0.05 * truth for one in found.causes[1:])
    # without its trace it is a wait in a collective, and the report says that it may be one
    found, truth = diagnosed(tmp_path, Disturbed(plan(FLAT), straggler=1.3), (0, 1), slow=2)
    assert found.causes[0].name == "tp"
    assert found.causes[0].seconds == pytest.approx(truth, rel=0.05)
    assert any("a rank that is not traced" in text for text in found.causes[0].evidence)


def test_mixed_causes_in_their_order(tmp_path: Path) -> None:
    every = {"computing": 1.25, "tp": 1.5, "reduction": 2.0}
    found, truth = diagnosed(tmp_path, Disturbed(plan(FLAT), **every, data=0.8, every=20))
    whole = Disturbed(plan(FLAT), **every).step()
    # longer computing hides more of the reduction: what counts is what each adds to the others
    added = {name: whole - Disturbed(plan(FLAT), **(every | {what: 1.0})).step() for name, what in (
        ("computing", "computing"), ("tp", "tp"), ("dp", "reduction"))} | {"data": 0.8 / 20}
    assert [one.name for one in found.causes[:4]] == sorted(added, key=lambda name: -added[name])
    for name, own in added.items():
        assert seconds(found, name) == pytest.approx(own, rel=0.12)
    assert sum(seconds(found, name) for name in added) == pytest.approx(truth, rel=0.02)


def test_a_step_as_priced_has_no_cause(tmp_path: Path) -> None:
    found, _ = diagnosed(tmp_path, Disturbed(plan(PIPELINE)))
    assert all(abs(one.seconds) < 0.004 * found.priced_s for one in found.causes)
    assert not any(one.advice for one in found.causes if one.seconds < 0.0)
    priced, measured = (sum(getattr(one, name) for one in found.parts)
                        for name in ("priced", "measured"))
    assert priced == pytest.approx(found.priced_s) and measured == pytest.approx(
        found.measured_s, rel=1e-3)


def test_kernels_and_the_gaps_between_them_cancel(tmp_path: Path) -> None:
    """The price of computing is fitted as a whole; how it is divided is not measured."""
    run = Disturbed(plan(FLAT), shares=[(1.0, 1.0)])
    found, _ = diagnosed(tmp_path, run)
    parts = {one.name: one for one in found.parts}
    assert parts["gaps"].priced > 0.2 * found.priced_s and parts["gaps"].measured < 1e-6
    assert all(abs(one.seconds) < 0.01 * found.priced_s for one in found.causes)


def test_of_two_steps_the_longer_one_is_slow(tmp_path: Path) -> None:
    run = Disturbed(plan(FLAT), data=0.5, every=2)
    run.step()
    trace = run.trace(tmp_path / "rank0.json", 0, 0, 2)
    found = diagnose(run.plan, None, [str(trace)])
    assert found.measured_s == pytest.approx(run.step() + 0.25, rel=1e-3)
    assert seconds(found, "data") == pytest.approx(0.25, rel=0.01)


def test_a_report_of_nsight_says_the_same(tmp_path: Path) -> None:
    run = Disturbed(plan(FLAT), tp=2.0)
    mean = run.log(tmp_path / "train.log")
    trace = run.trace(tmp_path / "rank0.json", 0, 0, 4)
    base = as_sqlite(trace, tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(base)) as own:  # a journal that a reader would continue
        own.execute("PRAGMA journal_mode = WAL")
    before = base.read_bytes()
    found = diagnose(run.plan, tmp_path / "train.log", [str(base)])
    again = diagnose(run.plan, tmp_path / "train.log", [str(trace)])
    assert base.read_bytes() == before and sorted(tmp_path.iterdir()) == sorted(
        [base, trace, tmp_path / "train.log"])
    assert found.sources[2].rank == 0 and found.sources[2].steps == 4
    # NCCL's kernels name no group: those of tp and dp are on streams of their own, and of this
    # plan either may be an all-gather, so that they are told together
    assert [one.name for one in again.causes][:1] == ["tp"]
    assert found.causes[0].name == "collectives"
    assert found.causes[0].seconds == pytest.approx(again.causes[0].seconds, rel=0.25)
    assert found.explained_s == pytest.approx(mean, abs=1e-4)


# ---------------------------------------------------------------- the log alone


def test_a_log_alone_tells_drift_and_slow_steps_and_no_more(tmp_path: Path) -> None:
    own = plan(FLAT)
    usual = 1.2 * own.step_time_s
    taken = [usual * (1.0 + 0.001 * n) + (0.7 if n % 10 == 0 else 0.0) for n in range(1, 101)]
    (tmp_path / "train.log").write_text("\n".join(
        job_logs.iteration(n, 1000.0 * one) for n, one in enumerate((9.0, *taken), 1)))
    found = diagnose(own, tmp_path / "train.log")
    assert seconds(found, "drift") == pytest.approx(0.0005 * 100 * usual, rel=0.05)
    assert seconds(found, "stalls") == pytest.approx(0.07, rel=0.05)
    assert seconds(found, "unexplained") == pytest.approx(0.2 * own.step_time_s, rel=0.02)
    assert found.causes[0].name == "unexplained"
    assert found.explained_s == pytest.approx(float(np.mean(np.round(taken, 4))), rel=1e-5)
    stalls = next(one for one in found.causes if one.name == "stalls")
    assert "every 10 steps" in stalls.evidence[0] and "lines 11, 21, 31" in stalls.evidence[0]
    assert "does not tell" in stalls.evidence[1]
    assert found.beside[0].name == "first"
    assert found.beside[0].seconds == pytest.approx(9.0 - float(np.median(taken)), rel=1e-3)


def test_restarts_are_beside_the_steps(tmp_path: Path) -> None:
    own = plan(FLAT)
    lines = [job_logs.iteration(n, 1200.0) for n in (*range(1, 13), *range(9, 21))]
    (tmp_path / "train.log").write_text("\n".join(lines))
    found = diagnose(own, tmp_path / "train.log")
    restarts = next(one for one in found.beside if one.name == "restarts")
    assert restarts.seconds == pytest.approx(4 * 1.2) and "4 steps" in restarts.evidence[0]


def test_steps_are_divided_exactly() -> None:
    generator = np.random.default_rng(7)
    for size in (1, 8, 9, 40, 3000):
        steps = 1.0 + 0.02 * generator.standard_normal(size)
        steps[::13] += 0.4
        found = divided(steps)
        assert found.usual + found.slow + found.drift == pytest.approx(steps.mean(), rel=1e-12)
        if size >= 40:
            assert found.every == 13 and found.drift == 0.0
            assert found.slow == pytest.approx(0.4 * len(steps[::13]) / size, rel=0.1)
    falling = divided(np.linspace(2.0, 1.0, 50))
    assert (falling.usual, falling.drift) == (pytest.approx(1.0), pytest.approx(0.5))
    assert not falling.grows


def test_other_settings_are_a_cause_with_their_price(tmp_path: Path) -> None:
    text = job_logs.table({**job_logs.LLAMA, **job_logs.RUN}) + "\n" + (
        " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n") + "\n".join(
        job_logs.iteration(n, 2000.0) for n in range(1, 12))
    (tmp_path / "train.log").write_text(text)
    ran = nest.read(tmp_path / "train.log")
    cluster = nest.load_cluster("dgx-h100", devices=16)
    way = even_configuration(ran.model, cluster, ran.job, tp=4, pp=1, zero=1)
    own = nest.evaluate(ran.model, cluster, ran.job, way)
    found = diagnose(own, tmp_path / "train.log")
    as_ran = nest.evaluate(ran.model, cluster, ran.job, ran.configuration)
    assert seconds(found, "settings") == pytest.approx(as_ran.step_time_s - own.step_time_s)
    told = next(one for one in found.causes if one.name == "settings").evidence[0]
    assert "tp 2 (plan: 4)" in told and "pp 2 (plan: 1)" in told and "line 1" in told
    same = diagnose(as_ran, tmp_path / "train.log")
    assert seconds(same, "settings") == 0.0
    smaller = nest.load_cluster("dgx-h100", devices=8)
    other = nest.evaluate(ran.model, smaller, ran.job, even_configuration(
        ran.model, smaller, ran.job, tp=4, pp=1, zero=1))
    with pytest.raises(nest.InputError, match="ran on 16 devices, the plan on 8"):
        diagnose(other, tmp_path / "train.log")


def test_what_was_learned_is_the_price(tmp_path: Path) -> None:
    own = plan(FLAT)
    (tmp_path / "plan.json").write_text(own.to_json())
    learned = nest.learn([f"{tmp_path / 'plan.json'}:{1.3 * own.step_time_s}"])
    from nest.inputs.files import yaml_text

    (tmp_path / "mine.yaml").write_text(yaml_text(learned.model_dump(
        mode="json", by_alias=True, exclude_defaults=True) | {"schema": learned.schema_}))
    (tmp_path / "train.log").write_text("\n".join(
        job_logs.iteration(n, 1300.0 * own.step_time_s) for n in range(1, 12)))
    found = diagnose(own, tmp_path / "train.log", learned=tmp_path / "mine.yaml")
    assert found.priced_s > 1.15 * own.step_time_s
    assert found.low_s is not None and found.high_s is not None
    assert found.low_s < found.measured_s < found.high_s  # type: ignore[operator]
    assert "no surer" in found.report()


# ---------------------------------------------------------------- traces


D = PlanDegrees(tp=4, cp=1, ep=1, dp=4, pp=1)


def line(*pieces: DeviceWork, spans: tuple[HostSpan, ...] = (), degrees: PlanDegrees = D
         ) -> dict[str, float]:
    found = timeline("t.json", None, pieces, spans, degrees)
    return {kind: float(second) for kind, second in zip(KINDS, found.seconds.sum(axis=0),
                                                        strict=True) if second}


def test_seconds_count_once() -> None:
    tp, dp = (RankGroup(f"mesh_{name}", 4) for name in ("tp", "dp_shard"))
    found = line(DeviceWork("gemm", 1.0, 3.0), DeviceWork("relu", 2.0, 4.0),
                 DeviceWork("gemm", 7.0, 8.0),
                 DeviceWork("ncclDevKernel_AllReduce", 3.5, 5.0, 9, tp),
                 DeviceWork("ncclDevKernel_AllGather", 1.5, 6.0, 8, dp))
    assert found == {"products": 3.0, "kernels": 1.0, "tp": 1.0, "dp": 1.0, "gaps": 1.0}


def test_the_host_counts_while_it_has_launched_nothing() -> None:
    dp = DeviceWork("ncclDevKernel_AllGather", 1.0, 5.0, 8, RankGroup("DATA_PARALLEL_GROUP", 4),
                    0.5)
    first = DeviceWork("gemm", 1.0, 2.0, launched=0.9)
    late, early = (DeviceWork("gemm", 5.0, 6.0, launched=at) for at in (4.0, 1.5))
    assert line(dp, first, late) == {"products": 2.0, "dp": 1.0, "gaps": 2.0}
    assert line(dp, first, early) == {"products": 2.0, "dp": 3.0}
    loading = HostSpan("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2.5, 3.5)
    assert line(dp, first, late, spans=(loading,)) == {
        "products": 2.0, "dp": 1.0, "gaps": 1.0, "data": 1.0}


@pytest.mark.parametrize(("name", "description", "size", "degrees", "kind"), [
    ("ncclDevKernel_AllReduce_Sum_f32", "TENSOR_MODEL_PARALLEL_GROUP", 4, D, "tp"),
    ("ncclDevKernel_AllGather_RING", "DATA_PARALLEL_GROUP_WITH_CP", 4, D, "dp"),
    ("ncclDevKernel_AllGather_RING", "mesh_dp_shard_cp", 4, D, "dp"),
    ("ncclDevKernel_SendRecv", "EXPERT_MODEL_PARALLEL_GROUP", 4, D, "ep"),
    ("ncclDevKernel_AllGather", "EXPERT_DATA_PARALLEL_GROUP", 4, D, "dp"),
    ("ncclDevKernel_AllGather", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", 4, D, "ep"),
    ("ncclDevKernel_SendRecv", "", None, D._replace(pp=2), "pp"),
    ("ncclDevKernel_SendRecv", "", None, D._replace(pp=2, cp=2), "collectives"),
    ("ncclDevKernel_AllReduce", "default_pg", 4, D._replace(tp=2), "dp"),
    ("ncclDevKernel_AllReduce", "", None, D, "collectives"),
    ("nccl:all_to_all", "", None, D._replace(ep=8), "ep"),
    ("void deep_ep::internode::dispatch<false>", "", None, D, "ep"),
    ("gloo:all_reduce", "", None, D._replace(tp=1), "dp"),
    ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "", None, D, "products"),
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "", None, D, "attention"),
    ("void at::native::vectorized_elementwise_kernel<4, lambda(float)#1>", "", None, D, "kernels"),
    ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "", None, D, "update")])
def test_kinds_of_kernels(name: str, description: str, size: int | None, degrees: PlanDegrees,
                          kind: str) -> None:
    piece = DeviceWork(name, 0.0, 1.0, 3, RankGroup(description, size))
    assert KINDS[kinds_of([piece], degrees)[0]] == kind


def test_collectives_of_one_stream_are_of_one_group() -> None:
    gather, shift = (DeviceWork(f"ncclDevKernel_{name}", 0.0, 1.0, 3)
                     for name in ("AllGather", "SendRecv"))
    degrees = D._replace(cp=2, pp=2, tp=1)
    assert [KINDS[n] for n in kinds_of([gather], degrees)] == ["collectives"]
    assert [KINDS[n] for n in kinds_of([gather, shift], degrees)] == ["cp", "cp"]


def test_a_trace_of_the_host_alone(tmp_path: Path) -> None:
    """As torch.profiler writes it with gloo on CPUs: operators, and annotations of collectives."""
    def event(name: str, cat: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
                "args": {"External id": 1}}

    events = []
    for n in range(3):
        at = 1e6 * n
        events += [event(f"ProfilerStep#{n}", "user_annotation", at, 1e6),
                   event("aten::linear", "cpu_op", at, 4e5),
                   event("aten::addmm", "cpu_op", at + 1e5, 2e5),
                   event("gloo:all_reduce", "user_annotation", at + 3e5, 4e5, 2),
                   event("Optimizer.step#AdamW.step", "user_annotation", at + 8e5, 1e5),
                   event("aten::add_", "cpu_op", at + 8e5, 1e5)]
    (tmp_path / "t.json").write_text(json.dumps({
        "distributedInfo": {"backend": "gloo", "rank": 3}, "traceEvents": events}))
    found = diagnose(plan({"tp": 1, "pp": 1, "zero": 0}), None, [str(tmp_path / "t.json")])
    parts = {one.name: one.measured for one in found.parts}
    assert found.measured_s == pytest.approx(1.0)
    assert parts == pytest.approx({"computing": 0.4, "dp": 0.3, "update": 0.1, "gaps": 0.2})
    assert found.sources[1].rank == 3


def test_unmarked_steps_are_counted_by_the_log(tmp_path: Path) -> None:
    run = Disturbed(plan(FLAT))
    run.log(tmp_path / "train.log")
    trace = run.trace(tmp_path / "rank0.json", 0, 0, 3)
    document = json.loads(trace.read_text())
    document["traceEvents"] = [one for one in document["traceEvents"]
                               if not one["name"].startswith("ProfilerStep")]
    trace.write_text(json.dumps(document))
    found = diagnose(run.plan, tmp_path / "train.log", [str(trace)])
    assert any("taken as 3" in note for note in found.notes)
    assert abs(seconds(found, "unexplained")) < 0.01 * found.priced_s


def test_a_rank_that_the_plan_lacks(tmp_path: Path) -> None:
    run = Disturbed(plan(FLAT))
    run.step()
    trace = run.trace(tmp_path / "rank64.json", 64, 0)
    with pytest.raises(nest.InputError, match="is of rank 64; allowed: 0 to 15"):
        diagnose(run.plan, None, [str(trace)])


def test_a_trace_and_a_memory_timeline_that_torch_writes(tmp_path: Path) -> None:
    """Of the host alone: products, the optimizer, the DataLoader; bytes by category."""
    torch = pytest.importorskip("torch", reason="extra torch")
    from torch.profiler import ProfilerActivity, profile

    from nest.measured.diagnosis import kineto, snapshot

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = iter(torch.utils.data.DataLoader(torch.randn(64, 256), batch_size=8))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True,
                 with_stack=True) as seen:
        for _ in range(3):
            model(next(data)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.step()
    seen.export_chrome_trace(str(tmp_path / "rank3.json"))
    found = kineto.read(tmp_path / "rank3.json", D)
    own = {kind: float(second) for kind, second in zip(KINDS, found.seconds.sum(axis=0),
                                                       strict=True)}
    assert (found.rank, found.counted, found.on_device) == (3, True, False)
    assert min(own[name] for name in ("products", "kernels", "update")) > 0.0
    assert own["collectives"] == own["copies"] == 0.0
    assert sum(own.values()) == pytest.approx(float(found.lengths.sum()), rel=1e-9)
    from torch.cuda._memory_viz import _profile_to_snapshot

    (tmp_path / "rank3.pickle").write_bytes(pickle.dumps(_profile_to_snapshot(seen)))
    held = snapshot.read(tmp_path / "rank3.pickle")
    size = 4 * (256 * 256 + 256) * 4
    assert held.kinds["optimizer"] == pytest.approx(2 * size, rel=0.01)
    assert held.kinds["gradients"] == pytest.approx(size, rel=0.05)
