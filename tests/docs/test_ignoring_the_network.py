"""What plans made on a flat network take on the true one; the table is in docs/topologies.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nest
from nest.errors import InputError
from nest.inputs import Cluster, Job
from nest.planners.flat import flat_network

PAGE = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What ignoring the network costs")[2].partition("\n## ")[0]
NOWHERE = "cannot be placed"
ROWS = [[cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\| `.*$", SECTION, re.MULTILINE)]
pytestmark = pytest.mark.kernels


def flat(cluster: Cluster, level: int) -> Cluster:
    """All pairs of devices as those that only this level's group holds."""
    like, bandwidth = cluster.levels[level], cluster.resolved_bandwidth[level]
    figures = {"bandwidth": bandwidth, "oversubscription": None, "efficiency": 1.0,
               **{name: getattr(like, name) for name in ("latency", "base_time", "ramp")}}
    return flat_network(cluster.replace(
        links=None, levels=tuple(each.replace(**figures) for each in cluster.levels)))


def test_the_table_has_its_rows() -> None:
    assert [row[0].partition(":")[0] for row in ROWS] == [
        "rail-optimized", "data-centres", "dragonfly", "torus"]
    # a small effect is no reason to read the table
    assert all(NOWHERE in row or max(float(cell.strip("+ %")) for cell in row[-2:]) > 10
               for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row[0].partition(":")[0] for row in ROWS])
def test_plans_of_a_flat_network_on_the_true_one(row: list[str]) -> None:
    text, name, batch, seconds, *costs = row
    cluster, model = nest.load_network(text), nest.load_model(name)
    job = Job(global_batch=int(batch), seq_len=4096, memory_margin=0.0)
    job = job.replace(stack=job.stack.replace(capabilities=None))
    best = nest.plan(model, cluster, job)
    assert best.optimal and f"{best.step_time_s:.2f} s" == seconds
    for level, cost in zip((0, -1), costs, strict=True):
        assumed = nest.plan(model, flat(cluster, level), job)
        if cost == NOWHERE:  # its blocks straddle groups of the true network
            with pytest.raises(InputError, match="straddle a group"):
                nest.evaluate(model, cluster, job, assumed.configuration)
            continue
        true = nest.evaluate(model, cluster, job, assumed.configuration)
        assert true.feasible and assumed.step_time_s != pytest.approx(true.step_time_s, rel=1e-3)
        slower = true.step_time_s / best.step_time_s - 1
        assert slower >= -1e-9
        assert f"{100 * slower:+.0f} %" == cost
