"""What a sweep costs besides planning, and what that lets many workers do.

    python bench/sweeps.py store                  10,000 points with answers at once: store, memory
    python bench/sweeps.py plans                  plans a second on this machine
    python bench/sweeps.py dask [WORKERS ...]     a Dask cluster of single-thread workers
"""

from __future__ import annotations

import math
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import nest
from nest.questions import read_question
from nest.studies import engines as bundles
from nest.studies.engines import prepare
from nest.studies.questions import Answered, Outcome, VersionedQuestion
from nest.studies.store import FILE, Store
from nest.studies.sweep import sweep

POINTS, QUICK, PLANS = 10_000, 2000, 120
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
    answer = Outcome(status="ok", step_time_s=1.0, samples_per_s=1.0, tokens_per_s=1e6, mfu=0.5,
                    peak_memory_bytes=1e9, optimal=True, gap=0.0, plan="tp 2 pp 4 dp 32")
    return Answered("ok", answer.model_dump_json(exclude_none=True), os.urandom(5000))


def store() -> None:
    """Seconds a point of the store, and of all that the parent does; its largest memory."""
    given = study("llama3-8b", 256, False, POINTS)
    with tempfile.TemporaryDirectory() as folder:
        file = Store(os.path.join(folder, "alone.db"))
        started, busy = time.perf_counter(), time.process_time()
        answers(file, POINTS)
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


def answers(file: Store, count: int) -> None:
    """Store answers as a sweep does."""
    found = at_once(None)  # type: ignore[arg-type]
    for number in range(count):
        key = f"{number:064x}"
        file.status(key)
        file.claim(key)
        file.add(key, found.status, found.answer, found.plan)


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
    """Plans a second of 1, 2, 4 workers; what a question takes besides planning, and where."""
    arounds, parents, middles = [], [], []
    for count in counts:
        with cluster(count) as (address, scheduler, workers):
            rate, took = planning(address, workers)
            alone, ten = (at_once_by(address, scheduler, size) for size in (1, 10))
        each, around = took.plan, took.worker - took.plan
        arounds.append(around)
        for found, one, some in zip((parents, middles), alone, ten, strict=True):
            found.append(Share.of(one, some, 10))
        share = 100 * each / (each + around + sum(alone))
        print(f"{count} workers: {rate:.2f} plans/s; of a processor for each: plan {each:.3f} s, "
              f"worker besides {1e3 * around:.1f} ms; {parents[-1]} in the parent, {middles[-1]} "
              f"in the scheduler; {share:.0f} % is planning", flush=True)
    serialised()
    around, parent, middle = (max(statistics.median(arounds), 0.0), Share.median(parents),
                              Share.median(middles))
    print("plans/s of C cores = min(C / (plan + worker), k / (task + k question) of parent and "
          f"scheduler, with a core each), for k = C / ({bundles.RATE:g} plan) questions a task")
    for seconds in (0.15, 1.0, 5.0):
        ideal = CORES / seconds
        size = max(1, min(bundles.MOST, math.ceil(ideal / bundles.RATE)))
        for k in sorted({1, size}):
            found = min(CORES / (seconds + around), 1 / parent.each(k), 1 / middle.each(k))
            print(f"{CORES:,} cores, plans of {seconds:g} s, {k} a task: {found:,.0f} plans/s of "
                  f"{ideal:,.0f} without overheads ({100 * found / ideal:.0f} %)")


class Share(NamedTuple):
    """Processor seconds for a task, and for each question in it."""

    task: float
    question: float

    @classmethod
    def of(cls, alone: float, some: float, size: int) -> Share:
        """Of seconds a question, alone in a task and with others."""
        question = max((size * some - alone) / (size - 1), 0.0)
        return cls(alone - question, question)

    @classmethod
    def median(cls, found: list[Share]) -> Share:
        return cls(*map(statistics.median, zip(*found, strict=True)))

    def each(self, size: int) -> float:
        """Seconds for a question in a task of so many."""
        return self.task / size + self.question

    def __str__(self) -> str:
        return f"{1e3 * self.task:.2f} ms a task + {1e3 * self.question:.2f} ms a question"


class Took(NamedTuple):
    """Processor seconds for a question."""

    plan: float
    """By the planner."""
    worker: float
    """By the whole process of its worker."""


def planning(address: str, workers: list[subprocess.Popen]) -> tuple[float, Took]:
    """Plans a second of workers that have planned before, and what they take for each."""
    with tempfile.TemporaryDirectory() as folder:
        sweep(study("llama3-8b", 256, False, 4 * len(workers)), folder, engine=address)
    with tempfile.TemporaryDirectory() as folder:
        before, begun = [processor_seconds(one.pid) for one in workers], time.perf_counter()
        swept = sweep(study("llama3-8b", 256, False, PLANS), folder, engine=address)
        took, after = time.perf_counter() - begun, [processor_seconds(one.pid) for one in workers]
        with swept.results() as results:
            each = results.seconds / PLANS
    return PLANS / took, Took(each, (sum(after) - sum(before)) / PLANS)


def at_once_by(
    address: str, scheduler: subprocess.Popen, size: int
) -> tuple[float, float]:
    """Processor seconds of parent and scheduler for a question that is answered at once.

    ``size``: questions of a task.
    """
    with mock.patch.object(bundles.Bundles, "size", size), tempfile.TemporaryDirectory() as folder:
        begun = time.process_time(), processor_seconds(scheduler.pid)
        sweep(study("llama3-8b", 256, False, QUICK), folder, engine=address, question=at_once)
        end = time.process_time(), processor_seconds(scheduler.pid)
    parent, middle = ((b - a) / QUICK for a, b in zip(begun, end, strict=True))
    return parent, middle


def serialised() -> None:
    """What of the parent's share is serialisation, and what the store."""
    from distributed.protocol.pickle import dumps, loads

    given = study("llama3-8b", 256, False, 1)
    one, _ = read_question({name: given[name] for name in ("model", "cluster", "job", "search")})
    question = VersionedQuestion(model=one.model, cluster=one.cluster, job=one.job,
                                 search=one.search)
    sent, found = dumps(question), dumps(at_once(question))
    begun = time.process_time()
    for _ in range(QUICK):
        dumps(question)
        loads(found)
    between = time.process_time()
    with tempfile.TemporaryDirectory() as folder, Store(os.path.join(folder, FILE)) as file:
        answers(file, QUICK)
    end = time.process_time()
    print(f"of the parent: serialisation {1e3 * (between - begun) / QUICK:.2f} ms "
          f"({len(sent):,} bytes there, {len(found):,} back), store "
          f"{1e3 * (end - between) / QUICK:.2f} ms")


@contextmanager
def cluster(count: int) -> Iterator[tuple[str, subprocess.Popen, list[subprocess.Popen]]]:
    """A scheduler and workers of one thread each over TCP, whose kernels are loaded."""
    from distributed import Client

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{found.getsockname()[1]}"
    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", place.rpartition(":")[2])
    workers = [start("worker", f"tcp://{place}", "--nthreads", "1", "--no-nanny")
               for _ in range(count)]
    try:
        with Client(f"tcp://{place}", timeout=60) as client:
            client.wait_for_workers(count)
            client.run(prepare)
        yield f"dask://{place}", scheduler, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


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
