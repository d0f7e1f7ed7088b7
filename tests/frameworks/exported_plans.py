"""Plans whose exported files are kept in `golden/`, but for Megatron's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import nest
from nest.evaluation.even import even_configuration

GOLDEN = Path(__file__).with_name("golden")


class Golden(NamedTuple):
    """A plan and how it is exported."""

    target: str
    model: str
    cluster: str
    devices: int
    job: dict[str, Any]
    degrees: dict[str, Any]
    launcher: str = "torchrun"

    @property
    def plan(self) -> nest.Plan:
        """The plan, priced."""
        model = nest.load_model(self.model)
        cluster = nest.load_cluster(self.cluster, devices=self.devices)
        job = nest.Job(**self.job)
        return nest.evaluate(model, cluster, job,
                             even_configuration(model, cluster, job, **self.degrees))

    @property
    def files(self) -> dict[str, str]:
        """The exported files."""
        return nest.export(self.plan, self.target, launcher=self.launcher)


PLANS = {
    "deepspeed-zero3": Golden(
        "deepspeed", "llama3-70b", "dgx-h100", 64,
        {"global_batch": 256, "seq_len": 4096, "stack": "deepspeed"},
        {"tp": 2, "sp": False, "zero": 3, "recompute": "full", "offload": "optimizer"},
        "deepspeed"),
    "deepspeed-pipeline": Golden(
        "deepspeed", "llama3-70b", "dgx-h100", 128,
        {"global_batch": 256, "seq_len": 4096, "stack": "megatron-deepspeed"},
        {"tp": 8, "pp": 4, "sp": False, "zero": 1, "recompute": "full"}, "slurm"),
    "torchtitan": Golden(
        "torchtitan", "llama3-8b", "dgx-h100", 32,
        {"global_batch": 64, "seq_len": 8192, "stack": "torchtitan"},
        {"tp": 2, "pp": 2, "vpp": 2, "schedule": "interleaved", "zero": 1, "recompute": "full"},
        "mpi"),
    "torchtitan-toml": Golden(
        "torchtitan-toml", "qwen3-30b-a3b", "dgx-h100", 32,
        {"global_batch": 64, "seq_len": 8192, "stack": "torchtitan"},
        {"ep": 8, "etp": 1, "zero": 3, "recompute": "full"}),
    "fsdp2": Golden(
        "fsdp2", "llama3-8b", "dgx-h100", 16,
        {"global_batch": 64, "seq_len": 8192, "stack": "fsdp"},
        {"tp": 2, "zero": 3, "recompute": "selective",
         "recompute_modules": ("core_attn", "norm", "mlp_act")}),
    "megatron-bridge": Golden(
        "megatron-bridge", "llama3.1-405b", "dgx-h100", 512,
        {"global_batch": 128, "seq_len": 8192, "stack": "megatron-bridge"},
        {"tp": 8, "pp": 8, "vpp": 4, "zero": 1, "recompute": "full"}),
    "maxtext": Golden(
        "maxtext", "mixtral-8x7b", "dgx-h100", 64,
        {"global_batch": 128, "seq_len": 4096, "stack": "maxtext"},
        {"tp": 2, "ep": 4, "zero": 3, "recompute": "full"}),
}


def kept(name: str) -> dict[str, str]:
    """The golden files of a plan, by name."""
    return {path.name.removeprefix(f"{name}."): path.read_text(encoding="utf-8")
            for path in GOLDEN.glob(f"{name}.*")}
