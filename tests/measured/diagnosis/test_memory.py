"""Memory by kind: snapshots and logs beside the price."""

from __future__ import annotations

import pickle
from pathlib import Path

import job_logs
import pytest
from simulated_runs import snapshot_of

import nest
from nest.evaluation.even import even_configuration
from nest.measured.diagnosis import diagnose
from nest.measured.diagnosis.result import MemoryDiagnosis
from nest.measured.diagnosis.snapshot import KINDS, read

GIB = 2**30


@pytest.fixture(scope="module")
def plan() -> nest.Plan:
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-h100", devices=16)
    job = nest.Job(global_batch=32, seq_len=4096)
    return nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=2, pp=2, zero=1))


def priced(plan: nest.Plan, stage: int) -> dict[str, int]:
    held = plan.stages[stage].memory_bytes
    return {kind: round(getattr(held, kind)) for kind in KINDS if round(getattr(held, kind))}


def held(plan: nest.Plan, tmp_path: Path, name: str = "rank2.pickle", **given: object
         ) -> MemoryDiagnosis:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(snapshot_of(**given), protocol=4))  # type: ignore[arg-type]
    found, = diagnose(plan, memory=[str(path)]).memory
    assert found.priced_bytes + sum(one.bytes for one in found.causes) == pytest.approx(
        found.measured_bytes, rel=1e-12)
    return found


def test_more_activations_are_named_first(plan: nest.Plan, tmp_path: Path) -> None:
    kinds = priced(plan, 1)
    kinds["activations"] += 3 * GIB
    found = held(plan, tmp_path, kinds=kinds, peak=5 * GIB)
    assert (found.rank, found.stage, found.counted) == (2, 1, "reserved")
    first = found.causes[0]
    assert (first.name, first.bytes) == ("activations", pytest.approx(8 * GIB, rel=1e-6))
    assert any("recompute" in text for text in first.advice)
    assert all(abs(one.bytes) < 100 for one in found.causes[1:])


def test_fragments_and_what_no_frame_tells(plan: nest.Plan, tmp_path: Path) -> None:
    kinds = priced(plan, 0)
    kinds["untold"] = 2 * GIB
    found = held(plan, tmp_path, "rank_0.pickle", kinds=kinds, reserved=sum(kinds.values()) + GIB)
    assert [(one.name, round(one.bytes / GIB, 3)) for one in found.causes[:2]] == [
        ("unexplained", 2.0), ("fragments", 1.0)]
    assert found.causes[0].evidence[0].startswith("2 GiB have no frames")
    # what is untold may be of a kind that seems small
    kinds["optimizer"] -= 2 * GIB
    found = held(plan, tmp_path, "rank_0.pickle", kinds=kinds)
    assert [one.name for one in found.causes if abs(one.bytes) > 100] == []


def test_every_protocol_and_the_peak_before(tmp_path: Path) -> None:
    given = snapshot_of({"parameters": 1000, "activations": 500}, peak=700)
    for protocol in range(6):
        path = tmp_path / f"rank{protocol}.pickle"
        path.write_bytes(pickle.dumps(given, protocol=protocol))
        found = read(path)
        assert (found.rank, found.reserved, found.allocated, found.entries) == (
            protocol, 2200, 2200, 5)
        assert found.kinds["activations"] == 1200 and found.kinds["parameters"] == 1000
    # blocks that were there before the recording began, and one that was freed within it
    del given["device_traces"][0][:2]
    given["device_traces"][0].append(
        {"action": "free_completed", "addr": 99, "size": 5000, "stream": 0, "frames": []})
    path.write_bytes(pickle.dumps(given))
    assert read(path).allocated == 1000 + 500 + 700 + 5000


def test_categories_of_the_memory_timeline(tmp_path: Path) -> None:
    """As torch.cuda._memory_viz writes them for CPUs, too."""
    path = tmp_path / "viz.pickle"
    trace = [{"action": "alloc", "addr": n, "size": size, "stream": 0, "frames": [], "category":
              category} for n, (category, size) in enumerate((
                  ("parameter", 10), ("optimizer_state", 20), ("gradient", 30), ("activation", 40),
                  ("autograd_detail", 5), ("unknown", 7)))]
    path.write_bytes(pickle.dumps({"segments": [
        {"device": 0, "address": 0, "total_size": 200, "blocks": []}], "device_traces": [trace]}))
    found = read(path)
    assert found.kinds == {"parameters": 10, "optimizer": 20, "gradients": 30, "activations": 45,
                           "buffers": 0, "untold": 7}


def test_out_of_memory_in_a_snapshot_and_a_log(plan: nest.Plan, tmp_path: Path) -> None:
    path = tmp_path / "rank1.pickle"
    path.write_bytes(pickle.dumps(snapshot_of(priced(plan, 0), oom=3 * GIB)))
    (tmp_path / "train.log").write_text("\n".join([
        job_logs.iteration(1, 900.0),
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 2"]))
    found = diagnose(plan, tmp_path / "train.log", memory=[str(path)])
    assert [(one.rank, one.asked_bytes, one.stage) for one in found.out_of_memory] == [
        (2, 2.5 * GIB, 1), (1, 3 * GIB, 0)]
    assert found.out_of_memory[0].priced_bytes == plan.stages[1].memory_bytes.total
    assert any("memory snapshot" in text for text in found.out_of_memory[0].advice)
    text = found.report()
    assert "Try  a memory snapshot tells kinds" in text
    assert "Rank 2 ran out of memory as it asked for 2.5 GiB; its stage 1 is priced" in (
        " ".join(text.split()))


def test_memory_of_a_log(plan: nest.Plan, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join([
        *(job_logs.iteration(n, 1000.0) for n in range(1, 9)),
        job_logs.MEMORY.format(2, "41000.50", "46000.00")]))
    found, = diagnose(plan, tmp_path / "train.log").memory
    assert (found.rank, found.stage, found.measured_bytes) == (2, 1, 46000 * 2**20)
    assert {one.name for one in found.causes} == {"fragments", "unexplained"}
    assert next(one for one in found.causes if one.name == "fragments").bytes == round(
        4999.5 * 2**20)
