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
from nest.studies.questions import Answered, Outcome, VersionedQuestion
from nest.studies.sweep import Sweep, sweep

STUDY = {
    "name": "small", "model": MODEL, "cluster": CLUSTER,
    "job": {"global_batch": 16, "seq_len": 128},
    "axes": {"job.global_batch": [8, 16, 32],
             "cluster.levels.leaf.bandwidth": ["10 GB/s", "25 GB/s"],
             "cluster.device.memory": ["4 GiB", "8 GiB"]},
}
SOURCE = str(Path(nest.__file__).parents[1])
HELPERS = str(Path(__file__).parent)
PAUSE = "NEST_TEST_PAUSE"
"""Seconds that a made-up answer takes."""


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
