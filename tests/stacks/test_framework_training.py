"""Exported files train a tiny transformer on 4 CPUs, and the loss of each step is that of the same
model on one.

Skipped as ``test_frameworks.py``; NEST_FRAMEWORKS must have transformers too. A script starts the
programs beside this file.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from framework_plans import PYTHON

import nest
from nest.evaluation.even import even_configuration

pytestmark = pytest.mark.skipif(
    not PYTHON or "NEST_FRAMEWORK_ARGUMENTS" not in os.environ,
    reason="NEST_FRAMEWORKS or NEST_FRAMEWORK_ARGUMENTS is not set")
HERE = Path(__file__).parent
RANKS = 4
STEPS = 6
MODEL = {"name": "tiny", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128,
         "gated": True, "vocab": 512, "tied_embeddings": False, "norm": "rmsnorm", "bias": False}
"""That of ``training.py``."""
LACKING = ("--no-rope-fusion", "--no-gradient-accumulation-fusion")
"""What needs kernels that are not installed here."""
NEAR = 1e-4
"""Difference of losses: sums of fp32 in another order."""


def files_of(
    stack: str, target: str, launcher: str = "torchrun", layers: int = 2, **degrees: Any
) -> dict[str, str]:
    """Exported files of a plan for 4 devices."""
    model = nest.Model.parse({**MODEL, "layers": layers})
    cluster = nest.load_cluster("dgx-h100", devices=RANKS)
    job = nest.Job(global_batch=8, seq_len=32, stack=stack, precision="fp32")
    way = even_configuration(model, cluster, job, **degrees)
    return nest.export(nest.evaluate(model, cluster, job, way), target, launcher=launcher)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def losses(folder: Path, *words: str, **variables: str) -> dict[str, list[float]]:
    """Loss of each step by what trains, from the launch script of a folder."""
    with socket.socket() as one:  # others may train here, too
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), *words], check=False, text=True, timeout=500,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
            **given, **variables, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
            "MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu",
            "TRAINED": str(folder / "losses.json")})
    assert done.returncode == 0, done.stdout[-5000:]
    found: dict[str, list[float]] = json.loads((folder / "losses.json").read_text("utf-8"))
    return found


def need_alike(found: dict[str, list[float]], *names: str) -> None:
    """Each loss is that of the whole model, which learns."""
    whole = found.pop("whole")
    assert {*found} == {*names}
    assert len(whole) == STEPS and whole[0] - whole[-1] > 0.5, whole
    for name, each in found.items():
        assert each == pytest.approx(whole, abs=NEAR), name


FSDP2: dict[str, dict[str, Any]] = {
    "hsdp": {"zero": 2, "shard": "dp_in", "dp_in": 2, "recompute": "full"},
    "tp_zero2_sp": {"tp": 2, "zero": 2, "recompute": "selective",
                    "recompute_modules": ("norm", "mlp_act")},
    "tp_zero3": {"tp": 2, "sp": False, "zero": 3, "recompute": "selective",
                 "recompute_modules": ("core_attn",)},
    "zero3": {"zero": 3, "recompute": "full", "recompute_layers": 1},
    "zero0": {"zero": 0},
}


def test_fsdp2_trains_as_one_device(tmp_path: Path) -> None:
    """One start trains all plans: their scripts differ in the price alone."""
    for name, degrees in FSDP2.items():
        files = files_of("fsdp", "fsdp2", **degrees)
        write(tmp_path, {**files, f"parallelize_{name}.py": files.pop("parallelize.py")})
    found = losses(tmp_path, PROGRAM=str(HERE / "training_fsdp2.py"), MODULES=str(tmp_path))
    need_alike(found, *(f"parallelize_{name}" for name in FSDP2))


@pytest.mark.parametrize(("launcher", "zero"), [("torchrun", 1), ("deepspeed", 3)])
def test_deepspeed_trains_as_one_device(tmp_path: Path, launcher: str, zero: int) -> None:
    write(tmp_path, files_of("deepspeed", "deepspeed", launcher, zero=zero))
    need_alike(losses(tmp_path, PROGRAM=str(HERE / "training_deepspeed.py")), "plan")


@pytest.mark.parametrize("degrees", [
    {"tp": 2, "pp": 2}, {"pp": 2, "vpp": 2, "zero": 1, "recompute": "full"}],
    ids=["tp-pp", "vpp-dp"])
def test_megatron_trains_as_one_device(tmp_path: Path, degrees: dict[str, Any]) -> None:
    """Its script starts `pretrain_gpt.py` of a folder: of this one."""
    program = (HERE / "training_megatron.py").read_text("utf-8")
    write(tmp_path, {**files_of("megatron-core", "megatron", layers=4, **degrees),
                     "pretrain_gpt.py": program})
    found = losses(tmp_path, "--transformer-impl", "local", *LACKING, MEGATRON=str(tmp_path),
                   MOCK_DATA="1", PYTHONPATH=str(HERE))
    need_alike(found, "plan")
