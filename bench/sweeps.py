"""What a sweep costs besides planning, and what that lets many workers do.

    python bench/sweeps.py store                  10,000 points with answers at once: store, memory
    python bench/sweeps.py plans                  plans a second on this machine
    python bench/sweeps.py dask [WORKERS ...]     a Dask cluster of single-thread workers
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nest
from nest.sweeps.engines import prepare
from nest.sweeps.questions import Answer, Answered, VersionedQuestion
from nest.sweeps.store import FILE, Store
from nest.sweeps.sweep import sweep

POINTS, QUICK = 10_000, 2000
CORES = 1000
BANDWIDTH = {"cluster.levels.leaf.bandwidth": {"from": "100 Gb/s", "to": "1600 Gb/s"}}
CASES = {
    "llama3-8b, 256 devices": ("llama3-8b", 256, False, 40),
    "llama3-70b, 1,024 devices": ("llama3-70b", 1024, False, 20),
    "llama3-70b, 1,024 devices, whole space": ("llama3-70b", 1024, True, 20),
}
"""What is planned: model, devices, beyond the stack, points."""


def study(model: str, devices: int, beyond: bool, count: int) -> dict:
    """The leaf's bandwidth swept, all else fixed."""
    return {
        "name": "bench", "model": model, "cluster": {"base": "dgx-h100", "devices": devices},
        "job": {"global_batch": 4 * devices, "seq_len": 4096}, "search": {"beyond_stack": beyond},
        "axes": {name: {**axis, "count": count} for name, axis in BANDWIDTH.items()}}


def at_once(question: VersionedQuestion) -> Answered:
    """An answer as long as a real one."""
    answer = Answer(status="ok", step_time_s=1.0, samples_per_s=1.0, tokens_per_s=1e6, mfu=0.5,
                    peak_memory_bytes=1e9, optimal=True, gap=0.0, plan="tp 2 pp 4 dp 32")
    return Answered("ok", answer.model_dump_json(exclude_none=True), os.urandom(5000))


def store() -> None:
    """Seconds a point of the store, and of all that the parent does; its largest memory."""
    given = study("llama3-8b", 256, False, POINTS)
    with tempfile.TemporaryDirectory() as folder:
        file = Store(os.path.join(folder, "alone.db"))
        started, busy = time.perf_counter(), time.process_time()
        found = at_once(None)  # type: ignore[arg-type]
        for number in range(POINTS):
            key = f"{number:064x}"
            file.status(key)
            file.claim(key)
            file.add(key, found.status, found.answer, found.plan)
        print(f"store alone: {1e3 * (time.perf_counter() - started) / POINTS:.3f} ms a point, "
              f"{1e3 * (time.process_time() - busy) / POINTS:.3f} ms of a processor")
        file.close()
        started, busy = time.perf_counter(), time.process_time()
        swept = sweep(given, folder, engine="inline", question=at_once)
        print(f"all of the parent: {1e3 * (time.perf_counter() - started) / POINTS:.3f} ms a "
              f"point, {1e3 * (time.process_time() - busy) / POINTS:.3f} ms of a processor")
        started = time.perf_counter()
        swept.report()
        print(f"report: {time.perf_counter() - started:.2f} s; {POINTS:,} points, "
              f"{os.path.getsize(os.path.join(folder, FILE)) / 2**20:.0f} MiB; most memory of the "
              f"parent {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


def plans() -> None:
    """Plans a second with a process for each processor."""
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            warm = []
            started = time.perf_counter()
            swept = sweep(study(*case), folder, progress=lambda now, warm=warm: warm.append(
                time.perf_counter()))
            rate = (len(warm) - 2) / (warm[-1] - warm[1])
            with swept.results() as results:
                busy = results.seconds / case[-1]
            print(f"{name}: {rate:.1f} plans/s, {busy:.3f} s of a processor a plan "
                  f"({time.perf_counter() - started:.0f} s in all)", flush=True)


def dask(counts: list[int]) -> None:
    """Plans a second of 1, 2, 4 workers; what the parent and the scheduler take for each plan."""
    from distributed import Client

    given = study("llama3-8b", 256, False, 120)
    base, overhead = 0.0, 0.0
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "18788")
            time.sleep(4)
            workers = [start("worker", "tcp://127.0.0.1:18788", "--nthreads", "1", "--no-nanny")
                       for _ in range(count)]
            client = Client("tcp://127.0.0.1:18788")
            client.wait_for_workers(count)
            client.run(prepare)
            client.close()
            seen: list[float] = []
            swept = sweep(given, folder, engine="dask://127.0.0.1:18788",
                          progress=lambda now, seen=seen: seen.append(time.perf_counter()))
            skip = 4 * count  # until all are busy
            done = len(seen) - skip
            rate = done / (seen[-1] - seen[skip - 1])
            with swept.results() as results:
                each = results.seconds / 120
            begun = time.perf_counter(), time.process_time(), processor_seconds(scheduler.pid)
            sweep(study("llama3-8b", 256, False, QUICK), os.path.join(folder, "quick"),
                  engine="dask://127.0.0.1:18788", question=at_once)
            end = time.perf_counter(), time.process_time(), processor_seconds(scheduler.pid)
            took, parent, middle = ((b - a) / QUICK for a, b in zip(begun, end, strict=True))
            overhead = max(parent, middle)
            for process in (*workers, scheduler):
                process.kill()
                process.wait()
            base = base or rate
            print(f"{count} workers: {rate:.2f} plans/s, x {rate / base:.2f}; {each:.3f} s of a "
                  f"processor a plan; answers at once: {1.0 / took:.0f} /s, parent "
                  f"{1e3 * parent:.2f} ms, scheduler {1e3 * middle:.2f} ms of a processor each",
                  flush=True)
    for seconds in (0.15, 1.0, 5.0):
        most = 1 / overhead
        ideal = CORES / seconds
        print(f"{CORES:,} cores, plans of {seconds:g} s: {min(most, ideal):,.0f} plans/s of "
              f"{ideal:,.0f} without overheads ({100 * min(most / ideal, 1):.0f} %)")


def start(*words: str) -> subprocess.Popen:
    """A part of a Dask cluster."""
    path = os.pathsep.join((str(Path(nest.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen([sys.executable, "-m", "dask", *words, "--no-dashboard"],
                            env={**os.environ, "NEST_THREADS": "1", "PYTHONPATH": path},
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def processor_seconds(pid: int) -> float:
    """Of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "store"
    if what == "dask":
        dask([int(word) for word in sys.argv[2:]] or [1, 2, 4])
    else:
        {"store": store, "plans": plans}[what]()
