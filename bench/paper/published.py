"""Results of the published evaluation, as its artifact prints them.

``published.csv`` holds throughputs relative to ``manual`` on the fewest devices, or at the smallest
micro-batch, at which it fits (h100: at the same devices): github.com/scai-tech/Nest,
scripts/tpuv4_fatTree/reference_results.md, experiments 1 and 2, and README.md, experiments 3.1 to
3.3. An empty cell: no figure is given, mostly because nothing fits.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

PLANNERS = ("manual", "mcmc", "alpa", "phaze")
"""Planners that NEST was compared with; Alpa in an offline variant, "Alpa-E"."""
CLAIM = 2.43
"""Times the throughput of prior planners, at most (arXiv:2603.06798, abstract)."""
RECOUNTED = {
    "bert-large": (1.02, 1.22), "llama2-7b": (1.00, 1.00), "llama3-70b": (1.0, 1.5),
    "gpt3-175b": (1.00, 1.05), "mixtral-8x7b": (1.00, 1.01),
}
"""Least and largest gain over ``manual`` in the artifact's evaluator, with even stages.

``fixedConfigTimePerBatch`` of nest/Solver/device_placement/device_placement.cpp gives the stages of
an expert n layers each, counted from layer 0, which is the embedding: the first stage has n - 1
layers of the transformer and the last n + 1. The slowest stage sets the time.
"""


class Published(NamedTuple):
    """A published comparison of planners."""

    part: str
    """Of ``PARTS`` in questions.py."""
    model: str
    devices: int
    mbs: int
    relative: dict[str, float]
    """Throughput by planner; without those that have none."""


def published() -> tuple[Published, ...]:
    """All published comparisons, in their order."""
    text = Path(__file__).with_name("published.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(text.splitlines()):
        part, model, devices, mbs = (row.pop(name) for name in ("part", "model", "devices", "mbs"))
        relative = {name: float(cell) for name, cell in row.items() if cell}
        found.append(Published(part, model, int(devices), int(mbs), relative))
    return tuple(found)
