"""The questions of the published NEST evaluation (I. Wang et al., arXiv:2603.06798).

Figures are those of its artifact (github.com/scai-tech/Nest):

- global batch 4,096 for every model and every number of devices: ``global_batch_size`` in
  nest/Solver/solver.py;
- models, sequence lengths and device counts: scripts/tpuv4_fatTree/run_eval.sh and
  scripts/h100_spineLeaf/run_eval.sh. Its ``megatronbert`` has the sizes of BERT-large
  (nest/GraphExtractor/models/bert.py);
- scaling (figure 5) and H100 (table 3) at micro-batch 1: ``MBS=1`` in the same scripts. H100 is
  asked at 1,024 devices, and at 128 as in README.md, experiments 3.2 and 3.3;
- micro-batches 1, 2, 4, 8 at 256 devices (figure 6): scripts/tpuv4_fatTree/run_eval_mbs.sh. It
  shows BERT-large, Llama-2-7B and Llama-3-70B; here all five are asked.

What differs, and why: precision and optimizer are bf16 with Adam, as such models are trained (the
artifact: fp16 with SGD, ``optimizer_type`` in solver.py). Each planner has the whole space of NEST
except for the micro-batch (the artifact: its own planner recomputes everything or nothing, and has
no virtual stages). All planners of NEST are asked, also those that were not published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nest.inputs import Cluster, Job, Model, SearchSpace, load_cluster, load_model

GLOBAL_BATCH = 4096
"""Sequences in a step: the same everywhere, so that throughputs compare."""
MODELS = {
    "bert-large": 512, "llama2-7b": 4096, "llama3-70b": 4096, "gpt3-175b": 2048,
    "mixtral-8x7b": 4096,
}
"""Tokens of a sequence, by model."""
PARTS = {
    "scaling": "TPUv4 fat tree, micro-batch 1, by devices",
    "micro-batch": "TPUv4 fat tree, 256 devices, by micro-batch",
    "h100": "H100 spine-leaf, micro-batch 1, by devices",
}
"""What each part asks, by its name."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"mcmc": {"proposals": 3000}}
"""Bounds of the slow planners; the others run to their end.

`nest compare` lets mcmc look at 4,000; fewer keep the whole below ten minutes (chosen).
"""
BOUNDS = {"mcmc": "3,000 proposals"}
"""The same in words."""


class PlannerInputs(NamedTuple):
    """What a planner is asked."""

    model: Model
    cluster: Cluster
    job: Job
    space: SearchSpace


@dataclass(frozen=True)
class PaperQuestion:
    """What is trained, and where."""

    part: str
    """Of :data:`PARTS`."""
    model: str
    """Name in the catalog, or a file."""
    cluster: str
    devices: int
    mbs: int
    """Samples that a device takes at once."""
    global_batch: int
    seq_len: int

    @property
    def point(self) -> int:
        """What changes within the part: the micro-batch, or the devices."""
        return self.mbs if self.part == "micro-batch" else self.devices

    def described(self) -> PlannerInputs:
        """What is asked in full.

        Raises
        ------
        InputError : model or cluster cannot be read.
        """
        return PlannerInputs(
            load_model(self.model), load_cluster(self.cluster, devices=self.devices),
            # the margin is younger than the stored answers, and the paper has none
            Job(global_batch=self.global_batch, seq_len=self.seq_len, memory_margin=0.0),
            SearchSpace.parse({"mbs": self.mbs}))


def questions(parts: Iterable[str] = PARTS, models: Iterable[str] = MODELS) -> list[PaperQuestion]:
    """The questions of some parts about some models, model by model.

    Parameters
    ----------
    parts : of :data:`PARTS`.
    models : of :data:`MODELS`.
    """
    points = {
        "scaling": [("tpuv4-fat-tree", devices, 1) for devices in (64, 128, 256, 512, 1024)],
        "micro-batch": [("tpuv4-fat-tree", 256, mbs) for mbs in (1, 2, 4, 8)],
        "h100": [("h100-spine-leaf", devices, 1) for devices in (128, 1024)],
    }
    named = list(models)
    return [PaperQuestion(part, model, cluster, devices, mbs, GLOBAL_BATCH, MODELS[model])
            for part in parts for model in named for cluster, devices, mbs in points[part]]


def marked(planner: str) -> str:
    """Name of a planner, with a star if it is bounded."""
    return f"{planner}*" if planner in BOUNDS else planner


def bounds_text(planners: Iterable[str]) -> str:
    """Explanation of the stars; empty if there are none."""
    bounded = [f"{name} ends after {BOUNDS[name]}" for name in planners if name in BOUNDS]
    return f"*: {', '.join(bounded)}; all others ran to their end." if bounded else ""
