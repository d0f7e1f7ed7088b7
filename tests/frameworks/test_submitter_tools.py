"""Files for launchers, judged by the launchers' own code.

Skipped where no Python with them is known: ``NEST_LAUNCHERS`` names one (`.ci/launchers`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from test_submitters import files_of

PYTHON = os.environ.get("NEST_LAUNCHERS", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="NEST_LAUNCHERS names no Python")
NEMO = """
import runpy, nemo_run as run
given = runpy.run_path("submit.py", run_name="not main")
with run.Experiment("plan-7") as experiment:
    experiment.add(run.Script(inline=given["START"]), executor=given["executor"], name="plan-7")
    experiment.dryrun()
"""
SKY = """
import sky
task = sky.Task.from_yaml("task.yaml")
print(task.num_nodes, task.resources, task.envs["TOKENIZER"])
"""
TRAINER = """
import yaml
from kubeflow_trainer_api import models
job = [*yaml.safe_load_all(open("job.yaml"))][-1]
found = models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()
assert found == job, (found, job)
group = [*yaml.safe_load_all(open("jobset.yaml"))][-1]["spec"]
found = models.JobsetV1alpha2JobSetSpec.from_dict(group).to_dict()
assert found == group, (found, group)
print("same")
"""


def judged(folder: Path, program: str, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [PYTHON, "-c", program], cwd=folder, capture_output=True, text=True, check=False,
        timeout=300, env={**os.environ, "HOME": str(folder), "NEMORUN_HOME": str(folder / "runs"),
                          "COLUMNS": "400", "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_nemo_run_makes_a_batch_script(tmp_path) -> None:
    out = judged(tmp_path, NEMO, files_of("nemo-run", partition="gpu", time="02:00:00")[1])
    for line in ("--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=4", "--account=me",
                 "--partition=gpu", "--time=02:00:00", "export MASTER_ADDR=$(scontrol show"):
        assert line in out
    assert "--container-image nvcr.io/nvidia/nemo:25.09" in out


def test_skypilot_takes_the_task(tmp_path) -> None:
    out = judged(tmp_path, SKY, files_of("skypilot", infra="k8s")[1])
    assert "4 {Kubernetes({'H100': 4})} t" in out


def test_models_of_kubeflow_lose_nothing(tmp_path) -> None:
    more = {"queue": "q", "topology": "x/rack", "claim": "data"}
    files = {**files_of("trainjob", **more)[1], "jobset.yaml": files_of("jobset", **more)[1][
        "job.yaml"]}
    assert "same" in judged(tmp_path, TRAINER, files)
