"""A small study, answers that are made up at once, and sweeps in processes that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from command_line import CLUSTER
from descriptions import MODEL

import nest
from nest.costs.compute import peak_flops
from nest.costs.memory import limit_bytes
from nest.evaluation.evaluate import chain_of
from nest.model import model_flop
from nest.search.question_bound import least_seconds
from nest.studies.questions import Answered, Outcome, VersionedQuestion
from nest.studies.sweep import Sweep, sweep

STUDY = {
    "name": "small", "model": MODEL, "cluster": CLUSTER,
    "job": {"global_batch": 16, "seq_len": 128},
    "axes": {"job.global_batch": [8, 16, 32],
             "cluster.levels.leaf.bandwidth": ["10 GB/s", "25 GB/s"],
             "cluster.device.memory": ["4 GiB", "8 GiB"]},
}
THREE_LEVELS = {**CLUSTER, "devices": 24, "levels": [
    CLUSTER["levels"][0], {**CLUSTER["levels"][1], "size": 2},
    {"name": "spine", "size": "n", "oversubscription": 2, "latency": "20 us"}]}
"""The study's cluster below a spine."""
SOURCE = str(Path(nest.__file__).parents[1])
HELPERS = str(Path(__file__).parent)
PAUSE = "NEST_TEST_PAUSE"
"""Seconds that a made-up answer takes."""
ASKED_LOG = "NEST_TEST_ASKED"
"""File that gets a line for each question that `monotone` is asked."""


def grid(points: int) -> dict:
    """A study of so many points."""
    return {**STUDY, "axes": {"job.global_batch": [*range(1, points + 1)]}}


def made_up(question: VersionedQuestion) -> Answered:
    """An answer that follows from the question, after a moment; every fifth batch does not fit."""
    time.sleep(float(os.environ.get(PAUSE, "0")))
    batch = question.job.global_batch
    if batch % 5 == 0:
        answer = Outcome(status="infeasible", message="made up")
    else:
        speed = 1000.0 * batch * question.cluster.device.memory ** 0.5
        answer = Outcome(status="ok", tokens_per_s=speed, step_time_s=128.0 * batch / speed,
                        samples_per_s=speed / 128, mfu=0.5, peak_memory_bytes=1e9, optimal=True,
                        gap=0.0, plan=f"dp {batch}")
    return Answered(answer.status, answer.model_dump_json(exclude_none=True), None)


def asked(study: dict, folder: Path, **given) -> Sweep:
    """A study swept with made-up answers."""
    return sweep(study, folder, engine=given.pop("engine", "inline"), question=made_up, **given)


def table(folder: Path, study: dict) -> list[dict]:
    """All rows of a study's answers."""
    return [*Sweep(nest.load_study(study), str(folder), True).rows()]


def child(study: Path, folder: Path, real: bool = False, engine: str = "inline",
          pause: float = 0.0, log: Path | None = None) -> subprocess.Popen:
    """A sweep in a process of its own; ``log`` gets a line for each question asked."""
    code = f"""
import json, studies, nest, nest.studies.questions as questions
from nest.studies.sweep import sweep
def question(one):
    answer = studies.made_up(one)
    if {str(log)!r} != 'None':
        with open({str(log)!r}, 'a') as stream:
            stream.write(str(one.job.global_batch) + chr(10))
    return answer
if __name__ == '__main__':
    sweep(json.load(open({str(study)!r})), {str(folder)!r}, engine={engine!r}, workers=1,
          question=questions.ask if {real} else question)
"""
    path = os.pathsep.join((SOURCE, str(Path(__file__).parent),
                            str(Path(__file__).parent.parent / "oracle")))
    return subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, PAUSE: str(pause), "NEST_THREADS": "1"})


def written(folder: Path, study: dict) -> Path:
    """The file of a study."""
    path = folder / "study.json"
    path.write_text(json.dumps(study), encoding="utf-8")
    return path


def deadly(question: VersionedQuestion) -> Answered:
    """An answer at once, but for one question, which ends its worker."""
    if abs(question.cluster.levels[0].bandwidth - 200e9) < 20e9:
        os._exit(1)
    return Answered("ok", Outcome(status="ok").model_dump_json(exclude_none=True), None)


def monotone(question: VersionedQuestion) -> Answered:
    """An answer that is no slower where a question dominates, and no faster than its totals.

    It takes longer with less bandwidth and memory, in steps, so that many points are equal; with
    the least memory nothing fits on few devices.
    """
    cluster, job = question.cluster, question.job
    chain = chain_of(question.model)
    least = least_seconds(chain, cluster, job)
    memory = limit_bytes(cluster.device, job) / 2**30
    if memory * cluster.size < 20:
        return Answered("infeasible", Outcome(status="infeasible").model_dump_json(
            exclude_none=True), None)
    slow = sum(100e9 / one for one in cluster.resolved_bandwidth) / 20
    step = least * (1.02 + round(slow, 2) / 4 + round(1 / memory, 2) / 4)
    log = os.environ.get(ASKED_LOG)
    if log:
        with open(log, "a", encoding="utf-8") as stream:
            stream.write(f"{step!r} {question.below!r}\n")
    if step >= question.below:
        return Answered("proved", Outcome(status="proved", low=question.below).model_dump_json(
            exclude_none=True), None)
    near = question.within and step * 1.001 <= question.floor * (1.0 + question.within)
    if near:
        step *= 1.001
    speed = job.global_batch * job.seq_len / step
    flop = model_flop(chain, job.seq_len) * job.global_batch
    answer = Outcome(
        status="near" if near else "ok", tokens_per_s=speed, step_time_s=step,
        samples_per_s=speed / job.seq_len, peak_memory_bytes=1e9,
        mfu=flop / (cluster.size * peak_flops(cluster.device, job.precision)) / step,
        optimal=not near, gap=0.001 if near else 0.0, low=question.floor if near else step,
        plan="made up")
    return Answered(answer.status, answer.model_dump_json(exclude_none=True), None)
