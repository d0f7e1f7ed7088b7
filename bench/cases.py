"""The frozen list of what is timed; a change to it is a change of what the figures mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nest
from nest.inputs import Level

SEQUENCE = {
    "bert-large": 512, "gpt3-175b": 2048, "llama2-7b": 4096, "mixtral-8x7b": 4096,
    "deepseek-v3": 4096, "llama3-70b": 8192, "llama3.1-405b": 8192,
}
"""Models, and the sequence lengths that they are trained with."""
CLUSTERS = ("h100-spine-leaf", "dgx-h100")
DEVICES = (64, 1024, 4096, 16384, 131072)
TOO_LARGE = {("deepseek-v3", 64), ("llama3.1-405b", 64)}
"""Where nothing fits."""
SEQUENCES_PER_DEVICE = 4


@dataclass(frozen=True)
class Case:
    """One question to the planner: bf16 with Adam, the whole space."""

    model: str
    cluster: str
    devices: int

    def __str__(self) -> str:
        return f"{self.model}-{self.cluster}-{self.devices}"

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return (self.model, self.devices) not in TOO_LARGE

    def question(self, faster: float = 1.0) -> tuple[nest.Model, nest.Cluster, nest.Job]:
        """Model, cluster and job; the network outside the node ``faster`` times as fast.

        All levels outside the node change: the outermost alone makes no difference where a level
        below it is narrower, as on h100-spine-leaf.
        """
        job = nest.Job(
            global_batch=SEQUENCES_PER_DEVICE * self.devices, seq_len=SEQUENCE[self.model]
        )
        cluster = nest.load_cluster(self.cluster, devices=self.devices)
        levels = (cluster.levels[0], *(_scaled(level, faster) for level in cluster.levels[1:]))
        return nest.load_model(self.model), cluster.replace(levels=levels), job


def _scaled(level: Level, factor: float) -> Level:
    """The level with its own bandwidth times ``factor``; others follow the narrowest below."""
    if level.bandwidth is None:
        return level
    return level.replace(bandwidth=factor * level.bandwidth)


CASES = [Case(m, c, n) for n in DEVICES for c in CLUSTERS for m in SEQUENCE]


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of equal length as a text block in Markdown, the first columns on the left.

    Rows that say nothing (`.`) are left out, and an empty cell is `-`.
    """
    shown = [rows[0], *(row for row in rows[1:] if not {*row[1:]} <= {".", ""})]
    shown = [[cell or "-" * (n > 0) for n, cell in enumerate(row)] for row in shown]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(cell.ljust(width) if n < left else cell.rjust(width)
                       for n, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
             for row in shown]
    return "\n".join(["```text", *lines, "```"])
