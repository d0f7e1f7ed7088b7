"""Clusters whose last groups are partly filled, or of which each group is partly used."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command_line import run

import nest
from nest.costs.network.placement import place_class, replica_group, strides
from nest.network import graph_of
from nest.planners.compare import compare
from nest.simulation import simulate

SPACE = nest.SearchSpace(tp="1,2,4", cp=1, zero="0,1", recompute="none")


def cluster(devices: int, filling: int | None = None) -> nest.Cluster:
    return nest.load_cluster("dgx-h100", devices=devices, filling=filling)


@pytest.mark.parametrize(("devices", "stride", "outer_dp"), [(20, 4, 5), (20, 6, 3), (28, 7, 4)])
def test_groups_are_those_of_the_devices_that_are_there(devices, stride, outer_dp):
    """Members in each group, counted one by one."""
    sizes = cluster(devices, 8).group_sizes
    for start in range(stride - 1):
        seen = [[r * stride + start for r in range(outer_dp)]]
        counts = [[sum(d // g == n for d in seen[0]) for n in range(-(-devices // g))]
                  for g in sizes]
        found, even = replica_group(sizes, start, 1, 1, outer_dp, stride)
        assert found == tuple(min(n for n in count if n) for count in counts)
        assert even == all(len({n for n in count if n}) == 1 for count in counts)
        assert place_class(start, outer_dp, stride, sizes) is not None


def test_the_graph_of_a_partly_filled_group_has_its_share_of_the_links() -> None:
    """Node 2 of three holds 4 devices of 8: half the bandwidth of the others leaves it."""
    levels = cluster(20)
    graph = graph_of(levels)
    ends = zip(graph.source_E.tolist(), graph.target_E.tolist(), strict=True)
    rates = {(graph.nodes[a], graph.nodes[b]): rate for (a, b), rate in
             zip(ends, graph.bandwidth_E.tolist(), strict=True)}
    out = [rates[f"nvlink{n}", "leaf0"] for n in range(3)]
    assert out == [n * levels.resolved_bandwidth[1] for n in (8, 8, 4)]
    assert sum(name[0].endswith(("device3", "device7")) for name in rates) == 5


@pytest.mark.kernels
@pytest.mark.parametrize("devices", [12, 20, 28])
def test_everything_works_on_partly_filled_groups(
    devices: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = str(tmp_path / "plan.json"), str(tmp_path / "ranks.csv")
    words = ("bert-large", "dgx-h100", "--devices", str(devices), "--global-batch",
             str(2 * devices), "--seq-len", "512", "--cp", "1", "--pp", "1..4")
    text, _ = run(capsys, "plan", *words, "--details", "-o", out, "--ranks", plan, "--map",
                  str(tmp_path / "map.svg"))
    says = {12: "6 of 8 devices of each nvlink", 20: "4 of 8 devices of the last nvlink",
            28: "7 of 8 devices of each nvlink"}[devices]
    assert says in text
    found = json.loads(Path(out).read_text(encoding="utf-8"))
    assert found["optimal"] and found["inputs"]["cluster"]["devices"] in (None, devices)
    with open(plan, encoding="utf-8") as file:
        used = [int(row["device"]) for row in csv.DictReader(file)]
    assert len(set(used)) == len(used) <= devices
    assert used[-1] == {12: 13, 20: 19, 28: 30}[devices] or len(used) < devices
    run(capsys, "evaluate", out)
    run(capsys, "simulate", out)
    run(capsys, "explain", out, "--time-limit", "60") if devices == 20 else None
    again = nest.load_plan(out)
    assert simulate(again).step_time_s == pytest.approx(again.step_time_s, rel=0.05)


@pytest.mark.kernels
@pytest.mark.parametrize("devices", [12, 20])
def test_all_planners_know_partly_filled_groups(devices: int) -> None:
    entries = compare(nest.load_model("bert-large"), cluster(devices),
                      nest.Job(global_batch=2 * devices, seq_len=512), SPACE)
    best = min(e.plan.step_time_s for e in entries if e.plan is not None and e.plan.feasible)
    by_name = {e.planner: e for e in entries}
    assert by_name["nest"].plan.step_time_s == best
    assert sum(e.plan is not None for e in entries) >= 5


@pytest.mark.kernels
def test_other_fillings_are_never_slower() -> None:
    model, job = nest.load_model("bert-large"), nest.Job(global_batch=40, seq_len=512)
    one = nest.plan(model, cluster(20), job, SPACE)
    tried = nest.plan(model, cluster(20), job, SPACE, fillings=True)
    assert tried.step_time_s <= one.step_time_s and tried.optimal
    fixed = nest.plan(model, cluster(20, 5), job, SPACE)
    assert fixed.inputs.cluster.group_sizes == (5, 20)


def test_strides_are_shares_of_the_devices() -> None:
    assert strides(1000, 3, cluster(1000).group_sizes) == (333, 328, 256)
