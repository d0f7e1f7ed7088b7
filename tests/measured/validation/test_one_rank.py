"""Bytes of single ranks under torchtitan, measured by ``bench/one_rank.py``; nothing is fitted."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

import nest
from nest.evaluation.even import even_configuration

RUNS = Path(__file__).parents[3] / "bench" / "rank_runs.csv"


def rows() -> list[dict[str, str]]:
    lines = RUNS.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def priced(row: dict[str, str]) -> float:
    """Bytes that PyTorch reserves, over those measured."""
    model, devices = nest.load_model(row["model"]), int(row["devices"])
    cluster = nest.load_cluster("dgx-h100", devices=devices)
    job = nest.Job(global_batch=int(row["batch"]), seq_len=int(row["seq_len"]), stack=row["stack"],
                   memory_margin=0.0, precision=row["precision"].partition("-")[0])
    degrees: dict[str, Any] = {name: int(row[name])
                               for name in ("tp", "cp", "pp", "vpp", "dp_in", "ep", "zero", "mbs")}
    degrees["recompute"] = row["recompute"]
    if degrees["cp"] > 1:
        degrees["cp_comm"] = "all_gather"
    plan = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, **degrees))
    stage = plan.stages[int(row["rank"]) * len(plan.stages) // devices]
    reserved = stage.memory_bytes.total / (1.0 - plan.inputs.job.stack.fragmentation)
    return reserved / 2**30 / float(row["reserved_gib"])


def test_bytes_of_one_rank_are_priced_as_well_as_they_were() -> None:
    """Errors that were accepted (docs/accuracy.md, "One rank on one GPU")."""
    stages, rest, experts = [], [], []
    for row in rows():
        of_experts = row["ep"] != "1" and row["recompute"] == "selective"
        found = stages if row["pp"] != "1" else experts if of_experts else rest
        found.append(abs(priced(row) - 1.0))
    assert len(stages) == 6 and len(rest) == 8
    assert np.median(rest) <= 0.08 and max(rest) <= 0.25
    assert np.median(stages) <= 0.16 and max(stages) <= 0.27
    # It compiles parts of blocks with experts, of which selective recompute keeps nothing.
    assert len(experts) == 1 and min(experts) > 1.0
