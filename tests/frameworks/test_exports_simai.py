"""SimAI's workload, parsed by its own rules, and compared with the plan."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from exported import EXPERTS
from test_exports_megatron import small

import nest
from nest.errors import UnsupportedError
from nest.simulation import simai
from nest.simulation.graph import StepGraph


class Line(NamedTuple):
    name: str
    times: tuple[int, int, int]
    sent: tuple[tuple[str, int], ...]


def parsed(text: str) -> tuple[dict[str, int], list[Line]]:
    """As Workload::initialize_workload reads it: words between white space."""
    first, second, *rest = text.splitlines()
    policy, *words = first.split()
    assert policy == "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
    header = {name.rstrip(":"): int(value)
              for name, value in zip(words[::2], words[1::2], strict=True)}
    found = []
    for row in rest:
        name, depends, *columns, update = row.split()
        assert (depends, len(columns), update) == ("-1", 9, "100")
        found.append(Line(name, tuple(map(int, columns[::3])),  # type: ignore[arg-type]
                          tuple((columns[n + 1], int(columns[n + 2])) for n in (0, 3, 6))))
    assert len(found) == int(second)
    return header, found


def workload(plan: nest.Plan) -> tuple[dict[str, int], list[Line]]:
    return parsed(nest.export(plan, "simai")[simai.WORKLOAD])


@pytest.mark.parametrize(("changes", "degrees"), [
    ({}, {"tp": 2, "pp": 2, "zero": 1}), ({}, {"tp": 1}), ({}, {"pp": 4, "vpp": 2, "tp": 2}),
    ({}, {"tp": 4, "sp": False, "recompute": "full"}),
    ({"moe": EXPERTS}, {"tp": 2, "ep": 4, "etp": 2, "zero": 1, "pp": 2})])
def test_totals_are_those_of_the_plan(changes: dict[str, Any], degrees: dict[str, Any]) -> None:
    plan = small(changes, **degrees)
    header, lines = workload(plan)
    stages = plan.stages
    slowest = max(stages, key=lambda one: one.time_s.forward + one.time_s.backward
                  + one.time_s.recompute)
    t, m = slowest.time_s, plan.parallelism.micro_batches
    forward, inputs, weights = (sum(line.times[n] for line in lines) for n in range(3))
    assert forward == pytest.approx(m * t.forward * 1e9, abs=1)
    assert inputs == pytest.approx(m * (t.backward + t.recompute) * 1e9, abs=1)
    assert weights == pytest.approx((slowest.finish_s - slowest.grad_sync_s) * 1e9, abs=1)
    assert header == {
        "model_parallel_NPU_group": stages[0].tp, "ep": stages[0].ep, "pp": plan.parallelism.pp,
        "vpp": plan.parallelism.vpp, "ga": m, "all_gpus": len(plan.ranks()), "checkpoints": 0,
        "checkpoint_initiates": 0,
        **({"pp_comm": header["pp_comm"]} if plan.parallelism.pp > 1 else {})}
    assert ("pp_comm" in header) == (plan.parallelism.pp > 1)
    sizes: Counter[str] = Counter()
    for line in lines:
        for kind, size in line.sent:
            sizes[kind] += size
    assert sizes == pytest.approx(_whole(plan, stages.index(slowest)), abs=len(lines))


def _whole(plan: nest.Plan, number: int) -> dict[str, float]:
    """Bytes by type of the collectives of a stage's graph, as whole buffers."""
    graph = StepGraph(plan)
    rank = next(one for one in graph.ranks if one.stage == number)
    ends = {"ep": "_EP", "expert_dp": "_DP_EP"}
    names = {"all_gather": "ALLGATHER", "reduce_scatter": "REDUCESCATTER",
             "all_reduce": "ALLREDUCE", "all_to_all": "ALLTOALL"}
    found: Counter[str] = Counter({"NONE": 0})
    for node in graph.stages[number]:
        if node.sent is not None:
            n = len(graph.members(node.sent.group, rank))
            share = {"all_reduce": 2.0}.get(node.sent.collective, 1.0) * (n - 1) / n
            found[names[node.sent.collective] + ends.get(node.sent.group, "")] += (
                node.sent.size / share)  # type: ignore[assignment]
    return dict(found)


def test_collectives_of_a_layer_are_in_the_order_of_their_passes() -> None:
    _, lines = workload(small(tp=2, pp=1))
    rows = [line for line in lines if line.name == "layer"][:2]
    assert [line.sent[0][0] for line in rows] == ["ALLGATHER", "REDUCESCATTER"]
    assert [line.sent[1][0] for line in rows[::-1]] == ["ALLGATHER", "REDUCESCATTER"]
    assert [line.times[0] > 0 for line in rows] == [True, False]
    assert [line.times[1] > 0 for line in rows] == [False, True]


@pytest.mark.parametrize(("changes", "given", "wanted"), [
    ({}, {"cp": 2}, "cp 2: it has no groups of context parallelism"),
    ({}, {"zero": 3}, "zero 3: passes have no collectives over data-parallel groups"),
    ({}, {"zero": 1, "shard": "dp_in", "dp_in": 2}, "shard dp_in: it has no groups of a part"),
    ({}, {"pp": 2, "schedule": "gpipe"}, "schedule gpipe: its bubbles"),
    ({}, {"pp": 2, "schedule": "dualpipe"}, "schedule dualpipe: the exchange between two stages"),
    ({"moe": EXPERTS}, {"tp": 2, "ep": 4, "etp": 1}, "etp 1: experts are divided as"),
    ({"tied_embeddings": True}, {"pp": 2}, "tied embeddings: it has no group")])
def test_what_it_cannot_say_is_refused(
    changes: dict[str, Any], given: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(UnsupportedError, match=f"simai cannot express this plan:\n{wanted}"):
        nest.export(small(changes, **given), "simai")
