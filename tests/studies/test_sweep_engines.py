"""Dask, MPI and Ray for real on one machine, with a worker killed in the middle.

They run where their packages are installed: `.ci/engines` installs them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from studies import HELPERS, SOURCE, STUDY, deadly, table, written

from nest.errors import InputError
from nest.studies import engines as bundles
from nest.studies.store import Store
from nest.studies.sweep import FILE, sweep

BIN = Path(sys.executable).parent
POINTS = {**STUDY, "model": "llama2-7b", "cluster": {"base": "dgx-h100", "devices": 64},
          "job": {"global_batch": 512, "seq_len": 4096}, "axes": {
              "cluster.levels.0.bandwidth": {"from": "100 GB/s", "to": "900 GB/s", "count": 40}}}
"""Questions of about 0.1 s each."""
SHARED = {**os.environ, "PYTHONPATH": os.pathsep.join((SOURCE, HELPERS)), "NEST_THREADS": "1",
          "RAY_USAGE_STATS_ENABLED": "0",
          "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
SPAWNED = "multiprocessing.spawn import spawn_main"
pytestmark = pytest.mark.kernels


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' '.join(missing)}: see .ci/engines")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[dict]:
    """The rows of a sweep in the process itself."""
    folder = tmp_path_factory.mktemp("whole")
    sweep(POINTS, folder, engine="inline")
    return table(folder, POINTS)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def process(*words: str, log: Path) -> Iterator[subprocess.Popen]:
    """A process of its own group, ended with it."""
    with open(log, "a") as stream:
        found = subprocess.Popen(words, env=SHARED, stdout=stream, stderr=stream, cwd=log.parent,
                                 start_new_session=True)
    try:
        yield found
    finally:
        with_group(found, signal.SIGKILL)


def with_group(found: subprocess.Popen, number: int) -> None:
    if found.poll() is None:
        os.killpg(found.pid, number)
        found.wait(30)


def answered(folder: Path) -> int:
    """Answers stored so far."""
    if not (folder / FILE).exists():
        return 0
    try:
        with Store(str(folder / FILE), reads=True) as store:
            return sum(1 for _ in store.all_answers())
    except Exception:  # it is being made
        return 0


def until(said: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not said():
        assert time.monotonic() < end
        time.sleep(0.1)


def command(folder: Path, engine: str) -> list[str]:
    study = written(folder.parent, POINTS)
    return ["-m", "nest", "sweep", str(study), "-o", str(folder), "--engine", engine, "-q"]


def command_of(pid: int) -> str:
    """The command of a process; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")


def exists(pid: int) -> bool:
    """Whether a process runs; what has ended and is not waited for yet does not."""
    return command_of(pid) != ""


def children(part: str) -> list[int]:
    """Processes with a text in their command."""
    return sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")
                  if part in command_of(int(path.name)))


