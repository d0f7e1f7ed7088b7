"""What a log measured: steps without the first ones, memory by rank, ends; and as a row."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import job_logs
import numpy as np
import pytest

from nest.errors import InputError
from nest.measured import logs, validation
from nest.measured.logs.table_row import table

GIB, MIB = 2**30, 2**20


def read(tmp_path: Path, text: str, name: str = "train.log", **said: Any) -> logs.RunLog:
    file = tmp_path / name
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return logs.read(file, **said)


# Name: framework, version, seconds of a step, first steps left out, steps, allocated, reserved.
MEASURED: dict[str, tuple[str, str, float, int, int, int | None, int | None]] = {
    "megatron": ("megatron", "", 2.01, 1, 9, round(41000.5 * MIB), 47000 * MIB),
    "megatron-2021": ("megatron", "", 1.5, 1, 3, None, None),
    "megatron-deepspeed": ("megatron", "", 1.6, 1, 3, None, None),
    "bridge-yaml": ("megatron-bridge", "", 5.205, 1, 4, round(60.5e9), round(66.7e9)),
    "bridge-summary": ("megatron-bridge", "", 5.205, 1, 4, round(60.5e9), round(66.7e9)),
    "torchtitan-0.1": ("torchtitan", "", 2.0, 1, 3, None, 44 * GIB),
    "torchtitan-0.2": ("torchtitan", "", 2.0, 1, 3, None, 44 * GIB),
    "torchtitan-0.3": ("torchtitan", "", 2.0, 1, 3, None, 44 * GIB),
    "trainer": ("trainer", "4.57.1", 9.505, 1, 4, round(14.1 * GIB), 15 * GIB),
    "axolotl": ("axolotl", "4.57.1", 3.0, 0, 1, round(49.53 * GIB), 62 * GIB),
    "maxtext": ("maxtext", "", 3.9, 2, 5, round(54.2 * GIB), None),
    "nemo": ("nemo", "", 2.305, 1, 4, None, None),
    "gpt-neox": ("gpt-neox", "", 2.13, 1, 3, None, None),
}


@pytest.mark.parametrize("name", job_logs.LOGS)
def test_what_each_software_prints(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, job_logs.LOGS[name])
    framework, version, seconds, left_out, steps, allocated, reserved = MEASURED[name]
    assert (found.framework, found.version, found.verdict) == (framework, version, "ran")
    assert found.step_time_s == pytest.approx(seconds, rel=1e-9)
    assert found.steps.dtype == np.float64
    assert (found.left_out, len(found.steps)) == (left_out, steps)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (allocated, reserved)
    assert (found.restarts, found.out_of_memory) == (0, ())


def test_statistics_rates_and_ranks(tmp_path: Path) -> None:
    found = read(tmp_path, job_logs.LOGS["megatron"])
    assert found.flops_per_s == 410.5e12
    assert found.outliers == 1
    assert found.spread == pytest.approx(0.02 / 2.01)
    assert found.drift == pytest.approx(2.01 / 2.01 - 1)
    assert found.allocated_by_rank == {0: round(41000.5 * MIB), 4: 39000 * MIB}
    assert found.reserved_by_rank == {0: 46000 * MIB, 4: 47000 * MIB}
    titan = read(tmp_path, job_logs.LOGS["torchtitan-0.2"])
    assert (titan.device, titan.ranks, titan.tokens_per_s) == ("NVIDIA H100 80GB HBM3", 1, 8192.0)
    assert read(tmp_path, job_logs.LOGS["maxtext"]).tokens_per_s == 4194.304


def test_drift_is_told(tmp_path: Path) -> None:
    lines = "\n".join(job_logs.iteration(n, 1000.0 + 20 * n) for n in range(1, 14))
    found = read(tmp_path, lines)
    assert found.drift == pytest.approx(1240 / 1080 - 1)  # the first two are left out


def test_the_number_of_samples_of_deepspeed_makes_times(tmp_path: Path) -> None:
    lines = [f"[2026-03-01 10:00:00,000] [INFO] [timer.py:264:stop] epoch=0/micro_step={4 * n}/"
             f"global_step={n}, RunningAvgSamplesPerSec=31.5, CurrSamplesPerSec={rate}, "
             "MemAllocated=8.5GB, MaxMemAllocated=61.25GB"
             for n, rate in ((10, 16.0), (20, 32.0), (30, 32.0), (40, 32.5))]
    text = job_logs.json_of_engine(2, 2, 4, 64) + "\n" + "\n".join(lines)
    found = read(tmp_path, text)
    assert found.step_time_s == 2.0
    assert found.peak_allocated_bytes == 61.25 * GIB
    none = read(tmp_path, "\n".join(lines))
    assert none.step_time_s is None and "not how many a step has" in none.notes[0]


def test_pipelines_of_deepspeed_and_nanotron(tmp_path: Path) -> None:
    found = read(tmp_path, "\n".join(
        f"steps: {n} loss: 10.1 iter time (s): {s} samples/sec: 50.0"
        for n, s in ((10, "3.100"), (20, "1.250"), (30, "1.260"), (40, "1.250"))))
    assert (found.framework, found.step_time_s) == ("deepspeed", 1.25)
    found = read(tmp_path, "\n".join(
        f"03/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {n} / 100 | consumed_tokens:"
        f" 1.05M | time_per_iteration_ms: {ms} | tokens_per_sec: 219K | tokens_per_sec_per_gpu: "
        "27.4K | model_tflops_per_gpu: 405 |"
        for n, ms in ((1, "9.9K"), (2, "4.77K"), (3, "4.78K"), (4, "4.77K"))))
    assert (found.framework, found.step_time_s, found.tokens_per_s) == ("nanotron", 4.77, 27400.0)
    assert found.flops_per_s == 405e12


OUT = ("[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {0} "
       "has a total capacity of 79.11 GiB of which 1.10 GiB is free.")


def test_out_of_memory_with_rank_and_bytes(tmp_path: Path) -> None:
    head = job_logs.table({**job_logs.LLAMA, **job_logs.RUN})
    lines = [head, OUT.format(3), OUT.format(3), OUT.format(7).replace("2.50 GiB", "512.00 MiB"),
             "3: RuntimeError: CUDA error: out of memory",
             "W torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"]
    found = read(tmp_path, "\n".join(lines))
    assert found.verdict == "out_of_memory" and found.step_time_s is None
    assert found.out_of_memory == ((3, round(2.5 * GIB)), (7, 512 * MIB))
    assert found.end == "an error of a process"
    jax = read(tmp_path, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory "
               "while trying to allocate 85899345920 bytes.")
    assert jax.out_of_memory == ((None, 85899345920),)
    nccl = read(tmp_path, "node-1: transport.cc:1 NCCL WARN Cuda failure 2 'out of memory'")
    assert nccl.out_of_memory == ((None, None),)


def test_memory_that_runs_out_later_counts_and_a_later_start_counts_more(tmp_path: Path) -> None:
    steps = "\n".join(job_logs.iteration(n, 2000.0) for n in range(1, 6))
    assert read(tmp_path, f"{steps}\n{OUT.format(0)}").verdict == "out_of_memory"
    again = read(tmp_path, f"{steps}\n{OUT.format(0)}\n"
                 + "\n".join(job_logs.iteration(n, 2100.0) for n in range(3, 9)))
    assert (again.verdict, again.restarts, again.left_out) == ("ran", 1, 2)
    assert again.out_of_memory and len(again.steps) == 4 + 5


def test_several_starts_with_the_same_table(tmp_path: Path) -> None:
    one = job_logs.LOGS["megatron"]
    found = read(tmp_path, one + "Traceback (most recent call last):\n" + one + one)
    assert (found.restarts, found.left_out, len(found.steps)) == (2, 3, 27)
    assert found.settings.devices == 16


def test_a_run_that_stops(tmp_path: Path) -> None:
    head = job_logs.table({**job_logs.LLAMA, **job_logs.RUN})
    for line, end in (
            ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-03-01T10 DUE TO TIME LIMIT ***",
             "the queue cancelled it"),
            ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.",
             "host memory ran out"),
            ("[rank2]:[E] Watchdog caught collective operation timeout: WorkNCCL",
             "a collective timed out")):
        found = read(tmp_path, f"{head}\n{line}\n")
        assert (found.verdict, found.end, found.step_time_s) == ("stopped", end, None)


def test_interleaved_ranks_and_bars_are_told_apart(tmp_path: Path) -> None:
    lines = []
    for n in range(1, 7):
        stamp = f"2026-03-01 10:00:{2 * n:02d}"
        lines += [f"[rank{rank}]:[titan] {stamp},{100 * rank:03d} - root - INFO - step: {n:2}  "
                  f"loss:  8.19960  memory: {30 + rank}.00GiB(52.79%)  tps: 8,192  mfu: 44.50%"
                  for rank in (3, 0, 2, 1)]
    found = read(tmp_path, "\n".join(lines))
    assert found.step_time_s == 2.0 and found.ranks == 4 and found.restarts == 0
    assert found.reserved_by_rank == {rank: (30 + rank) * GIB for rank in range(4)}
    bars = "".join(f"\rLoading shards: {n}/4 [00:0{n}<00:04, 0.50s/it]" for n in range(1, 5))
    text = "|" + bars.replace("\r", "\r |") + job_logs.LOGS["trainer"]
    assert read(tmp_path, text).step_time_s == pytest.approx(9.505)


def test_a_log_is_told_from_a_script(tmp_path: Path) -> None:
    for name, text, log in (
            ("train.log", "", True), ("slurm-1.out", "", True), ("run.sh", "torchrun", False),
            ("run.txt", "torchrun pretrain_gpt.py --num-layers 2", False),
            ("train.log.1", job_logs.LOGS["maxtext"], True), ("run.2", "torchrun", False),
            ("job.o12", job_logs.LOGS["megatron"], True), ("a.p7", job_logs.LOGS["nemo"], False),
            ("job", job_logs.LOGS["maxtext"], True), ("a.txt", job_logs.LOGS["trainer"], True),
            ("a.yaml", job_logs.LOGS["nemo"], False)):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        assert logs.is_log(file) == log, name
    assert not logs.is_log(tmp_path / "none") and not logs.is_log(tmp_path)


def test_a_long_log_is_streamed(tmp_path: Path) -> None:
    """Its lines are not kept: 5 MB of noise and one line of 9 MB cost no more than a line."""
    import tracemalloc

    file = tmp_path / "train.log"
    noise = b"NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7\n" * 10_000
    with file.open("wb") as out:
        for _ in range(12):
            out.write(noise)
        out.write(b"x" * 9_000_000 + b"\n" + job_logs.LOGS["megatron"].encode())
    tracemalloc.start()
    found = logs.read(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.step_time_s == pytest.approx(2.01) and peak < 6 * 2**20


def test_the_end_of_a_line_that_is_too_long_is_no_line(tmp_path: Path) -> None:
    """It begins where a block of the file does."""
    text = "x" * (3 * 2**20) + job_logs.iteration(99, 7.0) + "\n" + job_logs.LOGS["megatron"]
    found = read(tmp_path, text)
    assert (found.restarts, len(found.steps)) == (0, 9)


def test_the_row_is_one_of_a_table_of_runs(tmp_path: Path) -> None:
    for name in job_logs.LOGS:
        log = read(tmp_path, job_logs.LOGS[name], f"{name}.log", **job_logs.SAID.get(name, {}))
        made = log.settings
        text = table(log, made.model, made.job, made.configuration, made.devices, "h100", 8)
        run = validation.runs.parse(text, name)[0]
        assert run.reason is None, name
        assert run.measured_s == pytest.approx(log.step_time_s, rel=1e-5)
        assert run.run_id == name
        question = validation.question(run)
        way, own = question.configuration.stages[0], made.configuration.stages[0]
        assert (way.tp, way.cp, way.zero, way.recompute) == (own.tp, own.cp, own.zero,
                                                             own.recompute)
        assert question.job.global_batch == made.job.global_batch
        memory = log.peak_allocated_bytes or log.peak_reserved_bytes
        assert run.measured_memory == (memory and pytest.approx(memory, rel=1e-5))


def test_a_row_says_what_it_cannot_hold_and_no_formula(tmp_path: Path) -> None:
    log = read(tmp_path, job_logs.LOGS["megatron-2021"], "=1+1.log")
    made = log.settings
    text = table(log, made.model, made.job, made.configuration, made.devices, "@h100")
    cells = next(csv.DictReader(io.StringIO(text)))
    assert not [cell for cell in cells.values() if cell[:1] in "=+-@"]
    assert "not in these columns: " in cells["notes"]
    lost = read(tmp_path, job_logs.table({**job_logs.LLAMA, **job_logs.RUN}) + f"\n{OUT.format(1)}",
                vocab=32000)
    made = lost.settings
    cells = next(csv.DictReader(io.StringIO(table(
        lost, made.model, made.job, made.configuration, made.devices))))
    assert cells["step_time_s"] == "" and "out of memory" in cells["notes"]


def test_a_missing_or_compressed_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        logs.read(tmp_path / "none.log")
    with pytest.raises(InputError, match="cannot be read"):
        logs.read(tmp_path)
    file = tmp_path / "train.log"
    file.write_bytes(b"\x1f\x8b\x08\x00rest")
    with pytest.raises(InputError, match="is compressed"):
        logs.read(file)


def test_lines_of_mlperf(tmp_path: Path) -> None:
    """Of each step, else of a block of steps; their step is the number of samples."""
    head = ('0: :::MLLOG {"namespace": "", "time_ms": 1745949988612, "event_type": '
            '"POINT_IN_TIME", "key": ')
    where = '"metadata": {"file": "callbacks.py", "lineno": 325, "step": '
    batch = f'{head}"global_batch_size", "value": 64, {where}0}}}}'
    steps = [f'{head}"tracked_stats", "value": {{"train_step_time": {seconds}, '
             f'"reduced_train_loss": 7.7}}, {where}{64 * n}.0}}}}'
             for n, seconds in enumerate((9.5, 5.25, 5.5, 5.25), 1)]
    block = [f'{head}"tracked_stats", "value": {{"throughput": {rate}, "train_step_time": 9.0}}, '
             f'{where}{64 * n}}}}}' for n, rate in ((0, 8.0), (48, 16.0), (96, 16.0))]
    found = read(tmp_path, "\n".join([batch, *steps, block[0]]))
    assert (found.framework, found.step_time_s, found.restarts) == ("mlperf", 5.25, 0)
    blocks = read(tmp_path, "\n".join([batch, *block]))
    assert (blocks.step_time_s, len(blocks.steps)) == (4.0, 2)
