"""The frozen list of what is timed; a change to it is a change of what the figures mean."""

from __future__ import annotations

from dataclasses import dataclass

import nest

SEQUENCE = {
    "bert-large": 512, "llama2-7b": 4096, "llama3-70b": 4096, "gpt3-175b": 2048,
    "mixtral-8x7b": 4096,
}
"""The five models of the published evaluation, and their sequence lengths."""
CLUSTERS = ("h100-spine-leaf", "tpuv4-fat-tree")
DEVICES = (64, 256, 1024, 4096)
SEQUENCES_PER_DEVICE = 4


@dataclass(frozen=True)
class Case:
    """One question to the planner: bf16 with Adam, the whole space."""

    model: str
    cluster: str
    devices: int

    def __str__(self) -> str:
        return f"{self.model}-{self.cluster}-{self.devices}"

    def question(self) -> tuple[nest.Model, nest.Cluster, nest.Job]:
        """Model, cluster and job."""
        job = nest.Job(
            global_batch=SEQUENCES_PER_DEVICE * self.devices, seq_len=SEQUENCE[self.model]
        )
        cluster = nest.load_cluster(self.cluster, devices=self.devices)
        return nest.load_model(self.model), cluster, job


CASES = [Case(m, c, n) for c in CLUSTERS for m in SEQUENCE for n in DEVICES]