@contextmanager
def dask_cluster(log: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A scheduler and two workers: its address, and the first worker."""
    place, dask = f"127.0.0.1:{free_port()}", [sys.executable, "-m", "dask"]
    with process(*dask, "scheduler", "--host", "127.0.0.1", "--port", place.rpartition(":")[2],
                 "--no-dashboard", log=log):
        until(lambda: "Scheduler at" in log.read_text())
        worker = [*dask, "worker", f"tcp://{place}", "--nthreads", "1", "--no-dashboard", *options]
        with process(*worker, log=log) as first, process(*worker, log=log):
            until(lambda: log.read_text().count("Registered to") == 2)
            yield f"dask://{place}", first


@needs("distributed")
def test_dask_over_tcp_with_a_worker_killed(tmp_path, whole):
    log, folder = tmp_path / "log", tmp_path / "answers"
    with dask_cluster(log, "--no-nanny") as (address, first), process(
            sys.executable, *command(folder, address), log=log) as run:
        until(lambda: answered(folder) > 3)
        with_group(first, signal.SIGKILL)
        assert answered(folder) < len(whole)
        assert run.wait(120) == 0, log.read_text()[-3000:]
    assert table(folder, POINTS) == whole


@needs("distributed")
def test_dask_with_several_questions_a_task_and_a_worker_killed(tmp_path, whole, monkeypatch):
    log, folder = tmp_path / "log", tmp_path / "answers"
    monkeypatch.setattr(bundles, "RATE", 0.1)  # also where a busy machine takes seconds for a plan
    sizes, together = [], bundles.Bundles._give
    monkeypatch.setattr(bundles.Bundles, "_give", lambda self, calls: (
        sizes.append(len(calls)), together(self, calls)))
    with dask_cluster(log, "--no-nanny") as (address, first):
        def follow(now):
            if now.asked > 3:
                with_group(first, signal.SIGKILL)

        sweep(POINTS, folder, engine=address, progress=follow)
        assert first.poll() is not None
    assert max(sizes) > 4
    assert table(folder, POINTS) == whole


@needs("distributed")
@pytest.mark.parametrize("size", [1, 10])
def test_dask_with_a_question_that_kills_workers(tmp_path, monkeypatch, size):
    """It fails, with those at most that Dask had given the same workers; none is left open."""
    log, folder = tmp_path / "log", tmp_path / "answers"
    few = {**POINTS, "axes": {"cluster.levels.0.bandwidth": {
        "from": "100 GB/s", "to": "900 GB/s", "count": 17}}}
    monkeypatch.setattr(bundles.Bundles, "size", size)
    with dask_cluster(log) as (address, _):
        assert sweep(few, folder, engine=address, question=deadly).complete
    with Store(str(folder / FILE), reads=True) as store:
        found = [row.answer for row in store.rows(store.latest()[0])]
    assert len(found) == 17 and 1 <= sum("KilledWorker" in one for one in found) <= 4


@needs("distributed")
def test_a_scheduler_that_is_lost_is_told_and_the_sweep_goes_on_elsewhere(tmp_path, whole):
    port, log, folder = free_port(), tmp_path / "log", tmp_path / "answers"
    with pytest.raises(InputError, match="no scheduler of Dask at"):
        sweep(POINTS, folder, engine=f"dask://127.0.0.1:{port}")
    dask, end = [sys.executable, "-m", "dask"], tmp_path / "end"
    with process(*dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard",
                 log=log) as scheduler, process(
            *dask, "worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny",
            "--no-dashboard", log=log), process(
            sys.executable, *command(folder, f"dask://127.0.0.1:{port}"), log=end) as run:
        until(lambda: answered(folder) > 2)
        with_group(scheduler, signal.SIGKILL)
        assert run.wait(300) == 2, end.read_text()
    said = end.read_text()
    assert "is lost" in said and "the same command goes on" in said and "Traceback" not in said
    sweep(POINTS, folder, engine="inline")
    assert table(folder, POINTS) == whole


@needs("mpi4py")
def test_mpi_with_three_processes_and_one_killed(tmp_path, whole):
    mpiexec = shutil.which("mpiexec", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        pytest.skip("needs mpiexec: see .ci/engines")
    log, folder = tmp_path / "log", tmp_path / "answers"
    words = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", *command(folder, "mpi")]
    with process(*words, log=log) as run:
        until(lambda: answered(folder) > 3)
        ranks = [pid for pid in children(str(folder)) if "mpiexec" not in command_of(pid)
                 and "prterun" not in command_of(pid)]
        assert len(ranks) == 3
        os.kill(ranks[-1], signal.SIGKILL)  # MPI ends the others
        assert run.wait(60) != 0
    kept = answered(folder)
    assert 3 < kept < len(whole)
    with process(*words, log=log) as run:
        assert run.wait(120) == 0, log.read_text()[-3000:]
    assert table(folder, POINTS) == whole


@needs("mpi4py")
def test_mpi_in_one_process_is_told(tmp_path):
    done = subprocess.run(
        [sys.executable, *command(tmp_path / "o", "mpi")], env=SHARED, capture_output=True,
        text=True, timeout=60)
    assert done.returncode == 2 and "mpiexec -n 3" in done.stderr


@needs("ray")
def test_ray_with_a_head_a_worker_and_a_process_killed(tmp_path, whole):
    port, log, folder = 6399, tmp_path / "log", tmp_path / "answers"
    ray = [str(BIN / "ray")]
    with pytest.raises(InputError, match="no head of Ray at"):
        sweep(POINTS, folder, engine=f"ray://127.0.0.1:{free_port()}")
    start = [*ray, "start", "--num-cpus", "1", "--disable-usage-stats", "--block"]
    with process(*start, "--head", "--port", str(port), "--include-dashboard=false",
                 log=log):
        until(lambda: "Ray runtime started" in log.read_text())
        with process(*start, "--address", f"127.0.0.1:{port}", log=log):
            until(lambda: log.read_text().count("Ray runtime started") == 2)
            with process(sys.executable, *command(folder, f"ray://127.0.0.1:{port}"),
                         log=log) as run:
                until(lambda: answered(folder) > 3, 150)
                until(lambda: bool(children("ray::ask")))
                os.kill(children("ray::ask")[0], signal.SIGKILL)
                assert answered(folder) < len(whole)
                assert run.wait(180) == 0, log.read_text()[-3000:]
    assert table(folder, POINTS) == whole


def test_local_processes_with_one_killed(tmp_path, whole):
    log, folder = tmp_path / "log", tmp_path / "answers"
    words = [sys.executable, *command(folder, "local"), "--workers", "2"]
    with process(*words, log=log) as run:
        until(lambda: answered(folder) > 3)
        mine = [pid for pid in children(SPAWNED) if os.getpgid(pid) == run.pid]
        assert mine
        os.kill(mine[0], signal.SIGKILL)
        assert answered(folder) < len(whole)
        assert run.wait(120) == 0, log.read_text()[-3000:]
    assert table(folder, POINTS) == whole
    assert json.loads((folder / "points.json").read_text())["status"] == {"ok": len(whole)}


def test_workers_end_with_their_parent(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "answers"
    with process(sys.executable, *command(folder, "local"), "--workers", "2", log=log) as run:
        until(lambda: answered(folder) > 0)
        mine = [pid for pid in children(SPAWNED) if os.getpgid(pid) == run.pid]
        assert mine
        os.kill(run.pid, signal.SIGKILL)
        run.wait(10)
        until(lambda: not any(exists(pid) for pid in mine), 20)
